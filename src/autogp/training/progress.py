"""What a run tells while it goes on, ways to show it, and how a signal stops it."""

import logging
import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar

from autogp.model import Predictor

__all__ = [
    "Callback",
    "Interrupts",
    "PlainLines",
    "Progress",
    "ProgressBar",
    "RowsDone",
    "TrainingInterruptedError",
    "checkpoints_in",
    "showing",
]

Callback = Callable[["Progress"], bool | None]  # True stops the run

logger = logging.getLogger("autogp.interrupts")


@dataclass(frozen=True)
class Progress:
    """The state of a run after a step; a callback is any function of one of these."""

    step: int
    total_steps: int
    epoch: float
    epoch_end: bool
    objective: str
    value: float  # of the objective, per row of data, averaged over the epoch so far
    score: float  # of the last epoch: mean log probability of a row
    nlp: float  # the same as `autogp evaluate` shows it: negative, and in the units of the targets
    rows_per_second: float
    seconds: float
    seconds_left: float  # NaN in a run that ends when it converges
    gain: float  # nats a row that the last epochs have gained, in a run that ends when that falls below
    least_gain: float  # this; both are NaN in other runs
    skipped: int
    predictor: Callable[[], Predictor]  # of the model as it is now

    def line(self) -> str:
        """The same in words."""
        parts = [f"epoch {self.epoch:.1f}"]
        if not math.isnan(self.nlp):
            parts.append(f"nlp {self.nlp:.4f}")
        parts.append(f"{self.rows_per_second:,.0f} rows/s")
        if not math.isnan(self.seconds_left):
            parts.append(f"{_duration(self.seconds_left)} left")
        elif not math.isnan(self.gain):
            parts.append(f"gains {self.gain:.2g}, ends below {self.least_gain:.2g}")
        if self.skipped:
            parts.append(f"{self.skipped} steps skipped")
        return ", ".join(parts)

    @property
    def share(self) -> float:
        """How much of the run is done; where the end is not known, by how far the gain has fallen, from 1 nat a row."""
        if not math.isnan(self.seconds_left):
            return self.seconds / max(self.seconds + self.seconds_left, 1e-9)
        if math.isnan(self.gain):
            return 0.0
        return min(1.0, math.log(min(1.0, max(self.gain, self.least_gain))) / math.log(self.least_gain))


class RowsDone:
    """How far features are learnt or computed; a display shows it as it does the progress of a training."""

    def __init__(self, displays: Sequence[Callable[[Any], Any]], doing: str = "features of"):
        self.displays, self.doing = displays, doing
        self.start = time.monotonic()
        self.done = self.total = 0

    def __call__(self, done: int, total: int) -> None:
        if done < self.done:  # another pass
            self.start = time.monotonic()
        self.done, self.total = done, total
        self.seconds = time.monotonic() - self.start
        self.seconds_left = self.seconds * (total - done) / done
        for display in self.displays:
            display(self)

    @property
    def share(self) -> float:
        return self.done / self.total

    def line(self) -> str:
        return f"{self.doing} {self.done:,} of {self.total:,} rows, {_duration(self.seconds_left)} left"


class ProgressBar:
    """A bar on a terminal; appears after two seconds, so that quick fits stay quiet."""

    def __init__(self, console: Console | None = None, delay: float = 2.0):
        self.console = console or Console(stderr=True)
        self.delay = delay
        self.bar: Bar | None = None

    def __call__(self, progress: Progress) -> None:
        if self.bar is None and progress.seconds >= self.delay:
            self.bar = Bar(BarColumn(bar_width=10), TextColumn("{task.description}"), console=self.console)
            self.task = self.bar.add_task("", total=1.0)
            self.bar.start()
        if self.bar is not None:
            self.bar.update(self.task, completed=progress.share, description=progress.line())

    def close(self) -> None:
        if self.bar is not None:
            self.bar.stop()


class PlainLines:
    """One line at intervals, for logs and pipes."""

    def __init__(self, stream: TextIO | None = None, interval: float = 30.0):
        self.stream = stream or sys.stderr
        self.interval = interval
        self.last = time.monotonic()

    def __call__(self, progress: Progress) -> None:
        if time.monotonic() - self.last >= self.interval:
            self.last = time.monotonic()
            print(f"training: {progress.line()}", file=self.stream, flush=True)

    def close(self) -> None:
        pass


class OneLine:
    """A line that is written over, as notebooks can; it appears after two seconds, and then twice a second."""

    def __init__(self, stream: TextIO | None = None, delay: float = 2.0, interval: float = 0.5):
        self.stream = stream or sys.stderr
        self.delay, self.interval = delay, interval
        self.last, self.width = -math.inf, 0

    def __call__(self, progress: Progress) -> None:
        if progress.seconds >= self.delay and time.monotonic() - self.last >= self.interval:
            self.last = time.monotonic()
            line = f"training: {progress.line()}"
            print(f"\r{line:<{self.width}}", end="", file=self.stream, flush=True)
            self.width = len(line)

    def close(self) -> None:
        if self.width:
            print(file=self.stream, flush=True)


def progress_display(verbose: bool | str) -> ProgressBar | OneLine | PlainLines | None:
    """What suits where standard error goes: a bar on a terminal, a line in a notebook, elsewhere lines unless `verbose`
    is "auto"."""
    if verbose not in (True, False, "auto"):
        raise ValueError(f"verbose must be True, False or 'auto', got {verbose!r}")
    if not verbose or sys.stderr is None:
        return None
    if sys.stderr.isatty():
        return ProgressBar()
    if type(sys.stderr).__module__.startswith("ipykernel"):  # Jupyter, Colab and their kind
        return OneLine()
    return None if verbose == "auto" else PlainLines()


@contextmanager
def showing(verbose: bool | str) -> Iterator[list[Callback]]:
    """The display, if any, in a list; closed at the end, however it comes."""
    display = progress_display(verbose)
    try:
        yield [] if display is None else [display]
    finally:
        if display is not None:
            display.close()


class TrainingInterruptedError(SystemExit, KeyboardInterrupt):
    """A run that a signal stopped after a whole step, saved; a program that does not catch it ends with the exit code
    that a shell expects."""

    def __init__(self, message: str, exit_code: int):
        super().__init__(message)
        self.code = self.exit_code = exit_code


_known_as: ContextVar[Path | None] = ContextVar("known_as", default=None)


@contextmanager
def checkpoints_in(folder: Path | None) -> Iterator[None]:
    """Runs within keep their checkpoints in folders inside this one, which is the one that a user knows."""
    token = _known_as.set(folder)
    try:
        yield
    finally:
        _known_as.reset(token)


class Interrupts:
    """Within the `with` block SIGINT and SIGTERM are noted instead of obeyed; a second one is obeyed at once."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is threading.main_thread():  # only there may handlers be set
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()

    def error(self, where: str, folder: Path | None, received: int) -> TrainingInterruptedError:
        folder = None if folder is None else _known_as.get() or folder
        saved = "saved by process 0" if folder is None else f"saved in {folder}, resume from there"
        message = f"stopped by {signal.Signals(received).name} {where}; {saved}"
        logger.warning(message)  # Python ends without a word
        return TrainingInterruptedError(message, 128 + received)

    def _note(self, number: int, frame: Any) -> None:
        if self.received is not None:
            self.__exit__()
            signal.raise_signal(number)
        self.received = number


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {seconds:02d} s" if minutes else f"{seconds} s"
