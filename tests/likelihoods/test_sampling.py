"""Draws of y, quantiles of y, and the base rate of counts."""

import numpy as np
import pytest
import torch
from scipy import stats

from autogp.likelihoods import Bernoulli, Gaussian, Likelihood, NegativeBinomial, Network, Poisson, Softmax, StudentT

DRAWS = 200_000


def draws(likelihood: Likelihood, *f: float) -> np.ndarray:
    latents = torch.tensor([f], dtype=torch.float64).expand(DRAWS, len(f))
    with torch.no_grad():
        return likelihood.sample(latents, torch.Generator().manual_seed(1)).numpy()


@pytest.mark.parametrize(
    ("likelihood", "distribution"),
    [(Gaussian(variance=4.0), stats.norm(0.7, 2.0)), (StudentT(df=3.0, scale=2.0), stats.t(3.0, 0.7, 2.0))],
    ids=["gaussian", "student_t"],
)
def test_draws_follow_their_distribution(likelihood, distribution):
    assert stats.kstest(draws(likelihood, 0.7)[:, 0], distribution.cdf).pvalue > 0.01


def test_draws_of_counts_labels_and_networks_have_the_right_frequencies():
    counts = draws(Poisson(rate=3.0), 0.5)[:, 0]
    rate = 3 * np.exp(0.5)
    assert counts.mean() == pytest.approx(rate, abs=0.03)
    assert counts.var() == pytest.approx(rate, abs=0.1)
    assert draws(Bernoulli(), 1.0).mean() == pytest.approx(1 / (1 + np.exp(-1)), abs=0.005)
    labels = draws(Softmax(3), 0.0, 1.0, -1.0)
    expected = torch.softmax(torch.tensor([0.0, 1.0, -1.0]), 0).numpy()
    np.testing.assert_allclose(np.bincount(labels) / DRAWS, expected, atol=0.005)
    mixed = draws(Network(num_outputs=2, variance=0.25), 2.0, -1.0, 3.0)
    np.testing.assert_allclose(mixed.mean(0), [6.0, -3.0], atol=0.01)
    np.testing.assert_allclose(mixed.var(0), 0.25, atol=0.01)


def test_a_likelihood_without_sample_says_what_is_missing():
    with pytest.raises(NotImplementedError, match=r"Likelihood must define sample\(f, generator\)"):
        Likelihood().sample(torch.zeros(1, 1))


LEVELS = torch.tensor([0.05, 0.5, 0.9], dtype=torch.float64)


def one_row(mean: float, variance: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    shape = (1, 700, 1)  # more than one block of rows
    return torch.zeros(1, dtype=torch.float64), torch.full(shape, mean).double(), torch.full(shape, variance).double()


@torch.no_grad()
def test_gaussian_quantiles_are_exact():
    found = Gaussian(variance=0.5).quantiles(*one_row(2.0, 1.5), LEVELS)
    expected = stats.norm(2.0, np.sqrt(2.0)).ppf(LEVELS.numpy())
    np.testing.assert_allclose(found[:, :, 0].numpy(), np.repeat(expected[:, None], 700, 1), rtol=1e-12)


@torch.no_grad()
@pytest.mark.parametrize(
    ("likelihood", "cdf"),
    [
        (StudentT(df=4.0, scale=0.5), lambda y, f: stats.t(4.0, f, 0.5).cdf(y)),
        (Poisson(rate=20.0), lambda y, f: stats.poisson(20 * np.exp(f)).cdf(y)),
    ],
    ids=["student_t", "poisson"],
)
def test_sampled_quantiles_have_their_level(likelihood, cdf):
    log_weights, mean, variance = one_row(0.3, 0.2)
    found = likelihood.quantiles(log_weights, mean, variance, LEVELS)[:, :, 0].numpy()
    f = 0.3 + np.sqrt(0.2) * stats.norm.ppf((np.arange(400) + 0.5) / 400)
    for level, values in zip(LEVELS.tolist(), found, strict=True):
        below = np.array([cdf(value, f).mean() for value in values[:50]])
        strictly = np.array([cdf(value - 1e-6, f).mean() for value in values[:50]])
        assert (below > level - 0.03).all()
        assert (strictly < level + 0.03).all()


@torch.no_grad()
@pytest.mark.parametrize(
    ("likelihood", "at"),
    [
        (Poisson(rate=2.0), lambda f: stats.poisson(2 * np.exp(f))),
        (NegativeBinomial(rate=40.0, dispersion=0.5), lambda f: stats.nbinom(2.0, 1 / (1 + 20 * np.exp(f)))),
    ],
    ids=["poisson", "negative binomial"],
)
def test_quantiles_of_counts_are_exact(likelihood, at):
    found = likelihood.quantiles(*one_row(0.3, 0.2), LEVELS)[:, :, 0].numpy()
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    counts = np.arange(600)
    below = (weights @ at(0.3 + np.sqrt(0.2) * nodes[:, None]).cdf(counts)) / weights.sum()
    expected = [counts[below >= level][0] for level in LEVELS.numpy()]
    np.testing.assert_array_equal(found, np.repeat(np.array(expected)[:, None], 700, 1))
    huge = likelihood.quantiles(*one_row(8.0, 0.2), LEVELS)[:, 0, 0]  # by draws: more than all that are added up
    assert (huge > 2_000).all()
    assert (huge.diff() > 0).all()


@torch.no_grad()
def test_quantiles_of_a_mixture_see_both_components():
    log_weights = torch.tensor([0.25, 0.75], dtype=torch.float64).log()
    mean = torch.tensor([-10.0, 10.0], dtype=torch.float64).reshape(2, 1, 1)
    found = Gaussian(variance=1e-4).quantiles(log_weights, mean, torch.full_like(mean, 1e-4), LEVELS)
    np.testing.assert_allclose(found[:, 0, 0].numpy(), [-10.0, 10.0, 10.0], atol=0.1)


def test_the_rate_of_counts_is_where_f_is_zero():
    y = Poisson().check_targets(torch.tensor([7]))
    zero, spread = torch.zeros(1, 1, dtype=torch.float64), torch.full((1, 1), 0.3, dtype=torch.float64)
    shift = torch.full_like(zero, np.log(5.0))
    with torch.no_grad():
        for name in ("expected_log_prob", "log_expected_prob"):
            with_rate = getattr(Poisson(rate=5.0), name)(zero, spread, y.double())
            without = getattr(Poisson(), name)(shift, spread, y.double())
            torch.testing.assert_close(with_rate, without, rtol=1e-10, atol=1e-10)
        for one, other in zip(
            Poisson(rate=5.0).predictive_moments(zero, spread), Poisson().predictive_moments(shift, spread), strict=True
        ):
            torch.testing.assert_close(one, other)
