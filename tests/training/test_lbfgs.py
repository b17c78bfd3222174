"""Regression with all rows at once: the collapsed ELBO, its gradient, its maximum."""

import math
import time

import numpy as np
import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF as SklearnRBF
from sklearn.gaussian_process.kernels import ConstantKernel, WhiteKernel

from autogp import Posterior, SparseGP, elbo
from autogp.data import ArraySource
from autogp.kernels import RBF, ArcCosine
from autogp.likelihoods import Gaussian, StudentT
from autogp.linalg import NotPositiveDefiniteError
from autogp.training import Settings, train_exact
from autogp.training.lbfgs import collapsed_elbo
from autogp.training.step import Batch


def problem(count: int = 40, inputs: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = 3 * torch.rand(count, inputs, dtype=torch.float64, generator=generator)
    y = torch.sin(2 * x[:, :1]) + 0.2 * torch.randn(count, 1, dtype=torch.float64, generator=generator)
    return x, y


def whole(x: torch.Tensor, y: torch.Tensor) -> Batch:
    return Batch(x, y, torch.ones(len(x), dtype=torch.float64))


def test_the_collapsed_elbo_is_titsias():
    x, y = problem()
    z = x[:7]
    model = SparseGP(RBF(lengthscale=0.7, variance=1.3), Gaussian(variance=0.1), z)
    with torch.no_grad():
        found, q = collapsed_elbo(model, whole(x, y))
        kernel = model.kernel
        kzz = kernel.gram(z, z)[0]
        kzz = kzz + model.jitter * kzz.diagonal().mean() * torch.eye(7)
        kzx = kernel.gram(z, x)[0]
        low_rank = kzx.mT @ torch.linalg.solve(kzz, kzx)
        density = torch.distributions.MultivariateNormal(torch.zeros(40).double(), low_rank + 0.1 * torch.eye(40))
        expected = density.log_prob(y[:, 0]) - (40 * 1.3 - low_rank.trace()) / (2 * 0.1)
    assert found.item() == pytest.approx(expected.item(), rel=1e-8)
    assert elbo(model, x, y, q=q).item() == pytest.approx(found.item(), rel=1e-10)  # where the maximum is


def test_the_gradient_is_that_with_q_at_its_best():
    x, y = problem()
    model = SparseGP(RBF(lengthscale=[0.7, 1.4], variance=1.3), Gaussian(variance=0.1), x[:7].clone())
    collapsed_elbo(model, whole(x, y))[0].backward()
    for parameter in (*model.kernel.parameters(), *model.likelihood.parameters(), model.inducing_inputs):
        assert parameter.grad is not None
        place = (0,) * parameter.ndim
        with torch.no_grad():
            values = []
            for step in (1e-5, -2e-5):
                parameter[place] += step
                values.append(collapsed_elbo(model, whole(x, y))[0].item())
            parameter[place] += 1e-5
        slope = (values[0] - values[1]) / 2e-5
        assert parameter.grad[place].item() == pytest.approx(slope, rel=1e-5)


def test_it_reaches_the_optimum_of_the_exact_gaussian_process():
    x, y = problem()
    kernel = ConstantKernel(1.0) * SklearnRBF([1.0, 1.0], (1e-2, 1e6)) + WhiteKernel(0.1)
    exact = GaussianProcessRegressor(kernel, n_restarts_optimizer=3, random_state=0).fit(x.numpy(), y.numpy()[:, 0])
    model = SparseGP(RBF(lengthscale=[1.0, 1.0]), Gaussian(variance=0.1), x)
    history = train_exact(model, ArraySource(x, y), Settings())
    assert history.stopped == "converged"
    assert elbo(model, x, y).item() == pytest.approx(exact.log_marginal_likelihood_value_, abs=0.05)
    values = [row["value"] for row in history.rows]
    assert values == sorted(values)  # no noise: every iteration is better than the last


def test_missing_targets_and_weights_count_as_they_should():
    x, y = problem()
    y = torch.cat([y, y + 1], 1)
    y[3, 1] = math.nan
    model = SparseGP(RBF(), Gaussian(2), x[::4])
    weights = np.ones(40)
    weights[5] = 2.0
    train_exact(model, ArraySource(x, y), Settings(max_epochs=5), weights=weights)
    twice = torch.cat([torch.arange(40), torch.tensor([5])])
    other = SparseGP(RBF(), Gaussian(2), x[::4])
    train_exact(other, ArraySource(x[twice], y[twice]), Settings(max_epochs=5))
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-6)


def test_held_out_rows_choose_the_state_and_stop_the_run():
    x, y = problem()
    held = ArraySource(x[30:], y[30:])
    model = SparseGP(RBF(lengthscale=[1.0, 1.0]), Gaussian(variance=1.0), x[:30])
    history = train_exact(model, ArraySource(x[:30], y[:30]), Settings(patience=3), validation=held)
    scores = [row["score"] for row in history.rows]
    assert history.best_score == max(scores)
    assert history.best_epoch == scores.index(max(scores)) + 1


def test_time_callbacks_and_the_number_of_iterations_end_it():
    x, y = problem()
    source = ArraySource(x, y)

    def fresh() -> SparseGP:
        return SparseGP(RBF(lengthscale=[1.0, 1.0]), Gaussian(variance=0.1), x[:20])

    seen = []
    assert train_exact(fresh(), source, Settings(max_epochs=3), callbacks=[seen.append]).stopped == "max_epochs"
    assert [progress.step for progress in seen] == [1, 2, 3]
    assert (
        train_exact(fresh(), source, Settings(), callbacks=[lambda progress: progress.step == 2]).stopped == "callback"
    )
    started = time.monotonic()
    history = train_exact(fresh(), source, Settings(time_budget=1e-3))
    assert history.stopped == "time budget"
    assert time.monotonic() - started < 5


def test_what_has_no_closed_form_is_refused():
    x, y = problem()
    with pytest.raises(TypeError, match="closed form"):
        train_exact(SparseGP(RBF(), StudentT(), x[:5]), ArraySource(x, y), Settings())
    for posterior in (Posterior(1, 5, num_components=2), Posterior(1, 5, diagonal=True)):
        model = SparseGP(RBF(), Gaussian(), x[:5], posterior=posterior)
        with pytest.raises(TypeError, match="one Gaussian with a full covariance"):
            train_exact(model, ArraySource(x, y), Settings())


def test_other_objectives_are_refused():
    x, y = problem()
    model = SparseGP(RBF(), Gaussian(), x[:7])
    with pytest.raises(ValueError, match="for the objective 'elbo', got 'loo': use train"):
        train_exact(model, ArraySource(x, y), Settings(objective="loo"))


def test_a_start_that_cannot_be_factorised_says_so():
    x, y = problem(inputs=1)
    model = SparseGP(ArcCosine(degree=2, depth=12, weight_variance=9.0), Gaussian(), x[::5])
    with pytest.raises(NotPositiveDefiniteError, match="closest inducing inputs"):
        train_exact(model, ArraySource(x, y), Settings())


def test_where_everything_is_frozen_q_alone_learns():
    x, y = problem()
    model = SparseGP(RBF(), Gaussian(variance=0.04), x[::2])
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    history = train_exact(model, ArraySource(x, y), Settings())
    assert (len(history.rows), history.stopped) == (1, "converged")
    assert (model.predict(x).mean - y).square().mean() < 0.2 * y.var()
