"""Saved and loaded, a model is the same to the bit; kernels and likelihoods of one's own come back by their class."""

import math

import numpy as np
import pandas as pd
import pytest
from own_parts import Laplace, Ordinal, Periodic
from sklearn.base import clone
from sklearn.datasets import load_iris

from autogp import GPClassifier, GPRegressor, load_model
from autogp.kernels import RBF, Linear
from autogp.storage import StorageError

X, y = load_iris(return_X_y=True)
SMALL = {"n_inducing": 8, "max_epochs": 4, "random_state": 0}
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
    "gaussian": (GPRegressor(**SMALL), FRAME, y),
    "two outputs": (GPRegressor(**SMALL, share_kernel=False), X, Y),
    "student_t": (GPRegressor(**SMALL, likelihood="student_t", kernel="matern32"), X, y),
    "poisson": (GPRegressor(**SMALL, likelihood="poisson", kernel="arccosine"), X, y),
    "network": (GPRegressor(**SMALL, likelihood="network"), X, Y),
    "kernel object": (GPRegressor(**SMALL, kernel=RBF(lengthscale=[1.0] * 4) + Linear([1.0] * 4)), X, y),
    "many columns": (GPRegressor(**SMALL), np.tile(X, 15), y),
}


@pytest.mark.parametrize("case", CASES)
def test_a_model_comes_back_whole(case, tmp_path):
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
    assert (again.feature_relevance_ == model.feature_relevance_).all()
    assert str(clone(again).get_params()) == str(model.get_params())


def test_a_model_of_ones_own_parts_fits_predicts_and_comes_back(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 10, (150, 1))
    target = np.sin(2 * x[:, 0]) + 0.1 * rng.laplace(size=150)
    scale = x.std()  # a kernel sees scaled inputs
    model = GPRegressor(12, kernel=Periodic(3.0 / scale), likelihood=Laplace(0.3), max_epochs=100, random_state=0)
    model.fit(x, target)
    assert model.model_.kernel.log_period.exp().item() * scale == pytest.approx(np.pi, rel=0.02)
    grid = np.linspace(20, 30, 20)[:, None]
    mean, std = model.predict(grid, return_std=True)
    assert np.abs(mean - np.sin(2 * grid[:, 0])).max() < 0.35
    assert 0 < std.min() < std.max() < 1

    model.save(tmp_path / "model.autogp")
    again = load_model(tmp_path / "model.autogp", modules=[Periodic, Laplace])
    assert (again.predict(grid) == mean).all()
    assert clone(again).get_params()["kernel"].log_period.item() == model.kernel.log_period.item()
    with pytest.raises(StorageError, match=r"modules=\[.*Periodic"):
        load_model(tmp_path / "model.autogp")
    with pytest.raises(AttributeError, match="Periodic has no lengthscales"):
        _ = model.feature_relevance_
    with pytest.raises(NotImplementedError, match="Laplace must define sample"):
        model.sample_y(grid)


def test_a_classifier_takes_a_likelihood_of_ones_own():
    rng = np.random.default_rng(0)
    x = rng.uniform(-3, 3, (200, 1))
    grade = np.array(["a low", "b middle", "c high"])[np.digitize(x[:, 0] + 0.5 * rng.normal(size=200), [-1, 1])]
    model = GPClassifier(8, likelihood=Ordinal(), max_epochs=20, random_state=0).fit(x, grade)
    assert model.score(x, grade) > 0.75
    assert model.predict_proba(x).sum(1) == pytest.approx(1)


def test_files_of_other_things_are_refused(tmp_path):
    (tmp_path / "model.autogp").write_bytes(b"something else")
    with pytest.raises(StorageError):
        load_model(tmp_path / "model.autogp")
