"""Two classes, through the logistic function or the normal distribution function."""

import math

import torch
from torch import Tensor
from torch.nn import functional

from autogp.likelihoods.elementwise import Elementwise
from autogp.likelihoods.quadrature import REACH, log_expectation
from autogp.likelihoods.targets import check_real_targets

__all__ = ["Bernoulli"]


class Bernoulli(Elementwise):
    """p(y_p = 1 | f_p) = sigmoid(f_p) (`link="logit"`) or Phi(f_p) (`link="probit"`); targets are 0 and 1.

    >>> import torch
    >>> Bernoulli().log_prob(torch.zeros(1, 1), torch.ones(1, 1)).exp().item()
    0.5
    """

    smooth = True

    def __init__(self, num_outputs: int = 1, link: str = "logit"):
        super().__init__(num_outputs)
        if link not in ("logit", "probit"):
            raise ValueError(f"link must be 'logit' or 'probit', got {link!r}")
        self.link = link
        self.num_classes = 2 if num_outputs == 1 else None
        self.finite_loo = link == "logit"

    def log_density(self, f: Tensor, y: Tensor) -> Tensor:
        log_cdf = functional.logsigmoid if self.link == "logit" else _log_ndtr
        return log_cdf((2 * y - 1) * f)

    def log_expected_density(self, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        margin = (2 * y - 1) * mean
        if self.link == "logit":
            return _log_expected_sigmoid(margin, variance)
        return _log_ndtr(margin / (1 + variance).sqrt())

    def log_expected_inverse_density(self, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        margin = (2 * y - 1) * mean
        if self.link == "logit":
            return functional.softplus(0.5 * variance - margin)  # E[1 + exp(-margin)]
        return _log_expected_inverse_ndtr(margin, variance)

    def conditional_moments(self, f: Tensor) -> tuple[Tensor, Tensor]:
        p = torch.sigmoid(f) if self.link == "logit" else torch.special.ndtr(f)
        return p, p * (1 - p)

    def predictive_moments(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        p = self.log_expected_density(mean, variance, torch.ones_like(mean)).exp()
        return p, p * (1 - p)

    def sample(self, f: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return torch.bernoulli(self.conditional_moments(f)[0], generator=generator)

    def describe(self, unit: Tensor | float = 1.0) -> str:
        return f"{type(self).__name__}, {self.link} link"

    def check_targets(self, y: Tensor) -> Tensor:
        y = check_real_targets(y, self.num_latents, missing=True)
        bad = (y != 0) & (y != 1) & ~torch.isnan(y)
        if bad.any():
            row, column = bad.nonzero()[0].tolist()
            raise ValueError(f"y must hold labels 0 and 1, got {y[row, column].item():g} at row {row}")
        return y


def _log_ndtr(x: Tensor) -> Tensor:
    """log Phi(x), in float64: torch's derivatives of it lose all digits below -100 in float32."""
    return torch.special.log_ndtr(x.double()).to(x.dtype)


def _log_expected_sigmoid(mean: Tensor, variance: Tensor) -> Tensor:
    """log E[sigmoid(f)], f ~ N(mean, variance): 1e-5 up to a standard deviation of 10.

    The integrand is largest between mean and mean + variance, where exp(f) has its share, but not beyond f = 0.
    """
    sd = variance.sqrt()
    mode = torch.minimum(sd, (-mean).clamp_min(0) / sd.clamp_min(torch.finfo(sd.dtype).tiny))
    return log_expectation(functional.logsigmoid, mean, variance, torch.full_like(mode, -REACH), mode + REACH)


def _log_expected_inverse_ndtr(mean: Tensor, variance: Tensor) -> Tensor:
    """log E[1 / Phi(f)], f ~ N(mean, variance): infinite from variance 1 on, where 1 / Phi outgrows the Gaussian.

    The integrand N(z; 0, 1) / Phi(mean + sd z) is log-concave. Where f < 0 it goes as a Gaussian around centre, of
    variance 1 / (1 - v), which bounds it on both sides if mean < 0; else it dies where exp(f^2 / 2) N(z; 0, 1) does.
    """
    finite = variance < 1
    v = torch.where(finite, variance, 0.5)
    sd, rest = v.sqrt(), 1 - v
    centre, width = mean * sd / rest, REACH / rest.sqrt()
    ahead = mean.clamp_min(0)
    root = (REACH**2 * rest + ahead.square()).sqrt()
    left = (REACH**2 * sd + ahead * root) / (ahead + sd * root).clamp_min(torch.finfo(mean.dtype).tiny)
    low = torch.where(mean < 0, centre - width, torch.where(mean > REACH * sd, -REACH, -left))
    high = (centre + width).clamp_max(REACH)
    value = log_expectation(lambda f: -_log_ndtr(f), mean, v, low, high, num_nodes=256)
    return torch.where(finite, value, math.inf)
