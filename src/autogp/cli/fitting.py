"""The command `autogp fit`: a file becomes a model file."""

import math
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import typer

from autogp.cli.models import facts
from autogp.cli.tasks import TaskFound, find_task
from autogp.cli.terminal import RESUME, Terminal
from autogp.cli.writing import check_writable
from autogp.data import ArraySource, is_table, open_source
from autogp.data.readers import column_names
from autogp.estimators import GPClassifier, GPRegressor
from autogp.estimators.summary import describe
from autogp.features import Columns, Convolutional
from autogp.training.distributed import processes

__all__ = ["fit_file"]

MOST_NAMES = 12  # of inputs or classes, in one line


def fit_file(
    terminal: Terminal,
    data: Path,
    target: str | None,
    task: str,
    ignore: list[str],
    image_shape: tuple[int, ...] | None,
    settings: dict[str, Any],
    out: Path,
    resume: bool,
) -> None:
    """Trains and saves; `settings` are arguments of the estimator."""
    among, folder = processes(), out.with_name(out.name + ".training")
    among.from_first(lambda: _check_places(data, out, folder, resume))
    source = _open(data, target, ignore)
    found = find_task(source, task)
    _tell(terminal, data, source, found)
    settings = settings | {"checkpoint": str(folder), "verbose": not terminal.json}
    if image_shape is not None:
        _check_shape(source, image_shape)
        settings["features"] = Convolutional(image_shape)
    if found.task == "classification":
        model: Any = GPClassifier(**settings)
    else:
        model = GPRegressor(likelihood="negative_binomial" if found.task == "count" else "auto", **settings)
    try:
        model.fit(source, found.y)
        if among.first:
            model.save(out)
    except BaseException as error:
        saved = any(folder.glob("step-*"))
        if not saved and among.first:
            shutil.rmtree(folder, ignore_errors=True)
        if type(error) is KeyboardInterrupt:  # in the middle of a step
            raise KeyboardInterrupt(f"interrupted; {RESUME if saved else 'nothing was saved'}") from None
        raise
    if among.first:
        shutil.rmtree(folder, ignore_errors=True)

    terminal.say(describe(model))
    if settings.get("time_budget") and model.history_[-1]["seconds"] >= settings["time_budget"]:
        terminal.note(f"--time ended training after {_counted(model.history_[-1]['step'], 'step')}: more may do better")
    terminal.say(f"saved in {out}; next: autogp predict {out} NEW_DATA --out predictions.csv")
    notes = [*source.notes, found.assumption] if found.assumption else source.notes
    terminal.result({"model": str(out), "task": found.task, **facts(model), "notes": notes})


def _check_places(data: Path, out: Path, folder: Path, resume: bool) -> None:
    check_writable(out, data)
    if int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")):  # torchrun goes on by itself after a worker has died
        return
    if resume and not folder.is_dir():
        raise ValueError(f"there is no interrupted training in {folder}: leave out --resume")
    if not resume and folder.exists():
        raise ValueError(f"{folder} holds an interrupted training: go on with --resume, or delete the folder")


def _open(data: Path, target: str | None, ignore: list[str]) -> ArraySource:
    if ignore and not is_table(data):
        raise ValueError(f"--ignore is for columns that have names; {data} has none")
    if not is_table(data) or not data.is_file():
        return open_source(data, target)
    if target is None:
        names = _listed(column_names(data))
        raise typer.BadParameter(f"which column is to be predicted? There are {names}", param_hint="--target")
    if target in ignore:
        raise ValueError(f"--ignore names {target!r}, the column that is to be predicted")
    return open_source(data, target, ignore=ignore)


def _check_shape(source: ArraySource, image_shape: tuple[int, ...]) -> None:
    columns = source.rows(np.zeros(1, np.int64))[0].shape[1]
    if math.prod(image_shape) != columns:
        shape = "x".join(map(str, image_shape))
        raise ValueError(f"--image-shape {shape} has {math.prod(image_shape):,} pixels, but the rows have {columns:,}")


def _tell(terminal: Terminal, data: Path, source: ArraySource, found: TaskFound) -> None:
    """Says what was found and assumed, before the hours that training may take."""
    terminal.say(f"{data}: {len(source):,} rows")
    target = f"{found.task} of {', '.join(source.targets)}" if source.targets else found.task
    if found.task == "classification":
        labels = [str(label) for label in found.y.classes]
        target += f", {len(labels)} classes: {_listed(labels)}"
    terminal.say(f"  {target}" + (f" ({found.assumption})" if found.assumption else ""))
    if source.encoder is None:
        shape = source.image_shape
        images = "" if shape is None else f": images of {' x '.join(map(str, shape))}"
        terminal.say(f"  {_counted(source.rows(np.zeros(1, np.int64))[0].shape[1], 'input')}{images}")
    else:
        used, features = source.encoder.used, Columns.of(source.encoder)
        more = "" if features is None else f", encoded in {_counted(len(features.columns), 'column')}"
        terminal.say(f"  {_counted(len(used), 'input')}{more}: {_listed(used)}")
    for note in source.notes:
        terminal.say(f"  {note}")


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count:,} {noun}s"


def _listed(names: list[str]) -> str:
    return ", ".join(names[:MOST_NAMES]) + (", ..." if len(names) > MOST_NAMES else "")
