"""The regression network against simulation, and a test for each thing that the authors' code gets wrong."""

import math

import pytest
import torch
from scipy import integrate, stats
from torch import Tensor

from autogp.likelihoods import Bernoulli, Gaussian, Network, Poisson, Softmax, StudentT

SIZES = [(1, 1), (1, 3), (7, 1), (7, 3)]  # outputs, nodes


def signal(network: Network, f: Tensor) -> Tensor:
    """sum_j W_ij g_j, [N, P], one term after the other: f holds W row by row, then g."""
    outputs, nodes = network.num_outputs, network.num_nodes
    columns = []
    for i in range(outputs):
        terms = [f[:, i * nodes + j] * f[:, outputs * nodes + j] for j in range(nodes)]
        columns.append(torch.stack(terms).sum(0))
    return torch.stack(columns, 1)


def problem(outputs: int, nodes: int) -> tuple[Network, Tensor, Tensor, Tensor]:
    """A network, the means and variances [1, Q] of its latents, and a target [1, P]."""
    generator = torch.Generator().manual_seed(outputs + 10 * nodes)
    network = Network(outputs, nodes, variance=torch.linspace(0.3, 2.0, outputs, dtype=torch.float64))
    latents = nodes * (outputs + 1)
    mean = torch.randn(1, latents, dtype=torch.float64, generator=generator)
    variance = 0.05 + 0.3 * torch.rand(1, latents, dtype=torch.float64, generator=generator)
    noise = network.variance.detach().sqrt() * torch.randn(1, outputs, dtype=torch.float64, generator=generator)
    return network, mean, variance, signal(network, mean) + noise


def draws(mean: Tensor, variance: Tensor, count: int, seed: int = 0) -> Tensor:
    """Antithetic pairs of latent values [2, count, Q]."""
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(count, mean.shape[1], dtype=torch.float64, generator=generator)
    return mean + variance.sqrt() * torch.stack([z, -z])


def assert_mean(samples: Tensor, expected: Tensor, scale: Tensor | float) -> None:
    """|z| < 5 for the mean of independent rows, with errors that show 0.5 % of the scale."""
    error = samples.std(0) / math.sqrt(len(samples))
    assert (5 * error < 0.005 * scale).all()
    assert ((samples.mean(0) - expected).abs() < 5 * error + 1e-12).all()


@pytest.mark.parametrize(("outputs", "nodes"), SIZES)
def test_moments_are_those_of_simulated_outputs(outputs: int, nodes: int):
    network, mean, variance, _ = problem(outputs, nodes)
    expected, spread = (part.detach()[0] for part in network.predictive_moments(mean, variance))
    pairs = draws(mean, variance, 400_000)
    simulated = torch.stack([signal(network, f) for f in pairs])  # [2, N, P]
    assert_mean(simulated.mean(0), expected, spread.sqrt())
    assert_mean((simulated - expected).square().mean(0) + network.variance.detach(), spread, 2 * spread)


@pytest.mark.parametrize(("outputs", "nodes"), SIZES)
def test_closed_form_of_the_expected_log_likelihood(outputs: int, nodes: int):
    network, mean, variance, y = problem(outputs, nodes)
    noise = network.variance.detach()
    log_p = torch.stack(
        [
            torch.distributions.Normal(signal(network, f), noise.sqrt()).log_prob(y).sum(-1)
            for f in draws(mean, variance, 2_000_000 if outputs == 1 else 300_000, seed=1)
        ]
    ).mean(0)
    actual = network.expected_log_prob(mean, variance, y).detach()
    assert_mean(log_p[:, None], actual, actual.abs())


def predictive_by_quadrature(network: Network, mean: Tensor, variance: Tensor, y: Tensor) -> float:
    """log p(y) for one node: given g the outputs are N(mu_w g, v_w g^2 + s2), and g is integrated adaptively."""
    w, v = mean[0, :-1].numpy(), variance[0, :-1].numpy()
    noise, target = network.variance.detach().numpy(), y[0].numpy()
    centre, sd = mean[0, -1].item(), math.sqrt(variance[0, -1].item())

    def integrand(g: float) -> float:
        log_p = -0.5 * ((target - w * g) ** 2 / (v * g**2 + noise)).sum()
        scale = ((2 * math.pi * (v * g**2 + noise)) ** 0.5).prod()
        return math.exp(log_p) / scale * math.exp(-0.5 * ((g - centre) / sd) ** 2) / (sd * math.sqrt(2 * math.pi))

    return math.log(integrate.quad(integrand, centre - 10 * sd, centre + 10 * sd, epsabs=0, epsrel=1e-9, limit=500)[0])


@pytest.mark.parametrize("noise", [1.0, 0.1, 0.01])
@pytest.mark.parametrize("outputs", [1, 7])
def test_predictive_density_of_one_node(outputs: int, noise: float):
    """At targets drawn from the model; Monte Carlo over all latents would need millions of samples at noise 0.01."""
    _, mean, variance, _ = problem(outputs, 1)
    network = Network(outputs, 1, variance=noise)
    for seed in range(4):
        y = signal(network, draws(mean, variance, 1, seed=seed)[0])
        expected = predictive_by_quadrature(network, mean, variance, y)
        assert network.log_expected_prob(mean, variance, y).item() == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize(("outputs", "nodes"), SIZES)
def test_predictive_density_is_the_average_density_of_simulated_latents(outputs: int, nodes: int):
    network, mean, variance, y = problem(outputs, nodes)
    noise = network.variance.detach()
    p = torch.stack(
        [
            torch.distributions.Normal(signal(network, f), noise.sqrt()).log_prob(y).sum(-1).exp()
            for f in draws(mean, variance, 400_000, seed=2)
        ]
    ).mean(0)
    error = p.std().item() / math.sqrt(len(p))
    actual = network.log_expected_prob(mean, variance, y).exp().item()
    assert 5 * error < 0.02 * actual
    assert abs(p.mean().item() - actual) < 5 * error + 0.01 * actual  # 512 Sobol points


@pytest.mark.parametrize(("outputs", "nodes"), SIZES)
def test_certain_nodes_make_a_linear_model_with_gaussian_outputs(outputs: int, nodes: int):
    network, mean, variance, y = problem(outputs, nodes)
    variance[:, outputs * nodes :] = 0
    g = mean[0, outputs * nodes :]
    spread = (variance[0, : outputs * nodes].reshape(outputs, nodes) * g.square()).sum(-1) + network.variance.detach()
    expected = torch.distributions.Normal(signal(network, mean)[0], spread.sqrt()).log_prob(y[0]).sum()
    torch.testing.assert_close(network.log_expected_prob(mean, variance, y)[0].detach(), expected)
    torch.testing.assert_close(network.predictive_moments(mean, variance)[1][0].detach(), spread)


def test_noise_is_learnt_as_the_expected_squared_residual():
    """The expected log likelihood is stationary in each variance at E[(y_i - sum_j W_ij g_j)^2]."""
    network, mean, variance, y = problem(7, 3)
    expected, total = (part.detach() for part in network.predictive_moments(mean, variance))
    best = (y - expected).square() + total - network.variance.detach()
    tuned = Network(7, 3, variance=best[0])
    (gradient,) = torch.autograd.grad(tuned.expected_log_prob(mean, variance, y).sum(), tuned.log_variance)
    assert gradient.abs().max() < 1e-10


def test_expected_log_likelihood_by_sobol_points_agrees_with_the_closed_form():
    """What a user's likelihood with the same log_prob would get."""
    network, mean, variance, y = problem(1, 1)
    plain = super(Network, network).expected_log_prob(mean, variance, y).item()
    assert plain == pytest.approx(network.expected_log_prob(mean, variance, y).item(), abs=0.01)


# What the authors' code gets wrong


def test_density_sums_the_logarithms_of_the_variances():
    variances = [0.01, 1.0, 100.0]
    network = Network(3, variance=torch.tensor(variances, dtype=torch.float64))
    f = torch.tensor([[1.0, 2.0, 3.0, 0.5]], dtype=torch.float64)  # W = (1, 2, 3), g = 0.5
    y = torch.tensor([[0.5, 1.0, 1.5]], dtype=torch.float64)  # on the signal
    at_the_mode = -1.5 * math.log(2 * math.pi) - 0.5 * sum(math.log(v) for v in variances)
    assert network.log_prob(f, y).item() == pytest.approx(at_the_mode, rel=1e-12)
    away = y + torch.tensor([[0.1, -2.0, 7.0]], dtype=torch.float64)
    expected = sum(stats.norm.logpdf(r, 0, math.sqrt(v)) for r, v in zip((0.1, -2.0, 7.0), variances, strict=True))
    assert network.log_prob(f, away).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("variances", [(0.01, 4.0), (0.3, 0.3)])
def test_density_of_two_outputs_integrates_to_one(variances: tuple[float, float]):
    network = Network(2, num_nodes=2, variance=torch.tensor(variances, dtype=torch.float64))
    f = torch.tensor([[1.0, -0.5, 0.3, 2.0, 0.7, -1.1]], dtype=torch.float64)
    centre = signal(network, f)[0]
    steps = [torch.linspace(-9, 9, 400, dtype=torch.float64) * math.sqrt(v) for v in variances]
    grid = torch.cartesian_prod(*steps) + centre
    area = math.prod((step[1] - step[0]).item() for step in steps)
    assert network.log_prob(f, grid).exp().sum().item() * area == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize(("outputs", "nodes"), SIZES)
def test_predicted_variance_is_not_the_mean(outputs: int, nodes: int):
    network, mean, variance, _ = problem(outputs, nodes)
    prediction = network.predict(torch.zeros(1, dtype=torch.float64), mean[None], variance[None])
    assert prediction.mean.shape == prediction.variance.shape == (1, outputs)
    assert (prediction.variance > network.variance).all()  # at least the noise
    assert ((prediction.variance - prediction.mean).abs() > 0.01).all()
    certain = network.predict(torch.zeros(1, dtype=torch.float64), mean[None], torch.zeros_like(variance)[None])
    torch.testing.assert_close(certain.mean, signal(network, mean))
    torch.testing.assert_close(certain.variance[0], network.variance)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_negative_log_predictive_density_is_a_number_for_every_likelihood(dtype):
    generator = torch.Generator().manual_seed(0)
    for likelihood, y in (
        (Network(7, 1, variance=0.1), torch.randn(20, 7, generator=generator)),
        (Network(2, 3, variance=0.1), torch.randn(20, 2, generator=generator)),
        (Gaussian(variance=0.1), torch.randn(20, generator=generator)),
        (StudentT(scale=0.1), torch.randn(20, generator=generator)),
        (Poisson(), torch.arange(20)),
        (Bernoulli(), torch.arange(20) % 2),
        (Bernoulli(link="probit"), torch.arange(20) % 2),
        (Softmax(10), torch.arange(20) % 10),
    ):
        y = likelihood.check_targets(y)
        y = y.to(dtype) if y.is_floating_point() else y
        mean = torch.randn(20, likelihood.num_latents, generator=generator).to(dtype)
        variance = 0.1 + torch.rand(20, likelihood.num_latents, generator=generator).to(dtype)
        score = -likelihood.log_expected_prob(mean, variance, y)
        assert score.shape == (20,)
        assert torch.isfinite(score).all()
        assert (score < -likelihood.expected_log_prob(mean, variance, y)).all()  # Jensen


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_logistic_function_does_not_overflow(dtype):
    f = torch.tensor([[-1e4], [-1e2], [1e2], [1e4]], dtype=dtype, requires_grad=True)
    value = Bernoulli().log_prob(f, torch.ones(4, 1, dtype=dtype))
    (slope,) = torch.autograd.grad(value.sum(), f)
    assert value.tolist() == pytest.approx([-1e4, -1e2, 0, 0], abs=1e-12)
    assert slope[:, 0].tolist() == pytest.approx([1, 1, 0, 0], abs=1e-12)
