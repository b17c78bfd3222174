"""`python -m benchmarks.tables` scores predictions and makes a table; the contenders run in other environments."""

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.syspath_prepend(str(ROOT))
    module = importlib.import_module("benchmarks.tables")
    monkeypatch.setattr(module, "RESULTS", tmp_path)
    return module


def test_scores_of_numbers_are_by_quarter_of_the_prediction(tables: Any) -> None:
    mean = np.arange(8.0)
    quantiles = np.stack([mean - 1, mean + 1], 1)
    y = mean + np.array([0, 0, 0, 0, 0, 2, 2, 2])  # beyond its interval in the last three rows
    common = {"fit": np.array(1.0), "predict": np.array(0.5)}
    found = tables.scores({"targets": y, "mean": mean, "quantiles": quantiles, "density": np.full(8, -2.0), **common})
    assert found["cover"] == 5 / 8
    assert found["quarters"] == [1, 1, 0.5, 0]
    assert found["nlp"] == 2
    assert found["error"] == pytest.approx(np.sqrt(12 / 8))


def test_scores_of_classes_are_of_the_probability_of_the_label(tables: Any) -> None:
    probabilities = np.array([[0.9, 0.1], [0.6, 0.4]])
    common = {"fit": np.array(1.0), "predict": np.array(0.5)}
    found = tables.scores({"targets": np.array([0, 1]), "probabilities": probabilities, **common})
    assert found["error"] == 0.5
    assert found["nlp"] == pytest.approx(-np.log([0.9, 0.4]).mean())


def test_the_table_compares_with_the_best_other_and_the_linear_model(tables: Any, tmp_path: Path) -> None:
    for contender, nlp in (("autogp", 1.03), ("lightgbm", 1.0), ("linear", 1.02)):
        run = {"nlp": nlp, "error": 0.2, "rows": 550, "fit": 1.0, "predict": 0.1}
        content = {"table": "titanic", "contender": contender, "runs": {"0": run}}
        (tmp_path / f"titanic-{contender}.json").write_text(json.dumps(content))
    page = tables.table(["titanic"])
    assert "| titanic | class | 2,201 | 1.03 | 1 (lightgbm) | **0.2** |" in page
    assert "NLP best, or within 0.01 of the best: 0 of 1" in page
    assert "linear model by more than 0.02 nats: 1 of 1" in page


def test_a_split_is_the_same_for_every_contender(tables: Any) -> None:
    split = importlib.import_module("benchmarks.tables_worker").split
    train, test = split(1000, 3)
    assert len(test) == 250
    assert np.array_equal(np.union1d(train, test), np.arange(1000))
    assert np.array_equal(split(1000, 3)[1], test)
    assert len(split(400_000, 0)[1]) == 25_000
