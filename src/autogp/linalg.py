"""Factorisations that survive ill-conditioned covariance matrices, and products that skip their zeros."""

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
    "expected_log_normal",
    "row_blocks",
    "safe_cholesky",
    "safe_factor_and_inverse",
    "solve",
    "whiten",
]

logger = logging.getLogger("autogp")

# Relative jitter: where the ladder starts, by the precision of the blocks that L^-1 will multiply, and where it ends.
# A float32 block carries relative errors of 6e-8, which L^-1 magnifies by up to 1 / sqrt(jitter).
FIRST_JITTER = {torch.float64: 1e-10, torch.float32: 1e-6}
LAST_JITTER = 1e-4
SMALLEST_BLOCK = 100
MOST_BLOCKS = 4


class NotPositiveDefiniteError(ArithmeticError):
    """A covariance matrix that no admissible jitter makes positive definite."""


def safe_cholesky(matrix: Tensor, first_jitter: float = FIRST_JITTER[torch.float64]) -> Tensor:
    """Lower Cholesky factor of a batch of covariance matrices [..., M, M], in their own precision.

    Each diagonal grows by `first_jitter` of itself, then by ten times more until the matrix factorises. Matrices of one
    batch climb the ladder independently.

    >>> import torch
    >>> L = safe_cholesky(torch.ones(2, 2, dtype=torch.float64))  # rank one
    >>> torch.allclose(L @ L.T, torch.ones(2, 2, dtype=torch.float64))
    True
    """
    if matrix.ndim < 2 or matrix.shape[-1] != matrix.shape[-2]:
        raise ValueError(f"matrix must be square in its last two axes, got shape {tuple(matrix.shape)}")
    diagonal = _diagonal(matrix.detach())
    factor, info = torch.linalg.cholesky_ex(matrix + torch.diag_embed(first_jitter * diagonal))
    if (info.sum() + 0 * matrix.detach().sum()).item() != 0:  # NaN where an entry is not finite; waits once
        return _climb(matrix, diagonal, info > 0, first_jitter)
    return factor


def _climb(matrix: Tensor, diagonal: Tensor, failed: Tensor, jitter: float) -> Tensor:
    """The factor with more jitter for the matrices that failed."""
    if not torch.isfinite(matrix).all():
        raise NotPositiveDefiniteError(
            "the covariance matrix contains NaN or infinity: check the inputs and the kernel's parameters for "
            "values beyond the range of floating point"
        )
    jitters = torch.full(matrix.shape[:-2], jitter, dtype=matrix.dtype, device=matrix.device)
    while True:
        jitters = torch.where(failed, 10 * jitters, jitters)
        if jitters.max() > 1.01 * LAST_JITTER:
            raise NotPositiveDefiniteError(
                f"the covariance matrix ({matrix.shape[-1]} x {matrix.shape[-1]}) is not positive definite even with a "
                f"relative jitter of {LAST_JITTER:g}"
            )
        factor, info = torch.linalg.cholesky_ex(matrix + torch.diag_embed(jitters[..., None] * diagonal))
        failed = info > 0
        if not failed.any():
            logger.info("Cholesky factorisation needed a relative jitter of %.0e", jitters.max().item())
            return factor


def safe_factor_and_inverse(matrix: Tensor, first_jitter: float = FIRST_JITTER[torch.float64]) -> tuple[Tensor, Tensor]:
    """L and L^-1 of a batch of covariance matrices, with the jitter of `safe_cholesky`.

    >>> import torch
    >>> L, inverse = safe_factor_and_inverse(torch.eye(3, dtype=torch.float64))
    >>> torch.allclose(L @ inverse, torch.eye(3, dtype=torch.float64))
    True
    """
    factor = safe_cholesky(matrix, first_jitter)
    return factor, torch.linalg.solve_triangular(factor, _eye(matrix), upper=False)


def whiten(matrix: Tensor, inverse: Tensor, cross: Tensor) -> Tensor:
    """L^-1 cross [G, M, B] in the precision of `cross`, where L L' = matrix [G, M, M] and L^-1 is at hand.

    Gradients go to `matrix` and `cross`; L^-1 is a constant here.
    """
    return _Whiten.apply(matrix, inverse.detach(), cross)


class _Whiten(torch.autograd.Function):
    """A = I K for I = L^-1.

    The gradient of K is I' dA; that of L L' the symmetric part of I' P I, P the lower half of -dA A' with half its
    diagonal. It is not made symmetric: a covariance matrix hears the symmetric part alone.
    """

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, inverse: Tensor, cross: Tensor) -> Tensor:
        lower = inverse.to(cross.dtype)
        basis = torch.empty_like(cross)
        for g, block in enumerate(cross):  # one group at a time: its block stays in the cache
            _times_lower(lower[g], block, basis[g])
        ctx.save_for_backward(inverse, lower, basis)
        return basis

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Tensor | None, None, Tensor | None]:
        inverse, lower, basis = ctx.saved_tensors
        gradient = grad_outputs[0].contiguous()
        blocks = row_blocks(basis.shape[-2])
        matrix_grad = torch.empty_like(inverse) if ctx.needs_input_grad[0] else None
        cross_grad = torch.empty_like(gradient) if ctx.needs_input_grad[2] else None
        for g, block in enumerate(gradient):
            if matrix_grad is not None:
                inner = torch.zeros_like(lower[g])
                for start, stop in blocks:
                    torch.mm(block[start:stop], basis[g, :stop].mT, out=inner[start:stop, :stop])
                inner = inner.to(inverse.dtype).tril_().neg_()
                inner.diagonal().mul_(0.5)
                product = torch.zeros_like(inner)
                for start, stop in blocks:
                    torch.mm(inner[start:stop, :stop], inverse[g, :stop, :stop], out=product[start:stop, :stop])
                for start, stop in blocks:
                    torch.mm(inverse[g, start:, start:stop].mT, product[start:], out=matrix_grad[g, start:stop])
            if cross_grad is not None:
                _times_upper(lower[g], block, cross_grad[g])
        return matrix_grad, None, cross_grad


def solve(matrix: Tensor, inverse: Tensor, cross: Tensor) -> tuple[Tensor, Tensor]:
    """W = matrix^-1 cross [G, M, B] and diag(cross' W) [G, B] in the precision of `cross`, where L^-1 is at hand.

    Gradients go to `matrix` and `cross`; L^-1 is a constant here.
    """
    return _Solve.apply(matrix, inverse.detach(), cross)


class _Solve(torch.autograd.Function):
    """W = I' I K for I = L^-1, and the squared norms of the columns of I K.

    With H = I' I dW and the norms' gradient d, that of K is H + 2 W diag(d), and that of L L' the symmetric part of
    -(H + W diag(d)) W'. It is not made symmetric: a covariance matrix hears the symmetric part alone.
    """

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, inverse: Tensor, cross: Tensor) -> tuple[Tensor, Tensor]:
        lower = inverse.to(cross.dtype)
        weights, norms = torch.empty_like(cross), cross.new_empty(len(cross), cross.shape[-1])
        for g, block in enumerate(cross):
            basis = _times_lower(lower[g], block, torch.empty_like(block))
            torch.sum(basis.square(), 0, out=norms[g])
            _times_upper(lower[g], basis, weights[g])
        ctx.save_for_backward(lower, weights)
        ctx.dtype = matrix.dtype
        return weights, norms

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Tensor, None, Tensor]:
        lower, weights = ctx.saved_tensors
        weights_grad, norms_grad = (part.contiguous() for part in grad_outputs)
        matrix_grad, cross_grad = torch.empty_like(lower), torch.empty_like(weights)
        for g, block in enumerate(weights_grad):
            back = _times_upper(lower[g], _times_lower(lower[g], block, torch.empty_like(block)), cross_grad[g])
            pulled = weights[g] * norms_grad[g]
            torch.mm(back.add_(pulled), weights[g].mT, out=matrix_grad[g])
            back.add_(pulled)
        return matrix_grad.to(ctx.dtype).neg_(), None, cross_grad


def expected_log_normal(matrix: Tensor, inverse: Tensor, second: Tensor) -> Tensor:
    """E[log N(u_q; 0, matrix)], summed over q, of vectors with second moments E[u u'] [Q, M, M], where L^-1 is at hand.

    `matrix` is [G, M, M] with G = 1 or Q. Gradients go to it alone, and once: they are constants.
    """
    with torch.no_grad():
        count = len(second) // len(matrix)  # that share a matrix
        second = second.sum(0, keepdim=True) if len(matrix) == 1 else second
        precision = inverse.mT @ inverse  # P
        log_det = 2 * torch.diagonal(inverse, dim1=-2, dim2=-1).log().sum()  # log |P|
        size = len(matrix) * matrix.shape[-1] * math.log(2 * math.pi)
        value = 0.5 * (count * (log_det - size) - (precision * second).sum())
        slope = 0.5 * (precision @ second @ precision - count * precision)  # d value / d matrix
    return value + (slope * (matrix - matrix.detach())).sum()


def _times_lower(lower: Tensor, block: Tensor, out: Tensor) -> Tensor:
    """L^-1 block, a block of rows at a time to skip the zeros."""
    for start, stop in row_blocks(len(block)):
        torch.mm(lower[start:stop, :stop], block[:stop], out=out[start:stop])
    return out


def _times_upper(lower: Tensor, block: Tensor, out: Tensor) -> Tensor:
    """L^-T block, likewise."""
    for start, stop in row_blocks(len(block)):
        torch.mm(lower[start:, start:stop].mT, block[start:], out=out[start:stop])
    return out


def row_blocks(size: int) -> list[tuple[int, int]]:
    """Where blocks of rows start and stop, for products of which only the lower triangle is wanted, or is not 0."""
    count = max(1, min(MOST_BLOCKS, size // SMALLEST_BLOCK))
    return [(size * i // count, size * (i + 1) // count) for i in range(count)]


def _eye(matrix: Tensor) -> Tensor:
    return torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)


def _diagonal(matrix: Tensor) -> Tensor:
    """The diagonal [..., M]; entries at the level of rounding, or below, count as rounding, and 0 as a tiny number."""
    diagonal, precision = torch.diagonal(matrix, dim1=-2, dim2=-1), torch.finfo(matrix.dtype)
    floor = precision.eps * diagonal.mean(-1, keepdim=True)
    return torch.maximum(diagonal, floor.clamp_min(precision.tiny / precision.eps**2))
