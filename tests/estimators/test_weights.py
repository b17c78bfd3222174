"""Weights of rows and classes, held-out rows, and when training stops."""

import time

import numpy as np
import pytest
import torch
from sklearn.datasets import load_iris

from autogp import GPClassifier, GPRegressor
from autogp.estimators import fitting
from autogp.likelihoods import Gaussian
from autogp.training import Phase, Settings


def line(count=80):
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (count, 1))
    return X, np.sin(2 * X[:, 0]) + 0.2 * rng.normal(size=count)


def fitted(X, y, sample_weight=None, **changes):
    return GPRegressor(
        **{"n_inducing": 15, "likelihood": "gaussian", "max_epochs": 100, "random_state": 0, **changes}
    ).fit(X, y, sample_weight)


def test_a_weight_of_two_is_like_the_row_twice():
    X, y = line()
    weights = 1.0 + (np.arange(80) % 2)
    long = {"n_inducing": 30, "max_epochs": 150}
    twice = fitted(np.repeat(X, weights.astype(int), axis=0), np.repeat(y, weights.astype(int)), **long)
    weighted, plain = fitted(X, y, weights, **long), fitted(X, y, **long)
    grid = np.linspace(-2, 2, 40)[:, None]
    apart = np.abs(weighted.predict(grid) - twice.predict(grid)).max()
    assert apart < 0.02
    assert np.abs(plain.predict(grid) - twice.predict(grid)).max() > 2 * apart  # weights do something
    assert weighted.elbo_ == pytest.approx(twice.elbo_, abs=1.5)
    assert abs(plain.elbo_ - twice.elbo_) > 5


def test_a_weight_of_zero_is_like_the_row_away():
    X, y = line()
    away = np.arange(80) % 3 == 0
    spoilt = np.where(away, 1e6, y)
    found, expected = fitted(X, spoilt, (~away).astype(float), max_epochs=20), fitted(X[~away], y[~away], max_epochs=20)
    assert (found.predict(X) == expected.predict(X)).all()


def test_half_the_weight_everywhere_leaves_more_uncertainty():
    X, y = line()
    halves = fitted(X, y, 0.5, max_epochs=20)
    whole = fitted(X, y, max_epochs=20)
    assert halves.predict(X, return_std=True)[1].mean() > whole.predict(X, return_std=True)[1].mean()


def imbalanced():
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.normal(0, 1, (285, 2)), rng.normal(1.5, 1, (15, 2))])
    return X, np.repeat(["common", "rare"], [285, 15])


def test_class_weights_find_the_rare_class():
    X, y = imbalanced()
    small = {"n_inducing": 15, "max_epochs": 60, "random_state": 0}
    found = {
        str(weights): np.mean(GPClassifier(class_weight=weights, **small).fit(X, y).predict(X)[y == "rare"] == "rare")
        for weights in (None, "balanced", {"rare": 19.0})
    }
    assert found["None"] < 0.6
    assert found["balanced"] > 0.8
    assert found["{'rare': 19.0}"] > 0.8


def test_class_weights_multiply_the_rows_weights_and_keep_their_sum():
    X, y = imbalanced()
    small = {"n_inducing": 8, "max_epochs": 5, "random_state": 0}
    own = np.linspace(0.5, 1.5, len(y))
    by_class = GPClassifier(class_weight={"rare": 3.0}, **small).fit(X, y, sample_weight=own)
    both = np.where(y == "rare", 3.0, 1.0) * own
    by_row = GPClassifier(**small).fit(X, y, sample_weight=both * own.sum() / both.sum())
    np.testing.assert_allclose(by_class.predict_proba(X), by_row.predict_proba(X), rtol=1e-10)


def test_importance_weights_leave_the_width_of_intervals():
    rng = np.random.default_rng(1)
    X, new = rng.uniform(-2, 2, (150, 1)), rng.uniform(-2, 2, (500, 1))
    y = np.sin(2 * X[:, 0]) + 0.5 * rng.normal(size=150)
    plain = fitted(X, y)
    heavy = fitted(X, y, 10.0, weights="importance")
    with pytest.warns(UserWarning, match=r"mean 10: .* as certain as from 1.5e\+03 rows, not 150; .*'importance'"):
        fitted(X, y, 10.0)
    np.testing.assert_allclose(heavy.predict(new), plain.predict(new), atol=1e-3)

    def of_function(model):  # without the noise
        noise = model.model_.likelihood.variance.item() * model.target_scaler_.scale.item() ** 2
        return np.sqrt(model.predict(new, return_std=True)[1] ** 2 - noise)

    function = [of_function(model) for model in (plain, heavy)]
    np.testing.assert_allclose(function[1], function[0], rtol=0.01)


def test_ten_copies_of_every_row_make_functions_more_certain():
    rng = np.random.default_rng(1)
    X = rng.uniform(-2, 2, (150, 1))
    y = np.sin(2 * X[:, 0]) + 0.5 * rng.normal(size=150)
    # With hyper-parameters that stay: learnt ones take noise that stands there ten times for a part of the function.
    still = Settings(plan=[Phase("elbo", 30, trainable=("posterior",), natural_rates=(0.5, 0.5))])
    common = {"likelihood": Gaussian(variance=0.3), "settings": still, "max_epochs": None, "n_inducing": 80}
    plain = fitted(X, y, **common)
    with pytest.warns(UserWarning, match="mean 10"):
        copies = fitted(X, y, 10.0, **common)
    phi = plain.model_.embed(torch.from_numpy(X))
    gram = plain.model_.kernel.gram(phi, phi)[0].detach()
    for model, noise in ((plain, 0.3), (copies, 0.03)):  # as an exact Gaussian process has it
        exact = gram - gram @ torch.linalg.solve(gram + noise * torch.eye(150), gram)
        found = model.model_.predictor()(torch.from_numpy(X)).variance[0, :, 0]
        torch.testing.assert_close(found, exact.diagonal(), rtol=0.05, atol=1e-4)


def test_importance_weights_divide_the_variance_of_gaussian_noise():
    """Rows of four times the weight have a quarter of the noise's variance in an exact Gaussian process."""
    rng = np.random.default_rng(2)
    X = np.sort(rng.uniform(-2, 2, 60))[:, None]
    weights = np.where(np.arange(60) % 2 == 0, 4.0, 1.0)
    y = np.sin(2 * X[:, 0]) + 0.4 / np.sqrt(weights) * rng.normal(size=60)
    model = GPRegressor(60, weights="importance", random_state=0).fit(X, y, weights * 1e-3)
    scaler, kernel = model.target_scaler_, model.model_.kernel
    with torch.no_grad():
        phi = model.model_.features(torch.from_numpy(X))
        gram = kernel.gram(phi, phi)[0].numpy()
    noise = model.model_.likelihood.variance.item() * weights.mean() / weights
    scaled = (y - scaler.shift.item()) / scaler.scale.item()
    exact = gram @ np.linalg.solve(gram + np.diag(noise), scaled) * scaler.scale.item() + scaler.shift.item()
    np.testing.assert_allclose(model.predict(X), exact, atol=2e-3)


@pytest.mark.parametrize("exponent", [-300, -20, 20, 300])
@pytest.mark.parametrize("kind", [GPRegressor, GPClassifier])
def test_extreme_weights_give_one_error_or_a_result(kind, exponent):
    X, y = line(40)
    y = y > 0 if kind is GPClassifier else y
    model = kind(10, max_epochs=10, random_state=0)
    with pytest.raises(ValueError, match=r"sample_weight must .* set weights='importance'"):
        model.fit(X, y, 10.0**exponent)
    assert np.isfinite(kind(10, max_epochs=10, weights="importance").fit(X, y, 10.0**exponent).log_density(X, y)).all()
    spread = 10.0 ** np.linspace(-abs(exponent), 0, 40)
    assert np.isfinite(kind(10, max_epochs=10, weights="importance").fit(X, y, spread).log_density(X, y)).all()


def test_equal_rows_are_one_row_with_their_weights_together():
    X, y = line(40)
    counts = np.arange(40) % 3
    order = np.random.default_rng(0).permutation(counts.sum())
    twice = fitted(np.repeat(X, counts, axis=0)[order], np.repeat(y, counts)[order], max_epochs=5)
    assert (twice.predict(X) == fitted(X, y, counts, max_epochs=5).predict(X)).all()
    assert twice.n_rows_ == counts.sum()


def test_the_best_epoch_on_held_out_rows_is_kept():
    X, y = line()
    held = X[::4], y[::4]
    rough = {"max_epochs": 12, "settings": Settings(learning_rate=0.5, batch_size=5)}
    model = fitted(X[1::4], y[1::4], **rough)
    guarded = GPRegressor(n_inducing=15, random_state=0, **rough)
    guarded.fit(X[1::4], y[1::4], eval_set=held)
    scores = [row["score"] for row in guarded.history_]
    found = guarded.log_density(*held).mean() + np.log(guarded.target_scaler_.scale.item())
    assert found == pytest.approx(max(scores), abs=1e-6)
    assert found >= model.log_density(*held).mean() + np.log(guarded.target_scaler_.scale.item()) - 1e-9


def test_a_share_of_the_rows_can_be_held_out_and_end_training():
    X, y = load_iris(return_X_y=True)
    model = GPClassifier(10, max_epochs=200, validation_fraction=0.2, patience=3, random_state=0).fit(X, y)
    assert model.n_rows_ == 120
    assert len(model.history_) < 200
    scores = [row["score"] for row in model.history_]
    assert len(scores) - 1 - int(np.argmax(scores)) == 3


@pytest.mark.parametrize("batch_size", [None, 20])
def test_a_time_budget_ends_training(batch_size):
    X, y = line()
    start = time.monotonic()
    model = fitted(X, y, max_epochs=10**6, time_budget=0.3, batch_size=batch_size)
    assert time.monotonic() - start < 5
    assert model.score(X, y) > 0.5


def test_two_runs_share_the_time_budget(monkeypatch):
    budgets = []

    def noted(run):
        return lambda *arguments, **options: budgets.append(arguments[2].time_budget) or run(*arguments, **options)

    for name in ("train", "converge_growing"):
        monkeypatch.setattr(fitting, name, noted(getattr(fitting, name)))
    fitted(*line(), max_epochs=2, objective="predictive", time_budget=60.0)
    assert len(budgets) == 2
    assert sum(budgets) == 60


def test_history_has_one_row_per_epoch():
    X, y = line()
    history = fitted(X, y, max_epochs=7).history_
    assert [row["epoch"] for row in history] == list(range(1, 8))
    assert {"step", "seconds", "objective", "value", "score", "learning_rate", "skipped"} <= set(history[0])


@pytest.mark.slow
def test_fifty_rows_take_about_a_second():
    X, y = line(50)
    start = time.process_time()
    GPRegressor(random_state=0).fit(X, y)
    assert time.process_time() - start < 10  # on a machine that others use too
