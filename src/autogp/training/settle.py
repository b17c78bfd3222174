"""q at its optimum for given hyper-parameters: natural-gradient steps on all rows, each taken only if the ELBO rises.

A row adds slope * a to b and curvature * a a' to Lambda, where a is its column of the basis A. These two numbers for
each row and latent function, its site, are all that q knows of the rows: q = prior + (A diag(curvature) A', A slope).
When the kernel moves, so does A, and the sites stay: q then stands near its new optimum.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from autogp.likelihoods import Likelihood
from autogp.model import Marginals, condition
from autogp.moments import DenseMoments
from autogp.posteriors import Natural, Sites
from autogp.training.distributed import ALONE, Processes
from autogp.training.step import Batch

__all__ = ["Block", "Look", "Settled", "settle"]

MOST_STEPS = 100
SMALLEST_RATE, GROWTH = 1e-6, 1.3  # of a step; after one that was taken, the rate grows again
START_SPREAD = 0.1  # of the mean of q(v) where it has to leave a saddle, standard deviations of its prior
CURVATURE_POINTS = 32  # of the rule by which latent functions are coupled: a direction need not be exact
KEPT_NUMBERS = 2**24  # of the rows' second derivatives, Q x Q each
MOST_PRODUCTS, ACCURACY = 20, 0.1  # of conjugate gradients: products, and the share of the residual that may be left


class Block(NamedTuple):
    """Rows as q sees them; memory holds one block of them, or all."""

    basis: Tensor  # A = L^-1 Kzx, [G, M, B], a constant
    prior_variance: Tensor  # k(x, x), [G, B]
    batch: Batch
    cross: Tensor | None = None  # Kzx, [G, M, B], with gradients where these are asked for


class Rows(NamedTuple):
    """What a pass finds out about a block."""

    marginals: Marginals  # constants
    alpha: Tensor  # derivative of the data term by the means, [Q, B],
    beta: Tensor  # by the variances, [Q, B],
    gradients: dict[nn.Parameter, Tensor]  # and by the parameters of the likelihood


class Look(NamedTuple):
    """The ELBO at q, and where a step of rate 1 would lead."""

    value: float  # but for a constant
    rise: float  # what that step would gain where the ELBO is quadratic
    slope: Tensor  # of the ELBO, by the mean of q, [Q, M]
    target: Natural
    sites: list[Tensor]  # of the target
    rows: list[Rows]  # of each block
    moments: DenseMoments  # of q


class Settled(NamedTuple):
    """q where its steps have ended."""

    q: Natural
    sites: list[Tensor]  # slope and curvature of the rows of each block, [2, Q, B]
    converged: bool
    look: Look  # at q


@torch.no_grad()
def settle(
    likelihood: Likelihood,
    blocks: Iterable[Block],
    prior: Natural,
    tolerance: float,
    sites: Sequence[Tensor] | None = None,
    start: Natural | None = None,
    among: Processes = ALONE,
) -> Settled:
    """The q that maximises E_q[log p(y | f)] - KL(q || prior), up to `tolerance` nats.

    It starts with the sites, or else from those that `start` gives (the prior, if none). A step of rate 1 is Newton's
    for a log-concave likelihood, and the last for Gaussian noise. Where the ELBO would fall the rate is halved.
    `among` are the processes that have a part of the rows each.
    """
    if likelihood.conjugate:  # the sites depend on the targets alone
        sites = [_constant_sites(likelihood, block, len(prior.shift)) for block in blocks]
        q = _assemble(blocks, prior, sites, among)
        return Settled(q, sites, True, _look(likelihood, blocks, q, prior, among, q))
    if sites is None:
        q, here = prior, _look(likelihood, blocks, prior, prior, among)
        ahead = here if start is None else _look(likelihood, blocks, start, prior, among)
        sloping = torch.tensor(float(any(each[0].any() for each in ahead.sites)), device=prior.shift.device)
        if not among.sum(sloping):  # no row has a slope: a product of functions that are all 0
            generator = torch.Generator().manual_seed(0)
            away = torch.randn(prior.shift.shape, dtype=torch.float64, generator=generator).to(prior.shift.device)
            ahead = _look(likelihood, blocks, Natural(prior.precision, prior.shift + START_SPREAD * away), prior, among)
        known = [torch.zeros_like(each) for each in here.sites]
    else:
        q, known = _assemble(blocks, prior, sites, among), list(sites)
        here = ahead = _look(likelihood, blocks, q, prior, among)
        if here.value != here.value:  # the sites do not fit this kernel
            return settle(likelihood, blocks, prior, tolerance, None, start, among)
    rate, rounding = 1.0, torch.finfo(known[0].dtype).eps
    for _ in range(MOST_STEPS):
        if ahead.rise < tolerance:
            return Settled(q, known, True, here)
        new = Natural(
            torch.lerp(q.precision, ahead.target.precision, rate), torch.lerp(q.shift, ahead.target.shift, rate)
        )
        there = _look(likelihood, blocks, new, prior, among)
        if there.value >= here.value - rounding * abs(here.value):
            known = [torch.lerp(mine, theirs, rate) for mine, theirs in zip(known, ahead.sites, strict=True)]
            q, here, ahead, rate = new, there, there, min(1.0, GROWTH * rate)
            continue
        rate *= 0.5
        if rate < SMALLEST_RATE:
            break
    return Settled(q, known, False, here)


def _look(
    likelihood: Likelihood,
    blocks: Iterable[Block],
    q: Natural,
    prior: Natural,
    among: Processes,
    target: Natural | None = None,
) -> Look:
    """`target` is given where it is known."""
    moments = q.moments()
    mean, covariance = moments.mean[0], moments.covariance()[0]
    data_term, added = 0.0, None
    sites, found = [], []
    for block in blocks:
        total, rows = _rows(likelihood, block.batch, condition(block.basis, block.prior_variance.detach(), moments))
        data_term += total
        own = _sites(rows)
        if target is None:
            here = Sites.of(block.basis, *own)
            added = here if added is None else added + here
        sites.append(own)
        found.append(rows)
    summed, *parts = among.sum_all(
        [mean.new_tensor(data_term), *(() if added is None else (*added.precision, added.shift))]
    )
    value = summed.item() - _divergence(moments, prior)
    if target is None:
        target = prior.plus(Sites(tuple(parts[:-1]), parts[-1]))
    # The step's squared length in the Fisher metric of q: g' S g, g = b_target - Lambda_target m, and tr(S D S D) / 2
    slope = target.shift - _times(target.precision, mean)
    if target is q:
        return Look(value, 0.0, slope, target, sites, found, moments)
    move, whole = _times(covariance, slope), target
    if likelihood.couples and value == value:
        marginals = [rows.marginals for rows in found]
        move, sites = _coupled(likelihood, blocks, prior, sites, marginals, slope, covariance, among)
        own = [Sites.shift_of(block.basis, each[0]) for block, each in zip(blocks, sites, strict=True)]
        (shift,) = among.sum_all([torch.stack(own).sum(0)])
        whole = Natural(target.precision, prior.shift + shift)
    change = covariance @ (target.precision - q.precision)
    rise = 0.5 * ((slope * move).sum() + 0.5 * (change * change.mT).sum()).item()
    return Look(value, rise, slope, whole, sites, found, moments)


def _rows(likelihood: Likelihood, batch: Batch, marginals: Marginals) -> tuple[float, Rows]:
    """The data term, and its derivatives."""
    mean, variance = marginals.mean.detach().requires_grad_(), marginals.variance.detach().requires_grad_()
    parameters = [each for each in likelihood.parameters() if each.requires_grad]
    with torch.enable_grad():
        total = _data_term(likelihood, batch, mean, variance, batch.noise)
    alpha, beta, *gradients = torch.autograd.grad(
        total, (mean, variance, *parameters), allow_unused=True, materialize_grads=True
    )
    return total.item(), Rows(marginals, alpha[0].mT, beta[0].mT, dict(zip(parameters, gradients, strict=True)))


def _sites(rows: Rows) -> Tensor:
    """alpha - 2 beta mean and -2 beta, [2, Q, B]."""
    return torch.stack([torch.addcmul(rows.alpha, rows.beta, rows.marginals.mean[0].mT, value=-2), -2 * rows.beta])


def _coupled(
    likelihood: Likelihood,
    blocks: Iterable[Block],
    prior: Natural,
    sites: list[Tensor],
    latents: list[Marginals],
    slope: Tensor,
    covariance: Tensor,
    among: Processes,
) -> tuple[Tensor, list[Tensor]]:
    """Newton's step of the mean where a row's log density couples the latent functions, as a softmax does.

    Solves (Lambda_prior + A H A') d = g by conjugate gradients; H are minus the rows' second derivatives, Q x Q. The
    sites then are those that lead to m + d.
    """
    move, residual = torch.zeros_like(slope), slope
    numbers = sum(each.mean.numel() for each in latents) * len(slope)
    kept: list[Tensor | None] = [None] * len(latents)  # H, beyond that many numbers computed again for each product
    pulled = [torch.zeros_like(own[0]) for own in sites]  # H A'd of the rows, [Q, B]
    direction = preconditioned = _times(covariance, residual)
    length = first = (residual * preconditioned).sum()
    for _ in range(MOST_PRODUCTS):
        product, rows = torch.zeros_like(direction), []
        for number, (block, marginals) in enumerate(zip(blocks, latents, strict=True)):
            curvature = kept[number]
            if curvature is None:
                curvature = _curvature(likelihood, block.batch, marginals)
                kept[number] = curvature if numbers <= KEPT_NUMBERS else None
            rows.append((curvature @ _along(block.basis, direction).mT[..., None]).squeeze(-1).mT)
            product = product + Sites.shift_of(block.basis, rows[-1])
        (product,) = among.sum_all([product])
        product = product + _times(prior.precision, direction)
        bend = (direction * product).sum()
        if not bend > 0:
            break
        size = length / bend
        move = move + size * direction
        pulled = [old + size * new for old, new in zip(pulled, rows, strict=True)]
        residual = residual - size * product
        preconditioned = _times(covariance, residual)
        last, length = length, (residual * preconditioned).sum()
        if length <= ACCURACY**2 * first:
            break
        direction = preconditioned + length / last * direction
    found = []
    for block, (own_slope, own_curvature), own_pulled in zip(blocks, sites, pulled, strict=True):
        along = _along(block.basis, move)
        # slope = alpha - H A'd + curvature (mean + A'd)
        found.append(torch.stack([own_slope - own_pulled + own_curvature * along, own_curvature]))
    return move, found


def _along(basis: Tensor, direction: Tensor) -> Tensor:
    """A'd, [Q, B]."""
    direction = direction.to(basis)
    return direction @ basis[0] if len(basis) == 1 else torch.bmm(direction[:, None], basis).squeeze(1)


def _curvature(likelihood: Likelihood, batch: Batch, marginals: Marginals) -> Tensor:
    """H, minus the second derivatives of each row's data term by the means, [B, Q, Q]."""
    noise = None if batch.noise is None else batch.noise[:CURVATURE_POINTS, 0]
    found = likelihood.expected_curvature(marginals.mean[0], marginals.variance[0], batch.y, noise)
    return batch.weights[:, None, None] * found


def _data_term(likelihood: Likelihood, batch: Batch, mean: Tensor, variance: Tensor, noise: Tensor | None) -> Tensor:
    return (batch.weights * likelihood.expected_log_prob(mean, variance, batch.y, noise)[0]).double().sum()


def _constant_sites(likelihood: Likelihood, block: Block, latents: int) -> Tensor:
    """Sites that are the same for every q: alpha - 2 beta mean at mean 0, and -2 beta, [2, Q, B]."""
    mean, (_, y, weights, *_) = block.basis.new_zeros(block.basis.shape[-1], latents), block.batch
    alpha, beta = likelihood.expected_derivatives(mean, torch.ones_like(mean), y)
    return torch.stack([alpha.mT, -2 * beta.mT]) * weights


def _assemble(blocks: Iterable[Block], prior: Natural, sites: Sequence[Tensor], among: Processes) -> Natural:
    """prior + (A diag(curvature) A', A slope)."""
    added = None
    for block, own in zip(blocks, sites, strict=True):
        here = Sites.of(block.basis, *own)
        added = here if added is None else added + here
    assert added is not None
    *precision, shift = among.sum_all([*added.precision, added.shift])
    return prior.plus(Sites(tuple(precision), shift))


def _divergence(moments: DenseMoments, prior: Natural) -> float:
    """KL(q || prior) but for a constant: (tr(P S) + m'P m - 2 b'm - log |S|) / 2, where P, b is the prior."""
    mean, covariance = moments.mean[0], moments.covariance()[0]
    pulled = _times(prior.precision, mean) - 2 * prior.shift
    return 0.5 * ((prior.precision * covariance).sum() + (mean * pulled).sum() - moments.log_det.sum()).item()


def _times(matrix: Tensor, vector: Tensor) -> Tensor:
    """[Q, M, M] times [Q, M]."""
    return torch.bmm(matrix, vector[..., None]).squeeze(-1)
