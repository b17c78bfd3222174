"""Simulation-based calibration of regression: where the truth is drawn from the prior, posteriors are right on average.

1,000 data sets, 20 designs of 50 functions each, with the model's own hyper-parameters. One new point per function
keeps the simulations of a design independent.
"""

from typing import NamedTuple

import numpy as np
import pytest
import scipy.stats
import torch
from formulas import natural_step, rbf

from autogp import SparseGP
from autogp.kernels import RBF
from autogp.likelihoods import Gaussian

DESIGNS, FUNCTIONS, ROWS, DRAWS = 20, 50, 30, 99
LENGTHSCALE, VARIANCE, NOISE = 0.7, 1.3, 0.2


class Simulations(NamedTuple):
    truth: np.ndarray  # f at the new point, [1000]
    target: np.ndarray  # f with noise
    mean: np.ndarray  # of q(f)
    variance: np.ndarray
    target_mean: np.ndarray  # of the prediction of y
    target_variance: np.ndarray
    rank: np.ndarray  # of the truth among DRAWS functions drawn from q
    distance: np.ndarray  # Mahalanobis' square, of the truth at three new points together


@pytest.fixture(scope="module", params=["inducing inputs at the data", "a dense grid of inducing inputs"])
def simulations(request) -> Simulations:
    at_data = request.param == "inducing inputs at the data"
    rng, generator = np.random.default_rng(at_data), torch.Generator().manual_seed(0)
    found: list[np.ndarray] = []
    for _ in range(DESIGNS):
        x, new = rng.uniform(-3, 3, (ROWS, 1)), rng.uniform(-4, 4, (FUNCTIONS, 1))
        both = np.concatenate([x, new])
        root = np.linalg.cholesky(rbf(both, both, LENGTHSCALE, VARIANCE) + 1e-10 * np.eye(len(both)))
        f = root @ rng.standard_normal((len(both), FUNCTIONS))
        y = f + np.sqrt(NOISE) * rng.standard_normal(f.shape)
        z = x if at_data else np.linspace(-4.5, 4.5, 40)[:, None]
        model = SparseGP(RBF(LENGTHSCALE, VARIANCE), Gaussian(FUNCTIONS, variance=NOISE), torch.from_numpy(z))
        natural_step(model, torch.from_numpy(x), torch.from_numpy(y[:ROWS]))
        at_new = torch.from_numpy(new)
        with torch.no_grad():
            marginals, joint = model(at_new), model.joint(at_new[:3])
        draws = model.sample(at_new, DRAWS, generator).numpy()  # [S, R, Q]
        prediction = model.predict(at_new)
        truth = f[ROWS:]  # [R, Q]
        residual = truth[:3].T - joint.mean[0].numpy()  # [Q, 3]
        distance = np.einsum("qi,qij,qj->q", residual, np.linalg.inv(joint.covariance[0].numpy()), residual)
        parts = [truth, y[ROWS:], marginals.mean[0], marginals.variance[0], *prediction, (draws < truth).sum(0)]
        found.append(
            np.stack([*(np.diagonal(np.asarray(part)) for part in parts), distance])
        )  # new point q, function q
    return Simulations(*np.concatenate(found, 1))


def uniform_p_value(values: np.ndarray, bins: int = 20) -> float:
    """Chi-squared test that values in (0, 1) are uniform."""
    return scipy.stats.chisquare(np.histogram(values, bins, (0, 1))[0]).pvalue


def coverage(truth: np.ndarray, mean: np.ndarray, variance: np.ndarray, level: float = 0.9) -> float:
    return float((np.abs(truth - mean) < scipy.stats.norm.ppf(0.5 + level / 2) * np.sqrt(variance)).mean())


def test_probability_integral_transform_of_the_function_is_uniform(simulations):
    assert len(simulations.truth) == 1000
    values = scipy.stats.norm.cdf((simulations.truth - simulations.mean) / np.sqrt(simulations.variance))
    assert uniform_p_value(values) > 1e-4


def test_probability_integral_transform_of_the_target_is_uniform(simulations):
    spread = np.sqrt(simulations.target_variance)
    assert uniform_p_value(scipy.stats.norm.cdf((simulations.target - simulations.target_mean) / spread)) > 1e-4


def test_rank_of_the_truth_among_samples_is_uniform(simulations):
    assert uniform_p_value((simulations.rank + 0.5) / (DRAWS + 1)) > 1e-4


def test_joint_posterior_has_the_right_distance_from_the_truth(simulations):
    assert uniform_p_value(scipy.stats.chi2(3).cdf(simulations.distance)) > 1e-4


@pytest.mark.parametrize("level", [0.5, 0.9])
def test_intervals_cover_as_often_as_they_say(simulations, level):
    tolerance = 0.03 if level == 0.9 else 0.05  # three standard errors
    assert abs(coverage(simulations.truth, simulations.mean, simulations.variance, level) - level) < tolerance
    found = coverage(simulations.target, simulations.target_mean, simulations.target_variance, level)
    assert abs(found - level) < tolerance


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_a_posterior_of_wrong_variance_fails(simulations, factor):
    variance = factor * simulations.variance
    values = scipy.stats.norm.cdf((simulations.truth - simulations.mean) / np.sqrt(variance))
    assert uniform_p_value(values) < 1e-4
    assert abs(coverage(simulations.truth, simulations.mean, variance) - 0.9) > 0.03
    assert uniform_p_value(scipy.stats.chi2(3).cdf(simulations.distance / factor)) < 1e-4


def test_a_posterior_of_wrong_mean_fails(simulations):
    values = scipy.stats.norm.cdf(simulations.truth / np.sqrt(simulations.variance))  # the prior's mean instead
    assert uniform_p_value(values) < 1e-4
