"""The gradients of one pass: those of autograd on the objectives, whatever road they come by."""

import copy
import math

import pytest
import torch
from torch import Tensor

from autogp import MixturePosterior, SparseGP, elbo, loo, predictive
from autogp.kernels import RBF, Matern52
from autogp.likelihoods import Bernoulli, Gaussian, Likelihood, Network, Poisson, Softmax, StudentT
from autogp.posteriors import HeldPosterior
from autogp.training import step as steps
from autogp.training.step import Batch, NonFiniteError, draw, gradient_step, natural_step

OBJECTIVES = {"elbo": elbo, "loo": loo, "predictive": predictive}
ROWS, INDUCING, NUM_DATA = 23, 7, 100
NAMES = ["gaussian", "bernoulli", "probit", "poisson", "student-t", "softmax", "network"]
SHARED = pytest.mark.parametrize("shared", [True, False], ids=["shared", "separate"])


def problem(name: str, shared: bool = True) -> tuple[SparseGP, Tensor, Tensor]:
    """A model whose q is nothing special, and a batch of 23 rows."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(ROWS, 2, dtype=torch.float64, generator=generator)
    signal = torch.stack([torch.sin(2 * x[:, 0]), x[:, 1], x[:, 0] * x[:, 1]], 1)
    likelihood: Likelihood
    if name == "gaussian":
        likelihood, y = Gaussian(3, variance=torch.tensor([3.0, 4.0, 5.0])), signal
    elif name in ("bernoulli", "probit"):
        likelihood, y = Bernoulli(3, link="logit" if name == "bernoulli" else "probit"), (signal > 0).double()
    elif name == "poisson":
        likelihood, y = Poisson(3), torch.poisson(signal.clamp(-2, 2).exp(), generator=generator)
    elif name == "student-t":
        likelihood, y = StudentT(3, scale=torch.tensor([0.3, 0.5, 0.8])), signal
    elif name == "network":
        likelihood, y = Network(2, variance=torch.tensor([0.5, 0.8])), signal[:, :2]
    else:
        likelihood, y = Softmax(3), signal.argmax(1)
    if shared:
        kernel, z = RBF([0.9, 1.4], 0.6), x[:INDUCING]
    else:
        kernel = RBF(torch.tensor([[0.9, 1.4], [1.2, 0.8], [0.7, 0.7]]), [0.6, 0.5, 0.8])
        z = torch.stack([x[:7], x[7:14], x[14:21]])
    model = SparseGP(kernel, likelihood, z + 0.1)
    noise = torch.randn(3, INDUCING, INDUCING, dtype=torch.float64, generator=generator)
    model.posterior.precision.add_(0.3 * noise @ noise.mT)
    model.posterior.shift.add_(noise[..., 0])
    return model, x, y


def batch_of(model: SparseGP, x: Tensor, y: Tensor, num_data: int = NUM_DATA) -> Batch:
    return Batch(x, model.likelihood.check_targets(y), torch.full((len(x),), num_data / len(x), dtype=x.dtype))


def others(model: SparseGP) -> list[torch.nn.Parameter]:
    return [*model.kernel.parameters(), *model.likelihood.parameters(), model.inducing_inputs]


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(5)


def exists(name: str, objective: str) -> bool:
    """Whether the objective is finite for the likelihood; probit's is where q is narrow, as here."""
    return objective != "loo" or name not in ("poisson", "network")


EXACT = [
    (name, objective)
    for name in NAMES
    for objective in OBJECTIVES
    if exists(name, objective) and (name, objective) != ("softmax", "elbo")
]


@SHARED
@pytest.mark.parametrize(("name", "objective"), EXACT)
def test_natural_step_leaves_the_gradients_of_the_objective_for_all_but_q(name, objective, shared):
    model, x, y = problem(name, shared)
    samples = 40 if objective in model.likelihood.sampled else None
    value = OBJECTIVES[objective](model, x, y, num_data=NUM_DATA, samples=samples, generator=generator())
    expected = torch.autograd.grad(-value, others(model))
    result = natural_step(model, batch_of(model, x, y), objective, 0.1, samples or 1, generator())
    assert result.value.item() == pytest.approx(value.item(), rel=1e-10)
    for parameter, gradient in zip(others(model), expected, strict=True):
        assert gradient.abs().max() > 1e-3
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-8, atol=1e-8)


@SHARED
def test_natural_step_of_the_softmax_has_the_gradients_of_the_bound_in_expectation(shared):
    """Means and variances by Bonnet and Price, the bound by samples: equal in expectation, with less noise."""
    model, x, y = problem("softmax", shared)
    batch, random, counts = batch_of(model, x, y), generator(), 60
    found, expected = [], []
    for _ in range(counts):
        step = copy.deepcopy(model)
        natural_step(step, batch, "elbo", 0.1, 100, random)
        found.append(torch.cat([parameter.grad.flatten() for parameter in others(step)]))
        value = elbo(model, x, y, num_data=NUM_DATA, samples=100, generator=random)
        expected.append(torch.cat([part.flatten() for part in torch.autograd.grad(-value, others(model))]))
    ours, theirs = torch.stack(found), torch.stack(expected)
    error = ((ours.var(0) + theirs.var(0)) / counts).sqrt()
    z = (ours.mean(0) - theirs.mean(0)) / error
    assert z.abs().max() < 5
    assert (ours.mean(0).abs() > 10 * error).any()  # there is something to be wrong about
    assert ours.var(0).sum() < theirs.var(0).sum()


@SHARED
@pytest.mark.parametrize("objective", ["elbo", "predictive"])
@pytest.mark.parametrize("name", NAMES)
def test_natural_step_moves_q_by_the_bound_whatever_the_objective(name, objective, shared):
    model, x, y = problem(name, shared)
    random = generator()
    batch = batch_of(model, x, y)
    with torch.no_grad():
        prepared = model.prepare()
        basis, _ = model.basis(x, prepared)
        marginals = model.marginals(x, prepared)
    noise = draw(model.likelihood.sampled & {"elbo"}, marginals, 30, random)
    alpha, beta = model.likelihood.expected_derivatives(marginals.mean, marginals.variance, batch.y, noise.get("elbo"))
    expected = copy.deepcopy(model.posterior)
    expected.natural_step(basis, marginals.mean[0], alpha[0], beta[0], 0.3, NUM_DATA / ROWS)
    natural_step(model, batch, objective, 0.3, 30, generator())
    torch.testing.assert_close(model.posterior.precision, expected.precision, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(model.posterior.shift, expected.shift, rtol=1e-10, atol=1e-10)


@SHARED
def test_steps_of_large_models_are_those_of_small_ones(shared, monkeypatch):
    results = []
    for large in (1000, 1):
        monkeypatch.setattr(steps, "LARGE", large)
        model, x, y = problem("bernoulli", shared)
        natural_step(model, batch_of(model, x, y), "elbo", 0.3, 1, generator())
        results.append([model.posterior.precision, model.posterior.shift, *(part.grad for part in others(model))])
    torch.testing.assert_close(results[1], results[0], rtol=1e-9, atol=1e-10)


def test_steps_of_large_models_in_float64_take_rows_in_float32(monkeypatch):
    monkeypatch.setattr(steps, "LARGE", 1)
    model, x, y = problem("bernoulli")
    natural_step(model, batch_of(model, x.float(), y), "elbo", 0.3, 1, generator())
    assert model.inducing_inputs.grad is not None


def test_rows_count_by_their_weights():
    model, x, y = problem("bernoulli")
    weights = torch.rand(ROWS, dtype=torch.float64, generator=generator())
    for objective, function in OBJECTIVES.items():
        expected = torch.autograd.grad(-function(model, x, y, weights=weights), others(model))
        model.zero_grad()
        copied = copy.deepcopy(model)
        natural_step(copied, batch_of(model, x, y)._replace(weights=weights), objective, 0.1, 1, generator())
        for parameter, gradient in zip(others(copied), expected, strict=True):
            torch.testing.assert_close(parameter.grad, gradient, rtol=1e-8, atol=1e-8)


def test_frozen_parameters_get_no_gradient_and_q_learns_all_the_same():
    for objective in OBJECTIVES:
        model, x, y = problem("bernoulli")
        expected = copy.deepcopy(model)
        natural_step(expected, batch_of(model, x, y), objective, 0.5, 1, generator())
        model.requires_grad_(False)
        natural_step(model, batch_of(model, x, y), objective, 0.5, 1, generator())
        assert all(parameter.grad is None for parameter in model.parameters())
        assert torch.equal(model.posterior.shift, expected.posterior.shift)


def test_step_that_is_not_finite_changes_nothing():
    for broken in ("kernel", "likelihood"):
        model, x, y = problem("gaussian")
        with torch.no_grad():
            if broken == "kernel":
                model.kernel.diag = lambda x: torch.full((1, len(x)), math.nan, dtype=x.dtype)
            else:
                model.likelihood.log_variance.fill_(math.nan)
        before = copy.deepcopy(model.state_dict())
        with pytest.raises(NonFiniteError, match="not finite"):
            natural_step(model, batch_of(model, x, y), "elbo", 0.1, 1, generator())
        for name, tensor in model.state_dict().items():
            torch.testing.assert_close(tensor, before[name], rtol=0, atol=0, equal_nan=True)


def test_natural_step_needs_a_posterior_in_natural_form():
    model, x, y = problem("gaussian")
    model.posterior = MixturePosterior(3, INDUCING)
    with pytest.raises(TypeError, match="natural gradients need a GaussianPosterior, got MixturePosterior"):
        natural_step(model, batch_of(model, x, y), "elbo", 0.1, 1, generator())


@pytest.mark.parametrize("diagonal", [False, True])
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("name", ["gaussian", "bernoulli", "softmax"])
def test_gradient_step_gives_q_the_gradient_of_the_bound_and_the_rest_that_of_the_objective(name, objective, diagonal):
    model, x, y = problem(name)
    posterior = model.posterior = MixturePosterior(3, INDUCING, num_components=2, diagonal=diagonal, spread=0.5)
    samples = 20 if objective in model.likelihood.sampled else None
    options = {"num_data": NUM_DATA, "samples": samples, "generator": generator()}
    expected = torch.autograd.grad(-OBJECTIVES[objective](model, x, y, **options), others(model))
    samples_of_bound = 20 if "elbo" in model.likelihood.sampled else None
    bound = elbo(model, x, y, num_data=NUM_DATA, samples=samples_of_bound, generator=generator())
    bound_gradients = torch.autograd.grad(-bound, list(posterior.parameters()))
    gradient_step(model, batch_of(model, x, y), objective, 20, generator())
    for parameter, gradient in zip(
        [*others(model), *posterior.parameters()], [*expected, *bound_gradients], strict=True
    ):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-8, atol=1e-8)


def textbook(model: SparseGP, x: Tensor, mean: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Means and variances [Q, B] of f, what u tells of the latter, and KL(q || p), for q(u) = N(mean, covariance)."""
    z = model.inducing_inputs
    kzz = model.kernel.gram(z, z)
    kzz = kzz + model.jitter * torch.diag_embed(torch.diagonal(kzz, dim1=-2, dim2=-1))
    kzx = model.kernel.gram(z, x)
    project = torch.linalg.solve(kzz, kzx)  # Kzz^-1 Kzx, [G, M, B]
    marginal_mean = torch.einsum("qmb,qm->qb", project.expand(3, -1, -1), mean)
    explained = torch.einsum("qmb,qmn,qnb->qb", project.expand(3, -1, -1), covariance, project.expand(3, -1, -1))
    variance = model.kernel.diag(x) - (kzx * project).sum(-2) + explained
    kzz = kzz.expand(3, -1, -1)
    divergence = 0.5 * (
        torch.diagonal(torch.linalg.solve(kzz, covariance), dim1=-2, dim2=-1).sum()
        + (mean * torch.linalg.solve(kzz, mean)).sum()
        - mean.numel()
        + torch.logdet(kzz).sum()
        - torch.logdet(covariance).sum()
    )
    return marginal_mean, variance, explained, divergence


def without_own_term(model: SparseGP, mean: Tensor, variance: Tensor, explained: Tensor, y: Tensor) -> Tensor:
    """log p(y | all other rows), [B], where N(y; A'u, s2) is taken out of q(u): Gaussians divided."""
    noise = model.likelihood.variance[:, None]
    precision = 1 / explained - 1 / noise
    cavity = (mean / explained - y.T / noise) / precision
    total = 1 / precision + variance - explained + noise
    return torch.distributions.Normal(cavity, total.sqrt()).log_prob(y.T).sum(0)


@SHARED
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("name", ["gaussian", "bernoulli", "student-t"])
def test_with_q_of_u_held_gradients_are_those_of_the_unwhitened_formulas(name, objective, shared):
    model, x, y = problem(name, shared)
    prepared = model.prepare()
    held = model.posterior = HeldPosterior(prepared.moments, prepared.factor)
    batch = batch_of(model, x, y)
    mean, variance, explained, divergence = textbook(model, x, held.mean[0], held.covariance[0])
    rows = {
        "elbo": model.likelihood.expected_log_prob,
        "loo": lambda *arguments: -model.likelihood.log_expected_inverse_prob(*arguments),
        "predictive": model.likelihood.log_expected_prob,
    }[objective](mean.T, variance.T, batch.y)
    if name == "gaussian" and objective == "loo":
        rows = without_own_term(model, mean, variance, explained, batch.y)
    value = NUM_DATA / ROWS * rows.sum() - (divergence if objective == "elbo" else 0.0)
    expected = torch.autograd.grad(-value, others(model))
    before = copy.deepcopy(held.state_dict())
    result = gradient_step(model, batch, objective, 1, generator())
    assert result.value.item() == pytest.approx(value.item(), rel=1e-9)
    for parameter, gradient in zip(others(model), expected, strict=True):
        assert gradient.abs().max() > 1e-3
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-7, atol=1e-7)
    assert all(torch.equal(tensor, before[name]) for name, tensor in held.state_dict().items())


def test_steps_take_kernels_and_likelihoods_without_parameters():
    class Fixed(Matern52):
        def __init__(self):
            super().__init__()
            self.requires_grad_(False)

    for objective in OBJECTIVES:
        model, x, y = problem("softmax")
        model.kernel = Fixed()
        natural_step(model, batch_of(model, x, y), objective, 0.1, 10, generator())
        assert torch.isfinite(model.inducing_inputs.grad).all()
        assert model.kernel.log_variance.grad is None


def test_noise_is_one_draw_for_all_objectives_that_need_it():
    model, x, _ = problem("softmax")
    marginals = model.marginals(x)
    noise = draw(frozenset({"elbo", "predictive"}), marginals, 6, generator())
    assert noise["elbo"] is noise["predictive"]
    assert noise["elbo"].shape == (6, 1, ROWS, 3)
    assert draw(frozenset(), marginals, 6, generator()) == {}


@SHARED
@pytest.mark.parametrize("components", [1, 2])
def test_where_q_is_held_its_expected_log_prior_counts_as_much_as_was_asked_for(components, shared):
    """Beside the objective's gradients those of the expectation by torch.distributions; the value told is without."""
    model, x, y = problem("softmax", shared)
    start = torch.Generator().manual_seed(3)
    free = MixturePosterior(3, INDUCING, components, spread=0.5, generator=start)
    prepared = SparseGP(model.kernel, model.likelihood, model.inducing_inputs, free).prepare()
    model.posterior = HeldPosterior(prepared.moments, prepared.factor.detach())

    value = loo(model, x, y, num_data=NUM_DATA)
    gram = model.kernel.gram(model.inducing_inputs, model.inducing_inputs)
    covariance = gram + torch.diag_embed(model.jitter * torch.diagonal(gram, dim1=-2, dim2=-1).detach())
    log_prior = torch.tensor(0.0, dtype=torch.float64)
    for weight, means, covariances in zip(
        prepared.moments.log_weights.exp(), model.posterior.mean, model.posterior.covariance, strict=True
    ):
        for q, (mean, own) in enumerate(zip(means, covariances, strict=True)):
            prior = torch.distributions.MultivariateNormal(torch.zeros_like(mean), covariance[q % len(covariance)])
            drawn = torch.distributions.MultivariateNormal(mean, own)
            cross = torch.distributions.kl_divergence(drawn, prior) + drawn.entropy()
            log_prior = log_prior - weight.detach() * cross
    expected = torch.autograd.grad(-(value + 0.3 * log_prior), others(model))

    result = gradient_step(model, batch_of(model, x, y), "loo", 1, generator(), prior=0.3)
    assert result.value.item() == pytest.approx(value.item(), rel=1e-10)
    moments = model.prepare().moments
    assert moments.log_prior(gram.detach()).item() == pytest.approx(log_prior.item(), rel=1e-8)
    for parameter, gradient in zip(others(model), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-6, atol=1e-6)
