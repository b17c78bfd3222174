"""Counts over different times, areas or numbers: their mean is the exposure times a rate."""

import numpy as np
import pytest

from autogp import GPRegressor
from autogp.likelihoods import Gaussian, Poisson


def claims(count=200, seed=0):
    """Counts whose exposure falls where their rate rises, so that the counts alone say nothing of it."""
    random = np.random.default_rng(seed)
    x = np.sort(random.uniform(-2, 2, count))
    rate = np.exp(x)
    exposure = np.exp(-x) * random.uniform(2, 6, count)
    return x[:, None], random.poisson(exposure * rate), exposure, rate


def regressor(likelihood="poisson"):
    return GPRegressor(20, likelihood=likelihood, random_state=0)


@pytest.mark.parametrize("likelihood", ["poisson", "negative_binomial"])
def test_the_rate_is_learnt_not_the_count(likelihood):
    x, y, exposure, rate = claims()
    model = regressor(likelihood).fit(x, y, exposure=exposure)
    np.testing.assert_allclose(model.predict(x)[20:-20], rate[20:-20], rtol=0.35)
    assert np.corrcoef(regressor(likelihood).fit(x, y).predict(x), rate)[0, 1] < 0.9


def test_one_exposure_for_all_rows_changes_the_unit_alone():
    x, y, _, _ = claims(80)
    plain, exposed = regressor().fit(x, y), regressor().fit(x, y, exposure=np.full(80, 4.0))
    np.testing.assert_allclose(exposed.predict(x, exposure=np.full(80, 4.0)), plain.predict(x), rtol=1e-3)
    np.testing.assert_allclose(4 * exposed.predict(x), plain.predict(x), rtol=1e-3)
    assert exposed.elbo_ == pytest.approx(plain.elbo_, abs=1e-2)


@pytest.mark.parametrize("likelihood", ["poisson", "negative_binomial", "zero_inflated"])
def test_densities_moments_and_quantiles_belong_together(likelihood):
    x, y, exposure, _ = claims(80)
    model = regressor(likelihood).fit(x, y, exposure=exposure)
    row, counts = np.repeat(x[40:41], 200, 0), np.arange(200)
    threefold = np.full(200, 3.0)
    p = np.exp(model.log_density(row, counts, threefold))
    mean, std, quantiles = model.predict(row[:1], return_std=True, quantiles=[0.1, 0.9], exposure=threefold[:1])
    assert p.sum() == pytest.approx(1, abs=1e-6)
    assert counts @ p == pytest.approx(mean[0], rel=1e-5)
    assert counts**2 @ p - (counts @ p) ** 2 == pytest.approx(std[0] ** 2, rel=1e-4)
    below = np.cumsum(p)
    for level, value in zip((0.1, 0.9), quantiles[0], strict=True):
        assert below[int(value)] > level - 0.03
        assert value == 0 or below[int(value) - 1] < level + 0.03
    drawn = model.sample_y(row[:1], 4000, exposure=threefold[:1])
    assert drawn.mean() == pytest.approx(mean[0], abs=5 * std[0] / np.sqrt(4000))
    np.testing.assert_allclose(model.log_density(row, counts, np.ones(200)), model.log_density(row, counts))


def test_rows_held_out_and_new_rows_have_exposures_too():
    x, y, exposure, rate = claims()
    model = GPRegressor(20, likelihood="poisson", batch_size=50, max_epochs=30, random_state=0)
    model.fit(x[::2], y[::2], eval_set=(x[1::2], y[1::2], exposure[1::2]), exposure=exposure[::2])
    before = np.abs(np.log(model.predict(x) / rate)).mean()
    model.partial_fit(x[1::2], y[1::2], exposure=exposure[1::2])
    assert np.abs(np.log(model.predict(x) / rate)).mean() < before + 0.02
    assert model.score(x, y, exposure=exposure) == pytest.approx(
        1 - np.square(y - model.predict(x, exposure=exposure)).sum() / np.square(y - y.mean()).sum()
    )
    with pytest.raises(ValueError, match="eval_set must be"):
        model.fit(x, y, eval_set=(x, y), exposure=exposure)


def test_the_default_likelihood_of_counts_with_exposures_is_the_negative_binomial():
    x, y, exposure, _ = claims(60)
    model = GPRegressor(10, max_epochs=5).fit(x, y, exposure=exposure)
    assert type(model.model_.likelihood).__name__ == "NegativeBinomial"
    own = GPRegressor(10, likelihood=Poisson(), max_epochs=5).fit(x, y, exposure=exposure)
    assert np.isfinite(own.elbo_)


def test_wrong_exposures_are_refused():
    x, y, exposure, _ = claims(60)
    with pytest.raises(ValueError, match=r"exposure is for counts.*not Gaussian"):
        GPRegressor(likelihood=Gaussian()).fit(x, y, exposure=exposure)
    with pytest.raises(ValueError, match=r"one number for each of 60 rows, got the shape \(59,\)"):
        regressor().fit(x, y, exposure=exposure[1:])
    exposure[7] = 0
    with pytest.raises(ValueError, match="positive and finite, got 0 in row 7"):
        regressor().fit(x, y, exposure=exposure)
    gaussian = GPRegressor(10, likelihood="gaussian", max_epochs=3).fit(x, y)
    with pytest.raises(ValueError, match="fitted to other targets"):
        gaussian.predict(x, exposure=np.ones(60))
