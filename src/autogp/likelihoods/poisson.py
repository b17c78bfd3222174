"""Counts with a Poisson distribution whose log rate is a Gaussian process."""

import torch
from torch import Tensor

from autogp.likelihoods.base import InfiniteLOOError
from autogp.likelihoods.elementwise import Elementwise
from autogp.likelihoods.quadrature import REACH, align, gauss_hermite, log_expectation
from autogp.likelihoods.targets import as_targets, check_real_targets
from autogp.parameters import describe_range, positive_parameter

__all__ = ["Poisson"]

COUNTS, MOST_COUNTS = 32, 512  # whose probabilities are added up for quantiles: at a time, and before draws are cheaper
QUANTILE_ROWS = 512  # at a time, for which probabilities are computed


class Poisson(Elementwise):
    """y_p ~ Poisson(exposure * rate_p * exp(f_p)); the rates, where f = 0, are learnt.

    Targets are counts [B] or [B, P], counts and the exposure of the row [B, P + 1], or counts and an exposure for each
    [B, P, 2]; without exposures they are 1. Predictions are per unit of exposure.

    >>> import torch
    >>> Poisson().log_prob(torch.zeros(1, 1), Poisson().check_targets(torch.tensor([0]))).item()
    -1.0
    """

    counts = True
    takes_exposure = True

    def __init__(self, num_outputs: int = 1, rate: float | Tensor = 1.0):
        super().__init__(num_outputs)
        self.log_rate = positive_parameter(rate, "rate", size=num_outputs)

    @property
    def rate(self) -> Tensor:  # [P]
        return self.log_rate.exp()

    def log_density(self, f: Tensor, y: Tensor) -> Tensor:
        count, log_mean = y[..., 0], f + self._offset(y)
        return count * log_mean - torch.exp(log_mean) - torch.lgamma(count + 1)

    def expected_log_density(self, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        count, log_mean = y[..., 0], mean + self._offset(y)
        return count * log_mean - torch.exp(log_mean + 0.5 * variance) - torch.lgamma(count + 1)

    def log_expected_density(self, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        low, high = _integrand_range(mean + self._offset(y), variance, y[..., 0])
        return log_expectation(lambda f: self.log_density(f, y), mean, variance, low, high)

    def log_expected_inverse_prob(
        self, mean: Tensor, variance: Tensor, y: Tensor, noise: Tensor | None = None
    ) -> Tensor:
        raise InfiniteLOOError("Poisson", "1 / p(y | f) grows as exp(exp(f)), faster than any Gaussian decays")

    def conditional_moments(self, f: Tensor) -> tuple[Tensor, Tensor]:
        expected = torch.exp(f + self.log_rate.to(f.dtype))
        return expected, expected

    def predictive_moments(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        mean = mean + self.log_rate.to(mean.dtype)
        expected = torch.exp(mean + 0.5 * variance)
        return expected, expected - torch.expm1(-variance) * torch.exp(2 * (mean + variance))

    def sample(self, f: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return torch.poisson(self.conditional_moments(f)[0], generator)

    def quantiles(self, log_weights: Tensor, mean: Tensor, variance: Tensor, levels: Tensor) -> Tensor:
        """The least counts that y stays at or below with these probabilities: the sum of those of all smaller counts.

        A probability is the mean of p(y | f) over q(f), by Gauss-Hermite. Large counts are left to draws.
        """
        if len(log_weights) > 1:
            return super().quantiles(log_weights, mean, variance, levels)
        found = []
        for centre, spread in zip(mean.split(QUANTILE_ROWS, 1), variance.split(QUANTILE_ROWS, 1), strict=True):
            nodes, log_shares = align(gauss_hermite(), centre)
            f = (centre + spread.sqrt() * nodes).double()  # [H, 1, B, P]
            below, counts = f.new_zeros(f.shape[2:]), f.new_zeros(len(levels), *f.shape[2:])
            for first in range(0, MOST_COUNTS, COUNTS):
                count = torch.arange(first, first + COUNTS, dtype=f.dtype, device=f.device)[:, None, None]
                density = self.log_density(f, torch.stack([count, torch.ones_like(count)], -1))  # [H, counts, B, P]
                cumulative = below + (density + log_shares).exp().sum(0).cumsum(0)
                counts += (cumulative < levels.to(f)[:, None, None, None]).sum(1)
                below = cumulative[-1]
                if (below >= levels.max()).all():
                    break
            else:
                return super().quantiles(log_weights, mean, variance, levels)
            found.append(counts.to(mean.dtype))
        return torch.cat(found, 1)

    def check_targets(self, y: Tensor) -> Tensor:
        y = as_targets(y)
        if y.ndim > 2 and (y.ndim > 3 or y.shape[-1] != 2):
            raise ValueError(f"y must hold counts [B, P], or counts and exposures [B, P, 2], got {tuple(y.shape)}")
        outputs, exposure, count = self.num_latents, torch.ones(()), y
        if y.ndim == 3:
            count, exposure = y.unbind(-1)
        elif y.ndim == 2 and y.shape[1] == outputs + 1:
            count, exposure = y[:, :outputs], y[:, outputs:]
        count = check_real_targets(count, outputs, missing=True)
        for bad, what in (
            (count < 0, "a negative count"),
            (~torch.isnan(count) & (count != count.round()), "a count that is not a whole number"),
            ((~(exposure > 0) | torch.isinf(exposure)).expand_as(count), "an exposure that is not positive and finite"),
        ):
            if bad.any():
                row = bad.nonzero()[0, 0].item()
                raise ValueError(
                    f"y contains {what}, first at row {row}; the targets of {type(self).__name__} are counts"
                )
        return torch.stack([count, exposure.to(count).expand_as(count)], -1)

    def describe(self, unit: Tensor | float = 1.0) -> str:
        return f"{type(self).__name__}, base rate {describe_range(self.rate)}"

    def _offset(self, y: Tensor) -> Tensor:
        """Log of exposure times rate, [B, P]."""
        return y[..., 1].log() + self.log_rate.to(y.dtype)


def _integrand_range(mean: Tensor, variance: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """Where N(z; 0, 1) Poisson(count; exp(mean + sd z)), log-concave in z, is within exp(-36) of its mode.

    The mode is where x = v rate solves x + log x = log v + mean + v count; its curvature is 1 + x, and grows with z.
    """
    with torch.no_grad():
        v = variance.clamp_min(torch.finfo(variance.dtype).tiny)
        sd = v.sqrt()
        target = v.log() + mean + v * count
        log_x = torch.where(target < 1, target, target.clamp_min(1).log())  # beyond the root of a convex function
        for _ in range(5):
            x = log_x.exp()
            log_x = log_x - (x + log_x - target) / (1 + x)  # Newton
        x = log_x.exp()
        mode = sd * (count - (log_x - v.log()).exp())
        left = torch.full_like(mode, REACH)
        for _ in range(3):  # to the left the integrand falls by at least d^2 (1/2 + x / (2 + sd d)) over a distance d
            left = REACH / (1 + 2 * x / (2 + sd * left)).sqrt()
        return mode - left, mode + REACH / (1 + x).sqrt()
