"""Positive, skewed targets: Gaussian noise after a power transform that is learnt (Box and Cox, 1964)."""

import torch
from torch import Tensor

from autogp.likelihoods.gaussian import Gaussian
from autogp.likelihoods.quadrature import align, gauss_hermite
from autogp.parameters import describe_range, positive_parameter

__all__ = ["BoxCox"]


class BoxCox(Gaussian):
    """w(y_p) ~ N(f_p, variance_p), w(y) = ((y / unit)^power - 1) / (power spread); near power 0 the logarithm.

    `power` is learnt; `unit` and `spread`, a typical y and the deviation of log y, are fixed: they make w(y) about
    standard. The part of the Gaussian below the smallest w is the probability of y = 0.

    >>> import torch
    >>> model = BoxCox(power=1e-9, unit=2.0)  # log(y / 2) is standard normal
    >>> y = model.check_targets(torch.tensor([2.0]))
    >>> model.log_prob(torch.zeros(1, 1), y).exp().item()  # 1 / (2 sqrt(2 pi))
    0.199...
    """

    affine_targets = False
    mean_is_latent = False
    unit: Tensor
    spread: Tensor

    def __init__(
        self,
        num_outputs: int = 1,
        variance: float | Tensor = 1.0,
        power: float | Tensor = 0.5,
        unit: float | Tensor = 1.0,
        spread: float | Tensor = 1.0,
    ):
        super().__init__(num_outputs, variance)
        self.log_power = positive_parameter(power, "power", size=num_outputs)
        for name, value in (("unit", unit), ("spread", spread)):
            self.register_buffer(name, positive_parameter(value, name, size=num_outputs).detach().exp())

    @property
    def power(self) -> Tensor:  # [P]
        return self.log_power.exp()

    def check_targets(self, y: Tensor) -> Tensor:
        y = super().check_targets(y)
        if (y <= 0).any():
            row, output = (y <= 0).nonzero()[0].tolist()
            found = y[row, output].item()
            raise ValueError(f"y contains {found:g} at row {row}; the targets of {type(self).__name__} are positive")
        return y

    def transform(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """w(y), and the log of its derivative; [B, P] twice. A missing target, which comes as 0, counts as 1."""
        power, unit, spread = (each.to(y.dtype) for each in (self.power, self.unit, self.spread))
        log_y = torch.where(y > 0, y / unit, 1.0).log()
        # dw/dy = (y / unit)^(power - 1) / (unit spread)
        return torch.expm1(power * log_y) / (power * spread), (power - 1) * log_y - (unit * spread).log()

    def inverse(self, w: Tensor) -> Tensor:
        """The y of w(y) = w; 0 where there is none."""
        power, unit, spread = (each.to(w.dtype) for each in (self.power, self.unit, self.spread))
        return unit * torch.exp(torch.log1p((power * spread * w).clamp_min(-1)) / power)

    def log_density(self, f: Tensor, y: Tensor) -> Tensor:
        w, log_slope = self.transform(y)
        return super().log_density(f, w) + log_slope

    def expected_log_density(self, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        w, log_slope = self.transform(y)
        return super().expected_log_density(mean, variance, w) + log_slope

    def expected_derivatives(
        self, mean: Tensor, variance: Tensor, y: Tensor, noise: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        if noise is not None:
            return super().expected_derivatives(mean, variance, y, noise)
        return super().expected_derivatives(mean, variance, torch.where(torch.isnan(y), y, self.transform(y)[0]))

    def log_expected_density(self, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        w, log_slope = self.transform(y)
        return super().log_expected_density(mean, variance, w) + log_slope

    def log_expected_inverse_density(self, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        w, log_slope = self.transform(y)
        return super().log_expected_inverse_density(mean, variance, w) - log_slope

    def log_leave_one_out(
        self,
        log_weights: Tensor,
        mean: Tensor,
        variance: Tensor,
        residual: Tensor,
        y: Tensor,
        noise: Tensor | None = None,
    ) -> Tensor:
        if len(log_weights) > 1 or noise is not None:
            return super().log_leave_one_out(log_weights, mean, variance, residual, y, noise)
        missing = torch.isnan(y)
        w, log_slope = self.transform(torch.where(missing, 1.0, y))
        rows = super().log_leave_one_out(
            log_weights, mean, variance, residual, torch.where(missing, torch.nan, w), noise
        )
        return rows + torch.where(missing, 0.0, log_slope).sum(-1)

    def conditional_moments(self, f: Tensor) -> tuple[Tensor, Tensor]:
        return self._moments(f, self.variance.to(f.dtype).expand_as(f))

    def predictive_moments(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        return self._moments(mean, variance + self.variance.to(mean.dtype))

    def sample(self, f: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return self.inverse(super().sample(f, generator))

    def quantiles(self, log_weights: Tensor, mean: Tensor, variance: Tensor, levels: Tensor) -> Tensor:
        if len(log_weights) > 1:  # by draws of y itself
            return super().quantiles(log_weights, mean, variance, levels)
        centre, spread = mean, variance + self.variance.to(mean.dtype)  # of w, [1, B, P]
        return self.inverse(centre + torch.special.ndtri(levels.to(mean.dtype))[:, None, None] * spread.sqrt())

    def describe(self, unit: Tensor | float = 1.0) -> str:
        noise = describe_range(self.variance.sqrt())
        return f"{type(self).__name__}, power {describe_range(self.power)}, noise {noise} after the transform"

    def _moments(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of y where w is N(mean, variance)."""
        nodes, log_weights = align(gauss_hermite(), mean)
        y, weights = self.inverse(mean + variance.sqrt() * nodes), log_weights.exp()
        expected = (weights * y).sum(0)
        return expected, (weights * (y - expected).square()).sum(0)
