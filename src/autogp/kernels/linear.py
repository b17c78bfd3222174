"""The linear kernel: Bayesian linear regression as a Gaussian process."""

from collections.abc import Sequence

from torch import Tensor

from autogp.kernels.base import Kernel, check_points
from autogp.parameters import optional_parameter, positive_parameter

__all__ = ["Linear"]


class Linear(Kernel):
    """k(x, z) = bias + sum_d variance_d x_d z_d; `variance` is a number, [D] or [G, D], `bias` a number or [G].

    A bias of 0, or None, leaves the intercept out.

    >>> import torch
    >>> Linear(variance=2.0, bias=1.0).gram(torch.tensor([[3.0]]), torch.tensor([[4.0]])).item()
    25.0
    """

    def __init__(self, variance: float | Sequence | Tensor = 1.0, bias: float | Sequence | Tensor | None = None):
        super().__init__()
        self.log_variance = positive_parameter(variance, "variance", ndim=2)
        self.log_bias = optional_parameter(bias, "bias")

    @property
    def variance(self) -> Tensor:  # [G, D] or [G, 1]
        return self.log_variance.exp()

    @property
    def bias(self) -> Tensor | None:  # [G]
        return None if self.log_bias is None else self.log_bias.exp()

    def gram(self, x: Tensor, z: Tensor) -> Tensor:
        check_points(self.log_variance.shape[-1], x=x, z=z)
        product = (x * self.variance[:, None].to(x.dtype)) @ z.mT
        return product if self.bias is None else product + self.bias[:, None, None].to(x.dtype)

    def diag(self, x: Tensor) -> Tensor:
        check_points(self.log_variance.shape[-1], x=x)
        product = (x.square() * self.variance[:, None].to(x.dtype)).sum(-1)
        return product if self.bias is None else product + self.bias[:, None].to(x.dtype)
