"""Every Python example runs, every link leads somewhere, and the README quotes the files of results."""

import doctest
import importlib
import json
import pkgutil
import re
from pathlib import Path

import numpy as np
import pytest

import autogp

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
RESULTS = sorted(ROOT.glob("results/**/*.md"))
RESULTS_OF_BENCHMARKS = ROOT / "results/benchmarks/README.md"
MODULES = [module.name for module in pkgutil.walk_packages(autogp.__path__, "autogp.")]


def examples(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", [page for page in PAGES if examples(page)], ids=lambda page: page.name)
def test_examples_of_a_page_run_from_top_to_bottom(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict = {"__name__": "example"}
    for code in examples(page):
        exec(compile(code, str(page), "exec"), namespace)


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_give_what_they_show(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS).failed == 0


@pytest.mark.parametrize("page", [*PAGES, *RESULTS], ids=lambda page: str(page.relative_to(ROOT)))
def test_links_to_files_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)", page.read_text())
    assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == []


def test_the_readme_quotes_the_files_of_results_that_it_links() -> None:
    """Scores in a row of its table are means over the runs that the row links; a page of results has these digits."""
    rows = [row for row in (ROOT / "README.md").read_text().splitlines() if row.startswith("|") and "](results/" in row]
    assert len(rows) == 7
    for row in rows:
        _, _, _, ours, source, _ = row.split("|")
        quoted = re.findall(r"-?\d+\.?\d*", ours)
        files = [ROOT / link for link in re.findall(r"\]\(([^)]+)\)", source)]
        if files[0].suffix == ".md":
            assert set(quoted) <= set(re.findall(r"-?\d+\.?\d*", files[0].read_text())), row
            continue
        scores = [json.loads(file.read_text())["scores"] for file in files]
        error, nlp = (float(np.mean([each[name] for each in scores])) for name in ("error", "nlp"))
        assert quoted == [f"{100 * error:.2f}", f"{nlp:.{4 if nlp < 1 else 3}f}"][: len(quoted)], row


def test_the_page_of_benchmarks_quotes_the_run_with_a_slow_kernel() -> None:
    quoted = re.search(
        r"GPflow\s+reaches 0.12 after (\S+) s instead of (\S+), and ends at (\S+) instead of (\S+)\.\n",
        (ROOT / "docs/benchmarks.md").read_text(),
    )
    assert quoted is not None
    measured = []
    for name in ("natural + Adam 0.05, slow kernel", "natural + Adam 0.05"):
        (row,) = re.findall(
            rf"^\| GPflow, {re.escape(name)} \|.*", RESULTS_OF_BENCHMARKS.read_text(), flags=re.MULTILINE
        )
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        measured.append((cells[4], cells[6]))  # seconds to NLP 0.12, last NLP
    (slow_seconds, slow_end), (seconds, end) = measured
    assert quoted.groups() == (slow_seconds, seconds, slow_end, end)
