"""Likelihoods of skewed, noisy, counted, shared and ordered targets against quadrature and draws."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, special, stats
from torch import Tensor

from autogp.likelihoods import (
    Beta,
    BoxCox,
    Gaussian,
    Heteroscedastic,
    Likelihood,
    NegativeBinomial,
    Ordinal,
    Poisson,
    ZeroInflated,
)

NORMAL = np.polynomial.hermite_e.hermegauss(200)  # nodes and weights for a standard normal
LEVELS = torch.tensor([0.05, 0.5, 0.95], dtype=torch.float64)


def row(*values: float) -> Tensor:
    return torch.tensor([values], dtype=torch.float64)


def box_cox(power: float) -> BoxCox:
    return BoxCox(variance=0.3, power=power, unit=3.0, spread=0.8)


@pytest.mark.parametrize(("power", "f"), [(1e-6, -0.5), (0.3, 0.4), (1.0, 1.0)])
def test_box_cox_density_integrates_to_the_probability_of_a_positive_target(power: float, f: float):
    likelihood = box_cox(power)

    def density(log_y: float) -> float:
        return math.exp(log_y + likelihood.log_prob(row(f), row(math.exp(log_y))).item())

    total = integrate.quad(density, -60, 15, points=[0, 1, 2], limit=500)[0]
    smallest = -1 / (power * 0.8)  # of the transformed targets
    assert total == pytest.approx(stats.norm.sf(smallest, f, math.sqrt(0.3)), abs=1e-6)


@pytest.mark.parametrize("power", [1e-8, 0.3, 1.0])
def test_box_cox_transform_and_inverse_undo_each_other(power: float):
    likelihood = box_cox(power)
    y = torch.tensor([[0.02], [3.0], [400.0]], dtype=torch.float64)
    w, log_slope = likelihood.transform(y.requires_grad_())
    torch.testing.assert_close(likelihood.inverse(w), y)
    torch.testing.assert_close(torch.autograd.grad(w.sum(), y)[0].log(), log_slope)


def test_box_cox_of_power_one_is_gaussian_noise_on_the_scale_of_y():
    likelihood = BoxCox(variance=0.3, power=1.0, unit=3.0, spread=0.8)  # w = (y / 3 - 1) / 0.8
    noise = Gaussian(variance=0.3 * 2.4**2)
    mean, variance, y = row(2.0), row(0.2), row(7.0)
    for name in ("expected_log_prob", "log_expected_prob", "log_expected_inverse_prob"):
        actual = getattr(likelihood, name)(mean, variance, y)
        expected = getattr(noise, name)(2.4 * mean + 3, 2.4**2 * variance, y)
        torch.testing.assert_close(actual, expected)


def test_box_cox_near_power_zero_is_log_normal():
    likelihood, spread = box_cox(1e-9), math.sqrt(0.5)
    log_normal = stats.lognorm(0.8 * spread, scale=3 * math.exp(0.8 * 0.4))
    expected, variance = likelihood.predictive_moments(row(0.4), row(0.2))
    assert expected.item() == pytest.approx(log_normal.mean(), rel=1e-6)
    assert variance.item() == pytest.approx(log_normal.var(), rel=1e-6)
    quantiles = likelihood.quantiles(torch.zeros(1), row(0.4)[None], row(0.2)[None], LEVELS)
    np.testing.assert_allclose(quantiles[:, 0, 0].detach(), log_normal.ppf(LEVELS), rtol=1e-6)


def test_box_cox_refuses_targets_that_are_not_positive():
    with pytest.raises(ValueError, match=r"-2 at row 1.*positive"):
        BoxCox().check_targets(torch.tensor([1.0, -2.0]))


def test_heteroscedastic_expectations_equal_quadrature():
    likelihood = Heteroscedastic(variance=0.7)
    mean, variance, y = row(0.3, -0.8), row(0.4, 0.6), row(1.5)
    nodes, weights = NORMAL
    f, g = 0.3 + math.sqrt(0.4) * nodes[:, None], -0.8 + math.sqrt(0.6) * nodes[None]
    density = stats.norm.pdf(1.5, f, np.sqrt(0.7 * np.exp(g)))
    both = weights[:, None] * weights[None] / (2 * math.pi)
    log_density = stats.norm.logpdf(1.5, f, np.sqrt(0.7 * np.exp(g)))
    assert likelihood.expected_log_prob(mean, variance, y).item() == pytest.approx((both * log_density).sum(), rel=1e-9)
    assert likelihood.log_expected_prob(mean, variance, y).item() == pytest.approx(
        math.log((both * density).sum()), abs=1e-6
    )
    centre, spread = likelihood.predictive_moments(mean, variance)
    assert centre.item() == 0.3
    assert spread.item() == pytest.approx(0.4 + 0.7 * (both * np.exp(g)).sum(), rel=1e-9)


def test_heteroscedastic_quantiles_have_their_levels():
    likelihood = Heteroscedastic(variance=0.7)
    log_weights = torch.tensor([0.3, 0.7], dtype=torch.float64).log()
    mean, variance = (
        torch.tensor([[[0.3, -0.8]], [[2.0, 1.0]]]).double(),
        torch.tensor([[[0.4, 0.6]], [[0.1, 0.2]]]).double(),
    )
    found = likelihood.quantiles(log_weights, mean, variance, LEVELS)[:, 0, 0].detach().numpy()
    for value, level in zip(found, LEVELS.tolist(), strict=True):
        below = 0.0
        for weight, (f, g), (vf, vg) in zip([0.3, 0.7], mean[:, 0].tolist(), variance[:, 0].tolist(), strict=True):
            noise = 0.7 * np.exp(g + math.sqrt(vg) * NORMAL[0])
            cdf = stats.norm.cdf(value, f, np.sqrt(vf + noise))
            below += weight * (NORMAL[1] * cdf).sum() / math.sqrt(2 * math.pi)
        assert below == pytest.approx(level, abs=1e-5)


@pytest.mark.parametrize("count", [0, 3, 400])
@pytest.mark.parametrize("variance", [0.05, 3.0])
def test_negative_binomial_expectations_equal_quadrature(count: int, variance: float):
    likelihood = NegativeBinomial(rate=2.0, dispersion=0.4)
    y = likelihood.check_targets(row(count))
    z = np.linspace(-130, 130, 1_000_001)
    step, u = z[1] - z[0], 0.5 + math.sqrt(variance) * z + math.log(0.8)  # log of dispersion times rate
    constant = special.gammaln(count + 2.5) - special.gammaln(2.5) - special.gammaln(count + 1)
    log_density = constant + count * u - (count + 2.5) * np.logaddexp(0, u)
    normal = stats.norm.logpdf(z)
    arguments = (row(0.5), row(variance), y)
    expected = (np.exp(normal) * log_density).sum() * step
    assert likelihood.expected_log_prob(*arguments).item() == pytest.approx(expected, rel=1e-4)
    for function, sign in ((likelihood.log_expected_prob, 1), (likelihood.log_expected_inverse_prob, -1)):
        if sign == -1 and count == 400 and variance > 1:
            continue  # its mass is 700 deviations away
        exponent = normal + sign * log_density
        value = exponent.max() + math.log(np.exp(exponent - exponent.max()).sum() * step)
        assert function(*arguments).item() == pytest.approx(value, abs=1e-6)


def test_negative_binomial_without_dispersion_is_poisson():
    y = Poisson().check_targets(row(4.0))
    arguments = (row(0.5), row(0.3), y)
    narrow = NegativeBinomial(dispersion=1e-8)
    torch.testing.assert_close(narrow.log_prob(row(0.5), y), Poisson().log_prob(row(0.5), y), atol=1e-6, rtol=0)
    torch.testing.assert_close(
        narrow.log_expected_prob(*arguments), Poisson().log_expected_prob(*arguments), atol=1e-6, rtol=0
    )


def integrals(log_density, mean: float, variance: float) -> tuple[float, float, float]:
    """E[log p], log E[p] and log E[1 / p] over f ~ N(mean, variance)."""
    z = np.linspace(-60, 60, 400_001)
    normal, values = stats.norm.logpdf(z) + math.log(z[1] - z[0]), log_density(mean + math.sqrt(variance) * z)
    return (
        float((np.exp(normal) * values).sum()),
        special.logsumexp(normal + values),
        special.logsumexp(normal - values),
    )


@pytest.mark.parametrize("count", [0, 3])
@pytest.mark.parametrize("variance", [0.05, 3.0])
def test_zero_inflated_expectations_equal_quadrature(count: int, variance: float):
    def log_density(f: np.ndarray) -> np.ndarray:
        """2.5 = 1 / dispersion, and 0.8 = dispersion times rate."""
        u = f + math.log(0.8)
        constant = special.gammaln(count + 2.5) - special.gammaln(2.5) - special.gammaln(count + 1)
        counted = constant + count * u - (count + 2.5) * np.logaddexp(0, u) - math.log(1.7)
        return np.logaddexp(counted, math.log(0.7 / 1.7)) if count == 0 else counted

    likelihood = ZeroInflated(rate=2.0, dispersion=0.4, odds=0.7)
    y = likelihood.check_targets(row(count))
    expected = integrals(log_density, 0.5, variance)
    names = ("expected_log_prob", "log_expected_prob", "log_expected_inverse_prob")
    for name, value in zip(names, expected, strict=True):
        assert getattr(likelihood, name)(row(0.5), row(variance), y).item() == pytest.approx(value, rel=1e-4)


@pytest.mark.parametrize("concentration", [0.5, 8.0, 3000.0])
@pytest.mark.parametrize("variance", [0.05, 3.0])
@pytest.mark.parametrize("y", [1e-4, 0.7])
def test_beta_expectations_equal_quadrature(concentration: float, variance: float, y: float):
    def log_density(f: np.ndarray) -> np.ndarray:
        a, b = (concentration * special.expit(side * (f + math.log(2))) for side in (1, -1))
        return (a - 1) * math.log(y) + (b - 1) * math.log1p(-y) - special.betaln(a, b)

    likelihood = Beta(odds=2.0, concentration=concentration)
    expected = integrals(log_density, 0.5, variance)
    for name, value in zip(
        ("expected_log_prob", "log_expected_prob", "log_expected_inverse_prob"), expected, strict=True
    ):
        assert getattr(likelihood, name)(row(0.5), row(variance), row(y)).item() == pytest.approx(value, rel=1e-5)


@pytest.mark.parametrize("label", [0, 1, 2])
@pytest.mark.parametrize(("mean", "variance"), [(0.5, 0.05), (-1.0, 0.7), (9.0, 0.3)])
def test_ordinal_expectations_equal_quadrature(label: int, mean: float, variance: float):
    likelihood = Ordinal(3, first_cut=-0.5, gaps=1.2, order=[1, 2, 0])  # label 2 is the lowest
    low, high = [(-0.5, 0.7), (0.7, math.inf), (-math.inf, -0.5)][label]

    def log_density(f: np.ndarray) -> np.ndarray:
        """log(Phi(b) - Phi(a)) from the side on which both are small."""
        a, b = low - f, high - f
        a, b = np.where(a + b > 0, -b, a), np.where(a + b > 0, -a, b)
        return special.log_ndtr(b) + np.log1p(-np.exp(special.log_ndtr(a) - special.log_ndtr(b)))

    y = torch.tensor([label])
    expected = integrals(log_density, mean, variance)
    for name, value in zip(
        ("expected_log_prob", "log_expected_prob", "log_expected_inverse_prob"), expected, strict=True
    ):
        assert getattr(likelihood, name)(row(mean), row(variance), y).item() == pytest.approx(
            value, rel=1e-6, abs=1e-10
        )
    probability = likelihood.predictive_moments(row(mean), row(variance))[0][0, label].item()
    assert probability == pytest.approx(math.exp(expected[1]), rel=1e-6)


@pytest.mark.parametrize("f", [-40.0, -3.0, 0.1, 60.0])
def test_ordinal_log_probabilities_have_their_digits_in_the_tails(f: float):
    likelihood = Ordinal(3, first_cut=0.0, gaps=1e-3)
    latent = torch.full((3, 1), f, dtype=torch.float64, requires_grad=True)
    found = likelihood.log_prob(latent, torch.arange(3))
    # The interval is so narrow that its probability is density times width, within 1e-6 / 24 of the second derivative.
    assert found[1].item() == pytest.approx(stats.norm.logpdf(f, 5e-4) + math.log(1e-3), abs=1e-3)
    assert found[0].item() == pytest.approx(stats.norm.logcdf(-f), rel=1e-12, abs=1e-300)
    assert found[2].item() == pytest.approx(stats.norm.logcdf(f - 1e-3), rel=1e-12, abs=1e-300)
    (slope,) = torch.autograd.grad(found[1], latent)
    assert slope[1].item() == pytest.approx(5e-4 - f, rel=1e-3)


def test_ordinal_leave_one_out_is_infinite_from_the_variance_of_its_noise_on():
    values = Ordinal(3).log_expected_inverse_prob(
        torch.zeros(2, 1, dtype=torch.float64),
        torch.tensor([[0.98], [1.02]], dtype=torch.float64),
        torch.zeros(2, dtype=torch.int64),
    )
    assert torch.isinf(values).tolist() == [False, True]


def test_ordinal_draws_have_the_probabilities_that_are_predicted():
    likelihood = Ordinal(4, first_cut=-0.4, gaps=torch.tensor([0.9, 0.3]), order=[2, 0, 3, 1])
    f = torch.full((200_000, 1, 1), 0.2, dtype=torch.float64)
    drawn = likelihood.sample(f, torch.Generator().manual_seed(0))[:, 0]
    shares = torch.bincount(drawn, minlength=4) / len(drawn)
    expected = likelihood.conditional_moments(f[0])[0][0].detach()
    assert ((shares - expected).abs() < 5 * (expected * (1 - expected) / len(drawn)).sqrt()).all()


@pytest.mark.parametrize(
    "likelihood",
    [
        Beta(odds=2.0, concentration=5.0),
        box_cox(0.3),
        Heteroscedastic(variance=0.7),
        NegativeBinomial(rate=2.0, dispersion=0.4),
        ZeroInflated(rate=2.0, dispersion=0.4, odds=0.7),
    ],
)
def test_draws_have_the_moments_that_are_predicted(likelihood: Likelihood):
    generator = torch.Generator().manual_seed(0)
    mean = torch.full((1, likelihood.num_latents), 0.3, dtype=torch.float64)
    variance = torch.full_like(mean, 0.2)
    count = 400_000
    noise = torch.randn(count, *mean.shape, dtype=torch.float64, generator=generator)
    y = likelihood.sample(mean + variance.sqrt() * noise, generator).detach()
    expected, spread = (moment.item() for moment in likelihood.predictive_moments(mean, variance))
    assert abs(y.mean().item() - expected) < 5 * math.sqrt(spread / count)
    assert y.var().item() == pytest.approx(spread, rel=0.05)
