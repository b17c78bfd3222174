"""What a model does not know of a row widens its intervals, and no others."""

import numpy as np
import pandas as pd
import pytest

from autogp import GPClassifier, GPRegressor, load_model

NOISE = 0.3
pytestmark = pytest.mark.filterwarnings("ignore:training has ended before the ELBO")  # targets without noise


def table(random: np.random.Generator, rows: int, effects: np.ndarray, gaps: float = 0.0) -> tuple:
    """y = sin(1.5 a) + 1.2 b + effect of c + noise; some b are missing at random. Also which, and the codes of c."""
    a, b = random.normal(size=(2, rows))
    c = random.integers(len(effects), size=rows)
    y = np.sin(1.5 * a) + 1.2 * b + effects[c] + NOISE * random.normal(size=rows)
    gap = random.random(rows) < gaps
    return pd.DataFrame({"a": a, "b": np.where(gap, np.nan, b), "c": [f"c{code}" for code in c]}), y, gap, c


def covered(model: GPRegressor, X: pd.DataFrame, y: np.ndarray) -> np.ndarray:
    low, high = model.predict(X, quantiles=[0.05, 0.95]).T
    return (low <= y) & (y <= high)


@pytest.fixture(scope="module")
def complete() -> tuple:
    """A model of complete rows, its generator, and effects of which it has seen the first 12."""
    random = np.random.default_rng(1)
    effects = random.normal(size=24)
    X, y, _, _ = table(random, 400, effects[:12])
    return (
        GPRegressor(n_inducing=100, likelihood="gaussian", max_epochs=60, random_state=0, verbose=False).fit(X, y),
        random,
        effects,
    )


@pytest.mark.filterwarnings("ignore:column")
def test_intervals_of_categories_never_seen_cover(complete: tuple) -> None:
    model, random, effects = complete
    X, y, _, c = table(random, 2000, effects)
    inside, std = covered(model, X, y), model.predict(X, return_std=True)[1]
    assert 0.80 <= inside[c >= 12].mean() <= 0.98
    assert 0.87 <= inside[c < 12].mean() <= 0.93
    assert std[c >= 12].mean() > 2 * std[c < 12].mean()


@pytest.mark.filterwarnings("ignore:column")
def test_intervals_of_values_missing_only_at_prediction_cover(complete: tuple) -> None:
    model, random, effects = complete
    X, y, gap, _ = table(random, 2000, effects[:12], gaps=0.5)
    inside, std = covered(model, X, y), model.predict(X, return_std=True)[1]
    assert 0.80 <= inside[gap].mean() <= 0.98
    assert 0.87 <= inside[~gap].mean() <= 0.93
    assert np.median(std[gap]) == pytest.approx(np.hypot(1.2, NOISE), rel=0.15)  # b has the variance 1


def test_rows_with_gaps_in_training_do_not_raise_the_noise_of_others(tmp_path) -> None:
    random = np.random.default_rng(2)
    effects = random.normal(size=12)
    X, y, _, _ = table(random, 500, effects, gaps=0.1)
    model = GPRegressor(n_inducing=100, likelihood="gaussian", max_epochs=60, random_state=0, verbose=False).fit(X, y)
    assert model.model_.likelihood.variance.sqrt().item() * model.target_scaler_.scale.item() == pytest.approx(
        NOISE, rel=0.1
    )
    X, y, gap, _ = table(random, 3000, effects, gaps=0.3)
    inside = covered(model, X, y)
    assert 0.80 <= inside[gap].mean() <= 0.98
    assert 0.86 <= inside[~gap].mean() <= 0.94
    model.save(tmp_path / "model.autogp")
    again = load_model(tmp_path / "model.autogp")
    np.testing.assert_array_equal(again.predict(X, return_std=True), model.predict(X, return_std=True))


def test_a_column_that_another_one_tells_is_filled_from_it() -> None:
    random = np.random.default_rng(3)
    a = random.normal(size=600)
    X = np.column_stack([a, a + 0.05 * random.normal(size=600)])
    y = X.sum(1) + 0.1 * random.normal(size=600)
    model = GPRegressor(n_inducing=50, likelihood="gaussian", max_epochs=60, random_state=0, verbose=False).fit(
        X[:300], y[:300]
    )
    X[300:, 1] = np.nan
    mean, std = model.predict(X[300:], return_std=True)
    assert np.sqrt(np.mean((mean - y[300:]) ** 2)) < 0.3  # 1.4 by the mean of the column
    assert np.mean(np.abs(mean - y[300:]) < 1.645 * std) >= 0.80


def test_probabilities_of_rows_with_unknown_values_are_nearer_to_a_half() -> None:
    random = np.random.default_rng(4)
    X = random.normal(size=(300, 2))
    model = GPClassifier(n_inducing=50, max_epochs=60, random_state=0, verbose=False).fit(X, X[:, 0] > 0)
    known = model.predict_proba([[2.0, 0.0]])[0, 1]
    unknown = model.predict_proba([[np.nan, 0.0]])[0, 1]
    assert known > 0.95
    assert 0.3 < unknown < 0.7


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_nan_in_arrays_means_missing(kind: type) -> None:
    random = np.random.default_rng(5)
    X = random.normal(size=(300, 2)).astype(kind)
    y = X[:, 0] + np.where(random.random(300) < 0.2, np.nan, X[:, 1])
    X[np.isnan(y), 1] = np.nan
    y = np.where(np.isnan(y), X[:, 0] + 3.0, y)  # rows without the second value lie higher
    model = GPRegressor(n_inducing=50, likelihood="gaussian", max_epochs=60, random_state=0, verbose=False).fit(X, y)
    assert not hasattr(model, "feature_names_in_")
    assert model.predict([[0.0, np.nan]])[0] == pytest.approx(3.0, abs=0.3)
    assert model.predict([[0.0, 0.0]])[0] == pytest.approx(0.0, abs=0.3)
    with pytest.raises(ValueError, match="infinity, first in row 1, column 0"):
        model.predict([[0.0, 1.0], [np.inf, 0.0]])
