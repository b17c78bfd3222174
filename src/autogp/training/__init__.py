"""Training: natural gradients, phases, checkpoints and progress."""

from autogp.training.checkpoint import CheckpointError
from autogp.training.fullbatch import converge
from autogp.training.grow import FEWEST_INDUCING, converge_growing
from autogp.training.loop import BATCH_SIZE, History, TrainingDivergedError, train
from autogp.training.mixture import mix
from autogp.training.progress import Callback, PlainLines, Progress, ProgressBar, TrainingInterruptedError
from autogp.training.refine import refine
from autogp.training.schedule import Phase, Settings
from autogp.training.start import (
    KERNELS,
    Start,
    all_inputs,
    start_from,
    start_inducing_inputs,
    start_kernel,
    start_latents,
)
from autogp.training.stream import absorb

__all__ = [
    "BATCH_SIZE",
    "FEWEST_INDUCING",
    "KERNELS",
    "Callback",
    "CheckpointError",
    "History",
    "Phase",
    "PlainLines",
    "Progress",
    "ProgressBar",
    "Settings",
    "Start",
    "TrainingDivergedError",
    "TrainingInterruptedError",
    "absorb",
    "all_inputs",
    "converge",
    "converge_growing",
    "mix",
    "refine",
    "start_from",
    "start_inducing_inputs",
    "start_kernel",
    "start_latents",
    "train",
]
