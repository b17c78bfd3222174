"""Every page of results is what its files of results say: a number that was typed by hand, or is stale, differs."""

import importlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from autogp.experiments import tables as experiments

RESULTS = Path(__file__).parents[1] / "results"


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line and not line.startswith("![")]


def stored(page: str) -> list[str]:
    return lines((RESULTS / page).read_text())


def content(file: str) -> Any:
    return json.loads((RESULTS / file).read_text())


def test_the_page_of_experiments_has_the_means_of_its_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(RESULTS, tmp_path, dirs_exist_ok=True)
    monkeypatch.setattr(experiments, "FIGURES", ())
    assert lines(experiments.make_tables(tmp_path).read_text()) == stored("README.md")


def test_the_pages_of_benchmarks_have_the_scores_of_their_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(RESULTS.parent))
    report, tables, importance, objectives, uci = (
        importlib.import_module(f"benchmarks.{name}")
        for name in ("report", "tables", "importance", "objectives", "uci")
    )
    assert lines(report.page(content("benchmarks/benchmarks.json")["full"], "full", {})) == stored(
        "benchmarks/README.md"
    )
    assert lines(tables.table(tables.TABLES)) == stored("tables/README.md")
    assert lines(importance.page(content("tables/importance.json"))) == stored("tables/importance.md")
    assert lines(objectives.page(content("objectives/objectives.json"))) == stored("objectives/README.md")
    ours, peers = (content(f"benchmarks/uci-{name}.json") for name in ("autogp", "gpflow"))
    assert lines(uci.table(ours, peers)) == stored("benchmarks/uci.md")
