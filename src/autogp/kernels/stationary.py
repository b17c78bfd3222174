"""Kernels of the distance between two points: RBF and Matérn, isotropic or with one lengthscale per input (ARD)."""

import math
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from autogp.distances import squared_distance
from autogp.kernels.base import Kernel, check_points
from autogp.parameters import positive_parameter

__all__ = ["RBF", "Matern12", "Matern32", "Matern52", "RationalQuadratic", "Stationary"]


class Stationary(Kernel):
    """k(x, z) = variance * profile(|(x - z) / lengthscale|^2), with profile(0) = 1.

    `lengthscale` is a number, one per input [D], or one per latent and input [G, D]; `variance` a number or [G]. Where
    inputs share lengthscales [L] or [G, L], `shared` has for each input the number of its own.

    >>> import torch
    >>> kernel = RBF(lengthscale=[1.0, 2.0], shared=[0, 1, 1])  # a number, and a category as two columns
    >>> kernel.squared_distance(torch.zeros(1, 3), torch.tensor([[1.0, 2.0, 2.0]])).item()
    3.0
    """

    def __init__(
        self,
        lengthscale: float | Sequence | Tensor = 1.0,
        variance: float | Sequence | Tensor = 1.0,
        shared: Sequence[int] | None = None,
    ):
        super().__init__()
        self.log_lengthscale = positive_parameter(lengthscale, "lengthscale", ndim=2)
        self.log_variance = positive_parameter(variance, "variance")
        self.shared = None if shared is None else [operator.index(each) for each in shared]
        if self.shared is not None and sorted(set(self.shared)) != list(range(self.log_lengthscale.shape[-1])):
            raise ValueError("shared must have for each input the number of its lengthscale, and leave none out")

    @property
    def lengthscale(self) -> Tensor:  # [G, D] or [G, 1]
        return self.log_lengthscale.exp()

    @property
    def variance(self) -> Tensor:  # [G]
        return self.log_variance.exp()

    @property
    def _inputs(self) -> int:
        return self.log_lengthscale.shape[-1] if self.shared is None else len(self.shared)

    def profile(self, squared: Tensor) -> Tensor:
        raise NotImplementedError

    def squared_distance(self, x: Tensor, z: Tensor) -> Tensor:
        """|(x - z) / lengthscale|^2 for all pairs of rows, [G, N, M]."""
        check_points(self._inputs, x=x, z=z)
        inverse = (-self.log_lengthscale[:, None]).exp().to(x.dtype)
        return squared_distance(x, z, inverse if self.shared is None else inverse[..., self.shared])

    def gram(self, x: Tensor, z: Tensor) -> Tensor:
        return self.variance[:, None, None].to(x.dtype) * self.profile(self.squared_distance(x, z))

    def diag(self, x: Tensor) -> Tensor:
        check_points(self._inputs, x=x)
        groups = max(len(self.log_lengthscale), len(self.log_variance), *x.shape[:-2])
        return self.variance[:, None].to(x.dtype).expand(groups, x.shape[-2])

    @torch.no_grad()
    def stretch(self, latents: Tensor, factor: float) -> None:
        if len(self.log_lengthscale) == 1:
            raise ValueError("the kernel needs lengthscales for each latent function: share_kernel=False")
        self.log_lengthscale[latents] += math.log(factor)


class RBF(Stationary):
    """k = variance * exp(-|(x - z) / lengthscale|^2 / 2). The paper's equation has no 1/2; everyone else's has.

    >>> import torch
    >>> RBF(lengthscale=[1.0, 2.0]).gram(torch.zeros(1, 2), torch.tensor([[0.0, 2.0]])).item()  # exp(-1/2)
    0.6065306663513184
    """

    def gram(self, x: Tensor, z: Tensor) -> Tensor:
        # One exponential, of log variance - squared / 2, is a pass over the matrix less than variance * profile.
        return torch.add(self.log_variance[:, None, None].to(x.dtype), self.squared_distance(x, z), alpha=-0.5).exp_()

    def profile(self, squared: Tensor) -> Tensor:
        return torch.exp(-0.5 * squared)


class Matern12(Stationary):
    """k = variance * exp(-r), r = |(x - z) / lengthscale|: continuous, nowhere differentiable functions."""

    def profile(self, squared: Tensor) -> Tensor:
        return _Matern.apply(squared, 1)


class Matern32(Stationary):
    """k = variance * (1 + s) exp(-s), s = sqrt(3) |(x - z) / lengthscale|: once differentiable functions."""

    def profile(self, squared: Tensor) -> Tensor:
        return _Matern.apply(squared, 3)


class Matern52(Stationary):
    """k = variance * (1 + s + s^2 / 3) exp(-s), s = sqrt(5) |(x - z) / lengthscale|: twice differentiable functions."""

    def profile(self, squared: Tensor) -> Tensor:
        return _Matern.apply(squared, 5)


class RationalQuadratic(Stationary):
    """k = variance * (1 + |(x - z) / lengthscale|^2 / (2 alpha))^-alpha: RBF kernels of many lengthscales at once.

    The smaller `alpha` (a number or [G]), the more they differ; for large alpha it is an RBF kernel.

    >>> import torch
    >>> RationalQuadratic(alpha=1.0).gram(torch.zeros(1, 1), torch.tensor([[2.0]])).item()  # 1 / 3
    0.33333...
    """

    def __init__(
        self,
        lengthscale: float | Sequence | Tensor = 1.0,
        variance: float | Sequence | Tensor = 1.0,
        alpha: float | Sequence | Tensor = 1.0,
        shared: Sequence[int] | None = None,
    ):
        super().__init__(lengthscale, variance, shared)
        self.log_alpha = positive_parameter(alpha, "alpha")

    @property
    def alpha(self) -> Tensor:  # [G]
        return self.log_alpha.exp()

    def profile(self, squared: Tensor) -> Tensor:
        alpha = self.alpha[:, None, None].to(squared.dtype)
        return torch.exp(-alpha * torch.log1p(squared / (2 * alpha)))


class _Matern(torch.autograd.Function):
    """The Matérn profile of smoothness p / 2 as a function of the squared distance, and its derivative.

    The derivative stands in closed form because differentiating through sqrt gives 0 / 0 at equal points.
    """

    @staticmethod
    def forward(ctx: Any, squared: Tensor, p: int) -> Tensor:
        s = (p * squared).sqrt_().clamp_max_(1e4)  # exp(-s) is 0 long before; s^2 must not be infinite
        decay = torch.neg(s).exp_()
        if p == 1:  # the cusp has no derivative: 0 serves, the mean of both sides
            slope = torch.where(s > 0, -0.5 * decay / s.clamp_min(math.sqrt(torch.finfo(s.dtype).tiny)), 0.0)
            value = decay
        elif p == 3:
            slope = -1.5 * decay
            value = (1 + s).mul_(decay)
        else:  # as few passes over the matrix as it takes
            rise = 1 + s
            value = torch.addcmul(rise, s, s, value=1 / 3).mul_(decay)
            slope = rise.mul_(decay).mul_(-5 / 6)
        ctx.save_for_backward(slope)
        return value

    @staticmethod
    @once_differentiable  # the slope is a constant to autograd: a second derivative would be wrong in silence
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Tensor, None]:
        (slope,) = ctx.saved_tensors
        return grad_outputs[0] * slope, None
