"""Full and diagonal posteriors, and mixtures, on the same rows."""

import numpy as np
import pytest
import torch

from autogp.datasets import Dataset
from autogp.experiments import posteriors
from autogp.experiments.figures import figure_of_posteriors
from autogp.posteriors import Posterior


@pytest.fixture(scope="module")
def boston():
    random = np.random.default_rng(0)
    x = random.normal(size=(60, 1))
    y = np.sin(2 * x[:, 0]) + 0.1 * random.normal(size=60)
    return Dataset("boston", x[:40], y[:40], x[40:], y[40:])


def test_no_posterior_has_a_larger_elbo_than_the_exact_one(boston, monkeypatch, tmp_path):
    """With Gaussian noise the optimal q is one full Gaussian: others are below it, and a full mixture equals it."""
    monkeypatch.setattr(posteriors, "INDUCING", 8)
    monkeypatch.setattr(posteriors, "EPOCHS", 40)
    found = {
        (components, diagonal): posteriors.measure(boston, None, 0, components=components, diagonal=diagonal)["scores"]
        for components in (1, 2)
        for diagonal in (False, True)
    }
    exact = found[1, False]["elbo"]
    assert found[2, False]["elbo"] == pytest.approx(exact, abs=1e-3)
    for components in (1, 2):
        assert found[components, True]["elbo"] < exact - 0.1
    records = [
        {
            "data": {"set": "boston"},
            "preset": f"{'diagonal' if diagonal else 'full'} {components}",
            "scores": scores,
        }
        for (components, diagonal), scores in found.items()
    ]
    path = figure_of_posteriors(records, tmp_path)
    assert path is not None
    assert path.name == "posteriors.svg"
    assert figure_of_posteriors([{"scores": {"nlp": 1.0}}], tmp_path) is None


def test_diagonal_posteriors_start_at_the_mean_and_the_variances_of_the_full_one():
    full = Posterior(1, 4)
    covariance = torch.eye(4, dtype=torch.float64) + 0.3
    full.set_moments(torch.arange(4.0, dtype=torch.float64).reshape(1, 1, 4), covariance[None, None])
    found = posteriors._diagonal(full, 1, 0).moments()
    torch.testing.assert_close(found.mean, full.moments().mean)
    torch.testing.assert_close(found.covariance()[0, 0], torch.diag(covariance.diagonal()))
    apart = posteriors._diagonal(full, 3, 0).mean
    assert (apart[0] != apart[1]).all()
