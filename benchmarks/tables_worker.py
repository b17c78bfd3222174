"""What every contender of `benchmarks.tables` shares: rows from a file, predictions to a file, seconds of CPU.

    python WORKER TABLE.parquet TARGET KIND SEED CONTENDER PREDICTIONS.npz

A worker runs in the environment of its contender; this file imports nothing of autogp.
"""

import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

__all__ = ["LEVELS", "Rows", "serve", "split"]

TEST_SHARE, MOST_TEST = 0.25, 25_000
LEVELS = (0.05, 0.95)


class Rows(NamedTuple):
    x: Any  # a DataFrame
    y: np.ndarray
    x_test: Any
    y_test: np.ndarray
    kind: str
    seed: int
    apart: list[float]  # seconds of fit that are not the model's own, such as those of finding its noise


def split(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Which rows train and which test, in the order of the table."""
    order = np.random.default_rng(seed).permutation(count)
    test = min(int(TEST_SHARE * count), MOST_TEST)
    return np.sort(order[test:]), np.sort(order[:test])


Predictions = dict[str, np.ndarray]  # mean, density and quantiles, or probabilities; what is missing is not scored


def serve(contenders: dict[str, Callable[[Rows], Callable[[], Predictions]]]) -> None:
    """Fits the contender of the command line and writes what it predicts for the test rows.

    A contender fits, and returns the function that predicts.
    """
    import pandas as pd

    path, target, kind, seed, name, output = sys.argv[1:]
    frame = pd.read_parquet(path)
    train, test = split(len(frame), int(seed))
    inputs, y = frame.drop(columns=target), frame[target].to_numpy()
    rows = Rows(inputs.iloc[train], y[train], inputs.iloc[test], y[test], kind, int(seed), [])
    started = time.process_time()
    predict = contenders[name](rows)
    fitted = time.process_time()
    predictions = predict()
    seconds = {"fit": fitted - started - sum(rows.apart), "predict": time.process_time() - fitted}
    targets = np.unique(y, return_inverse=True)[1] if kind == "class" else y.astype(np.float64)
    found: Any = {"targets": targets[test], **predictions, **seconds}
    np.savez(output, **found)
