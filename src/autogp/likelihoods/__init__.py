"""Observation models: p(y | f)."""

from autogp.likelihoods.base import InfiniteLOOError, Likelihood, Prediction
from autogp.likelihoods.bernoulli import Bernoulli
from autogp.likelihoods.beta import Beta
from autogp.likelihoods.box_cox import BoxCox
from autogp.likelihoods.elementwise import Elementwise
from autogp.likelihoods.gaussian import Gaussian
from autogp.likelihoods.heteroscedastic import Heteroscedastic
from autogp.likelihoods.negative_binomial import NegativeBinomial
from autogp.likelihoods.network import Network
from autogp.likelihoods.ordinal import Ordinal
from autogp.likelihoods.poisson import Poisson
from autogp.likelihoods.softmax import Softmax
from autogp.likelihoods.student_t import StudentT
from autogp.likelihoods.zero_inflated import ZeroInflated

__all__ = [
    "Bernoulli",
    "Beta",
    "BoxCox",
    "Elementwise",
    "Gaussian",
    "Heteroscedastic",
    "InfiniteLOOError",
    "Likelihood",
    "NegativeBinomial",
    "Network",
    "Ordinal",
    "Poisson",
    "Prediction",
    "Softmax",
    "StudentT",
    "ZeroInflated",
]
