"""Observation models: p(y | f)."""

from autogp.likelihoods.base import Elementwise, InfiniteLOOError, Likelihood, Prediction
from autogp.likelihoods.bernoulli import Bernoulli
from autogp.likelihoods.gaussian import Gaussian
from autogp.likelihoods.network import Network
from autogp.likelihoods.poisson import Poisson
from autogp.likelihoods.softmax import Softmax
from autogp.likelihoods.student_t import StudentT

__all__ = [
    "Bernoulli",
    "Elementwise",
    "Gaussian",
    "InfiniteLOOError",
    "Likelihood",
    "Network",
    "Poisson",
    "Prediction",
    "Softmax",
    "StudentT",
]
