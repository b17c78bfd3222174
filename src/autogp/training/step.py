"""One pass over a batch: the posterior by a natural gradient, all other parameters by ordinary gradients."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.linalg import LinAlgError  # pyright: ignore[reportAttributeAccessIssue]

from autogp.likelihoods import InfiniteLOOError
from autogp.linalg import NotPositiveDefiniteError
from autogp.model import Marginals, SparseGP, condition
from autogp.moments import HeldMoments
from autogp.objectives import expected_log_prob, leave_out, log_predictive
from autogp.posteriors import LARGE, GaussianPosterior

__all__ = ["FAILURES", "OBJECTIVES", "Batch", "NonFiniteError", "StepResult", "draw", "gradient_step", "natural_step"]

VALUE_SAMPLES = 10
# The value of each row, [B], of (likelihood, marginals, y, noise).
OBJECTIVES = {"elbo": expected_log_prob, "loo": leave_out, "predictive": log_predictive}


class NonFiniteError(ArithmeticError):
    """A step whose value or gradient is not finite; nothing was changed."""


FAILURES = (NonFiniteError, NotPositiveDefiniteError, InfiniteLOOError, LinAlgError)  # of a step: it is skipped


class Batch(NamedTuple):
    """Scaled inputs, checked targets, and what each row counts: num_data / B, times its weight."""

    x: Tensor  # [B, D]
    y: Tensor
    weights: Tensor  # [B]


class StepResult(NamedTuple):
    value: Tensor  # the objective, an estimate of the total over all rows
    marginals: Marginals  # of the batch, before the step


def natural_step(
    model: SparseGP,
    batch: Batch,
    objective: str,
    rate: float,
    samples: int,
    generator: torch.Generator,
) -> StepResult:
    """q follows the evidence lower bound by a natural gradient of step size `rate`; the other parameters' gradients of
    the objective (of its negative: optimisers descend) are left in `.grad`.

    In whitened coordinates KL(q || p) depends on q alone, so alpha and beta, the gradients of the data term with
    respect to the marginals' means and variances, are all that both updates need.
    """
    posterior, likelihood = model.posterior, model.likelihood
    if not isinstance(posterior, GaussianPosterior):
        raise TypeError(f"natural gradients need a GaussianPosterior, got {type(posterior).__name__}")
    large = posterior.precision.shape[-1] >= LARGE
    dtype = torch.promote_types(batch.x.dtype, model.precision)  # of the basis
    prepared = model.prepare(posterior.factored(dtype) if large else None)
    basis, prior_variance = model.basis(batch.x, prepared)
    marginals = condition(basis, prior_variance, prepared.moments)
    noise = draw(likelihood.sampled & {"elbo", objective}, marginals, samples, generator)

    constant = Marginals(*(part.detach().contiguous() for part in marginals))
    alpha, beta = likelihood.expected_derivatives(constant.mean, constant.variance, batch.y, noise.get("elbo"))
    if objective == "elbo":
        # The likelihood's own parameters see the value, for which a few of the samples are enough unless there are
        # such parameters; the kernel's and Z see alpha and beta, which are less noisy.
        few = noise.get("elbo")
        if few is not None and not any(parameter.requires_grad for parameter in likelihood.parameters()):
            few = few[:VALUE_SAMPLES]
        rows = expected_log_prob(likelihood, constant, batch.y, few)
        value = (batch.weights * rows).sum() - prepared.moments.kl()
        if rows.requires_grad:
            (-value).backward()
        if marginals.mean.requires_grad:  # else kernel and inducing inputs are frozen
            weights = batch.weights[:, None]
            (-weights * (alpha * marginals.mean + beta * marginals.variance)).sum().backward()
    else:
        rows = OBJECTIVES[objective](likelihood, marginals, batch.y, noise.get(objective))
        value = (batch.weights * rows).sum()
        if value.requires_grad:
            (-value).backward()
    _check_finite(model, value, alpha, beta)
    posterior.natural_step(basis.detach(), constant.mean[0], alpha[0], beta[0], rate, batch.weights)
    return StepResult(value.detach(), constant)


def gradient_step(
    model: SparseGP, batch: Batch, objective: str, samples: int, generator: torch.Generator, prior: float = 0.0
) -> StepResult:
    """Ordinary gradients, left in `.grad`: for q those of the evidence lower bound, for all other parameters those of
    the objective (of their negatives: optimisers descend).

    For mixtures and diagonal posteriors, for the paper's own settings, and for phases that hold q(u) fixed; in these
    the objective grows by `prior` times E_q[log p(u)], which is not part of the value that is told.
    """
    prepared = model.prepare()
    marginals = model.marginals(batch.x, prepared)
    learnt = [parameter for parameter in model.posterior.parameters() if parameter.requires_grad]
    names = {"elbo", objective} if learnt else {objective}
    noise = draw(model.likelihood.sampled & names, marginals, samples, generator)
    rows = OBJECTIVES[objective](model.likelihood, marginals, batch.y, noise.get(objective))
    value = (batch.weights * rows).sum()
    if objective == "elbo":
        value = value - prepared.moments.kl()
    followed = value
    if prior and isinstance(prepared.moments, HeldMoments):
        followed = value + prior * prepared.moments.log_prior(prepared.gram)
    if followed.requires_grad:
        (-followed).backward(retain_graph=bool(learnt) and objective != "elbo")
    if learnt and objective != "elbo":
        rows = expected_log_prob(model.likelihood, marginals, batch.y, noise.get("elbo"))
        bound = (batch.weights * rows).sum() - prepared.moments.kl()
        for parameter, gradient in zip(learnt, torch.autograd.grad(-bound, learnt), strict=True):
            parameter.grad = gradient
    _check_finite(model, value)
    return StepResult(value.detach(), Marginals(*(part.detach() for part in marginals)))


def draw(names: frozenset[str], marginals: Marginals, samples: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Standard normal noise for the objectives that need it, the same for all: [S, K, B, Q]."""
    if not names:
        return {}
    mean = marginals.mean
    shape = (samples, *mean.shape)
    noise = torch.randn(shape, dtype=mean.dtype, device=mean.device, generator=generator)
    return dict.fromkeys(names, noise)


def _check_finite(model: SparseGP, *tensors: Tensor) -> None:
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    total = sum(tensor.detach().double().sum() for tensor in (*tensors, *gradients))
    if not torch.isfinite(torch.as_tensor(total)):
        raise NonFiniteError("the step's value or gradient is not finite")
