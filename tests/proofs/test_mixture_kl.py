"""The divergence of a mixture from the prior: exact for one component, an upper bound for several."""

import math

import pytest
import torch
from torch import Tensor
from torch.distributions import Independent, MultivariateNormal, Normal, kl_divergence

from autogp import Posterior
from autogp.moments import Moments
from autogp.posteriors import Held

SAMPLES = 40_000


def mixture(components: int, diagonal: bool, seed: int, latents: int = 2, inducing: int = 4) -> Posterior:
    """A random mixture; the seed also decides how far its components are apart and how narrow they are."""
    generator = torch.Generator().manual_seed(seed)
    posterior = Posterior(latents, inducing, components, diagonal)
    apart, narrow = [(0.3, -0.7), (1.0, -1.0), (3.0, -1.5)][seed % 3]
    with torch.no_grad():
        for parameter in posterior.parameters():
            parameter.copy_(torch.randn(parameter.shape, dtype=torch.float64, generator=generator))
        posterior.mean.mul_(apart)
        posterior.log_scale.mul_(0.4).add_(narrow)
        if posterior.upper is not None:
            posterior.upper.mul_(0.3)
    return posterior


def moments(posterior: Posterior) -> Moments:
    return posterior.moments(torch.eye(posterior.mean.shape[-1], dtype=torch.float64)[None])


def components_of(posterior: Posterior) -> MultivariateNormal:
    """Batch of the components [K, Q], built from the parameters without the library."""
    root = torch.diag_embed(posterior.log_scale.exp())
    if posterior.upper is not None:
        root = root + posterior.upper.triu(1)
    return MultivariateNormal(posterior.mean, root @ root.mT)


def prior_of(posterior: Posterior) -> Independent:
    return Independent(Normal(torch.zeros_like(posterior.mean[0, 0]), 1.0), 1)


@torch.no_grad()
def monte_carlo(posterior: Posterior, seed: int) -> tuple[float, float]:
    """KL(q || p) and its standard error, by as many samples from each component, weighted by pi.

    KL(q || p) = sum_k pi_k (KL(q_k || p) + E_k[log q - log q_k]): what is sampled hardly varies.
    """
    generator = torch.Generator().manual_seed(seed)
    parts, log_pi = components_of(posterior), torch.log_softmax(posterior.logits, 0)
    means, variances = [], []
    for k in range(len(log_pi)):
        noise = torch.randn(SAMPLES, *posterior.mean.shape[1:], 1, dtype=torch.float64, generator=generator)
        v = posterior.mean[k] + (parts.scale_tril[k] @ noise).squeeze(-1)  # [S, Q, M]
        log_parts = parts.log_prob(v[:, None]).sum(-1)  # [S, K]
        values = torch.logsumexp(log_pi + log_parts, -1) - log_parts[:, k]
        means.append(values.mean())
        variances.append(values.var() / SAMPLES)
    pi = log_pi.exp()
    value = convexity(posterior) + (pi * torch.stack(means)).sum()
    return value.item(), (pi.square() * torch.stack(variances)).sum().sqrt().item()


def convexity(posterior: Posterior) -> Tensor:
    """sum_k pi_k KL(q_k || p)."""
    pi = torch.softmax(posterior.logits, 0)
    return (pi * kl_divergence(components_of(posterior), _wide(posterior)).sum(-1)).sum()


def jensen(posterior: Posterior) -> Tensor:
    """sum_k pi_k log sum_l pi_l N(m_k; m_l, S_k + S_l) - sum_k pi_k [log N(m_k; 0, I) - tr S_k / 2]: the paper's."""
    parts, pi = components_of(posterior), torch.softmax(posterior.logits, 0)
    covariance = parts.covariance_matrix
    total = torch.zeros((), dtype=torch.float64)
    for k in range(len(pi)):
        overlaps = torch.stack(
            [
                MultivariateNormal(posterior.mean[other], covariance[k] + covariance[other]).log_prob(posterior.mean[k])
                for other in range(len(pi))
            ]
        ).sum(-1)
        trace = torch.diagonal(covariance[k], dim1=-2, dim2=-1).sum()
        cross = prior_of(posterior).log_prob(posterior.mean[k]).sum() - 0.5 * trace
        total = total + pi[k] * (torch.logsumexp(pi.log() + overlaps, 0) - cross)
    return total


def _wide(posterior: Posterior) -> MultivariateNormal:
    size = posterior.mean.shape[-1]
    return MultivariateNormal(torch.zeros(size, dtype=torch.float64), torch.eye(size, dtype=torch.float64))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("diagonal", [False, True])
@pytest.mark.parametrize("components", [1, 2, 5])
def test_kl_is_not_below_the_divergence_by_sampling(components, diagonal, seed):
    posterior = mixture(components, diagonal, seed)
    expected, error = monte_carlo(posterior, seed)
    assert error < 0.001 * expected  # a bias of half a per cent would be seen
    assert moments(posterior).kl().item() >= expected - 5 * error - 1e-9


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("diagonal", [False, True])
def test_kl_of_one_component_is_exact(diagonal, seed):
    posterior = mixture(1, diagonal, seed)
    exact = kl_divergence(components_of(posterior), _wide(posterior)).sum().item()
    assert moments(posterior).kl().item() == pytest.approx(exact, rel=1e-10)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("diagonal", [False, True])
@pytest.mark.parametrize("components", [2, 5])
def test_kl_is_the_smaller_of_the_two_bounds(components, diagonal, seed):
    posterior = mixture(components, diagonal, seed)
    expected = min(convexity(posterior).item(), jensen(posterior).item())
    assert moments(posterior).kl().item() == pytest.approx(expected, rel=1e-10)


def test_each_bound_is_the_smaller_one_somewhere():
    """Far apart components have K times the volume, which Jensen sees; close ones are one, which convexity sees."""
    apart, close = (mixture(5, False, 0, latents=1, inducing=3) for _ in range(2))
    with torch.no_grad():
        apart.mean.copy_(4 * torch.arange(5.0, dtype=torch.float64)[:, None, None].expand(5, 1, 3))
        apart.logits.zero_()
    assert jensen(apart) < convexity(apart) - 0.5
    assert convexity(close) < jensen(close) - 0.1
    for posterior, bound in ((apart, jensen), (close, convexity)):
        assert moments(posterior).kl().item() == pytest.approx(bound(posterior).item(), rel=1e-12)
        expected, error = monte_carlo(posterior, 0)
        assert expected - 5 * error <= moments(posterior).kl().item() < expected + 1


def test_jensens_bound_of_one_component_is_off_by_a_constant_that_kl_does_not_pay():
    posterior = mixture(1, False, 1)
    gap = 0.5 * posterior.mean.numel() * (1 - math.log(2))
    assert (jensen(posterior) - moments(posterior).kl()).item() == pytest.approx(gap, rel=1e-10)


@pytest.mark.parametrize("diagonal", [False, True])
@pytest.mark.parametrize("components", [2, 5])
def test_kl_of_equal_components_is_that_of_one(components, diagonal):
    single, several = mixture(1, diagonal, 1), mixture(components, diagonal, 1)
    with torch.no_grad():
        for name, parameter in several.named_parameters():
            if name != "logits":
                parameter.copy_(single.get_parameter(name).expand_as(parameter))
    assert moments(several).kl().item() == pytest.approx(moments(single).kl().item(), rel=1e-12)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("diagonal", [False, True])
@pytest.mark.parametrize("components", [1, 2, 5])
def test_gradients_of_kl_are_those_of_the_smaller_bound(components, diagonal, seed):
    posterior = mixture(components, diagonal, seed)
    parameters = list(posterior.parameters())
    found = torch.autograd.grad(moments(posterior).kl(), parameters)
    bound = min((convexity, jensen), key=lambda function: function(posterior).item())
    expected = torch.autograd.grad(bound(posterior), parameters)
    for one, other in zip(found, expected, strict=True):
        assert torch.isfinite(one).all()
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("scale", [-30.0, 0.0, 30.0])
@pytest.mark.parametrize("diagonal", [False, True])
def test_kl_and_its_gradients_are_finite_for_extreme_scales_and_weights(diagonal, scale):
    posterior = mixture(3, diagonal, 1)
    with torch.no_grad():
        posterior.log_scale.add_(scale)
        if posterior.upper is not None:
            posterior.upper.mul_(math.exp(scale))
        posterior.logits.copy_(torch.tensor([0.0, -40.0, 40.0]))
    value = moments(posterior).kl()
    assert torch.isfinite(value)
    assert all(torch.isfinite(slope).all() for slope in torch.autograd.grad(value, list(posterior.parameters())))


@pytest.mark.parametrize("components", [1, 3])
@pytest.mark.parametrize("diagonal", [False, True])
def test_kl_of_q_of_u_is_that_of_q_of_v(components, diagonal):
    """KL(q(u) || N(0, L L')) = KL(q(v) || N(0, I)): a divergence does not change with coordinates."""
    posterior = mixture(components, diagonal, 1)
    generator = torch.Generator().manual_seed(0)
    factor = torch.randn(1, 4, 4, dtype=torch.float64, generator=generator).tril(-1) + torch.diag(
        torch.tensor([2.0, 0.5, 1.5, 0.1], dtype=torch.float64)
    )
    held = Held.of(moments(posterior), factor).moments(torch.linalg.inv(factor))
    assert held.kl().item() == pytest.approx(moments(posterior).kl().item(), rel=1e-10)
    if components == 1:
        exact = kl_divergence(
            MultivariateNormal(
                (factor @ posterior.mean[0, :, :, None])[..., 0],
                factor @ components_of(posterior).covariance_matrix[0] @ factor.mT,
            ),
            MultivariateNormal(torch.zeros(4, dtype=torch.float64), factor @ factor.mT),
        )
        assert held.kl().item() == pytest.approx(exact.sum().item(), rel=1e-9)
