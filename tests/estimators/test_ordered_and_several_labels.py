"""Ordered classes, and rows that have several labels at once."""

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_matrix
from sklearn.metrics import log_loss

from autogp import GPClassifier, load_model
from autogp.likelihoods import Bernoulli, Ordinal
from autogp.report import write_report

RNG = np.random.default_rng(0)
X = RNG.uniform(-2, 2, (300, 2))
F = 2 * np.sin(1.5 * X[:, 0]) + X[:, 1]
GRADE = np.digitize(F + 0.5 * RNG.normal(size=len(X)), [-1.5, 0.0, 1.5])  # 0 to 3
NAMES = np.array(["poor", "fair", "good", "best"])
LABELS = np.stack([F > 0, X[:, 0] > X[:, 1], F + RNG.normal(size=len(X)) > 1], 1).astype(int)


def classifier(**changes) -> GPClassifier:
    return GPClassifier(**{"n_inducing": 20, "max_epochs": 40, "random_state": 0, **changes})


@pytest.fixture(scope="module")
def graded() -> GPClassifier:
    return classifier(likelihood="ordinal").fit(X[:200], GRADE[:200])


def test_ordered_numbers_on_request(graded, tmp_path):
    assert graded.classes_.tolist() == [0, 1, 2, 3]
    assert graded.score(X[200:], GRADE[200:]) > 0.75
    p = graded.predict_proba(X[200:])
    np.testing.assert_allclose(graded.log_density(X[200:], GRADE[200:]).mean(), -log_loss(GRADE[200:], p), atol=1e-4)
    softmax = classifier().fit(X[:200], GRADE[:200])
    assert log_loss(GRADE[200:], p) < log_loss(GRADE[200:], softmax.predict_proba(X[200:]))
    graded.save(tmp_path / "model.autogp")
    assert np.array_equal(load_model(tmp_path / "model.autogp").predict_proba(X[200:]), p)
    assert "Ordinal, cuts at " in write(graded, tmp_path)


def write(model: GPClassifier, folder) -> str:
    write_report(folder / "report.html", model, X[200:], GRADE[200:])
    return (folder / "report.html").read_text()


def test_ordered_categoricals_are_ordered_by_themselves(graded, tmp_path):
    y = pd.Series(pd.Categorical(NAMES[GRADE], categories=[*NAMES, "never"], ordered=True))
    model = classifier().fit(X[:200], y[:200])
    assert type(model.model_.likelihood) is Ordinal
    assert model.classes_.tolist() == sorted(NAMES)  # as scikit-learn's scores take them
    sorted_places = [list(model.classes_).index(name) for name in NAMES]
    np.testing.assert_allclose(model.predict_proba(X)[:, sorted_places], graded.predict_proba(X), atol=0.01)
    model.save(tmp_path / "model.autogp")
    assert np.array_equal(load_model(tmp_path / "model.autogp").predict(X), model.predict(X))


def test_text_without_an_order_is_refused():
    with pytest.raises(ValueError, match="must know the order of the classes: make them numbers, or a categorical"):
        classifier(likelihood="ordinal").fit(X, NAMES[GRADE])
    with pytest.raises(ValueError, match="'ordinal' is for three classes or more"):
        classifier(likelihood="ordinal").fit(X, GRADE > 1)


@pytest.fixture(scope="module")
def labelled() -> GPClassifier:
    return classifier().fit(X[:200], LABELS[:200])


def test_several_labels_follow_scikit_learn(labelled, tmp_path):
    p = labelled.predict_proba(X[200:])
    assert p.shape == (100, 3)
    assert np.array_equal(labelled.predict(X[200:]), p > 0.5)
    assert (labelled.predict(X[200:]) == LABELS[200:]).mean() > 0.85
    log_p = np.where(LABELS[200:], np.log(p), np.log1p(-p)).sum(1)
    np.testing.assert_allclose(labelled.log_density(X[200:], LABELS[200:]), log_p, atol=1e-4)
    labelled.save(tmp_path / "model.autogp")
    assert np.array_equal(load_model(tmp_path / "model.autogp").predict_proba(X[200:]), p)
    sparse = classifier().fit(X[:200], csr_matrix(LABELS[:200]))
    assert np.array_equal(sparse.predict_proba(X[200:]), p)
    with pytest.raises(ValueError, match="a report is on one target"):
        write(labelled, tmp_path)


def test_a_label_is_learnt_as_a_classifier_of_it_alone_learns_it():
    kernel = classifier(n_inducing=30).fit(X[:200], LABELS[:200, 0]).model_.kernel
    for parameter in kernel.parameters():
        parameter.requires_grad_(False)
    together = classifier(n_inducing=30, kernel=kernel, likelihood=Bernoulli(3)).fit(X[:200], LABELS[:200])
    alone = classifier(n_inducing=30, kernel=kernel).fit(X[:200], LABELS[:200, 0])
    np.testing.assert_allclose(together.predict_proba(X)[:, 0], alone.predict_proba(X)[:, 1], atol=0.02)


def test_labels_that_are_not_known_are_left_out():
    y = LABELS.astype(float)
    y[::2, 1] = np.nan
    p = classifier().fit(X[:200], y[:200]).predict_proba(X[200:])
    assert ((p[:, 1] > 0.5) == LABELS[200:, 1]).mean() > 0.9


def test_several_columns_must_hold_labels():
    with pytest.raises(ValueError, match=r"y has 2 columns: .* must hold 0 and 1, but one holds 2"):
        classifier().fit(X, np.stack([GRADE, GRADE], 1))
    with pytest.raises(ValueError, match="class_weight is for one label a row"):
        classifier(class_weight="balanced").fit(X, LABELS)
    with pytest.raises(ValueError, match="'softmax' is for one label a row"):
        classifier(likelihood="softmax").fit(X, LABELS)
    with pytest.raises(ValueError, match="y has 2 columns, but the model has 3 labels"):
        classifier(max_epochs=1).fit(X, LABELS, eval_set=(X, LABELS[:, :2]))
