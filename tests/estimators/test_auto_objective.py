"""objective="auto": the predictive density where it is a gain, else the ELBO's model to the bit."""

import sys

import numpy as np
from sklearn.datasets import load_digits

from autogp import GPClassifier
from autogp.metrics import negative_log_probability
from autogp.training import refine

digits = load_digits(return_X_y=True)


def fitted(objective, rows, **changes):
    x, y = (part[rows] for part in digits)
    common = {"n_inducing": 40, "max_epochs": 20, "random_state": 0, **changes}
    return GPClassifier(objective=objective, **common).fit(x, y)


def equal(first, second):
    return (first.predict_proba(digits[0]) == second.predict_proba(digits[0])).all()


def test_few_rows_are_fitted_by_the_elbo():
    rows = np.arange(999)
    auto = fitted("auto", rows, max_epochs=3)
    assert equal(auto, fitted("elbo", rows, max_epochs=3))
    assert {row["objective"] for row in auto.history_} == {"elbo"}


def test_a_gain_within_its_standard_error_is_not_kept(monkeypatch):
    monkeypatch.setattr(sys.modules[refine.__module__], "STANDARD_ERRORS", np.inf)
    rows = np.arange(1000)
    auto = fitted("auto", rows, max_epochs=4)
    assert equal(auto, fitted("elbo", rows, max_epochs=4))
    assert len(auto.history_) == 4


def test_digits_gain_by_the_predictive_density():
    rows, test = np.arange(1347), np.arange(1347, 1797)
    auto, plain = fitted("auto", rows), fitted("elbo", rows)
    x, y = (part[test] for part in digits)
    assert auto.history_[-1]["objective"] == "predictive"
    assert [row["epoch"] for row in auto.history_] == list(range(1, len(auto.history_) + 1))
    gain = negative_log_probability(y, plain.predict_proba(x)) - negative_log_probability(y, auto.predict_proba(x))
    assert gain > 0.02
