"""Regression networks through the estimator: outputs that share nodes, intervals that cover what they say."""

import numpy as np
import pytest

from autogp import GPRegressor
from autogp.likelihoods import Network


def shared(rows: int = 300, noise: float = 0.1) -> tuple[np.ndarray, ...]:
    """Four outputs that mix two functions by weights that vary over the inputs; training rows and test rows."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, size=(rows + 500, 2))
    nodes = np.stack([np.sin(2 * x[:, 0]), np.cos(2 * x[:, 1])], 1)
    weights = rng.normal(size=(4, 2)) + 0.5 * rng.normal(size=(4, 2)) * x[:, :1, None]
    y = (weights * nodes[:, None]).sum(-1)
    y = y / y.std(0) + noise * rng.normal(size=y.shape)
    return x[:rows], y[:rows], x[rows:], y[rows:]


@pytest.mark.parametrize("nodes", [1, 2, pytest.param(3, marks=pytest.mark.slow)])
def test_networks_of_several_nodes_learn_and_their_intervals_cover_the_targets(nodes):
    x, y, x_test, y_test = shared()
    likelihood = "network" if nodes == 1 else Network(4, nodes, variance=0.1)
    model = GPRegressor(40 if nodes == 1 else 20, likelihood=likelihood, random_state=0).fit(x, y)
    mean, std = model.predict(x_test, return_std=True)
    assert model.model_.likelihood.num_nodes == nodes
    assert np.mean((mean - y_test) ** 2 / y.var(0)) < 0.05
    covered = np.mean(np.abs(mean - y_test) < 1.645 * std)
    assert 0.85 < covered < (0.98 if nodes == 1 else 0.97)  # one node is too few for these outputs
    noise = model.model_.likelihood.variance.detach().sqrt().numpy() * model.target_scaler_.scale.numpy()
    assert nodes == 1 or (noise < 0.13).all()  # 0.1 is true; a noise that is not yet learnt makes intervals too wide
    low, high = np.moveaxis(model.predict(x_test[:50], quantiles=[0.05, 0.95]), -1, 0)
    assert ((low < mean[:50]) & (mean[:50] < high)).all()
