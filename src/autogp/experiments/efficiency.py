"""Statistical efficiency: gradients through the samples against the score function of the paper's predecessor."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from autogp.datasets import Dataset
from autogp.experiments import sarcos
from autogp.experiments.base import Experiment, Peer
from autogp.experiments.gradients import (
    BATCH,
    INDUCING,
    MEASURED_AFTER,
    STEPS,
    measure,
    score_function,
    through_samples,
    with_control_variate,
)

ROWS = 2000  # of SARCOS


def load_part(folder: str | Path | None = None) -> Dataset:
    """Every so many rows of the smaller recording of SARCOS."""
    rows = sarcos.load_recording("ias-clean", folder)
    train, test = (np.linspace(0, len(x) - 1, ROWS).astype(int) for x in (rows.x_train, rows.x_test))
    return replace(
        rows,
        name="sarcos-part",
        x_train=rows.x_train[train],
        y_train=rows.y_train[train],
        x_test=rows.x_test[test],
        y_test=rows.y_test[test],
    )


SAMPLES = (10, 100, 1000, 10_000)
EXPERIMENT = Experiment(
    name="efficiency",
    title="Statistical efficiency",
    load=lambda data, seed: partial(load_part),
    metrics=("noise", "smse"),
    note=(
        f"A regression network on {ROWS:,} rows of SARCOS (ias-clean), {INDUCING} inducing inputs, kernel and noise "
        f"fixed: q learns by {STEPS} steps of Adam from batches of {BATCH} rows, and only the estimate of the gradient "
        f"differs. Its noise is the variance over the square of its length, measured after {MEASURED_AFTER} exact "
        "steps. The score function is that of Dezfouli and Bonilla (2015)."
    ),
    peers={
        "reparameterisation": Peer(measure(through_samples), SAMPLES),
        "score function": Peer(measure(score_function), SAMPLES),
        "score function with control variate": Peer(measure(with_control_variate), SAMPLES),
    },
)
