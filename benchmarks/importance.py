"""`feature_importances_` beside scikit-learn's permutation importance, on the tables of `benchmarks.tables`.

    python -m benchmarks.importance [--sets NAME ...]
    python -m benchmarks.importance --table             only makes the table

Of each table of up to 10,000 rows, at most 1,000 are drawn: three quarters for an estimator with its defaults, the rest
to exchange the values of a column, twenty times. What that costs, in squared error or log loss, is the permutation
importance of the column. Spearman's rank correlation is over all columns. "standard errors" are those by which the
permutation importance of a column differs from 0; a column below 2 has none that these rows can show, and its rank is
chance. Runs are kept in results/tables/importance.json.
"""

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import spearmanr
from sklearn.inspection import permutation_importance
from sklearn.model_selection import train_test_split

from autogp import GPClassifier, GPRegressor
from autogp.storage import replacing
from benchmarks.tables import DATA, prepare
from benchmarks.tables_data import TABLES

RESULTS = Path("results/tables/importance.json")
PAGE = Path("results/tables/importance.md")
MOST_ROWS, DRAWN, REPEATS, SHOWN = 10_000, 1_000, 20, 2.0
SETS = [name for name, table in TABLES.items() if table.rows <= MOST_ROWS]


def compare(name: str) -> dict[str, Any]:
    """Both importances of every column, and their rank correlations."""
    table, started = TABLES[name], time.process_time()
    frame: Any = pd.read_parquet(DATA / f"{name}.parquet")
    frame = frame.sample(min(DRAWN, len(frame)), random_state=0)
    x, y = frame.drop(columns=table.target), frame[table.target]
    classes = table.kind == "class"
    parts: Any = train_test_split(x, y, random_state=0, stratify=y if classes else None)
    x, held, y, truth = parts
    with warnings.catch_warnings():  # of columns that are left out, and categories that are new
        warnings.simplefilter("ignore")
        model: Any = (GPClassifier if classes else GPRegressor)(random_state=0, verbose=False).fit(x, y)
        scoring = "neg_log_loss" if classes else "neg_mean_squared_error"
        found: Any = permutation_importance(model, held, truth, scoring=scoring, n_repeats=REPEATS, random_state=0)
    own, cost = model.feature_importances_, found.importances_mean
    certain = np.abs(cost) > SHOWN * found.importances_std / np.sqrt(REPEATS)
    return {
        "columns": {
            column: [float(each), float(other)] for column, each, other in zip(x.columns, own, cost, strict=True)
        },
        "correlation": correlation(own, cost),
        "certain": int(certain.sum()),
        "correlation of certain": correlation(own[certain], cost[certain]),
        "first": bool(np.argmax(own) == np.argmax(cost)),
        "cpu": time.process_time() - started,
    }


def correlation(own: np.ndarray, cost: np.ndarray) -> float | None:
    return float(spearmanr(own, cost).statistic) if len(own) > 2 else None  # pyright: ignore


def page(found: dict[str, dict[str, Any]]) -> str:
    heads = ["table", "columns", "rank correlation", "columns above 2 standard errors", "rank correlation of these"]
    lines = [f"| {' | '.join(heads)} | same first |", "|---|---|---|---|---|---|"]
    for name, each in found.items():
        values = [each["correlation"], each["correlation of certain"]]
        all_columns, certain = ("" if value is None else f"{value:.2f}" for value in values)
        same = "yes" if each["first"] else "no"
        lines.append(f"| {name} | {len(each['columns'])} | {all_columns} | {each['certain']} | {certain} | {same} |")
    for key in ("correlation", "correlation of certain"):
        values = [each[key] for each in found.values() if each[key] is not None]
        reached = sum(value >= 0.8 for value in values)
        lines.append(f"\n{key}: median {np.median(values):.2f}, at least 0.8 on {reached} of {len(values)} tables.")
    return "# Importance of columns\n\n`python -m benchmarks.importance`\n\n" + "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="*", default=SETS, choices=SETS)
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in [] if arguments.table else arguments.sets:
        prepare([name])
        found[name] = compare(name)
        print(name, {key: value for key, value in found[name].items() if key != "columns"}, flush=True)
        with replacing(RESULTS) as temporary:
            temporary.write_text(json.dumps(found, indent=1) + "\n")
    with replacing(PAGE) as temporary:
        temporary.write_text(page(found))


if __name__ == "__main__":
    main()
