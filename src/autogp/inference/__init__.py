"""Training: natural gradients, phases, checkpoints and progress."""

from autogp.inference.callbacks import PlainLines, Progress, ProgressBar, TrainingInterruptedError
from autogp.inference.checkpoint import CheckpointError
from autogp.inference.exact import train_exact
from autogp.inference.schedule import Phase, Settings, phases
from autogp.inference.start import (
    KERNELS,
    start_inducing_inputs,
    start_kernel,
    start_nodes,
)
from autogp.inference.stream import absorb
from autogp.inference.trainer import History, TrainingDivergedError, train

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
