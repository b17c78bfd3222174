"""Targets that never vary, and columns that give them away, are said."""

import warnings

import numpy as np
import pandas as pd
import pytest

from autogp import GPClassifier, GPRegressor

RNG = np.random.default_rng(0)
TABLE = pd.DataFrame({"size": RNG.normal(size=200), "age": RNG.normal(size=200), "kind": RNG.choice(["a", "b"], 200)})
PRICE = np.exp(TABLE["size"] + 0.1 * RNG.normal(size=200))


def said(estimator, X, y) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        estimator(n_inducing=5, max_epochs=2, random_state=0).fit(X, y)
    return [str(each.message) for each in caught]


def test_a_constant_target_and_a_single_row_are_said():
    X = np.arange(20.0)[:, None]
    assert said(GPRegressor, X, np.full(20, 3.0)) == ["y is 3 in every row: no column can tell anything about it"]
    assert said(GPRegressor, X[:1], [2.5]) == [
        "y is 2.5 in the one row that there is: no column can tell anything about it"
    ]
    two = np.stack([np.arange(20.0), np.ones(20)], 1)
    assert said(GPRegressor, X, two) == ["column 1 of y is 1 in every row: no column can tell anything about it"]


@pytest.mark.parametrize("leak", [-2 * PRICE + 3, np.log(PRICE)])
def test_a_column_that_gives_a_number_away_is_said(leak):
    (sentence,) = said(GPRegressor, TABLE.assign(leak=leak), PRICE)
    assert sentence.startswith("column 'leak' gives the target away (correlation 1.0000): it is used, so leave it out")
    assert said(GPRegressor, TABLE, PRICE) == []


def test_a_category_that_gives_a_class_away_is_said():
    label = np.where(PRICE > 1, "dear", "cheap")
    (sentence,) = said(GPClassifier, TABLE.assign(leak=np.where(PRICE > 1, "y", "n")), label)
    assert sentence.startswith("column 'leak' gives the target away")
    assert said(GPClassifier, TABLE, label) == []


def test_a_number_whose_limit_separates_two_classes_is_said():
    label = np.where(PRICE > 1, "dear", "cheap")
    (sentence,) = said(GPClassifier, TABLE.assign(leak=-PRICE), label)
    assert sentence.startswith("column 'leak' gives the target away (correlation 1.0000)")
