"""Few inducing inputs first, and some of the rows; then more of both, from where the few have led."""

import copy
import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor, nn

from autogp.data import Source, Subset, TargetScaler
from autogp.kernels import Kernel
from autogp.linalg import FIRST_JITTER
from autogp.model import SparseGP
from autogp.posteriors import Natural, Posterior
from autogp.training.feed import Feed
from autogp.training.fullbatch import converge, warn_unless_converged
from autogp.training.schedule import Settings
from autogp.training.start import sample_rows
from autogp.training.state import History

__all__ = ["FEWEST_INDUCING", "converge_growing", "grow", "missing"]

FEWEST_INDUCING, GROWTH = 50, 2  # at first, and by how much they are multiplied
ROWS_EACH = 40  # for each inducing input, as long as there are to be more
LEAST_GAIN = 0.02  # nats a row that more inducing inputs must promise,
LEAST_GAIN_OF_MANY = 0.005  # and with more rows than that for each of them, where noise takes up what they miss
ROUGHLY = 2.0  # how much sooner than at the end it stops where more inducing inputs may come
RIVAL_EPOCHS, RIVAL_GAIN = 25, 0.01  # of another kernel, and the nats a row by which it must be better
MANY_NUMBERS = 1_000_000  # in Kzx: from here on float32 pays,
LEAST_NOISE = 2e-3  # of the targets' variance, and of the prior's, for which it is enough
CANDIDATES = 2_000  # rows of which some become inducing inputs
LEAST_VARIANCE = 1e-9  # of the prior: a row with less is known but for jitter. Targets without noise need nearly that


def converge_growing(
    model: SparseGP,
    source: Source,
    settings: Settings,
    most: int,
    *,
    open_end: bool = True,
    rival: Callable[[Tensor, Tensor], Kernel] | None = None,
    weights: np.ndarray | None = None,
    target_scaler: TargetScaler | None = None,
    folder: Path | None = None,
    **options: Any,
) -> list[History]:
    """Maximises the ELBO of all rows by `converge`, with up to `most` inducing inputs.

    It begins with those of the model, and as many rows as they can tell apart: there a step is cheap, and the
    hyper-parameters come near to where they will end. With an `open_end` the inducing inputs become more only as long
    as more of them promise 0.02 nats a row, or 0.005 with more than 40 rows for each. A `rival` of the model's kernel,
    of the same lengthscales and variance, is tried with 100 inducing inputs, and takes its place where the ELBO gains
    0.01 nats a row by it.
    """
    histories: list[History] = []
    hurried = False  # no time is left: one iteration with all rows is the last
    while True:
        size, chosen = model.inducing_inputs.shape[-2], None
        if size < most and ROWS_EACH * size < len(source) // 2:
            chosen = np.sort(np.random.default_rng(settings.seed).choice(len(source), ROWS_EACH * size, replace=False))
        tried = rival is not None and size >= GROWTH * FEWEST_INDUCING
        roughly = ROUGHLY if size < most and not tried else 1.0
        if histories and size * (len(source) if chosen is None else len(chosen)) >= MANY_NUMBERS:
            _shorten(model)
        place = None if folder is None else folder / str(len(histories))
        rest = {"target_scaler": target_scaler, "folder": place, "resume": place is not None, **options}
        with warnings.catch_warnings():  # only the last part need converge
            warnings.simplefilter("ignore", ConvergenceWarning)
            history = converge(
                model,
                source if chosen is None else Subset(source, chosen),
                replace(settings, max_epochs=1) if hurried else _shared_out(settings, histories, 1 + (size < most)),
                weights=weights if weights is None or chosen is None else weights[chosen],
                roughly=roughly,
                **rest,
            )
        if hurried:
            history.stopped = histories[-1].stopped
        histories.append(history)
        if tried and rival is not None and history.stopped != "callback":
            part = source if chosen is None else Subset(source, chosen)
            own = weights if weights is None or chosen is None else weights[chosen]
            _try(model, rival, history, part, settings, weights=own, **rest)
            rival = None
        hurried = hurried or history.stopped == "callback" or _used_up(settings, histories)
        if size < most and not (open_end and (hurried or not _promising(model, source, target_scaler, settings.seed))):
            grow(model, source, most if hurried else min(most, GROWTH * size), settings.seed)
        if model.inducing_inputs.shape[-2] == size:
            if chosen is None and roughly == 1:
                warn_unless_converged(history, stacklevel=3)
                return histories
            most = size  # all rows to the end, and no more inducing inputs


def _try(
    model: SparseGP,
    rival: Callable[[Tensor, Tensor], Kernel],
    history: History,
    source: Source,
    settings: Settings,
    folder: Path | None,
    **options: Any,
) -> None:
    """Gives the model another kernel, from the hyper-parameters that it has, where the ELBO gains by it."""
    other = copy.deepcopy(model)
    other.kernel = rival(model.kernel.lengthscale.detach(), model.kernel.variance.detach())  # pyright: ignore
    other.kernel.priors = model.kernel.priors
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        place = None if folder is None else folder.with_name("rival")
        found = converge(other, source, replace(settings, max_epochs=RIVAL_EPOCHS), folder=place, **options)
    if max(row["value"] for row in found.rows) > max(row["value"] for row in history.rows) + RIVAL_GAIN:
        model.kernel = other.kernel
        model.load_state_dict(other.state_dict())


@torch.no_grad()
def _shorten(model: SparseGP) -> None:
    """Rows in float32, where the noise hides what that loses: a jitter of 1e-6 of the prior's variance."""
    noise = model.likelihood.shared_noise
    if noise is not None and noise.min() > LEAST_NOISE:
        variance = model.kernel.diag(model.inducing_inputs).max()
        if noise.min() > LEAST_NOISE * variance:
            model.jitter.fill_(FIRST_JITTER[torch.float32])


def _shared_out(settings: Settings, histories: list[History], share: int) -> Settings:
    """What is left of the limits, divided by `share` where more is to come."""
    if settings.max_epochs is not None:
        left = settings.max_epochs - sum(len(each.rows) for each in histories)
        settings = replace(settings, max_epochs=max(1, left // share))
    if settings.time_budget is not None:
        left = settings.time_budget - sum(each.rows[-1]["seconds"] for each in histories)
        settings = replace(settings, time_budget=max(1e-3, left / share))
    return settings


def _used_up(settings: Settings, histories: list[History]) -> bool:
    """Whether nothing is left of the limits."""
    epochs, seconds = sum(len(each.rows) for each in histories), sum(each.rows[-1]["seconds"] for each in histories)
    return epochs >= (settings.max_epochs or math.inf) or seconds >= (settings.time_budget or math.inf)


def _promising(model: SparseGP, source: Source, target_scaler: TargetScaler | None, seed: int) -> bool:
    many = len(source) > ROWS_EACH * model.inducing_inputs.shape[-2]
    promised = missing(model, source, Feed(model, len(source), None, target_scaler), seed)
    return promised >= (LEAST_GAIN_OF_MANY if many else LEAST_GAIN)


@torch.no_grad()
def missing(model: SparseGP, source: Source, feed: Feed, seed: int = 0) -> float:
    """About what the ELBO would gain by inducing inputs without end, nats a row.

    The variance that they leave at a row, r = k(x, x) - |L^-1 k(Z, x)|^2, costs the ELBO -beta r there, where beta is
    the derivative of E_q[log p(y | f)] by the variance of q(f); for Gaussian noise r / (2 noise).
    """
    random = np.random.default_rng(seed)
    batch = feed.read(source, np.sort(random.permutation(len(source))[:CANDIDATES]))
    marginals = model.marginals(model.embed(batch.x), model.prepare())
    _, beta = model.likelihood.expected_derivatives(marginals.mean, marginals.variance, batch.y)
    return (-beta[0] * marginals.residual.clamp_min(0)).sum(-1).mean().item()


@torch.no_grad()
def grow(model: SparseGP, source: Source, size: int, seed: int = 0) -> None:
    """Adds rows of the data to the inducing inputs until there are `size`, or until they tell all.

    Each is the row at which those before leave most variance of the prior, k(x, x) - |L^-1 k(Z, x)|^2 (greedy
    conditional variance: Burt, Rasmussen and van der Wilk, 2020). L is lower triangular, so that v = L^-1 u of the old
    ones stays what it was: with the new ones at their prior, q and its ELBO do not change.
    """
    found, _ = sample_rows(source, model.features, CANDIDATES, seed)
    x = torch.from_numpy(found).to(model.device, torch.float64)
    z = model.inducing_inputs
    basis, variance = model.basis(x, model.prepare())  # [G, M, R], [G, R]
    own = len(z) > 1  # inducing inputs for each latent function
    left, known = variance - basis.square().sum(1), basis.shape[1]
    basis = torch.cat([basis, basis.new_empty(len(basis), max(0, size - known), basis.shape[2])], 1)
    chosen: list[Tensor] = []
    while known < size:
        most = (left / variance if own else (left / variance).sum(0, keepdim=True)).max(-1)
        if (most.values < LEAST_VARIANCE).any():
            break
        row = x[most.indices][:, None]  # [1 or G, 1, D]
        place = most.indices[:, None].expand(len(basis), 1)
        column = basis[:, :known].gather(2, place[:, None].expand(-1, known, -1))
        explained = (column.mT @ basis[:, :known])[:, 0]  # of the covariance with each row, [G, R]
        rest = torch.maximum(left, LEAST_VARIANCE * variance)  # one function may know the row that another does not
        new = (model.kernel.gram(row, x)[:, 0] - explained) / rest.gather(1, place).sqrt()
        basis[:, known] = new
        left = (left - new.square()).clamp_min(0)
        chosen.append(row)
        known += 1
    if not chosen:
        return
    q, added = Natural.of(model.posterior), len(chosen)
    latents, old = q.shift.shape
    wider = Natural.prior(latents, old + added, model.device)
    wider.precision[:, :old, :old] = q.precision
    wider.shift[:, :old] = q.shift
    model.inducing_inputs = nn.Parameter(torch.cat([z, *chosen], 1))
    model.posterior = Posterior(latents, old + added).to(model.device)
    model.posterior.set_natural(wider)
