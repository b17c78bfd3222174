"""What a model says of itself."""

import re

import numpy as np
import pytest
from sklearn.feature_selection import SelectFromModel

from autogp import GPClassifier, GPRegressor
from autogp.kernels import RBF, Linear

RNG = np.random.default_rng(0)
X = RNG.normal(size=(200, 3))
y = np.sin(2 * X[:, 0]) + 0.1 * RNG.normal(size=200)


def test_a_column_that_does_not_matter_has_a_far_smaller_share():
    model = GPRegressor(20, likelihood="gaussian", max_epochs=150, random_state=0).fit(X, y)
    shares = model.feature_importances_
    assert shares.sum() == pytest.approx(1)
    assert shares[0] > 5 * shares[1:].max()


def test_a_column_that_never_varies_has_no_share():
    model = GPRegressor(5, likelihood="gaussian", max_epochs=2).fit(np.column_stack([X, np.ones(200)]), y)
    assert model.feature_importances_[3] == 0


def test_importances_are_the_total_sobol_shares_of_a_known_function():
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (600, 4))
    # Var of 2 a: 4/3; of b: 1/3; of 3 b c, with b: 9/9 = 1. Total: a 4/3, b 1/3 + 1, c 1, d 0.
    target = 2 * x[:, 0] + x[:, 1] + 3 * x[:, 1] * x[:, 2] + 0.1 * rng.normal(size=600)
    model = GPRegressor(60, kernel="rbf", likelihood="gaussian", max_epochs=80, random_state=0).fit(x, target)
    np.testing.assert_allclose(model.feature_importances_, np.array([4, 4, 3, 0]) / 11, atol=0.03)


def test_select_from_model_keeps_the_columns_that_matter():
    model = GPRegressor(20, likelihood="gaussian", max_epochs=50, random_state=0)
    assert SelectFromModel(model).fit(X, y).get_support().tolist() == [True, False, False]


@pytest.mark.parametrize("kernel", ["linear", "arccosine", RBF([1.0] * 3) * RBF([1.0] * 3) + Linear([1.0] * 3)])
def test_kernels_with_weights_have_shares_too(kernel):
    model = GPRegressor(10, kernel=kernel, likelihood="gaussian", max_epochs=3).fit(X, y)
    assert model.feature_importances_.shape == (3,)


def test_the_summary_is_a_table_of_words_and_numbers(capsys):
    GPRegressor(20, likelihood="gaussian", max_epochs=3, random_state=0).fit(X, 7 * y).summary()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "GPRegressor"
    found = {line[2:16].strip(): line[17:] for line in lines[1:]}
    assert found["data"] == "200 rows, 3 columns, 1 output"
    assert re.match(r"Matern52: lengthscale \S+ to \S+ \(per column\), variance \S+$", found["kernel"])
    assert found["importance"].count("%") == 3
    assert found["likelihood"].startswith("Gaussian, noise of standard deviation ")
    assert found["posterior"] == "a Gaussian over 1 function at 20 inducing inputs"
    assert found["training"].startswith("3 epochs (3 steps) in ")
    assert found["evidence"].startswith("log evidence of at least -")
    assert found["leave-one-out"].startswith("mean log density of a row given the others -")


@pytest.mark.parametrize(
    ("model", "targets", "words"),
    [
        (GPClassifier(5, max_epochs=2), np.where(y > 0, "up", "down"), ["2 classes (down, up)", "Bernoulli, logit"]),
        (
            GPClassifier(5, max_epochs=2, share_kernel=False),
            np.arange(200) % 3,
            ["3 functions", "(per function and column)"],
        ),
        (GPClassifier(5, max_epochs=2, n_components=3), y > 0, ["a mixture of 3 Gaussians"]),
        (GPRegressor(5, max_epochs=2, likelihood="student_t"), y, ["noise of scale", "degrees of freedom"]),
        (
            GPRegressor(5, max_epochs=2, likelihood="poisson"),
            np.arange(200) % 9,
            ["Poisson, base rate", "leave-one-out  mean log density of a row given the others -"],
        ),
        (  # a mixture is scored by 1 / E[1 / p], which a Poisson likelihood does not have
            GPRegressor(5, max_epochs=2, likelihood="poisson", n_components=2),
            np.arange(200) % 9,
            ["a mixture of 2 Gaussians", "leave-one-out  infinite"],
        ),
        (
            GPRegressor(5, max_epochs=2, likelihood="network"),
            np.stack([y, y], 1),
            ["2 outputs", "Network, noise of standard deviation"],
        ),
        (GPRegressor(5, likelihood="gaussian", max_epochs=2, kernel="linear"), y, ["Linear"]),
        (GPRegressor(5, likelihood="gaussian", max_epochs=2, kernel="arccosine"), y, ["degree 1, depth 3"]),
    ],
    ids=lambda value: "",
)
def test_every_kind_of_model_is_described(model, targets, words, capsys, monkeypatch):
    monkeypatch.setattr("autogp.training.mixture.STEPS", 5)
    model.fit(X, targets).summary()
    shown = capsys.readouterr().out
    assert all(word in shown for word in words)
    assert "nan" not in shown
    assert max(map(len, shown.splitlines())) <= 120


def test_labels_that_steer_a_terminal_are_written_out(capsys):
    GPClassifier(5, max_epochs=2).fit(X, np.where(y > 0, "\x1b[2J", "\u202e")).summary()
    assert r"2 classes (\x1b[2J, \u202e)" in capsys.readouterr().out
