"""Rows that arrive one batch after the other: each updates q once, and need not be kept."""

import torch
from torch import Tensor

from autogp.model import SparseGP
from autogp.posteriors import Natural
from autogp.training.settle import Block, settle
from autogp.training.step import Batch

__all__ = ["absorb"]

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
