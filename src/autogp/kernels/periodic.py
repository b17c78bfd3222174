"""Functions that repeat: a kernel of the phase between two points."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from autogp.kernels.base import Kernel, check_points
from autogp.parameters import positive_parameter

__all__ = ["Periodic"]


class Periodic(Kernel):
    """k = variance * exp(-2 sum_d sin^2(pi (x_d - z_d) / period_d) / lengthscale_d^2) (MacKay, 1998).

    `period` and `lengthscale` are a number, one per input [D], or one per latent and input [G, D]; `variance` a number
    or [G]. Times a `Matern52` or `RBF`, the shape that repeats changes slowly.

    >>> import torch
    >>> Periodic(period=2.0).gram(torch.zeros(1, 1), torch.tensor([[2.0], [1.0]])).tolist()  # 1 and exp(-2)
    [[[1.0, 0.1353352814912796]]]
    """

    def __init__(
        self,
        period: float | Sequence | Tensor = 1.0,
        lengthscale: float | Sequence | Tensor = 1.0,
        variance: float | Sequence | Tensor = 1.0,
    ):
        super().__init__()
        self.log_period = positive_parameter(period, "period", ndim=2)
        self.log_lengthscale = positive_parameter(lengthscale, "lengthscale", ndim=2)
        self.log_variance = positive_parameter(variance, "variance")

    @property
    def period(self) -> Tensor:  # [G, D] or [G, 1]
        return self.log_period.exp()

    def gram(self, x: Tensor, z: Tensor) -> Tensor:
        self._check(x=x, z=z)
        apart = math.pi * (x[..., :, None, :] - z[..., None, :, :])  # [..., N, M, D]
        sine = torch.sin(apart * self._inverse(self.log_period, x)) * self._inverse(self.log_lengthscale, x)
        return self.log_variance.exp()[:, None, None].to(x.dtype) * torch.exp(-2 * sine.square().sum(-1))

    def diag(self, x: Tensor) -> Tensor:
        self._check(x=x)
        groups = max(*(len(each) for each in self.parameters()), *x.shape[:-2])
        return self.log_variance.exp()[:, None].to(x.dtype).expand(groups, x.shape[-2])

    def _check(self, **points: Tensor) -> None:
        check_points(max(self.log_period.shape[-1], self.log_lengthscale.shape[-1]), **points)

    @staticmethod
    def _inverse(logarithm: Tensor, like: Tensor) -> Tensor:  # [G, 1, 1, D]
        return torch.exp(-logarithm)[:, None, None].to(like.dtype)
