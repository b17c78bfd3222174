"""Predictions of fitted estimators: one row, a table beside LightGBM, and many rows.

    python -m benchmarks.prediction [FOLDER] [--rounds N] [--rows N] [--table-rows N] [--kinds NAME ...]

With FOLDER, another checkout, each time is also that of its estimators; the two take turns, a process for each.
LightGBM takes turns too where it is installed. Times are the processor's on one thread, the shortest of all calls.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

ONE, MANY = "one row, 10 classes, 784 columns", "{:,} rows, 10 classes, 784 columns"
TABLES = {"regression": None, "2 classes": [0.0], "3 classes": [-0.5, 0.5]}  # of 10 columns
KINDS = ["images", *TABLES]
INDUCING, TURN = 200, 0.3  # seconds
HERE = Path(__file__).parent.parent


def problems(many: int, table_rows: int, kinds: list[str]) -> dict[str, Callable[[], Any]]:
    """What is timed, by its name: predictions of autogp, and of LightGBM if it is there."""
    from autogp import GPClassifier, GPRegressor

    rng = np.random.default_rng(0)
    common: dict[str, Any] = {"n_inducing": INDUCING, "max_epochs": 1, "random_state": 0, "verbose": False}
    found: dict[str, Callable[[], Any]] = {}
    if "images" in kinds:
        x, y = rng.random((1000, 784), np.float32), rng.integers(0, 10, 1000)
        images = GPClassifier(**common).fit(x, y)
        found[ONE] = partial(images.predict_proba, x[:1])
        found[MANY.format(many)] = partial(images.predict_proba, rng.random((many, 784), np.float32))
    x, new = rng.standard_normal((2500, 10)), rng.standard_normal((table_rows, 10))
    target = np.sin(x[:, 0]) + 0.1 * rng.standard_normal(len(x))
    for name in (name for name in TABLES if name in kinds):
        borders, task = TABLES[name], f"{table_rows:,} rows, {name}"
        y = target if borders is None else np.digitize(target, borders)
        own: Any = (GPRegressor if borders is None else GPClassifier)(**common).fit(x[:500], y[:500])
        found[task] = partial(own.predict if borders is None else own.predict_proba, new)
        try:
            from lightgbm import LGBMClassifier, LGBMRegressor  # pyright: ignore[reportMissingImports]
        except ImportError:
            continue
        peer: Any = (LGBMRegressor if borders is None else LGBMClassifier)(n_jobs=1, verbose=-1).fit(x, y)
        predict = peer.predict if borders is None else peer.predict_proba
        found[f"{task}, LightGBM"] = partial(predict, new)
    return found


def work(many: int, table_rows: int, kinds: list[str]) -> None:
    """A turn of each problem for each line of input."""
    import torch

    torch.set_num_threads(1)
    found = problems(many, table_rows, kinds)
    for predict in found.values():
        predict()
    print(json.dumps(list(found)), flush=True)
    while sys.stdin.readline():
        print(json.dumps({name: _shortest(predict) for name, predict in found.items()}), flush=True)


def _shortest(predict: Callable[[], Any]) -> float:
    shortest, stop = np.inf, time.perf_counter() + TURN
    while shortest == np.inf or time.perf_counter() < stop:
        started = time.process_time()
        predict()
        shortest = min(shortest, time.process_time() - started)
    return shortest


def measure(folder: Path, arguments: list[str]) -> subprocess.Popen:
    paths = os.pathsep.join([str(folder / "src"), str(HERE), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "benchmarks.prediction", "--worker", *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True, cwd=HERE)


def compare(folders: list[Path], rounds: int, arguments: list[str]) -> list[dict[str, float]]:
    """Seconds of each prediction, the shortest over the rounds, for each of the checkouts."""
    workers = [measure(folder, arguments) for folder in folders]
    names = [_answer(worker) for worker in workers]
    shortest = [dict.fromkeys(each, np.inf) for each in names]
    for _ in range(rounds):
        for worker, times in zip(workers, shortest, strict=True):
            assert worker.stdin
            worker.stdin.write("\n")
            worker.stdin.flush()
            times.update({name: min(times[name], seconds) for name, seconds in _answer(worker).items()})
    for worker in workers:
        worker.communicate()
    return shortest


def _answer(worker: subprocess.Popen) -> Any:
    assert worker.stdout
    line = worker.stdout.readline()
    if not line:
        raise SystemExit(f"a process ended: {worker.args}")
    return json.loads(line)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="another checkout")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=10_000, help="of the prediction of many rows")
    parser.add_argument("--table-rows", type=int, default=2500, help="of the predictions of tables")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker:
        work(options.rows, options.table_rows, options.kinds)
        return
    folders = [HERE] + ([] if options.folder is None else [options.folder.resolve()])
    chosen = ["--rows", str(options.rows), "--table-rows", str(options.table_rows), "--kinds", *options.kinds]
    ours, *others = compare(folders, options.rounds, chosen)
    print("| prediction | ms | ms, other checkout | ratio | ms, LightGBM | ratio |\n|---|---|---|---|---|---|")
    for name, seconds in ours.items():
        if not name.endswith("LightGBM"):
            beside = [times.get(name) for times in others or [{}]] + [ours.get(f"{name}, LightGBM")]
            cells = [" | " if each is None else f"{1e3 * each:.2f} | {seconds / each:.2f}" for each in beside]
            print(f"| {name} | {1e3 * seconds:.2f} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
