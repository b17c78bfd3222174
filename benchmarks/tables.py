"""GPRegressor and GPClassifier with their defaults beside trees and linear models, on tables as people have them.

    python -m benchmarks.tables [--quick] [--sets NAME ...] [--seeds N ...] [--contenders NAME ...]
    python -m benchmarks.tables --table                                          only makes the table
    python -m benchmarks.tables --time [--against FOLDER] [--sets NAME ...]      compares CPU time alone

The tables come from packages that `make table-peers` installs in an environment of their own, $AUTOGP_PEERS/tables
(.peers/tables), where LightGBM and scikit-learn run too. A seed is a split: a quarter of the rows, at most 25,000, are
the test set. `--quick` takes the tables of up to 3,000 rows. Runs are kept in results/tables, a file for each table and
contender; those that are there already are repeated only with `--again`. Models that give numbers alone have Gaussian
noise from out-of-fold residuals. `--time` fits LightGBM, autogp and the autogp of another checkout in turns.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import binom

from autogp.storage import replacing
from benchmarks.contenders import HERE, PEERS
from benchmarks.tables_data import TABLES

RESULTS = Path("results/tables")
PYTHON = PEERS / "tables/bin/python"
DATA = PEERS / "tables/data"
OURS = "autogp"
MOST_ROWS = {  # beyond which a contender is left out
    OURS: None,
    "lightgbm": None,
    "lightgbm-quantiles": None,
    "hist-boosting": None,
    "linear": None,
    "random-forest": 50_000,
    "ngboost": 10_000,
    "sklearn-gp": 2_000,
}
QUICK = 3_000
NEAR = {"nlp": 0.01, "error": 0.03}  # counts as the best: so many nats, and such a share
WORSE = 0.02  # nats that autogp may lose to the linear model
LEVEL = 0.9  # of the intervals
COVER, QUARTER = (0.87, 0.93), (0.80, 0.97)  # of 90 % intervals: over all rows, and in each quarter of the prediction


def takes_part(contender: str, name: str) -> bool:
    most, table = MOST_ROWS[contender], TABLES[name]
    return (most is None or table.rows <= most) and not (contender == "lightgbm-quantiles" and table.kind == "class")


def prepare(names: Iterable[str]) -> None:
    """The tables as files, from the packages."""
    missing = [name for name in names if not (DATA / f"{name}.parquet").exists()]
    if missing:
        if not PYTHON.exists():
            raise SystemExit(f"there is no {PYTHON}: run `make table-peers`")
        subprocess.run([PYTHON, HERE / "tables_data.py", DATA, *missing], check=True)


def run(contender: str, name: str, seed: int, checkout: Path = HERE.parent) -> dict[str, np.ndarray]:
    """What a contender predicts for the test rows, and its seconds; in a process and environment of its own."""
    table = TABLES[name]
    python, worker = (sys.executable, "tables_autogp.py") if contender == OURS else (PYTHON, "peer_tables.py")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(checkout / "src"), "PYTHONWARNINGS": "ignore"}
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "predictions.npz"
        data = [DATA / f"{name}.parquet", table.target, table.kind, str(seed)]
        subprocess.run([python, HERE / worker, *data, contender, output], env=environment, check=True)
        with np.load(output) as found:
            return dict(found)


def scores(found: dict[str, np.ndarray]) -> dict[str, Any]:
    """Negative log predictive density, RMSE or error rate, coverage of 90 % intervals, seconds of CPU."""
    y = found["targets"]
    result: dict[str, Any] = {"rows": len(y), "fit": float(found["fit"]), "predict": float(found["predict"])}
    if "likelihood" in found:
        result["likelihood"] = str(found["likelihood"])
    if "probabilities" in found:
        probabilities = found["probabilities"]
        own = probabilities[np.arange(len(y)), y]
        # A forest may give probability 0, whose logarithm is infinite.
        result["nlp"] = float(-np.log(np.maximum(own, 1e-6)).mean())
        result["error"] = float(np.mean(probabilities.argmax(1) != y))
        return result
    if "density" in found:
        result["nlp"] = float(-found["density"].mean())
    result["error"] = float(np.sqrt(np.mean((y - found["mean"]) ** 2)))
    covered = (found["quantiles"][:, 0] <= y) & (y <= found["quantiles"][:, 1])
    quarters = np.array_split(np.argsort(found["mean"], kind="stable"), 4)
    return result | {"cover": float(covered.mean()), "quarters": [float(covered[rows].mean()) for rows in quarters]}


def run_all(names: list[str], seeds: list[int], contenders: list[str], again: bool) -> None:
    prepare(names)
    for name in names:
        for contender in contenders:
            path = RESULTS / f"{name}-{contender}.json"
            result = read(path) or {"table": name, "contender": contender, "runs": {}}
            for seed in seeds:
                if not takes_part(contender, name) or (str(seed) in result["runs"] and not again):
                    continue
                try:
                    result["runs"][str(seed)] = scores(run(contender, name, seed))
                except subprocess.CalledProcessError as error:
                    result["runs"][str(seed)] = {"failure": f"its process ended with {error.returncode}"}
                print(name, contender, seed, result["runs"][str(seed)], flush=True)
                write(path, json.dumps(result, indent=1) + "\n")


def mean_scores(name: str) -> dict[str, dict[str, Any]]:
    """The mean over the seeds that every contender of a table has, by contender."""
    files = {contender: read(RESULTS / f"{name}-{contender}.json") for contender in MOST_ROWS}
    runs = {contender: file["runs"] for contender, file in files.items() if file}
    seeds = set.intersection(*(set(each) for each in runs.values())) if runs else set()
    found: dict[str, dict[str, Any]] = {}
    for contender, each in runs.items():
        chosen = [each[seed] for seed in sorted(seeds)]
        if not chosen or any("failure" in run for run in chosen):
            continue
        keys = [key for key in ("nlp", "error", "cover", "quarters", "fit", "predict") if key in chosen[0]]
        found[contender] = {key: np.mean([run[key] for run in chosen], axis=0) for key in keys}
        found[contender]["tested"] = sum(run["rows"] for run in chosen)
    return found


def by_chance(tested: int, limits: tuple[float, float], parts: int = 1) -> float:
    """The probability that exact 90 % intervals cover a share of the rows within the limits, in each of equal parts."""
    rows = tested // parts
    covered = np.arange(rows + 1)
    near = (covered >= limits[0] * rows) & (covered <= limits[1] * rows)
    return float(binom.pmf(covered[near], rows, LEVEL).sum()) ** parts


def table(names: Iterable[str]) -> str:
    """The scores of autogp beside the best other, and how often what should be reached is reached."""
    lines, reached = [], {"nlp": [], "linear": [], "error": [], "cover": [], "quarters": []}
    exact = {"cover": 0.0, "quarters": 0.0}
    for name in names:
        found = mean_scores(name)
        ours = found.get(OURS)
        others = {contender: each for contender, each in found.items() if contender != OURS}
        if ours is None or not others:
            continue
        cells = [name, TABLES[name].kind, f"{TABLES[name].rows:,}"]
        for key in ("nlp", "error"):
            best = min((each[key], contender) for contender, each in others.items() if key in each)
            near = ours[key] <= best[0] + NEAR["nlp"] if key == "nlp" else ours[key] <= best[0] * (1 + NEAR["error"])
            reached[key].append(near)
            cells += [f"{'**' if near else ''}{ours[key]:.4g}{'**' if near else ''}", f"{best[0]:.4g} ({best[1]})"]
        linear = others.get("linear", {"nlp": np.inf})["nlp"]
        reached["linear"].append(ours["nlp"] <= linear + WORSE)
        cells.append(f"{linear:.4g}")
        if "cover" in ours:
            reached["cover"].append(COVER[0] <= ours["cover"] <= COVER[1])
            reached["quarters"].append(all(QUARTER[0] <= each <= QUARTER[1] for each in ours["quarters"]))
            exact["cover"] += by_chance(ours["tested"], COVER)
            exact["quarters"] += by_chance(ours["tested"], QUARTER, parts=4)
            cells += [f"{100 * ours['cover']:.0f}", " ".join(f"{100 * each:.0f}" for each in ours["quarters"])]
        else:
            cells += ["", ""]
        lightgbm = others.get("lightgbm", {"fit": np.nan, "predict": np.nan})
        cells += [f"{ours[key]:.2f} ({lightgbm[key]:.2f})" for key in ("fit", "predict")]
        lines.append("| " + " | ".join(cells) + " |")
    if not lines:
        return "No results yet: run `python -m benchmarks.tables`.\n"
    head = ["table", "target", "rows", "NLP", "best other", "RMSE or error", "best other", "NLP of the linear model"]
    head += ["cover, %", "in quarters, %", "fit, s (LightGBM)", "predict, s (LightGBM)"]
    counts = {key: f"{sum(each)} of {len(each)}" for key, each in reached.items()}
    near, share = NEAR["nlp"], 100 * NEAR["error"]
    cover, quarter = ("{:.0f} to {:.0f} %".format(*(100 * each for each in pair)) for pair in (COVER, QUARTER))
    return f"""# Tables

autogp with its defaults beside trees, linear models and scikit-learn's Gaussian process: negative log predictive
density (NLP), RMSE or error rate, and how many targets are in their 90 % intervals, over all test rows and in each
quarter of the prediction from low to high. Bold: within {near} nats, or {share:.0f} %, of the best other. Seconds are
of CPU. Made by `python -m benchmarks.tables --table` from the files in this folder.

| {" | ".join(head)} |
{"|---" * len(head)}|
{chr(10).join(lines)}

- NLP best, or within {near} of the best: {counts["nlp"]}
- not worse than the linear model by more than {WORSE} nats: {counts["linear"]}
- RMSE or error within {share:.0f} % of the best: {counts["error"]}
- cover of {cover}: {counts["cover"]}; intervals that are exact would reach {exact["cover"]:.1f} on average
- cover of {quarter} in every quarter: {counts["quarters"]}; exact intervals {exact["quarters"]:.1f}

Exact intervals miss these limits by chance, because the test rows are few; intervals of counts cover more than 90 %,
because they end at whole numbers.
"""


def compare_times(names: list[str], against: Path | None, rounds: int) -> None:
    """CPU seconds of fit and prediction, the least of some rounds in turns."""
    prepare(names)
    trees = {OURS: (OURS, HERE.parent), "lightgbm": ("lightgbm", HERE.parent)}
    if against is not None:
        if not (against / "src" / "autogp").is_dir():
            raise SystemExit(f"{against} is not a checkout: it has no src/autogp")
        trees["other checkout"] = (OURS, against)
    print("| table | rows | seconds of | " + " | ".join(trees) + " | ratios |\n" + "|---" * (len(trees) + 4) + "|")
    for name in names:
        times = [[run(contender, name, 0, checkout) for contender, checkout in trees.values()] for _ in range(rounds)]
        for key in ("fit", "predict"):
            least = [min(float(each[place][key]) for each in times) for place in range(len(trees))]
            ratios = ", ".join(f"{least[0] / other:.2f}" for other in least[1:])
            cells = [name, f"{TABLES[name].rows:,}", key, *(f"{seconds:.3f}" for seconds in least), ratios]
            print("| " + " | ".join(cells) + " |", flush=True)


def read(path: Path) -> dict[str, Any] | None:
    return json.loads(path.read_text()) if path.exists() else None


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as part:
        part.write_text(text)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", choices=TABLES, metavar="NAME")
    parser.add_argument("--quick", action="store_true", help=f"tables of up to {QUICK:,} rows")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--contenders", nargs="+", choices=MOST_ROWS, default=list(MOST_ROWS), metavar="NAME")
    parser.add_argument("--again", action="store_true", help="also what is there already")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--time", action="store_true")
    parser.add_argument("--against", type=Path, metavar="FOLDER", help="another checkout, for --time")
    parser.add_argument("--rounds", type=int, default=3, help="of --time")
    options = parser.parse_args(arguments)
    names = options.sets or [name for name in TABLES if not options.quick or TABLES[name].rows <= QUICK]
    if options.time:
        compare_times(names, options.against, options.rounds)
        return
    if not options.table:
        run_all(names, options.seeds, options.contenders, options.again)
    write(RESULTS / "README.md", table(TABLES))


if __name__ == "__main__":
    main()
