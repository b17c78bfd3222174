"""Rows that arrive one batch after the other: each updates q once, and need not be kept."""

import torch
from torch import Tensor

from autogp.model import SparseGP, condition
from autogp.moments import Moments
from autogp.objectives import expected_log_prob
from autogp.posteriors import Natural, Sites

__all__ = ["absorb"]

MOST_STEPS = 50
SETTLED = 1e-6  # of the change of q's mean in a step, beside its prior's standard deviation of 1
SMALLEST_RATE = 1e-12
ROUNDING = 1e-5  # of the ELBO, where rows are float32


@torch.no_grad()
def absorb(model: SparseGP, q: Natural, x: Tensor, y: Tensor, weights: Tensor | None = None) -> Natural:
    """The posterior given what q knew and the new rows x [B, ...], y; kernel and inducing inputs stay.

    What q knew stands where the prior does for a first batch: Lambda = Lambda_old + A diag(-2 beta) A'. For Gaussian
    noise that is exact, and the order of the rows does not matter; else it is repeated until q settles.
    """
    y = model.likelihood.check_targets(y)
    y = y.to(model.device, model.dtype if y.is_floating_point() else y.dtype)
    prepared = model.prepare(q)
    old = moments = prepared.moments
    basis, prior_variance = model.basis(model.embed(x), prepared)
    weights = basis.new_ones(len(y)) if weights is None else weights.to(basis)
    identity = torch.eye(q.shift.shape[-1], dtype=q.shift.dtype, device=q.shift.device)

    def elbo(moments: Moments) -> float:
        """E[log p(y)] - KL(q || what q knew)."""
        rows = expected_log_prob(model.likelihood, condition(basis, prior_variance, moments), y)
        moved = (moments.mean - old.mean)[0]
        quadratic = torch.einsum("qm,qmn,qn->", moved, q.precision, moved)
        trace = (q.precision * moments.covariance()[0]).sum() - moved.numel()
        kl = 0.5 * (trace + quadratic + (old.log_det - moments.log_det).sum())
        return ((weights * rows).sum() - kl).item()

    found, value = q, elbo(moments)
    for step in range(MOST_STEPS):
        marginals = condition(basis, prior_variance, moments)
        alpha, beta = model.likelihood.expected_derivatives(marginals.mean, marginals.variance, y)
        target = Natural.prior(*q.shift.shape, device=q.shift.device)  # what the new rows alone would say
        target.blend(Sites.of_rows(basis, marginals.mean[0], alpha[0], beta[0], weights), rate=1.0)
        rate = 1.0 if step == 0 else 0.5  # half a step where the likelihood is far from Gaussian
        while True:
            new = Natural(
                torch.lerp(found.precision, q.precision + target.precision - identity, rate),
                torch.lerp(found.shift, q.shift + target.shift, rate),
            )
            new_moments = new.moments()
            new_value = elbo(new_moments)
            if new_value >= value - ROUNDING * abs(value):
                break
            if rate < SMALLEST_RATE:  # nothing is better than where q is
                return found
            rate *= 0.5
        settled = (new_moments.mean - moments.mean).abs().max() < SETTLED
        found, moments, value = new, new_moments, new_value
        if settled:
            break
    return found
