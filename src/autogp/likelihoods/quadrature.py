"""Expectations under a Gaussian over one latent, by quadrature to a tolerance.

An integrand is known by its values at standard normal z, or by their logarithm. A few points are enough for most rows.
Where an error estimate says that they are not, the points move to where the integrand is, and their number grows until
the estimate is met. The points are not differentiated: the integral does not depend on them.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

__all__ = [
    "REACH",
    "Integrand",
    "align",
    "diverges",
    "expectation",
    "gauss_hermite",
    "lattice",
    "log_expectation",
    "log_normal",
    "trapezoid",
]

HERMITE_NODES = 20  # exact for polynomials of degree 39
LATTICE_REACH = 48  # points to each side: eight standard deviations at least
REACH = 8.5  # standard deviations at which a Gaussian has fallen by exp(-36)
TOLERANCE = 1e-6  # of one latent: relative to the integral of the absolute value
LEGENDRE_NODES = 10
FIRST_PANELS = 8
MAX_HALVINGS = 45
GRADES = tuple(10.0**k for k in range(-7, 0))  # distances from a mode, relative to 1 + |z|, at which first panels end
SCAN = 137  # points between which modes are looked for, an eighth of a standard deviation apart
SECTIONS = 40  # golden ones: 1e-8 of the bracket
MAX_PANELS = 256  # of a row that are halved at a time: more means that rounding, not the rule, is what differs
NEGLIGIBLE = 45.0  # nats below the largest value
UNDERFLOW = -80.0  # a log density that is minus infinity beyond such a value may be one that underflows

# Values, or their logarithms, at z [H, n] of n of the rows, [H, n, C]; of several latents [H, n] at z [H, n, Q].
Integrand = Callable[[Tensor, Tensor], Tensor]


@lru_cache(maxsize=8)
def gauss_hermite(num_nodes: int = HERMITE_NODES) -> tuple[Tensor, Tensor]:
    """Points [H, 1] and log weights [H] for expectations under a standard normal."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(num_nodes)
    return torch.from_numpy(nodes)[:, None], torch.from_numpy(np.log(weights) - 0.5 * math.log(2 * math.pi))


def align(rule: tuple[Tensor, Tensor], mean: Tensor) -> tuple[Tensor, Tensor]:
    """The points [H, Q] and log weights [H] of a rule, shaped to broadcast with mean [..., B, Q] from the left."""
    nodes, log_weights = rule
    ones = (1,) * (mean.ndim - 1)
    return nodes.to(mean).reshape(-1, *ones, nodes.shape[-1]), log_weights.to(mean).reshape(-1, *ones, 1)


def lattice(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Points f [H, ...] and their weights for expectations under N(mean, variance), a third of an sd apart or less.

    The points are multiples of a power of 2 over 3 and do not move with the mean; only the weights do. An expectation
    is then smooth in mean and variance even where its integrand has kinks, as |y - f| has, and derivatives of the
    integrand are not needed.
    """
    # A variance of 0 becomes one of rounding: the points then are the mean itself.
    least = torch.finfo(mean.dtype).eps * mean.detach().abs().clamp_min(1)
    sd = variance.clamp_min(least.square()).sqrt()
    with torch.no_grad():
        step = torch.exp2(sd.log2().floor()) / 3  # between a sixth and a third of the sd
        steps = torch.arange(-LATTICE_REACH, LATTICE_REACH + 1, dtype=mean.dtype, device=mean.device)
        f = ((mean / step).round() + steps.reshape(-1, *(1,) * mean.ndim)) * step
    density = torch.exp(-0.5 * ((f - mean) / sd).square())
    return f, density / density.sum(0)


def trapezoid(low: Tensor, high: Tensor, num_nodes: int) -> tuple[Tensor, Tensor]:
    """Equidistant points [H, ...] from low to high, and their distance [...].

    The plain sum of an analytic integrand that has died away at both ends converges exponentially.
    """
    low, high = low.detach(), high.detach()
    steps = torch.linspace(0, 1, num_nodes, dtype=low.dtype, device=low.device).reshape(-1, *(1,) * low.ndim)
    return low + (high - low) * steps, (high - low) / (num_nodes - 1)


def log_expectation(
    log_values: Callable[[Tensor], Tensor],
    mean: Tensor,
    variance: Tensor,
    low: Tensor,
    high: Tensor,
    num_nodes: int = 128,
) -> Tensor:
    """log E[exp(log_values(f))], f ~ N(mean, variance), for an integrand that is known to live between low and high.

    These are in standard deviations from the mean: the trapezoidal rule works where the integrand is, which may be far
    from where q is, and at its width.
    """
    z, step = trapezoid(low, high, num_nodes)
    return torch.logsumexp(log_normal(z) + step.log() + log_values(mean + variance.sqrt() * z), 0)


def expectation(
    integrand: Integrand, num_rows: int, device: torch.device, log: bool, at: Tensor | None = None
) -> Tensor:
    """E[v(z)], z ~ N(0, 1), for every row and each of its C values, [n, C]; with `log` log E[exp(v(z))].

    First the trapezoidal rule with a step of 1/2, whose error is about the square of that with a step of 1. Rows in
    which the two differ, or which have not died away at the ends, go to panels that are halved where that matters.
    So do rows in which a value at `at`, [n, P], stands out: a narrow peak there would fall between the points.
    """
    rows = torch.arange(num_rows, device=device)
    z = torch.linspace(-REACH, REACH, int(4 * REACH) + 1, dtype=torch.float64, device=device)[:, None]
    values = integrand(z.expand(-1, num_rows), rows)
    log_weights = (log_normal(z) + math.log(0.5))[..., None]  # [H, 1, 1]
    found = _sum(values, log_weights, log)
    with torch.no_grad():
        size = _log_size(values, log_weights, log)
        whole = size.logsumexp(0)
        top = size.amax(0)
        signs = 1.0 if log else values.sign()
        terms = torch.exp(size - top) * signs
        error = (terms.sum(0) - 2 * terms[::2].sum(0)).abs() / (whole - top).exp()
        ends = torch.maximum(size[0], size[-1]) - whole
        bad = ~(error <= TOLERANCE) | (ends > math.log(TOLERANCE) - 4)
        rough = bad.any(-1)
        if at is not None:
            rough |= _stands_out(integrand, at, size, whole, log)
        rough = rough.nonzero().squeeze(-1)
    if not len(rough):
        return found
    there = None if at is None else at[rough]
    exact = _by_panels(lambda z, chosen: integrand(z, rough[chosen]), len(rough), device, log, there)
    return found.index_put((rough,), exact)


def _stands_out(integrand: Integrand, at: Tensor, size: Tensor, whole: Tensor, log: bool) -> Tensor:
    """Whether values at `at` [n, P] are above both neighbours among the points, as no broad function's are, [n]."""
    rows = torch.arange(len(at), device=at.device)
    own = _log_size(integrand(at.T, rows), log_normal(at.T)[..., None], log)  # [P, n, C]
    left = (2 * (at.T + REACH)).floor().clamp(0, len(size) - 2).long()
    beside = torch.maximum(size[left, rows], size[left + 1, rows])
    return ((own > beside + 1) & (own > whole + math.log(TOLERANCE))).any(-1).any(0)


def diverges(integrand: Integrand, num_rows: int, device: torch.device) -> Tensor:
    """Whether E[exp(v(z))] is infinite, [n, C], from v at ever larger |z|: exp(v) N(z; 0, 1) does not die away.

    A value of infinity means that the density whose inverse this is has underflowed, where the value before it was
    already large, and else that the density is zero.
    """
    sides = []
    for side in (-1.0, 1.0):
        z = side * _ladder(100.0, device)
        values = _far(integrand, z, num_rows)
        size = values + log_normal(z)[:, None, None]
        zero = torch.isposinf(values[1:]) & (values[:-1] < -UNDERFLOW)
        known = torch.isfinite(size).cumprod(0).bool()
        falling = torch.where(known[1:], size[1:] < size[:-1], True)
        last = known.sum(0).clamp_min(2) - 2  # the last known step
        sides.append(zero.any(0) | ~falling.gather(0, last[None])[0])
    return sides[0] | sides[1]


class _Panels(NamedTuple):
    """Parts of the range of each row's integrand, in t where z = sinh(t)."""

    row: Tensor  # [n]
    low: Tensor
    high: Tensor

    def halves(self) -> "_Panels":
        middle = 0.5 * (self.low + self.high)
        low, high = torch.stack([self.low, middle], -1).flatten(), torch.stack([middle, self.high], -1).flatten()
        return _Panels(self.row.repeat_interleave(2), low, high)

    def values(self, integrand: Integrand) -> tuple[Tensor, Tensor]:
        """The integrand [H, n, C] at the Gauss-Legendre points of each panel, and their log weights [H, n, 1]."""
        nodes, weights = (torch.from_numpy(part).to(self.low) for part in _legendre())
        width = 0.5 * (self.high - self.low)
        t = 0.5 * (self.low + self.high) + width * nodes[:, None]
        z = t.sinh()
        log_weights = log_normal(z) + t.cosh().log() + width.log() + weights.log()[:, None]
        return integrand(z, self.row), log_weights[..., None]


def _by_panels(integrand: Integrand, num_rows: int, device: torch.device, log: bool, at: Tensor | None) -> Tensor:
    """By panels, each halved until its halves agree with it within the tolerance of the whole integral."""
    with torch.no_grad():
        done, active = [], _first_panels(integrand, num_rows, device, log, at)
        size, signed = _integrals(active, integrand, log)  # logarithm and sign of each panel's integral, [n, C]
        settled = torch.full((num_rows, size.shape[-1]), -math.inf, dtype=torch.float64, device=device)
        for _ in range(MAX_HALVINGS):
            total = _logaddexp_rows(settled, active.row, size)
            halves = active.halves()
            half_size, half_sign = _integrals(halves, integrand, log)
            scale = torch.maximum(total, _logaddexp_rows(settled, halves.row, half_size))[active.row]
            scale = torch.where(scale > -math.inf, scale, 0.0)
            parts = (torch.exp(half_size - scale.repeat_interleave(2, 0)) * half_sign).unflatten(0, (-1, 2)).sum(1)
            apart = (torch.exp(size - scale) * signed - parts).abs().amax(-1)
            open_ = ~(apart <= TOLERANCE)
            open_ &= torch.bincount(active.row[open_], minlength=num_rows)[active.row] <= MAX_PANELS
            both = open_.repeat_interleave(2)
            done.append(_Panels(*(part[~both] for part in halves)))
            settled = _logaddexp_rows(settled, halves.row[~both], half_size[~both])
            active = _Panels(*(part[both] for part in halves))
            size, signed = half_size[both], half_sign[both]
            if not open_.any():
                break
        done.append(active)
        panels = _Panels(*(torch.cat(parts) for parts in zip(*done, strict=True)))
    values, log_weights = panels.values(integrand)
    if not log:
        sums = (log_weights.exp() * values).sum(0)  # [n, C]
        return sums.new_zeros(num_rows, sums.shape[-1]).index_add(0, panels.row, sums)
    sums = (values + log_weights).logsumexp(0)
    return _logaddexp_rows(torch.full_like(settled, -math.inf), panels.row, sums)


def _first_panels(integrand: Integrand, num_rows: int, device: torch.device, log: bool, at: Tensor | None) -> _Panels:
    """Over the part of each row's range in which the integrand is not negligible: equal ones, and ever smaller ones
    towards each mode.

    Values that are numbers, not logarithms, are at most exp(709): no Gaussian lets them count beyond 2^6.
    """
    ladder = _ladder(60.0 if log else 6.0, device)
    scan = torch.linspace(-REACH, REACH, SCAN, dtype=ladder.dtype, device=device)
    z = torch.cat([-ladder, ladder, scan]).unique()
    size = _known(_log_size(_far(integrand, z, num_rows), log_normal(z)[:, None, None], log))  # [H, n, C]
    t = z.asinh()

    def size_at(t: Tensor, row: Tensor, column: Tensor) -> Tensor:
        values = _log_size(integrand(t.sinh()[None], row), log_normal(t.sinh())[None, :, None], log)
        return _known(values[0].gather(-1, column[:, None])[:, 0])

    # Modes: local maxima along z, made exact, and `at`.
    rises = size[1:] > size[:-1]
    place, row, column = (rises[:-1] & ~rises[1:]).nonzero().T
    mode = _maximum(lambda t: size_at(t, row, column), t[place], t[place + 2])
    place = place + 1
    if at is not None:
        own_row, own_column = torch.ones_like(at, dtype=torch.bool).nonzero().T
        own = at.flatten().asinh()
        own_place = torch.searchsorted(t, own).clamp(0, len(t) - 1)
        own_column = own_column.clamp_max(size.shape[-1] - 1)
        place, row, column = (torch.cat(parts) for parts in ((place, own_place), (row, own_row), (column, own_column)))
        mode = torch.cat([mode, own])
    height = size_at(mode, row, column)
    size = size.index_put((place, row, column), torch.maximum(size[place, row, column], height))
    top = size.amax(0)  # [n, C]
    large = (size > top - NEGLIGIBLE).any(-1)  # [H, n]
    order = torch.arange(len(z), device=device)[:, None]
    first = torch.where(large, order, len(z)).amin(0) - 1
    last = torch.where(large, order, -1).amax(0) + 1
    low, high = t[first.clamp(0, len(z) - 1)], t[last.clamp(0, len(z) - 1)]
    low, high = torch.where(low < high, low, -math.asinh(REACH)), torch.where(low < high, high, math.asinh(REACH))
    equal = low + (high - low) * torch.linspace(0, 1, FIRST_PANELS + 1, dtype=z.dtype, device=device)[:, None]
    mode, row = (part[height > top[row, column] - NEGLIGIBLE] for part in (mode, row))
    grades = torch.tensor([*(-grade for grade in GRADES), 0.0, *GRADES], dtype=z.dtype, device=device)[:, None]
    graded = torch.minimum(torch.maximum(mode + grades, low[row]), high[row])
    edges = torch.cat([equal.flatten(), graded.flatten()])
    rows = torch.cat([torch.arange(num_rows, device=device).repeat(len(equal)), row.repeat(len(grades))])
    order = edges.argsort()
    order = order[rows[order].argsort(stable=True)]
    edges, rows = edges[order], rows[order]
    inside = (rows[1:] == rows[:-1]) & (edges[1:] > edges[:-1])
    return _Panels(rows[1:][inside], edges[:-1][inside], edges[1:][inside])


def _maximum(function: Callable[[Tensor], Tensor], low: Tensor, high: Tensor) -> Tensor:
    """Where functions with one maximum between low and high [n] have it, by golden sections."""
    share = 0.5 * (math.sqrt(5) - 1)
    left, right = high - share * (high - low), low + share * (high - low)
    at_left, at_right = function(left), function(right)
    for _ in range(SECTIONS):
        rising = at_left < at_right
        low, high = torch.where(rising, left, low), torch.where(rising, high, right)
        new = torch.where(rising, low + share * (high - low), high - share * (high - low))
        value = function(new)
        left, at_left, right, at_right = (
            torch.where(rising, right, new),
            torch.where(rising, at_right, value),
            torch.where(rising, new, left),
            torch.where(rising, value, at_left),
        )
    return torch.where(at_left < at_right, right, left)


def _known(size: Tensor) -> Tensor:
    return torch.where(torch.isfinite(size), size, -math.inf)


def _ladder(octaves: float, device: torch.device) -> Tensor:
    """Distances from 1/4 to 2^octaves: fine where a Gaussian is, then ever coarser."""
    fine = torch.arange(-2.0, 6.0, 0.5)
    far = torch.arange(6.0, 20.0, 1.0)
    farther = torch.arange(20.0, 101.0, 4.0)
    exponents = torch.cat([fine, far, farther]).double()
    return torch.exp2(exponents[exponents <= octaves]).to(device)


def _far(integrand: Integrand, z: Tensor, num_rows: int) -> Tensor:
    """Values [H, n, C] at the same z [H] in every row; NaN where the integrand refuses so large a number.

    A density of torch.distributions raises ValueError where a scale has become 0 or infinite.
    """
    rows = torch.arange(num_rows, device=z.device)
    try:
        return integrand(z[:, None].expand(-1, num_rows), rows)
    except ValueError:
        if len(z) == 1:
            return z.new_full((1, num_rows, 1), math.nan)
    parts = [_far(integrand, half, num_rows) for half in z.split((len(z) + 1) // 2)]
    width = max(part.shape[-1] for part in parts)
    return torch.cat([part.expand(-1, -1, width) for part in parts])


def _integrals(panels: _Panels, integrand: Integrand, log: bool) -> tuple[Tensor, Tensor]:
    """Logarithm of the absolute value of each panel's integral, and its sign, [n, C]."""
    values, log_weights = panels.values(integrand)
    if log:
        size = (torch.where(torch.isnan(values), -math.inf, values) + log_weights).logsumexp(0)
        return size, torch.ones_like(size)
    sums = (log_weights.exp() * values).sum(0)
    return sums.abs().log(), sums.sign()


def _logaddexp_rows(start: Tensor, row: Tensor, size: Tensor) -> Tensor:
    """log(exp(start) + sum of exp(size) over the entries of each row), [R, C] from [R, C], [n] and [n, C]."""
    with torch.no_grad():
        top = start.scatter_reduce(0, row[:, None].expand_as(size), size, "amax").clamp_min(torch.finfo(size.dtype).min)
    total = torch.exp(start - top).index_add(0, row, torch.exp(size - top[row]))
    return total.log() + top


def _sum(values: Tensor, log_weights: Tensor, log: bool) -> Tensor:
    return (values + log_weights).logsumexp(0) if log else (log_weights.exp() * values).sum(0)


def _log_size(values: Tensor, log_weights: Tensor, log: bool) -> Tensor:
    return (values if log else values.abs().log()) + log_weights


def log_normal(z: Tensor) -> Tensor:
    return -0.5 * (z.square() + math.log(2 * math.pi))


@lru_cache(maxsize=1)
def _legendre() -> tuple[np.ndarray, np.ndarray]:
    nodes, weights = np.polynomial.legendre.leggauss(LEGENDRE_NODES)
    return nodes, weights
