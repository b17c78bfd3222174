"""Student-t noise: regression that outliers do not bend."""

import math

import torch
from torch import Tensor

from autogp.likelihoods.elementwise import Elementwise
from autogp.likelihoods.quadrature import trapezoid
from autogp.parameters import describe_range, positive_parameter

__all__ = ["StudentT"]

NODES = 96
LOG_TAIL = 24  # integrands are followed until they have fallen by exp(-24)


class StudentT(Elementwise):
    """(y_p - f_p) / scale_p ~ Student-t with `df` degrees of freedom (fixed, above 2; the scales are learnt).

    >>> import torch
    >>> StudentT(df=4.0).log_prob(torch.zeros(1, 1), torch.zeros(1, 1)).exp().item()  # 3 / 8
    0.375
    """

    affine_targets = True
    mean_is_latent = True
    finite_loo = True
    df: Tensor

    def __init__(self, num_outputs: int = 1, df: float = 4.0, scale: float | Tensor = 1.0):
        super().__init__(num_outputs)
        if not (math.isfinite(df) and df > 2):
            raise ValueError(f"df must be a number above 2, so that the variance exists, got {df}")
        self.register_buffer("df", torch.tensor(df, dtype=torch.float64))
        self.log_scale = positive_parameter(scale, "scale", size=num_outputs)

    @property
    def scale(self) -> Tensor:  # [P]
        return self.log_scale.exp()

    def log_density(self, f: Tensor, y: Tensor) -> Tensor:
        return self._log_density(torch.log1p((y - f).square() / self._unit(f)))

    def expected_log_density(self, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        """With log(1 + x) = int (1 - exp(-t x)) exp(-t) du, t = exp(u), the expectation over f is Gaussian.

        Gauss-Hermite would need points as close as the scale, over all of q.
        """
        unit = self._unit(mean)
        spread, square = variance / unit, (y - mean).square() / unit
        low = -LOG_TAIL - torch.log1p(spread + square)
        u, step = trapezoid(low, torch.full_like(low, math.log(LOG_TAIL)), NODES)
        t = u.exp()
        log_laplace = -0.5 * torch.log1p(2 * t * spread) - t * square / (1 + 2 * t * spread)  # log E[exp(-t x)]
        return self._log_density(-(torch.expm1(log_laplace) * torch.exp(-t)).sum(0) * step)

    def log_expected_density(self, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        """A Student-t is a mixture of N(f, scale^2 / t), t ~ Gamma(df / 2, df / 2); here t = exp(u)."""
        shape = self.df / 2
        log_constant = torch.special.xlogy(shape, shape) - shape - torch.lgamma(shape)
        square = (y - mean).square()
        # Beyond high exp(-a (exp(u) - 1 - u)) is below exp(-24); beyond low too, after a shift for outliers.
        right, left = LOG_TAIL / shape, LOG_TAIL / (shape + 0.5)
        low = -torch.log1p(square / self._unit(mean)) - 0.5 * (left + (left.square() + 8 * left).sqrt())
        high = torch.log1p(right + (2 * right).sqrt()).to(mean.dtype)
        u, step = trapezoid(low.to(mean.dtype), high.expand_as(low), NODES)
        log_gamma = log_constant.to(mean.dtype) + shape.to(mean.dtype) * (u - torch.expm1(u))
        total = variance + self.scale.square().to(mean.dtype) * torch.exp(-u)
        log_normal = -0.5 * (math.log(2 * math.pi) + total.log() + square / total)
        return torch.logsumexp(log_gamma + log_normal, 0) + step.log()

    def conditional_moments(self, f: Tensor) -> tuple[Tensor, Tensor]:
        variance = self.scale.square() * self.df / (self.df - 2)
        return f, variance.to(f.dtype).expand_as(f)

    def predictive_moments(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        return mean, variance + self.conditional_moments(mean)[1]

    def sample(self, f: Tensor, generator: torch.Generator | None = None) -> Tensor:
        # Bailey's (1994) polar method: two uniforms make one Student-t.
        shape = (2, *f.shape)
        uniform, angle = torch.rand(shape, dtype=torch.float64, device=f.device, generator=generator)
        radius = (self.df * torch.expm1(-2 / self.df * torch.log1p(-uniform))).sqrt()
        return f + (self.scale * radius * torch.cos(2 * math.pi * angle)).to(f.dtype)

    def describe(self, unit: Tensor | float = 1.0) -> str:
        noise = describe_range(self.scale * unit)
        return f"{type(self).__name__}, noise of scale {noise}, {self.df.item():g} degrees of freedom"

    def _unit(self, like: Tensor) -> Tensor:  # [P], df scale^2
        return (self.df * self.scale.square()).to(like.dtype)

    def _log_density(self, log_term: Tensor) -> Tensor:
        """The log density, or its expectation, from that of log(1 + (y - f)^2 / (df scale^2))."""
        df = self.df
        constant = torch.lgamma((df + 1) / 2) - torch.lgamma(df / 2) - 0.5 * torch.log(df * math.pi) - self.log_scale
        return constant.to(log_term.dtype) - (0.5 * (df + 1)).to(log_term.dtype) * log_term
