"""The ELBO of all rows for Gaussian noise that all rows share, from sums over the rows.

With A = L^-1 Kzx, W = diag(weights) and c = 1 / noise, the best q of an output y is in closed form (Titsias, 2009):

    T = A W A'      b = A W y      S^-1 = I + c T      m = c S b

The ELBO needs the variances of q(f) and the residuals only by their sums, which T and b give:

    sum_n w_n var(f_n) = tr(W Kxx) - tr(T) + tr(S T)      sum_n w_n (y_n - a_n'm)^2 = y'W y - 2 m'b + m'T m

So an evaluation is one product for T and one for the gradient of A, c (I - S - m m') A W + c m y'W. Where the noise is
that of a transform w(y) that is learnt, w takes the place of y, its gradient is -c W (w - A'm), and the ELBO has
tr(W log w'(y)) besides.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from autogp.data import Source
from autogp.linalg import row_blocks, whiten
from autogp.model import Prepared, SparseGP
from autogp.posteriors import Natural
from autogp.training.distributed import ALONE, Processes
from autogp.training.feed import Feed

__all__ = ["Collapsed"]

BLOCK_NUMBERS = 2**19  # in the basis of a block of rows: what is computed of them stays in the cache
KEPT_BYTES = 2**29  # of A, Kzx and what its gradient needs, for all rows; beyond they are computed twice
KEPT_EACH = 4  # matrices of the size of A


class _Rows(NamedTuple):
    """Some rows, read once."""

    x: Tensor  # as the kernel takes them, or as the features do, where these learn
    y: Tensor  # targets as the likelihood takes them, [B, Q]
    weights: Tensor | None  # [B], none where all are 1


class _Block(NamedTuple):
    """Rows beside the kernel as it is."""

    rows: _Rows
    cross: Tensor  # Kzx, [G, M, B], with gradients
    prior_variance: Tensor  # k(x, x), [G, B], with gradients
    basis: Tensor  # A, [G, M, B], a constant
    targets: Tensor  # w(y), [Q, B], with gradients where the transform learns
    log_slope: Tensor  # log w'(y), [Q, B], likewise


class Collapsed:
    """The ELBO of all rows, maximised over q, as a function of everything else: what `Profile` is for any likelihood.

    It is for a likelihood that has a `shared_noise`, and for rows without missing targets.
    """

    sites: list[Tensor] | None = None  # q needs no start,
    settled, tolerance, best = True, 0.0, 0.0  # and is always at its optimum

    def __init__(self, model: SparseGP, source: Source, feed: Feed, among: Processes = ALONE):
        self.model, self.feed, self.source, self.among = model, feed, source, among
        self.parameters = {
            name: parameter
            for name, parameter in model.named_parameters()
            if parameter.requires_grad and not name.startswith("posterior.")
        }
        size, latents = model.inducing_inputs.shape[-2], model.likelihood.num_latents
        groups = len(model.kernel.gram(model.inducing_inputs, model.inducing_inputs[:, :1]))
        count = max(1, BLOCK_NUMBERS // (groups * size))
        first = among.own(feed.num_data).start
        learns = model.features is not None and any(each.requires_grad for each in model.features.parameters())
        self.embed = model.embed if learns else lambda x: x
        self.rows: list[_Rows] = []
        self.slices: list[np.ndarray] = []
        weight = torch.zeros(1, dtype=torch.float64)
        for start in range(0, len(source), count):
            indices = np.arange(start, min(start + count, len(source)))
            self.slices.append(indices)
            x, y = (torch.from_numpy(np.require(part, requirements=["C", "W"])) for part in source.rows(indices))
            batch = feed.batch(x, y, first + indices, feed.num_data)
            with torch.no_grad():
                x = batch.x if learns else model.embed(batch.x)
            weight += batch.weights.double().sum().item()
            self.rows.append(_Rows(x, batch.y, None if feed.weights is None else batch.weights))
        self.weight = among.sum_all([weight.to(model.device)])[0].item()  # tr W
        self.kept = KEPT_EACH * len(source) * groups * size * torch.finfo(model.dtype).bits // 8 <= KEPT_BYTES
        self.prior = Natural.prior(latents, size, model.device)
        self.prior_moments = self.prior.moments()
        self.q = Natural.of(model.posterior)

    @staticmethod
    def suits(model: SparseGP, source: Source) -> bool:
        """Whether the noise is the same for all rows, and no target is missing."""
        if model.likelihood.shared_noise is None:
            return False
        steps = range(0, len(source), BLOCK_NUMBERS)
        targets = (source.rows(np.arange(start, min(start + BLOCK_NUMBERS, len(source))))[1] for start in steps)
        return model.likelihood.num_latents == 1 or not any(np.isnan(y).any() for y in targets)

    def __call__(self) -> tuple[Tensor, list[Tensor]]:
        """The value, and its gradients; q is at its optimum."""
        variance, parameters = self.model.likelihood.shared_noise, list(self.parameters.values())
        assert variance is not None
        prepared = self.model.prepare(self.prior_moments)
        blocks = list(self._blocks(prepared)) if self.kept else None
        with torch.no_grad():
            product, shift, prior, squares, log_slopes = self._sums(blocks or self._blocks(prepared), prepared)
            noise = variance.detach()
            self.q = Natural(self.prior.precision + product / noise[:, None, None], shift / noise[:, None])
            moments = self.q.moments()
            mean, covariance = moments.mean[0], moments.dense[0]  # m, S
            explained = (covariance * product).sum((1, 2)) - product.diagonal(dim1=-2, dim2=-1).sum(-1)
            pulled = (product @ mean[..., None]).squeeze(-1)  # T m
            spread = squares + (mean * (pulled - 2 * shift)).sum(-1) + prior + explained  # [Q]
            divergence = moments.kl()
            rest = self.prior.precision - covariance - mean[..., None] * mean[:, None]
            along = (rest @ product + mean[..., None] * shift[:, None]) / noise[:, None, None]  # dA A'
        data_term = -0.5 * (self.weight * (2 * torch.pi * variance).log() + spread / variance).sum()
        self.value = (data_term + log_slopes - divergence).item()
        gradients = self._own(data_term, prepared, along)
        with torch.no_grad():
            upper = prepared.inverse.mT
            lifted = upper @ rest / noise[:, None, None], upper @ mean[..., None] / noise[:, None, None]
            if len(upper) == 1:
                matrix, vectors = lifted[0].sum(0, keepdim=True), lifted[1].squeeze(-1).mT[None]  # [1, M, M], [1, M, Q]
            else:
                matrix, vectors = lifted
            precision = (0.5 / noise).sum().expand(1) if len(upper) == 1 else 0.5 / noise
        for rows, cross, prior_variance, basis, targets, log_slope in blocks or self._blocks(prepared):
            weighted = _weighted(targets.detach(), rows)
            weighted = weighted[None] if len(basis) == 1 else weighted[:, None]
            slope = torch.baddbmm(vectors.to(basis) @ weighted, matrix.to(basis), _weighted(basis, rows))
            each = precision[:, None].to(basis).expand_as(prior_variance)
            outputs, slopes = [cross, prior_variance], [slope, -_weighted(each, rows)]
            if targets.requires_grad:
                left = targets.detach() - (mean.to(basis)[:, None] @ basis).squeeze(1)  # w - A'm
                outputs += [targets, log_slope]
                slopes += [_weighted(-left / noise.to(basis)[:, None], rows), _weighted(torch.ones_like(left), rows)]
            found = pull(outputs, slopes, parameters)
            for gradient, part in zip(gradients, found, strict=True):
                gradient.add_(part)
        return prepared.gram.new_tensor(self.value), self.among.sum_all(gradients)

    def score(self) -> float:
        """The ELBO of the last evaluation, nats a row."""
        return self.value / self.feed.total_weight

    def _blocks(self, prepared: Prepared) -> Iterator[_Block]:
        gram, inverse = prepared.gram.detach(), prepared.inverse.detach()
        for rows in self.rows:
            phi = self.embed(rows.x)
            cross = self.model.cross(phi)
            targets, log_slope = self.model.likelihood.transform(rows.y)
            basis = whiten(gram, inverse, cross.detach())
            yield _Block(rows, cross, self.model.kernel.diag(phi), basis, targets.mT, log_slope.mT)

    def _sums(self, blocks: Sequence[_Block] | Iterator[_Block], prepared: Prepared) -> list[Tensor]:
        """T [G, M, M], b [Q, M], tr(W Kxx) [G], y'W y [Q] and tr(W log w'(y)), of the rows of all processes."""
        product = torch.zeros_like(prepared.gram)
        shift, prior = torch.zeros_like(self.prior.shift), product.new_zeros(len(product))
        squares, log_slopes = product.new_zeros(len(shift)), product.new_zeros(())
        for rows, _, prior_variance, basis, y, log_slope in blocks:
            weighted = _weighted(basis, rows)
            for start, stop in row_blocks(basis.shape[-2]):  # symmetric: its lower half is enough
                product[:, start:stop, :stop] += weighted[:, start:stop] @ basis[:, :stop].mT
            targets = _weighted(y, rows)
            shift += targets @ basis[0].mT if len(basis) == 1 else (basis @ targets[..., None]).squeeze(-1)
            prior += _weighted(prior_variance, rows).double().sum(-1)
            squares += (targets.double() * y.double()).sum(-1)
            log_slopes += _weighted(log_slope, rows).double().sum()
        product = product.tril() + product.tril(-1).mT
        return self.among.sum_all([product, shift, prior, squares, log_slopes])

    def _own(self, data_term: Tensor, prepared: Prepared, along: Tensor) -> list[Tensor]:
        """Gradients by the noise, and by Kzz = L L': L^-T P L^-1, P the lower half of -dA A' with half its diagonal."""
        parameters = list(self.parameters.values())
        if not self.among.first:
            return [torch.zeros_like(each) for each in parameters]
        with torch.no_grad():
            upper = prepared.inverse.mT
            inner = (along.sum(0, keepdim=True) if len(upper) == 1 else along).tril()
            inner.diagonal(dim1=-2, dim2=-1).mul_(0.5)
            slope = -(upper @ inner @ upper.mT)
        return list(pull([prepared.gram, data_term], [slope, torch.ones_like(data_term)], parameters))


class _Given(torch.autograd.Function):
    """A number whose gradient by `output` is `slope`."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, slope: Tensor) -> Tensor:
        ctx.save_for_backward(slope)
        return output.new_zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return ctx.saved_tensors[0], None


def pull(outputs: Sequence[Tensor], slopes: Sequence[Tensor], parameters: Sequence[Tensor]) -> Sequence[Tensor]:
    """The gradients of the sum of these outputs, weighted by their slopes."""
    # Not by grad_outputs, which would import PyTorch's symbolic algebra
    parts = [
        _Given.apply(output, slope.to(output.dtype))
        for output, slope in zip(outputs, slopes, strict=True)
        if output.requires_grad
    ]
    if not parts:
        return [torch.zeros_like(each) for each in parameters]
    parts = [each.double() for each in parts]
    return torch.autograd.grad(torch.stack(parts).sum(), parameters, allow_unused=True, materialize_grads=True)


def _weighted(each: Tensor, rows: _Rows) -> Tensor:
    """What there is of each row, [..., B], times its weight."""
    return each if rows.weights is None else each * rows.weights
