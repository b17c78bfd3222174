"""What an estimator keeps between calls: the predictor of an unchanged model, the old model when a refit breaks off."""

import copy
import pickle

import numpy as np
import pytest
import torch

from autogp import GPClassifier, GPRegressor, SparseGP
from autogp.training import TrainingInterruptedError

RNG = np.random.default_rng(0)
X = RNG.uniform(-2, 2, (60, 2))
y = np.sin(2 * X[:, 0]) + 0.1 * RNG.normal(size=60)


def small(kind, **changes):
    return kind(**{"n_inducing": 6, "max_epochs": 5, "random_state": 0, **changes})


def fitted(kind):
    return small(kind).fit(X, y if kind is GPRegressor else y > 0)


@pytest.fixture
def prepared(monkeypatch):
    """Each time that the M x M work is done."""
    calls, prepare = [], SparseGP.prepare
    monkeypatch.setattr(SparseGP, "prepare", lambda self, q=None: calls.append(1) or prepare(self, q))
    return calls


@pytest.mark.parametrize("kind", [GPClassifier, GPRegressor])
def test_two_predictions_prepare_the_model_once(kind, prepared):
    model = pickle.loads(pickle.dumps(fitted(kind)))
    prepared.clear()
    first, density = model.predict(X), model.log_density(X, y if kind is GPRegressor else y > 0)
    assert (model.predict(X) == first).all()
    assert len(prepared) == 1
    fresh = copy.deepcopy(model)
    assert (fresh.log_density(X, y if kind is GPRegressor else y > 0) == density).all()
    assert len(prepared) == 2


@pytest.mark.parametrize("name", [name for name, _ in fitted(GPRegressor).model_.named_parameters()])
def test_a_change_of_any_parameter_in_place_reaches_the_next_prediction(name, prepared):
    model = fitted(GPRegressor)
    before = np.array(model.predict(X, return_std=True))
    prepared.clear()
    with torch.no_grad():
        model.model_.get_parameter(name).add_(0.1)
    after = np.array(model.predict(X, return_std=True))
    assert len(prepared) == 1
    expected = model.model_.predict(torch.from_numpy(X)).mean[:, 0]
    np.testing.assert_allclose(after[0], model.target_scaler_.inverse_mean(expected[:, None])[:, 0], rtol=1e-12)
    if name != "posterior.logits":  # one component has all the weight
        assert (after != before).any()


def test_a_tensor_in_the_place_of_another_reaches_the_next_prediction():
    model = fitted(GPRegressor)
    before = model.predict(X)
    for _ in range(4):  # the memory of a tensor that is gone may serve the next one
        model.model_.inducing_inputs = torch.nn.Parameter(model.model_.inducing_inputs.detach() + 0.1)
    assert (model.predict(X) != before).any()


def test_more_rows_and_a_refit_reach_the_next_prediction():
    model = fitted(GPRegressor)
    first = model.predict(X)
    second = model.partial_fit(X, y + 1).predict(X)
    assert (second != first).all()
    assert (model.fit(X, y).predict(X) == first).all()


@pytest.mark.parametrize("kind", [GPClassifier, GPRegressor])
def test_copies_and_pickles_leave_the_predictor_behind(kind):
    model = fitted(kind)
    expected, size = model.predict(X), len(pickle.dumps(fitted(kind)))
    assert len(pickle.dumps(model)) == size
    for other in (copy.deepcopy(model), copy.copy(model), pickle.loads(pickle.dumps(model))):
        assert "_kept_predictor" not in vars(other)
        assert (other.predict(X) == expected).all()


def interrupt(error, epoch):
    def callback(now):
        if now.epoch == epoch:
            raise error

    return callback


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), TrainingInterruptedError("stopped", 143), ArithmeticError("no")]
)
@pytest.mark.parametrize("kind", [GPClassifier, GPRegressor])
def test_a_refit_that_is_interrupted_or_fails_leaves_the_old_model(kind, error):
    model = fitted(kind)
    old = vars(model).copy()
    targets = y if kind is GPRegressor else y > 0
    before = model.log_density(X, targets)
    with pytest.raises(type(error)):
        model.fit(X[:, :1], targets[::-1], callbacks=[interrupt(error, 3)])
    assert vars(model).keys() - {"_kept_predictor"} == old.keys() - {"_kept_predictor"}
    assert all(vars(model)[name] is old[name] for name in old)
    assert (model.log_density(X, targets) == before).all()
    pickled = pickle.loads(pickle.dumps(model))
    assert (pickled.log_density(X, targets) == before).all()


def test_rows_that_cannot_be_absorbed_leave_the_old_model():
    model = fitted(GPClassifier)
    before = model.predict_proba(X)
    with pytest.raises(ValueError, match="label 7"):
        model.partial_fit(X[:2], [True, 7])
    assert (model.predict_proba(X) == before).all()
    assert model.n_rows_ == 60


def test_a_refit_learns_the_columns_anew_and_keeps_what_scikit_learn_was_told():
    pandas = pytest.importorskip("pandas")
    model = small(GPRegressor).fit(pandas.DataFrame(X, columns=["a", "b"]), y)
    model._told = "by scikit-learn"  # as set_fit_request and callbacks do
    model.fit(X[:, :1], y)
    assert model.n_features_in_ == 1
    assert not hasattr(model, "feature_names_in_")
    assert model._told == "by scikit-learn"
