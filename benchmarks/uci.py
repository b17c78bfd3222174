"""GPRegressor and GPClassifier with their defaults beside GPflow's sparse GPs, on splits that others have published.

    AUTOGP_DATA=FOLDER python -m benchmarks.uci [--sets NAME ...] [--splits 5] [--validation]       runs autogp
    AUTOGP_DATA=FOLDER python -m benchmarks.uci --peer PYTHON [--sets NAME ...] [--splits 5]        runs GPflow
    python -m benchmarks.uci --table                                                       only makes the table

The sets are nine regressions of the UCI repository and five small problems of Dezfouli and Bonilla (2015). Runs are
kept in uci-autogp.json and uci-gpflow.json in results/benchmarks; those that are there already are not repeated. With
`--validation` a fifth of each training set takes the place of the test set: that is how defaults are chosen. PYTHON
is one that has GPflow (tests/proofs/reference/README.md says how to set one up); it first tries its recipes on such
validation rows of split 0, and then uses the best of them for each set. One thread: export OMP_NUM_THREADS=1.
"""

import argparse
import importlib.metadata
import json
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from autogp import GPClassifier, GPRegressor
from autogp.datasets import load_savigp, load_uci, savigp, uci
from autogp.storage import replacing

RESULTS = Path("results/benchmarks")
PEER = Path(__file__).with_name("peer_gpflow_uci.py")
SETS = [f"uci/{name}" for name in uci.NAMES] + [f"savigp/{name}" for name in savigp.NAMES]
LIKELIHOODS = {"savigp/wisconsin": "bernoulli", "savigp/mining": "poisson"}  # the others: gaussian
COLUMNS = ["set", "N", "D", "splits", "log-likelihood", "GPflow's", "difference", "error", "GPflow's"]
COLUMNS += ["coverage", "GPflow's", "seconds", "GPflow's", "its recipe"]
Rows = dict[str, Any]  # x_train, y_train, x_test, y_test and the likelihood's name


def rows_of(name: str, split: int, validation: bool) -> Rows:
    """One split of a set; for validation the test rows are a fifth of the training rows."""
    collection, own_name = name.split("/")
    # All rows of mining are published both as training and as test rows: it is split here, at random.
    own_split = 0 if own_name == "mining" else split
    data = (load_uci if collection == "uci" else load_savigp)(own_name, own_split)
    parts = [data.x_train, data.y_train, data.x_test, data.y_test]
    if own_name == "mining":
        parts = _held_out(data.x_train, data.y_train, seed=100 + split)
    if own_name == "wisconsin":
        parts = [data.x_train, data.y_train > 0, data.x_test, data.y_test > 0]
    if validation:
        parts = _held_out(parts[0], parts[1], seed=split)
    names = ("x_train", "y_train", "x_test", "y_test")
    return {**dict(zip(names, parts, strict=True)), "likelihood": LIKELIHOODS.get(name, "gaussian")}


def _held_out(x: np.ndarray, y: np.ndarray, seed: int) -> list[np.ndarray]:
    order = np.random.default_rng(seed).permutation(len(x))
    test, train = order[: len(x) // 5], order[len(x) // 5 :]
    return [x[train], y[train], x[test], y[test]]


def num_splits(name: str, wanted: int) -> int:
    collection, own_name = name.split("/")
    published = uci.num_splits(own_name) if collection == "uci" else savigp.num_splits(own_name)
    return wanted if own_name == "mining" else min(wanted, published)


def run_autogp(rows: Rows, seed: int) -> dict[str, float]:
    """Defaults and nothing else; scores in the units of y, seconds of CPU for training and prediction."""
    started = time.process_time()
    x, y, x_test, y_test = (rows[name] for name in ("x_train", "y_train", "x_test", "y_test"))
    result: dict[str, float] = {"rows": len(x), "inputs": x.shape[1]}
    if rows["likelihood"] == "bernoulli":
        classifier = GPClassifier(random_state=seed).fit(x, y)
        result["log_likelihood"] = float(np.mean(classifier.log_density(x_test, y_test)))
        result["error_rate"] = float(np.mean(classifier.predict(x_test) != y_test))
    else:
        regressor = GPRegressor(likelihood=rows["likelihood"], random_state=seed).fit(x, y)
        low, high = np.moveaxis(regressor.predict(x_test, quantiles=[0.05, 0.95]), -1, 0)
        result["log_likelihood"] = float(np.mean(regressor.log_density(x_test, y_test)))
        result["rmse"] = float(np.sqrt(np.mean((y_test - regressor.predict(x_test)) ** 2)))
        result["coverage"] = float(np.mean((low <= y_test) & (y_test <= high)))
    return {**result, "seconds": time.process_time() - started}


def run_all(names: list[str], splits: int, validation: bool) -> None:
    path = RESULTS / f"uci-autogp{'-validation' if validation else ''}.json"
    versions = {name: importlib.metadata.version(name) for name in ("autogp", "torch", "numpy")}
    results = read(path) or {"settings": "defaults", "versions": versions, "runs": {}}
    for name in names:
        for split in range(num_splits(name, splits)):
            if str(split) in results["runs"].get(name, {}):
                continue
            result = run_autogp(rows_of(name, split, validation), seed=split)
            print(name, split, {key: round(value, 4) for key, value in result.items()}, flush=True)
            results["runs"].setdefault(name, {})[str(split)] = result
            write(path, json.dumps(results, indent=1) + "\n")


def run_peer(python: str, names: list[str], splits: int, validation: bool) -> None:
    """GPflow in its own environment: recipes on validation rows of split 0, then the best of them on the test rows."""
    explored = RESULTS / "uci-gpflow-validation.json"
    RESULTS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        _write_arrays(Path(folder), names, 1, validation=True)
        subprocess.run([python, PEER, folder, explored, "--explore"], check=True)
    if validation:
        return
    with tempfile.TemporaryDirectory() as folder:
        _write_arrays(Path(folder), names, splits, validation=False)
        subprocess.run([python, PEER, folder, RESULTS / "uci-gpflow.json", "--chosen", explored], check=True)


def _write_arrays(folder: Path, names: list[str], splits: int, validation: bool) -> None:
    for name in names:
        (folder / name).mkdir(parents=True)
        for split in range(num_splits(name, splits)):
            np.savez(folder / name / f"{split}.npz", **rows_of(name, split, validation))


def table(ours: dict[str, Any], peers: dict[str, Any]) -> str:
    """What both have run, as a page; all of it comes from the files of results."""
    lines, differences, errors = [], [], []
    for name in SETS:
        splits = sorted(set(ours["runs"].get(name, {})) & set(peers["runs"].get(name, {})), key=int)
        if not splits:
            continue
        pair = [[runs["runs"][name][split] for split in splits] for runs in (ours, peers)]
        own, other = ([run["log_likelihood"] for run in runs] for runs in pair)
        difference = np.subtract(own, other)
        error = "rmse" if "rmse" in pair[0][0] else "error_rate"
        differences.append(difference.mean() / (difference.std(ddof=1) / np.sqrt(len(splits))))
        errors.append(mean_of(pair[0], error) - mean_of(pair[1], error))
        cells = [name, f"{pair[0][0]['rows']:,}", str(pair[0][0]["inputs"]), str(len(splits))]
        cells += [with_error(own), with_error(other)]
        cells += [with_error(difference, "+"), *(f"{mean_of(runs, error):.3g}" for runs in pair)]
        cells += ["–" if error == "error_rate" else f"{100 * mean_of(runs, 'coverage'):.1f} %" for runs in pair]
        cells += [f"{mean_of(runs, 'seconds'):.0f}" for runs in pair]
        cells.append(f"{pair[1][0]['recipe']}, {pair[1][0]['steps']} steps")
        lines.append(f"| {' | '.join(cells)} |")
    better, worse = (sum(sign * each > 2 for each in differences) for sign in (1, -1))
    closer = sum(each < 0 for each in errors)
    versions = ", ".join(
        f"{name} {number}" for results in (ours, peers) for name, number in results["versions"].items()
    )
    return f"""# autogp with its defaults beside GPflow

Made by `python -m benchmarks.uci --table` from uci-autogp.json and uci-gpflow.json. Mean over the splits that both have
run, ± the standard error of that mean. Log-likelihood: nats per test row in the units of y, larger is better; the
difference is taken split by split. Error: root mean squared error, for wisconsin the error rate. Coverage: share of
test rows in the central 90 % of their predictive distribution. Seconds of CPU on one thread, training and prediction.

GPflow's recipe and number of steps were chosen for each set on validation rows, among its SVGP with natural gradients
(two learning rates of Adam beside them) or with Adam alone and, where noise is Gaussian, its SGPR with L-BFGS; the
kernel is RBF or, where the recipe says so, Matérn 5/2, which SVGP has for counts and classes only. autogp runs with its
defaults: a Matérn 5/2 kernel and, for all regressions but protein, L-BFGS on all rows at once.

autogp has the better log-likelihood by more than two standard errors of the difference on {better} of
{len(lines)} sets, GPflow on {worse}. autogp has the smaller error on {closer}.

| {" | ".join(COLUMNS)} |
{"|---" * len(COLUMNS)}|
{chr(10).join(lines)}

{versions}
"""


def mean_of(runs: list[dict[str, float]], key: str) -> float:
    return float(np.mean([run[key] for run in runs]))


def with_error(values: Any, sign: str = "") -> str:
    """Mean ± standard error of the mean."""
    spread = f" ± {np.std(values, ddof=1) / len(values) ** 0.5:.3f}" if len(values) > 1 else ""
    return f"{np.mean(values):{sign}.3f}{spread}"


def read(path: Path) -> dict[str, Any] | None:
    return json.loads(path.read_text()) if path.exists() else None


def write(path: Path, text: str) -> None:
    """All of the file or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        temporary.write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", metavar="PYTHON", help="run GPflow instead, with this Python")
    parser.add_argument("--sets", nargs="+", default=SETS, choices=SETS, metavar="NAME", help=", ".join(SETS))
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--validation", action="store_true", help="held-out training rows instead of test rows")
    parser.add_argument("--table", action="store_true", help="only make results/benchmarks/uci.md")
    options = parser.parse_args()
    if options.peer:
        run_peer(options.peer, options.sets, options.splits, options.validation)
    elif not options.table:
        run_all(options.sets, options.splits, options.validation)
    ours, peers = (read(RESULTS / f"uci-{name}.json") for name in ("autogp", "gpflow"))
    if ours and peers and not options.validation:
        write(RESULTS / "uci.md", table(ours, peers))


if __name__ == "__main__":
    main()
