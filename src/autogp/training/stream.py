"""Rows that arrive one batch after the other: each updates q once, and need not be kept."""

import torch
from torch import Tensor

from autogp.model import SparseGP, condition
from autogp.moments import Moments
from autogp.objectives import expected_log_prob
from autogp.posteriors import GaussianPosterior

__all__ = ["absorb"]

MOST_STEPS = 50
SETTLED = 1e-6  # of the change of q's mean in a step, beside its prior's standard deviation of 1
SMALLEST_RATE = 1e-12
ROUNDING = 1e-5  # of the bound, which rows in float32 have


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
    old = moments = prepared.moments
    basis, prior_variance = model.basis(x, prepared)

    def bound(moments: Moments) -> float:
        """E[log p(y)] - KL(q || what q knew)."""
        rows = expected_log_prob(model.likelihood, condition(basis, prior_variance, moments), y)
        moved = (moments.mean - old.mean)[0]
        quadratic = torch.einsum("qm,qmn,qn->", moved, old_precision, moved)
        trace = (old_precision * moments.covariance()[0]).sum() - moved.numel()
        kl = 0.5 * (trace + quadratic + (old.log_det - moments.log_det).sum())
        return ((weights * rows).sum() - kl).item()

    value = bound(moments)
    for step in range(MOST_STEPS):
        marginals = condition(basis, prior_variance, moments)
        alpha, beta = model.likelihood.expected_derivatives(marginals.mean, marginals.variance, y)
        sites = GaussianPosterior(*old_shift.shape).to(old_shift.device)  # what the new rows alone would say
        sites.natural_step(basis, marginals.mean[0], alpha[0], beta[0], rate=1.0, weights=weights)
        precision, shift = posterior.precision.clone(), posterior.shift.clone()
        rate = 1.0 if step == 0 else 0.5  # half a step where the likelihood is far from Gaussian
        while True:
            posterior.precision.copy_(precision).lerp_(old_precision + sites.precision - identity, rate)
            posterior.shift.copy_(shift).lerp_(old_shift + sites.shift, rate)
            new = posterior.moments(prepared.inverse)
            new_value = bound(new)
            if new_value >= value - ROUNDING * abs(value):
                break
            if rate < SMALLEST_RATE:  # nothing is better than where q is
                posterior.precision.copy_(precision)
                posterior.shift.copy_(shift)
                return
            rate *= 0.5
        if (new.mean - moments.mean).abs().max() < SETTLED:
            return
        moments, value = new, new_value
