"""Gaussian process models for any likelihood, at any scale."""

from autogp.likelihoods import InfiniteLOOError
from autogp.linalg import NotPositiveDefiniteError
from autogp.model import SparseGP
from autogp.objectives import elbo, loo, predictive
from autogp.posteriors import GaussianPosterior, MixturePosterior

__version__ = "0.1.0"

__all__ = [
    "GaussianPosterior",
    "InfiniteLOOError",
    "MixturePosterior",
    "NotPositiveDefiniteError",
    "SparseGP",
    "elbo",
    "loo",
    "predictive",
]
