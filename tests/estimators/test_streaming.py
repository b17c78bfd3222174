"""partial_fit: new rows change the posterior without the old ones."""

import math

import numpy as np
import pytest
import torch

from autogp import GPClassifier, GPRegressor, load_model
from autogp.posteriors import Natural


def curve(count=300, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(0, 10, (count, 1))
    return X, np.sin(X[:, 0]) + 0.1 * rng.normal(size=count)


def state(model):
    q = Natural.of(model.model_.posterior)
    return q.precision.numpy(), q.shift.numpy()


@pytest.mark.parametrize("batch", [1, 40, 150])
def test_a_regression_ends_in_the_exact_posterior_for_any_order_and_batch(batch):
    X, y = curve(250)
    model = GPRegressor(n_inducing=12, likelihood="gaussian", max_epochs=10, random_state=0).fit(X[:100], y[:100])
    order = 100 + np.random.default_rng(batch).permutation(150)
    for start in range(0, 150, batch):
        chosen = order[start : start + batch]
        model.partial_fit(X[chosen], y[chosen])
    assert model.n_rows_ == 250

    # Titsias' posterior of v = L^-1 u given all 250 rows, with the kernel, noise and inducing inputs of the first fit.
    prepared = model.model_.prepare()
    a = model.model_.basis(model.model_.embed(torch.from_numpy(X)), prepared)[0][0].detach().numpy()
    noise = model.model_.likelihood.variance.item()
    covariance = np.linalg.inv(np.eye(12) + a @ a.T / noise)
    scaled = (y - model.target_scaler_.shift.item()) / model.target_scaler_.scale.item()
    np.testing.assert_allclose(prepared.moments.mean[0, 0].detach(), covariance @ a @ scaled / noise, atol=1e-8)
    np.testing.assert_allclose(prepared.moments.covariance()[0, 0].detach(), covariance, atol=1e-8)


def test_a_stream_ends_where_a_fit_of_all_rows_does():
    X, y = curve(600)
    model = GPRegressor(n_inducing=15, max_epochs=50, random_state=0)
    for start in range(0, 600, 200):
        model.partial_fit(X[start : start + 200], y[start : start + 200])
    whole = GPRegressor(n_inducing=15, max_epochs=50, random_state=0).fit(X, y)
    grid = np.linspace(0.5, 9.5, 50)[:, None]
    mean, std = model.predict(grid, return_std=True)
    expected = whole.predict(grid, return_std=True)
    assert np.abs(mean - expected[0]).max() < 0.1
    assert np.abs(mean - np.sin(grid[:, 0])).max() < 0.15
    assert std == pytest.approx(expected[1], rel=0.1)


def test_rows_from_elsewhere_are_learnt():
    X, y = curve()
    here = X[:, 0] < 6
    model = GPRegressor(n_inducing=20, likelihood="gaussian", max_epochs=50, random_state=0)
    model.partial_fit(X[here][::2], y[here][::2])
    before = model.log_density(X[here], y[here]).mean()
    model.partial_fit(X[here][1::2], y[here][1::2])
    assert model.log_density(X[here], y[here]).mean() > before - 0.02


def test_weights_count_as_repetitions():
    X, y = curve(100)
    once, twice = (
        GPRegressor(n_inducing=8, likelihood="gaussian", max_epochs=5, random_state=0).fit(X[:50], y[:50])
        for _ in range(2)
    )
    once.partial_fit(X[50:], y[50:], sample_weight=np.full(50, 2.0))
    twice.partial_fit(np.repeat(X[50:], 2, axis=0), np.repeat(y[50:], 2))
    for one, other in zip(state(once), state(twice), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)


def test_logistic_streams_come_close_to_the_fit_of_all_rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 2))
    y = np.where(X[:, 0] * X[:, 1] + 0.2 * rng.normal(size=600) > 0, "same", "other")
    model = GPClassifier(n_inducing=20, max_epochs=50, random_state=0)
    for start in range(0, 600, 200):
        model.partial_fit(X[start : start + 200], y[start : start + 200])
    whole = GPClassifier(n_inducing=20, max_epochs=50, random_state=0).fit(X, y)
    assert model.log_density(X, y).mean() == pytest.approx(whole.log_density(X, y).mean(), abs=0.05)


def test_classes_may_come_later_if_the_first_call_names_them():
    X, _ = curve(90)
    labels = np.digitize(X[:, 0], [3, 6])
    known = labels < 2
    model = GPClassifier(n_inducing=12, max_epochs=20, random_state=0)
    model.partial_fit(X[known], labels[known], classes=[0, 1, 2])
    assert model.predict_proba(X).shape == (90, 3)
    model.partial_fit(X, labels)
    assert model.score(X, labels) > 0.9
    with pytest.raises(ValueError, match=r"label 7 in row 1, which is not among the classes \[0, 1, 2\]"):
        model.partial_fit(X[:2], [0, 7])
    with pytest.raises(ValueError, match="classes must be those of the first call"):
        model.partial_fit(X, labels, classes=[0, 1])


def test_a_first_batch_of_one_class_is_enough_where_the_classes_are_named():
    X, _ = curve(40)
    model = GPClassifier(n_inducing=8, max_epochs=5, random_state=0)
    model.partial_fit(X, np.zeros(40, int), classes=[0, 1], sample_weight=np.ones(40))
    model.partial_fit(X + 20, np.ones(40, int))
    assert model.predict(X[:3]).tolist() == [0, 0, 0]


def test_scores_of_rows_no_longer_at_hand_are_unknown(capsys, tmp_path):
    X, y = curve(60)
    model = (
        GPRegressor(n_inducing=8, likelihood="gaussian", max_epochs=5, random_state=0)
        .fit(X[:50], y[:50])
        .partial_fit(X[50:], y[50:])
    )
    assert math.isnan(model.elbo_)
    assert math.isnan(model.loo_score_)
    model.save(tmp_path / "model")
    load_model(tmp_path / "model").summary()
    shown = capsys.readouterr().out
    assert "60 rows" in shown
    assert "unknown since partial_fit" in shown
    assert "nan" not in shown


def test_a_loaded_model_goes_on(tmp_path):
    X, y = curve(100)
    model = GPRegressor(n_inducing=8, likelihood="gaussian", max_epochs=5, random_state=0).fit(X[:50], y[:50])
    model.save(tmp_path / "model")
    again = load_model(tmp_path / "model").partial_fit(X[50:], y[50:])
    assert (again.predict(X) == model.partial_fit(X[50:], y[50:]).predict(X)).all()


def test_a_mixture_cannot_stream():
    X, y = curve(50)
    model = GPRegressor(n_inducing=8, likelihood="gaussian", max_epochs=2, n_components=2, random_state=0).fit(X, y)
    with pytest.raises(ValueError, match="n_components=1"):
        model.partial_fit(X, y)
