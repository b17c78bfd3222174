"""`autogp reproduce`: the runs of an experiment one after the other, then tables and figures."""

import logging
import shutil
from collections.abc import Iterator
from contextlib import suppress
from fnmatch import fnmatch
from itertools import groupby
from pathlib import Path

from autogp.datasets import Dataset
from autogp.experiments import cifar10, digits, efficiency, mnist, mnist8m, posteriors, rectangles, sarcos, savigp, uci
from autogp.experiments.base import Run
from autogp.experiments.call import code
from autogp.experiments.record import read_json, write_json
from autogp.experiments.run import data_part, execute, hold_out
from autogp.experiments.tables import make_tables, shown
from autogp.training.distributed import processes

__all__ = ["EXPERIMENTS", "reproduce"]

MODULES = (digits, mnist, mnist8m, rectangles, cifar10, sarcos, efficiency, posteriors, uci)
EXPERIMENTS = {
    experiment.name: experiment
    for experiment in (*(module.EXPERIMENT for module in MODULES), savigp.WISCONSIN, savigp.MINING)
}

logger = logging.getLogger("autogp")


def reproduce(
    name: str,
    *,
    data: str | Path | None = None,
    preset: str = "ours",
    seed: int | None = None,
    time: float | None = None,
    resume: bool = False,
    validation: bool = False,
    only: str | None = None,
    download: bool = False,
    results: str | Path = "results",
    dry_run: bool = False,
    verbose: bool | str = True,
) -> list[Path]:
    """Runs an experiment and returns the files of its results.

    They are `results`/`name`/RUN.json, one for each run; `results`/README.md has the tables. A run that is stopped by a
    signal leaves a checkpoint in `results`/`name`/checkpoints. Data sets that are not at hand are named and left out;
    it is an error if none is.

    Arguments:
        name: digits, mnist, mnist8m, rectangles, cifar10, sarcos, efficiency, posteriors, uci, wisconsin or mining.
        data: The folder of all data sets; else AUTOGP_DATA says.
        preset: "ours", or "paper" for the paper's own recipe where it has this experiment.
        seed: Of everything random; by default the experiment's own seeds.
        time: The longest that each of our runs may train, in seconds.
        resume: Keep the runs that are there already with the same settings, and go on with one that was stopped.
        validation: Score a part of the training rows instead of the test rows, to choose settings; results are then
            in `results`/validation.
        only: A pattern for the names of the runs, such as "*-loo-200-*".
        download: Whether to fetch data that is not at hand, where a publisher offers it.
        results: The folder to write to.
        dry_run: Only print each run as a Python program.
        verbose: As in `train`; False also says nothing of what came out.
    """
    if name not in EXPERIMENTS:
        raise ValueError(f"no experiment {name!r}; there are {', '.join(EXPERIMENTS)}")
    results = Path(results) / "validation" if validation else Path(results)
    folder = results / name
    runs = [run for run in EXPERIMENTS[name].runs(preset, seed) if only is None or fnmatch(run.name, only)]
    if not runs:
        example = EXPERIMENTS[name].runs(preset, seed)[0].name
        raise ValueError(f"no run of {name} has a name like {only!r}; one is {example}")
    if dry_run:
        print("\n\n".join(f"# {run.name}\n{run.call(time)}" for run in runs if not run.is_peer))
        return []
    if (among := processes()).count > 1:
        among.from_first(_refuse)
    written = []
    try:
        for run, rows in _with_data(runs, data, download, validation):
            path, checkpoints = folder / f"{run.name}.json", folder / "checkpoints" / run.name
            if checkpoints.exists() and not resume:
                raise ValueError(
                    f"{run.name} was stopped before its end: add --resume (resume=True) to go on, or delete "
                    f"{checkpoints} to start anew"
                )
            if not (resume and _is_finished(path, run, rows, time)):
                record = execute(run, rows, time_budget=time, folder=checkpoints, verbose=verbose)
                write_json(path, record)
            shutil.rmtree(checkpoints, ignore_errors=True)
            written.append(path)
            if verbose:
                print(f"{run.name}: {shown(read_json(path))}", flush=True)
    finally:
        with suppress(OSError):  # there, and holding nothing
            (folder / "checkpoints").rmdir()
        if written:
            make_tables(results)
    return written


def _refuse() -> None:
    raise ValueError(
        "reproduce is for one process, so that its times compare: start it without torchrun, or give the program that "
        "--dry-run prints to torchrun"
    )


def _with_data(
    runs: list[Run], folder: str | Path | None, download: bool, validation: bool
) -> Iterator[tuple[Run, Dataset]]:
    """Each run with its rows; those of one data set follow each other, and it is read once."""
    absent: dict[str, FileNotFoundError] = {}  # by their messages: two sets may want the same file
    at_hand = False
    for (name, seed, _), group in groupby(runs, key=lambda run: (run.data, run.seed, code(run.loader))):
        same = list(group)
        try:
            rows = same[0].load(folder, download)
        except FileNotFoundError as error:
            if str(error) not in absent and len({run.data for run in runs}) > 1:
                logger.warning("%s is left out: %s", name, error)
            absent.setdefault(str(error), error)
            continue
        at_hand = True
        rows = hold_out(rows, seed) if validation else rows
        for run in same:
            yield run, rows
    if not at_hand:
        raise next(iter(absent.values()))


def _is_finished(path: Path, run: Run, data: Dataset, seconds: float | None) -> bool:
    """Whether the file is of such a run on such rows."""
    record = read_json(path)
    if not isinstance(record, dict) or record.get("data") != data_part(run, data):
        return False
    return run.is_peer or record.get("call") == run.call(seconds)
