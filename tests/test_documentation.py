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
from autogp.experiments.command import EXPERIMENTS
from benchmarks import scale

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
    assert len(rows) == 6
    for row in rows:
        _, _, others, ours, source, _ = row.split("|")
        quoted = re.findall(r"-?\d+\.?\d*", ours)
        files = [ROOT / link for link in re.findall(r"\]\(([^)]+)\)", source)]
        if files[0].suffix == ".md":
            quoted += re.findall(r"-?\d+\.?\d*", others)
            assert set(quoted) <= set(re.findall(r"-?\d+\.?\d*", files[0].read_text())), row
            continue
        assert "AutoGP paper" not in others or published(others), row
        scores = [json.loads(file.read_text())["scores"] for file in files]
        error, nlp = (float(np.mean([each[name] for each in scores])) for name in ("error", "nlp"))
        assert quoted == [f"{100 * error:.2f}", f"{nlp:.{4 if nlp < 1 else 3}f}"][: len(quoted)], row


def quoted_rows(page: Path) -> list[tuple[dict[str, str], str]]:
    """Rows of tables, cells by their heads, with the source that a comment in the row names; none: ""."""
    found, heads = [], []
    for line in page.read_text().splitlines():
        if not line.startswith("|"):
            heads = []
            continue
        source = re.search(r"<!-- (.*?) -->", line)
        cells = [cell.strip() for cell in re.sub(r"<!--.*?-->", "", line).strip("|").split("|")]
        if not heads:
            heads = cells
        elif set(line) - set("|- "):
            found.append((dict(zip(heads, cells, strict=True)), "" if source is None else source.group(1)))
    return found


def published(text: str) -> bool:
    """Whether error and NLP in the text are a pair of the paper's."""
    pairs = [scores for each in EXPERIMENTS.values() for scores in each.published.values() if "nlp" in scores]
    known = [{f"{100 * scores['error']:.2f}", f"{scores['nlp']:.3f}"} for scores in pairs]
    return {number for number in re.findall(r"\d+\.\d+", text) if number != "8.1"} in known  # million rows


def of_files(cell: str, values: list[float], scale: float) -> str:
    """The mean of scores, and where the cell gives one its standard error, with as many digits as the cell has."""
    digits = [len(number.partition(".")[2]) for number in re.findall(r"\d+\.\d+", cell)]
    shown = [f"{scale * np.mean(values):.{digits[0]}f}"]
    if len(digits) > 1:
        shown.append(f"{scale * np.std(values, ddof=1) / len(values) ** 0.5:.{digits[1]}f}")
    return " ± ".join(shown)


METRICS = {
    "error": ("error", 100),
    "NLP": ("nlp", 1),
    "SMSE": ("smse", 1),
    "ELBO": ("elbo", 1),
}  # by the last word of a column's head


def test_the_page_of_experiments_quotes_the_files_of_results() -> None:
    """Each row names its source: runs (means over their files), a row of a page of results, or the paper."""
    rows = quoted_rows(ROOT / "docs/experiments.md")
    checked = 0
    for cells, source in rows:
        if source == "the paper":
            assert published(" ".join(cells.values())), cells
            checked += 1
            continue
        if "1,400 ill-conditioned covariance matrices" in cells:
            continue
        if source == "sweep":
            tried = json.loads((ROOT / "results/rectangles/rectangles-arc-cosine-sweep-seed0.json").read_text())[
                "tried"
            ]
            degree, *quoted = cells.values()
            for depth, cell in enumerate(quoted, 1):
                found = [e["error"] for e in tried if (f"degree {e['degree']}", e["depth"]) == (degree, depth)]
                assert cell == f"{100 * min(found):.1f} %", (degree, depth)
                checked += 1
            continue
        if source.startswith("page "):
            _, name, start = source.split()
            (line,) = re.findall(rf"^\| {start} \|.*", (ROOT / "results" / name).read_text(), flags=re.MULTILINE)
            known = set(re.findall(r"[-+]?\d+\.?\d*", line))
            numbers = re.findall(r"[-+]?\d+\.?\d*", " ".join([*cells.values()][1:]))
            assert set(numbers) <= known | {"5", "2"}, cells  # of Matérn 5/2
            checked += len(numbers)
            continue
        if source.startswith("json "):
            _, name, key = source.split()
            gains = json.loads((ROOT / "results" / name).read_text())[key]
            expected = [f"{gains[size]['mean']:.3f} ± {gains[size]['error']:.3f}" for size in ("2", "4")]
            assert [*cells.values()][1:] == expected, cells
            checked += len(expected)
            continue
        files = sorted((ROOT / "results").glob(f"{source}.json"))
        assert files, f"no source, or no such file: {cells} {source}"
        scores = [json.loads(file.read_text())["scores"] for file in files]
        if "from the test rows" in cells:
            error, tested = (
                np.mean([each["error"] for each in scores]),
                json.loads(files[0].read_text())["data"]["test"],
            )
            assert cells["from the test rows"] == f"{100 * (error * (1 - error) / tested) ** 0.5:.2f} %", cells
        for head, cell in cells.items():
            if head.split()[-1] in METRICS and cell:
                metric, scale = METRICS[head.split()[-1]]
                quoted = cell.strip("*% ")
                assert quoted == of_files(quoted, [each[metric] for each in scores], scale), (head, cells, source)
                checked += 1
    assert checked > 90


def test_the_page_of_leave_one_out_quotes_the_files_of_results() -> None:
    """Means over the runs that a row names, and rows of the comparison of objectives."""
    page = (ROOT / "results/objectives/README.md").read_text()
    compared = checked = 0
    for cells, source in quoted_rows(ROOT / "docs/leave-one-out.md"):
        if "auto chose" in cells:
            (line,) = re.findall(rf"^\| {re.escape(cells['set'])} \|.*", page, flags=re.MULTILINE)
            known = [float(number) for number in re.findall(r"\d+\.\d+", line)]
            for number in re.findall(r"\d+\.\d+", " ".join([*cells.values()][1:])):
                digits = len(number.partition(".")[2])
                assert any(f"{each:.{digits}f}" == number for each in known), (cells, number)
            compared += 1
        if "OBJECTIVE" not in source:
            continue
        for objective in ("elbo", "loo", "predictive"):
            numbers = re.findall(r"-?\d+\.\d+", cells[f"`{objective}`"])
            files = sorted((ROOT / "results").glob(f"{source.replace('OBJECTIVE', objective)}.json"))
            scores = [json.loads(file.read_text())["scores"] for file in files]
            for number, (metric, factor) in zip(numbers, (("nlp", 1), ("error", 100)), strict=False):
                assert number == of_files(number, [each[metric] for each in scores], factor), (cells, objective)
                checked += 1
    assert (compared, checked > 50) == (22, True)


@pytest.mark.parametrize("name", ["experiments.md", "leave-one-out.md"])
def test_scores_stand_in_tables_whose_numbers_are_tested(name: str) -> None:
    text = "\n".join(
        line for line in (ROOT / "docs" / name).read_text().splitlines() if not line.startswith(("|", "  "))
    )
    prose = re.sub(r"`[^`]*`|\]\([^)]*\)", "", text)
    assert re.findall(r"\d+\.\d+ ?%|-?\d\.\d{2,}", prose) == []


def test_tables_of_scores_in_other_pages_are_those_of_results() -> None:
    """A table with errors or NLPs has its runs in results/: other pages than those checked above have none."""
    for page in ("training.md", "models.md", "estimators.md", "scale.md", "leave-one-out.md"):
        scored = [cells for cells, source in quoted_rows(ROOT / "docs" / page) if not source and _is_scored(cells)]
        assert not scored, (page, scored[0])


def _is_scored(cells: dict[str, str]) -> bool:
    return any(
        re.search(r"\d", cell) and head.split()[-1:] in (["error"], ["NLP"], ["SMSE"]) for head, cell in cells.items()
    )


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


def test_the_page_on_scale_has_the_table_of_its_results() -> None:
    results = json.loads((ROOT / "results/scale/scale.json").read_text())
    assert scale.table(results) in (ROOT / "docs/scale.md").read_text()


def test_the_page_of_estimators_quotes_the_forecasts_of_co2() -> None:
    found = json.loads((ROOT / "results/co2/co2.json").read_text())
    ours, theirs = (found[name] for name in ("autogp", "scikit-learn"))
    text = " ".join((ROOT / "docs/estimators.md").read_text().split())

    def means(runs: dict, score: str, chosen: tuple[str, ...] = ()) -> str:
        return f"{np.mean([run[score] for cut, run in runs.items() if cut not in chosen]):.2f}"

    assert f"mean RMSE of {means(ours, 'rmse')} ppm and a mean NLP of {means(ours, 'nlp')}" in text
    assert f"composed kernel has {means(theirs, 'rmse')} and {means(theirs, 'nlp')}" in text
    assert sum(ours[cut]["nlp"] < theirs[cut]["nlp"] for cut in ours) == 6
    rest = [means(runs, score, ("1980", "1985", "1990")) for runs in (ours, theirs) for score in ("rmse", "nlp")]
    assert "the means are {} and {} against {} and {}".format(*rest) in text
    assert f"cover {100 * float(means(ours, 'cover')):.0f} % (scikit-learn" in text
