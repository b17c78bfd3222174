"""The command `autogp fit`: a file becomes a model file."""

import math
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import typer

from autogp.cli.code import with_own_parts
from autogp.cli.models import facts
from autogp.cli.tasks import TaskFound, find_task, task_of
from autogp.cli.terminal import RESUME, Terminal
from autogp.cli.writing import ask_before_replacing, check_writable
from autogp.data import ArraySource, Labels, is_table, open_source
from autogp.data.addresses import table_files
from autogp.data.readers import Form, column_names
from autogp.estimators import GPClassifier, GPRegressor
from autogp.estimators.summary import describe
from autogp.features import Columns, Convolutional
from autogp.kernels import Kernel
from autogp.training.distributed import processes
from autogp.training.expression import terms_of
from autogp.training.start import KERNELS

__all__ = ["fit_file"]

MOST_NAMES = 12  # of inputs or classes, in one line


def fit_file(
    terminal: Terminal,
    data: str,
    targets: list[str],
    task: str,
    reading: dict[str, Any],
    image_shape: tuple[int, ...] | None,
    settings: dict[str, Any],
    out: Path,
    resume: bool,
    force: bool,
    exposure: str | None = None,
    order: list[str] | None = None,
    code: Path | None = None,
) -> None:
    """Trains and saves; `reading` are arguments of `open_source`, `settings` of the estimator, `exposure` is the column
    of the exposures of counts, `order` are all classes from the lowest to the highest, and `code` has classes that
    `settings` may name."""
    settings = with_own_parts(settings, code)
    _check_kernel(settings["kernel"])
    among, folder = processes(), out.with_name(out.name + ".training")
    among.from_first(lambda: _check_places(data, out, folder, resume, force))
    beside: dict[str, Any] = {}
    if exposure is None:
        source = _open(data, targets, reading)
    else:
        if len(targets) != 1 or task not in ("auto", "count"):
            raise typer.BadParameter("it is for one --target of counts", param_hint="--exposure")
        source, task = _open(data, [*targets, exposure], reading), "count"
        source.y, beside["exposure"] = source.y.T
        source.targets = targets
    found = find_task(source, task_of(settings.get("likelihood")) if task == "auto" else task)
    if order:
        found = _ordered(found, order)
    _tell(terminal, data, source, found)
    settings = settings | {"checkpoint": str(folder), "verbose": not terminal.json}
    if image_shape is not None:
        _check_shape(source, image_shape)
        settings["features"] = Convolutional(image_shape)
    if found.task == "classification":
        model: Any = GPClassifier(**settings)
    elif "class_weight" in settings:
        raise typer.BadParameter(f"there are no classes: the task is {found.task}", param_hint="--class-weight")
    else:
        usual: dict[str, Any] = {"likelihood": "negative_binomial" if found.task == "count" else "auto"}
        model = GPRegressor(**(usual | settings))
    try:
        model.fit(source, found.y, **beside)
        if among.first:
            model.save(out)
    except BaseException as error:
        saved = any(folder.rglob("step-*"))  # each phase has a folder of its own
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


def _check_kernel(kernel: str | Kernel) -> None:
    """Before the data are read; whether columns exist is seen with them."""
    try:
        if isinstance(kernel, str) and kernel not in ("auto", *KERNELS):
            terms_of(kernel, KERNELS)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--kernel") from None


def _check_places(data: str, out: Path, folder: Path, resume: bool, force: bool) -> None:
    check_writable(out, data)
    if int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")):  # torchrun goes on by itself after a worker has died
        return
    if resume and not folder.is_dir():
        raise ValueError(f"there is no interrupted training in {folder}: leave out --resume")
    if not resume and folder.exists():
        if not force:
            raise ValueError(
                f"{folder} holds an interrupted training: go on with --resume, or start again with --force (or delete "
                "the folder)"
            )
        shutil.rmtree(folder)
    ask_before_replacing(out, force)


def _open(data: str, targets: list[str], reading: dict[str, Any]) -> ArraySource:
    if not is_table(data):
        usual = {"ignore": [], "categorical": [], "decimal": None, "header": True, "drop_missing_targets": False}
        usual["cache"] = None
        wrong = [name for name, value in reading.items() if value != usual[name]]
        if wrong:
            option = {"header": "no-header", "drop_missing_targets": "drop-missing-target"}.get(wrong[0], wrong[0])
            raise ValueError(f"--{option} is for columns that have names; {data} has none")
        if len(targets) > 1:
            raise ValueError(f"several --target are for columns that have names; {data} has none")
        return open_source(data, targets[0] if targets else None)
    if not targets:
        names = _listed(column_names(table_files(data)[0], Form(header=reading["header"])))
        raise typer.BadParameter(f"which column is to be predicted? There are {names}", param_hint="--target")
    for target in targets:
        if target in reading["ignore"]:
            raise ValueError(f"--ignore or --id names {target!r}, the column that is to be predicted")
    return open_source(data, targets[0] if len(targets) == 1 else targets, among=processes(), **reading)


def _ordered(found: TaskFound, order: list[str]) -> TaskFound:
    """The task with classes in this order."""
    if not isinstance(found.y, Labels):
        raise typer.BadParameter(f"there are no classes: the task is {found.task}", param_hint="--order")
    classes = {str(label): label for label in found.y.classes}
    if sorted(classes) != sorted(order):
        raise typer.BadParameter(f"it must name each class once: {', '.join(map(repr, classes))}", param_hint="--order")
    return replace(found, y=replace(found.y, order=[classes[label] for label in order]))


def _check_shape(source: ArraySource, image_shape: tuple[int, ...]) -> None:
    columns = source.rows(np.zeros(1, np.int64))[0].shape[1]
    if math.prod(image_shape) != columns:
        shape = "x".join(map(str, image_shape))
        raise ValueError(f"--image-shape {shape} has {math.prod(image_shape):,} pixels, but the rows have {columns:,}")


def _tell(terminal: Terminal, data: str, source: ArraySource, found: TaskFound) -> None:
    """Says what was found and assumed, before the hours that training may take."""
    terminal.say(f"{data}: {len(source):,} rows")
    target = f"{found.task} of {', '.join(source.targets)}" if source.targets else found.task
    if found.task == "classification" and isinstance(found.y, np.ndarray):
        target += ", each of which a row has or has not"
    elif found.task == "classification":
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
