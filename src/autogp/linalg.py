"""Factorisations that survive ill-conditioned covariance matrices, and distances that survive large offsets."""

import logging
import math
from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["FIRST_JITTER", "LAST_JITTER", "NotPositiveDefiniteError", "safe_cholesky", "squared_distance"]

logger = logging.getLogger("autogp")

# Relative jitter: where the ladder starts, by the precision of the blocks that L^-1 will multiply, and where it ends.
# A float32 block carries relative errors of 6e-8, which L^-1 magnifies by up to 1 / sqrt(jitter).
FIRST_JITTER = {torch.float64: 1e-10, torch.float32: 1e-6}
LAST_JITTER = 1e-4


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


def _scale(matrix: Tensor) -> Tensor:
    """Square roots of the diagonal [..., M]; entries at the level of rounding, or below, count as rounding."""
    diagonal = torch.diagonal(matrix, dim1=-2, dim2=-1)
    floor = torch.finfo(matrix.dtype).eps * diagonal.mean(-1, keepdim=True)
    return torch.maximum(diagonal, floor.clamp_min(torch.finfo(matrix.dtype).tiny)).sqrt()


def squared_distance(x: Tensor, z: Tensor) -> Tensor:
    """Squared Euclidean distances [..., N, M] between the rows of x [..., N, D] and of z [..., M, D].

    One matrix product; both sides are centred first, so that a common offset does not eat the precision. Pairs so close
    that half of the digits cancel are summed from their differences: equal rows are at distance 0 exactly.
    """
    centre = z.detach().mean(-2, keepdim=True)
    u, v = x - centre, z - centre
    squares = u.square().sum(-1)[..., :, None] + v.square().sum(-1)[..., None, :]
    distance = (squares - 2 * u @ v.mT).clamp_min(0)
    close = (distance.detach() < math.sqrt(torch.finfo(x.dtype).eps) * squares.detach()).nonzero(as_tuple=True)
    if close[0].numel() == 0:
        return distance
    difference = _rows(x, distance.shape[:-1], close[:-1]) - _rows(z, distance.mT.shape[:-1], (*close[:-2], close[-1]))
    return distance.index_put(close, difference.square().sum(-1))


def _rows(x: Tensor, shape: Sequence[int], index: tuple[Tensor, ...]) -> Tensor:
    """The rows [P, D] at `index` of x [..., N, D], its leading axes broadcast to `shape`.

    By index_select: indexing with tensors has a backward pass that adds in no fixed order.
    """
    number = torch.arange(x[..., 0].numel(), device=x.device).reshape(x.shape[:-1]).expand(shape)
    return x.reshape(-1, x.shape[-1]).index_select(0, number[index])
