"""Rows that arrive one batch after the other: each updates q once, and need not be kept."""

import numpy as np
import torch
from torch import Tensor

from autogp.data import Source
from autogp.model import SparseGP
from autogp.posteriors import Natural
from autogp.training.feed import Feed
from autogp.training.settle import Block, settle
from autogp.training.step import Batch

__all__ = ["absorb", "absorb_rows"]

ROWS = 1_000  # absorbed at a time
SETTLED = 1e-9  # nats a row


@torch.no_grad()
def absorb(model: SparseGP, q: Natural, x: Tensor, y: Tensor, weights: Tensor | None = None) -> Natural:
    """The posterior given what q knew and the new rows x [B, ...], y; kernel and inducing inputs stay.

    What q knew stands where the prior does for a first batch: Lambda = Lambda_old + A diag(-2 beta) A'. For Gaussian
    noise that is exact, and the order of the rows does not matter.
    """
    y = model.likelihood.check_targets(y)
    y = y.to(model.device, model.dtype if y.is_floating_point() else y.dtype)
    basis, prior_variance = model.basis(model.embed(x), model.prepare(q))
    weights = basis.new_ones(len(y)) if weights is None else weights.to(basis)
    block = Block(basis, prior_variance, Batch(x, y, weights))
    return settle(model.likelihood, [block], q, SETTLED * len(y)).q


def absorb_rows(model: SparseGP, feed: Feed, source: Source, weights: np.ndarray | None = None) -> None:
    """Updates the model's q with all rows of a source, some at a time."""
    q = Natural.of(model.posterior)
    for start in range(0, len(source), ROWS):
        indices = np.arange(start, min(start + ROWS, len(source)))
        batch = feed.read(source, indices)
        q = absorb(model, q, batch.x, batch.y, None if weights is None else torch.from_numpy(weights[indices]))
    model.posterior.set_natural(q)
