"""A likelihood that a user wrote ends at its best ELBO from any start, or says that it has not converged."""

import warnings

import numpy as np
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning
from user_likelihoods import LIKELIHOODS, Laplace, LogCosh

from autogp import SparseGP
from autogp.data import ArraySource
from autogp.training import History, Settings, converge, start_inducing_inputs, start_kernel


def fit(likelihood, seed: int, count: int = 80) -> tuple[History, bool]:
    """The history, and whether there was a warning."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-2, 2, (count, 1))
    source = ArraySource(x, np.sin(2 * x[:, 0]) + 0.1 * rng.normal(size=count))
    z = start_inducing_inputs(source, count // 4, dtype=torch.float64)
    model = SparseGP(start_kernel("matern52", source), likelihood, z)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        history = converge(model, source, Settings())
    warned = any(issubclass(each.category, ConvergenceWarning) for each in caught)
    assert warned != history.converged
    return history, warned


def check(kind, scales, seed: int, count: int = 80) -> None:
    """Within 1 % of the best of all starts (and a tenth of a nat, where the best is near 0)."""
    starts = [kind(scale) for scale in scales] if hasattr(kind(), "log_scale") else [kind()]
    found = [fit(likelihood, seed, count) for likelihood in starts]
    best = max(history.best_score for history, _ in found) * count
    for scale, (history, warned) in zip(scales, found, strict=False):
        assert warned or history.best_score * count >= best - 0.01 * abs(best) - 0.1, scale


@pytest.mark.parametrize("kind", [Laplace, LogCosh])
def test_the_start_of_a_scale_does_not_decide_where_it_ends(kind):
    found = [fit(kind(scale), seed=0) for scale in (0.3, 1.0)]
    assert not any(warned for _, warned in found)
    assert found[0][0].best_score == pytest.approx(found[1][0].best_score, abs=0.005)


@pytest.mark.parametrize("kind", LIKELIHOODS)
def test_every_fit_ends_at_the_best_elbo_or_says_that_it_does_not(kind):
    check(kind, (0.3, 3.0), seed=1, count=40)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("kind", LIKELIHOODS)
def test_at_five_scales_and_ten_seeds(kind, seed):
    check(kind, (0.1, 0.3, 1.0, 3.0, 10.0), seed)
