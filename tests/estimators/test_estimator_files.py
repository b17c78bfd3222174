"""Saved and loaded, a model is the same to the bit; kernels and likelihoods of one's own come back by their class."""

import copy
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from model_files import forge
from own_parts import Grades, Laplace, Wave
from sklearn.base import clone
from sklearn.datasets import load_iris
from torch import nn

from autogp import GPClassifier, GPRegressor, load_model
from autogp.features import Chain, PrincipalComponents
from autogp.kernels import RBF, Linear
from autogp.posteriors import Posterior
from autogp.storage import StorageError, read_tensors
from autogp.training import Phase, Settings, Start

X, y = load_iris(return_X_y=True)
SMALL = {"n_inducing": 8, "max_epochs": 4, "random_state": 0}
NORMAL = SMALL | {"likelihood": "gaussian"}
Y = np.stack([y, np.round(2 * X[:, 0])], 1).astype(float)
FRAME = pd.DataFrame(X, columns=list("abcd")).assign(text=np.where(X[:, 0] > 5.5, "long", "short"))
NAMES = np.array(["setosa", "versicolor", "virginica"])

CASES = {
    "softmax": (GPClassifier(**SMALL), X, y),
    "logit": (GPClassifier(**SMALL, class_weight="balanced"), X, y > 0),
    "probit": (GPClassifier(**SMALL, likelihood="probit", class_weight={0: 2.0, 1: 1.0}), X, (y > 0) * 1),
    "text labels": (GPClassifier(**SMALL), FRAME, NAMES[y]),
    "object labels": (GPClassifier(**SMALL), FRAME, NAMES.astype(object)[y]),
    "mixture": (GPClassifier(**SMALL, n_components=2, share_kernel=False), X, y),
    "loo": (GPClassifier(**SMALL, objective="loo"), X, y),
    "auto": (GPRegressor(**SMALL), FRAME, y),
    "two outputs": (GPRegressor(**NORMAL, share_kernel=False), X, Y),
    "student_t": (GPRegressor(**SMALL, likelihood="student_t", kernel="matern32"), X, y),
    "poisson": (GPRegressor(**SMALL, likelihood="poisson", kernel="arccosine"), X, y),
    "network": (GPRegressor(**SMALL, likelihood="network"), X, Y),
    "kernel object": (GPRegressor(**NORMAL, kernel=RBF(lengthscale=[1.0] * 4) + Linear([1.0] * 4)), X, y),
    "many columns": (GPRegressor(**NORMAL), np.tile(X, 15), y),
}


@pytest.mark.parametrize("case", CASES)
def test_a_model_comes_back_whole(case, tmp_path, monkeypatch):
    monkeypatch.setattr("autogp.training.mixture.STEPS", 5)
    estimator, rows, targets = CASES[case]
    model = clone(estimator).fit(rows, targets)
    model.save(tmp_path / "model.autogp")
    again = load_model(tmp_path / "model.autogp")

    assert (again.log_density(rows, targets) == model.log_density(rows, targets)).all()
    assert (again.predict(rows) == model.predict(rows)).all()
    if isinstance(model, GPClassifier):
        assert (again.predict_proba(rows) == model.predict_proba(rows)).all()
        assert again.classes_.tolist() == model.classes_.tolist()
        assert again.classes_.dtype == model.classes_.dtype
    else:
        assert (again.sample_y(rows[:3], 2) == model.sample_y(rows[:3], 2)).all()
    for name in ("elbo_", "loo_score_"):
        found, expected = getattr(again, name), getattr(model, name)
        assert found == expected or (math.isnan(found) and math.isnan(expected))
    assert [str(sorted(row.items())) for row in again.history_] == [str(sorted(row.items())) for row in model.history_]
    assert again.n_rows_ == model.n_rows_
    assert (again.feature_importances_ == model.feature_importances_).all()
    assert str(clone(again).get_params()) == str(model.get_params())


@pytest.mark.filterwarnings("ignore:training has ended before")  # |y - f| has a kink
def test_a_model_of_ones_own_parts_fits_predicts_and_comes_back(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 10, (150, 1))
    target = np.sin(2 * x[:, 0]) + 0.1 * rng.laplace(size=150)
    scale = x.std()  # a kernel sees scaled inputs
    model = GPRegressor(12, kernel=Wave(3.0 / scale), likelihood=Laplace(0.3), max_epochs=100, random_state=0)
    model.fit(x, target)
    assert model.model_.kernel.log_period.exp().item() * scale == pytest.approx(np.pi, rel=0.02)
    grid = np.linspace(20, 30, 20)[:, None]
    mean, std = model.predict(grid, return_std=True)
    assert np.abs(mean - np.sin(2 * grid[:, 0])).max() < 0.35
    assert 0 < std.min() < std.max() < 1

    model.save(tmp_path / "model.autogp")
    again = load_model(tmp_path / "model.autogp", modules=[Wave, Laplace])
    assert (again.predict(grid) == mean).all()
    assert clone(again).get_params()["kernel"].log_period.item() == model.kernel.log_period.item()
    with pytest.raises(StorageError, match=r"modules=\[.*Wave"):
        load_model(tmp_path / "model.autogp")
    assert model.feature_importances_.tolist() == [1.0]
    with pytest.raises(NotImplementedError, match="Laplace must define sample"):
        model.sample_y(grid)


def test_a_classifier_takes_a_likelihood_of_ones_own(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.uniform(-3, 3, (200, 1))
    grade = np.array(["a low", "b middle", "c high"])[np.digitize(x[:, 0] + 0.5 * rng.normal(size=200), [-1, 1])]
    model = GPClassifier(8, likelihood=Grades(), max_epochs=20, random_state=0).fit(x, grade)
    assert model.score(x, grade) > 0.75
    assert model.predict_proba(x).sum(1) == pytest.approx(1)
    model.save(tmp_path / "model.autogp")
    again = load_model(tmp_path / "model.autogp", modules=[Grades])
    assert (again.predict_proba(x) == model.predict_proba(x)).all()


class Layers(nn.Module):
    """Features by a network of the user's own."""

    def __init__(self, inputs=4, width=5):
        super().__init__()
        self.inputs, self.width = inputs, width
        self.layers = nn.Sequential(nn.Linear(inputs, width), nn.BatchNorm1d(width), nn.Tanh())

    def forward(self, x):
        return self.layers(x)


class Forgetful(Layers):
    def __init__(self, inputs=4, outputs=2):
        super().__init__(inputs, outputs)


@pytest.mark.parametrize(
    "features",
    [Layers(), Layers().requires_grad_(False).eval(), PrincipalComponents(2), Chain(PrincipalComponents(4), Layers())],
    ids=["learnt", "frozen", "components", "chain"],
)
def test_an_estimator_comes_back_with_its_features(features, tmp_path):
    model = GPRegressor(**NORMAL, features=features).fit(X, y)
    model.save(tmp_path / "model.autogp")
    again = load_model(tmp_path / "model.autogp", modules=[Layers])
    assert (again.predict(X) == model.predict(X)).all()
    assert repr(again.features) == repr(features)
    for name, tensor in features.state_dict().items():  # as it was given, not as it was learnt
        assert torch.equal(again.features.state_dict()[name], tensor)
    assert [p.requires_grad for p in again.features.parameters()] == [p.requires_grad for p in features.parameters()]
    if any(isinstance(part, Layers) for part in features.modules()):
        with pytest.raises(StorageError, match=r"modules=\[Layers\]"):
            load_model(tmp_path / "model.autogp")


def test_training_leaves_a_network_its_precision_and_a_prediction_does_not_depend_on_other_rows():
    model = GPRegressor(**NORMAL, features=Layers()).fit(X, y)
    assert {parameter.dtype for parameter in model.model_.features.parameters()} == {torch.float32}
    assert model.predict(X[:1])[0] == pytest.approx(model.predict(X)[0], rel=1e-5)


def test_saving_says_what_a_class_of_ones_own_must_do(tmp_path):
    model = GPRegressor(**NORMAL, features=Forgetful()).fit(X, y)
    with pytest.raises(
        StorageError, match=r"constructor of Forgetful must keep its argument 'outputs' as self\.outputs"
    ):
        model.save(tmp_path / "model.autogp")
    assert not list(tmp_path.iterdir())


def test_settings_phases_and_start_come_back(tmp_path):
    plan = [Phase("elbo", 2, rates={"kernel": 0.01}), Phase("loo", 1, hold=True, trainable=("kernel",))]
    settings = Settings(batch_size=50, plan=plan, natural_rates=(0.2, 0.02))
    model = GPClassifier(8, settings=settings, start=Start(variance=3.0, by_class=False), random_state=0).fit(X, y)
    model.save(tmp_path / "model.autogp")
    again = load_model(tmp_path / "model.autogp")
    assert again.settings == model.settings
    assert again.start == model.start
    assert again.history_ == model.history_
    assert again.stopped_ == model.stopped_
    assert (clone(again).fit(X, y).predict_proba(X) == model.predict_proba(X)).all()


# files that are forged, all with a right checksum


@pytest.fixture(scope="module")
def contents(tmp_path_factory):
    """Description and tensors of the files of a classifier and two regressors, one of them of a table."""
    folder, found = tmp_path_factory.mktemp("contents"), {}
    settings = Settings(max_epochs=3, plan=[Phase("elbo", 3)])
    for name, model in {
        "table": GPRegressor(**NORMAL),
        "classifier": GPClassifier(8, class_weight={0: 1.0, 2: 2.0}, settings=settings, start=Start(), random_state=0),
        "regressor": GPRegressor(**NORMAL, features=PrincipalComponents(2)),
    }.items():
        model.fit(FRAME if name == "table" else X, y).save(folder / name)
        found[name] = read_tensors(folder / name, "model")[::-1]
        assert forge(*found[name]) == (folder / name).read_bytes()
    return found


BAD_PARAMETERS = {
    "n_inducing": [0, -1, 1.5, "8", None, [8]],
    "kernel": ["sinc", 1, None, []],
    "likelihood": ["cauchy", 1, None],
    "features": [1, "network", []],
    "objective": ["loss", 1, None],
    "n_components": [0, -1, 2.5, "1", None],
    "share_kernel": [1, "yes", []],
    "scaling": ["log", None, 1],
    "start": [1, [], {}, {"variance": 1.0}, "auto"],
    "settings": [1, [], {}, {"plan": None}, "auto"],
    "max_epochs": [0, -1, 1.5, "3"],
    "batch_size": [0, "all", 2.5],
    "validation_fraction": [0, 1, 1.5, -0.1, "half"],
    "patience": [0, 1.5, "none"],
    "time_budget": [0, -1.0, "1h"],
    "checkpoint": [1, []],
    "random_state": [-1, 1.5, "seed"],
    "verbose": [1.5, "loud", None],
    "device": [None, 1, []],
}
BAD_FIELDS = {
    "start": {"variance": [-1.0, "1", True], "by_class": [1, "yes"], "dtype": ["float16", 1]},
    "settings": {
        "objective": ["loss", None],
        "max_epochs": [0, 1.5, "3", True],
        "natural_rates": [[0.1], [0.1, 0.1, 0.1], [0, 2], 0.1, "ab"],
        "decay": [0, None, "no"],
        "device": [0, None],
        "seed": [-1, 0.5, None, 2**40],
        "plan": [[], [1], [{}], [None], {}, 3, "elbo"],
        "learning_rate": [0, -1.0, "0.1", None],
    },
}
DELETED = "nothing"


def put(*path):
    *way, last, value = path

    def attack(content, tensors):
        for key in way:
            content = content[key]
        if value is DELETED:
            del content[last]
        else:
            content[last] = value

    return attack


def change(name, function):
    return lambda content, tensors: tensors.update({f"tensors.{name}": function(tensors[f"tensors.{name}"])})


D = "description"
ATTACKS = {
    **{
        f"{name} = {value!r}": ("classifier", put(D, "parameters", name, value))
        for name, values in BAD_PARAMETERS.items()
        for value in values
    },
    **{
        f"{name}.{field} = {value!r}": ("classifier", put(D, "parameters", name, field, value))
        for name, fields in BAD_FIELDS.items()
        for field, values in fields.items()
        for value in [*values, DELETED]
    },
    "a parameter more": ("classifier", put(D, "parameters", "extra", 1)),
    "a phase of negative length": ("classifier", put(D, "parameters", "settings", "plan", 0, "epochs", -1)),
    "a phase that is held by a text": ("classifier", put(D, "parameters", "settings", "plan", 0, "hold", "yes")),
    "a phase that trains nothing known": ("classifier", put(D, "parameters", "settings", "plan", 0, "trainable", [1])),
    **{
        f"class_weight {value!r}": ("classifier", put(D, "parameters", "class_weight", value))
        for value in [1, "even", {"0": "1"}, [1], [[0]], [[0, "1"]], [[0, -1.0]], [[[], 1.0]], [[0, 1]]]
    },
    **{
        f"estimator {value!r}": ("regressor", put(D, "estimator", value)) for value in ["SVC", None, [], "GPClassifier"]
    },
    "a regressor that was a classifier": ("classifier", put(D, "estimator", "GPRegressor")),
    **{
        f"{key} = {value!r}": ("regressor", put(D, key, value))
        for key, values in {
            "features": [0, -4, 3, 5, 4.0, "4", None, True, 10**9, 2**70],
            "feature_names": ["abcd", ["a"], [1, 2, 3, 4], {"a": 1}, 4],
            "target_names": ["y", [1], {}, 1],
            "rows": [0, -1, 1.5, None, "150", 2**70],
            "best_epoch": [-1, 10**6, 1.5, None, True],
            "stopped": [None, 1, []],
            "encoder": [1, [], {}, {"columns": []}, {"columns": [{"kind": "number", "name": "a"}]}],
            "outputs": [0, 2, -1, "1", 1.0, True],
        }.items()
        for value in [*values, DELETED]
    },
    **{
        f"labels {value!r}": ("classifier", put(D, "classes", "labels", value))
        for value in [
            [],
            [0, 1],
            [0, 1, 2, 3],
            [0, 0, 1],
            [2, 1, 0],
            [0, 1, 2.0],
            ["a", "b", "c"],
            [0, 1, [2]],
            3,
            None,
        ]
    },
    **{
        f"label kind {value!r}": ("classifier", put(D, "classes", "kind", value)) for value in ["U", "f", "x", None, []]
    },
    "classes with a key more": ("classifier", put(D, "classes", "more", 1)),
    "no classes": ("classifier", put(D, "classes", DELETED)),
    "a kernel for the model": (
        "regressor",
        put("modules", "model", {"type": "Softmax", "arguments": {"num_classes": 3}}),
    ),
    **{
        f"{name}, {what}": ("regressor", change(name, function))
        for name in ["varies", "elbo_", "history.epoch", "history.value", "history.objective"]
        for what, function in {
            "with an axis more": lambda it: it[None].repeat(2, 1) if it.ndim else it.repeat(2),
            "longer": lambda it: torch.cat([it, it]) if it.ndim else it.repeat(3),
            "in bytes": lambda it: it.nan_to_num().clamp(0, 1).to(torch.uint8) if it.ndim else it.repeat(0),
        }.items()
    },
    "objectives beyond the last": ("regressor", change("history.objective", lambda it: it + 3)),
    "objectives below 0": ("regressor", change("history.objective", lambda it: it - 1)),
    "a column of the history less": ("regressor", lambda content, tensors: tensors.pop("tensors.history.step")),
    "a column of the history more": (
        "regressor",
        lambda content, tensors: tensors.update({"tensors.history.x": tensors["tensors.history.step"]}),
    ),
    "an encoder of a column less": ("table", put(D, "encoder", "columns", 0, DELETED)),
    "an encoder of a category less": ("table", put(D, "encoder", "columns", 4, "categories", ["long"])),
    "an encoder of a column that had missing values": ("table", put(D, "encoder", "columns", 0, "missing", 3)),
    "an encoder of columns of other names": ("table", put(D, "encoder", "columns", 0, "name", "z")),
    "an encoder that ignores a column": (
        "table",
        put(D, "encoder", "columns", 0, {"kind": "ignored", "name": "a", "reason": "it has no values"}),
    ),
    "no encoder of a table": ("table", put(D, "encoder", None)),
    "names of columns in another order": ("table", put(D, "feature_names", ["b", "a", "c", "d", "text"])),
    "no names of columns": ("table", put(D, "feature_names", None)),
    "no rows of training": ("regressor", lambda content, tensors: tensors.pop("tensors.reference")),
    "rows of training of no length": ("regressor", change("reference", lambda it: it[:0])),
    "rows of training with a gap": ("regressor", change("reference", lambda it: it * math.nan)),
    "no scores": ("regressor", lambda content, tensors: tensors.pop("tensors.elbo_")),
    "scaler of two targets": (
        "regressor",
        lambda content, tensors: [
            tensors.update({f"target_scaler.{name}": torch.ones(2, dtype=torch.float64)}) for name in ("shift", "scale")
        ],
    ),
    "features of three columns": (
        "classifier",
        lambda content, tensors: [
            tensors.update({f"model.features.maps.0.{name}": torch.ones(3, dtype=torch.float64)})
            for name in ("shift", "scale")
        ],
    ),
    "no features": (
        "classifier",
        lambda content, tensors: (
            content["modules"]["model"]["arguments"].update({"features": None}),
            [tensors.pop(f"model.features.maps.0.{name}") for name in ("shift", "scale")],
        ),
    ),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_forged_estimator_is_refused_at_load(contents, tmp_path, attack):
    name, change = ATTACKS[attack]
    content, tensors = copy.deepcopy(contents[name])
    change(content, tensors)
    (tmp_path / "hostile.autogp").write_bytes(forge(content, tensors))
    with pytest.raises(StorageError, match=r"hostile\.autogp") as refusal:
        load_model(tmp_path / "hostile.autogp")
    assert len(str(refusal.value)) < 1000


def test_a_file_without_a_newer_parameter_gets_its_default(contents, tmp_path):
    content, tensors = copy.deepcopy(contents["classifier"])
    del content["description"]["parameters"]["weights"]
    (tmp_path / "older.autogp").write_bytes(forge(content, tensors))
    assert load_model(tmp_path / "older.autogp").weights == "counts"


PROGRAM = """
import resource, sys
from pathlib import Path
from autogp import load_model

def memory(name):
    return 1024 * int(Path("/proc/self/status").read_text().split(name + ":")[1].split()[0])

load_model(sys.argv[1])
for path in sys.argv[2:]:
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = memory("VmRSS")
    load_model(path)
    print(memory("VmHWM") - before)
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peaks are read from Linux")
def test_loading_an_estimator_takes_no_more_memory_than_twice_the_file(contents, tmp_path):
    content, tensors = contents["regressor"]
    (tmp_path / "small").write_bytes(forge(content, tensors))
    model = GPRegressor(**NORMAL, features=PrincipalComponents(2)).fit(X, y)
    sizes = {"diagonal": (8_000, True), "full": (1_500, False)}  # a matrix of the first would take 512 MB
    for name, (size, diagonal) in sizes.items():
        model.model_.posterior = Posterior(1, size, 2 if diagonal else 1, diagonal)
        model.model_.inducing_inputs = nn.Parameter(torch.randn(1, size, 2, dtype=torch.float64))
        model.save(tmp_path / name)
    command = [sys.executable, "-c", PROGRAM, *(str(tmp_path / name) for name in ("small", *sizes))]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    for name, peak in zip(sizes, map(int, found), strict=True):
        assert peak < 2 * (tmp_path / name).stat().st_size + 10e6, name


def test_files_of_other_things_are_refused(tmp_path):
    (tmp_path / "model.autogp").write_bytes(b"something else")
    with pytest.raises(StorageError):
        load_model(tmp_path / "model.autogp")
