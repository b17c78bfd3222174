"""Two classes, through the logistic function or the normal distribution function."""

import math

import torch
from torch import Tensor
from torch.nn import functional

from autogp.likelihoods.base import Elementwise, check_real_targets

__all__ = ["Bernoulli"]


class Bernoulli(Elementwise):
    """p(y_p = 1 | f_p) = sigmoid(f_p) (`link="logit"`) or Phi(f_p) (`link="probit"`); targets are 0 and 1.

    >>> import torch
    >>> Bernoulli().log_prob(torch.zeros(1, 1), torch.ones(1, 1)).exp().item()
    0.5
    """

    def __init__(self, num_outputs: int = 1, link: str = "logit"):
        super().__init__(num_outputs)
        if link not in ("logit", "probit"):
            raise ValueError(f"link must be 'logit' or 'probit', got {link!r}")
        self.link = link

    def log_density(self, f: Tensor, y: Tensor) -> Tensor:
        log_cdf = functional.logsigmoid if self.link == "logit" else torch.special.log_ndtr
        return log_cdf((2 * y - 1) * f)

    def log_expected_density(self, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        if self.link == "logit":
            return super().log_expected_density(mean, variance, y)
        return torch.special.log_ndtr((2 * y - 1) * mean / (1 + variance).sqrt())

    def log_expected_inverse_density(self, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        margin = (2 * y - 1) * mean
        if self.link == "logit":
            return functional.softplus(0.5 * variance - margin)  # E[1 + exp(-margin)]
        return _log_expected_inverse_ndtr(margin, variance)

    def conditional_moments(self, f: Tensor) -> tuple[Tensor, Tensor]:
        p = torch.sigmoid(f) if self.link == "logit" else torch.special.ndtr(f)
        return p, p * (1 - p)

    def predictive_moments(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        if self.link == "logit":
            p = super().predictive_moments(mean, variance)[0]
        else:
            p = torch.special.ndtr(mean / (1 + variance).sqrt())
        return p, p * (1 - p)

    def check_targets(self, y: Tensor) -> Tensor:
        y = check_real_targets(y, self.num_latents, missing=True)
        bad = (y != 0) & (y != 1) & ~torch.isnan(y)
        if bad.any():
            row, column = bad.nonzero()[0].tolist()
            raise ValueError(f"y must hold labels 0 and 1, got {y[row, column].item():g} at row {row}")
        return y


def _log_expected_inverse_ndtr(mean: Tensor, variance: Tensor, num_nodes: int = 256) -> Tensor:
    """log E[1 / Phi(f)], f ~ N(mean, variance): infinite from variance 1 on, where 1 / Phi outgrows the Gaussian.

    The integrand decays as a Gaussian on the right and as one of variance v / (1 - v) on the left; the trapezoidal
    rule over both tails converges exponentially.
    """
    finite = variance < 1
    v = torch.where(finite, variance, 0.5)
    low = torch.minimum(mean, mean / (1 - v)) - 10 * (v / (1 - v)).sqrt()
    high = mean + 10 * v.sqrt()
    t = torch.linspace(0, 1, num_nodes, dtype=mean.dtype, device=mean.device).reshape(-1, *(1,) * mean.ndim)
    f = low + (high - low) * t
    log_integrand = -0.5 * (f - mean).square() / v - 0.5 * (2 * math.pi * v).log() - torch.special.log_ndtr(f)
    value = torch.logsumexp(log_integrand, 0) + ((high - low) / (num_nodes - 1)).log()
    return torch.where(finite, value, math.inf)
