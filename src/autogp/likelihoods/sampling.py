"""Expectations under a Gaussian over several latents: quasi-Monte Carlo with an error estimate."""

import math
from functools import lru_cache

import torch
from torch import Tensor

from autogp.likelihoods.quadrature import Integrand, log_normal

__all__ = ["directions", "log_mean", "normal_nodes"]

SOBOL_NODES = 512
TOLERANCE = 0.05  # of the logarithm, as a standard error; that of Sobol points is smaller than its estimate
RAYS = 8  # between the axes
MOMENT_ROUNDS = 50
FLATTENINGS = 40
FEW_LATENTS = 20  # up to here the proposal of importance sampling has a covariance matrix
WIDER = 1.3  # than the integrand's own covariance: ratios must not grow in the tails
MORE_NODES = (2**11, 2**13)
CHUNK_NUMBERS = 2**20


@lru_cache(maxsize=8)
def normal_nodes(num_latents: int, num_nodes: int = SOBOL_NODES) -> tuple[Tensor, Tensor]:
    """Scrambled Sobol points [H, Q] of a standard normal and their log weights [H]; the same ones at every call."""
    engine = torch.quasirandom.SobolEngine(num_latents, scramble=True, seed=0)
    uniform = engine.draw(num_nodes, dtype=torch.float64).clamp(1e-12, 1 - 1e-12)
    nodes = torch.special.ndtri(uniform)
    return nodes, torch.full((num_nodes,), -math.log(num_nodes), dtype=torch.float64)


def log_mean(log_values: Integrand, num_rows: int, num_latents: int, device: torch.device) -> Tensor:
    """log E[exp(v(z))], z ~ N(0, I) of Q latents, [n]; `log_values` gives v [H, n] at z [H, n, Q] of n of the rows.

    By scrambled Sobol points. Rows in which the error estimate is too large get importance sampling from a Gaussian
    with the moments of the integrand, and then more points.
    """
    nodes, _ = normal_nodes(num_latents)
    nodes = nodes.to(device)
    rows = torch.arange(num_rows, device=device)
    values = log_values(nodes[:, None].expand(-1, num_rows, -1), rows)
    found = values.logsumexp(0) - math.log(len(nodes))
    with torch.no_grad():
        rough = (~(_error(values) <= TOLERANCE) & (values.amax(0) > -math.inf)).nonzero().squeeze(-1)
    if not len(rough):
        return found
    some = max(1, CHUNK_NUMBERS // (MORE_NODES[0] * num_latents))  # rows at a time
    for part in rough.split(some):
        exact = _by_importance(lambda z, chosen, part=part: log_values(z, part[chosen]), len(part), num_latents, device)
        found = found.index_put((part,), exact)
    return found


def directions(num_latents: int) -> Tensor:
    """Unit vectors [R, Q] of which some should show where an integrand outgrows a Gaussian: axes, and between them."""
    if num_latents == 1:
        return torch.ones(1, 1, dtype=torch.float64)
    between = normal_nodes(num_latents, RAYS)[0]
    axes = torch.eye(num_latents, dtype=torch.float64)
    return torch.cat([axes, between / between.norm(dim=-1, keepdim=True)])


def _error(log_values: Tensor) -> Tensor:
    """Standard error of the logarithm of the average, [n], from the range of the averages of eight parts.

    The range of eight normal variables is 2.8 standard deviations, and the whole has 1 / sqrt(8) of a part's.
    """
    parts = log_values.unflatten(0, (8, -1)).logsumexp(1)
    return (parts.amax(0) - parts.amin(0)) / 8


def _by_importance(log_values: Integrand, num_rows: int, num_latents: int, device: torch.device) -> Tensor:
    """Points from a Gaussian with the integrand's own moments; as many as each row needs."""
    rows = torch.arange(num_rows, device=device)
    centre, factor = _moments(log_values, num_rows, num_latents, device)
    found = torch.empty(num_rows, dtype=torch.float64, device=device)
    for num_nodes in MORE_NODES:
        z, log_proposal = _propose(centre[rows], factor[rows], num_nodes)
        log_ratio = log_values(z, rows) + log_normal(z).sum(-1) - log_proposal
        found = found.index_put((rows,), log_ratio.logsumexp(0) - math.log(num_nodes))
        rows = rows[~(_error(log_ratio.detach()) <= TOLERANCE)]
        if not len(rows):
            break
    return found


@torch.no_grad()
def _moments(log_values: Integrand, num_rows: int, num_latents: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Mean [n, Q] and factor of the covariance [n, Q, Q] of the density in proportion to exp(v(z)) N(z; 0, I).

    From N(0, I), again and again by importance sampling; ratios are flattened until enough points count.
    """
    rows = torch.arange(num_rows, device=device)
    eye = torch.eye(num_latents, dtype=torch.float64, device=device)
    centre, factor = eye.new_zeros(num_rows, num_latents), eye.repeat(num_rows, 1, 1)
    for _ in range(MOMENT_ROUNDS):
        z, log_proposal = _propose(centre[rows], factor[rows], SOBOL_NODES)
        log_ratio = log_values(z, rows) + log_normal(z).sum(-1) - log_proposal
        log_ratio = torch.nan_to_num(log_ratio, nan=-math.inf).clamp_min(-1e300)
        power, weights = log_ratio.new_ones(len(rows)), torch.softmax(log_ratio, 0)  # [H, n]
        for _ in range(FLATTENINGS):  # until the effective sample size is a tenth of the points
            power = torch.where(weights.square().sum(0) * SOBOL_NODES > 10, 0.5 * power, power)
            weights = torch.softmax(power * log_ratio, 0)
        centre[rows] = (weights[..., None] * z).sum(0)
        apart = (z - centre[rows]) * weights[..., None].sqrt()
        covariance = torch.einsum("hni,hnj->nij", apart, apart)
        if num_latents > FEW_LATENTS:
            covariance = torch.diag_embed(covariance.diagonal(dim1=-2, dim2=-1))
        factor[rows] = torch.linalg.cholesky(WIDER * covariance + 1e-12 * eye)
        rows = rows[power < 1]
        if not len(rows):
            break
    return centre, factor


def _propose(centre: Tensor, factor: Tensor, num_nodes: int) -> tuple[Tensor, Tensor]:
    """Sobol points [H, n, Q] of N(centre, factor factor') and their log density [H, n]."""
    u = normal_nodes(centre.shape[-1], num_nodes)[0].to(centre)
    z = centre + torch.einsum("nij,hj->hni", factor, u)
    log_det = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    return z, log_normal(u).sum(-1)[:, None] - log_det
