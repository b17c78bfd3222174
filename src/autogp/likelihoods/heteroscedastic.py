"""Gaussian noise whose variance varies with the inputs: the mean and the log variance are both latent functions."""

import math

import torch
from torch import Tensor

from autogp.likelihoods.base import InfiniteLOOError
from autogp.likelihoods.elementwise import Elementwise
from autogp.likelihoods.quadrature import align, gauss_hermite
from autogp.likelihoods.targets import check_real_targets
from autogp.parameters import describe_range, positive_parameter

__all__ = ["Heteroscedastic"]

HALVINGS = 40  # of the range of a quantile
LARGEST = 60.0  # logarithm of a variance: float32 holds its product with a squared residual


class Heteroscedastic(Elementwise):
    """y_p ~ N(f_p, variance_p exp(g_p)): latent functions f_1 .. f_P, then g_1 .. g_P, so Q = 2 P.

    >>> import torch
    >>> Heteroscedastic(variance=0.5).log_prob(torch.zeros(1, 2), torch.zeros(1, 1)).exp().item()  # 1 / sqrt(pi)
    0.564189...
    """

    affine_targets = True

    def __init__(self, num_outputs: int = 1, variance: float | Tensor = 1.0):
        super().__init__(num_outputs)
        self.num_latents = 2 * self.num_outputs
        self.log_variance = positive_parameter(variance, "variance", size=num_outputs)

    @property
    def variance(self) -> Tensor:  # [P], where g = 0
        return self.log_variance.exp()

    @property
    def start_values(self) -> list[float]:
        return [0.0] * self.num_latents  # each with a kernel of its own

    def log_density(self, f: Tensor, y: Tensor) -> Tensor:
        return self.expected_log_density(f, torch.zeros_like(f), y)

    def expected_log_density(self, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        """-1/2 [log 2 pi s + E g + E(y - f)^2 E exp(-g) / s], with E exp(-g) = exp(-E g + Var g / 2)."""
        (f, g), (vf, vg) = self._both(mean), self._both(variance)
        log_noise = g + self.log_variance.to(g.dtype)
        square = ((y - f).square() + vf) * torch.exp((0.5 * vg - log_noise).clamp_max(LARGEST))
        return -0.5 * (math.log(2 * math.pi) + log_noise + square)

    def log_expected_density(self, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        """Given g, y is Gaussian; g by Gauss-Hermite."""
        (f, _), (vf, _) = self._both(mean), self._both(variance)
        noise, log_weights = self._noise(mean, variance)
        total = vf + noise
        return torch.logsumexp(log_weights - 0.5 * (math.log(2 * math.pi) + total.log() + (y - f).square() / total), 0)

    def log_expected_inverse_prob(
        self, mean: Tensor, variance: Tensor, y: Tensor, noise: Tensor | None = None
    ) -> Tensor:
        raise InfiniteLOOError("Heteroscedastic", "where the noise goes to 0, 1 / p(y | f, g) grows beyond all bounds")

    def check_targets(self, y: Tensor) -> Tensor:
        return check_real_targets(y, self.num_outputs, missing=True)

    def conditional_moments(self, f: Tensor) -> tuple[Tensor, Tensor]:
        centre, g = self._both(f)
        return centre, torch.exp(g + self.log_variance.to(g.dtype))

    def predictive_moments(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        (f, g), (vf, vg) = self._both(mean), self._both(variance)
        return f, vf + torch.exp(g + 0.5 * vg + self.log_variance.to(g.dtype))

    def sample(self, f: Tensor, generator: torch.Generator | None = None) -> Tensor:
        centre, spread = self.conditional_moments(f)
        noise = torch.randn(centre.shape, dtype=f.dtype, device=f.device, generator=generator)
        return centre + spread.sqrt() * noise

    def quantiles(self, log_weights: Tensor, mean: Tensor, variance: Tensor, levels: Tensor) -> Tensor:
        """By halving the range in which P(y < value) = sum_k pi_k sum_h w_h Phi((value - f_k) / sd_kh) is the level."""
        (f, _), (vf, _) = self._both(mean), self._both(variance)  # [K, B, P]
        noise, node_weights = self._noise(mean, variance)  # [H, K, B, P]
        deviation = (vf + noise).sqrt()
        weights = torch.exp(node_weights + log_weights.to(f.dtype)[:, None, None])
        target = levels.to(f.dtype)[:, None, None]  # [R, 1, 1]
        steps = torch.special.ndtri(target)
        ends = f + deviation * torch.stack([steps.amin(), steps.amax()]).reshape(2, 1, 1, 1, 1)  # [2, H, K, B, P]
        low, high = (end.expand(len(levels), *f.shape[1:]) for end in (ends.amin((0, 1, 2)), ends.amax((0, 1, 2))))
        for _ in range(HALVINGS):
            middle = 0.5 * (low + high)
            inside = torch.special.ndtr((middle[:, None, None] - f) / deviation)  # [R, H, K, B, P]
            below = (weights * inside).sum((1, 2)) < target
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        return 0.5 * (low + high)

    def describe(self, unit: Tensor | float = 1.0) -> str:
        noise = describe_range(self.variance.sqrt() * unit)
        return f"{type(self).__name__}, noise of standard deviation {noise} times exp(g / 2), g varying over the inputs"

    def _both(self, latents: Tensor) -> tuple[Tensor, Tensor]:
        """The parts of [..., B, Q] that belong to the means and to the log variances."""
        return latents[..., : self.num_outputs], latents[..., self.num_outputs :]

    def _noise(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """Variances s exp(g) at the nodes of g, [H, ..., B, P], and the nodes' log weights."""
        g, vg = self._both(mean)[1], self._both(variance)[1]
        nodes, log_weights = align(gauss_hermite(), g)
        log_noise = g + vg.sqrt() * nodes + self.log_variance.to(g.dtype)
        return torch.exp(log_noise.clamp(-LARGEST, LARGEST)), log_weights
