"""Wrong input gives one error that names the argument, the row or the column."""

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError

from autogp import GPClassifier, GPRegressor
from autogp.likelihoods import InfiniteLOOError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(30, 3))
y = X[:, 0] + 0.1 * RNG.normal(size=30)
labels = np.where(y > 0, "up", "down")


def regressor(**changes):
    return GPRegressor(**{"n_inducing": 5, "max_epochs": 2, "random_state": 0, **changes})


def classifier(**changes):
    return GPClassifier(**{"n_inducing": 5, "max_epochs": 2, "random_state": 0, **changes})


def spoilt(array, place, value):
    array = array.copy()
    array[place] = value
    return array


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_inducing": 0}, "'n_inducing' parameter of GPRegressor must be an int in the range"),
        ({"n_inducing": 2.5}, "'n_inducing' parameter"),
        ({"kernel": "squared"}, "there is no kernel 'squared'; those by name are rbf, matern12"),
        ({"kernel": 3}, "'kernel' parameter"),
        ({"likelihood": "cauchy"}, "'likelihood' parameter of GPRegressor must be a str among .*'student_t'"),
        ({"objective": "evidence"}, "'objective' parameter of GPRegressor must be a str among .*'loo'"),
        ({"n_components": 0}, "'n_components' parameter"),
        ({"share_kernel": "yes"}, "'share_kernel' parameter"),
        ({"scaling": "minmax"}, "'scaling' parameter"),
        ({"max_epochs": 0}, "'max_epochs' parameter"),
        ({"batch_size": 0}, "'batch_size' parameter"),
        ({"features": "network"}, "'features' parameter"),
        ({"start": {"variance": 2.0}}, "'start' parameter"),
        ({"settings": {"learning_rate": 0.1}}, "'settings' parameter"),
        ({"validation_fraction": 1.5}, "'validation_fraction' parameter"),
        ({"patience": 0}, "'patience' parameter"),
        ({"time_budget": 0}, "'time_budget' parameter"),
        ({"random_state": "zero"}, "'random_state' parameter"),
        ({"verbose": "loud"}, "'verbose' parameter of GPRegressor must be .* among {'auto'}. Got 'loud'"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_parameters(changes, message):
    with pytest.raises(ValueError, match=message):
        regressor(**changes).fit(X, y)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (X * [1, 1, np.nan], "X contains NaN in every row of column 2"),
        (spoilt(X, (4, 2), -np.inf), "X contains infinity, first in row 4, column 2"),
        (spoilt(X.astype(object), (4, 2), "tall"), "X contains text, first 'tall' in row 4, column 2"),
        (X.astype(str).astype(object) + "cm", "X contains text, first .* in row 0, column 0"),
        (X[:, 0], "Expected 2D array"),
        (X.reshape(30, 3, 1, 1, 1), "dim 5"),
        (X[:0], "0 sample"),
    ],
)
def test_rows(rows, message):
    with pytest.raises(ValueError, match=message):
        regressor().fit(rows, y)


def test_rows_of_a_prediction():
    model = regressor().fit(X, y)
    with pytest.raises(ValueError, match="X contains infinity, first in row 1, column 0"):
        model.predict(spoilt(X[:3], (1, 0), np.inf))
    with pytest.raises(ValueError, match="X has 2 features, but GPRegressor is expecting 3 features"):
        model.predict(X[:, :2])
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    model.fit(frame, y)
    with pytest.raises(ValueError, match="X contains infinity, first in row 1, column 'b'"):
        model.predict(pd.DataFrame(spoilt(X, (1, 1), np.inf), columns=["a", "b", "c"]))


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (spoilt(y, 7, np.nan), "y contains NaN, first in row 7"),
        (spoilt(np.stack([y, y], 1), (7, 1), np.inf), "y contains infinity, first in row 7, column 1"),
        (np.stack([y, y * np.nan], 1), "every target is missing in column 1"),
        (spoilt(y, 7, 1e200), r"y contains 1e\+200, too large to be scaled, first in row 7"),
        (y[:10], "X has 30 rows, but y has 10"),
        (labels, "y holds 'up' in row 0 .* use GPClassifier if y are classes"),
        (None, "requires y to be passed"),
        (y.reshape(30, 1, 1), "dim 3"),
    ],
)
def test_targets(targets, message):
    with pytest.raises(ValueError, match=message):
        regressor().fit(X, targets)


def test_inputs_that_are_too_large_are_named():
    with pytest.raises(ValueError, match=r"X contains 1e\+300, too large to be scaled, first in row 7, column 1 "):
        regressor().fit(spoilt(X, (7, 1), 1e300), y)
    table = pd.DataFrame({"a": spoilt(X[:, 0], 4, -1e200), "b": ["u", "v"] * 15})
    with pytest.raises(ValueError, match=r"X contains -1e\+200, too large to be scaled, first in row 4, column 'a' "):
        regressor().fit(table, y)


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (np.full(30, "up"), r"at least 2 classes, got 1 class: \['up'\]"),
        (y, "Unknown label type: continuous"),
        (spoilt(np.arange(30) % 2 * 1.0, 7, np.nan), "y contains NaN, first in row 7"),
        (spoilt(labels.astype(object), 7, None), "missing label, first in row 7"),
        (spoilt(labels.astype(object), 7, 3), r"labels of different types \(int, str\)"),
        (labels[:10], "X has 30 rows, but y has 10"),
        (np.stack([labels, labels], 1), "y has 2 columns: for several labels at once they must hold 0 and 1"),
    ],
)
def test_labels(targets, message):
    with pytest.raises(ValueError, match=message):
        classifier().fit(X, targets)


def test_labels_that_fit_has_not_seen():
    model = classifier().fit(X, labels)
    with pytest.raises(ValueError, match=r"label 'sideways' in row 2, which is not among the classes \['down', 'up'\]"):
        model.log_density(X[:3], ["up", "down", "sideways"])
    with pytest.raises(ValueError, match="label 3 in row 0"):
        model.log_density(X[:2], [3, 4])


@pytest.mark.parametrize("estimator", [regressor(), classifier()], ids=["regressor", "classifier"])
@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (spoilt(np.ones(30), 5, -1), "sample_weight must not be negative, got -1 in row 5"),
        (spoilt(np.ones(30), 5, np.nan), "sample_weight contains NaN, first in row 5"),
        (np.ones(3), r"sample_weight must be one number per row, \[30\]"),
        (np.zeros(30), "zero for every row|leaves 1 class"),
    ],
)
def test_weights(estimator, weights, message):
    with pytest.raises(ValueError, match=message):
        estimator.fit(X, labels if isinstance(estimator, GPClassifier) else y, sample_weight=weights)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"left": 2.0}, r"class_weight names 'left', which is not among the classes \['down', 'up'\]"),
        ({"up": -1.0}, "finite numbers from 0, got -1.0 for 'up'"),
        ("even", "'class_weight' parameter"),
    ],
)
def test_class_weights(weights, message):
    with pytest.raises(ValueError, match=message):
        classifier(class_weight=weights).fit(X, labels)


@pytest.mark.parametrize("levels", [[0.0], [1.0], [-0.1, 0.5], [], 0.5, "half", [np.nan], [[0.5]]])
def test_quantile_levels(levels):
    with pytest.raises(ValueError, match="quantiles must be a list of levels between 0 and 1"):
        regressor().fit(X, y).predict(X, quantiles=levels)


@pytest.mark.parametrize(
    ("counts", "message"), [([-1, 2] * 15, "negative count, first at row 0"), ([0.5, 1] * 15, "not a whole number")]
)
def test_counts(counts, message):
    with pytest.raises(ValueError, match=message):
        regressor(likelihood="poisson").fit(X, counts)


def test_objectives_and_likelihoods_that_do_not_go_together():
    with pytest.raises(InfiniteLOOError, match="Use objective='predictive'"):
        regressor(likelihood="poisson", objective="loo").fit(X, np.arange(30))
    with pytest.raises(ValueError, match="'logit' is for two classes, there are 3: use 'softmax'"):
        classifier(likelihood="logit").fit(X, np.arange(30) % 3)


def test_held_out_rows():
    with pytest.raises(ValueError, match="either validation_fraction or eval_set"):
        regressor(validation_fraction=0.2).fit(X, y, eval_set=(X, y))
    with pytest.raises(ValueError, match=r"eval_set must be a pair \(X, y\)"):
        regressor().fit(X, y, eval_set=[(X, y)])
    with pytest.raises(ValueError, match="X has 2 features"):
        regressor().fit(X, y, eval_set=(X[:, :2], y))
    with pytest.raises(ValueError, match="y has 2 outputs, but GPRegressor was fitted with 1"):
        regressor().fit(X, y, eval_set=(X, np.stack([y, y], 1)))


@pytest.mark.parametrize("use", ["predict", "summary", "save", "feature_importances_", "log_density"])
def test_use_before_fit(use):
    arguments = {"predict": (X,), "save": ("model",), "log_density": (X, y)}.get(use, ())
    with pytest.raises(NotFittedError, match="not fitted yet"):
        getattr(regressor(), use)(*arguments)


def test_a_first_fit_that_fails_leaves_nothing_half_fitted():
    model = classifier()
    with pytest.raises(ValueError, match="1 class"):
        model.fit(X, np.full(30, "up"))
    assert vars(model).keys() == model.get_params().keys()
    with pytest.raises(NotFittedError):
        model.predict(X)


def test_frames_say_which_column_cannot_be_used():
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    with pytest.warns(UserWarning, match="column 'day' is left out: it has the same value in every row"):
        regressor().fit(frame.assign(day=pd.Timestamp("2020-01-01")), y)
    with pytest.raises(ValueError, match="column 'a' has an infinite value in row 5"):
        regressor().fit(frame.assign(a=spoilt(X[:, 0], 4, np.inf), text="x"), y)
