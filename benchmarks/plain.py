"""The hand-written autograd functions of autogp in plain torch, left to autograd.

`tests/test_plain_forms.py` proves that they have the same values and gradients, `benchmarks/ablation.py` measures what
each saves. G is the number of kernels, as everywhere.
"""

import contextlib
import math
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from autogp.distances import _mend_close
from autogp.kernels.arccosine import _odd_difference
from autogp.moments import DenseMoments, FactoredMoments

__all__ = ["PLAIN", "replaced"]


def own_distance(x: Tensor, scale: Tensor) -> Tensor:
    """P_ii + P_jj - 2 P_ij, P = u u', u = scale (x - c)."""
    u = (x - x.detach().mean(-2, keepdim=True)) * scale
    product = u @ u.mT
    square = torch.diagonal(product, dim1=-2, dim2=-1)
    if x.dtype != torch.float64 and _is_wide(square, square):
        return own_distance(x.double(), scale.double()).to(x.dtype)
    rows, columns = square[..., :, None], square[..., None, :]
    found = torch.add(rows + columns, product, alpha=-2)
    torch.diagonal(found.detach(), dim1=-2, dim2=-1).fill_(math.inf)  # no pair to look at
    found = _mended(found, x, x, scale, rows, columns)
    torch.diagonal(found.detach(), dim1=-2, dim2=-1).zero_()
    return found


def distance(x: Tensor, z: Tensor, scale: Tensor) -> Tensor:
    """|u|^2 + |v|^2 - 2 u v' in the metric scale^2, u = x - c, v = z - c."""
    metric, centre = scale.square().expand(-1, -1, x.shape[-1]), z.detach().mean(-2, keepdim=True)
    u, v = x - centre, z - centre
    weighted = metric * u
    rows = (weighted * u).sum(-1, keepdim=True)
    squares = v.square()
    columns = torch.einsum("gad,gmd->gam", metric, squares)
    if _is_wide(rows, columns):
        if x.dtype != torch.float64:
            return distance(x.double(), z.double(), scale.double()).to(x.dtype)
        squares = squares.clamp_max(torch.finfo(x.dtype).max)  # the gradient of `metric` would be 0 * infinity
        columns = torch.einsum("gad,gmd->gam", metric, squares)
    found = torch.einsum("gnd,gmd->gnm", -2 * weighted, v) + rows + columns
    return _mended(found, x, z, scale, rows, columns)


def _is_wide(*squares: Tensor) -> bool:
    """Whether the rounding of squares would lose gradients."""
    return not torch.finfo(squares[0].dtype).eps * sum(square.amax() for square in squares) <= 1e-3  # or NaN


def _mended(found: Tensor, x: Tensor, z: Tensor, scale: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Close pairs by their differences; no gradient goes to equal ones."""
    with torch.no_grad():
        equal, _ = _mend_close(found, x, z, scale, rows, columns)
    return found if equal is None else found.masked_fill(equal, 0)


def whiten(matrix: Tensor, inverse: Tensor, cross: Tensor) -> Tensor:
    """L^-1 K; the gradient goes to L^-1."""
    return inverse.to(cross.dtype) @ cross


def solve(matrix: Tensor, inverse: Tensor, cross: Tensor) -> tuple[Tensor, Tensor]:
    """L^-T L^-1 K and the squared norms of L^-1 K; the gradient goes to L^-1."""
    lower = inverse.to(cross.dtype)
    basis = lower @ cross
    return lower.mT @ basis, basis.square().sum(-2)


def expected_log_normal(matrix: Tensor, inverse: Tensor, second: Tensor) -> Tensor:
    """-1/2 (tr(P E[u u']) - log |P| + M log 2 pi), P = L^-T L^-1; the gradient goes to L^-1."""
    count, size = len(second) // len(matrix), matrix.shape[-1]  # of latents that share a matrix
    second = second.unflatten(0, (len(matrix), count)).sum(1)
    half_log_det = torch.diagonal(inverse, dim1=-2, dim2=-1).log().sum(-1) - 0.5 * size * math.log(2 * math.pi)
    return (count * half_log_det - 0.5 * ((inverse.mT @ inverse) * second).sum((-2, -1))).sum()


def dense_projection(moments: DenseMoments, basis: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A' m, diag(A' S A) and |A|^2."""
    mean, covariance = moments.mean.to(basis.dtype), moments.dense.to(basis.dtype)
    variance = ((covariance @ basis) * basis).sum(-2).clamp_min(0)
    return torch.einsum("kqm,qmb->kqb", mean, basis), variance, basis.square().sum(-2)


def factored_projection(moments: FactoredMoments, basis: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A' m, |C^-1 A|^2, S = (C C')^-1, and |A|^2."""
    mean = moments.mean.to(basis.dtype)
    half = torch.linalg.solve_triangular(moments.factor, basis.expand(*moments.factor.shape[:2], -1, -1), upper=False)
    return torch.einsum("kqm,qmb->kqb", mean, basis), half.square().sum(-2), basis.square().sum(-2)


def matern(squared: Tensor, p: int) -> Tensor:
    """(1 + s + s^2 / 3) exp(-s), s^2 = p d, for p = 5; no gradient goes to d = 0, where no distance has one either."""
    square = (p * squared).clamp(torch.finfo(squared.dtype).tiny, 1e8)
    s = square.sqrt()
    factor = {1: 1.0, 3: 1 + s, 5: 1 + s + square / 3}[p]
    return factor * torch.exp(-s)


def layer(d: Tensor, degree: int) -> Tensor:
    """1 - J_n(t) / J_n(0), d = 1 - cos t; no gradient goes to t = 0 and t = pi."""
    inside = (d > 0) & (d < 2)
    safe = torch.where(inside, d, 1.0)
    t = torch.where(inside, 2 * torch.atan2(safe.sqrt(), (2 - safe).sqrt()), 0.5 * math.pi * d.detach())
    sine, cosine = torch.where(inside, (safe * (2 - safe)).sqrt(), 0.0), 1 - d
    if degree == 0:
        return t / math.pi
    if degree == 1:
        remainder = _odd_difference(t, sine - t * cosine, (1 / 3, -1 / 30, 1 / 840, -1 / 45360), 3)
        return (d - remainder / math.pi).clamp(0, 2)
    exact = t * (1 + 2 * cosine.square()) - 3 * sine * cosine
    remainder = _odd_difference(t, exact, (4 / 15, -16 / 315, 4 / 945, -32 / 155925), 5)
    return ((4 * d - 2 * d.square()) / 3 + remainder / (3 * math.pi)).clamp(0, 2)


# What stands where, by the name of the autograd function.
PLAIN: dict[str, dict[str, Callable | SimpleNamespace]] = {
    "_OwnDistance": {"autogp.distances._OwnDistance": SimpleNamespace(apply=own_distance)},
    "_Distance": {"autogp.distances._Distance": SimpleNamespace(apply=distance)},
    "_Whiten": {"autogp.model.whiten": whiten},
    "_Solve": {"autogp.moments.solve": solve},
    "expected_log_normal": {"autogp.moments.expected_log_normal": expected_log_normal},
    "_Projection": {
        "autogp.moments.DenseMoments.condition": dense_projection,
        "autogp.moments.FactoredMoments.condition": factored_projection,
    },
    "_Matern": {"autogp.kernels.stationary._Matern": SimpleNamespace(apply=matern)},
    "_Layer": {"autogp.kernels.arccosine._Layer": SimpleNamespace(apply=layer)},
}


@contextlib.contextmanager
def replaced(*names: str) -> Iterator[set[str]]:
    """Within this block the plain forms stand in for these functions; gives the names of those that were called."""
    called: set[str] = set()

    def told(name: str, form: Any) -> Any:
        if isinstance(form, SimpleNamespace):
            return SimpleNamespace(apply=told(name, form.apply))

        def call(*arguments: Any) -> Any:
            called.add(name)
            return form(*arguments)

        return call

    with contextlib.ExitStack() as stack:
        for name in names:
            for place, form in PLAIN[name].items():
                stack.enter_context(mock.patch(place, told(name, form)))
        yield called
