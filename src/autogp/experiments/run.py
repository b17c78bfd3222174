"""One run of an experiment: from the data set to a record of what came out."""

import math
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from autogp.data import ArraySource, Subset, TargetScaler, summarise
from autogp.data.sources import as_tensor, evenly_spaced
from autogp.datasets import Dataset
from autogp.estimators.inputs import is_source
from autogp.experiments.base import Run
from autogp.experiments.record import environment, plain, read_json, write_json
from autogp.experiments.scores import scores
from autogp.metrics import class_scores, number_scores
from autogp.training import Progress
from autogp.training.feed import device_named
from autogp.training.step import FAILURES

__all__ = ["data_part", "execute", "hold_out"]

MOST_HELD_OUT = 10_000
FIRST_POINT, LATER_POINTS = 5.0, 1.2  # of a curve over time: seconds, and times the last point's


def hold_out(data: Dataset, seed: int) -> Dataset:
    """A fifth of the training rows, at most 10,000, in the place of the test rows, for choosing settings.

    Where rows are variants of originals, these are originals, and no variant of theirs is among the rows to learn from.
    """
    originals = len(data.x_train) // data.variants
    order = np.random.default_rng(seed).permutation(originals)
    held = min(originals // 5, MOST_HELD_OUT)
    test, train = np.sort(order[:held]), np.sort(order[held:])
    train = (originals * np.arange(data.variants)[:, None] + train).ravel()
    return replace(
        data,
        x_train=Subset(data.x_train, train) if is_source(data.x_train) else data.x_train[train],
        y_train=data.y_train[train],
        x_test=data.x_train.rows(test)[0] if is_source(data.x_train) else data.x_train[test],
        y_test=data.y_train[test],
    )


def execute(
    run: Run,
    data: Dataset,
    *,
    time_budget: float | None = None,
    folder: Path | None = None,
    verbose: bool | str = False,
) -> dict[str, Any]:
    """Trains on the training rows, scores the test rows, and tells everything about it as plain JSON.

    Checkpoints are kept in `folder`, and the run goes on from the newest there.
    """
    experiment = run.experiment
    if run.is_peer:
        found = experiment.peers[run.preset_name].measure(data, run.samples, run.seed)
    else:
        found = _train(run, data, time_budget, folder, verbose)
    published = experiment.published.get((run.kernel, run.objective, run.inducing))
    return plain(
        {
            "kind": "autogp experiment",
            "name": run.name,
            "experiment": experiment.name,
            "title": experiment.title,
            "data": data_part(run, data),
            "preset": run.preset_name,
            "objective": run.objective,
            "kernel": run.kernel,
            "inducing": run.inducing,
            "samples": run.samples,
            "seed": run.seed,
            "metrics": experiment.metrics,
            "note": experiment.note,
            "published": published if data.name in experiment.published_on else None,
            "curve": None,
            **environment(device_named("auto")),
            **found,
        }
    )


def data_part(run: Run, data: Dataset) -> dict[str, Any]:
    """What a record says of the rows."""
    return {
        "set": run.data,
        "name": data.name,
        "train": len(data.x_train),
        "test": len(data.x_test),
        "inputs": data.x_test.shape[1],
    }


def _train(
    run: Run, data: Dataset, time_budget: float | None, folder: Path | None, verbose: bool | str
) -> dict[str, Any]:
    """The parts of a record that are about our own training."""
    started, processor = time.monotonic(), time.process_time()
    by_time, followed = run.experiment.curve == "time", run.experiment.presets[run.preset_name].curve
    pace, curve = Pace(), Curve(data, folder, by_time) if run.experiment.curve and followed else None
    callbacks = [pace.stop, *([] if curve is None else [curve]), pace.start]
    estimator = run.experiment.estimator(
        **run.arguments(time_budget), checkpoint=None if folder is None else str(folder), verbose=verbose
    )
    estimator.fit(data.x_train, data.y_train, callbacks=callbacks)
    fitted = time.monotonic()
    found = scores(estimator, data.x_test, data.y_test)
    model, rows = estimator.model_, estimator.history_
    return {
        "call": run.call(time_budget),
        "model": {
            "kernel": type(model.kernel).__name__,
            "likelihood": type(model.likelihood).__name__,
            "latents": model.likelihood.num_latents,
            "inducing": model.inducing_inputs.shape[-2],
        },
        "settings": asdict(estimator.settings_),
        "scores": found,
        "seconds": {
            "start": max(0.0, fitted - started - rows[-1]["seconds"]),
            "training": rows[-1]["seconds"],  # of all sittings, if it was resumed
            "update": pace.median(),
            "scoring": time.monotonic() - fitted,
            "processor": time.process_time() - processor,  # for all of this, of this sitting
        },
        "epochs": len(rows),
        "best_epoch": estimator.best_epoch_,
        "stopped": estimator.stopped_,
        "history": _columns(rows),
        "curve": None if curve is None else curve.points,
        "curve_over": None if curve is None else run.experiment.curve,
    }


def _columns(rows: list[dict[str, Any]]) -> dict[str, list]:
    """The course of a training by column, of 200 epochs at most."""
    kept = [rows[number] for number in evenly_spaced(len(rows), 200)]
    return {name: [row[name] for row in kept] for name in kept[0]}


class Pace:
    """The processor's time for one update, without what is done between updates."""

    def __init__(self):
        self.started: float | None = None
        self.seconds: list[float] = []

    def start(self, progress: Progress) -> None:
        self.started = time.process_time()

    def stop(self, progress: Progress) -> None:
        if self.started is not None:
            self.seconds.append(time.process_time() - self.started)

    def median(self) -> float:
        return float(np.median(self.seconds)) if self.seconds else math.nan


class Curve:
    """The scores after each epoch, or as time goes on; kept beside the checkpoints, so that a resumed run has all.

    Time counts from here, so that features and everything else before the first step are part of it.
    """

    def __init__(self, data: Dataset, folder: Path | None, by_time: bool = False):
        self.by_time = by_time
        self.created, self.before = time.monotonic(), 0.0  # seconds before the first step
        self.x, self.y = as_tensor(data.x_test), data.y_test
        self.scaler = None
        if data.y_train.dtype.kind == "f":
            self.scaler = TargetScaler.from_summary(summarise(ArraySource(data.x_train, data.y_train)))
        self.path = None if folder is None else folder / "curve.json"
        self.points: list[dict[str, float]] = (read_json(self.path) or []) if self.path else []

    def __call__(self, progress: Progress) -> None:
        epoch = progress.epoch if self.by_time else round(progress.epoch)
        self.before = self.before or time.monotonic() - self.created
        self.points = [point for point in self.points if point["epoch"] < progress.epoch]  # later ones come again
        last = self.points[-1]["seconds"] - self.before if self.points else 0.0
        due = progress.seconds >= max(FIRST_POINT, LATER_POINTS * last) or progress.step == progress.total_steps
        if not (due if self.by_time else progress.epoch_end):
            return
        try:
            mean = progress.predictor().predict(self.x).mean.double().cpu()
        except FAILURES:  # training goes back by itself
            return
        if self.scaler is None:
            each = mean.numpy()
            found = class_scores(self.y, np.hstack([1 - each, each]) if each.shape[1] == 1 else each)
        else:
            found = number_scores(self.y, self.scaler.inverse_mean(mean))
        self.points.append({"epoch": epoch, "seconds": self.before + progress.seconds, **found})
        if self.path is not None:
            write_json(self.path, plain(self.points))
