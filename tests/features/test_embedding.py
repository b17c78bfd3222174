"""Many categories lie where the targets of their rows put them; no row is learnt from where its own target put it."""

import numpy as np
import pandas as pd
import pytest
import torch

from autogp import GPClassifier, GPRegressor, load_model
from autogp.data import ArraySource
from autogp.features import Embedding
from autogp.features.embedding import FOLDS, LAP, CrossFitted, _shrunken

NAN = float("nan")


def embedding(sizes: list[int]) -> Embedding:
    return Embedding([f"c{place}" for place in range(len(sizes))], sizes, torch.zeros(sum(sizes) + len(sizes), 1))


def test_shrunken_means_are_the_posterior_means_of_random_effects() -> None:
    random = np.random.default_rng(0)
    effects = random.normal(0, 2.0, 4000)
    code = random.integers(4000, size=20_000)
    y = effects[code] + random.normal(0, 1.0, 20_000)
    count, first, square = (np.bincount(code, weights, 4000)[:, None] for weights in (None, y, y**2))
    found = _shrunken(count[None].astype(float), first[None], square)[0, :, 0]
    mean = first[:, 0] / np.maximum(count[:, 0], 1)
    expected = count[:, 0] * 4 / (count[:, 0] * 4 + 1) * mean  # variances 4 between, 1 within, overall mean 0
    np.testing.assert_allclose(found, expected, atol=0.15)


def test_a_row_does_not_move_its_own_place() -> None:
    random = np.random.default_rng(1)
    x = np.repeat(np.arange(500.0), 2)[:, None]
    y = 0.5 * random.normal(size=500)[x[:, 0].astype(int)] + random.normal(size=1000)
    source = ArraySource(x, y[:, None])
    found = embedding([500]).fit(source, seed=5)
    own, crossed = (found(torch.from_numpy(rows.rows(np.arange(1000))[0]))[:, 0].numpy() for rows in
                    (source, CrossFitted(source, [0], [500], seed=5)))  # fmt: skip
    assert np.corrcoef(own, y)[0, 1] > 0.7
    assert np.corrcoef(crossed, y)[0, 1] < 0.3  # 0.2 is what the other row of a category tells of this one


def test_missing_values_are_a_category_and_unknown_ones_lie_in_the_middle() -> None:
    x = np.array([[0.0, 1.0], [NAN, 0.0], [1.0, NAN], [0.0, 1.0]] * 20)
    map_ = embedding([2, 2]).fit(ArraySource(x, x[:, :1] * 0 + np.arange(80)[:, None] % 4), seed=0)
    assert len(map_.table) == 6 * (1 + FOLDS)
    map_.settle()
    assert len(map_.table) == 6
    out = map_(torch.tensor([[NAN, -1.0], [0.0, 0.0]]))
    assert out.shape == (2, 2 * 3)
    assert out[0, 3:].tolist() == [0, 0, 0]
    assert out[0, :3].abs().sum() > 0


@pytest.mark.parametrize("sizes", [[], [0], [LAP]])
def test_sizes_are_checked(sizes: list[int]) -> None:
    with pytest.raises(ValueError, match="categories"):
        Embedding(["c"] * len(sizes), sizes, torch.zeros(1, 1))


@pytest.mark.filterwarnings("ignore:column")
def test_estimators_learn_from_a_column_of_many_categories(tmp_path) -> None:
    random = np.random.default_rng(2)
    effects = random.normal(size=300)
    code = random.integers(300, size=3000)
    X = pd.DataFrame({"x": random.normal(size=3000), "c": [f"c{each}" for each in code]})
    y = effects[code] + X["x"].to_numpy() + 0.3 * random.normal(size=3000)
    model = GPRegressor(n_inducing=50, likelihood="gaussian", max_epochs=20, random_state=0, verbose=False).fit(
        X[:2000], y[:2000]
    )
    mean, std = model.predict(X[2000:], return_std=True)
    assert np.sqrt(np.mean((mean - y[2000:]) ** 2)) < 0.6  # 1.05 without the column
    assert 0.85 < np.mean(np.abs(mean - y[2000:]) < 1.645 * std) < 0.95
    model.save(tmp_path / "model.autogp")
    np.testing.assert_array_equal(load_model(tmp_path / "model.autogp").predict(X), model.predict(X))
    classifier = GPClassifier(n_inducing=50, max_epochs=20, random_state=0, verbose=False)
    classifier.fit(X[:2000], np.where(y > 0, "up", "down")[:2000])
    assert classifier.score(X[2000:], np.where(y > 0, "up", "down")[2000:]) > 0.8  # 0.73 without the column
