"""likelihood="auto" finds noise that varies, skewed targets and counts, and else stays with Gaussian noise."""

import numpy as np
import pytest

from autogp import GPRegressor, load_model
from autogp.estimators.choice import LIKELIHOODS


def fitted(x: np.ndarray, y: np.ndarray, **arguments) -> GPRegressor:
    return GPRegressor(n_inducing=20, random_state=0, verbose=False, **arguments).fit(x, y)


@pytest.fixture(scope="module")
def inputs() -> tuple[np.random.Generator, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, (400, 2))
    return rng, x, np.sin(2 * x[:, 1]) + x[:, 0]


COUNTS = ("poisson", "negative_binomial", "zero_inflated")


def test_a_target_of_few_values_has_no_noise_that_varies() -> None:
    """Where rows around a row have its value exactly, that noise would go to 0, and training would not end."""
    x = np.linspace(0, 3, 160)[:, None]
    y = np.floor(x[:, 0]) + np.where(x[:, 0] > 1.5, np.random.default_rng(0).integers(0, 2, 160), 0)
    model = GPRegressor(random_state=0, verbose=False).fit(x, y - 5)
    assert type(model.model_.likelihood).__name__ == "Gaussian"


@pytest.mark.parametrize("kind", ["Gaussian", "Heteroscedastic", "BoxCox", "NegativeBinomial"])
def test_auto_finds_the_likelihood_that_made_the_targets(inputs, kind: str) -> None:
    rng, x, f = inputs
    noise = rng.normal(size=len(x))
    y = {
        "Gaussian": f + 0.3 * noise,
        "Heteroscedastic": f + 0.3 * np.exp(0.8 * x[:, 0]) * noise,
        "BoxCox": 50 * np.exp(f + 0.3 * noise),
        "NegativeBinomial": rng.poisson(np.exp(f) * rng.gamma(2, 0.5, len(x))).astype(float),
    }[kind]
    assert type(fitted(x, y, max_epochs=60).model_.likelihood).__name__ == kind


def test_sixty_rows_are_enough_to_find_skewed_targets(inputs) -> None:
    rng, x, f = inputs
    y = 50 * np.exp(f + 0.3 * rng.normal(size=len(x)))
    model = fitted(x[:60], y[:60], max_epochs=30)
    assert type(model.model_.likelihood).__name__ == "BoxCox"
    low, high = model.predict(x[60:], quantiles=[0.05, 0.95]).T
    assert 0.8 < np.mean((low < y[60:]) & (y[60:] < high)) < 0.97


@pytest.mark.parametrize("name", [name for name in LIKELIHOODS if name != "network"])
def test_every_likelihood_by_name_trains_predicts_and_comes_back_from_its_file(inputs, name: str, tmp_path) -> None:
    rng, x, f = inputs
    y = rng.poisson(np.exp(f)) + (0.0 if name in COUNTS else 0.5)
    if name == "beta":
        y = 1 / (1 + np.exp(-f - 0.2 * rng.normal(size=len(f))))
    model = fitted(x, y, likelihood=name, max_epochs=20)
    mean, std, quantiles = model.predict(x[:5], return_std=True, quantiles=[0.05, 0.5, 0.95])
    assert (std > 0).all()
    assert (np.diff(quantiles) >= 0).all()
    assert np.isfinite(model.log_density(x[:5], y[:5])).all()
    assert model.sample_y(x[:5], n_samples=3).shape == (5, 3)
    if name in ("box_cox", "beta", *COUNTS):
        assert (quantiles >= 0).all()
    model.save(tmp_path / "model.autogp")
    assert np.array_equal(load_model(tmp_path / "model.autogp").predict(x[:5]), mean)


def test_box_cox_by_name_names_the_row_that_is_not_positive() -> None:
    with pytest.raises(ValueError, match="y is -1 in row 2"):
        fitted(np.arange(4.0)[:, None], np.array([1.0, 2.0, -1.0, 3.0]), likelihood="box_cox")


def test_beta_by_name_names_the_row_that_is_no_share() -> None:
    with pytest.raises(ValueError, match="y is 1 in row 3"):
        fitted(np.arange(4.0)[:, None], np.array([0.1, 0.2, 0.5, 1.0]), likelihood="beta")
