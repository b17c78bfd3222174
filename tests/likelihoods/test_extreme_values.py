"""Latent values and variances far out of the ordinary: no NaN, and no infinity where the true value is a number."""

import math

import numpy as np
import pytest
import torch
from likelihood_cases import INFINITE_LOO, KINDS, make
from scipy import special
from torch import Tensor

from autogp.likelihoods import Bernoulli, Gaussian, Network, Poisson, Softmax, StudentT

DTYPES = [torch.float64, torch.float32]
FAR = 1e4


def column(values, dtype=torch.float64) -> Tensor:
    return torch.tensor(values, dtype=dtype)[:, None]


def value_and_gradients(likelihood, f: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """log p and its first and second derivatives (the diagonal) with respect to f [B, Q]."""
    f = f.clone().requires_grad_()
    value = likelihood.log_prob(f, y)
    slope, curvature = likelihood.expected_derivatives(
        f.detach(), torch.zeros_like(f), y, torch.zeros(1, *f.shape).to(f)
    )
    (gradient,) = torch.autograd.grad(value.sum(), f)
    torch.testing.assert_close(gradient, slope)
    return value.detach(), gradient, 2 * curvature


@pytest.mark.parametrize("dtype", DTYPES)
def test_log_sigmoid_does_not_overflow(dtype):
    f = column([-FAR, -100.0, 100.0, FAR], dtype)
    value, slope, curvature = value_and_gradients(Bernoulli(), f, torch.ones_like(f))
    assert value.tolist() == pytest.approx([-FAR, -100.0, 0.0, 0.0], abs=1e-12)
    assert slope[:, 0].tolist() == pytest.approx([1.0, 1.0, 0.0, 0.0], abs=1e-12)
    assert curvature[:, 0].abs().max() < 1e-12
    mirrored = Bernoulli().log_prob(-f, torch.zeros_like(f))
    assert mirrored.tolist() == value.tolist()


@pytest.mark.parametrize("dtype", DTYPES)
def test_log_normal_distribution_function_keeps_its_derivatives(dtype):
    points = [-FAR, -100.0, -40.0, 40.0, FAR]
    f = column(points, dtype)
    value, slope, curvature = value_and_gradients(Bernoulli(link="probit"), f, torch.ones_like(f))
    np.testing.assert_allclose(value.double().numpy(), special.log_ndtr(points), rtol=1e-6, atol=1e-30)
    x = -np.array(points[:3])
    inverse_mills = np.sqrt(2 / np.pi) / special.erfcx(x / np.sqrt(2))
    np.testing.assert_allclose(slope[:3, 0].double().numpy(), inverse_mills, rtol=1e-6)
    # r (r - x) = 1 - 1 / x^2 + ...; at 1e4 even float64 keeps only its order of magnitude
    np.testing.assert_allclose(curvature[1:3, 0].double().numpy(), -1 + 1 / x[1:] ** 2 - 6 / x[1:] ** 4, rtol=1e-5)
    assert -3 < curvature[0, 0] < 0
    assert slope[3:].abs().max() < 1e-12


@pytest.mark.parametrize("dtype", DTYPES)
def test_softmax_of_far_apart_latents(dtype):
    f = torch.tensor([[FAR, 0.0, -FAR], [FAR, FAR, FAR], [-FAR, -FAR, -FAR]], dtype=dtype)
    for label, expected in ((0, [0.0, -math.log(3), -math.log(3)]), (2, [-2 * FAR, -math.log(3), -math.log(3)])):
        y = torch.full((3,), label)
        value, slope, curvature = value_and_gradients(Softmax(3), f, y)
        assert value.tolist() == pytest.approx(expected, rel=1e-6)
        assert torch.isfinite(slope).all()
        assert torch.isfinite(curvature).all()


def test_softmax_keeps_the_digits_of_a_probability_near_one():
    f = torch.tensor([[FAR, FAR - 5.0]])  # float32: numbers near 1e4 are 0.001 apart
    value = Softmax(2).log_prob(f, torch.tensor([0])).item()
    assert value == pytest.approx(-math.log1p(math.exp(-5.0)), rel=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_noise_of_numbers_far_from_the_targets(dtype):
    f = column([-FAR, FAR], dtype)
    y = torch.zeros_like(f)
    for variance in (1e-12, 1.0, 1e6):
        value = Gaussian(variance=variance).log_prob(f, y)
        expected = -0.5 * math.log(2 * math.pi * variance) - 0.5 * FAR**2 / variance
        assert value.tolist() == pytest.approx([expected] * 2, rel=1e-6)
        scale = math.sqrt(variance)
        heavy = StudentT(df=4.0, scale=scale).log_prob(f, y)
        expected = math.log(0.375) - math.log(scale) - 2.5 * math.log1p(FAR**2 / (4 * variance))
        assert heavy.tolist() == pytest.approx([expected] * 2, rel=1e-5)
        latents = torch.cat([f, torch.ones_like(f)], -1)
        network = Network(1, variance=variance).log_prob(latents, y)
        assert network.tolist() == pytest.approx(value.tolist(), rel=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_poisson_of_extreme_rates(dtype):
    y = Poisson().check_targets(column([0.0, 3.0, 0.0, 3.0], dtype))
    f = column([-FAR, -FAR, FAR, FAR], dtype)
    value = Poisson().log_prob(f, y).tolist()
    assert value[:2] == pytest.approx([0.0, -3 * FAR - math.log(6)], rel=1e-6, abs=1e-12)
    assert value[2:] == [-math.inf, -math.inf]  # -exp(1e4) is not representable
    mean, variance = Poisson().predictive_moments(column([-FAR, -FAR], dtype), column([1e-12, FAR], dtype))
    assert mean[:, 0].tolist() == [0.0, 0.0]
    assert variance[:, 0].tolist() == [0.0, 1.0]  # exp(2 (m + v)) (1 - exp(-v)) at m = -v


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_vanishing_variance_gives_the_density_itself(kind: str, dtype):
    case = make(kind, dtype)
    log_prob = case.likelihood.log_prob(case.mean, case.y).detach()
    for variance in (1e-12, 1e-10):
        q = (case.mean.clone().requires_grad_(), torch.full_like(case.mean, variance).requires_grad_(), case.y)
        values = [case.likelihood.expected_log_prob(*q), case.likelihood.log_expected_prob(*q)]
        if kind not in INFINITE_LOO:
            values.append(-case.likelihood.log_expected_inverse_prob(*q))
        # 1e-10 times a curvature of at most 100, and float32's digits
        tolerance = {"rtol": 0, "atol": 1e-6} if dtype == torch.float64 else {"rtol": 2e-6, "atol": 1e-5}
        for value in values:
            torch.testing.assert_close(value.detach(), log_prob, **tolerance)
            for gradient in torch.autograd.grad(value.sum(), q[:2]):
                assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_enormous_variance_gives_numbers(kind: str, dtype):
    case = make(kind, dtype)
    for variance in (1e3, 1e6):
        q = (case.mean.clone().requires_grad_(), torch.full_like(case.mean, variance).requires_grad_(), case.y)
        values = [case.likelihood.log_expected_prob(*q)]
        if kind != "poisson":  # there it is -exp(v / 2)
            values.append(case.likelihood.expected_log_prob(*q))
        if kind in ("logit", "softmax", "student-t"):  # elsewhere infinite
            values.append(case.likelihood.log_expected_inverse_prob(*q))
        for value in values:
            assert torch.isfinite(value).all()
            for gradient in torch.autograd.grad(value.sum(), q[:2]):
                assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mean", [-FAR, FAR])
@pytest.mark.parametrize("kind", ["gaussian", "logit", "probit", "softmax", "student-t", "network"])
def test_far_means_give_numbers(kind: str, mean: float, dtype):
    case = make(kind, dtype)
    for variance in (1e-12, 1.0, 1e6):
        q = (torch.full_like(case.mean, mean), torch.full_like(case.mean, variance), case.y)
        assert torch.isfinite(case.likelihood.expected_log_prob(*q)).all()
        assert torch.isfinite(case.likelihood.log_expected_prob(*q)).all()
        assert all(torch.isfinite(part).all() for part in case.likelihood.expected_derivatives(*q))
        assert all(torch.isfinite(part).all() for part in case.likelihood.predictive_moments(*q[:2]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_leave_one_out_of_far_means(dtype):
    mean = column([-FAR, FAR], dtype)
    ones = torch.ones_like(mean)
    for variance in (1e-12, 1e6):
        v = torch.full_like(mean, variance)
        logit = Bernoulli().log_expected_inverse_prob(mean, v, ones)
        exact = np.logaddexp(0, -np.array([-FAR, FAR]) + variance / 2)
        np.testing.assert_allclose(logit.double().numpy(), exact, rtol=1e-6)
        softmax = Softmax(2).log_expected_inverse_prob(
            torch.cat([mean, torch.zeros_like(mean)], -1), v.expand(-1, 2), torch.zeros(2, dtype=torch.int64)
        )
        exact = np.logaddexp(0, -np.array([-FAR, FAR]) + variance)
        np.testing.assert_allclose(softmax.double().numpy(), exact, rtol=1e-6)
    probit = Bernoulli(link="probit").log_expected_inverse_prob(mean, torch.full_like(mean, 1e-12), ones)
    np.testing.assert_allclose(probit.double().numpy(), -special.log_ndtr([-FAR, FAR]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_variance_of_zero_gives_the_density(dtype):
    """q is a point where a row is an inducing input of a noiseless posterior."""
    for kind in KINDS:
        case = make(kind, dtype)
        q = (case.mean, torch.zeros_like(case.mean), case.y)
        log_prob = case.likelihood.log_prob(case.mean, case.y)
        torch.testing.assert_close(case.likelihood.expected_log_prob(*q), log_prob, rtol=2e-6, atol=1e-5)
        torch.testing.assert_close(case.likelihood.log_expected_prob(*q), log_prob, rtol=2e-6, atol=1e-5)
        if kind not in INFINITE_LOO:
            torch.testing.assert_close(case.likelihood.log_expected_inverse_prob(*q), -log_prob, rtol=2e-6, atol=1e-5)
