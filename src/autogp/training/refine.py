"""Hyper-parameters by the predictive density where rows that were taken out of q show that it pays."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from autogp.data import Source, Subset, TargetScaler
from autogp.model import SparseGP
from autogp.posteriors import Natural, Sites
from autogp.training.feed import Feed, log_densities
from autogp.training.loop import train
from autogp.training.schedule import Phase, Settings
from autogp.training.state import History
from autogp.training.step import FAILURES
from autogp.training.stream import absorb_rows

__all__ = ["refine"]

HELD_SHARE, FEWEST_HELD, MOST_HELD = 0.1, 100, 2_000  # rows that decide,
FEW_SHARE = 0.25  # and of few rows at most this share
PRIORS = (0.1, 0.0)  # what E_q[log p(u)] counts; the second is tried only where the first was a gain
STANDARD_ERRORS = 3.0  # that a gain must exceed
ROWS_AT_ONCE = 1_000


def refine(
    model: SparseGP,
    source: Source,
    settings: Settings,
    epochs: float,
    strata: np.ndarray,
    target_scaler: TargetScaler | None,
    folder: Path | None = None,
    **options: Any,
) -> History | None:
    """Goes on from the ELBO's optimum by the predictive density with q(u) held, and keeps that only if it is a gain.

    A tenth of the rows, more of few, is taken out of q: Lambda - A diag(-2 beta) A', b - A (alpha - 2 beta mean). The
    hyper-parameters then follow the predictive density of the other rows for `epochs`. If the rows taken out gain more
    than three standard errors, they are absorbed into q again and the history is returned; else the model is as it was.

    `strata` are the classes of the first rows; the others are copies of these in the same order, and stay with them.
    """
    feed = Feed(model, len(source), None, target_scaler)
    held, kept = _split(strata, settings.seed)
    variants = len(strata) * np.arange(len(source) // len(strata))[:, None]
    tested, taken_out, kept = Subset(source, held), Subset(source, (variants + held).ravel()), (variants + kept).ravel()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    best, accepted, gain = None, None, 0.0
    try:
        cavity = _without(model, feed, taken_out)
        start = log_densities(model, cavity, feed, tested)
        for prior in PRIORS:
            model.load_state_dict(before)
            model.posterior.set_natural(cavity)
            phase = Phase("predictive", epochs, hold=True, prior=prior)
            plan = replace(settings, plan=[phase], patience=math.ceil(epochs / 2))
            place = None if folder is None else folder / f"predictive-{prior}"
            rest = {"target_scaler": target_scaler, "folder": place, "resume": place is not None, **options}
            history = train(model, Subset(source, kept), plan, validation=tested, **rest)
            found = log_densities(model, model.posterior, feed, tested) - start
            mean, error = found.mean().item(), found.std().item() / math.sqrt(len(found))
            if mean <= max(gain, STANDARD_ERRORS * error):
                break
            gain, accepted = mean, history
            best = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        model.load_state_dict(before if best is None else best)
        if best is not None:
            absorb_rows(model, feed, taken_out)
    except FAILURES:  # of numbers: the ELBO's optimum stands
        model.load_state_dict(before)
        return None
    return accepted


def _split(strata: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows that are held out, classes in proportion, and the others."""
    rows = len(strata)
    count = min(MOST_HELD, max(min(FEWEST_HELD, round(FEW_SHARE * rows)), round(HELD_SHARE * rows)))
    order = np.random.default_rng(seed).permutation(len(strata))
    order = order[np.argsort(strata[order], kind="stable")]  # by class, at random within
    chosen = np.zeros(len(strata), bool)
    chosen[order[np.linspace(0, len(order) - 1, count).astype(np.int64)]] = True
    return np.flatnonzero(chosen), np.flatnonzero(~chosen)


@torch.no_grad()
def _without(model: SparseGP, feed: Feed, rows: Source) -> Natural:
    """q with these rows taken out, by what they added at its optimum."""
    q = Natural.of(model.posterior)
    prepared = model.prepare(q)
    for start in range(0, len(rows), ROWS_AT_ONCE):
        batch = feed.read(rows, np.arange(start, min(start + ROWS_AT_ONCE, len(rows))))
        phi = model.embed(batch.x)
        basis, _ = model.basis(phi, prepared)
        marginals = model.marginals(phi, prepared)
        alpha, beta = model.likelihood.expected_derivatives(marginals.mean, marginals.variance, batch.y)
        sites = Sites.of_rows(basis, marginals.mean[0], alpha[0], beta[0], torch.ones_like(batch.weights))
        added = Natural.prior(*q.shift.shape, device=q.shift.device)
        added.blend(sites, rate=1.0)
        eye = torch.eye(q.shift.shape[-1], dtype=q.shift.dtype, device=q.shift.device)
        q = Natural(q.precision - (added.precision - eye), q.shift - added.shift)
    torch.linalg.cholesky(q.precision)  # raises where q did not stand at its optimum, and nothing proper is left
    return q
