"""The arc-cosine kernel of any depth: the covariance of an infinitely wide neural network (Cho & Saul, 2009)."""

import math
from collections.abc import Sequence
from numbers import Integral
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from autogp.distances import squared_distance
from autogp.kernels.base import Kernel, check_points
from autogp.parameters import describe_range, optional_parameter, positive_parameter

__all__ = ["ArcCosine"]

MAX_DEPTH = 100  # long before, all points have become alike


class ArcCosine(Kernel):
    """Arc-cosine kernel of degree 0 (steps), 1 (rectified linear) or 2 (rectified quadratic), `depth` layers deep.

    Appendix B of the paper, with inner products <x, z> = bias + sum_d weight_variance_d x_d z_d in the first layer:

        k_1(x, z) = (<x,x> <z,z>)^(n/2) J_n(t) / pi,    k_{l+1} = (k_l(x,x) k_l(z,z))^(n/2) J_n(t_l) / pi,

    times `variance`. The paper's form is bias 0 and weight variance 1. Degree 2 grows as 3 k^2 with each layer:
    `normalize=True` divides by sqrt(k(x,x) k(z,z)), so that k(x,x) = variance for every x.

    `weight_variance` is a number, [D] (one per input: ARD) or [G, D]; `bias` and `variance` numbers or [G].
    A bias of 0, or None, leaves it out.

    >>> import torch
    >>> ArcCosine(degree=1, depth=3).diag(torch.tensor([[3.0, 4.0]])).item()  # |x|^2
    25.0
    """

    def __init__(
        self,
        degree: int = 1,
        depth: int = 1,
        weight_variance: float | Sequence | Tensor = 1.0,
        bias: float | Sequence | Tensor | None = None,
        variance: float | Sequence | Tensor = 1.0,
        normalize: bool = False,
    ):
        super().__init__()
        if degree not in (0, 1, 2):
            raise ValueError(f"degree must be 0, 1 or 2, got {degree!r}")
        if not isinstance(depth, Integral) or not 1 <= depth <= MAX_DEPTH:
            raise ValueError(f"depth must be an integer from 1 to {MAX_DEPTH}, got {depth!r}")
        self.degree = int(degree)
        self.depth = int(depth)
        self.normalize = bool(normalize)
        self.log_weight_variance = positive_parameter(weight_variance, "weight_variance", ndim=2)
        self.log_bias = optional_parameter(bias, "bias")
        self.log_variance = positive_parameter(variance, "variance")

    @property
    def weight_variance(self) -> Tensor:  # [G, D] or [G, 1]
        return self.log_weight_variance.exp()

    @property
    def bias(self) -> Tensor | None:  # [G]
        return None if self.log_bias is None else self.log_bias.exp()

    @property
    def variance(self) -> Tensor:  # [G]
        return self.log_variance.exp()

    def describe(self) -> str:
        variance = describe_range(self.variance)
        return f"{type(self).__name__}: degree {self.degree}, depth {self.depth}, variance {variance}"

    def gram(self, x: Tensor, z: Tensor) -> Tensor:
        check_points(self.log_weight_variance.shape[-1], x=x, z=z)
        x_direction, x_norm = self._directions(x)
        z_direction, z_norm = (x_direction, x_norm) if z is x else self._directions(z)
        # d = 1 - cos(angle) is carried instead of the cosine: near 0 it keeps the digits that 1 - d would lose.
        d = (0.5 * squared_distance(x_direction, z_direction)).clamp_max(2)
        for _ in range(self.depth):
            d = _Layer.apply(d, self.degree)
        scale = self._scale(x_norm)[..., :, None] * self._scale(z_norm)[..., None, :]
        return self.variance[:, None, None].to(x.dtype) * scale * (1 - d)

    def diag(self, x: Tensor) -> Tensor:
        check_points(self.log_weight_variance.shape[-1], x=x)
        return self.variance[:, None].to(x.dtype) * self._scale(self._directions(x)[1]).square()

    def _directions(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Unit vectors [G, N, D + 1 or 2] and norms [G, N] of (sqrt(bias), sqrt(weight_variance) x).

        The zero vector has no direction: it gets one of its own, orthogonal to all others, through the last column.
        """
        x = x * self.weight_variance[:, None].sqrt().to(x.dtype)
        if self.bias is not None:
            x = torch.cat([x, self.bias[:, None, None].sqrt().to(x.dtype).expand(*x.shape[:-1], 1)], -1)
        largest = x.detach().abs().amax(-1, keepdim=True)  # squares of the ratios neither overflow nor underflow
        zero = largest == 0
        ratio = x / torch.where(zero, 1.0, largest)
        length = torch.where(zero, 1.0, ratio.square().sum(-1, keepdim=True)).sqrt()
        return torch.cat([ratio / length, zero.to(x.dtype)], -1), (largest * length).squeeze(-1)

    def _scale(self, norm: Tensor) -> Tensor:
        """sqrt(k(x, x)) after the last layer, without `variance`: k <- 1, k, 3 k^2 per layer for degrees 0, 1, 2."""
        if self.normalize or self.degree == 0:
            return torch.ones_like(norm)
        for _ in range(self.depth if self.degree == 2 else 0):
            norm = math.sqrt(3) * norm.square()
        return norm


class _Layer(torch.autograd.Function):
    """One layer on d = 1 - cos t: d <- 1 - J_n(t) / J_n(0), with dJ_n/dcos t = n^2 J_{n-1} in closed form."""

    @staticmethod
    def forward(ctx: Any, d: Tensor, degree: int) -> Tensor:
        t = 2 * torch.atan2(d.sqrt(), (2 - d).sqrt())  # in [0, pi]; exact at both ends, unlike arccos(1 - d)
        sine, cosine = (d * (2 - d)).sqrt(), 1 - d
        if degree == 0:  # J_0 = pi - t: a cusp at t = 0 and t = pi, where 0 serves as the slope
            value = t / math.pi
            slope = torch.where(sine > 0, 1 / (math.pi * sine.clamp_min(torch.finfo(d.dtype).tiny)), 0.0)
        elif degree == 1:  # J_1 = sin t + (pi - t) cos t
            value = d - _odd_difference(t, sine - t * cosine, (1 / 3, -1 / 30, 1 / 840, -1 / 45360), 3) / math.pi
            slope = 1 - t / math.pi
        else:  # J_2 = 3 sin t cos t + (pi - t) (1 + 2 cos^2 t)
            exact = t * (1 + 2 * cosine.square()) - 3 * sine * cosine
            remainder = _odd_difference(t, exact, (4 / 15, -16 / 315, 4 / 945, -32 / 155925), 5)
            value = (4 * d - 2 * d.square()) / 3 + remainder / (3 * math.pi)
            slope = 4 * (sine + (math.pi - t) * cosine) / (3 * math.pi)
        ctx.save_for_backward(slope)
        return value.clamp(0, 2)

    @staticmethod
    @once_differentiable  # the slope is a constant to autograd: a second derivative would be wrong in silence
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Tensor, None]:
        (slope,) = ctx.saved_tensors
        return grad_outputs[0] * slope, None


def _odd_difference(t: Tensor, exact: Tensor, coefficients: Sequence[float], power: int) -> Tensor:
    """A difference that cancels for small t: there its power series, which starts at t^power, stands in."""
    square = t.square()
    series = torch.zeros_like(t)
    for coefficient in reversed(coefficients):
        series = series * square + coefficient
    return torch.where(t < 0.1, series * t**power, exact)
