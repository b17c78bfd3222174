"""Likelihoods of several outputs, each with a latent function of its own."""

import math
from numbers import Integral

import torch
from torch import Tensor

from autogp.likelihoods.base import Likelihood
from autogp.likelihoods.quadrature import align, diverges, gauss_hermite, lattice
from autogp.likelihoods.targets import check_real_targets

__all__ = ["Elementwise"]


class Elementwise(Likelihood):
    """P outputs, each with a latent function of its own: p(y | f) = prod_p density(y_p | f_p), so Q = P.

    Subclasses write `log_density` for one output, and override the three expectations where a closed form exists;
    else they are by adaptive quadrature, output by output. A target that is NaN is missing: it adds nothing.
    """

    allows_missing = True
    smooth: bool = False  # log p has no kinks nor narrow peaks: in training Gauss-Hermite with few points will do

    def __init__(self, num_outputs: int = 1):
        super().__init__()
        if not isinstance(num_outputs, Integral) or num_outputs < 1:
            raise ValueError(f"num_outputs must be a positive integer, got {num_outputs!r}")
        self.num_outputs = self.num_latents = int(num_outputs)

    @property
    def sampled(self) -> frozenset[str]:
        return frozenset()

    @property
    def couples(self) -> bool:
        return self.num_latents > self.num_outputs

    def log_density(self, f: Tensor, y: Tensor) -> Tensor:
        """log p(y_p | f_p) for each output: [..., B, P] from f [..., B, P] and y [B, P]."""
        raise NotImplementedError(f"{type(self).__name__} must define log_density(f, y)")

    def expected_log_density(self, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:  # [..., B, P]
        if not torch.is_grad_enabled():
            return self._integrate(self.log_density, mean, variance, y, log=False)
        if self.smooth:
            nodes, log_weights = self._nodes(mean)
            return (log_weights.exp() * self.log_density(mean + variance.sqrt() * nodes, y)).sum(0)
        f, weights = lattice(mean, variance)  # as in Likelihood.expected_log_prob
        return (weights * self.log_density(f, y)).sum(0)

    def log_expected_density(self, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:  # [..., B, P]
        return self._integrate(self.log_density, mean, variance, y, log=True)

    def log_expected_inverse_density(self, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:  # [..., B, P]
        def inverse(f: Tensor, y: Tensor) -> Tensor:
            return -self.log_density(f, y)

        value = self._integrate(inverse, mean, variance, y, log=True)
        if self.finite_loo:
            return value
        with torch.no_grad():
            infinite = diverges(self._integrand(inverse, mean, variance, y), mean[..., 0].numel(), mean.device)
        return torch.where(infinite.unflatten(0, mean.shape[:-1]), math.inf, value)

    def check_targets(self, y: Tensor) -> Tensor:
        return check_real_targets(y, self.num_latents, missing=True)

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        return self._sum(self.log_density, y, f)

    def expected_log_prob(self, mean: Tensor, variance: Tensor, y: Tensor, noise: Tensor | None = None) -> Tensor:
        if noise is not None:
            return super().expected_log_prob(mean, variance, y, noise)
        return self._sum(self.expected_log_density, y, mean, variance)

    def log_expected_prob(self, mean: Tensor, variance: Tensor, y: Tensor, noise: Tensor | None = None) -> Tensor:
        if noise is not None:
            return super().log_expected_prob(mean, variance, y, noise)
        return self._sum(self.log_expected_density, y, mean, variance)

    def log_expected_inverse_prob(
        self, mean: Tensor, variance: Tensor, y: Tensor, noise: Tensor | None = None
    ) -> Tensor:
        if noise is not None:
            return super().log_expected_inverse_prob(mean, variance, y, noise)
        return self._sum(self.log_expected_inverse_density, y, mean, variance)

    @property
    def _one_each(self) -> bool:
        return True

    def _diverges(self, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        return torch.isinf(self._sum(self.log_expected_inverse_density, y, mean, variance))

    def _nodes(self, mean: Tensor) -> tuple[Tensor, Tensor]:
        return align(gauss_hermite(), mean)  # one rule for each output by itself

    def _sum(self, function, y: Tensor, *latents: Tensor) -> Tensor:
        """Sum of a function of (latents, y) over the outputs that are there."""
        missing = torch.isnan(y)
        if not missing.any():
            return function(*latents, y).sum(-1)
        values = function(*latents, torch.where(missing, 0.0, y))
        missing = missing if y.ndim == 2 else missing.any(-1)
        return torch.where(missing, 0.0, values).sum(-1)
