"""`autogp reproduce`: the runs of an experiment one after the other, then tables and figures."""

import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from fnmatch import fnmatch
from itertools import groupby
from pathlib import Path

from autogp.datasets import Dataset
from autogp.experiments import cifar10, digits, efficiency, mnist, rectangles, sarcos, savigp, uci
from autogp.experiments.base import Run
from autogp.experiments.record import plain, read_json, write_json
from autogp.experiments.run import execute, hold_out
from autogp.experiments.tables import make_tables, shown

__all__ = ["EXPERIMENTS", "reproduce"]

MODULES = (digits, mnist, rectangles, cifar10, sarcos, efficiency, uci)
EXPERIMENTS = {
    experiment.name: experiment
    for experiment in (*(module.EXPERIMENT for module in MODULES), savigp.WISCONSIN, savigp.MINING)
}
UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def reproduce(
    name: str,
    *,
    data: str | Path | None = None,
    preset: str = "ours",
    seed: int | None = None,
    time: float | str | None = None,
    resume: bool = False,
    validation: bool = False,
    only: str | None = None,
    download: bool = False,
    results: str | Path = "results",
    verbose: bool | str = True,
) -> list[Path]:
    """Runs an experiment and returns the files of its results; README.md beside them has the tables.

    A run that is stopped by a signal leaves a checkpoint in `results`/checkpoints. Data sets that are not at hand are
    named and left out; it is an error if none is.

    Arguments:
        name: digits, mnist, rectangles, cifar10, sarcos, efficiency, uci, wisconsin or mining.
        data: The folder of all data sets; else AUTOGP_DATA says.
        preset: "ours", or "paper" for the paper's own recipe where it has this experiment.
        seed: Of everything random; by default the experiment's own seeds.
        time: The longest that each run may train, in seconds or as in "20s", "30m" and "2h".
        resume: Keep the runs that are there already with the same settings, and go on with one that was stopped.
        validation: Judge by a part of the training rows instead of the test rows, to choose settings; results are
            then in the sub-folder `validation`.
        only: A pattern for the names of the runs, such as "*-loo-200-*".
        download: Whether to fetch data that is not at hand, where a publisher offers it.
        results: The folder to write to.
        verbose: As in `train`; False also says nothing of what came out.
    """
    if name not in EXPERIMENTS:
        raise ValueError(f"no experiment {name!r}; there are {', '.join(EXPERIMENTS)}")
    seconds = _seconds(time)
    folder = Path(results) / "validation" if validation else Path(results)
    runs = [run for run in EXPERIMENTS[name].runs(preset, seed) if only is None or fnmatch(run.name, only)]
    if not runs:
        example = EXPERIMENTS[name].runs(preset, seed)[0].name
        raise ValueError(f"no run of {name} has a name like {only!r}; one is {example}")
    written = []
    try:
        for run, rows in _with_data(runs, data, download, validation, verbose):
            path, checkpoints = folder / f"{run.name}.json", folder / "checkpoints" / run.name
            if not (resume and _is_finished(path, run, seconds)):
                record = execute(run, rows, time_budget=seconds, folder=checkpoints, resume=resume, verbose=verbose)
                write_json(path, record)
            shutil.rmtree(checkpoints, ignore_errors=True)
            written.append(path)
            if verbose:
                print(f"{run.name}: {shown(read_json(path))}", flush=True)
    finally:
        with suppress(OSError):  # there, and holding nothing
            (folder / "checkpoints").rmdir()
        if written:
            make_tables(folder)
    return written


def _with_data(
    runs: list[Run], folder: str | Path | None, download: bool, validation: bool, verbose: bool | str
) -> Iterator[tuple[Run, Dataset]]:
    """Each run with its rows; those of one data set follow each other, and it is read once."""
    absent: dict[str, FileNotFoundError] = {}  # by their messages: two sets may want the same file
    at_hand = False
    for (name, seed), group in groupby(runs, key=lambda run: (run.data, run.seed)):
        try:
            rows = runs[0].experiment.load(name, folder, seed, download)
        except FileNotFoundError as error:
            absent.setdefault(str(error), error)
            continue
        at_hand = True
        rows = hold_out(rows, seed) if validation else rows
        for run in group:
            yield run, rows
    if not at_hand:
        raise next(iter(absent.values()))
    if verbose:
        for message in absent:
            print(f"left out: {message}", flush=True)


def _is_finished(path: Path, run: Run, seconds: float | None) -> bool:
    record = read_json(path)
    if run.is_peer:
        return isinstance(record, dict)
    return isinstance(record, dict) and record.get("settings") == plain(asdict(run.settings(seconds)))


def _seconds(time: float | str | None) -> float | None:
    if time is None or isinstance(time, int | float):
        return time
    found = re.fullmatch(r"(\d+\.?\d*)\s*([smh]?)", time.strip())
    if not found:
        raise ValueError(f"time must be a number of seconds or as in '20s', '30m' and '2h', got {time!r}")
    return float(found[1]) * UNITS[found[2]]
