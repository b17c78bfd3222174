"""Rows that are absorbed one batch after the other leave the posterior that all rows together give."""

import numpy as np
import pytest
import torch

from autogp import Posterior, SparseGP, elbo
from autogp.kernels import RBF
from autogp.likelihoods import Bernoulli, Gaussian, Poisson, StudentT
from autogp.posteriors import Natural
from autogp.training import absorb


def rows(count=60, seed=0):
    rng = np.random.default_rng(seed)
    x = torch.from_numpy(rng.uniform(-2, 2, (count, 2)))
    y = torch.sin(2 * x[:, 0]) + x[:, 1] + 0.3 * torch.from_numpy(rng.normal(size=count))
    return x, y


def new_model(likelihood):
    z = torch.from_numpy(np.random.default_rng(1).uniform(-2, 2, (12, 2)))
    return SparseGP(RBF(lengthscale=[0.8, 1.2], variance=1.7), likelihood, z)


def absorbed(model, x, y, weights=None, batch=None, q=None):
    """q after these rows, all at once or a batch at a time; the model's own before them."""
    q = Natural.of(model.posterior)
    weights = torch.ones(len(x), dtype=torch.float64) if weights is None else weights
    for start in range(0, len(x), batch or len(x)):
        rows = slice(start, start + (batch or len(x)))
        q = absorb(model, q, x[rows], y[rows], weights[rows])
    return q


def exact(model, x, y, weights):
    """Titsias' posterior of v, from kernel matrices and ordinary linear algebra."""
    factor = np.linalg.cholesky(
        (
            model.kernel.gram(model.inducing_inputs, model.inducing_inputs)[0].detach()
            * (1 + model.jitter * torch.eye(12, dtype=torch.float64))
        ).numpy()
    )
    a = np.linalg.solve(factor, model.kernel.gram(model.inducing_inputs, x)[0].detach().numpy())
    noise = model.likelihood.variance.item()
    precision = np.eye(12) + (a * weights.numpy()) @ a.T / noise
    covariance = np.linalg.inv(precision)
    return covariance @ a @ (weights * y).numpy() / noise, covariance


@pytest.mark.parametrize("batch", [1, 7, 60])
@pytest.mark.parametrize("order", ["forward", "shuffled"])
def test_gaussian_noise_gives_the_exact_posterior_for_any_order_and_batch_size(batch, order):
    x, y = rows()
    weights = torch.linspace(0.2, 3, len(x), dtype=torch.float64)
    model = new_model(Gaussian(variance=0.09))
    places = torch.arange(len(x)) if order == "forward" else torch.from_numpy(np.random.default_rng(2).permutation(60))
    found = absorbed(model, x[places], y[places], weights[places], batch).moments()
    mean, covariance = exact(model, x, y, weights)
    np.testing.assert_allclose(found.mean[0, 0], mean, atol=1e-8)
    np.testing.assert_allclose(found.covariance()[0, 0], covariance, atol=1e-8)
    with torch.no_grad():
        np.testing.assert_allclose(model.posterior.moments().mean, 0)  # the model is the caller's to change


def test_logistic_rows_in_one_batch_give_the_best_elbo():
    x, y = rows()
    labels = (y > 0).long()
    model = new_model(Bernoulli())
    q = absorbed(model, x, labels)
    found = elbo(model, x, labels, q=q).item()
    generator = torch.Generator().manual_seed(0)
    moments = q.moments()
    for _ in range(10):  # no small step from there leads higher
        away = 1e-2 * torch.randn(moments.mean.shape, dtype=torch.float64, generator=generator)
        moved = Natural.of_moments(moments.mean + away, moments.covariance())
        assert elbo(model, x, labels, q=moved).item() < found


def test_logistic_rows_in_batches_come_close_to_the_best_elbo():
    x, y = rows()
    labels = (y > 0).long()
    model = new_model(Bernoulli())
    whole, pieces = absorbed(model, x, labels), absorbed(model, x, labels, batch=10)
    values = [elbo(model, x, labels, q=q).item() for q in (whole, pieces)]
    assert values[0] == pytest.approx(values[1], abs=0.05)
    means = [model.predictor(q).predict(x).mean for q in (whole, pieces)]
    torch.testing.assert_close(means[0], means[1], atol=0.02, rtol=0)


def test_a_likelihood_that_is_not_log_concave_leaves_a_posterior_that_outliers_do_not_bend():
    x, y = rows()
    truth = y.clone()
    y[::7] += 8.0  # where the density curves upwards
    errors = []
    for likelihood in (StudentT(scale=0.3), Gaussian(variance=0.09)):
        model = new_model(likelihood)
        predictor = model.predictor(absorbed(model, x, y, batch=10))
        errors.append((predictor.predict(x).mean[:, 0] - truth).square().mean().sqrt())
    assert errors[0] < errors[1] / 3


def test_a_mixture_is_refused():
    x, y = rows()
    model = SparseGP(RBF(), Gaussian(), x[:5], posterior=Posterior(1, 5, 2))
    with pytest.raises(TypeError, match="natural gradients need one Gaussian with a full covariance"):
        absorbed(model, x, y)


@pytest.mark.parametrize("count", [0.0, 3.0, 100.0, 1e3, 1e6])
def test_a_count_far_from_the_rate_so_far_ends_at_the_best_elbo(count):
    """A full Newton step from a rate of 1 to a count of 100 would go to exp(40)."""
    x = torch.linspace(-1, 1, 30, dtype=torch.float64)[:, None]
    model = SparseGP(RBF(0.5), Poisson(rate=1.0), x[::3])
    q = absorbed(model, x[:1], torch.tensor([count]))
    mean = model.predictor(q).predict(x[:1]).mean.item()
    assert abs(mean - count) < 1.5 + 0.1 * count
    best = elbo(model, x[:1], torch.tensor([count]), q=q).item()
    for factor in (0.9, 1.1):
        shifted = Natural(q.precision, factor * q.shift)
        assert elbo(model, x[:1], torch.tensor([count]), q=shifted).item() <= best + 1e-9
