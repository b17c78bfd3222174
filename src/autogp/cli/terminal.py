"""What a command shows: results to people or to programs, and one line where something goes wrong."""

import json
import logging
import math
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

__all__ = ["Terminal", "reporting"]


class Terminal:
    """Standard output as words and tables, or as one JSON object; notes, progress and errors go to standard error."""

    def __init__(self, json: bool) -> None:
        self.json = json
        self.out = Console(highlight=False, quiet=json)
        self.err = Console(highlight=False, stderr=True)

    def say(self, thing: Any = "", style: str = "") -> None:
        """Shows a text or a table, unless the output is JSON."""
        if isinstance(thing, str):
            # Names of files and columns may look like rich's markup, and must not be broken in two.
            thing = Text(thing, style)
        self.out.print(thing, soft_wrap=isinstance(thing, Text))

    def note(self, text: str) -> None:
        """Tells what a person should know, on standard error."""
        self.err.print(Text.assemble(("note: ", "yellow"), text), soft_wrap=True)

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
        self.err.print(Text.assemble((label, "bold red"), text), soft_wrap=True)


@contextmanager
def reporting(json: bool, debug: bool) -> Iterator[Terminal]:
    """A command runs within: whatever it raises becomes one line and an exit code; `debug` shows the traceback too."""
    terminal = Terminal(json)
    logging.getLogger("autogp.interrupts").disabled = True  # told below
    with warnings.catch_warnings(), _terminable():
        warnings.showwarning = lambda message, *_: terminal.note(" ".join(str(message).split()))
        try:
            yield terminal
            sys.stdout.flush()
        except (typer.Exit, typer.BadParameter, BrokenPipeError):
            raise
        except KeyboardInterrupt as stop:
            terminal.fail(str(stop) or "interrupted", label="")
            raise typer.Exit(getattr(stop, "exit_code", 130)) from None
        except Exception as error:
            if debug:
                traceback.print_exc(file=sys.stderr)
            terminal.fail(_in_words(error))
            raise typer.Exit(1) from None


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
    text = " ".join(str(error).split())
    if isinstance(error, expected):
        return text
    return f"unexpected {type(error).__name__}: {text} (--debug shows where)"


def _plain(value: Any) -> Any:
    """As JSON has it: numbers of numpy become Python's, and those that are not finite null."""
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value
