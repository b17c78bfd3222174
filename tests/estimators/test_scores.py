"""elbo_ and loo_score_ against exact Gaussian processes, and what training reaches."""

import numpy as np
import pytest
import torch
from scipy.linalg import cho_solve, cholesky
from sklearn.datasets import load_diabetes, load_iris
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from autogp import GPClassifier, GPRegressor
from autogp.estimators.summary import describe
from autogp.objectives import elbo
from autogp.training import Start


def noisy_sine(count=60):
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, (count, 2))
    return X, 20 + 5 * (np.sin(2 * X[:, 0]) + 0.3 * X[:, 1] + 0.4 * rng.normal(size=count))


@pytest.fixture(scope="module")
def dense():
    """A regression in which every row is an inducing input, with the exact covariance of its scaled targets."""
    X, y = noisy_sine()
    model = GPRegressor(n_inducing=60, likelihood="gaussian", kernel="rbf", max_epochs=150, random_state=0).fit(X, y)
    kernel = model.model_.kernel
    x = model.model_.embed(torch.from_numpy(X)).numpy()
    scaled = (y - model.target_scaler_.shift.item()) / model.target_scaler_.scale.item()
    theirs = ConstantKernel(kernel.variance.item()) * RBF(kernel.lengthscale.detach().numpy()[0])
    theirs += WhiteKernel(model.model_.likelihood.variance.item())
    return model, x, scaled, theirs


def test_the_bound_is_just_below_the_exact_evidence(dense):
    model, x, y, kernel = dense
    exact = GaussianProcessRegressor(kernel, optimizer=None).fit(x, y)
    evidence = exact.log_marginal_likelihood_value_ - len(y) * np.log(model.target_scaler_.scale.item())
    assert model.elbo_ <= evidence + 1e-6
    assert model.elbo_ == pytest.approx(evidence, rel=1e-3)


def test_leave_one_out_is_that_of_the_exact_process(dense):
    model, x, y, kernel = dense
    inverse = cho_solve((cholesky(kernel(x), lower=True), True), np.eye(len(y)))
    variance = 1 / np.diag(inverse)
    residual = inverse @ y * variance  # y_i minus its mean without row i
    rows = -0.5 * (np.log(2 * np.pi * variance) + residual**2 / variance)
    assert model.loo_score_ == pytest.approx(rows.mean() - np.log(model.target_scaler_.scale.item()), abs=0.02)


def test_leave_one_out_of_a_classifier_is_close_to_fitting_without_the_row():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(24, 1))
    y = (X[:, 0] + 0.7 * rng.normal(size=24) > 0).astype(int)

    def fitted(rows):
        return GPClassifier(n_inducing=24, max_epochs=30, random_state=0).fit(X[rows], y[rows])

    whole = fitted(np.arange(24))
    likelihood = whole.model_.likelihood
    with torch.no_grad():
        marginals = whole.model_(torch.from_numpy(X))
        rows = likelihood.log_left_out(*marginals, likelihood.check_targets(torch.from_numpy(y))).numpy()
    assert whole.loo_score_ == pytest.approx(rows.mean(), abs=1e-9)
    for row in (0, 8, 16):
        refitted = fitted(np.arange(24) != row)
        assert rows[row] == pytest.approx(refitted.log_density(X[[row]], y[[row]])[0], abs=0.12)


def test_the_bound_of_a_classifier_is_the_objectives():
    X, y = noisy_sine()
    label = y > 20
    model = GPClassifier(n_inducing=10, max_epochs=10, random_state=0).fit(
        X, label, sample_weight=np.linspace(0.5, 2, 60)
    )
    weights = torch.linspace(0.5, 2, 60, dtype=torch.float64)
    with torch.no_grad():  # with gradients the rule is that of training
        expected = elbo(model.model_, torch.from_numpy(X), torch.from_numpy(label.astype(int)), weights=weights)
    assert model.elbo_ == pytest.approx(expected.item(), abs=1e-8)


def optimum(X, y, lengthscale):
    """The largest evidence that an exact process with such a kernel reaches, as scikit-learn's optimiser finds it."""
    kernel = ConstantKernel(1.0) * RBF(np.full(X.shape[1], lengthscale), (1e-2, 1e4)) + WhiteKernel(0.3)
    exact = GaussianProcessRegressor(kernel).fit((X - X.mean(0)) / X.std(0), (y - y.mean()) / y.std())
    return exact.log_marginal_likelihood_value_ - len(y) * np.log(y.std())


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")  # irrelevant columns leave no trace
def test_training_reaches_the_best_exact_evidence():
    X, y = noisy_sine()
    model = GPRegressor(n_inducing=60, likelihood="gaussian", kernel="rbf", max_epochs=200, random_state=0).fit(X, y)
    assert model.elbo_ == pytest.approx(optimum(X, y, lengthscale=1.0), abs=0.5)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_without_a_prior_the_default_regressor_reaches_the_best_exact_evidence_on_the_diabetes_data():
    X, y = load_diabetes(return_X_y=True)
    best = optimum(X, y, lengthscale=3.0)
    assert best == pytest.approx(-2398.4, abs=0.5)
    model = GPRegressor(kernel="rbf", likelihood="gaussian", start=Start(prior=False), random_state=0).fit(X, y)
    assert model.elbo_ == pytest.approx(best, abs=2)


def test_small_data_stop_when_the_score_has_settled():
    X, y = load_iris(return_X_y=True)
    model = GPClassifier(random_state=0).fit(X[::3], y[::3])
    assert model.best_epoch_ + 50 == len(model.history_) < 300
    assert f"best at the end of epoch {model.best_epoch_}" in describe(model)
    whole = GPClassifier(random_state=0, max_epochs=300).fit(X[::3], y[::3])
    assert len(whole.history_) == 300


def test_classes_with_a_kernel_each_start_from_inducing_inputs_of_their_own():
    labels = np.repeat([0, 1, 2], 40)
    x = 10.0 * labels + np.random.default_rng(0).uniform(-1, 1, len(labels))
    model = GPClassifier(8, share_kernel=False, scaling="none", max_epochs=1, random_state=0).fit(x[:, None], labels)
    nearest = (model.model_.inducing_inputs / 10).round().squeeze(-1)  # the class of each, [Q, M]
    assert nearest.eq(torch.arange(3)[:, None]).sum(1).tolist() == [6, 6, 6]
