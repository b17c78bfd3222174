"""The closed forms and quadrature rules of the likelihoods against adaptive quadrature and Monte Carlo."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import integrate, special, stats
from torch import Tensor

from autogp.likelihoods import (
    Bernoulli,
    Elementwise,
    Gaussian,
    InfiniteLOOError,
    Likelihood,
    Network,
    Poisson,
    Softmax,
    StudentT,
)

Function = Callable[[np.ndarray], np.ndarray]

MEANS = (-5.0, -1.3, 0.0, 0.4, 5.0)
DENSITY_AT_ZERO = 1 / math.sqrt(2 * math.pi)


def number(value: float) -> Tensor:
    return torch.tensor([[value]], dtype=torch.float64)


def evaluate(method, mean: float, variance: float, y: Tensor) -> float:
    return method(number(mean), number(variance), y).item()


def quadrature_mean(function: Function, mean: float, variance: float, kinks: tuple[float, ...] = ()) -> float:
    """E[function(f)], f ~ N(mean, variance), by adaptive quadrature with the points f that need care."""
    sd = math.sqrt(variance)
    points = sorted(z for z in ((kink - mean) / sd for kink in (*kinks, mean)) if abs(z) < 10)
    return integrate.quad(
        lambda z: DENSITY_AT_ZERO * math.exp(-0.5 * z**2) * function(mean + sd * z),
        -10,
        10,
        points=points,
        epsabs=1e-13,
        limit=2000,
    )[0]


def quadrature_log_mean(log_function: Function, mean: float, variance: float, reach: float = 40.0) -> float:
    """log E[exp(log_function(f))] by adaptive quadrature, where within `reach` standard deviations it has its mass."""
    sd = math.sqrt(variance)

    def exponent(z):
        return log_function(mean + sd * z) - 0.5 * z**2 - 0.5 * math.log(2 * math.pi)

    grid = np.linspace(-reach, reach, 40_001)
    values = exponent(grid)
    top = values.max()
    alive = np.flatnonzero(values > top - 45)
    low, high = grid[max(alive[0] - 1, 0)], grid[min(alive[-1] + 1, len(grid) - 1)]
    points = np.unique([grid[values.argmax()], *np.linspace(low, high, 20)[1:-1]])
    total = integrate.quad(
        lambda z: math.exp(exponent(z) - top), low, high, points=points, epsabs=0, epsrel=1e-10, limit=4000
    )
    return math.log(total[0]) + top


def log_normal(f, y: float, variance: float):
    return -0.5 * (math.log(2 * math.pi * variance) + (y - f) ** 2 / variance)


def log_sigmoid(f):
    return -np.logaddexp(0, -f)


def log_student(f, y: float, df: float, scale: float):
    constant = special.gammaln((df + 1) / 2) - special.gammaln(df / 2) - 0.5 * math.log(df * math.pi) - math.log(scale)
    return constant - (df + 1) / 2 * np.log1p((y - f) ** 2 / (df * scale**2))


def log_poisson(f, count: float, exposure: float = 1.0):
    rate = f + math.log(exposure)
    return count * rate - np.exp(np.minimum(rate, 700)) - special.gammaln(count + 1)


# Expected log likelihoods


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("variance", [1e-4, 0.3, 1.0, 25.0])
def test_expected_log_likelihood_of_the_gaussian(mean: float, variance: float):
    for noise, y in ((0.01, 0.2), (1.0, -3.0), (7.0, 30.0)):
        expected = quadrature_mean(lambda f, y=y, noise=noise: log_normal(f, y, noise), mean, variance)
        actual = evaluate(Gaussian(variance=noise).expected_log_prob, mean, variance, number(y))
        assert actual == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("variance", [1e-4, 0.3, 1.0, 4.0])
def test_expected_log_likelihood_of_the_poisson(mean: float, variance: float):
    for count, exposure in ((0, 1.0), (3, 2.5), (100, 0.1)):
        y = Poisson().check_targets(torch.tensor([[[count, exposure]]], dtype=torch.float64))
        expected = quadrature_mean(lambda f, c=count, e=exposure: log_poisson(f, c, e), mean, variance)
        assert evaluate(Poisson().expected_log_prob, mean, variance, y) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize(
    ("sd", "accuracy"), [(0.1, 1e-9), (0.5, 1e-9), (1.0, 1e-9), (2.0, 5e-6), (3.0, 2e-4), (5.0, 4e-3)]
)
@pytest.mark.parametrize("mean", MEANS)
def test_expected_log_likelihood_of_labels_by_twenty_hermite_nodes(mean: float, sd: float, accuracy: float):
    for link, log_cdf in (("logit", log_sigmoid), ("probit", special.log_ndtr)):
        for y in (0.0, 1.0):
            expected = quadrature_mean(lambda f, y=y, log_cdf=log_cdf: log_cdf((2 * y - 1) * f), mean, sd**2)
            actual = evaluate(Bernoulli(link=link).expected_log_prob, mean, sd**2, number(y))
            assert actual == pytest.approx(expected, abs=accuracy)


@pytest.mark.parametrize("df", [2.1, 4.0, 30.0, 1000.0])
@pytest.mark.parametrize("ratio", [0.01, 0.3, 1.0, 10.0, 60.0])
def test_expected_log_likelihood_of_the_student_t(df: float, ratio: float):
    """Whatever the ratio of the standard deviation of q to the scale, and for outliers."""
    scale = 0.1
    for distance in (0.0, 0.05, 1.0, 20.0):
        actual = evaluate(
            StudentT(df=df, scale=scale).expected_log_prob, 0.3, (ratio * scale) ** 2, number(0.3 + distance)
        )
        expected = quadrature_mean(
            lambda f, y=0.3 + distance: log_student(f, y, df, scale),
            0.3,
            (ratio * scale) ** 2,
            kinks=(0.3 + distance, 0.3 + distance + scale, 0.3 + distance - scale),
        )
        assert actual == pytest.approx(expected, rel=1e-10, abs=1e-8)


# Leave-one-out


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("variance", [1e-4, 0.3, 1.0, 25.0])
def test_leave_one_out_of_the_logistic(mean: float, variance: float):
    for y in (0.0, 1.0):
        expected = quadrature_log_mean(lambda f, y=y: -log_sigmoid((2 * y - 1) * f), mean, variance)
        actual = evaluate(Bernoulli().log_expected_inverse_prob, mean, variance, number(y))
        assert actual == pytest.approx(expected, rel=1e-9, abs=1e-10)
        assert actual == pytest.approx(math.log1p(math.exp(-(2 * y - 1) * mean + variance / 2)), rel=1e-12)


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("share", [1e-6, 0.1, 0.5, 0.9, 0.99])
def test_leave_one_out_of_the_gaussian(mean: float, share: float):
    for noise in (0.01, 1.0, 9.0):
        y = mean + 1.7 * math.sqrt(noise)
        expected = quadrature_log_mean(
            lambda f, y=y, noise=noise: -log_normal(f, y, noise), mean, share * noise, reach=400.0
        )
        actual = evaluate(Gaussian(variance=noise).log_expected_inverse_prob, mean, share * noise, number(y))
        assert actual == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("ratio", [1.0, 1.0000001, 2.0, 1e6])
def test_leave_one_out_of_the_gaussian_is_infinite_where_q_is_as_wide_as_the_noise(ratio: float):
    likelihood = Gaussian(variance=0.5)
    noise = likelihood.variance.item()
    q = [number(0.0).requires_grad_(), number(ratio * noise).requires_grad_()]
    value = likelihood.log_expected_inverse_prob(*q, number(0.1))
    assert value.item() == math.inf
    assert all(torch.isfinite(gradient).all() for gradient in torch.autograd.grad(value.sum(), q))
    assert math.isfinite(evaluate(likelihood.log_expected_inverse_prob, 0.0, noise * (1 - 1e-9), number(0.1)))


@pytest.mark.parametrize("variance", [1e-12, 1e-4, 0.1, 0.5, 0.9, 0.99, 0.999])
def test_leave_one_out_of_the_probit(variance: float):
    for mean in (-5.0, -1.0, -0.1, 0.0, 0.1, 1.0, 5.0, 8.0, 100.0):
        reach = 40 + (abs(min(mean, 0)) * math.sqrt(variance) / (1 - variance)) + 12 / math.sqrt(1 - variance)
        expected = quadrature_log_mean(lambda f: -special.log_ndtr(f), mean, variance, reach)
        for y in (0.0, 1.0):
            actual = evaluate(
                Bernoulli(link="probit").log_expected_inverse_prob, (2 * y - 1) * mean, variance, number(y)
            )
            assert actual == pytest.approx(expected, rel=1e-8, abs=1e-10)


@pytest.mark.parametrize("variance", [1.0, 1.5, 100.0])
def test_leave_one_out_of_the_probit_is_infinite_from_variance_one_on(variance: float):
    for mean in (-5.0, 0.0, 50.0):
        q = [number(mean).requires_grad_(), number(variance).requires_grad_()]
        value = Bernoulli(link="probit").log_expected_inverse_prob(*q, number(1.0))
        assert value.item() == math.inf
        assert all(torch.isfinite(gradient).all() for gradient in torch.autograd.grad(value.sum(), q))


@pytest.mark.parametrize(
    ("df", "ratio", "accuracy"),
    [(3.0, 1.0, 1e-9), (3.0, 10.0, 1e-9), (4.0, 1.0, 1e-8), (4.0, 10.0, 1e-4), (30.0, 3.0, 1e-8), (100.0, 1.0, 1e-4)],
)
def test_leave_one_out_of_the_student_t(df: float, ratio: float, accuracy: float):
    """Nearly a polynomial, so Hermite nodes serve; not for df over 30 with q wider than the scale, nearly infinite."""
    for distance in (0.0, 0.3, 3.0):
        expected = quadrature_log_mean(lambda f, y=distance: -log_student(f, y, df, 0.1), 0.0, (0.1 * ratio) ** 2)
        actual = evaluate(
            StudentT(df=df, scale=0.1).log_expected_inverse_prob, 0.0, (0.1 * ratio) ** 2, number(distance)
        )
        assert actual == pytest.approx(expected, abs=accuracy)


@pytest.mark.parametrize("variance", [1e-4, 0.3, 1.0, 9.0])
def test_leave_one_out_of_two_classes_is_that_of_their_difference(variance: float):
    for first, second in ((0.0, 0.0), (1.3, -2.0), (-4.0, 3.0)):
        mean = torch.tensor([[first, second]], dtype=torch.float64)
        v = torch.tensor([[variance, 0.5 * variance]], dtype=torch.float64)
        actual = Softmax(2).log_expected_inverse_prob(mean, v, torch.tensor([0])).item()
        expected = quadrature_log_mean(lambda f: -log_sigmoid(f), first - second, 1.5 * variance)
        assert actual == pytest.approx(expected, rel=1e-9)


def test_leave_one_out_of_softmax_is_unbiasedly_sampled():
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(4, 5, dtype=torch.float64, generator=generator)
    variance = 0.05 + 0.3 * torch.rand(4, 5, dtype=torch.float64, generator=generator)
    y = torch.tensor([0, 2, 4, 2])
    exact = Softmax(5).log_expected_inverse_prob(mean, variance, y).exp()
    noise = torch.randn(600_000, 4, 5, dtype=torch.float64, generator=generator)
    inverse = (-torch.log_softmax(mean + variance.sqrt() * noise, -1))[:, torch.arange(4), y].exp()
    error = inverse.std(0) / math.sqrt(len(inverse))
    assert (5 * error < 0.005 * exact).all()
    assert ((inverse.mean(0) - exact).abs() < 5 * error).all()


@pytest.mark.parametrize(("likelihood", "name"), [(Poisson(), "Poisson"), (Network(2), "Network")])
def test_infinite_leave_one_out_is_an_error_that_offers_predictive(likelihood: Likelihood, name: str):
    mean = torch.zeros(1, likelihood.num_latents, dtype=torch.float64)
    y = likelihood.check_targets(torch.zeros(1, likelihood.num_latents - (name == "Network"), dtype=torch.float64))
    for noise in (None, torch.zeros(3, *mean.shape, dtype=torch.float64)):
        with pytest.raises(InfiniteLOOError, match=f"infinite for the {name} likelihood.*objective='predictive'"):
            likelihood.log_expected_inverse_prob(mean, torch.ones_like(mean), y, noise)
    assert issubclass(InfiniteLOOError, ArithmeticError)


def test_leave_one_out_of_poisson_and_network_do_grow_without_bound():
    """What the error says: over wider and wider ranges the integral keeps growing."""

    def poisson(z):
        return np.exp(np.minimum(z, 700)) - z - 0.5 * z**2

    def network(z):  # W and g both equal to z, y = 0
        return 0.5 * z**4 - z**2

    for log_integrand in (poisson, network):
        totals = [special.logsumexp(log_integrand(np.linspace(0, reach, 10_001))) for reach in (5, 10, 20)]
        assert totals[1] > totals[0] + 100
        assert totals[2] > totals[1] + 1000


# Predictive densities


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("variance", [1e-4, 0.3, 1.0, 25.0])
def test_predictive_density_of_the_gaussian(mean: float, variance: float):
    for noise, y in ((0.01, 0.2), (1.0, -3.0), (7.0, 30.0)):
        expected = quadrature_log_mean(lambda f, y=y, noise=noise: log_normal(f, y, noise), mean, variance, reach=600.0)
        actual = evaluate(Gaussian(variance=noise).log_expected_prob, mean, variance, number(y))
        assert actual == pytest.approx(expected, rel=1e-8)
        assert actual == pytest.approx(stats.norm.logpdf(y, mean, math.sqrt(noise + variance)), rel=1e-12)


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("variance", [1e-4, 0.3, 1.0, 25.0])
def test_predictive_probability_of_the_probit(mean: float, variance: float):
    for y in (0.0, 1.0):
        expected = quadrature_log_mean(lambda f, y=y: special.log_ndtr((2 * y - 1) * f), mean, variance)
        actual = evaluate(Bernoulli(link="probit").log_expected_prob, mean, variance, number(y))
        assert actual == pytest.approx(expected, rel=1e-9, abs=1e-11)


@pytest.mark.parametrize(("sd", "accuracy"), [(0.01, 1e-10), (1.0, 1e-10), (5.0, 1e-9), (10.0, 5e-6), (20.0, 1e-3)])
@pytest.mark.parametrize("mean", [*MEANS, -60.0])
def test_predictive_probability_of_the_logistic(mean: float, sd: float, accuracy: float):
    for y in (0.0, 1.0):
        expected = quadrature_log_mean(lambda f, y=y: log_sigmoid((2 * y - 1) * f), mean, sd**2)
        actual = evaluate(Bernoulli().log_expected_prob, mean, sd**2, number(y))
        assert actual == pytest.approx(expected, rel=accuracy, abs=accuracy)


@pytest.mark.parametrize("sd", [1e-4, 0.1, 0.3, 1.0, 2.0, 5.0])
@pytest.mark.parametrize("count", [0, 1, 10, 100, 10_000])
def test_predictive_probability_of_the_poisson(count: int, sd: float):
    for mean in (-3.0, 0.0, math.log(count + 0.5), math.log(count + 0.5) + 2):
        for exposure in (1.0, 0.2):
            if abs(mean + math.log(exposure) - math.log(count + 0.5)) > 100 * sd:
                continue  # the mass is beyond the reach of the reference
            y = Poisson().check_targets(torch.tensor([[[count, exposure]]], dtype=torch.float64))
            expected = quadrature_log_mean(lambda f, e=exposure: log_poisson(f, count, e), mean, sd**2, reach=120.0)
            assert evaluate(Poisson().log_expected_prob, mean, sd**2, y) == pytest.approx(expected, rel=1e-9, abs=2e-8)


def test_predictive_probabilities_of_the_poisson_sum_to_one():
    y = Poisson().check_targets(torch.arange(4000))
    for mean, variance in ((0.0, 1.0), (3.0, 0.2)):
        total = Poisson().log_expected_prob(number(mean), number(variance), y).exp().sum().item()
        assert total == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("df", [2.1, 4.0, 30.0, 1000.0])
@pytest.mark.parametrize("ratio", [0.01, 0.3, 1.0, 10.0, 60.0])
def test_predictive_density_of_the_student_t(df: float, ratio: float):
    scale = 0.1
    for distance in (0.0, 0.05, 1.0, 20.0):
        variance = (ratio * scale) ** 2
        reach = 40 + 2 * distance / math.sqrt(variance) if ratio >= 1 else 40.0
        expected = quadrature_log_mean(lambda f, y=distance: log_student(f, y, df, scale), 0.0, variance, reach)
        actual = evaluate(StudentT(df=df, scale=scale).log_expected_prob, 0.0, variance, number(distance))
        assert actual == pytest.approx(expected, rel=1e-10, abs=1e-8 if df < 1000 else 1e-6)


@pytest.mark.parametrize(
    ("likelihood", "mean", "variance", "target", "log_density"),
    [
        (StudentT(df=4.0, scale=0.1), 0.0, 1.0, 0.0, lambda f: log_student(f, 0.0, 4.0, 0.1)),
        (Poisson(), 0.0, 1.0, 100.0, lambda f: log_poisson(f, 100)),
        (Poisson(), math.log(100), 1.0, 100.0, lambda f: log_poisson(f, 100)),
        (Bernoulli(), -3.0, 25.0, 1.0, log_sigmoid),
    ],
    ids=["student-t", "poisson, far", "poisson, near", "logit"],
)
def test_rules_of_their_own_agree_with_the_one_for_any_likelihood(likelihood, mean, variance, target, log_density):
    """Twenty Gauss-Hermite points would be off by 0.01 and more: they lie where q is, not where the integrand is."""
    y = likelihood.check_targets(number(target))
    exact = quadrature_log_mean(log_density, mean, variance)
    default = Elementwise.log_expected_density(likelihood, number(mean), number(variance), y).item()
    assert default == pytest.approx(exact, abs=1e-8)
    assert evaluate(likelihood.log_expected_prob, mean, variance, y) == pytest.approx(exact, abs=1e-8)


def gumbel_max_probabilities(mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """E[softmax(f)], f ~ N(mean, diag(variance)): softmax is the argmax of f_c + Gumbel noise, independent over c."""
    z, weights = np.polynomial.hermite_e.hermegauss(60)
    weights = weights / math.sqrt(2 * math.pi)
    sd = np.sqrt(variance)
    t = np.linspace((mean - 8 * sd).min() - 4, (mean + 8 * sd).max() + 30, 1000)
    a = t[:, None, None] - mean[:, None] - sd[:, None] * z  # [T, C, nodes]
    distribution = (weights * np.exp(-np.exp(-a))).sum(-1)  # P(f_c + Gumbel < t)
    density = (weights * np.exp(-a - np.exp(-a))).sum(-1)
    others = np.stack([np.delete(distribution, c, 1).prod(1) for c in range(len(mean))], 1)
    return (density * others).sum(0) * (t[1] - t[0])


@pytest.mark.parametrize(("sd", "accuracy"), [(0.3, 3e-4), (1.0, 2e-3), (2.0, 6e-3)])
def test_predictive_probabilities_of_softmax_by_sobol_points(sd: float, accuracy: float):
    generator = np.random.default_rng(0)
    mean = 2 * generator.standard_normal((6, 10))
    variance = sd**2 * generator.uniform(0.5, 1.0, (6, 10))
    exact = np.stack([gumbel_max_probabilities(m, v) for m, v in zip(mean, variance, strict=True)])
    np.testing.assert_allclose(exact.sum(-1), 1, rtol=1e-8)
    q = torch.from_numpy(mean), torch.from_numpy(variance)
    for label in range(10):
        actual = Softmax(10).log_expected_prob(*q, torch.full((6,), label)).exp()
        np.testing.assert_allclose(actual.numpy(), exact[:, label], rtol=0, atol=accuracy)
    np.testing.assert_allclose(Softmax(10).predictive_moments(*q)[0].numpy(), exact, rtol=0, atol=accuracy)


# Derivatives


def difference(likelihood: Likelihood, q: list[Tensor], y: Tensor, which: int, step: float = 1e-4) -> Tensor:
    """Central differences of the expected log likelihood with respect to the means (0) or variances (1), [B, Q]."""
    result = torch.zeros_like(q[which])
    for column in range(result.shape[-1]):
        ends = []
        for sign in (1, -1):
            moved = [part.clone() for part in q]
            moved[which][:, column] += sign * step
            ends.append(likelihood.expected_log_prob(*moved, y))
        result[:, column] = (ends[0] - ends[1]).detach() / (2 * step)
    return result


def problems() -> dict[str, tuple[Likelihood, Tensor]]:
    generator = torch.Generator().manual_seed(5)
    normal = torch.randn(6, 3, dtype=torch.float64, generator=generator)
    scales = torch.tensor([0.5, 1.0, 3.0], dtype=torch.float64)
    return {
        "gaussian": (Gaussian(3, variance=scales), normal),
        "logit": (Bernoulli(3), (normal > 0).double()),
        "probit": (Bernoulli(3, link="probit"), (normal > 0).double()),
        "poisson": (Poisson(3), torch.stack([(4 * normal).abs().round(), normal.exp()], -1)),
        "student-t": (StudentT(3, df=4.0, scale=2 * scales), normal),
        "softmax": (Softmax(3), torch.arange(6) % 3),
        "network": (Network(3, variance=scales), normal),
    }


def marginals(likelihood: Likelihood, rows: int = 6) -> list[Tensor]:
    generator = torch.Generator().manual_seed(6)
    mean = torch.randn(rows, likelihood.num_latents, dtype=torch.float64, generator=generator)
    return [mean, 0.1 + torch.rand(rows, likelihood.num_latents, dtype=torch.float64, generator=generator)]


@pytest.mark.parametrize("kind", list(problems()))
def test_expected_derivatives_are_those_of_the_expected_log_likelihood(kind: str):
    likelihood, y = problems()[kind]
    y, q = likelihood.check_targets(y), marginals(likelihood)
    alpha, beta = likelihood.expected_derivatives(*q, y)
    # Softmax has Price's E[d2 log p / df2] / 2, not the derivative of an average over Sobol points.
    tolerance = 5e-3 if kind == "softmax" else 1e-7
    torch.testing.assert_close(alpha, difference(likelihood, q, y, 0), rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(beta, difference(likelihood, q, y, 1), rtol=1e-6, atol=tolerance)


def test_expected_derivatives_of_the_gaussian_in_closed_form():
    likelihood, y = problems()["gaussian"]
    mean, variance = marginals(likelihood)
    alpha, beta = likelihood.expected_derivatives(mean, variance, y)
    noise = likelihood.variance.detach()
    torch.testing.assert_close(alpha, (y - mean) / noise)
    torch.testing.assert_close(beta, (-0.5 / noise).expand_as(beta))


def test_expected_derivatives_of_softmax_against_a_product_of_hermite_rules():
    likelihood, y = problems()["softmax"]
    mean, variance = marginals(likelihood)
    z, weights = (torch.from_numpy(part) for part in np.polynomial.hermite_e.hermegauss(40))
    weights = weights / math.sqrt(2 * math.pi)
    points = torch.cartesian_prod(z, z, z)[:, None]  # [H, 1, 3]
    weights = torch.cartesian_prod(weights, weights, weights).prod(-1)[:, None, None]
    p = torch.softmax(mean + variance.sqrt() * points, -1)
    alpha = torch.nn.functional.one_hot(y, 3) - (weights * p).sum(0)
    beta = -0.5 * (weights * p * (1 - p)).sum(0)
    actual = likelihood.expected_derivatives(mean, variance, y)
    torch.testing.assert_close(actual[0], alpha, rtol=0, atol=3e-3)
    torch.testing.assert_close(actual[1], beta, rtol=0, atol=1e-3)


@pytest.mark.parametrize("kind", list(problems()))
def test_sampled_derivatives_are_unbiased(kind: str):
    """Each antithetic pair of samples is a row of its own, so that the standard error is known."""
    pairs = 800_000 if kind == "poisson" else 300_000
    likelihood, y = problems()[kind]
    y, (mean, variance) = likelihood.check_targets(y)[:1], (part[:1] for part in marginals(likelihood))
    if kind == "softmax":
        z, weights = (torch.from_numpy(part) for part in np.polynomial.hermite_e.hermegauss(40))
        weights = torch.cartesian_prod(*[weights / math.sqrt(2 * math.pi)] * 3).prod(-1)[:, None, None]
        p = torch.softmax(mean + variance.sqrt() * torch.cartesian_prod(z, z, z)[:, None], -1)
        truth = torch.nn.functional.one_hot(y, 3) - (weights * p).sum(0), -0.5 * (weights * p * (1 - p)).sum(0)
    else:
        truth = likelihood.expected_derivatives(mean, variance, y)
    z = torch.randn(pairs, mean.shape[1], dtype=torch.float64, generator=torch.Generator().manual_seed(7))
    rows = mean.expand(pairs, -1), variance.expand(pairs, -1), y.expand(pairs, *y.shape[1:])
    sampled = likelihood.expected_derivatives(*rows, torch.stack([z, -z]))
    for estimate, exact in zip(sampled, truth, strict=True):
        error = estimate.std(0) / math.sqrt(pairs)
        assert (5 * error < 0.005 * exact.norm()).all()
        assert ((estimate.mean(0) - exact).abs() <= 5 * error + 1e-8).all()
