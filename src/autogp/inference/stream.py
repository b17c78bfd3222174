"""Rows that arrive one batch after the other: each updates q once, and need not be kept."""

import torch
from torch import Tensor

from autogp.model import SparseGP, condition
from autogp.posteriors import GaussianPosterior

__all__ = ["absorb"]

MOST_STEPS = 50
SETTLED = 1e-6  # of the change of q's mean in a step, beside its prior's standard deviation of 1


@torch.no_grad()
def absorb(model: SparseGP, x: Tensor, y: Tensor, weights: Tensor | None = None) -> None:
    """q becomes the posterior given what it knew and the new rows x [B, D], y; kernel and inducing inputs stay.

    What q knew stands where the prior does for a first batch: Lambda <- Lambda_old + A diag(-2 beta) A'. For Gaussian
    noise that is exact, and the order of the rows does not matter; else it is repeated until q settles.
    """
    posterior = model.posterior
    if not isinstance(posterior, GaussianPosterior):
        raise TypeError(f"new rows update a GaussianPosterior, not a {type(posterior).__name__}")
    y = model.likelihood.check_targets(y)
    y = y.to(x.device, x.dtype if y.is_floating_point() else y.dtype)
    weights = torch.ones(len(x), dtype=x.dtype, device=x.device) if weights is None else weights.to(x)
    old_precision, old_shift = posterior.precision.clone(), posterior.shift.clone()
    identity = torch.eye(old_shift.shape[-1], dtype=old_shift.dtype, device=old_shift.device)
    prepared = model.prepare()
    basis, prior_variance = model.basis(x, prepared)
    mean = prepared.moments.mean
    for step in range(MOST_STEPS):
        marginals = condition(basis, prior_variance, posterior.moments(prepared.inverse))
        alpha, beta = model.likelihood.expected_derivatives(marginals.mean, marginals.variance, y)
        sites = GaussianPosterior(*old_shift.shape).to(old_shift.device)  # what the new rows alone would say
        sites.natural_step(basis, marginals.mean[0], alpha[0], beta[0], rate=1.0, weights=weights)
        rate = 1.0 if step == 0 else 0.5  # half a step where the likelihood is far from Gaussian
        posterior.precision.lerp_(old_precision + sites.precision - identity, rate)
        posterior.shift.lerp_(old_shift + sites.shift, rate)
        new = posterior.moments(prepared.inverse).mean
        if (new - mean).abs().max() < SETTLED:
            return
        mean = new
