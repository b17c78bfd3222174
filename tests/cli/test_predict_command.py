"""`autogp predict` gives every row of a file its prediction, in order, whatever the file's kind and size."""

import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from passengers import QUICK
from typer.testing import Result

from autogp import GPClassifier, GPRegressor, load_model
from autogp.data import files, open_source, readers
from autogp.features import Chain, FeatureMap, PrincipalComponents

Run = Callable[..., Result]
RunJson = Callable[..., dict[str, Any]]


@pytest.mark.parametrize("name", ["p.csv", "p.parquet"])
def test_predictions_of_a_table_are_the_estimator_s(
    run: Run, passengers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(files, "READ_NUMBERS", 50)
    monkeypatch.setattr(readers, "CSV_BLOCK_BYTES", 500)
    result = run("predict", passengers / "survived.autogp", passengers / "new.csv", "--out", tmp_path / name)
    assert f"50 predictions in {tmp_path / name}" in result.stdout
    found = pd.read_csv(tmp_path / name) if name == "p.csv" else pd.read_parquet(tmp_path / name)
    assert found.columns.tolist() == ["class", "p_no", "p_yes"]
    model = load_model(passengers / "survived.autogp")
    source = open_source(passengers / "new.csv", encoder=model.encoder_, dtype="float64")
    last_digit = 4 * np.finfo(np.float32).eps  # classifiers integrate in float32, and pieces of a file round otherwise
    np.testing.assert_allclose(found[["p_no", "p_yes"]], model.predict_proba(source), rtol=0, atol=last_digit)
    assert found["class"].tolist() == model.predict(source).tolist()
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_the_first_rows_are_shown_without_a_file(run: Run, run_json: RunJson, passengers: Path) -> None:
    command = ["predict", passengers / "survived.autogp", passengers / "new.csv"]
    result = run(*command)
    assert "p_yes" in result.stdout
    assert "--out predictions.csv" in result.stdout
    rows = run_json(*command)["predictions"]
    assert len(rows) == 10
    assert all(set(row) == {"class", "p_no", "p_yes"} for row in rows)


def test_numbers_come_with_their_spread(run: Run, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 2))
    np.savez(tmp_path / "one.npz", x=x, y=x[:, 0])
    np.savez(tmp_path / "two.npz", x=x, y=x)
    for name, suffixes in (("one", [""]), ("two", ["_1", "_2"])):
        model = tmp_path / f"{name}.autogp"
        run("fit", tmp_path / f"{name}.npz", "-o", model, *QUICK)
        run("predict", model, tmp_path / f"{name}.npz", "-o", tmp_path / "p.parquet")
        found = pd.read_parquet(tmp_path / "p.parquet")
        assert found.columns.tolist() == [
            f"{column}{suffix}" for suffix in suffixes for column in ("mean", "std", "q05", "q50", "q95")
        ]
        mean, std = load_model(model).predict(x, return_std=True)
        np.testing.assert_allclose(found[f"mean{suffixes[-1]}"], mean.reshape(80, -1)[:, -1])
        np.testing.assert_allclose(found[f"std{suffixes[-1]}"], std.reshape(80, -1)[:, -1])
        for suffix in suffixes:
            width = found[f"q95{suffix}"] - found[f"q05{suffix}"]
            np.testing.assert_allclose(width, 2 * 1.6449 * found[f"std{suffix}"], rtol=1e-3)


def test_surprises_are_told_once(run: Run, run_json: RunJson, passengers: Path, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("fare,age,port,sex\n1,2,Dover,male\n,3,Dover,male\n")
    command = ["predict", passengers / "survived.autogp", tmp_path / "new.csv", "-o", tmp_path / "p.csv"]
    result = run(*command)
    assert result.stderr.splitlines() == [
        "note: column 'port': 2 rows hold values that training never saw ('Dover'): their intervals are wider",
        "note: column 'fare': 1 row has no value, which never happened in training: their intervals are wider",
    ]
    assert len(run_json(*command)["notes"]) == 2


@pytest.mark.parametrize("features", [None, PrincipalComponents(1), Chain(PrincipalComponents(2))])
def test_models_of_data_frames_take_tables(run: Run, tmp_path: Path, features: FeatureMap | None) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(60, 2)), columns=["a", "b"])
    model = GPRegressor(10, max_epochs=5, random_state=0, features=features).fit(frame, frame["a"] + frame["b"])
    model.save(tmp_path / "m.autogp")
    with_gap = frame.copy()
    with_gap.loc[7, "a"] = np.nan
    with_gap[["b", "a"]].to_csv(tmp_path / "x.csv", index=False)
    run("predict", tmp_path / "m.autogp", tmp_path / "x.csv", "-o", tmp_path / "p.csv")
    expected = model.predict(with_gap)
    np.testing.assert_allclose(pd.read_csv(tmp_path / "p.csv")["mean"], expected, rtol=1e-6, atol=1e-9)


def test_data_of_another_kind_than_in_training_is_refused(
    error: Callable[..., str], passengers: Path, tmp_path: Path
) -> None:
    np.savez(tmp_path / "x.npz", x=np.zeros((3, 9)))
    model = passengers / "survived.autogp"
    assert "the model was trained on a table" in error("predict", model, tmp_path / "x.npz")
    x = np.random.default_rng(0).normal(size=(40, 3))
    GPClassifier(5, max_epochs=2, random_state=0).fit(x, x[:, 0] > 0).save(tmp_path / "array.autogp")
    assert "trained on 3 columns without names" in error("predict", tmp_path / "array.autogp", passengers / "new.csv")
    assert "9 features" in error("predict", tmp_path / "array.autogp", tmp_path / "x.npz")
    np.savez(tmp_path / "x.npz", x=np.full((3, 3), np.inf))
    assert "inputs hold inf in row 0" in error("predict", tmp_path / "array.autogp", tmp_path / "x.npz")


def test_tables_with_faults_are_refused(error: Callable[..., str], passengers: Path, tmp_path: Path) -> None:
    model, data = passengers / "survived.autogp", tmp_path / "new.csv"
    data.write_text("sex,port\nmale,Dover\n")
    message = "there are no columns 'age', 'fare', which the model was trained with; there are 'sex', 'port'"
    assert message in error("predict", model, data)
    data.write_text("sex,port,age,fare\nmale,Cork,3,4\nmale,Cork,old,4\n")
    assert "column 'age' holds numbers, but 'old' in row 2" in error("predict", model, data)
    data.write_text("sex,port,age,fare\n")
    assert "has no rows" in error("predict", model, data)


def test_files_that_are_no_models_are_named(error: Callable[..., str], passengers: Path, tmp_path: Path) -> None:
    data = passengers / "new.csv"
    content = (passengers / "survived.autogp").read_bytes()
    half = tmp_path / "half.autogp"
    half.write_bytes(content[: len(content) // 2])
    assert f"{half} is damaged" in error("predict", half, data)
    flipped = bytearray(content)
    flipped[-5] ^= 1
    half.write_bytes(flipped)
    assert f"{half} is damaged" in error("info", half)
    assert "does not exist" in error("info", tmp_path / "none.autogp")
    assert "is data, not a model: name the model first" in error("predict", data, passengers / "survived.autogp")


def test_a_disk_without_room_leaves_no_half_file(error: Callable[..., str], passengers: Path, tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("before")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        found = error("predict", passengers / "survived.autogp", passengers / "new.csv", "-o", tmp_path / "p.csv")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "File too large" in found
    assert [path.name for path in tmp_path.iterdir()] == ["p.csv"]
    assert (tmp_path / "p.csv").read_text() == "before"


def test_result_files_have_a_known_kind_and_place(run: Run, error: Callable[..., str], passengers: Path) -> None:
    command = ["predict", passengers / "survived.autogp", passengers / "new.csv", "-o"]
    assert "p.txt should end in .csv or .parquet" in run(*command, "p.txt", code=2).stderr
    assert "there is no folder" in error(*command, passengers / "none" / "p.csv")
    assert "is the data itself" in error(*command, passengers / "new.csv")
