"""`autogp evaluate` and `autogp info` show the scores and facts that the estimator has."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from passengers import QUICK
from scipy.stats import norm
from sklearn.metrics import log_loss, r2_score
from typer.testing import Result

from autogp import load_model
from autogp.data import open_source

Run = Callable[..., Result]
RunJson = Callable[..., dict[str, Any]]


def test_scores_of_classes(run: Run, run_json: RunJson, passengers: Path) -> None:
    command = ["evaluate", passengers / "survived.autogp", passengers / "test.csv"]
    found = run_json(*command)
    model = load_model(passengers / "survived.autogp")
    source = open_source(passengers / "test.csv", "survived", encoder=model.encoder_)
    labels = np.array(source.classes)[source.y]
    probabilities = model.predict_proba(source)
    assert found["rows"] == 300
    assert found["error"] == pytest.approx(np.mean(model.predict(source) != labels))
    assert found["nlp"] == pytest.approx(log_loss(labels, probabilities))
    assert found["brier"] == pytest.approx(2 * np.mean((probabilities[:, 1] - (labels == "yes")) ** 2))
    assert 0 <= found["calibration"] < 0.2
    assert found["error"] < 0.35  # the made-up rule is noisy: 0.5 would be chance
    assert "punishes confident mistakes" in run(*command).stdout


def test_scores_of_numbers(run: Run, run_json: RunJson, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.uniform(-3, 3, size=400)
    pd.DataFrame({"x": x, "y": np.sin(x) + 0.1 * rng.normal(size=400)}).to_csv(tmp_path / "data.csv", index=False)
    run("fit", tmp_path / "data.csv", "-t", "y", "-o", tmp_path / "m.autogp", "--inducing", 15, "--epochs", 100)
    found = run_json("evaluate", tmp_path / "m.autogp", tmp_path / "data.csv")
    model = load_model(tmp_path / "m.autogp")
    source = open_source(tmp_path / "data.csv", "y")
    mean, std = model.predict(source, return_std=True)
    assert found["rmse"] == pytest.approx(np.sqrt(np.mean((mean - source.y) ** 2)))
    assert found["r2"] == pytest.approx(r2_score(source.y, mean))
    assert found["nlp"] == pytest.approx(-norm.logpdf(source.y, mean, std).mean(), abs=1e-6)
    assert found["coverage"] == pytest.approx(np.mean(np.abs(source.y - mean) <= norm.ppf(0.95) * std), abs=1e-9)
    rows = (tmp_path / "data.csv").read_text()
    (tmp_path / "gaps.csv").write_text(rows + "0.5,\n")
    again = run_json("evaluate", tmp_path / "m.autogp", tmp_path / "gaps.csv")
    assert (again["rows"], again["nlp"]) == (400, found["nlp"])
    assert again["notes"] == ["1 row without a target is left out"]


def test_scores_of_each_of_several_targets(run: Run, run_json: RunJson, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    a = rng.normal(size=100)
    noisy = a[:, None] + rng.normal(size=(100, 4))
    columns = {"small": noisy[:, 0], "large": 1000 * noisy[:, 1], "no": noisy[:, 2] < 0, "yes": noisy[:, 3] > 1}
    frame = pd.DataFrame({"a": a, **columns})
    (frame * 1).to_csv(tmp_path / "data.csv", index=False)
    command = ["fit", tmp_path / "data.csv", "-o", tmp_path / "m.autogp", *QUICK]
    evaluate = ["evaluate", tmp_path / "m.autogp", tmp_path / "data.csv"]
    run(*command, "-t", "small", "-t", "large")
    found, model = run_json(*evaluate), load_model(tmp_path / "m.autogp")
    mean = model.predict(open_source(tmp_path / "data.csv", encoder=model.encoder_))
    for name, column in (("small", 0), ("large", 1)):
        error = np.sqrt(np.mean((mean[:, column] - frame[name]) ** 2))
        assert found["targets"][name]["rmse"] == pytest.approx(error)
    assert "all targets" in run(*evaluate).stdout
    run(*command, "-t", "no", "-t", "yes")
    found, model = run_json(*evaluate), load_model(tmp_path / "m.autogp")
    p = model.predict_proba(open_source(tmp_path / "data.csv", encoder=model.encoder_))
    assert found["targets"]["yes"]["nlp"] == pytest.approx(log_loss(frame["yes"], p[:, 1]))
    assert found["nlp"] == pytest.approx(np.mean([found["targets"][name]["nlp"] for name in ("no", "yes")]))


def test_numbered_classes_and_targets_of_another_name(run: Run, error: Callable[..., str], tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=60), "y": rng.choice([3, 5, 8], 60)})
    frame.to_csv(tmp_path / "data.csv", index=False)
    run("fit", tmp_path / "data.csv", "-t", "y", "-o", tmp_path / "m.autogp", *QUICK)
    frame.rename(columns={"y": "label"}).to_csv(tmp_path / "other.csv", index=False)
    assert "has no column 'y'" in error("evaluate", tmp_path / "m.autogp", tmp_path / "other.csv")
    run("evaluate", tmp_path / "m.autogp", tmp_path / "other.csv", "-t", "label")
    frame.loc[3, "y"] = 4
    frame.to_csv(tmp_path / "data.csv", index=False)
    message = "the target holds 4 in row 4, which is none of the model's classes 3, 5, 8"
    assert message in error("evaluate", tmp_path / "m.autogp", tmp_path / "data.csv")
    frame.assign(y=np.array(["three", "five", "eight"])[np.arange(60) % 3]).to_csv(tmp_path / "data.csv", index=False)
    message = "target column 'y' holds text, such as 'eight'; the model predicts the classes 3, 5, 8"
    assert message in error("evaluate", tmp_path / "m.autogp", tmp_path / "data.csv")
    assert message in error("report", tmp_path / "m.autogp", tmp_path / "data.csv", "-o", tmp_path / "r.html")


def test_text_is_no_target_of_a_regression(run: Run, error: Callable[..., str], tmp_path: Path) -> None:
    numbers = np.random.default_rng(0).normal(size=(60, 2))
    frame = pd.DataFrame(numbers, columns=["a", "y"])
    frame.to_csv(tmp_path / "data.csv", index=False)
    run("fit", tmp_path / "data.csv", "-t", "y", "-o", tmp_path / "m.autogp", *QUICK)
    frame.to_csv(tmp_path / "commas.csv", index=False, sep=";", decimal=",")
    frame[["a"]].assign(y="tall").to_csv(tmp_path / "text.csv", index=False, sep=";")
    message = "target column 'y' holds text, such as 'tall'; the model predicts numbers"
    assert message in error("evaluate", tmp_path / "m.autogp", tmp_path / "text.csv")
    assert "column 'a' holds numbers, but" in error("evaluate", tmp_path / "m.autogp", tmp_path / "commas.csv")


def test_arrays_need_targets(run: Run, error: Callable[..., str], tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(60, 2))
    np.savez(tmp_path / "data.npz", x=x, y=(x[:, 0] > 0).astype(int))
    np.savez(tmp_path / "bare.npz", x=x)
    run("fit", tmp_path / "data.npz", "-o", tmp_path / "m.autogp", *QUICK)
    run("evaluate", tmp_path / "m.autogp", tmp_path / "data.npz")
    assert "holds no targets" in error("evaluate", tmp_path / "m.autogp", tmp_path / "bare.npz")


def test_labels_that_training_never_saw_are_named(error: Callable[..., str], passengers: Path, tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("sex,port,age,fare,survived\nmale,Dover,3,4,maybe\n")
    message = "target column 'survived' has 'maybe' in row 1, which is not among ['no', 'yes']"
    assert message in error("evaluate", passengers / "survived.autogp", tmp_path / "data.csv")


def test_info_tells_what_a_model_is(run: Run, run_json: RunJson, passengers: Path) -> None:
    shown = run("info", passengers / "survived.autogp").stdout
    for words in ("GPClassifier", "300 rows", "2 classes (no, yes)", "'ticket' is left out", "leave-one-out"):
        assert words in shown
    found = run_json("info", passengers / "survived.autogp")
    assert (found["target"], found["classes"], found["inducing"]) == ("survived", ["no", "yes"], 20)
    assert set(found["ignored"]) == {"name", "ticket"}


def test_report_is_one_page(run: Run, error: Callable[..., str], passengers: Path, tmp_path: Path) -> None:
    command = ["report", passengers / "survived.autogp", passengers / "test.csv", "-o"]
    assert "open it in a browser" in run(*command, tmp_path / "report.html").stdout
    assert "</html>" in (tmp_path / "report.html").read_text()
    assert "there is no folder" in error(*command, tmp_path / "none" / "report.html")
    assert "is the model itself" in error(*command, passengers / "survived.autogp")
