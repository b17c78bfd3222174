"""One training step: statistics of a batch, which are sums over its rows, and what is done with them.

Statistics of two parts of a batch, added, are those of the whole: several processes can share a batch, add up what each
has found, and apply the same update.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.linalg import LinAlgError  # pyright: ignore[reportAttributeAccessIssue]

from autogp.likelihoods import InfiniteLOOError, Likelihood
from autogp.linalg import NotPositiveDefiniteError
from autogp.model import Marginals, SparseGP, condition
from autogp.objectives import ROWS, expected_log_prob, log_leave_one_out
from autogp.posteriors import LARGE, Held, Natural, Sites, Unwhitened
from autogp.training.optimisers import Optimiser

__all__ = ["FAILURES", "Batch", "NonFiniteError", "Statistics", "apply", "draw", "gradient_statistics", "gradients_of",
           "natural_statistics"]  # fmt: skip

VALUE_SAMPLES = 10


class NonFiniteError(ArithmeticError):
    """A step whose value or gradient is not finite; nothing was changed."""


FAILURES = (NonFiniteError, NotPositiveDefiniteError, InfiniteLOOError, LinAlgError)  # of a step: it is skipped


class Batch(NamedTuple):
    """Rows, their checked targets, what each counts (num_data / B times its own weight), and Monte Carlo noise.

    B is the size of the whole batch, also where this is a part of one.
    """

    x: Tensor  # [B, ...], as `model.embed` takes them
    y: Tensor
    weights: Tensor  # [B]
    noise: Tensor | None = None  # [S, K, B, Q]; none where every expectation has a rule
    monte_carlo: bool = False  # by the noise also where there is a rule

    def part(self, rows: slice) -> "Batch":
        noise = None if self.noise is None else self.noise[:, :, rows]
        return Batch(self.x[rows], self.y[rows], self.weights[rows], noise, self.monte_carlo)


@dataclass(frozen=True)
class Statistics:
    """What a step has to know of a batch. All but the last two fields are sums over rows."""

    value: Tensor  # of the objective's data term
    score: Tensor  # leave-one-out where that is the score of a state, else the value
    gradients: list[Tensor]  # of minus the data term, by the parameters that learn
    sites: Sites | None  # for the natural gradient of q
    prior: Tensor  # what q and Kzz alone add to the value
    prior_gradients: list[Tensor] | None  # of minus that

    def __add__(self, other: "Statistics") -> "Statistics":
        return Statistics(
            self.value + other.value,
            self.score + other.score,
            [mine + theirs for mine, theirs in zip(self.gradients, other.gradients, strict=True)],
            None if self.sites is None or other.sites is None else self.sites + other.sites,
            self.prior,
            self.prior_gradients,
        )


def natural_statistics(
    model: SparseGP, batch: Batch, objective: str, parameters: Sequence[nn.Parameter], q: Natural, scored: bool = False
) -> Statistics:
    """For a step in which q follows the ELBO by a natural gradient, and `parameters` the objective.

    In whitened coordinates KL(q || p) depends on q alone, so alpha and beta, the derivatives of the data term by the
    means and variances of q(f), are all that both updates need.
    """
    likelihood = model.likelihood
    large = q.shift.shape[-1] >= LARGE
    prepared = model.prepare(q.factored(model.dtype) if large else q)
    basis, prior_variance = model.basis(model.embed(batch.x), prepared)
    marginals = condition(basis, prior_variance, prepared.moments)
    constant = Marginals(*(part.detach().contiguous() for part in marginals))
    noise = _noise(likelihood, batch, "elbo")
    alpha, beta = likelihood.expected_derivatives(constant.mean, constant.variance, batch.y, noise)
    prior = constant.mean.new_zeros(())
    if objective == "elbo":
        # The likelihood's own parameters see the value, for which a few of the samples are enough unless there are
        # such parameters; the others see alpha and beta, which are less noisy.
        if noise is not None and not any(parameter.requires_grad for parameter in likelihood.parameters()):
            noise = noise[:VALUE_SAMPLES]
        value = (batch.weights * expected_log_prob(likelihood, constant, batch.y, noise)).sum()
        prior = -prepared.moments.kl()
        through_marginals = alpha * marginals.mean + beta * marginals.variance
        followed = value + (batch.weights[:, None] * through_marginals).sum()
    else:
        value = (
            batch.weights * ROWS[objective](likelihood, marginals, batch.y, _noise(likelihood, batch, objective))
        ).sum()
        followed = value
    return Statistics(
        value.detach(),
        _score(likelihood, constant, batch, value.detach(), scored),
        gradients_of(-followed, parameters),
        Sites.of_rows(basis.detach(), constant.mean[0], alpha[0], beta[0], batch.weights),
        prior,
        None,
    )


def gradient_statistics(
    model: SparseGP,
    batch: Batch,
    objective: str,
    parameters: Sequence[nn.Parameter],
    q: Held | Unwhitened | None = None,
    prior_share: float = 0.0,
    scored: bool = False,
) -> Statistics:
    """For a step by ordinary gradients: of the objective, and for the posterior's own parameters of the ELBO.

    For mixtures and diagonal posteriors, for the paper's own settings, and with `q` for phases that hold q(u) or where
    its parameters are those of q(u). Where it is held the objective that is followed, but not the value, grows by
    `prior_share` times E_q[log p(u)].
    """
    likelihood = model.likelihood
    prepared = model.prepare(q)
    moments = prepared.moments
    marginals = model.marginals(model.embed(batch.x), prepared)
    rows = ROWS[objective](likelihood, marginals, batch.y, _noise(likelihood, batch, objective))
    value = (batch.weights * rows).sum()
    posterior = q if isinstance(q, nn.Module) else model.posterior
    own = {id(parameter) for parameter in posterior.parameters()}
    learnt = [number for number, parameter in enumerate(parameters) if id(parameter) in own]
    prior, prior_gradients = moments.mean.new_zeros(()), None
    if learnt or objective == "elbo":
        kl = moments.kl()
        prior_gradients = gradients_of(kl, parameters, retain=True)
        prior = -kl.detach() if objective == "elbo" else prior
    elif isinstance(q, Held) and prior_share:
        log_prior = q.moments(prepared.inverse).log_prior(prepared.gram)
        prior_gradients = gradients_of(-prior_share * log_prior, parameters, retain=True)
    follows_elbo = bool(learnt) and objective != "elbo"  # q does, the others do not
    gradients = gradients_of(-value, parameters, retain=follows_elbo)
    if follows_elbo:
        rows = expected_log_prob(likelihood, marginals, batch.y, _noise(likelihood, batch, "elbo"))
        data_term = (batch.weights * rows).sum()
        for number, gradient in zip(learnt, gradients_of(-data_term, [parameters[i] for i in learnt]), strict=True):
            gradients[number] = gradient
    constant = Marginals(*(part.detach() for part in marginals))
    score = _score(likelihood, constant, batch, value.detach(), scored)
    return Statistics(value.detach(), score, gradients, None, prior, prior_gradients)


def apply(
    statistics: Statistics,
    optimiser: Optimiser,
    rates: Sequence[float],
    q: Natural | None = None,
    natural_rate: float = 1.0,
) -> tuple[float, float]:
    """Moves the optimiser's parameters and q, and gives the value and the score before that.

    Raises NonFiniteError, before anything is changed, where the statistics are not finite.
    """
    gradients = statistics.gradients
    if statistics.prior_gradients is not None:
        gradients = [mine + prior for mine, prior in zip(gradients, statistics.prior_gradients, strict=True)]
    parts = [statistics.prior, statistics.value, statistics.score, *(gradient.sum() for gradient in gradients)]
    if statistics.sites is not None:
        parts.append(statistics.sites.shift.sum())
    prior, value, score, *rest = torch.stack([part.double() for part in parts]).tolist()  # waits for the device, once
    if not all(map(math.isfinite, (prior, value, score, sum(rest)))):
        raise NonFiniteError("the step's value or gradient is not finite")
    if q is not None and statistics.sites is not None:
        q.blend(statistics.sites, natural_rate)
    optimiser.step(gradients, rates)
    return value + prior, score


def draw(model: SparseGP, num_rows: int, samples: int, generator: torch.Generator) -> Tensor:
    """Standard normal noise, [S, K, B, Q]; rows vary fastest in memory, as in the means and variances of q(f)."""
    shape = (samples, len(model.posterior.logits), model.likelihood.num_latents, num_rows)
    return torch.randn(shape, dtype=model.dtype, device=model.device, generator=generator).mT


def _noise(likelihood: Likelihood, batch: Batch, objective: str) -> Tensor | None:
    return batch.noise if batch.monte_carlo or objective in likelihood.sampled else None


@torch.no_grad()
def _score(likelihood: Likelihood, marginals: Marginals, batch: Batch, value: Tensor, scored: bool) -> Tensor:
    if not scored:
        return value
    rows = log_leave_one_out(likelihood, marginals, batch.y, _noise(likelihood, batch, "loo"))
    return (batch.weights * rows).sum()


def gradients_of(loss: Tensor, parameters: Sequence[nn.Parameter], retain: bool = False) -> list[Tensor]:
    if not (parameters and loss.requires_grad):
        return [torch.zeros_like(parameter) for parameter in parameters]
    return list(torch.autograd.grad(loss, parameters, retain_graph=retain, allow_unused=True, materialize_grads=True))
