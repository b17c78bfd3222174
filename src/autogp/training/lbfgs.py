"""Regression with Gaussian noise, all rows at once: q in closed form, and everything else by L-BFGS."""

import math
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from autogp.data import Source, TargetScaler
from autogp.features import apply_frozen
from autogp.model import Predictor, SparseGP, condition
from autogp.objectives import expected_log_prob
from autogp.posteriors import Natural, Sites
from autogp.training.feed import Feed, device_named, validation_score
from autogp.training.progress import Callback, Progress, showing
from autogp.training.schedule import Settings
from autogp.training.state import History
from autogp.training.step import FAILURES, Batch, gradients_of

__all__ = ["collapsed_elbo", "train_exact"]

ITERATIONS = 200
CORRECTIONS = 20  # pairs of steps and gradients that L-BFGS remembers
SETTLED = 1e-6  # nats per row
REFUSED = 1e10  # the loss where the kernel cannot be factorised: the line search comes back from there
FARTHEST = 30.0  # from their start for logarithms: without noise in the targets they would go on for ever


def collapsed_elbo(model: SparseGP, batch: Batch) -> tuple[Tensor, Natural]:
    """The ELBO maximised over q (Titsias, 2009), and the q where it is.

    Its gradient by all other parameters is that of the ELBO at this q, which is therefore held constant.
    """
    likelihood = model.likelihood
    if not likelihood.conjugate:
        raise TypeError(f"the best q has no closed form for the {type(likelihood).__name__} likelihood")
    q = Natural.prior(likelihood.num_latents, model.inducing_inputs.shape[-2], model.device)
    prepared = model.prepare(q)
    basis, prior_variance = model.basis(model.embed(batch.x), prepared)
    # One natural gradient step of size 1, from anywhere.
    start = batch.y.new_zeros(len(batch.y), likelihood.num_latents)
    alpha, beta = likelihood.expected_derivatives(start, torch.ones_like(start), batch.y)
    q.blend(Sites.of_rows(basis.detach(), start, alpha, beta, batch.weights), rate=1.0)
    moments = q.moments()
    rows = expected_log_prob(likelihood, condition(basis, prior_variance, moments), batch.y)
    return (batch.weights * rows).sum() - moments.kl(), q


def train_exact(
    model: SparseGP,
    source: Source,
    settings: Settings,
    *,
    weights: np.ndarray | None = None,
    validation: Source | None = None,
    target_scaler: TargetScaler | None = None,
    callbacks: Sequence[Callback] = (),
    verbose: bool | str = "auto",
) -> History:
    """Maximises the collapsed ELBO of a model with Gaussian noise; an epoch is an iteration of L-BFGS.

    The arguments are those of `train`. Of the settings, max_epochs (200 unless given), time_budget, patience and device
    count. Every iteration sees all rows, so there is no noise: up to some ten thousand rows it finds in a hundred
    passes what steps on batches do not find in thousands.
    """
    if settings.objective != "elbo":
        raise ValueError(f"all rows at once are for the objective 'elbo', got {settings.objective!r}: use train")
    feed = Feed(model.to(device_named(settings.device)), len(source), weights, target_scaler)
    for rows in (source, validation):
        if rows is not None:
            feed.check(rows)
    whole = model
    model, found = apply_frozen(model, *([source] if validation is None else [source, validation]))
    source, validation = found[0], None if validation is None else found[1]
    indices = np.arange(len(source))
    x, y = (torch.from_numpy(np.require(part, requirements=["C", "W"])) for part in source.rows(indices))
    batch = feed.batch(x, y, indices)
    learnt = {
        name: parameter
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and not name.startswith("posterior.")
    }
    parameters = list(learnt.values())
    max_iterations = settings.max_epochs or ITERATIONS
    started = time.monotonic()
    history = History()
    best: dict[str, Tensor] = {}
    last = np.zeros(0), math.nan  # where the loss was looked at last, and its value
    q = Natural.of(model.posterior)  # and the best q

    def loss(vector: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal last, q
        last = np.zeros(0), math.nan
        if np.abs(vector - start)[logarithms].max(initial=0.0) > FARTHEST:
            return REFUSED, np.zeros_like(vector)
        parts = torch.from_numpy(vector).split([parameter.numel() for parameter in parameters])
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.data.copy_(part.view_as(parameter))  # in its own precision
        try:
            value, q = collapsed_elbo(model, batch)
        except FAILURES:
            return REFUSED, np.zeros_like(vector)
        value = -value / feed.total_weight
        gradients = gradients_of(value, parameters) if parameters else []
        gradient = np.concatenate([np.zeros(0), *(each.cpu().numpy().ravel() for each in gradients)])
        if not math.isfinite(value.item() + gradient.sum()):
            return REFUSED, np.zeros_like(vector)
        last = vector.copy(), value.item()
        return last[1], gradient

    def record(vector: np.ndarray) -> None:
        """Keeps the best state, and says why to stop, if so."""
        value = last[1] if last[0].size and np.array_equal(vector, last[0]) else loss(vector)[0]
        score = -value if validation is None else validation_score(model, q, feed, validation)
        epoch, seconds = len(history.rows) + 1, time.monotonic() - started
        row = {"epoch": epoch, "step": epoch, "seconds": round(seconds, 3), "objective": settings.objective}
        history.rows.append(row | {"value": -value, "score": score, "learning_rate": 1.0, "skipped": 0})
        if score > history.best_score:
            history.best_epoch, history.best_score = epoch, score
            model.posterior.set_natural(q)
            best.update({name: tensor.detach().clone() for name, tensor in model.state_dict().items()})
        progress = _progress(history, len(source), max_iterations, settings.time_budget, lambda: whole.predictor(q))
        wishes = [callback(progress) for callback in (*callbacks, *display)]  # every callback is told
        if any(wishes):
            history.stopped = "callback"
        elif settings.time_budget is not None and seconds >= settings.time_budget:
            history.stopped = "time budget"
        elif settings.patience is not None and epoch - history.best_epoch >= settings.patience:
            history.stopped = "no better score"

    def end_iteration(intermediate_result) -> None:
        record(intermediate_result.x)
        if history.stopped:
            raise StopIteration  # L-BFGS takes it for the wish to stop

    with torch.no_grad():
        collapsed_elbo(model, batch)  # a start from which there is no way says so here
    start = np.concatenate([np.zeros(0), *(parameter.detach().cpu().numpy().ravel() for parameter in parameters)])
    logarithms = np.array([".log_" in name for name, each in learnt.items() for _ in range(each.numel())], bool)
    options = {"maxiter": max_iterations, "maxcor": CORRECTIONS, "ftol": SETTLED, "gtol": SETTLED}
    try:
        with showing(verbose) as display:
            status = 0
            if parameters:
                status = minimize(
                    loss, start, jac=True, method="L-BFGS-B", callback=end_iteration, options=options
                ).status
            if not history.rows:  # it starts at its best, or nothing but q can learn
                record(start)
            history.stopped = history.stopped or ("max_epochs" if status == 1 else "converged")
    finally:
        if best:
            model.load_state_dict(best)
    return history


def _progress(
    history: History, rows: int, max_iterations: int, time_budget: float | None, predictor: Callable[[], Predictor]
) -> Progress:
    last = history.rows[-1]
    seconds, epoch = last["seconds"], last["epoch"]
    left = seconds / epoch * (max_iterations - epoch)
    return Progress(
        step=epoch,
        total_steps=max_iterations,
        epoch=epoch,
        epoch_end=True,
        objective=last["objective"],
        value=last["value"],
        score=last["score"],
        rows_per_second=rows * epoch / max(seconds, 1e-9),
        seconds=seconds,
        seconds_left=left if time_budget is None else max(0.0, min(left, time_budget - seconds)),
        skipped=0,
        predictor=predictor,
    )
