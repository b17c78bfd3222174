"""Training: natural gradients, phases, checkpoints and progress."""

from autogp.training.checkpoint import CheckpointError
from autogp.training.lbfgs import train_exact
from autogp.training.loop import History, TrainingDivergedError, train
from autogp.training.progress import PlainLines, Progress, ProgressBar, TrainingInterruptedError
from autogp.training.schedule import Phase, Settings, phases
from autogp.training.start import (
    KERNELS,
    start_inducing_inputs,
    start_kernel,
    start_nodes,
)
from autogp.training.stream import absorb

__all__ = [
    "KERNELS",
    "CheckpointError",
    "History",
    "Phase",
    "PlainLines",
    "Progress",
    "ProgressBar",
    "Settings",
    "TrainingDivergedError",
    "TrainingInterruptedError",
    "absorb",
    "phases",
    "start_inducing_inputs",
    "start_kernel",
    "start_nodes",
    "train",
    "train_exact",
]
