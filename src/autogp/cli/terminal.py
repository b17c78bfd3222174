"""What a command shows: results to people or to programs, and one line where something goes wrong."""

import json
import logging
import math
import os
import re
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from autogp.printing import escaped

__all__ = ["RESUME", "Commands", "Terminal", "reporting"]

RESUME = "go on with the same command and --resume"


class Terminal:
    """Standard output as words and tables, or as one JSON object; notes, progress and errors go to standard error.

    Names of files and columns, labels and cells are text, not rich's markup, and steer no terminal: they are escaped
    here, not by the caller.
    """

    def __init__(self, json: bool) -> None:
        self.rank = int(os.environ.get("RANK", "0"))  # among the processes of torchrun, of which process 0 alone talks
        self.json = json and not self.rank
        self.out = Console(highlight=False, quiet=json or self.rank > 0)
        self.err = Console(highlight=False, stderr=True)

    def say(self, text: str) -> None:
        """Shows a text, unless the output is JSON."""
        self.out.print(_text(text), soft_wrap=True)

    def table(self, names: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
        """Shows a table, unless the output is JSON."""
        table = Table()
        for name in names:
            table.add_column(_text(name))
        for row in rows:
            table.add_row(*map(_text, row))
        self.out.print(table)

    def note(self, text: str) -> None:
        """Tells what a person should know, on standard error."""
        if not self.rank:
            self.err.print(_text(text, "note: ", "yellow"), soft_wrap=True)

    def result(self, values: dict[str, Any]) -> None:
        """The one JSON object, where that was asked for."""
        if self.json:
            print(json.dumps(_plain(values)), flush=True)

    def fail(self, text: str, label: str = "error: ") -> None:
        """Says what is wrong; with JSON also as the object's `error`."""
        try:
            self.result({"error": text})
            sys.stdout.flush()
        except OSError:  # standard output itself is what is wrong: what it still holds must not fail again at the end
            with suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        self.err.print(_text(text, f"process {self.rank}: {label}" if self.rank else label, "bold red"), soft_wrap=True)


def _text(text: str, label: str = "", style: str = "") -> Text:
    return Text.assemble((label, style), escaped(text))


@contextmanager
def reporting(json: bool, debug: bool) -> Iterator[Terminal]:
    """A command runs within: whatever it raises becomes one line and an exit code; `debug` shows the traceback too."""
    terminal = Terminal(json)
    with warnings.catch_warnings(), _logging_to(terminal), _terminable():
        warnings.showwarning = lambda message, *_: terminal.note(_one_line(message))
        try:
            yield terminal
            sys.stdout.flush()
        except (typer.Exit, typer.BadParameter, BrokenPipeError):
            raise
        except KeyboardInterrupt as stop:
            if not terminal.rank:
                terminal.fail(str(stop).replace("resume from there", RESUME) or "interrupted", label="")
            raise typer.Exit(getattr(stop, "exit_code", 130)) from None
        except Exception as error:
            if debug:
                terminal.err.print(_text(traceback.format_exc()), soft_wrap=True, end="")
            if not (terminal.rank and "shared" in vars(error)):  # process 0 tells of what all of them raise
                terminal.fail(_in_words(error))
            raise typer.Exit(1) from None


class Commands(TyperGroup):
    """The program: a closed standard stream does it no harm, and wrong usage is quoted escaped."""

    def main(self, *args: Any, **settings: Any) -> Any:
        # Else the next file that is opened would take the stream's place.
        for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
            if getattr(sys, name) is None:
                setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
        return super().main(*args, **settings)

    def make_context(self, *args: Any, **settings: Any) -> Any:
        with _escaping_usage():
            return super().make_context(*args, **settings)

    def invoke(self, ctx: Any) -> Any:
        with _escaping_usage():
            return super().invoke(ctx)


@contextmanager
def _escaping_usage() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if hasattr(error, "message"):  # an error of click's, whose classes typer does not show
            error.message = escaped(error.message)  # pyright: ignore[reportAttributeAccessIssue]
        raise


@contextmanager
def _logging_to(terminal: Terminal) -> Iterator[None]:
    """Log messages become notes, but the one on an interrupted training: `reporting` tells that."""
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: terminal.note(record.getMessage())
    handler.addFilter(lambda record: record.name != "autogp.interrupts")
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM ends the program as an exception does, so that temporary files go; training itself saves first."""

    def stop(*_: object) -> None:
        raise SystemExit(128 + signal.SIGTERM)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _in_words(error: Exception) -> str:
    from autogp.likelihoods import InfiniteLOOError
    from autogp.linalg import NotPositiveDefiniteError
    from autogp.training import CheckpointError, TrainingDivergedError

    expected = (
        ValueError,
        OSError,
        CheckpointError,
        InfiniteLOOError,
        NotPositiveDefiniteError,
        TrainingDivergedError,
    )

    if isinstance(error, MemoryError):
        return "there is not enough memory: close other programs, or give fewer rows or inducing inputs"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    text = _one_line(error)
    if isinstance(error, expected):
        return text
    return f"unexpected {type(error).__name__}: {text} (--debug shows where)"


def _one_line(message: object) -> str:
    return re.sub(r"\s*\n\s*", " ", str(message).strip())


def _plain(value: Any) -> Any:
    """As JSON has it: numbers of numpy become Python's, and those that are not finite null."""
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value
