"""Gaussian process models for any likelihood, at any scale."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autogp.estimators import GPClassifier, GPRegressor, load_model
    from autogp.likelihoods import InfiniteLOOError
    from autogp.linalg import NotPositiveDefiniteError
    from autogp.model import SparseGP
    from autogp.objectives import elbo, loo, predictive
    from autogp.posteriors import Posterior

__version__ = "0.1.0"

__all__ = [
    "GPClassifier",
    "GPRegressor",
    "InfiniteLOOError",
    "NotPositiveDefiniteError",
    "Posterior",
    "SparseGP",
    "elbo",
    "load_model",
    "loo",
    "predictive",
]

_HOMES = {
    "estimators": ("GPClassifier", "GPRegressor", "load_model"),
    "likelihoods": ("InfiniteLOOError",),
    "linalg": ("NotPositiveDefiniteError",),
    "model": ("SparseGP",),
    "objectives": ("elbo", "loo", "predictive"),
    "posteriors": ("Posterior",),
}


def __getattr__(name: str) -> Any:
    """Imports what is asked for, when it is: torch takes a second that `autogp --help` need not wait for."""
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"autogp.{module}"), name)
    raise AttributeError(f"module 'autogp' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
