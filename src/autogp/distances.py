"""Distances that survive large offsets, overflow and equal points."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from autogp.linalg import row_blocks

__all__ = ["squared_distance"]

CHUNK_NUMBERS = 2**22  # of the differences between close pairs that are in memory at a time
FEW_COLUMNS = 32  # up to here products in float64 cost a CPU less than the search for close pairs of float32


def squared_distance(x: Tensor, z: Tensor, scale: Tensor | None = None) -> Tensor:
    """Squared Euclidean distances [G, N, M] between the rows of x [G, N, D] and of z [G, M, D], times `scale`.

    `scale` is [G, 1, D] or [G, 1, 1]. A G of 1 serves all; without G in any of them, the result is [N, M]. One matrix
    product; both sides are centred first, so that a common offset does not eat the precision. Pairs so close that half
    of the digits cancel are summed from their differences: equal rows are at distance 0 exactly.
    """
    scale = x.new_ones(1, 1) if scale is None else scale
    own, flat = z is x, max(x.ndim, z.ndim, scale.ndim) == 2
    x, z, scale = (part[None] if part.ndim == 2 else part for part in (x, z, scale))
    distance = _OwnDistance.apply(x, scale) if own else _Distance.apply(x, z, scale)
    return distance[0] if flat else distance


class _OwnDistance(torch.autograd.Function):
    """Between the rows of x: d_ij = P_ii + P_jj - 2 P_ij, P = u u', u = scale (x - c). One product each way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor) -> Tensor:
        groups, size = max(len(x), len(scale)), x.shape[-2]
        centre = _centre(x)
        distance, square = x.new_empty(groups, size, size), x.new_empty(groups, size)
        for g, block in enumerate(distance):  # one group at a time: its block stays in the cache
            u = (_of(x, g) - _of(centre, g)).mul_(_of(scale, g))
            for start, stop in row_blocks(size):  # symmetric: the upper half is copied
                torch.mm(u[start:stop], u[:stop].mT, out=block[start:stop, :stop])
                block[:start, start:stop] = block[start:stop, :start].mT
            square[g] = block.diagonal()
            block.mul_(-2).add_(square[g, :, None]).add_(square[g])
        diagonal = torch.diagonal(distance, dim1=-2, dim2=-1)
        diagonal.fill_(math.inf)  # known to be 0: no pair to look at
        ctx.equal, ctx.wide = _mend_close(distance, x, x, scale, square[..., :, None], square[..., None, :])
        diagonal.zero_()
        ctx.save_for_backward(x, scale, centre)
        return distance

    @staticmethod
    @once_differentiable  # the gradients are constants to autograd: a second derivative would be wrong in silence
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Tensor, Tensor]:
        (x, scale, centre), (weights,) = ctx.saved_tensors, grad_outputs
        dtype = x.dtype
        if ctx.equal is not None:  # equal rows pull at nothing, but for rounding
            weights = weights.masked_fill(ctx.equal, 0)
        if ctx.wide:
            x, scale, centre, weights = x.double(), scale.double(), centre.double(), weights.double()
        tiny = torch.finfo(x.dtype).tiny
        pulls, scale_grad = x.new_empty(*weights.shape[:2], x.shape[-1]), torch.zeros_like(scale)
        for g, weight in enumerate(weights):
            factor = _of(scale, g)
            u = (_of(x, g) - _of(centre, g)).mul_(factor)
            both = weight + weight.mT  # both sides pull at the same rows
            both.diagonal().zero_().sub_(both.sum(-1))
            pull = torch.mm(both.mul_(-2), u)  # 2 sum_j W_ij (u_i - u_j)
            # A lengthscale without bounds has scale 0, where all differences are 0 too.
            columns = u.mul_(pull).sum(0, keepdim=True) / factor.clamp_min(tiny)
            _of(scale_grad, g).add_(columns.sum_to_size(factor.shape))
            torch.mul(pull, factor, out=pulls[g])
        return pulls.sum_to_size(x.shape).to(dtype), scale_grad.to(dtype)


class _Distance(torch.autograd.Function):
    """d = |u|^2 + |v|^2 - 2 u v' in the metric scale^2, u = x - c, v = z - c: one product each way, and one more for z.

    Only x meets the scale, so that rows z which all latent functions share are not copied for each of them.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, z: Tensor, scale: Tensor) -> Tensor:
        own = x, z, scale
        dtype, widened = x.dtype, x.dtype == torch.float32 and x.shape[-1] <= FEW_COLUMNS and x.device.type == "cpu"
        if widened:
            x, z, scale = (part.double() for part in own)
        metric = scale.square()
        centre = _centre(x if len(x) == 1 and x.shape[-2] < z.shape[-2] else z)  # of the fewer rows
        v = z - centre
        squares = v.square()
        v_square = _product(metric.expand(-1, -1, z.shape[-1]), squares.mT)
        scaled = x.new_empty(max(len(x), len(z), len(scale)), *x.shape[1:])
        u_square = x.new_empty(*scaled.shape[:-1], 1)
        for g, block in enumerate(scaled):  # one group at a time: its block stays in the cache
            u = _of(x, g) - _of(centre, g)
            torch.mul(u, -2 * _of(metric, g), out=block)
            torch.sum(u.mul_(block), -1, keepdim=True, out=u_square[g]).mul_(-0.5)
        distance = _product(scaled, v.mT).add_(u_square).add_(v_square)
        ctx.equal, ctx.wide = _mend_close(distance, x, z, scale, u_square, v_square, torch.finfo(dtype).eps)
        ctx.save_for_backward(*own, *(part.to(dtype) for part in (v, squares, centre)))
        return distance.to(dtype)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        (x, z, scale, v, squares, centre), (weights,) = ctx.saved_tensors, grad_outputs
        dtype = x.dtype
        x_needed, z_needed, scale_needed = ctx.needs_input_grad
        if ctx.equal is not None:
            weights = weights.masked_fill(ctx.equal, 0)
        if ctx.wide:
            x, z, scale, weights = x.double(), z.double(), scale.double(), weights.double()
            centre = centre.double()
            v = z - centre
            # A point so far away that its square overflows has weight 0, and 0 times the largest number is 0.
            squares = v.square().clamp_max_(torch.finfo(v.dtype).max)
        z_grad, scale_grad = torch.zeros_like(z) if z_needed else None, torch.zeros_like(scale)
        rows, columns = weights.sum(-1, keepdim=True), weights.sum(-2, keepdim=True)
        product = _product(weights, v) if x_needed or scale_needed else None  # [G, N, D]
        totals = _product(columns, squares)  # for the sums of W_nm (u_n - v_m)^2 in each column
        for g, weight in enumerate(weights):
            u, factor = _of(x, g) - _of(centre, g), _of(scale, g)
            metric = 2 * factor.square()
            if z_grad is not None:
                pulled = torch.mm(weight.mT, u).addcmul_(columns[g].mT, _of(v, g), value=-1)
                _of(z_grad, g).addcmul_(pulled, metric, value=-1)
            if product is not None:
                own = product[g]
                pull = torch.addcmul(own, rows[g], u, value=-1)  # sum_m W_nm (v_m - u_n)
                total = totals[g] - own.add_(pull).mul_(u).sum(0, keepdim=True)
                _of(scale_grad, g).add_((2 * total * factor).sum_to_size(factor.shape))
                torch.mul(pull, -metric, out=own)
        x_grad = None if product is None else product.sum_to_size(x.shape).to(dtype)
        return x_grad, None if z_grad is None else z_grad.to(dtype), scale_grad.to(dtype)


def _of(parts: Tensor, group: int) -> Tensor:
    """What belongs to one group; one for all serves each."""
    return parts[group % parts.shape[0]]


def _centre(x: Tensor) -> Tensor:
    """The mean of the rows."""
    return x.mean(-2, keepdim=True)


def _mend_close(
    distance: Tensor,
    x: Tensor,
    z: Tensor,
    scale: Tensor,
    x_square: Tensor,
    z_square: Tensor,
    gradient_eps: float | None = None,
) -> tuple[Tensor | None, bool]:
    """Puts what the differences say for pairs so close that half of the digits cancelled.

    Close, or NaN: where squares overflow, infinity less infinity, the differences know better. Gives which pairs are
    equal, if any is, and whether the rounding of squares would lose gradients: over hundreds of lengthscales.
    """
    if not distance.numel():
        return None, False
    extremes = torch.stack([distance.amin(), x_square.amax(), z_square.amax()])
    nearest, *largest = extremes.tolist()  # waits for the device, once
    eps = torch.finfo(distance.dtype).eps
    wide, threshold = not (gradient_eps or eps) * sum(largest) <= 1e-3, math.sqrt(eps)
    if nearest >= threshold * sum(largest):
        return None, wide
    equal = []
    candidates = ~(distance >= threshold * (x_square + largest[1]))  # one pass; few of them are close for their size
    for pairs in candidates.nonzero().split(max(1, CHUNK_NUMBERS // x.shape[-1])):
        *batch, row, column = pairs.unbind(-1)
        sizes = (
            x_square.expand_as(distance)[(*batch, row, column)] + z_square.expand_as(distance)[(*batch, row, column)]
        )
        pairs = pairs[~(distance[(*batch, row, column)] >= threshold * sizes)]
        *batch, row, column = pairs.unbind(-1)
        x_rows = x.expand(*distance.shape[:-1], -1)[(*batch, row)]
        z_rows = z.expand(*distance.mT.shape[:-1], -1)[(*batch, column)]
        scales = scale.expand(*distance.shape[:-2], 1, scale.shape[-1])[(*batch,)].squeeze(-2)
        exact = ((x_rows - z_rows) * scales).square().sum(-1)
        distance[(*batch, row, column)] = exact
        equal.append(pairs[exact == 0])
    if not sum(map(len, equal)):
        return None, wide
    mask = torch.zeros_like(distance, dtype=torch.bool)
    mask[torch.cat(equal).unbind(-1)] = True
    return mask, wide


def _product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b, for a [G, N, D] and one b [1, D, M] as one product instead of G."""
    return (a.flatten(0, 1) @ b[0]).unflatten(0, a.shape[:2]) if b.shape[0] == 1 else a @ b
