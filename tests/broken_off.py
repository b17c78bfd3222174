"""A training that is broken off at every step, and resumed each time."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from autogp import SparseGP
from autogp.data import Source
from autogp.training import History, Progress, Settings, train

__all__ = ["train_broken_off"]


def train_broken_off(
    new_model: Callable[[], SparseGP], source: Source, settings: Settings, folder: Path, **options: Any
) -> tuple[SparseGP, History, int]:
    """The model, the history, and how often it was broken off."""
    breaks = 0
    while True:
        model, made = new_model(), []

        def break_off(progress: Progress, made: list[int] = made) -> None:
            made.append(progress.step)
            if len(made) == 2:  # the first was saved, the second is lost
                raise InterruptedError

        try:
            return (
                model,
                train(model, source, settings, folder=folder, resume=True, callbacks=[break_off], **options),
                breaks,
            )
        except InterruptedError:
            breaks += 1
