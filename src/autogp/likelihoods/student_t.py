"""Student-t noise: regression that outliers do not bend."""

import math

import torch
from torch import Tensor

from autogp.likelihoods.base import Elementwise
from autogp.parameters import positive_parameter

__all__ = ["StudentT"]


class StudentT(Elementwise):
    """(y_p - f_p) / scale_p ~ Student-t with `df` degrees of freedom (fixed, above 2; the scales are learnt).

    >>> import torch
    >>> StudentT(df=4.0).log_prob(torch.zeros(1, 1), torch.zeros(1, 1)).exp().item()  # 3 / 8
    0.375
    """

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
        df = self.df
        constant = torch.lgamma((df + 1) / 2) - torch.lgamma(df / 2) - 0.5 * torch.log(df * math.pi) - self.log_scale
        residual = (y - f) / self.scale.to(f.dtype)
        return constant.to(f.dtype) - 0.5 * (df + 1).to(f.dtype) * torch.log1p(residual.square() / df.to(f.dtype))

    def conditional_moments(self, f: Tensor) -> tuple[Tensor, Tensor]:
        variance = self.scale.square() * self.df / (self.df - 2)
        return f, variance.to(f.dtype).expand_as(f)

    def predictive_moments(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        return mean, variance + self.conditional_moments(mean)[1]
