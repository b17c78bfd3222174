"""The estimators keep scikit-learn's contract, and work inside its tools."""

import pickle
import re

import joblib
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_diabetes, load_iris
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator, parametrize_with_checks

from autogp import GPClassifier, GPRegressor
from autogp.kernels import Matern32
from autogp.likelihoods import StudentT


def small(kind, **changes):
    return kind(**{"n_inducing": 10, "max_epochs": 10, "random_state": 0, **changes})


@parametrize_with_checks([small(GPClassifier), small(GPRegressor)])
def test_scikit_learns_checks_pass(estimator, check):
    check(estimator)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@pytest.mark.parametrize("estimator", [GPClassifier(), GPRegressor()], ids=lambda estimator: type(estimator).__name__)
def test_scikit_learns_checks_pass_with_default_settings(estimator):
    check_estimator(estimator)


def test_a_search_clones_refits_and_scores():
    X, y = load_iris(return_X_y=True)
    model = make_pipeline(StandardScaler(), small(GPClassifier))
    grid = {"gpclassifier__kernel": ["rbf", "matern32"], "gpclassifier__n_inducing": [3, 9]}
    search = GridSearchCV(model, grid, cv=2, scoring="neg_log_loss").fit(X[::2], y[::2])
    assert search.score(X[1::2], y[1::2]) > -0.3
    assert search.predict(X[:3]).tolist() == [0, 0, 0]


def test_cross_validation_scores_each_fold():
    X, y = load_diabetes(return_X_y=True)
    assert cross_val_score(small(GPRegressor, max_epochs=30), X, y, cv=3).min() > 0.4


def test_calibration_wraps_the_classifier():
    X, y = load_iris(return_X_y=True)
    model = CalibratedClassifierCV(small(GPClassifier), cv=2).fit(X, y)
    assert model.score(X, y) > 0.9


def test_clones_are_unfitted_and_have_equal_parameters():
    model = small(GPRegressor, kernel=Matern32(), likelihood=StudentT())
    X = np.linspace(0, 1, 30)[:, None]
    copy = clone(model.fit(X, X[:, 0]))
    assert not hasattr(copy, "model_")
    assert copy.kernel is not model.kernel
    assert str(copy.get_params()) == str(model.get_params())
    # Training moved copies: the objects that were passed in can serve again.
    assert model.kernel.lengthscale.item() == pytest.approx(1.0, abs=1e-12)


@pytest.mark.slow
def test_parallel_jobs_give_the_same_as_one():
    X, y = load_iris(return_X_y=True)
    one, two = (cross_val_score(small(GPClassifier), X, y, cv=2, n_jobs=jobs) for jobs in (1, 2))
    assert (one == two).all()


@pytest.mark.parametrize("kind", [GPClassifier, GPRegressor])
def test_pickles_predict_the_same(kind, tmp_path):
    X, y = load_iris(return_X_y=True)
    model = small(kind).fit(X, y)
    joblib.dump(model, tmp_path / "model.joblib")
    for copy in (pickle.loads(pickle.dumps(model)), joblib.load(tmp_path / "model.joblib")):
        assert (copy.predict(X) == model.predict(X)).all()
        assert str(copy.history_) == str(model.history_)


@pytest.mark.parametrize("kind", [GPClassifier, GPRegressor])
def test_the_same_seed_gives_the_same_bits(kind):
    X, y = load_iris(return_X_y=True)
    first, second, other = (small(kind, random_state=seed).fit(X, y).log_density(X, y) for seed in (0, 0, 1))
    assert (first == second).all()
    assert (first != other).any()


@pytest.mark.parametrize("kind", [GPClassifier, GPRegressor])
def test_the_docstring_lists_every_parameter(kind):
    listed = re.findall(r"^    (\w+) : ", kind.__doc__.partition("Attributes\n")[0], flags=re.MULTILINE)
    assert sorted(listed) == sorted(kind().get_params())


def test_a_second_fit_leaves_nothing_of_the_first_but_what_others_keep_on_the_estimator():
    X, y = load_iris(return_X_y=True, as_frame=True)
    model = GPClassifier(5, max_epochs=1, random_state=0).fit(X, y)
    model._kept_by_another = "context"
    model.fit(X.to_numpy(), y)
    assert not hasattr(model, "feature_names_in_")
    assert model._kept_by_another == "context"
