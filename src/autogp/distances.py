"""Distances that survive large offsets, overflow and equal points."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["squared_distance"]

CHUNK_NUMBERS = 2**22  # of the differences between close pairs that are in memory at a time


def squared_distance(x: Tensor, z: Tensor, scale: Tensor | None = None) -> Tensor:
    """Squared Euclidean distances [..., N, M] between the rows of x [..., N, D] and of z [..., M, D], times `scale`.

    `scale` is [..., 1, D] or [..., 1, 1]. One matrix product; both sides are centred first, so that a common offset
    does not eat the precision. Pairs so close that half of the digits cancel are summed from their differences: equal
    rows are at distance 0 exactly.
    """
    scale = x.new_ones(1, 1) if scale is None else scale
    return _OwnDistance.apply(x, scale) if z is x else _Distance.apply(x, z, scale)


class _OwnDistance(torch.autograd.Function):
    """Between the rows of x: d_ij = P_ii + P_jj - 2 P_ij, P = u u', u = scale (x - c). One product each way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor) -> Tensor:
        u = _centred(x, x) * scale
        distance = u @ u.mT
        square = torch.diagonal(distance, dim1=-2, dim2=-1).clone()
        distance.mul_(-2).add_(square[..., :, None]).add_(square[..., None, :])
        diagonal = torch.diagonal(distance, dim1=-2, dim2=-1)
        diagonal.fill_(math.inf)  # known to be 0: no pair to look at
        ctx.equal = _mend_close(distance, x, x, scale, square[..., :, None], square[..., None, :])
        diagonal.zero_()
        ctx.wide = _is_wide(square, square)
        ctx.save_for_backward(u, scale, x)
        return distance

    @staticmethod
    @once_differentiable  # the gradients are constants to autograd: a second derivative would be wrong in silence
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Tensor, Tensor]:
        (u, scale, x), (weights,) = ctx.saved_tensors, grad_outputs
        dtype = scale.dtype
        if ctx.equal is not None:  # equal rows pull at nothing, but for rounding
            weights = weights.masked_fill(ctx.equal, 0)
        if ctx.wide:
            scale, weights = scale.double(), weights.double()
            u = _centred(x.double(), x.double()) * scale
        weights = weights + weights.mT  # both sides pull at the same rows
        diagonal = torch.diagonal(weights, dim1=-2, dim2=-1)
        diagonal.zero_().sub_(weights.sum(-1))
        pull = weights.mul_(-2) @ u  # 2 sum_j W_ij (u_i - u_j)
        # A lengthscale without bounds has scale 0, where all differences are 0 too.
        tiny = torch.finfo(scale.dtype).tiny
        scale_grad = ((u * pull).sum(-2, keepdim=True) / scale.clamp_min(tiny)).sum_to_size(scale.shape)
        return pull.mul_(scale).to(dtype).sum_to_size(x.shape), scale_grad.to(dtype)


class _Distance(torch.autograd.Function):
    """d = |u|^2 + |v|^2 - 2 u v' in the metric scale^2, u = x - c, v = z - c: one product each way, and one more for z.

    Only x meets the scale, so that rows z which all latent functions share are not copied for each of them.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, z: Tensor, scale: Tensor) -> Tensor:
        metric = scale.square()
        u, v = _centred(x, z), _centred(z, z)
        scaled = u * (-2 * metric)
        u_square = (u * scaled).sum(-1)[..., :, None].mul_(-0.5)
        v_square = _norms(v, metric)[..., None, :]
        distance = _product(scaled, v.mT).add_(u_square).add_(v_square)
        ctx.equal = _mend_close(distance, x, z, scale, u_square, v_square)
        ctx.wide = _is_wide(u_square, v_square)
        ctx.save_for_backward(u, v, scale, x, z)
        return distance

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        (u, v, scale, x, z), (weights,) = ctx.saved_tensors, grad_outputs
        dtype = scale.dtype
        x_needed, z_needed, scale_needed = ctx.needs_input_grad
        if ctx.equal is not None:
            weights = weights.masked_fill(ctx.equal, 0)
        if ctx.wide:
            scale, weights = scale.double(), weights.double()
            u, v = _centred(x.double(), z.double()), _centred(z.double(), z.double())
        metric = 2 * scale.square()
        row, column = weights.sum(-1)[..., :, None], weights.sum(-2)[..., None, :]
        u_grad = v_grad = scale_grad = None
        if x_needed or scale_needed:
            product = _product(weights, v)  # [..., N, D]
            if scale_needed:  # sum_nm W_nm (u_n - v_m)^2 for each column
                total = _column_sums(row, u) + _column_sums(column.mT, v) - 2 * (u * product).sum(-2, keepdim=True)
                scale_grad = (2 * total * scale).sum_to_size(scale.shape).to(dtype)
            u_grad = product.addcmul_(row, u, value=-1).mul_(-metric).to(dtype).sum_to_size(x.shape)
        if z_needed:
            v_grad = (metric * (column.mT * v - _product(weights.mT, u))).to(dtype).sum_to_size(z.shape)
        return u_grad, v_grad, scale_grad


def _centred(x: Tensor, z: Tensor) -> Tensor:
    """x less the mean of the rows of z."""
    return x - z.mean(-2, keepdim=True)


def _mend_close(distance: Tensor, x: Tensor, z: Tensor, scale: Tensor, *squares: Tensor) -> Tensor | None:
    """Puts what the differences say for pairs so close that half of the digits cancelled; which are equal, if any was.

    Close, or NaN: where squares overflow, infinity less infinity, the differences know better.
    """
    if not distance.numel():
        return None
    x_square, z_square = squares
    threshold = math.sqrt(torch.finfo(distance.dtype).eps)
    if distance.amin() >= threshold * (x_square.amax() + z_square.amax()):
        return None
    close = ~(distance >= threshold * (x_square + z_square))
    for pairs in close.nonzero().split(max(1, CHUNK_NUMBERS // x.shape[-1])):
        *batch, row, column = pairs.unbind(-1)
        x_rows = x.expand(*distance.shape[:-1], -1)[(*batch, row)]
        z_rows = z.expand(*distance.mT.shape[:-1], -1)[(*batch, column)]
        scales = scale.expand(*distance.shape[:-2], 1, scale.shape[-1])[(*batch,)].squeeze(-2)
        distance[(*batch, row, column)] = ((x_rows - z_rows) * scales).square().sum(-1)
    return distance == 0


def _is_wide(*squares: Tensor) -> bool:
    """Whether float32 would lose gradients in the rounding of squares: over hundreds of lengthscales."""
    return all(square.numel() for square in squares) and bool(
        torch.finfo(squares[0].dtype).eps * sum(square.amax() for square in squares) > 1e-3
    )


def _column_sums(weights: Tensor, x: Tensor) -> Tensor:
    """sum_n w_n x_n^2 for each column [..., 1, D], from [..., N, 1] and [..., N, D]."""
    # A point so far away that its square overflows has weight 0, and 0 times the largest number is 0.
    return _product(weights.mT, x.square().clamp_max_(torch.finfo(x.dtype).max))


def _norms(x: Tensor, metric: Tensor) -> Tensor:
    """Squared norms [..., N] of the rows of x [..., N, D] in a diagonal metric [..., 1, D] or [..., 1, 1]."""
    if metric.shape[-1] == 1:
        return x.square().sum(-1) * metric.squeeze(-1)
    return _product(metric, x.square().mT).squeeze(-2)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b, for a [G, N, D] and one b [D, M] as one product instead of G."""
    return (a.flatten(0, -2) @ b).unflatten(0, a.shape[:-1]) if a.ndim > 2 and b.ndim == 2 else a @ b
