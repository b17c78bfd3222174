"""Gaussian noise, one variance per output; everything is in closed form."""

import copy
import math

import torch
from torch import Tensor

from autogp.likelihoods.base import Likelihood
from autogp.likelihoods.elementwise import Elementwise
from autogp.likelihoods.targets import check_real_targets
from autogp.parameters import describe_range, positive_parameter

__all__ = ["Gaussian", "RowNoise"]


class Gaussian(Elementwise):
    """y_p ~ N(f_p, variance_p).

    >>> import torch
    >>> Gaussian(variance=0.5).log_prob(torch.zeros(1, 1), torch.zeros(1, 1)).exp().item()  # 1 / sqrt(pi)
    0.564189...
    """

    affine_targets = True
    mean_is_latent = True
    conjugate = True

    def __init__(self, num_outputs: int = 1, variance: float | Tensor = 1.0):
        super().__init__(num_outputs)
        self.log_variance = positive_parameter(variance, "variance", size=num_outputs)

    @property
    def variance(self) -> Tensor:  # [P]
        return self.log_variance.exp()

    @property
    def shared_noise(self) -> Tensor | None:
        return self.variance

    def log_density(self, f: Tensor, y: Tensor) -> Tensor:
        return _log_normal(y, f, self.variance.to(f.dtype))

    def expected_log_density(self, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        noise = self.variance.to(mean.dtype)
        return _log_normal(y, mean, noise) - 0.5 * variance / noise

    def expected_derivatives(
        self, mean: Tensor, variance: Tensor, y: Tensor, noise: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """(y - mean) / noise and -1 / (2 noise), or 0 where the target is missing."""
        if noise is not None:
            return super().expected_derivatives(mean, variance, y, noise)
        missing, precision = torch.isnan(y), (-self.log_variance).exp().to(mean.dtype)
        alpha = torch.where(missing, 0.0, (y - mean) * precision)
        return alpha.detach(), torch.where(missing, 0.0, -0.5 * precision).expand_as(alpha).detach()

    def log_expected_density(self, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        return _log_normal(y, mean, variance + self.variance.to(mean.dtype))

    def log_expected_inverse_density(self, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        noise = self.variance.to(mean.dtype)
        rest = noise - variance  # the integral diverges where q is as wide as the noise
        finite = rest > 0
        safe = torch.where(finite, rest, 1.0)
        value = 0.5 * (math.log(2 * math.pi) + 2 * noise.log() - safe.log() + (y - mean).square() / safe)
        return torch.where(finite, value, math.inf)

    def log_leave_one_out(
        self,
        log_weights: Tensor,
        mean: Tensor,
        variance: Tensor,
        residual: Tensor,
        y: Tensor,
        noise: Tensor | None = None,
    ) -> Tensor:
        """For one component the row's own term is taken out of q(u), which is exact for the optimal q.

        Taken out of q(f) it is infinite where f varies more than the noise, even where most of that is the residual,
        which no row has touched. Out of q(u) it is infinite where what u says of f varies more than the noise, which
        it never does for the optimal q.
        """
        if len(log_weights) > 1 or noise is not None:
            return super().log_leave_one_out(log_weights, mean, variance, residual, y, noise)
        own = self.variance.to(y.dtype)
        missing = torch.isnan(y)
        y = torch.where(missing, 0.0, y)  # any number: NaN would reach the gradients
        residual = residual.clamp_min(0)
        spread = (variance[0] - residual).clamp_min(0)  # of what u says of f, [B, P]
        self._refuse_infinite(((spread >= own) & ~missing).any(-1), variance)
        shrink = 1 / torch.where(missing, 1.0, 1 - spread / own)
        centre = (mean[0] - y * spread / own) * shrink  # N(centre, spread shrink) is q without the row's own term
        rows = _log_normal(y, centre, spread * shrink + residual + own)
        return torch.where(missing, 0.0, rows).sum(-1)

    def with_row_noise(self) -> "RowNoise":
        return RowNoise(self)

    def conditional_moments(self, f: Tensor) -> tuple[Tensor, Tensor]:
        return f, self.variance.to(f.dtype).expand_as(f)

    def predictive_moments(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        return mean, variance + self.variance.to(mean.dtype)

    def sample(self, f: Tensor, generator: torch.Generator | None = None) -> Tensor:
        noise = torch.randn(f.shape, dtype=f.dtype, device=f.device, generator=generator)
        return f + self.variance.sqrt().to(f.dtype) * noise

    def quantiles(self, log_weights: Tensor, mean: Tensor, variance: Tensor, levels: Tensor) -> Tensor:
        if len(log_weights) > 1:
            return super().quantiles(log_weights, mean, variance, levels)
        centre, spread = self.predictive_moments(mean, variance)  # [1, B, P]
        return centre + torch.special.ndtri(levels.to(mean.dtype))[:, None, None] * spread.sqrt()

    def describe(self, unit: Tensor | float = 1.0) -> str:
        return f"{type(self).__name__}, noise of standard deviation {describe_range(self.variance.sqrt() * unit)}"


class RowNoise(Likelihood):
    """y_p ~ N(f_p, variance_p + extra_p): targets are [B, 2 P], those of the Gaussian and beside them `extra`.

    With it rows of which something is known to be missing do not raise the noise of all others.

    >>> import torch
    >>> RowNoise(Gaussian(variance=0.25)).log_prob(torch.zeros(1, 1), torch.tensor([[0.0, 0.25]])).exp().item()
    0.564189...
    """

    allows_missing = True
    conjugate = True

    def __init__(self, gaussian: Gaussian):
        super().__init__()
        self.gaussian = gaussian
        self.num_latents, self.num_outputs = gaussian.num_latents, gaussian.num_outputs

    @property
    def sampled(self) -> frozenset[str]:
        return self.gaussian.sampled

    def check_targets(self, y: Tensor) -> Tensor:
        return check_real_targets(y, 2 * self.num_outputs, missing=True)

    def _at(self, y: Tensor) -> tuple[Gaussian, Tensor]:
        """A Gaussian whose variance is [B, P], and its targets [B, P]."""
        y, extra = y.chunk(2, -1)
        rows = copy.copy(self.gaussian)
        rows._parameters = {name: each for name, each in rows._parameters.items() if name != "log_variance"}
        vars(rows)["log_variance"] = (self.gaussian.variance.to(y.dtype) + extra).log()
        return rows, y

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        rows, y = self._at(y)
        return rows.log_prob(f, y)

    def expected_log_prob(self, mean: Tensor, variance: Tensor, y: Tensor, noise: Tensor | None = None) -> Tensor:
        rows, y = self._at(y)
        return rows.expected_log_prob(mean, variance, y, noise)

    def log_expected_prob(self, mean: Tensor, variance: Tensor, y: Tensor, noise: Tensor | None = None) -> Tensor:
        rows, y = self._at(y)
        return rows.log_expected_prob(mean, variance, y, noise)

    def log_expected_inverse_prob(
        self, mean: Tensor, variance: Tensor, y: Tensor, noise: Tensor | None = None
    ) -> Tensor:
        rows, y = self._at(y)
        return rows.log_expected_inverse_prob(mean, variance, y, noise)

    def log_leave_one_out(
        self,
        log_weights: Tensor,
        mean: Tensor,
        variance: Tensor,
        residual: Tensor,
        y: Tensor,
        noise: Tensor | None = None,
    ) -> Tensor:
        rows, y = self._at(y)
        return rows.log_leave_one_out(log_weights, mean, variance, residual, y, noise)

    def conditional_moments(self, f: Tensor) -> tuple[Tensor, Tensor]:
        return self.gaussian.conditional_moments(f)

    def sample(self, f: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return self.gaussian.sample(f, generator)


def _log_normal(y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    return -0.5 * (math.log(2 * math.pi) + variance.log() + (y - mean).square() / variance)
