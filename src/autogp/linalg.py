"""Factorisations that survive ill-conditioned covariance matrices, and distances that survive large offsets."""

import logging
import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = [
    "FIRST_JITTER",
    "LAST_JITTER",
    "NotPositiveDefiniteError",
    "factor_and_inverse",
    "safe_cholesky",
    "safe_factor_and_inverse",
    "squared_distance",
]

logger = logging.getLogger("autogp")

# Relative jitter: where the ladder starts, by the precision of the blocks that L^-1 will multiply, and where it ends.
# A float32 block carries relative errors of 6e-8, which L^-1 magnifies by up to 1 / sqrt(jitter).
FIRST_JITTER = {torch.float64: 1e-10, torch.float32: 1e-6}
LAST_JITTER = 1e-4
SMALLEST_BLOCK = 64
CHUNK_NUMBERS = 2**22  # of the differences between close pairs that are in memory at a time


class NotPositiveDefiniteError(ArithmeticError):
    """A covariance matrix that no admissible jitter makes positive definite."""


def safe_cholesky(matrix: Tensor, first_jitter: float = FIRST_JITTER[torch.float64]) -> Tensor:
    """Lower Cholesky factor of a batch of covariance matrices [..., M, M], in their own precision.

    Each matrix is scaled to a unit diagonal, given the relative jitter `first_jitter`, then ten times more until it
    factorises; the factor is scaled back. Matrices of one batch climb the ladder independently.

    >>> import torch
    >>> L = safe_cholesky(torch.ones(2, 2, dtype=torch.float64))  # rank one
    >>> torch.allclose(L @ L.T, torch.ones(2, 2, dtype=torch.float64))
    True
    """
    if matrix.ndim < 2 or matrix.shape[-1] != matrix.shape[-2]:
        raise ValueError(f"matrix must be square in its last two axes, got shape {tuple(matrix.shape)}")
    if not torch.isfinite(matrix).all():
        raise NotPositiveDefiniteError(
            "the covariance matrix contains NaN or infinity: check the inputs and the kernel's parameters for "
            "values beyond the range of floating point"
        )
    scale = _scale(matrix.detach())
    unit = matrix / scale[..., :, None] / scale[..., None, :]
    jitter = torch.full(matrix.shape[:-2], first_jitter, dtype=matrix.dtype, device=matrix.device)
    while True:
        factor, info = torch.linalg.cholesky_ex(unit + torch.diag_embed(jitter[..., None].expand_as(scale)))
        failed = info > 0
        if not failed.any():
            break
        jitter = torch.where(failed, 10 * jitter, jitter)
        if jitter.max() > 1.01 * LAST_JITTER:
            raise NotPositiveDefiniteError(
                f"the covariance matrix ({matrix.shape[-1]} x {matrix.shape[-1]}) is not positive definite even with a "
                f"relative jitter of {LAST_JITTER:g}"
            )
    if jitter.max() > first_jitter:
        logger.info("Cholesky factorisation needed a relative jitter of %.0e", jitter.max().item())
    return scale[..., :, None] * factor


def safe_factor_and_inverse(matrix: Tensor, first_jitter: float = FIRST_JITTER[torch.float64]) -> tuple[Tensor, Tensor]:
    """L and L^-1 of a batch of covariance matrices, with the jitter of `safe_cholesky`; quicker than one by one.

    >>> import torch
    >>> L, inverse = safe_factor_and_inverse(torch.eye(3, dtype=torch.float64))
    >>> torch.allclose(L @ inverse, torch.eye(3, dtype=torch.float64))
    True
    """
    scale = _scale(matrix.detach())
    unit = matrix / scale[..., :, None] / scale[..., None, :]
    factor, inverse = _FactorAndInverse.apply(unit + first_jitter * _eye(matrix))
    if not torch.isfinite(inverse).all():  # the ladder has to be climbed, or its error raised
        factor = safe_cholesky(matrix, first_jitter)
        return factor, torch.linalg.solve_triangular(factor, _eye(matrix), upper=False)
    return scale[..., :, None] * factor, inverse / scale[..., None, :]


def factor_and_inverse(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """L and L^-1 of positive definite matrices [..., M, M], NaN where they are not; without gradients.

    By halves: L21 = A21 L11^-T, L22 L22' = A22 - L21 L21', (L^-1)21 = -L22^-1 L21 L11^-1. All but the smallest blocks
    is matrix products, which are several times as fast as batches of triangular solves.
    """
    size = matrix.shape[-1]
    if size <= SMALLEST_BLOCK:
        factor, info = torch.linalg.cholesky_ex(matrix)
        factor = torch.where((info > 0)[..., None, None], math.nan, factor)
        return factor, torch.linalg.solve_triangular(factor, _eye(matrix), upper=False)
    half = size // 2
    first, first_inverse = factor_and_inverse(matrix[..., :half, :half])
    below = matrix[..., half:, :half] @ first_inverse.mT
    second, second_inverse = factor_and_inverse(matrix[..., half:, half:] - below @ below.mT)
    factor, inverse = torch.zeros_like(matrix), torch.zeros_like(matrix)
    factor[..., :half, :half], factor[..., half:, :half], factor[..., half:, half:] = first, below, second
    inverse[..., :half, :half], inverse[..., half:, half:] = first_inverse, second_inverse
    inverse[..., half:, :half] = -(second_inverse @ (below @ first_inverse))
    return factor, inverse


class _FactorAndInverse(torch.autograd.Function):
    """L and I = L^-1 of A; gradient I' P I made symmetric, P the lower half of L' dL - dI I' with half its diagonal."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor) -> tuple[Tensor, Tensor]:
        factor, inverse = factor_and_inverse(matrix)
        ctx.save_for_backward(factor, inverse)
        ctx.set_materialize_grads(False)
        return factor, inverse

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grad_outputs: Tensor | None
    ) -> Tensor:
        factor, inverse = ctx.saved_tensors
        factor_grad, inverse_grad = grad_outputs
        inner = torch.zeros_like(factor)
        if factor_grad is not None:
            inner += factor.mT @ factor_grad
        if inverse_grad is not None:
            inner -= inverse_grad @ inverse.mT
        inner = inner.tril_()
        torch.diagonal(inner, dim1=-2, dim2=-1).mul_(0.5)
        gradient = inverse.mT @ inner @ inverse
        return 0.5 * (gradient + gradient.mT)


def _eye(matrix: Tensor) -> Tensor:
    return torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)


def _scale(matrix: Tensor) -> Tensor:
    """Square roots of the diagonal [..., M]; entries at the level of rounding, or below, count as rounding."""
    diagonal = torch.diagonal(matrix, dim1=-2, dim2=-1)
    floor = torch.finfo(matrix.dtype).eps * diagonal.mean(-1, keepdim=True)
    return torch.maximum(diagonal, floor.clamp_min(torch.finfo(matrix.dtype).tiny)).sqrt()


def squared_distance(x: Tensor, z: Tensor, scale: Tensor | None = None) -> Tensor:
    """Squared Euclidean distances [..., N, M] between the rows of x [..., N, D] and of z [..., M, D], times `scale`.

    `scale` is [..., 1, D] or [..., 1, 1]. One matrix product; both sides are centred first, so that a common offset
    does not eat the precision. Pairs so close that half of the digits cancel are summed from their differences: equal
    rows are at distance 0 exactly.
    """
    return _SquaredDistance.apply(x, z, x.new_ones(1, 1) if scale is None else scale)


class _SquaredDistance(torch.autograd.Function):
    """d = |u|^2 + |v|^2 - 2 u v' in the metric scale^2, u = x - c, v = z - c: one product each way, and one more for x.

    Only one side meets the scale, so that rows which all latent functions share are not copied for each of them.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, z: Tensor, scale: Tensor) -> Tensor:
        centre = z.mean(-2, keepdim=True)
        metric = scale.square()
        u = x - centre
        v = u if z is x else z - centre
        scaled = u * metric
        u_square = (u * scaled).sum(-1)[..., :, None]
        v_square = u_square.mT if z is x else _norms(v, metric)[..., None, :]
        distance = _product(scaled, v.mT).mul_(-2).add_(u_square).add_(v_square)
        diagonal = torch.diagonal(distance, dim1=-2, dim2=-1) if z is x else None
        if diagonal is not None:
            diagonal.fill_(math.inf)  # known to be 0: no pair to look at
        eps = torch.finfo(x.dtype).eps
        threshold, largest = math.sqrt(eps), u_square.amax() + v_square.amax() if distance.numel() else 0.0
        ctx.equal, ctx.wide = None, eps * largest > 1e-3
        # Close, or NaN: where squares overflow, infinity less infinity, the differences know better.
        if distance.numel() and not distance.amin() >= threshold * largest:
            far = distance >= threshold * (u_square + v_square)
            for pairs in (~far).nonzero().split(max(1, CHUNK_NUMBERS // u.shape[-1])):
                *batch, row, column = pairs.unbind(-1)
                u_rows = u.expand(*distance.shape[:-1], -1)[(*batch, row)]
                v_rows = v.expand(*distance.mT.shape[:-1], -1)[(*batch, column)]
                scales = scale.expand(*distance.shape[:-2], 1, scale.shape[-1])[(*batch,)].squeeze(-2)
                distance[(*batch, row, column)] = ((u_rows - v_rows) * scales).square().sum(-1)
            ctx.equal = distance == 0
        if diagonal is not None:
            diagonal.zero_()
        ctx.save_for_backward(u, v, scale)
        ctx.shapes, ctx.same = (x.shape, z.shape), z is x
        return distance

    @staticmethod
    @once_differentiable  # the gradients are constants to autograd: a second derivative would be wrong in silence
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        (u, v, scale), (weights,) = ctx.saved_tensors, grad_outputs
        dtype, (x_shape, z_shape) = scale.dtype, ctx.shapes
        x_needed, z_needed, scale_needed = ctx.needs_input_grad
        if ctx.equal is not None:  # equal rows pull at nothing, but for rounding
            weights = weights.masked_fill(ctx.equal, 0)
        if ctx.wide:  # over hundreds of lengthscales float32 would lose the gradient in the rounding of squares
            u, v, scale, weights = u.double(), v.double(), scale.double(), weights.double()
        if ctx.same:  # both sides pull at the same rows: one product for the two
            weights, z_needed = weights + weights.mT, False
            torch.diagonal(weights, dim1=-2, dim2=-1).zero_()
        elif not x_needed:  # the product that x would need is spared
            u, v, weights = v, u, weights.mT
        metric = scale.square()
        row, column = weights.sum(-1)[..., :, None], weights.sum(-2)[..., None, :]
        product = _product(weights, v)  # [..., N, D]
        pull = row * u - product
        u_grad = (2 * metric * pull).to(dtype)
        scale_grad = None
        if scale_needed:
            # sum_nm W_nm (u_n - v_m)^2 for each column, from the product that is there already
            if ctx.same:
                total = (u * pull).sum(-2, keepdim=True)
            else:
                # A point so far away that its square overflows has weight 0, and 0 times the largest number is 0.
                v_square = v.square().clamp_max(torch.finfo(v.dtype).max)
                total = (u * (pull - product)).sum(-2, keepdim=True) + _product(column, v_square)
            scale_grad = (2 * total * scale).sum_to_size(scale.shape).to(dtype)
        if not x_needed:
            return None, u_grad.sum_to_size(z_shape), scale_grad
        v_grad = None
        if z_needed:
            v_grad = (2 * metric * (column.mT * v - _product(weights.mT, u))).to(dtype).sum_to_size(z_shape)
        return u_grad.sum_to_size(x_shape), v_grad, scale_grad


def _norms(x: Tensor, metric: Tensor) -> Tensor:
    """Squared norms [..., N] of the rows of x [..., N, D] in a diagonal metric [..., 1, D] or [..., 1, 1]."""
    if metric.shape[-1] == 1:
        return x.square().sum(-1) * metric.squeeze(-1)
    return _product(metric, x.square().mT).squeeze(-2)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b, for a [G, N, D] and one b [D, M] as one product instead of G."""
    return (a.flatten(0, -2) @ b).unflatten(0, a.shape[:-1]) if a.ndim > 2 and b.ndim == 2 else a @ b
