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


def by_pairs(posterior: Posterior) -> Tensor:
    """sum_k pi_k KL(q_k || p) + sum_k pi_k log sum_l pi_l int sqrt(q_k q_l), from Kolchinsky and Tracey (2017)."""
    parts, pi = components_of(posterior), torch.softmax(posterior.logits, 0)
    means, covariances, total = posterior.mean, parts.covariance_matrix, convexity(posterior)
    for k in range(len(pi)):
        affinities = []
        for other in range(len(pi)):
            # int sqrt(N(m, S) N(n, T)) = N(m; n, 2 (S + T)) |8 pi S|^1/4 |8 pi T|^1/4
            overlap = MultivariateNormal(means[k], 2 * (covariances[k] + covariances[other])).log_prob(means[other])
            scales = torch.logdet(8 * math.pi * covariances[k]) + torch.logdet(8 * math.pi * covariances[other])
            affinities.append((overlap + scales / 4).sum())
        total = total + pi[k] * torch.logsumexp(pi.log() + torch.stack(affinities), 0)
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
def test_kl_and_the_papers_bound_equal_their_formulas_and_convexity_is_never_below(components, diagonal, seed):
    posterior = mixture(components, diagonal, seed)
    found, pairs, paper = (value.item() for value in (moments(posterior).kl(), by_pairs(posterior), jensen(posterior)))
    assert found == pytest.approx(pairs, rel=1e-10)
    assert found <= convexity(posterior).item() + 1e-12
    assert moments(posterior).jensen_kl().item() == pytest.approx(paper, rel=1e-10)


def test_far_apart_components_gain_log_k_and_the_bound_is_exact_there():
    """That is all that a mixture can gain over its components: log K nats, however many rows there are."""
    posterior = mixture(5, False, 0, latents=1, inducing=3)
    with torch.no_grad():
        posterior.mean.copy_(9 * torch.arange(5.0, dtype=torch.float64)[:, None, None].expand(5, 1, 3))
        posterior.logits.zero_()
    expected, error = monte_carlo(posterior, 0)
    assert expected == pytest.approx(convexity(posterior).item() - math.log(5), abs=5 * error + 1e-9)
    assert moments(posterior).kl().item() == pytest.approx(expected, abs=5 * error + 1e-6)
    assert jensen(posterior).item() > expected + 0.4


def test_jensens_bound_of_one_component_is_off_by_a_constant_that_kl_does_not_pay():
    posterior = mixture(1, False, 1)
    gap = 0.5 * posterior.mean.numel() * (1 - math.log(2))
    assert (moments(posterior).jensen_kl() - moments(posterior).kl()).item() == pytest.approx(gap, rel=1e-10)


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
def test_gradients_of_kl_are_those_of_its_formula(components, diagonal, seed):
    posterior = mixture(components, diagonal, seed)
    parameters = list(posterior.parameters())
    found = torch.autograd.grad(moments(posterior).kl(), parameters)
    expected = torch.autograd.grad(by_pairs(posterior), parameters)
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
