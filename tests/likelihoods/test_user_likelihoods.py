"""A user's likelihood with nothing but log_prob trains, predicts and is scored."""

import math

import pytest
import torch
from torch import Tensor, nn

from autogp.likelihoods import Elementwise, Likelihood, Softmax


class Laplace(Likelihood):
    """One latent function: y - f has the density exp(-|r|) / 2."""

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        return -(y - f[..., 0]).abs() - math.log(2)


class Smooth(Likelihood):
    """One latent function: log cosh has all derivatives."""

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        r = y - f[..., 0]
        return -math.log(math.pi) - torch.logaddexp(r, -r) + math.log(2)  # 1 / (pi cosh r)


class Heteroscedastic(Likelihood):
    """Two latent functions, the mean and the log variance of y."""

    num_latents = 2

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        centre, log_variance = f.unbind(-1)
        return -0.5 * (math.log(2 * math.pi) + log_variance + (y - centre).square() * torch.exp(-log_variance))


class Linear(Likelihood):
    """A log density that is linear in f, through a parameter: its curvature is zero, not an error."""

    def __init__(self):
        super().__init__()
        self.slope = nn.Parameter(torch.tensor(2.0, dtype=torch.float64))

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        return self.slope * f[..., 0] * y


class LaplaceOutputs(Elementwise):
    """Any number of outputs, from the density of one."""

    def log_density(self, f: Tensor, y: Tensor) -> Tensor:
        return -(y - f).abs() - math.log(2)


ROWS = 6


def marginals(latents: int, *leading: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    mean = torch.randn(*leading, ROWS, latents, dtype=torch.float64, generator=generator)
    variance = 0.1 + 0.3 * torch.rand(*leading, ROWS, latents, dtype=torch.float64, generator=generator)
    y = torch.randn(ROWS, dtype=torch.float64, generator=generator)
    return mean, variance, y


def quadrature(likelihood: Likelihood, mean: Tensor, variance: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """log p on a fine grid [H, B] of one latent, and the log weights [H, 1]."""
    z = torch.linspace(-9, 9, 20_001, dtype=torch.float64)[:, None]
    f = mean[:, 0] + variance[:, 0].sqrt() * z
    return likelihood.log_prob(f[..., None], y), -0.5 * z.square() - 0.5 * math.log(2 * math.pi) + math.log(18 / 20_000)


@pytest.mark.parametrize(("likelihood", "tolerance"), [(Smooth(), 1e-6), (Laplace(), 5e-2)], ids=["smooth", "kink"])
def test_one_latent_gets_all_expectations(likelihood: Likelihood, tolerance: float):
    mean, variance, y = marginals(1)
    values, log_weights = quadrature(likelihood, mean, variance, y)
    for actual, expected in (
        (likelihood.expected_log_prob(mean, variance, y), (log_weights.exp() * values).sum(0)),
        (likelihood.log_expected_prob(mean, variance, y), torch.logsumexp(log_weights + values, 0)),
        (likelihood.log_expected_inverse_prob(mean, variance, y), torch.logsumexp(log_weights - values, 0)),
    ):
        assert actual.shape == (ROWS,)
        torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance)


def test_one_latent_gets_derivatives():
    likelihood = Smooth()
    mean, variance, y = marginals(1)
    z = torch.linspace(-9, 9, 20_001, dtype=torch.float64)[:, None, None]
    weights = torch.exp(-0.5 * z.square() - 0.5 * math.log(2 * math.pi)) * 18 / 20_000
    r = y[:, None] - mean - variance.sqrt() * z
    alpha, beta = likelihood.expected_derivatives(mean, variance, y)
    torch.testing.assert_close(alpha, (weights * r.tanh()).sum(0), rtol=0, atol=1e-6)
    torch.testing.assert_close(beta, -0.5 * (weights / r.cosh().square()).sum(0), rtol=0, atol=1e-5)
    noise = torch.randn(20_000, *mean.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for sampled, exact in zip(likelihood.expected_derivatives(mean, variance, y, noise), (alpha, beta), strict=True):
        assert sampled.shape == mean.shape
        torch.testing.assert_close(sampled, exact, rtol=0, atol=0.01)


def test_one_latent_predicts_f():
    mean, variance, _ = marginals(1, 2)
    weights = torch.tensor([0.25, 0.75], dtype=torch.float64)
    prediction = Laplace().predict(weights.log(), mean, variance)
    expected = (weights[:, None, None] * mean).sum(0)
    second = (weights[:, None, None] * (variance + mean.square())).sum(0)
    torch.testing.assert_close(prediction.mean, expected)
    torch.testing.assert_close(prediction.variance, second - expected.square())


def test_several_latents_get_all_expectations():
    likelihood = Heteroscedastic()
    mean, variance, y = marginals(2)
    mean = 0.5 * mean
    (m, s), (v, t) = mean.unbind(-1), variance.unbind(-1)
    precision = torch.exp(-s + t / 2)  # E[exp(-log variance)]
    expected = -0.5 * (math.log(2 * math.pi) + s + ((y - m).square() + v) * precision)
    torch.testing.assert_close(likelihood.expected_log_prob(mean, variance, y), expected, rtol=0, atol=1e-2)
    nodes = torch.linspace(-9, 9, 2001, dtype=torch.float64)[:, None]  # f is integrated in closed form
    noise = (s + t.sqrt() * nodes).exp()
    log_weights = -0.5 * nodes.square() - 0.5 * math.log(2 * math.pi) + math.log(18 / 2000)
    log_normal = torch.distributions.Normal(m, (noise + v).sqrt()).log_prob(y)
    predictive = torch.logsumexp(log_weights + log_normal, 0)
    torch.testing.assert_close(likelihood.log_expected_prob(mean, variance, y), predictive, rtol=0, atol=1e-2)
    assert torch.isposinf(likelihood.log_expected_inverse_prob(mean, variance, y)).all()  # as exp(exp(-s))
    assert (likelihood.log_expected_prob(mean, variance, y) > likelihood.expected_log_prob(mean, variance, y)).all()


@pytest.mark.parametrize("samples", [None, 200_000])
def test_several_latents_get_derivatives(samples: int | None):
    likelihood = Heteroscedastic()
    mean, variance, y = marginals(2)
    mean = 0.5 * mean
    (m, s), (v, t) = mean.unbind(-1), variance.unbind(-1)
    precision = torch.exp(-s + t / 2)
    square = (y - m).square() + v
    alpha = torch.stack([(y - m) * precision, -0.5 + 0.5 * square * precision], -1)
    beta = torch.stack([-0.5 * precision, -0.25 * square * precision], -1)
    generator = torch.Generator().manual_seed(1)
    noise = None if samples is None else torch.randn(samples, ROWS, 2, dtype=torch.float64, generator=generator)
    actual = likelihood.expected_derivatives(mean, variance, y, noise)
    for value, expected, tolerance in zip(actual, (alpha, beta), (0.02, 0.05), strict=True):
        torch.testing.assert_close(value, expected, rtol=tolerance, atol=tolerance)


def test_several_latents_predict():
    mean, variance, _ = marginals(2, 1)
    prediction = Heteroscedastic().predict(torch.zeros(1, dtype=torch.float64), mean, variance)
    torch.testing.assert_close(prediction.mean, mean[0], rtol=0, atol=1e-2)
    torch.testing.assert_close(prediction.variance, variance[0], rtol=2e-2, atol=0)


def test_linear_log_density_with_a_parameter_has_no_curvature():
    mean, variance, y = marginals(1)
    noise = torch.randn(3, *mean.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for samples in (None, noise):
        alpha, beta = Linear().expected_derivatives(mean, variance, y, samples)
        torch.testing.assert_close(alpha[:, 0], 2 * y)
        torch.testing.assert_close(beta, torch.zeros_like(beta), rtol=0, atol=1e-12)


def test_derivatives_work_where_gradients_are_off():
    mean, variance, y = marginals(1)
    with torch.no_grad():
        for noise in (None, torch.zeros(2, *mean.shape, dtype=torch.float64)):
            alpha, beta = Smooth().expected_derivatives(mean, variance, y, noise)
            assert not alpha.requires_grad
            assert not beta.requires_grad


def test_density_of_one_output_serves_several():
    likelihood = LaplaceOutputs(2)
    mean, variance, _ = marginals(2)
    y = likelihood.check_targets(torch.tensor([[0.0, math.nan]] * ROWS, dtype=torch.float64))
    one = LaplaceOutputs(1)
    for name in ("expected_log_prob", "log_expected_prob", "log_expected_inverse_prob"):
        whole = getattr(likelihood, name)(mean, variance, y)
        torch.testing.assert_close(whole, getattr(one, name)(mean[:, :1], variance[:, :1], y[:, :1]))
    assert likelihood.predict(torch.zeros(1), mean[None], variance[None]).mean.shape == (ROWS, 2)


def test_defaults_say_what_training_must_sample():
    assert Laplace().sampled == frozenset()
    assert Heteroscedastic().sampled == {"elbo", "loo", "predictive"}
    assert LaplaceOutputs(3).sampled == frozenset()
    assert not Laplace().finite_loo


@pytest.mark.parametrize("points", [None, 40])
def test_expected_curvature_is_minus_the_derivative_of_the_slope(points: int | None) -> None:
    generator = torch.Generator().manual_seed(0)
    mean, variance = torch.randn(5, 3, generator=generator).double(), torch.rand(5, 3, generator=generator).double()
    noise = None if points is None else torch.randn(points, 1, 3, dtype=torch.float64, generator=generator)
    y, likelihood = torch.tensor([0, 1, 2, 0, 1]), Softmax(3)

    def slope(mean: Tensor) -> Tensor:
        return likelihood.expected_derivatives(mean, variance, y, noise)[0]

    found, step = likelihood.expected_curvature(mean, variance, y, noise), 1e-5
    for column in range(3):
        away = step * torch.eye(3, dtype=torch.float64)[column]
        expected = -(slope(mean + away) - slope(mean - away)) / (2 * step)
        torch.testing.assert_close(found[..., column], expected, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(found, Likelihood.expected_curvature(likelihood, mean, variance, y, noise))
