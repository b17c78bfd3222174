"""Means and variances of y, given f and under q(f), against numerical integration."""

import itertools
import math

import numpy as np
import pytest
import torch
from likelihood_cases import KINDS, make
from scipy import integrate, stats
from torch import Tensor

from autogp.likelihoods import Bernoulli, Gaussian, Likelihood, Network, Poisson, Softmax, StudentT

MARGINALS = [(0.3, 0.2), (-1.5, 1.0), (2.0, 0.01)]  # mean and variance of q(f)


def number(value: float) -> Tensor:
    return torch.tensor([[value]], dtype=torch.float64)


def integral(function, points: list[float]) -> float:
    """Over the real line, in pieces between points around which the function lives."""
    ends = [-math.inf, *points, math.inf]
    pieces = (integrate.quad(function, *pair, epsabs=1e-13, limit=400)[0] for pair in itertools.pairwise(ends))
    return sum(pieces)


def expectation(function, mean: float, variance: float) -> float:
    """E[function(f)], f ~ N(mean, variance)."""
    sd = math.sqrt(variance)
    return integrate.quad(
        lambda f: stats.norm.pdf(f, mean, sd) * function(f), mean - 12 * sd, mean + 12 * sd, epsabs=1e-14, limit=400
    )[0]


@pytest.mark.parametrize("f", [-1.3, 0.0, 2.2])
@pytest.mark.parametrize(
    "likelihood", [Gaussian(variance=0.3), StudentT(df=5.0, scale=0.7)], ids=["gaussian", "student-t"]
)
def test_conditional_moments_of_numbers_integrate_the_density(likelihood: Likelihood, f: float):
    def density(y: float) -> float:
        return likelihood.log_prob(number(f), number(y)).exp().item()

    mean, variance = likelihood.conditional_moments(number(f))
    points = [f - 3, f, f + 3]
    assert mean.item() == pytest.approx(integral(lambda y: y * density(y), points), abs=1e-9)
    spread = integral(lambda y: (y - f) ** 2 * density(y), points)
    assert variance.item() == pytest.approx(spread, rel=1e-7)


@pytest.mark.parametrize("f", [-1.3, 0.0, 2.2])
def test_conditional_moments_of_counts_and_labels_sum_the_probabilities(f: float):
    for likelihood, values in ((Poisson(), 200), (Bernoulli(), 2), (Bernoulli(link="probit"), 2)):
        y = torch.arange(values, dtype=torch.float64)
        p = likelihood.log_prob(number(f), likelihood.check_targets(y)).exp()
        mean, variance = likelihood.conditional_moments(number(f))
        assert mean.item() == pytest.approx((p * y).sum().item(), rel=1e-12)
        assert variance.item() == pytest.approx((p * (y - mean[0]).square()).sum().item(), rel=1e-12)
    f3 = torch.tensor([[f, 0.4, -0.9]], dtype=torch.float64)
    p = Softmax(3).log_prob(f3.expand(3, 3), torch.arange(3)).exp()
    mean, variance = Softmax(3).conditional_moments(f3)
    torch.testing.assert_close(mean[0], p)
    torch.testing.assert_close(variance[0], p * (1 - p))


def test_conditional_moments_of_the_network_are_those_of_its_normal_outputs():
    network = Network(2, num_nodes=2, variance=torch.tensor([0.1, 3.0], dtype=torch.float64))
    f = torch.tensor([[1.0, 2.0, 3.0, 4.0, 0.5, -1.5]], dtype=torch.float64)  # W = [[1, 2], [3, 4]], g = [0.5, -1.5]
    mean, variance = network.conditional_moments(f)
    torch.testing.assert_close(mean, torch.tensor([[-2.5, -4.5]], dtype=torch.float64))
    torch.testing.assert_close(variance.detach(), torch.tensor([[0.1, 3.0]], dtype=torch.float64))


@pytest.mark.parametrize(("mean", "variance"), MARGINALS)
@pytest.mark.parametrize(
    "likelihood",
    [Gaussian(variance=0.3), Bernoulli(), Bernoulli(link="probit"), Poisson(), StudentT(df=5.0, scale=0.7)],
    ids=["gaussian", "logit", "probit", "poisson", "student-t"],
)
def test_predictive_moments_integrate_the_conditional_ones(likelihood: Likelihood, mean: float, variance: float):
    def first(f: float) -> float:
        return likelihood.conditional_moments(number(f))[0].item()

    def second(f: float) -> float:
        centre, spread = likelihood.conditional_moments(number(f))
        return (spread + centre.square()).item()

    centre, spread = likelihood.predictive_moments(number(mean), number(variance))
    expected = expectation(first, mean, variance)
    assert centre.item() == pytest.approx(expected, rel=1e-9)
    assert spread.item() == pytest.approx(expectation(second, mean, variance) - expected**2, rel=1e-8)


def test_predictive_moments_of_two_classes_agree_with_the_logistic_function():
    mean = torch.tensor([[0.3, -0.8], [2.0, 1.0]], dtype=torch.float64)
    variance = torch.tensor([[0.5, 1.2], [0.1, 3.0]], dtype=torch.float64)
    p, spread = Softmax(2).predictive_moments(mean, variance)
    logistic = Bernoulli().predictive_moments(mean[:, :1] - mean[:, 1:], variance.sum(-1, keepdim=True))[0]
    torch.testing.assert_close(p[:, :1], logistic, rtol=0, atol=1e-3)  # 512 Sobol points
    torch.testing.assert_close(p.sum(-1), torch.ones(2, dtype=torch.float64))
    torch.testing.assert_close(spread, p * (1 - p), rtol=1e-12, atol=1e-12)


def test_predictive_moments_of_a_network_of_one_weight_integrate_over_both_latents():
    network = Network(1, variance=0.2)
    means, variances = (0.7, -1.2), (0.3, 0.5)
    nodes, weights = np.polynomial.hermite_e.hermegauss(12)  # exact: the moments are polynomials of the latents
    weights = np.outer(weights, weights) / (2 * math.pi)
    w, g = np.meshgrid(*(m + math.sqrt(v) * nodes for m, v in zip(means, variances, strict=True)), indexing="ij")
    expected = (weights * w * g).sum()
    spread = (weights * (w * g) ** 2).sum() - expected**2 + 0.2
    mean, variance = network.predictive_moments(
        torch.tensor([means], dtype=torch.float64), torch.tensor([variances], dtype=torch.float64)
    )
    assert mean.item() == pytest.approx(expected, rel=1e-12)
    assert variance.item() == pytest.approx(spread, rel=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_narrow_q_predicts_the_conditional_moments(kind: str):
    case = make(kind)
    conditional = case.likelihood.conditional_moments(case.mean)
    predictive = case.likelihood.predictive_moments(case.mean, torch.full_like(case.mean, 1e-12))
    torch.testing.assert_close(predictive, conditional, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_expected_target_is_the_latent_mean_where_the_likelihood_says_so(kind: str):
    case = make(kind)
    expected = case.likelihood.predictive_moments(case.mean, case.variance)[0]
    assert case.likelihood.mean_is_latent == (expected.shape == case.mean.shape and bool((expected == case.mean).all()))


@pytest.mark.parametrize("kind", KINDS)
def test_predict_gives_the_moments_of_the_mixture(kind: str):
    case = make(kind)
    mean, variance = case.latents(3), case.latents(3, seed=2).sigmoid()  # [K, B, Q]
    weights = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    prediction = case.likelihood.predict(weights.log(), mean, variance)
    parts = [case.likelihood.predictive_moments(m, v) for m, v in zip(mean, variance, strict=True)]
    first = sum(w * m for w, (m, _) in zip(weights, parts, strict=True))
    second = sum(w * (v + m.square()) for w, (m, v) in zip(weights, parts, strict=True))
    torch.testing.assert_close(prediction.mean, first, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(prediction.variance, second - first.square(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_predict_in_float32_keeps_float32(kind: str):
    case = make(kind, torch.float32)
    prediction = case.likelihood.predict(torch.zeros(1, dtype=torch.float64), case.mean[None], case.variance[None])
    assert prediction.mean.dtype == prediction.variance.dtype == torch.float32
    assert (prediction.variance > 0).all()
