"""Predictive distributions of the regressor: moments, quantiles, samples, densities, in the units of y."""

import numpy as np
import pytest
import torch
from scipy.stats import norm
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.metrics import r2_score

from autogp import GPRegressor, elbo
from autogp.metrics import standardised_squared_error
from autogp.training import Start


def fitted(X, y, **changes):
    return GPRegressor(
        **{"n_inducing": 15, "likelihood": "gaussian", "max_epochs": 60, "random_state": 0, **changes}
    ).fit(X, y)


def simulated(likelihood, count, seed):
    rng = np.random.default_rng(seed)
    X = rng.uniform(0, 6, (count, 1))
    f = np.sin(X[:, 0])
    if likelihood == "poisson":
        return X, rng.poisson(np.exp(1.5 + f))
    noise = rng.standard_t(4, count) if likelihood == "student_t" else rng.normal(size=count)
    return X, 100 + 50 * (f + 0.3 * noise)


@pytest.mark.parametrize("likelihood", ["gaussian", "student_t", "poisson"])
def test_quantiles_cover_what_they_promise(likelihood):
    X, y = simulated(likelihood, 400, 0)
    model = fitted(X, y, likelihood=likelihood, n_inducing=10, max_epochs=100)
    X, y = simulated(likelihood, 2000, 1)
    low, middle, high = model.predict(X, quantiles=[0.05, 0.5, 0.95]).T
    if likelihood == "poisson":  # counts have no exact 90 % interval: it covers at least that
        assert (low % 1 == 0).all()
        assert 0.89 < np.mean((low <= y) & (y <= high)) < 0.97
    else:
        assert np.mean((low <= y) & (y <= high)) == pytest.approx(0.9, abs=0.03)
        assert np.mean(y <= middle) == pytest.approx(0.5, abs=0.05)
    assert (low <= middle).all()
    assert (middle <= high).all()


def test_standard_deviations_and_densities_are_those_of_new_targets():
    X, y = simulated("gaussian", 300, 0)
    model = fitted(X, y, max_epochs=150)
    new, targets = simulated("gaussian", 1000, 1)
    mean, std = model.predict(new, return_std=True)
    assert np.mean(((targets - mean) / std) ** 2) == pytest.approx(1, abs=0.15)
    np.testing.assert_allclose(model.log_density(new, targets), norm.logpdf(targets, mean, std), atol=1e-9)
    np.testing.assert_allclose(
        model.predict(new, quantiles=[0.1, 0.9]), norm.ppf([0.1, 0.9], mean[:, None], std[:, None]), rtol=1e-9
    )


def test_units_of_y_change_nothing_but_the_units():
    X, y = simulated("gaussian", 100, 0)
    model, other = fitted(X, y, max_epochs=20), fitted(X, 1e6 * y - 3e5, max_epochs=20)
    np.testing.assert_allclose(other.predict(X), 1e6 * model.predict(X) - 3e5, rtol=1e-6)
    assert other.loo_score_ == pytest.approx(model.loo_score_ - np.log(1e6), abs=1e-6)
    assert other.elbo_ == pytest.approx(model.elbo_ - 100 * np.log(1e6), abs=1e-4)


def test_student_t_is_not_bent_by_outliers():
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 6, (200, 1))
    y = np.sin(X[:, 0]) + 0.1 * rng.normal(size=200)
    y[:20] += 10
    errors = {
        likelihood: np.abs(fitted(X, y, likelihood=likelihood).predict(X) - np.sin(X[:, 0])).mean()
        for likelihood in ("gaussian", "student_t")
    }
    assert errors["student_t"] < 0.15
    assert errors["gaussian"] > 0.5


def two_outputs(count=120):
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 6, (count, 1))
    return X, np.stack([np.sin(X[:, 0]), 30 + 10 * np.cos(X[:, 0])], 1) + 0.1 * rng.normal(size=(count, 2)) * [1, 10]


@pytest.mark.parametrize("likelihood", ["gaussian", "student_t", "network"])
def test_several_outputs_have_the_shapes_of_scikit_learn(likelihood):
    X, Y = two_outputs()
    model = fitted(X, Y, likelihood=likelihood, max_epochs=150 if likelihood == "network" else 60)
    theirs = GaussianProcessRegressor(optimizer=None).fit(X[:10], Y[:10])
    mean, std = model.predict(X[:5], return_std=True)
    assert mean.shape == std.shape == theirs.predict(X[:5], return_std=True)[1].shape
    assert model.sample_y(X[:5], 4).shape == theirs.sample_y(X[:5], 4).shape
    below = model.predict(X[:5], quantiles=[0.1, 0.2, 0.3])
    assert below.shape == (5, 2, 3)
    together = model.predict(X[:5], return_std=True, quantiles=[0.1, 0.2, 0.3])
    for one, other in zip(together, (*model.predict(X[:5], return_std=True), below), strict=True):
        np.testing.assert_array_equal(one, other)
    assert model.log_density(X, Y).shape == (120,)
    assert model.score(X, Y) > 0.9


def test_a_network_of_outputs_is_no_worse_than_independent_ones():
    X, Y = two_outputs(240)
    errors = {
        likelihood: standardised_squared_error(Y[::2], fitted(X[1::2], Y[1::2], likelihood=likelihood).predict(X[::2]))
        for likelihood in ("gaussian", "network")
    }
    assert errors["network"] < 0.05
    assert errors["network"] < 1.1 * errors["gaussian"]


def test_one_output_has_the_shapes_of_scikit_learn():
    X, Y = two_outputs(40)
    model, theirs = fitted(X, Y[:, :1], max_epochs=3), GaussianProcessRegressor(optimizer=None).fit(X, Y[:, 0])
    assert model.predict(X[:5]).shape == (5,)
    assert model.sample_y(X[:5]).shape == theirs.sample_y(X[:5]).shape
    assert (model.sample_y(X[:5], random_state=1) == model.sample_y(X[:5], random_state=1)).all()
    assert (model.sample_y(X[:5], random_state=1) != model.sample_y(X[:5], random_state=2)).any()


def test_missing_targets_of_one_output_cost_the_other_nothing():
    X, Y = two_outputs()
    holes = Y.copy()
    holes[::3, 0] = np.nan
    model, full = fitted(X, holes), fitted(X, Y)
    assert np.abs(model.predict(X)[:, 1] - full.predict(X)[:, 1]).max() < 0.5
    assert np.abs(model.predict(X)[:, 0] - np.sin(X[:, 0])).max() < 0.2
    # Densities are of what is there.
    both, first, second = model.log_density(X, Y), Y.copy(), Y.copy()
    first[:, 1], second[:, 0] = np.nan, np.nan
    np.testing.assert_allclose(model.log_density(X, first) + model.log_density(X, second), both, atol=1e-9)


def test_the_bound_counts_only_targets_that_are_there():
    X, Y = two_outputs()
    holes, away = Y.copy(), np.arange(120) % 2 == 0
    holes[away] = np.nan
    model = fitted(X, holes, max_epochs=5)
    x, targets = torch.from_numpy(X[~away]), model.target_scaler_(torch.from_numpy(Y[~away]))
    units = 60 * model.target_scaler_.scale.log().sum().item()
    assert model.elbo_ == pytest.approx(elbo(model.model_, x, targets).item() - units, abs=1e-8)


def test_samples_have_the_means_and_covariances_of_the_posterior():
    X, y = simulated("gaussian", 100, 0)
    model = fitted(X, y)
    grid = np.array([[1.0], [1.2], [4.0], [9.0]])
    draws = model.sample_y(grid, 40_000, random_state=3)
    mean, std = model.predict(grid, return_std=True)
    np.testing.assert_allclose(draws.mean(1), mean, atol=5 * std.max() / 200)
    np.testing.assert_allclose(draws.std(1), std, rtol=0.02)
    joint = model.model_.joint(torch.from_numpy(grid)).covariance[0, 0].detach().numpy()
    joint = joint * model.target_scaler_.scale.item() ** 2
    expected = joint + np.diag(std**2 - np.diag(joint))
    np.testing.assert_allclose(np.cov(draws), expected, atol=0.03 * expected.max())
    assert abs(np.corrcoef(draws[0] - mean[0], draws[1] - mean[1])[0, 1]) > 5 / 200  # neighbours vary together


@pytest.mark.parametrize("kernel", ["rbf", "matern12", "matern32", "matern52", "linear", "arccosine"])
def test_every_kernel_learns_a_trend(kernel):
    X, y = simulated("gaussian", 100, 0)
    model = fitted(X, y + 50 * X[:, 0], kernel=kernel, objective="predictive", max_epochs=30)
    assert model.score(X, y + 50 * X[:, 0]) > 0.6


def test_score_passes_over_missing_targets():
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (80, 1))
    Y = np.column_stack([np.sin(2 * X[:, 0]), X[:, 0] ** 2]) + 0.1 * rng.normal(size=(80, 2))
    model = GPRegressor(10, max_epochs=30, random_state=0).fit(X, Y)
    whole = model.score(X, Y)
    assert whole == pytest.approx(r2_score(Y, model.predict(X)))
    known = rng.random(80) < 0.7
    Y[~known, 0] = np.nan
    mean = model.predict(X)
    expected = (r2_score(Y[known, 0], mean[known, 0]) + r2_score(Y[:, 1], mean[:, 1])) / 2
    assert model.score(X, Y) == pytest.approx(expected)
    with pytest.raises(ValueError, match="n_samples must be at least 1, got 0"):
        model.sample_y(X, n_samples=0)


@pytest.mark.parametrize(
    ("x", "value"), [([[1.0]], 2.0), ([[1.0], [2.0]], 4.0), (np.linspace(0, 6, 100)[:, None], -3e5)]
)
def test_targets_that_never_vary_are_predicted_as_they_are(x, value, tmp_path):
    """Nothing holds the noise up: it must not fall until q overflows."""
    with pytest.warns(UserWarning, match="no column can tell anything about it"):
        model = GPRegressor(10, random_state=0).fit(x, np.full(len(x), value))
    mean, std = model.predict(x, return_std=True)
    np.testing.assert_allclose(mean, value, rtol=1e-9)
    assert (std < 1e-3).all()
    assert np.isfinite([model.elbo_, model.loo_score_]).all()
    model.save(tmp_path / "model.autogp")


def test_a_prior_keeps_lengthscales_of_columns_without_meaning_together() -> None:
    rng = np.random.default_rng(0)
    x, x_test = rng.normal(size=(60, 15)), rng.normal(size=(500, 15))
    y = x[:, 0] + 0.5 * rng.normal(size=60)
    models = [
        GPRegressor(likelihood="gaussian", start=Start(prior=prior), random_state=0, verbose=False).fit(x, y)
        for prior in (True, False)
    ]
    spreads = [np.log(model.model_.kernel.lengthscale.detach().numpy()).std() for model in models]
    assert spreads[0] < 1 < spreads[1]
    y_test = x_test[:, 0] + 0.5 * rng.normal(size=500)
    kept, free = (model.log_density(x_test, y_test).mean() for model in models)
    assert kept > free + 0.02
