"""The benchmarks run with tiny sizes, take turns and keep what is finished; tables and figures come from JSON alone."""

import copy
import importlib
import json
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import special, stats

from autogp.features import Scaling

ROOT = Path(__file__).parents[1]


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch):
    """Modules of the benchmarks, as the driver and as the contenders import them."""
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))

    def load(name: str) -> ModuleType:
        return importlib.import_module(name)

    return load


def drive(folder: Path, *parts: str) -> dict:
    command = [sys.executable, "-m", "benchmarks", "--tiny", "--libraries", "autogp", "--threads", "1"]
    command += ["--results", str(folder), *(["--parts", *parts] if parts else [])]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "benchmarks.json").read_text())["tiny"]


def test_the_driver_runs_a_part_and_writes_json_table_and_figure(tmp_path: Path) -> None:
    content = drive(tmp_path, "step")
    cases = content["parts"]["step"]["configurations"]
    assert [case["separate"] for case in cases] == [False, True]
    assert all(0 < case["times"]["autogp, natural + Adam"]["seconds"] < 60 for case in cases)
    assert content["threads"] == 1
    assert content["versions"]["autogp"]["torch"]
    assert "(tiny/step.svg)" in (tmp_path / "tiny.md").read_text()
    assert (tmp_path / "tiny" / "step.svg").exists()


@pytest.mark.slow
def test_every_part_runs(tmp_path: Path) -> None:
    parts = drive(tmp_path)["parts"]
    assert list(parts) == ["step", "quality", "equal-time", "growth", "limit", "cold"]
    assert not parts["quality"]["failed"]
    curve = parts["quality"]["curves"]["autogp, 2 epochs"]
    assert curve[-1]["nlp"] < 1.0
    assert "failure" not in parts["equal-time"]["sets"]["diabetes"]["curves"]["autogp, defaults"][0]
    assert len(parts["growth"]["files"]["curves"]["autogp, natural + Adam"]) == 2


RATES = """
import json
from peer_gpflow import Model
from problems import minibatches, random_problem

problem = random_problem(rows=50, inputs=3, inducing=5, classes=2, separate=False)
recipe = {"precision": "float32", "samples": 10, "optimiser": "natural", "learning_rate": 0.01, "natural_rate": 0.1}
model = Model(problem, recipe)
batch = model.to_batch(problem["x_train"], problem["y_train"])
before, rates = model.model.q_mu.numpy(), []
for _ in range(7):
    model.step(batch)
    rates.append(float(model.gamma.numpy()))
print(json.dumps({"rates": rates, "moved": float(abs(model.model.q_mu.numpy() - before).max())}))
"""


SHARES = """
import json
import numpy as np
from peer_{library} import Model
from problems import random_problem

problem = random_problem(rows=50, inputs=3, inducing=5, classes=2, separate=False)
moved = []
for share in ({{}}, {{"kernel_rate": 0.1}}):
    rates = {{"learning_rate": 0.01, "natural_rate": 0.1}}
    model = Model(problem, {{"precision": "float64", "samples": 10, "optimiser": "natural"}} | rates | share)
    parameters = lambda: [np.array({kernel}), np.array({inputs})]
    before = parameters()
    for _ in range(4):
        model.step(model.to_batch(problem["x_train"], problem["y_train"]))
    moved.append([float(abs(new - old).max()) for new, old in zip(parameters(), before)])
print(json.dumps(moved))
"""
PLACES = {
    "GPflow": ("model.model.kernel.lengthscales.unconstrained_variable", "model.model.inducing_variable.Z"),
    "GPyTorch": (
        "model.process.covar_module.base_kernel.raw_lengthscale.detach()",
        "model.process.variational_strategy.base_variational_strategy.inducing_points.detach()",
    ),
}


def ask_peer(module, library: str, code: str) -> dict | list:
    contenders = module("benchmarks.contenders")
    if not contenders.at_hand(library):
        pytest.skip(f"{library} is not installed: `make peers` does it, AUTOGP_PEERS says where")
    path = {"PYTHONPATH": str(ROOT / "benchmarks"), "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [contenders.LIBRARIES[library][0], "-c", code]
    return json.loads(subprocess.run(command, env=path, capture_output=True, text=True, check=True).stdout)


@pytest.mark.parametrize("library", PLACES)
def test_a_slow_kernel_is_slow_with_the_peers_too(module, library) -> None:
    kernel, inputs = PLACES[library]
    code = SHARES.format(library=library.lower(), kernel=kernel, inputs=inputs)
    (kernel_alike, inputs_alike), (kernel_slow, inputs_slow) = ask_peer(module, library, code)
    assert kernel_slow == pytest.approx(0.1 * kernel_alike, rel=0.2)
    assert inputs_slow == pytest.approx(inputs_alike, rel=0.2)
    assert inputs_alike > 0.01


def test_natural_steps_of_gpflow_grow_to_their_full_size_over_the_first_five(module) -> None:
    found = ask_peer(module, "GPflow", RATES)
    assert found["rates"] == pytest.approx([*np.geomspace(1e-4, 0.1, 5), 0.1, 0.1])
    assert found["moved"] > 0.01


STEP = {
    "autogp, natural + Adam": {"seconds": 0.02},
    "GPflow, Adam": {"seconds": 0.04},
    "GPyTorch, Adam": {"failure": "no"},
}
PARTS = {
    "step": {
        "rows": 1000, "inputs": 784, "classes": 10, "settings": dict.fromkeys([*STEP, "GPflow, Adam, float64"]),
        "configurations": [{"inducing": 200, "separate": False, "samples": 10, "times": STEP}],
    },
    "quality": {
        "set": "mnist", "note": "", "inducing": 200, "seconds": 60, "start_seconds": 2.0, "levels": [0.2, 0.1],
        "own": "autogp, 2 epochs",
        "failed": {"GPyTorch, Adam": "no"},
        "curves": {
            "autogp, 2 epochs": [{"seconds": 5.0, "steps": 50, "first_step": 2.5, "nlp": 0.09, "error": 0.02}],
            "GPflow, Adam": [{"seconds": 50.0, "steps": 90, "nlp": 0.18, "error": 0.04}],
            "GPyTorch, Adam": [],
        },
        "reached": {"autogp, 2 epochs": [5.0, 5.0], "GPflow, Adam": [50.0, None], "GPyTorch, Adam": [None, None]},
    },
    "equal-time": {
        "settings": {"autogp, defaults": None, "GPflow, Adam": None, "scikit-learn, exact": None},
        "sets": {
            "protein": {"skipped": "not at hand"},
            "energy": {
                "budgets": [5.0, 15.0], "rows": 691, "precision": "float64",
                "curves": {
                    "autogp, defaults": [
                        {"nlp": 0.7, "error": 0.5, "seconds": 2.0},
                        {"nlp": 0.6, "error": 0.4, "seconds": 15},
                    ],
                    "GPflow, Adam": [{"nlp": 0.5, "error": 0.3, "seconds": 12.0}],
                    "scikit-learn, exact": [{"failure": "too many rows for it"}],
                },
            },
        },
    },
    "growth": {
        "base": {"B": 500},
        "steps": {"B": {"sizes": [500, 1000], "seconds": {"autogp": [0.1, 0.2]}, "bytes": {"autogp": [4e6, 4e6]}}},
        "files": {
            "sizes": [1000, 2000], "inputs": 20, "inducing": 100,
            "curves": {"autogp": [
                {"epoch": 1.0, "epoch_bytes": 1e6, "prediction": 0.1, "prediction_bytes": 1e6},
                {"epoch": 4.0, "epoch_bytes": 1e6, "prediction": 0.2, "prediction_bytes": None},
            ]},
        },
    },
    "limit": {
        "rates": {"float32": 1e11, "float64": 5e10},
        "configurations": [{
            "inducing": 200, "separate": False, "seconds": 0.05, "flops": 2.5e9, "share": 0.5,
            "parts": {"Adam": 0.01}, "operations": {"aten::mm": 0.02},
        }],
    },
    "cold": {"autogp": {"import": 2.0, "first_fit": 3.0, "bytes": 9e8, "packages": 30}},
}  # fmt: skip
MACHINE = {"processor": "a processor", "cores": 2, "memory": "8 GiB", "system": "a system"}
CONTENT = {"date": "2030-01-02T00:00:00", "threads": 2, "machine": MACHINE, "versions": {}, "parts": PARTS}


def test_tables_and_figures_come_from_the_json_alone(module, tmp_path: Path) -> None:
    content = json.loads(json.dumps(CONTENT))
    text = module("benchmarks.report").write_report(content, "full", tmp_path).read_text()
    for expected in (
        "| 200 | shared | 10 | 20.0 | 40.0 | failed | – | 0.50 (GPflow, Adam) |",
        "Failed: GPyTorch, Adam: no.",
        "| autogp, 2 epochs | 2.5 | 5.0 | 5.0 | 0.0900 | 2.00 % | 50 | 5 |",
        "| **autogp, 2 epochs / best peer** |  | 0.10 | no peer |",
        "| **our run with the ELBO / best peer** |  | – | – |",
        "| autogp, defaults | 0.7000 (0.5), 2.0 s | 0.6000 (0.4) |",
        "| GPflow, Adam | 0.5000 (0.3), 12.0 s | 0.5000 (0.3), 12.0 s |",  # nothing to show before
        "protein: not at hand.",
        "| step, B | 500 to 1,000 | autogp | 1.00 | 0.00 |",
        "| epoch from disk, N | 1,000 to 2,000 | autogp | 2.00 | under 1 MiB |",
        "50 % of the float32 rate",
        "| autogp | 2.00 | 3.00 | 900 | 30 |",
    ):
        assert expected in text
    figures = sorted(tmp_path.glob("*.svg"))
    assert [figure.stem for figure in figures] == ["equal-time", "growth", "limit", "quality", "step"]
    before = [figure.read_bytes() for figure in figures]
    module("benchmarks.report").write_report(content, "full", tmp_path)
    assert [figure.read_bytes() for figure in figures] == before


def test_a_run_that_was_broken_off_goes_on_and_a_finished_one_starts_anew(module, tmp_path: Path) -> None:
    run = SimpleNamespace(mode="quick", threads=1)
    names = ["step", "cold"]
    results = module("benchmarks.run").Results(tmp_path / "benchmarks.json")
    assert results.begin(run, names, names) == names
    results.finish("quick", "step", {"seconds": 1.0}, {})

    def again(parts: list[str] = names, threads: int = 1) -> list[str]:
        new = module("benchmarks.run").Results(tmp_path / "benchmarks.json")
        return new.begin(SimpleNamespace(mode="quick", threads=threads), parts, names)

    assert again() == ["cold"]
    assert again(["step"]) == ["step"]
    assert again(threads=2) == names
    results.finish("quick", "cold", {}, {})
    assert again() == names


def test_the_clock_of_a_training_rests_while_others_have_their_turn(module) -> None:
    told: list[dict] = []
    turns = module("worker").Turns([0.02, 0.06], told.append, lambda: time.sleep(0.2), seconds=0.01)
    steps = 0
    while not turns(lambda: {"nlp": 1.0}):
        steps += 1
        time.sleep(0.002)
    assert len(told) == 1  # the last mark is told by the training itself
    assert 0.02 <= told[0]["seconds"] < 0.2
    assert 0.06 <= turns.seconds < 0.2
    assert turns.steps == steps + 1


def test_scores_equal_independent_formulas(module) -> None:
    problems = module("problems")
    rng = np.random.default_rng(0)
    mean = rng.normal(size=(50, 3))
    np.testing.assert_allclose(problems.softmax_probabilities(mean, 0 * mean), special.softmax(mean, 1), rtol=1e-6)
    y, scale = rng.normal(size=50), 3.0
    found = problems.regression_scores(y, mean[:, :1], np.full((50, 1), 0.5), scale)
    expected = stats.norm(scale * mean[:, 0], scale * np.sqrt(0.5)).logpdf(scale * y).mean()
    assert found["nlp"] == pytest.approx(-expected, rel=1e-12)
    assert found["error"] == pytest.approx(scale * np.sqrt(np.mean((y - mean[:, 0]) ** 2)), rel=1e-12)


@pytest.mark.parametrize(("name", "dtype"), [("digits", np.float32), ("diabetes", np.float64)])
def test_peers_see_the_rows_that_we_see(module, name: str, dtype: type, tmp_path: Path) -> None:
    problems = module("problems")
    problem = problems.read_problem(str(module("benchmarks.data").write_problem(name, 10, tmp_path)))
    shift, scale = (torch.from_numpy(problem[key]) for key in ("x_shift", "x_scale"))
    ours = Scaling(shift, scale)(torch.from_numpy(problem["x_test"]))
    found = problems.scaled(problem, problem["x_test"])
    assert found.dtype == dtype
    np.testing.assert_allclose(found, ours.numpy(), rtol=1e-5, atol=1e-6)
    spread = problems.scaled(problem, problem["x_train"]).var(0)
    assert spread.mean() == pytest.approx(1, abs=0.01)


def test_scores_during_training_are_those_of_the_q_of_that_step(module, tmp_path: Path) -> None:
    problem = module("problems").read_problem(str(module("benchmarks.data").write_problem("digits", 20, tmp_path)))
    recipe = {"precision": "float32", "samples": 10, "objective": "elbo", "epochs": 2, "batch": 200, "kernel_rate": 1.0}
    found = []
    server = object.__new__(module("worker_autogp").OwnServer)  # without its pipes
    model = server.fit(problem, recipe, lambda score: found.append(score()["nlp"]))
    assert max(found) < 1  # the prior gives log 10
    assert found[-1] == pytest.approx(module("problems").scores(model, problem)["nlp"], rel=1e-3)


def test_minibatches_take_each_row_once_in_an_epoch(module) -> None:
    batches = module("problems").minibatches(10, 5)
    first = np.concatenate([next(batches), next(batches)])
    assert sorted(first) == list(range(10))


def test_a_part_without_its_data_says_so(module, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AUTOGP_DATA", str(tmp_path))
    part = module("benchmarks.part_equal_time")
    sizes = copy.deepcopy(part.SIZES) | {"tiny": {"cifar10": [1.0]}}
    monkeypatch.setattr(part, "SIZES", sizes)
    run = module("benchmarks.run").Run("tiny", 1, tmp_path, ())
    assert part.run(run)["sets"] == {"cifar10": {"skipped": "not at hand"}}


def test_a_contender_whose_process_has_ended_fails_instead_of_breaking_the_run(module, monkeypatch) -> None:
    contenders = module("benchmarks.contenders")
    program = "print('{}', flush=True); input()"
    monkeypatch.setitem(contenders.LIBRARIES, "autogp", [sys.executable, "-c", program])
    with contenders.Contender("autogp", threads=1) as worker:
        for _ in range(3):
            assert worker.ask("steps", seconds=1.0) == {"done": True, "failure": "its process ended"}
