"""MNIST from the files on disk to a test error, with M = 200 inducing inputs shared by the ten classes.

    AUTOGP_DATA=FOLDER python -m benchmarks.mnist [--epochs 40] [--objective loo] [--validation] [--set NAME=VALUE]

FOLDER/mnist holds the four idx files as published. The clock starts before they are read. With `--validation` the last
10,000 training rows are a validation set, which takes the place of the test set: that is how settings are chosen.
"""

import argparse
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from autogp.data import Subset, open_source, summarise
from autogp.features import Scaling
from autogp.likelihoods import Softmax
from autogp.metrics import error_rate, expected_calibration_error, negative_log_probability
from autogp.model import SparseGP
from autogp.training import Settings, start_inducing_inputs, start_kernel, train


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--objective", default="loo", choices=["elbo", "loo", "predictive"])
    parser.add_argument("--inducing", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--validation", action="store_true")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="any other setting, a number")
    options = parser.parse_args()
    changes: dict[str, Any] = {name: float(value) for name, value in (change.split("=") for change in options.set)}
    folder = Path(os.environ.get("AUTOGP_DATA", ".")) / "mnist"

    started = time.perf_counter()
    rows = open_source(folder / "train-images-idx3-ubyte.gz", folder / "train-labels-idx1-ubyte.gz")
    if options.validation:
        source, test = Subset(rows, np.arange(50_000)), Subset(rows, np.arange(50_000, 60_000))
    else:
        source, test = rows, open_source(folder / "t10k-images-idx3-ubyte.gz", folder / "t10k-labels-idx1-ubyte.gz")
    scaling = Scaling.from_summary(summarise(source, max_rows=10_000), "global")
    model = SparseGP(
        start_kernel("rbf", source, scaling, variance=20.0, seed=options.seed),
        Softmax(10),
        start_inducing_inputs(source, options.inducing, scaling, options.seed, by_class=True),
        features=scaling,
    )
    ready = time.perf_counter()
    settings = Settings(objective=options.objective, max_epochs=options.epochs, seed=options.seed, **changes)
    history = train(model, source, settings, verbose=True)
    trained = time.perf_counter()

    x, labels = test.rows(np.arange(len(test)))
    probabilities = model.predict(torch.from_numpy(np.ascontiguousarray(x))).mean.numpy()
    scored = "validation" if options.validation else "test"
    print(
        f"{' '.join([options.objective, *options.set])}, "
        f"M = {options.inducing}, {len(history.rows)} epochs, seed {options.seed}, "
        f"{scored} rows: error {100 * error_rate(labels, probabilities):.2f} %, "
        f"NLP {negative_log_probability(labels, probabilities):.4f}, "
        f"calibration error {expected_calibration_error(labels, probabilities):.4f}; "
        f"{trained - started:.0f} s from disk ({ready - started:.0f} s before the first step), "
        f"{torch.get_num_threads()} threads"
    )


if __name__ == "__main__":
    main()
