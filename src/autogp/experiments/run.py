"""One run of an experiment: from the data set to a record of what came out."""

import math
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.decomposition import PCA

from autogp.data import ArraySource, InputScaler, Source, TargetScaler, summarise
from autogp.data.sources import evenly_spaced
from autogp.datasets import Dataset
from autogp.experiments.base import Run
from autogp.experiments.record import environment, plain, read_json, write_json
from autogp.experiments.scores import scores
from autogp.kernels import RBF, ArcCosine, Kernel
from autogp.likelihoods import Likelihood
from autogp.model import SparseGP
from autogp.posteriors import MixturePosterior
from autogp.training import (
    History,
    Progress,
    Settings,
    start_inducing_inputs,
    start_kernel,
    train,
    train_exact,
)
from autogp.training.feed import Feed, device_of
from autogp.training.step import FAILURES

__all__ = ["data_part", "execute", "hold_out", "principal_components", "start_part"]

SUMMARY_ROWS = 20_000  # enough to scale the inputs by
FEW_COLUMNS = 50  # up to here float64: inducing inputs lie dense, and float32 loses what is between them
MOST_HELD_OUT = 10_000


def hold_out(data: Dataset, seed: int) -> Dataset:
    """A fifth of the training rows, at most 10,000, in the place of the test rows, for choosing settings."""
    order = np.random.default_rng(seed).permutation(len(data.x_train))
    held = min(len(order) // 5, MOST_HELD_OUT)
    test, train = np.sort(order[:held]), np.sort(order[held:])
    return replace(
        data,
        x_train=data.x_train[train],
        y_train=data.y_train[train],
        x_test=data.x_train[test],
        y_test=data.y_train[test],
    )


def execute(
    run: Run,
    data: Dataset,
    *,
    time_budget: float | None = None,
    folder: Path | None = None,
    resume: bool = False,
    verbose: bool | str = False,
) -> dict[str, Any]:
    """Trains on the training rows, scores the test rows, and tells everything about it as plain JSON.

    Checkpoints are kept in `folder`; with `resume` the run goes on from the newest.
    """
    experiment = run.experiment
    if run.is_peer:
        found = experiment.peers[run.preset_name].measure(data, run.samples, run.seed)
    else:
        found = _train(run, data, time_budget, folder, resume, verbose)
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
            "published": published if data.name == experiment.published_on else None,
            "curve": None,
            **environment(device_of(Settings())),
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
        "inputs": data.x_train.shape[1],
    }


def start_part(run: Run) -> dict[str, Any]:
    """What a record says of where the model starts."""
    names = ("shared", "scaling", "components", "by_class", "variance", "lengthscale", "exact")
    return {name: getattr(run.preset, name) for name in names}


def _train(
    run: Run, data: Dataset, time_budget: float | None, folder: Path | None, resume: bool, verbose: bool | str
) -> dict[str, Any]:
    """The parts of a record that are about our own training."""
    started = time.monotonic()
    settings = run.settings(time_budget)
    if run.preset.components is not None:
        data = principal_components(data, run.preset.components)
    source, test = ArraySource(data.x_train, data.y_train), ArraySource(data.x_test, data.y_test)
    regression = data.y_train.dtype.kind == "f"
    summary = summarise(source, max_rows=SUMMARY_ROWS)
    input_scaler = InputScaler.from_summary(summary, run.preset.scaling)
    target_scaler = TargetScaler.from_summary(summary) if regression else None
    model = start_model(run, source, input_scaler)
    ready = time.monotonic()

    def judge(quick: bool) -> dict[str, float]:
        return scores(model, test, Feed(model, len(source), None, input_scaler, target_scaler), quick)

    pace = Pace()  # of the last phase
    curve = Curve(lambda: judge(quick=True), folder, resume) if run.experiment.curve else None
    callbacks = [pace.stop, *([] if curve is None else [curve]), pace.start]
    common: dict[str, Any] = {
        "input_scaler": input_scaler,
        "target_scaler": target_scaler,
        "callbacks": callbacks,
        "verbose": verbose,
    }
    history, before = History(), []
    if run.preset.exact:
        history = train_exact(model, source, replace(settings, objective="elbo"), **common)
    if not run.preset.exact or run.objective != "elbo":
        before = history.rows
        pace.forget()
        history = train(model, source, settings, folder=folder, resume=resume, **common)
    rows = [*before, *(_after(before[-1], row) for row in history.rows)] if before else history.rows
    trained = time.monotonic()
    found = judge(quick=False)
    return {
        "model": {
            "kernel": type(model.kernel).__name__,
            "likelihood": type(model.likelihood).__name__,
            "latents": model.likelihood.num_latents,
            "inducing": model.inducing_inputs.shape[-2],
            **start_part(run),
        },
        "settings": asdict(settings),
        "scores": found,
        "seconds": {
            "start": ready - started,
            "training": rows[-1]["seconds"],  # of all sittings, if it was resumed
            "update": pace.median(),
            "scoring": time.monotonic() - trained,
        },
        "epochs": len(rows),
        "best_epoch": len(before) + history.best_epoch,
        "stopped": history.stopped,
        "history": _columns(rows),
        "curve": None if curve is None else curve.points,
    }


def principal_components(data: Dataset, count: int) -> Dataset:
    """The data with that many principal components of the training inputs in place of the inputs."""
    projection = PCA(count, svd_solver="covariance_eigh")
    x_train = projection.fit_transform(data.x_train.astype(np.float32))
    x_test = projection.transform(data.x_test.astype(np.float32))
    return replace(data, x_train=x_train, x_test=x_test, input_names=())


def start_model(run: Run, source: Source, scaler: InputScaler) -> SparseGP:
    """The model before its first step."""
    preset = run.preset
    likelihood: Likelihood = (preset.likelihood or run.experiment.likelihood)()
    groups = 1 if preset.shared else likelihood.num_latents
    columns = len(scaler.shift)
    if preset.lengthscale is None:
        kernel = start_kernel(run.kernel, source, scaler, groups, preset.variance, run.seed)
    else:
        kernel = _kernel(run.kernel, groups, columns, preset.lengthscale, preset.variance)
    dtype = preset.precision or (torch.float64 if columns <= FEW_COLUMNS else torch.float32)
    z = start_inducing_inputs(source, run.inducing, scaler, run.seed, preset.by_class, dtype, groups)
    posterior = None
    if preset.settings.optimiser != "natural":
        posterior = MixturePosterior(likelihood.num_latents, z.shape[-2])
    model = SparseGP(kernel, likelihood, z, posterior)
    if preset.start is not None:
        preset.start(model)
    return model


def _kernel(name: str, groups: int, columns: int, lengthscale: float, variance: float) -> Kernel:
    """A kernel of the paper, started at one lengthscale for all inputs."""
    lengthscales = torch.full((groups, columns), lengthscale, dtype=torch.float64)
    variances = torch.full((groups,), variance, dtype=torch.float64)
    if name == "rbf":
        return RBF(lengthscales, variances)
    return ArcCosine(degree=1, depth=3, weight_variance=lengthscales**-2, variance=variances)


def _after(last: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    """A row of a history that goes on where another ended."""
    return row | {name: last[name] + row[name] for name in ("epoch", "step", "seconds")}


def _columns(rows: list[dict[str, Any]]) -> dict[str, list]:
    """The course of a training by column, of 200 epochs at most."""
    kept = [rows[number] for number in evenly_spaced(len(rows), 200)]
    return {name: [row[name] for row in kept] for name in kept[0]}


class Pace:
    """The processor's time for one update, without what is done between updates."""

    def __init__(self):
        self.started: float | None = None
        self.seconds: list[float] = []

    def forget(self) -> None:
        self.started = None
        self.seconds.clear()

    def start(self, progress: Progress) -> None:
        self.started = time.process_time()

    def stop(self, progress: Progress) -> None:
        if self.started is not None:
            self.seconds.append(time.process_time() - self.started)

    def median(self) -> float:
        return float(np.median(self.seconds)) if self.seconds else math.nan


class Curve:
    """The scores after each epoch; kept beside the checkpoints, so that a resumed run has them all."""

    def __init__(self, judge: Callable[[], dict[str, float]], folder: Path | None, resume: bool):
        self.judge = judge
        self.path = None if folder is None else folder / "curve.json"
        self.points: list[dict[str, float]] = (read_json(self.path) or []) if self.path and resume else []

    def __call__(self, progress: Progress) -> None:
        if not progress.epoch_end:
            return
        epoch = round(progress.epoch)
        self.points = [point for point in self.points if point["epoch"] < epoch]  # those after the last checkpoint
        try:
            found = self.judge()
        except FAILURES:  # the trainer goes back by itself
            return
        self.points.append({"epoch": epoch, "seconds": progress.seconds, **found})
        if self.path is not None:
            write_json(self.path, plain(self.points))
