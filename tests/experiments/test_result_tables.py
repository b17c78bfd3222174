"""Tables and figures come from the files alone, and files are written whole or not at all."""

import copy
import math
from pathlib import Path

import pytest

from autogp.experiments import make_tables
from autogp.experiments.figures import _mean_curve
from autogp.experiments.record import plain, read_json, read_records, write_json

RECORD = {
    "kind": "autogp experiment",
    "name": "mnist-ours-loo-200-seed0",
    "experiment": "mnist",
    "title": "MNIST",
    "data": {"set": "", "name": "mnist", "train": 60000, "test": 10000, "inputs": 784},
    "preset": "ours",
    "objective": "loo",
    "kernel": "rbf",
    "inducing": 200,
    "samples": None,
    "seed": 0,
    "date": "2030-01-02T00:00:00+00:00",
    "settings": {"max_epochs": 60},
    "metrics": ["error", "nlp"],
    "scores": {"error": 0.02, "nlp": 0.07, "brier": 0.03},
    "published": {"error": 0.0171, "nlp": 0.063},
    "seconds": {"start": 3.0, "training": 131.4, "scoring": 1.0},
    "epochs": 60,
    "machine": {"processor": "Abacus", "threads": 2},
    "curve": None,
}


def write(folder: Path, name: str, **changes) -> None:
    record = {**copy.deepcopy(RECORD), "name": name, **changes}
    write_json(folder / record["experiment"] / f"{name}.json", record)


def test_a_line_has_the_mean_and_standard_error_over_seeds_and_what_was_published(tmp_path: Path) -> None:
    write(tmp_path, "a", seed=0, scores={"error": 0.02, "nlp": 0.07})
    write(tmp_path, "b", seed=1, scores={"error": 0.03, "nlp": 0.09})
    write(tmp_path, "c", inducing=10, published=None, epochs=7, seconds={"training": 1200.0})
    (tmp_path / "mnist" / "other.json").write_text('{"runs": []}')
    (tmp_path / "mnist" / "broken.json").write_text('{"kind": "autogp')
    text = make_tables(tmp_path).read_text()
    lines = [line for line in text.splitlines() if line.startswith("|")]
    head = "| inducing inputs | error | NLP | error in the paper | NLP in the paper | seeds | epochs | time |"
    assert lines[0] == head
    assert lines[2:] == [
        "| 10 | 2.00 % | 0.0700 |  |  | 1 | 7 of 60 | 20 min |",
        "| 200 | 2.50 ± 0.50 % | 0.0800 ± 0.0100 | 1.71 % | 0.063 | 2 | 60 | 131 s |",
    ]
    assert "60,000 training rows" in text
    assert "Abacus (threads: 2)" in text


def test_runs_with_other_settings_than_the_newest_are_named(tmp_path: Path) -> None:
    write(tmp_path, "new", seed=1, date="2031-01-01", settings={"max_epochs": 60, "held_prior": 0.1}, note="Now.")
    write(tmp_path, "old", note="Then.")
    write(tmp_path, "bound", objective="elbo")  # has no part in which q(u) is held
    text = make_tables(tmp_path).read_text()
    assert "Other settings than in the newest run: held_prior 0.0 instead of 0.1 in [old](mnist/old.json).\n" in text
    assert "Now." in text
    assert "Then." not in text
    assert "`autogp reproduce mnist`, seeds 0, 1 (`--seed`).\n" in text


def test_figures_have_the_same_bytes_from_the_same_files(tmp_path: Path) -> None:
    for size in (10, 200, 1000):
        for objective in ("elbo", "loo"):
            write(tmp_path, f"{objective}-{size}", inducing=size, objective=objective)
    make_tables(tmp_path)
    figure = tmp_path / "mnist" / "by-inducing.svg"
    before = figure.read_bytes()
    make_tables(tmp_path)
    assert figure.read_bytes() == before


def test_the_page_links_the_folders_of_experiments_and_the_pages_of_benchmarks(tmp_path: Path) -> None:
    write(tmp_path, "a")
    write(tmp_path / "validation", "held-out", title="Another title")
    assert "- [mnist](mnist): MNIST\n\n" in make_tables(tmp_path).read_text()
    write_json(tmp_path / "benchmarks" / "benchmarks.json", {"quick": {}})
    (tmp_path / "benchmarks" / "README.md").write_text("# Benchmarks\n")
    text = make_tables(tmp_path).read_text()
    assert "- [mnist](mnist): MNIST\n- [benchmarks/README.md](benchmarks/README.md): " in text
    assert "Another title" not in text


def test_experiments_follow_each_other_and_single_sizes_have_no_figure(tmp_path: Path) -> None:
    write(tmp_path, "a")
    write(tmp_path, "b", experiment="cifar10", title="CIFAR-10")
    text = make_tables(tmp_path).read_text()
    assert "## MNIST" in text
    assert "## CIFAR-10" in text
    assert "svg" not in text


@pytest.mark.parametrize(("spread", "bold"), [(0.01, True), (0.2, False)])
def test_the_best_objective_is_bold_where_it_is_so_by_two_standard_errors(tmp_path: Path, spread, bold) -> None:
    for objective, nlp in (("elbo", 0.5), ("loo", 0.4)):
        for seed, shift in enumerate((-spread, 0.0, spread)):
            own = {"objective": objective, "seed": seed, "scores": {"error": 0.1, "nlp": nlp + shift}}
            write(tmp_path, f"{objective}-{seed}", **own)
    assert ("| **0.4000 ±" in make_tables(tmp_path).read_text()) == bold


def test_objectives_stand_side_by_side_where_there_are_several_data_sets(tmp_path: Path) -> None:
    for data, scores in {"a": (0.5, 0.3), "b": (0.2, 0.4)}.items():
        for objective, nlp in zip(("elbo", "loo"), scores, strict=True):
            own = {"data": {**RECORD["data"], "set": data}, "objective": objective, "note": "Mind the gap."}
            write(tmp_path, f"{data}-{objective}", **own, scores={"error": 0.1, "nlp": nlp})
    text = make_tables(tmp_path).read_text()
    assert text.count("Mind the gap.") == 1
    assert [line for line in text.splitlines() if line.startswith("|")] == [
        "| data | kernel | error, elbo | error, loo | NLP, elbo | NLP, loo | seeds |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        "| a | rbf | 10.00 % | 10.00 % | 0.5000 | 0.3000 | 1 |",
        "| b | rbf | 10.00 % | 10.00 % | 0.2000 | 0.4000 | 1 |",
        "| experiment | kernel | preset | inducing inputs | NLP, elbo | NLP, loo | error, elbo | error, loo "
        "| calibration error, elbo | calibration error, loo | seeds |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        "| mnist a | rbf | ours | 200 | 0.5000 | 0.3000 | 10.00 % | 10.00 % |  |  | 1 |",
        "| mnist b | rbf | ours | 200 | 0.2000 | 0.4000 | 10.00 % | 10.00 % |  |  | 1 |",
    ]


def test_peers_lie_level_in_the_figure_and_samples_have_their_times(tmp_path: Path) -> None:
    for size in (10, 200):
        write(tmp_path, f"loo-{size}", inducing=size)
    write(tmp_path, "svm", preset="svm", objective="", kernel="", inducing=0, scores={"error": 0.3})
    for samples in (10, 100):
        curve = [{"epoch": 1, "smse": 0.5}, {"epoch": 2, "smse": 0.1 / samples}]
        own = {"preset": "sampled", "samples": samples, "experiment": "sarcos", "metrics": ["smse"], "curve": curve}
        write(tmp_path, f"s{samples}", **own, scores={"smse": 0.1}, seconds={"training": 1.0, "update": samples / 1000})
    text = make_tables(tmp_path).read_text()
    assert "svm |  |  | 30.00 % |" in text
    assert "SVM" in (tmp_path / "mnist" / "by-inducing.svg").read_text()
    assert "| 100 | 0.1000 | 1 | 60 | 1 s | 0.100 s |" in text
    assert "CPU time of an update" in (tmp_path / "sarcos" / "by-epoch.svg").read_text()


def test_error_by_time_has_a_line_for_each_run_and_the_papers_results(tmp_path: Path) -> None:
    """With the paper's time a point, without it a level."""
    for number, published in enumerate(({"error": 0.1, "nlp": 0.3, "seconds": 50}, {"error": 0.2, "nlp": 0.4}, None)):
        curve = [
            {"epoch": 1, "seconds": 5.0, "error": 0.3, "nlp": 0.9},
            {"epoch": 2, "seconds": 9.0, "error": 0.2, "nlp": 0.5},
        ]
        own = {"published": published, "metrics": ["error", "nlp"], "inducing": 10 + number, "curve": curve}
        write(tmp_path, f"run-{number}", **own, curve_over="time", scores={"error": 0.2, "nlp": 0.5})
    assert "by-time.svg" in make_tables(tmp_path).read_text()
    drawn = (tmp_path / "mnist" / "by-time.svg").read_text()
    assert drawn.count("<!-- as published -->") == 2
    assert all(f"M = {10 + number} -->" in drawn for number in range(3))


def test_a_curve_is_the_mean_over_the_seeds_and_says_where_some_are_missing(tmp_path: Path) -> None:
    for samples, seeds in ((10, (0, 1)), (100, (0,))):
        for seed in seeds:
            curve = [{"epoch": 1, "smse": 0.5}, {"epoch": 2, "smse": 0.1 + 0.2 * seed}]
            own = {"preset": "sampled", "samples": samples, "experiment": "sarcos", "metrics": ["smse"], "curve": curve}
            write(tmp_path, f"s{samples}-{seed}", **own, seed=seed, seconds={"training": 1.0, "update": 0.1})
    records = read_records(tmp_path)
    assert _mean_curve([record for record in records if record["samples"] == 10], "epoch", "smse") == (
        [1, 2],
        pytest.approx([0.5, 0.2]),
    )
    make_tables(tmp_path)
    figure = (tmp_path / "sarcos" / "by-epoch.svg").read_text()
    assert figure.count("<!-- 10 samples -->") == 1
    assert figure.count("<!-- 100 samples (1 of 2 seeds) -->") == 1


def test_published_values_are_marked_once_for_each_kernel(tmp_path: Path) -> None:
    for size in (10, 200):
        for kernel in ("rbf", "arccosine"):
            for preset in ("ours", "paper"):
                write(tmp_path, f"{kernel}-{preset}-{size}", inducing=size, kernel=kernel, preset=preset)
    make_tables(tmp_path)
    figure = (tmp_path / "mnist" / "by-inducing.svg").read_text()
    for kernel in ("RBF-ARD", "arc-cosine"):
        assert figure.count(f"<!-- {kernel}, loo, as published -->") == 1


def test_estimators_have_a_figure_of_their_own(tmp_path: Path) -> None:
    for name in ("reparameterisation", "score function"):
        for samples in (10, 100):
            own = {"preset": name, "samples": samples, "experiment": "efficiency", "metrics": ["noise", "smse"]}
            curve = [{"step": 0, "smse": 1.0}, {"step": 20, "smse": 0.5}]
            write(tmp_path, f"{name}-{samples}", **own, curve=curve, scores={"noise": 1 / samples, "smse": 0.5})
    assert "(efficiency/estimators.svg)" in make_tables(tmp_path).read_text()
    assert (tmp_path / "efficiency" / "estimators.svg").exists()


def test_numbers_become_plain_json() -> None:
    found = plain({"a": (1, 2.123456789), "b": math.nan, 3: [math.inf, None, "x", True]})
    assert found == {"a": [1, 2.12346], "b": None, "3": [None, None, "x", True]}


def test_a_record_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "mnist" / "a.json"
    write_json(path, {"kind": "autogp experiment", "x": 1})
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(path, {"x": math.nan})
    assert read_json(path) == {"kind": "autogp experiment", "x": 1}
    assert list(path.parent.iterdir()) == [path]
    assert read_records(tmp_path) == [{"kind": "autogp experiment", "x": 1}]
