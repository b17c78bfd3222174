"""Counts with a Poisson distribution whose log rate is a Gaussian process."""

import torch
from torch import Tensor

from autogp.likelihoods.base import Elementwise, InfiniteLOOError, check_real_targets

__all__ = ["Poisson"]


class Poisson(Elementwise):
    """y_p ~ Poisson(exposure * exp(f_p)).

    Targets are counts [B] or [B, P], or counts and exposures [B, P, 2]; without exposures they are 1. Predictions are
    per unit of exposure.

    >>> import torch
    >>> Poisson().log_prob(torch.zeros(1, 1), Poisson().check_targets(torch.tensor([0]))).item()
    -1.0
    """

    def log_density(self, f: Tensor, y: Tensor) -> Tensor:
        count, log_exposure = y[..., 0], y[..., 1].log()
        return count * (f + log_exposure) - torch.exp(f + log_exposure) - torch.lgamma(count + 1)

    def expected_log_density(self, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        count, log_exposure = y[..., 0], y[..., 1].log()
        rate = torch.exp(mean + 0.5 * variance + log_exposure)
        return count * (mean + log_exposure) - rate - torch.lgamma(count + 1)

    def log_expected_inverse_prob(
        self, mean: Tensor, variance: Tensor, y: Tensor, noise: Tensor | None = None
    ) -> Tensor:
        raise InfiniteLOOError("Poisson", "1 / p(y | f) grows as exp(exp(f)), faster than any Gaussian decays")

    def conditional_moments(self, f: Tensor) -> tuple[Tensor, Tensor]:
        return f.exp(), f.exp()

    def predictive_moments(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        rate = torch.exp(mean + 0.5 * variance)
        return rate, rate + torch.expm1(variance) * rate.square()

    def check_targets(self, y: Tensor) -> Tensor:
        y = torch.as_tensor(y)
        exposure = torch.ones(()) if y.ndim < 3 else y[..., 1]
        if y.ndim == 3 and y.shape[-1] != 2:
            raise ValueError(f"y must hold counts [B, P], or counts and exposures [B, P, 2], got {tuple(y.shape)}")
        count = check_real_targets(y if y.ndim < 3 else y[..., 0], self.num_latents, missing=True)
        for bad, what in (
            (count < 0, "a negative count"),
            (~torch.isnan(count) & (count != count.round()), "a count that is not a whole number"),
            ((~(exposure > 0) | torch.isinf(exposure)).expand_as(count), "an exposure that is not positive and finite"),
        ):
            if bad.any():
                row = bad.nonzero()[0, 0].item()
                raise ValueError(f"y contains {what}, first at row {row}; Poisson targets are counts 0, 1, 2, ...")
        return torch.stack([count, exposure.to(count).expand_as(count)], -1)
