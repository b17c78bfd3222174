"""Trainings for tests to break off in another process: what they train, and what they leave behind."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from autogp.data import ArraySource
from autogp.kernels import RBF
from autogp.likelihoods import Softmax
from autogp.model import SparseGP
from autogp.storage import write_tensors
from autogp.training import Settings, TrainingInterruptedError, train

# Two phases, the second with q(u) held, and a checkpoint after every step.
SETTINGS = Settings(
    objective="loo",
    max_epochs=16,
    batch_size=50,
    samples=5,
    learning_rate=0.02,
    natural_rates=(0.2, 0.05),
    held_share=0.5,
    held_learning_rate=0.1,
    patience=6,
    checkpoint_seconds=1e-9,
    seed=3,
)


def problem() -> tuple[SparseGP, ArraySource, ArraySource]:
    """A model of three classes at the start of its training, 310 rows to train on and 90 to validate with."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(400, 3))
    y = np.argmax(x + 0.5 * np.sin(3 * x[:, ::-1]) + 0.7 * generator.normal(size=x.shape), axis=1)
    model = SparseGP(RBF(lengthscale=[1.5, 1.5, 1.5]), Softmax(3), torch.from_numpy(x[:15].astype(np.float32)))
    return model, ArraySource(x[:310], y[:310]), ArraySource(x[310:], y[310:])


def run(folder: Path | None, result: Path) -> None:
    """Starts or resumes the training, and writes the model and what happened, apart from times, to `result`."""
    torch.set_num_threads(1)
    model, source, validation = problem()
    history = train(model, source, SETTINGS, validation=validation, folder=folder, resume=folder is not None)
    rows = [{name: value for name, value in row.items() if name != "seconds"} for row in history.rows]
    description = {"kind": "model", "rows": rows, "best_epoch": history.best_epoch, "stopped": history.stopped}
    write_tensors(result, model.state_dict(), description)


def run_into_signals(folder: Path, report: Path, step: int, numbers: list[int], checkpoint_seconds: float) -> None:
    """A training that signals reach within a step; it ends as a command line would, and tells how far it got."""
    torch.set_num_threads(1)
    model, source, validation = problem()
    made: list[int] = []
    diag = model.kernel.diag

    def diag_with_signals(x: torch.Tensor) -> torch.Tensor:
        while len(made) == step and numbers:
            os.kill(os.getpid(), numbers.pop(0))
        return diag(x)

    model.kernel.diag = diag_with_signals
    settings = replace(SETTINGS, checkpoint_seconds=checkpoint_seconds)
    callbacks = [lambda progress: made.append(progress.step)]
    try:
        train(model, source, settings, validation=validation, folder=folder, callbacks=callbacks)
    except TrainingInterruptedError as error:
        report.write_text(f"{made[-1]}: {error}")
        sys.exit(error.exit_code)
