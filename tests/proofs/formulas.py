"""Textbook formulas in NumPy, written without the library, and the one training step that the proofs share."""

import numpy as np
import torch
from torch import Tensor

from autogp import SparseGP
from autogp.posteriors import Natural, Sites

__all__ = ["collapsed_bound", "exact_posterior", "log_evidence", "log_normal", "natural_step", "rbf"]

Array = np.ndarray


def rbf(x: Array, z: Array, lengthscale: Array | float, variance: float) -> Array:
    """Covariances [N, M] from the differences themselves, one pair at a time."""
    difference = (x[:, None, :] - z[None, :, :]) / lengthscale
    return variance * np.exp(-0.5 * (difference**2).sum(-1))


def log_normal(y: Array, covariance: Array) -> float:
    """log N(y; 0, covariance)."""
    sign, log_det = np.linalg.slogdet(covariance)
    assert sign == 1
    return float(-0.5 * (y @ np.linalg.solve(covariance, y) + log_det + len(y) * np.log(2 * np.pi)))


def log_evidence(kxx: Array, y: Array, noise: float) -> float:
    """log p(y) of Gaussian process regression (Rasmussen & Williams, 2006, equation 2.30)."""
    return log_normal(y, kxx + noise * np.eye(len(y)))


def exact_posterior(kxx: Array, ksx: Array, kss: Array, y: Array, noise: float) -> tuple[Array, Array]:
    """Mean [T] and covariance [T, T] of f at the test rows given y (Rasmussen & Williams, equations 2.25 and 2.26)."""
    total = kxx + noise * np.eye(len(y))
    return ksx @ np.linalg.solve(total, y), kss - ksx @ np.linalg.solve(total, ksx.T)


def collapsed_bound(kzz: Array, kzx: Array, kxx: Array, y: Array, noise: float) -> float:
    """log N(y; 0, Qxx + noise I) - tr(Kxx - Qxx) / (2 noise), Qxx = Kxz Kzz^-1 Kzx (Titsias, 2009, equation 9)."""
    nystrom = kzx.T @ np.linalg.solve(kzz, kzx)
    return log_evidence(nystrom, y, noise) - float(np.trace(kxx - nystrom)) / (2 * noise)


def natural_step(model: SparseGP, x: Tensor, y: Tensor, rate: float = 1.0, num_data: int | None = None) -> None:
    """One natural-gradient step of q on the ELBO of the rows given."""
    y = model.likelihood.check_targets(y)
    with torch.no_grad():
        prepared = model.prepare()
        basis, _ = model.basis(x, prepared)
        marginals = model.marginals(x, prepared)
    mean = marginals.mean[0]
    alpha, beta = model.likelihood.expected_derivatives(mean, marginals.variance[0], y)
    weights = torch.full((len(x),), (num_data or len(x)) / len(x), dtype=mean.dtype)
    q = Natural.of(model.posterior)
    q.blend(Sites.of_rows(basis, mean, alpha, beta, weights), rate)
    model.posterior.set_natural(q)
