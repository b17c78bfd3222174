"""`reproduce` from the data to tables: what it writes, how it resumes, and what it says when it cannot."""

import json
import os
import signal
import time
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autogp import GPClassifier, GPRegressor
from autogp.datasets import Dataset
from autogp.experiments import EXPERIMENTS, Experiment, Preset, command, execute, reproduce
from autogp.experiments import run as run_module
from autogp.experiments.base import Peer
from autogp.experiments.record import write_json
from autogp.features import PrincipalComponents
from autogp.training import Settings, Start, TrainingInterruptedError
from autogp.training.distributed import Processes


def waves(seed: int = 0) -> Dataset:
    rng = np.random.default_rng(seed)
    x = rng.uniform(-2, 2, size=(150, 1))
    y = 100 + 10 * np.sin(3 * x[:, 0]) + rng.normal(size=150)
    return Dataset("waves", x[:100], y[:100], x[100:], y[100:])


def preset(max_epochs: int = 8, batch_size: int | None = 50, **arguments: Any) -> dict[str, Preset]:
    return {"ours": Preset({"settings": Settings(max_epochs=max_epochs, batch_size=batch_size), **arguments})}


TINY = Experiment(
    name="tiny",
    title="Noisy waves",
    load=lambda data, seed: partial(waves, seed),
    estimator=GPRegressor,
    inducing=(8,),
    objectives=("elbo", "predictive"),
    metrics=("smse", "nlp"),
    presets=preset(),
    curve=True,
)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Experiment:
    monkeypatch.setitem(EXPERIMENTS, "tiny", TINY)
    return TINY


def read(path: Path) -> dict:
    return json.loads(path.read_text())


@pytest.mark.parametrize("features", [None, PrincipalComponents(1)])
def test_a_run_on_principal_components_sees_nothing_else(
    features: PrincipalComponents | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The targets follow a column of small scale, which the first component leaves out."""

    def hidden(seed: int) -> Dataset:
        found, rng = waves(seed), np.random.default_rng(1)
        train, test = (np.column_stack([rng.normal(size=len(x)), 0.01 * x]) for x in (found.x_train, found.x_test))
        return replace(found, x_train=train, x_test=test)

    presets = preset(60, features=features)
    hiding = replace(TINY, load=lambda data, seed: partial(hidden, seed), inducing=(20,), presets=presets)
    monkeypatch.setitem(EXPERIMENTS, "tiny", hiding)
    record = read(reproduce("tiny", only="*-elbo-*", results=tmp_path, verbose=False)[0])
    assert ("PrincipalComponents(num_components=1)" in record["call"]) == (features is not None)
    assert record["scores"]["smse"] < 0.1 if features is None else record["scores"]["smse"] > 0.8


def test_digits_from_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = reproduce("digits", only="*-loo-[15]0-seed0", results=tmp_path, verbose="auto")
    names = ["digits-ours-loo-10-seed0.json", "digits-ours-loo-50-seed0.json"]
    assert paths == [tmp_path / "digits" / name for name in names]
    small, middle = map(read, paths)
    assert middle["scores"]["error"] < 0.03
    assert small["scores"]["error"] < 0.08
    assert middle["settings"]["objective"] == "loo"
    assert middle["data"] == {"set": "", "name": "digits", "train": 1347, "test": 450, "inputs": 64}
    assert {"python", "torch", "autogp"} <= set(middle["versions"])
    assert middle["machine"]["threads"] == 1
    assert len(middle["history"]["epoch"]) == len(middle["history"]["score"]) == middle["epochs"] == 60
    said = capsys.readouterr().out
    assert "digits-ours-loo-50-seed0: error" in said
    readme = (tmp_path / "README.md").read_text()
    assert f"| 50 | {100 * middle['scores']['error']:.2f} % |" in readme
    assert "(digits/by-inducing.svg)" in readme
    assert (tmp_path / "digits" / "by-inducing.svg").read_text().startswith("<?xml")
    assert not (tmp_path / "digits" / "checkpoints").exists()


@pytest.mark.slow
def test_all_of_digits_shows_what_leave_one_out_earns(tmp_path: Path) -> None:
    records = {path.stem: read(path)["scores"] for path in reproduce("digits", results=tmp_path, verbose=False)}
    assert len(records) == 9
    for size in (10, 50, 150):
        assert records[f"digits-ours-loo-{size}-seed0"]["nlp"] < 0.7 * records[f"digits-ours-elbo-{size}-seed0"]["nlp"]
    assert records["digits-ours-loo-150-seed0"]["error"] < 0.02


def test_scores_of_a_regression_are_in_the_units_of_the_data(tiny: Experiment) -> None:
    run = replace(tiny, presets=preset(150, None), curve=False).runs("ours")[0]
    scores = execute(run, waves())["scores"]
    # Noise of standard deviation 1 around a wave of amplitude 10: 1/2 log(2 pi e) = 1.419 is the best there can be.
    assert 0.7 < scores["rmse"] < 1.3
    assert 1.2 < scores["nlp"] < 1.8
    assert 0.008 < scores["smse"] < 0.04


def test_a_record_has_seconds_of_the_processor_and_its_preset_may_leave_out_the_curve(tiny: Experiment) -> None:
    plain = replace(tiny.presets["ours"], curve=False)
    started = time.process_time()
    runs = [each.runs("ours")[0] for each in (tiny, replace(tiny, presets={"ours": plain}))]
    followed, quiet = (execute(run, waves()) for run in runs)
    spent = time.process_time() - started
    assert [len(followed["curve"]), quiet["curve"], quiet["curve_over"]] == [8, None, None]
    assert 0.1 * spent < followed["seconds"]["processor"] + quiet["seconds"]["processor"] <= spent


def test_scores_of_two_classes_are_those_of_the_class_that_was_right() -> None:
    data = waves()
    data = replace(data, y_train=(data.x_train[:, 0] > 0).astype(int), y_test=(data.x_test[:, 0] > 0).astype(int))
    record = execute(replace(TINY, estimator=GPClassifier, metrics=("error", "nlp")).runs("ours")[0], data)
    scores = record["scores"]
    assert all(0 < point["nlp"] < 0.7 for point in record["curve"])
    assert scores["error"] < 0.1
    assert 0 < scores["nlp"] < 0.5
    assert 0 < scores["brier"] < 0.3


def test_finished_runs_are_kept_when_resumed_and_run_again_with_other_settings(
    tmp_path: Path, tiny: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = reproduce("tiny", results=tmp_path, verbose=False)
    second.unlink()
    dates = first.stat().st_mtime_ns
    assert reproduce("tiny", results=tmp_path, resume=True, verbose=False) == [first, second]
    assert first.stat().st_mtime_ns == dates
    assert second.exists()
    longer = replace(tiny, presets=preset(9))
    monkeypatch.setitem(EXPERIMENTS, "tiny", longer)
    reproduce("tiny", results=tmp_path, resume=True, verbose=False)
    assert read(first)["epochs"] == 9


def test_a_stopped_run_resumes_to_the_same_scores_with_its_whole_curve(
    tmp_path: Path, tiny: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    (whole,) = reproduce("tiny", only="*-elbo-*", results=tmp_path / "whole", verbose=False)
    scored = run_module.number_scores
    calls = []

    def stop_at_the_third(*arguments):
        calls.append(1)
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return scored(*arguments)

    monkeypatch.setattr(run_module, "number_scores", stop_at_the_third)
    with pytest.raises(TrainingInterruptedError):
        reproduce("tiny", only="*-elbo-*", results=tmp_path, verbose=False)
    assert list((tmp_path / "tiny" / "checkpoints").iterdir())
    with pytest.raises(ValueError, match=r"add --resume \(resume=True\) to go on, or delete .*checkpoints"):
        reproduce("tiny", only="*-elbo-*", results=tmp_path, verbose=False)
    (path,) = reproduce("tiny", only="*-elbo-*", results=tmp_path, resume=True, verbose=False)
    assert len(calls) == 8  # no epoch was scored twice
    found, expected = read(path), read(whole)
    assert found["scores"] == expected["scores"]
    assert [point["epoch"] for point in found["curve"]] == list(range(1, 9))
    assert [point["smse"] for point in found["curve"]] == [point["smse"] for point in expected["curve"]]
    assert not (tmp_path / "tiny" / "checkpoints").exists()


def test_validation_never_sees_the_test_rows(tmp_path: Path, tiny: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    def poisoned(seed: int) -> Dataset:
        data = waves(seed)
        return replace(data, x_test=np.full_like(data.x_test, np.nan), y_test=np.full_like(data.y_test, np.nan))

    monkeypatch.setitem(EXPERIMENTS, "tiny", replace(tiny, load=lambda data, seed: partial(poisoned, seed)))
    paths = reproduce("tiny", results=tmp_path, validation=True, verbose=False)
    assert {path.parent for path in paths} == {tmp_path / "validation" / "tiny"}
    record = read(paths[0])
    assert (record["data"]["train"], record["data"]["test"]) == (80, 20)
    assert record["scores"]["smse"] < 1
    assert not (tmp_path / "README.md").exists()


def test_data_that_is_not_at_hand_is_named_and_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(FileNotFoundError, match=r"sarcos_inv\.mat"):
        reproduce("sarcos", data=tmp_path, results=tmp_path, verbose=False)
    rng = np.random.default_rng(0)
    (tmp_path / "sarcos").mkdir()
    sizes = {"X_train": 21, "Y_train": 7, "X_test": 21, "Y_test": 7}
    arrays = {name: rng.normal(size=(60, columns)) for name, columns in sizes.items()}
    np.savez(tmp_path / "sarcos" / "ias_sarcos_real.npz", **arrays)
    short = replace(EXPERIMENTS["sarcos"], presets=preset(2, likelihood="network", share_kernel=False), beside=())
    monkeypatch.setitem(EXPERIMENTS, "sarcos", short)
    caplog.clear()
    paths = reproduce("sarcos", data=tmp_path, results=tmp_path, verbose=False)
    assert [path.stem for path in paths] == ["sarcos-ias-ours-elbo-50-seed0", "sarcos-ias-clean-ours-elbo-50-seed0"]
    assert caplog.text.count("gpml is left out: SARCOS") == 1
    assert "sarcos/by-epoch.svg" in (tmp_path / "README.md").read_text()


def test_another_method_leaves_a_record_in_the_same_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def measure(data: Dataset, samples: int | None, seed: int) -> dict:
        calls.append((len(data.x_train), samples, seed))
        return {"scores": {"smse": 0.5}, "settings": {"max_epochs": None}, "seconds": {"training": 1.0}, "epochs": 0}

    monkeypatch.setitem(EXPERIMENTS, "tiny", replace(TINY, peers={"mean": Peer(measure)}, curve=False))
    for _ in range(2):
        paths = reproduce("tiny", results=tmp_path, resume=True, verbose=False)
    assert calls == [(100, None, 0)]  # once: the second time its record was there
    assert paths[-1].name == "tiny-mean-seed0.json"
    assert read(paths[-1])["scores"] == {"smse": 0.5}
    assert "| mean |  |  | 0.5000 |  | 1 | 0 | 1 s |" in (tmp_path / "README.md").read_text()


def test_counts_are_scored_by_their_probability() -> None:
    data = waves()
    data = replace(data, y_train=np.arange(100) % 3, y_test=np.arange(50) % 3)
    scores = execute(replace(TINY, presets=preset(likelihood="poisson"), curve=False).runs("ours")[0], data)["scores"]
    assert set(scores) == {"smse", "r2", "rmse", "nlp"}
    assert 1 < scores["nlp"] < 2


def test_all_rows_at_once_are_for_the_elbo() -> None:
    presets = {"ours": Preset({"settings": Settings(max_epochs=30, held_share=0.9)})}
    experiment = replace(TINY, objectives=("elbo", "loo", "predictive"), presets=presets, curve=False)
    records = [execute(run, waves()) for run in experiment.runs("ours")]
    assert [record["scores"]["nlp"] < 2 for record in records] == [True, True, True]
    assert [record["history"]["objective"][-1] for record in records] == ["elbo", "loo", "predictive"]
    first, then = records[0]["history"], records[1]["history"]
    assert first["learning_rate"][0] == then["learning_rate"][0] == 1.0  # of L-BFGS
    assert then["objective"][: len(first["epoch"])] == ["elbo"] * len(first["epoch"])
    assert then["epoch"] == list(range(1, records[1]["epochs"] + 1))
    assert all(before <= after for before, after in pairwise(then["seconds"]))


def test_resume_keeps_runs_of_the_same_rows_settings_and_start(
    tmp_path: Path, tiny: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    def again(experiment: Experiment) -> bool:
        monkeypatch.setitem(EXPERIMENTS, "tiny", experiment)
        before = read(path)["date"], path.stat().st_mtime_ns
        reproduce("tiny", only="*-elbo-*", results=tmp_path, resume=True, verbose=False)
        return (read(path)["date"], path.stat().st_mtime_ns) != before

    (path,) = reproduce("tiny", only="*-elbo-*", results=tmp_path, verbose=False)
    record = read(path)
    del record["settings"]["held_prior"]  # as if it were younger than the file
    record["settings"]["gone"] = 1
    write_json(path, record)
    assert not again(tiny)
    assert again(replace(tiny, presets=preset(start=Start(variance=2.0))))
    assert again(replace(tiny, presets=preset(2)))
    assert again(replace(tiny, load=lambda data, seed: partial(renamed, seed)))


def renamed(seed: int) -> Dataset:
    return replace(waves(seed), name="other")


def test_a_dry_run_prints_every_run_and_trains_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert reproduce("digits", only="*-loo-[15]0-seed0", results=tmp_path, time=60.0, dry_run=True) == []
    programs = capsys.readouterr().out.split("\n\n#")
    assert [program.splitlines()[0].strip("# ") for program in programs] == [
        "digits-ours-loo-10-seed0",
        "digits-ours-loo-50-seed0",
    ]
    assert all("GPClassifier(" in program and "time_budget=60.0" in program for program in programs)
    assert list(tmp_path.iterdir()) == []


def test_mistakes_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no experiment 'mnits'; there are digits, mnist"):
        reproduce("mnits", results=tmp_path)
    with pytest.raises(ValueError, match=r"no run of digits has a name like 'x\*'; one is digits-ours-elbo-10-seed0"):
        reproduce("digits", only="x*", results=tmp_path)


def test_several_processes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Processes, "from_first", lambda self, function: function())  # there is no other to tell
    monkeypatch.setattr(command, "processes", lambda: Processes(rank=0, count=2))
    with pytest.raises(ValueError, match=r"reproduce is for one process.*--dry-run"):
        reproduce("digits", results=tmp_path)
    assert not any(tmp_path.iterdir())
