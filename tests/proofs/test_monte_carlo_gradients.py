"""The Monte Carlo gradients of the paper: unbiased, and with far less variance than the score function's."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from autogp.likelihoods import Gaussian, Likelihood, Network, Softmax

# y - mean, variance of q(f), variance of the noise
GAUSSIANS = [(0.7, 0.3, 0.5), (0.0, 1.0, 0.1), (2.0, 0.05, 0.1), (1.0, 1.0, 1.0)]
SAMPLES = 4_000_000


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def problem(kind: str) -> tuple[Likelihood, Tensor, Tensor, Tensor]:
    """A likelihood, the means and variances [1, Q] of q(f), and one target."""
    likelihood, y = {
        "gaussian": (Gaussian(2, variance=torch.tensor([0.5, 2.0], dtype=torch.float64)), torch.tensor([[1.1, -0.4]])),
        "softmax": (Softmax(3), torch.tensor([1])),
        "network": (Network(2, variance=torch.tensor([0.5, 1.0], dtype=torch.float64)), torch.tensor([[-3.0, 0.3]])),
    }[kind]
    y = y.double() if y.is_floating_point() else y
    return likelihood, normal(1, likelihood.num_latents), 0.1 + 0.3 * normal(1, likelihood.num_latents).sigmoid(), y


def exact(kind: str, mean: Tensor, variance: Tensor, y: Tensor, likelihood: Likelihood) -> Tensor:
    """The expected log likelihood [B], as a differentiable function of the marginals."""
    if kind != "softmax":
        return likelihood.expected_log_prob(mean, variance, y)
    z, weights = (torch.from_numpy(part) for part in np.polynomial.hermite_e.hermegauss(30))
    weights = torch.cartesian_prod(*[weights / math.sqrt(2 * math.pi)] * 3).prod(-1)[:, None]
    log_p = torch.log_softmax(mean + variance.sqrt() * torch.cartesian_prod(z, z, z)[:, None], -1)[..., y[0]]
    return (weights * log_p).sum(0)


def estimates(likelihood: Likelihood, mean: Tensor, variance: Tensor, y: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
    """Values [N], gradients with respect to mean and variance [N, Q], of N estimates from noise [S, N, Q]."""
    rows = noise.shape[1]
    mean = mean.expand(rows, -1).clone().requires_grad_()
    variance = variance.expand(rows, -1).clone().requires_grad_()
    values = likelihood.expected_log_prob(mean, variance, y.expand(rows, *y.shape[1:]), noise)
    return values.detach(), *torch.autograd.grad(values.sum(), (mean, variance))


def assert_unbiased(samples: Tensor, truth: Tensor) -> None:
    """|z| < 5, with standard errors that would show a bias of 0.5 % of the truth's length."""
    error = samples.std(0) / math.sqrt(len(samples))
    assert (5 * error < 0.005 * truth.norm()).all()
    assert ((samples.mean(0) - truth).abs() <= 5 * error + 1e-12).all()


@pytest.mark.parametrize("kind", ["gaussian", "softmax", "network"])
def test_sampled_expected_log_likelihood_and_its_gradients_are_unbiased(kind: str):
    likelihood, mean, variance, y = problem(kind)
    q = mean.clone().requires_grad_(), variance.clone().requires_grad_()
    value = exact(kind, *q, y, likelihood)
    truth = (value.detach()[0], *(part[0] for part in torch.autograd.grad(value.sum(), q)))
    parts = []
    for seed in range(2):
        z = normal(1_000_000, likelihood.num_latents, seed=1 + seed)
        # Antithetic pairs: unbiased if and only if single samples are, with smaller errors.
        parts.append(estimates(likelihood, mean, variance, y, torch.stack([z, -z])))
    for samples, expected in zip(zip(*parts, strict=True), truth, strict=True):
        assert_unbiased(torch.cat(samples), expected)


def test_softmax_gradients_without_antithetic_pairs_are_unbiased():
    likelihood, mean, variance, y = problem("softmax")
    q = mean.clone().requires_grad_(), variance.clone().requires_grad_()
    truth = torch.autograd.grad(exact("softmax", *q, y, likelihood).sum(), q)
    _, slope, _ = estimates(likelihood, mean, variance, y, normal(1, 1_000_000, 3, seed=2))
    assert_unbiased(slope, truth[0][0])


def test_parameters_of_the_noise_have_unbiased_gradients():
    likelihood, mean, variance, y = problem("network")
    (truth,) = torch.autograd.grad(likelihood.expected_log_prob(mean, variance, y).sum(), likelihood.log_variance)
    # 100 groups of 32,000 antithetic pairs; each group is one estimate
    groups = []
    for seed in range(100):
        z = normal(32_000, 1, likelihood.num_latents, seed=100 + seed)
        value = likelihood.expected_log_prob(mean, variance, y, torch.cat([z, -z]))
        groups.append(torch.autograd.grad(value.sum(), likelihood.log_variance)[0])
    assert_unbiased(torch.stack(groups), truth)


def gaussian_samples(distance: float, variance: float, noise: float) -> tuple[Likelihood, list[Tensor], Tensor]:
    """A Gaussian likelihood, (mean, variance, y) of one row, and standard normal draws [1, N, 1]."""
    row = [torch.tensor([[value]], dtype=torch.float64) for value in (0.4, variance, 0.4 + distance)]
    return Gaussian(variance=noise), row, normal(1, SAMPLES, 1, seed=3)


@pytest.mark.parametrize(("distance", "variance", "noise"), GAUSSIANS)
def test_variances_of_both_estimators_of_the_gradient_are_those_of_the_formulas(distance, variance, noise):
    """With f = m + sd e and d = y - m, log p = A + B e + C e^2, and all moments of e are known.

    Reparameterised: (d - sd e) / s2 for the mean, times e / (2 sd) for the variance.
    Score function: e / sd log p for the mean, (e^2 - 1) / (2 v) log p for the variance.
    """
    likelihood, (mean, v, y), e = gaussian_samples(distance, variance, noise)
    sd = math.sqrt(variance)
    a = -0.5 * math.log(2 * math.pi * noise) - 0.5 * distance**2 / noise
    b = distance * sd / noise
    c = -0.5 * variance / noise
    slope, curvature = distance / noise, -0.5 / noise  # the true gradients

    _, by_mean, by_variance = estimates(likelihood, mean, v, y, e)
    e = e[0]
    log_p = likelihood.log_prob(mean + sd * e, y.expand(SAMPLES, 1)).detach()[:, None]
    score_mean, score_variance = e / sd * log_p, (e.square() - 1) / (2 * variance) * log_p

    formulas = {
        "mean": variance / noise**2,
        "variance": (distance**2 + 2 * variance) / (4 * variance * noise**2),
        "score mean": (a**2 + 3 * (b**2 + 2 * a * c) + 15 * c**2) / variance - slope**2,
        "score variance": (2 * a**2 + 10 * (b**2 + 2 * a * c) + 78 * c**2) / (4 * variance**2) - curvature**2,
    }
    measured = {
        "mean": by_mean,
        "variance": by_variance,
        "score mean": score_mean,
        "score variance": score_variance,
    }
    for name, samples in measured.items():
        truth = slope if name.endswith("mean") else curvature
        error = samples.std().item() / math.sqrt(SAMPLES)
        assert abs(samples.mean().item() - truth) < 5 * error, name
        assert samples.var().item() == pytest.approx(formulas[name], rel=0.02), name
    for name in ("mean", "variance"):
        ratio = measured["score " + name].var().item() / measured[name].var().item()
        assert ratio == pytest.approx(formulas["score " + name] / formulas[name], rel=0.03)
        assert ratio > 2


def test_score_function_suffers_most_where_q_is_narrow():
    """Its variance grows as A^2 / v while the reparameterised one's falls as v / s4: by the formulas, 1 / v^2."""
    ratios = []
    for variance in (0.1, 0.01):
        likelihood, (mean, v, y), e = gaussian_samples(1.0, variance, 0.5)
        _, by_mean, _ = estimates(likelihood, mean, v, y, e[:, :400_000])
        e = e[0, :400_000]
        log_p = likelihood.log_prob(mean + math.sqrt(variance) * e, y.expand(len(e), 1)).detach()[:, None]
        ratios.append((e / math.sqrt(variance) * log_p).var().item() / by_mean.var().item())
    assert ratios[1] / ratios[0] > 50
    assert ratios[1] > 1000


@pytest.mark.parametrize("kind", ["gaussian", "softmax", "network"])
def test_variance_of_the_gradient_falls_with_the_number_of_samples(kind: str):
    likelihood, mean, variance, y = problem(kind)
    one = estimates(likelihood, mean, variance, y, normal(1, 400_000, likelihood.num_latents, seed=4))
    many = estimates(likelihood, mean, variance, y, normal(16, 60_000, likelihood.num_latents, seed=5))
    for single, average in zip(one, many, strict=True):
        torch.testing.assert_close(16 * average.var(0), single.var(0), rtol=0.05, atol=0)


def test_price_gives_the_gaussian_its_curvature_without_noise():
    likelihood, mean, variance, y = problem("gaussian")
    noise = normal(1, 50, 2, seed=6)
    _, beta = likelihood.expected_derivatives(mean.expand(50, -1), variance.expand(50, -1), y.expand(50, -1), noise)
    torch.testing.assert_close(beta, (-0.5 / likelihood.variance.detach()).expand(50, 2), rtol=1e-12, atol=0)
    _, _, through = estimates(likelihood, mean, variance, y, noise)
    assert (through.var(0) > 0.05).all()


@pytest.mark.parametrize(("classes", "width", "factor"), [(3, 0.1, 1000), (10, 0.1, 1000), (10, 1.0, 20), (10, 5.0, 4)])
def test_price_has_less_variance_than_differentiating_through_samples_of_softmax(classes, width, factor):
    """The narrower q, the more: the latter divides by its standard deviation."""
    rows = 100_000
    likelihood = Softmax(classes)
    mean, variance = normal(1, classes, seed=7), torch.full((1, classes), width, dtype=torch.float64)
    y, noise = torch.tensor([1]), normal(1, rows, classes, seed=8)
    _, slope, through = estimates(likelihood, mean, variance, y, noise)
    alpha, beta = likelihood.expected_derivatives(
        mean.expand(rows, -1), variance.expand(rows, -1), y.expand(rows), noise
    )
    torch.testing.assert_close(alpha, slope)  # for the mean they are one
    error = (through.var(0) + beta.var(0)).div(rows).sqrt()
    assert ((through.mean(0) - beta.mean(0)).abs() < 5 * error).all()
    assert through.var(0).sum() > factor * beta.var(0).sum()


def test_score_function_has_far_more_variance_for_softmax_and_network():
    for kind, factor in (("softmax", 1000), ("network", 5)):
        likelihood, mean, variance, y = problem(kind)
        noise = normal(1, 200_000, likelihood.num_latents, seed=9)
        _, slope, _ = estimates(likelihood, mean, variance, y, noise)
        f = mean + variance.sqrt() * noise[0]
        log_p = likelihood.log_prob(f, y.expand(len(f), *y.shape[1:])).detach()[:, None]
        score = noise[0] / variance.sqrt() * log_p
        error = (slope.var(0) + score.var(0)).div(len(f)).sqrt()
        assert ((slope.mean(0) - score.mean(0)).abs() < 5 * error).all()
        assert score.var(0).sum() > factor * slope.var(0).sum()
