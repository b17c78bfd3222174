"""Training: natural gradients, phases, checkpoints and progress."""

from autogp.inference.callbacks import PlainLines, Progress, ProgressBar, TrainingInterruptedError, progress_display
from autogp.inference.checkpoint import CheckpointError
from autogp.inference.schedule import Phase, Settings, phases
from autogp.inference.trainer import History, TrainingDivergedError, train

__all__ = [
    "CheckpointError",
    "History",
    "Phase",
    "PlainLines",
    "Progress",
    "ProgressBar",
    "Settings",
    "TrainingDivergedError",
    "TrainingInterruptedError",
    "phases",
    "progress_display",
    "train",
]
