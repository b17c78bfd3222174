"""Small models of every kind, and rows that they have not seen."""

import numpy as np
import pandas as pd
import pytest
from pages import HOSTILE, Fitted
from sklearn.datasets import load_digits

from autogp import GPClassifier, GPRegressor


@pytest.fixture(scope="session")
def digits() -> Fitted:
    X, y = load_digits(return_X_y=True)
    options = {"n_inducing": 30, "max_epochs": 8, "objective": "loo", "random_state": 0}
    return Fitted(GPClassifier(**options).fit(X[:600], y[:600]), X[600:800], y[600:800])


@pytest.fixture(scope="session")
def passengers() -> Fitted:
    """Two classes, a table with text and missing values, and names that would be dangerous in a page."""
    rng = np.random.default_rng(0)
    age = rng.normal(40, 12, 300).round(1)
    table = pd.DataFrame(
        {
            "age": np.where(rng.random(300) < 0.1, np.nan, age),
            "<img src=x onerror=alert(1)>": rng.normal(size=300),
            "$x_{$ & 'quotes\"": rng.choice(["Cork", "<b>Bari</b>"], 300),
        }
    )
    labels = np.where(age + 8 * rng.normal(size=300) > 40, HOSTILE, "lost")
    model = GPClassifier(15, max_epochs=10, random_state=0).fit(table[:200], labels[:200])
    return Fitted(model, table[200:], labels[200:])


@pytest.fixture(scope="session")
def arm() -> Fitted:
    """Three outputs in units of their own, some of them missing."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(400, 4))
    Y = np.stack([np.sin(X[:, 0]), 100 * X[:, 1], 0.01 * X[:, 2] ** 2], axis=1)
    Y += rng.normal(size=Y.shape) * [0.1, 10, 0.005]
    Y[rng.random(Y.shape) < 0.2] = np.nan
    model = GPRegressor(20, likelihood="gaussian", max_epochs=20, random_state=0).fit(X[:250], Y[:250])
    return Fitted(model, X[250:], Y[250:])


@pytest.fixture(scope="session")
def visitors() -> Fitted:
    """Counts."""
    rng = np.random.default_rng(2)
    X = rng.uniform(0, 6, size=(300, 2))
    y = rng.poisson(np.exp(1 + np.sin(X[:, 0])))
    model = GPRegressor(15, likelihood="poisson", max_epochs=15, random_state=0).fit(X[:200], y[:200])
    return Fitted(model, X[200:], y[200:])
