"""The gradients of one pass: those of autograd on the objectives, whatever road they come by."""

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from autogp import Posterior, SparseGP, elbo, loo, predictive
from autogp.kernels import RBF, Matern52
from autogp.likelihoods import Bernoulli, Gaussian, Likelihood, Network, Poisson, Softmax, StudentT
from autogp.posteriors import Held, Natural
from autogp.training import step as module
from autogp.training.optimisers import Adam, Optimiser
from autogp.training.step import (
    Batch,
    NonFiniteError,
    Statistics,
    apply,
    draw,
    gradient_statistics,
    natural_statistics,
)

OBJECTIVES = {"elbo": elbo, "loo": loo, "predictive": predictive}
ROWS, INDUCING, NUM_DATA = 23, 7, 100
NAMES = ["gaussian", "bernoulli", "probit", "poisson", "student-t", "softmax", "network"]
SHARED = pytest.mark.parametrize("shared", [True, False], ids=["shared", "separate"])


def problem(name: str, shared: bool = True) -> tuple[SparseGP, Natural, Tensor, Tensor]:
    """A model, a q that is nothing special, and 23 rows."""
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
    q = Natural(torch.eye(INDUCING, dtype=torch.float64) + 0.3 * noise @ noise.mT, noise[..., 0].clone())
    return model, q, x, y


def batch_of(model: SparseGP, x: Tensor, y: Tensor, samples: int = 0) -> Batch:
    """The rows, out of 100; with noise from `generator()` where samples are asked for."""
    noise = draw(model, len(x), samples, generator()) if samples else None
    weights = torch.full((len(x),), NUM_DATA / len(x), dtype=x.dtype)
    return Batch(x, model.likelihood.check_targets(y), weights, noise)


def others(model: SparseGP) -> list[nn.Parameter]:
    return [*model.kernel.parameters(), *model.likelihood.parameters(), model.inducing_inputs]


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(5)


class Kept(Optimiser):
    """Moves nothing, and keeps the gradients."""

    def step(self, gradients, rates):
        self.gradients = list(gradients)


def applied(statistics: Statistics, q: Natural | None = None, rate: float = 0.1) -> tuple[float, list[Tensor]]:
    """The value and the gradients that an optimiser gets."""
    optimiser = Kept([])
    value, _ = apply(statistics, optimiser, [], q, rate)
    return value, optimiser.gradients


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
def test_natural_statistics_have_the_gradients_of_the_objective_for_all_but_q(name, objective, shared):
    model, q, x, y = problem(name, shared)
    samples = 40 if objective in model.likelihood.sampled else 0
    value = OBJECTIVES[objective](model, x, y, q=q, num_data=NUM_DATA, samples=samples or None, generator=generator())
    expected = torch.autograd.grad(-value, others(model))
    statistics = natural_statistics(model, batch_of(model, x, y, samples or 1), objective, others(model), q)
    found, gradients = applied(statistics, q)
    assert found == pytest.approx(value.item(), rel=1e-10)
    assert all(gradient.abs().max() > 1e-3 for gradient in expected)
    torch.testing.assert_close(gradients, list(expected), rtol=1e-8, atol=1e-8)


@SHARED
def test_natural_statistics_of_the_softmax_have_the_gradients_of_the_elbo_in_expectation(shared):
    """Means and variances by Bonnet and Price, the ELBO by samples: equal in expectation, with less noise."""
    model, q, x, y = problem("softmax", shared)
    batch, random, counts = batch_of(model, x, y), generator(), 60
    found, expected = [], []
    for _ in range(counts):
        noisy = batch._replace(noise=draw(model, ROWS, 100, random))
        gradients = natural_statistics(model, noisy, "elbo", others(model), q).gradients
        found.append(torch.cat([gradient.flatten() for gradient in gradients]))
        value = elbo(model, x, y, q=q, num_data=NUM_DATA, samples=100, generator=random)
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
def test_q_follows_the_elbo_whatever_the_objective(name, objective, shared):
    """Lambda <- 0.7 Lambda + 0.3 (I + N/B A diag(-2 beta) A'), b <- 0.7 b + 0.3 N/B A (alpha - 2 beta mean)."""
    model, q, x, y = problem(name, shared)
    batch = batch_of(model, x, y, samples=30)
    with torch.no_grad():
        prepared = model.prepare(q)
        basis = model.basis(x, prepared)[0].expand(3, -1, -1)
        marginals = model.marginals(x, prepared)
    noise = batch.noise if "elbo" in model.likelihood.sampled else None
    alpha, beta = (
        part[0] for part in model.likelihood.expected_derivatives(marginals.mean, marginals.variance, batch.y, noise)
    )
    curvature, scale = (-2 * beta).clamp_min(0), NUM_DATA / ROWS
    eye = torch.eye(INDUCING, dtype=torch.float64)
    sites = scale * torch.einsum("qmb,bq,qnb->qmn", basis, curvature, basis)
    slopes = scale * torch.einsum("qmb,bq->qm", basis, alpha + curvature * marginals.mean[0])
    expected = [0.7 * q.precision + 0.3 * (eye + sites), 0.7 * q.shift + 0.3 * slopes]
    applied(natural_statistics(model, batch, objective, others(model), q), q, rate=0.3)
    torch.testing.assert_close([q.precision, q.shift], expected, rtol=1e-10, atol=1e-10)


@SHARED
def test_steps_of_large_models_are_those_of_small_ones(shared, monkeypatch):
    results = []
    for large in (1000, 1):
        monkeypatch.setattr(module, "LARGE", large)
        model, q, x, y = problem("bernoulli", shared)
        _, gradients = applied(natural_statistics(model, batch_of(model, x, y), "elbo", others(model), q), q, 0.3)
        results.append([q.precision, q.shift, *gradients])
    torch.testing.assert_close(results[1], results[0], rtol=1e-9, atol=1e-10)


def test_steps_of_large_models_in_float64_take_rows_in_float32(monkeypatch):
    monkeypatch.setattr(module, "LARGE", 1)
    model, q, x, y = problem("bernoulli")
    natural_statistics(model, batch_of(model, x.float(), y), "elbo", others(model), q)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_rows_count_by_their_weights(objective):
    model, q, x, y = problem("bernoulli")
    weights = torch.rand(ROWS, dtype=torch.float64, generator=generator())
    expected = torch.autograd.grad(-OBJECTIVES[objective](model, x, y, q=q, weights=weights), others(model))
    batch = batch_of(model, x, y)._replace(weights=weights)
    gradients = natural_statistics(model, batch, objective, others(model), q).gradients
    torch.testing.assert_close(gradients, list(expected), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_q_learns_where_all_else_is_frozen(objective):
    model, q, x, y = problem("bernoulli")
    batch, expected = batch_of(model, x, y), copy.deepcopy(q)
    applied(natural_statistics(model, batch, objective, others(model), expected), expected)
    model.requires_grad_(False)
    _, gradients = applied(natural_statistics(model, batch, objective, [], q), q)
    assert gradients == []
    assert torch.equal(q.shift, expected.shift)


@pytest.mark.parametrize("broken", ["kernel", "likelihood"])
def test_step_that_is_not_finite_changes_nothing(broken):
    model, q, x, y = problem("gaussian")
    with torch.no_grad():
        if broken == "kernel":
            model.kernel.diag = lambda x: torch.full((1, len(x)), math.nan, dtype=x.dtype)
        else:
            model.likelihood.log_variance.fill_(math.nan)
    before, q_before = copy.deepcopy(model.state_dict()), copy.deepcopy(q)
    optimiser = Adam(others(model))
    statistics = natural_statistics(model, batch_of(model, x, y), "elbo", optimiser.parameters, q)
    with pytest.raises(NonFiniteError, match="not finite"):
        apply(statistics, optimiser, [0.1] * len(optimiser.parameters), q)
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, before[name], rtol=0, atol=0, equal_nan=True)
    assert torch.equal(q.precision, q_before.precision)
    assert torch.equal(q.shift, q_before.shift)
    assert optimiser.taken == 0


@pytest.mark.parametrize("diagonal", [False, True])
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("name", ["gaussian", "bernoulli", "softmax"])
def test_gradient_statistics_give_q_the_gradient_of_the_elbo_and_the_rest_that_of_the_objective(
    name, objective, diagonal
):
    model, _, x, y = problem(name)
    model.posterior = Posterior(3, INDUCING, num_components=2, diagonal=diagonal, spread=0.5)
    own = list(model.posterior.parameters())

    def gradients(objective: str, parameters: list[nn.Parameter]) -> tuple[Tensor, ...]:
        samples = 20 if objective in model.likelihood.sampled else None
        value = OBJECTIVES[objective](model, x, y, num_data=NUM_DATA, samples=samples, generator=generator())
        return torch.autograd.grad(-value, parameters)

    expected = [*gradients(objective, others(model)), *gradients("elbo", own)]
    statistics = gradient_statistics(model, batch_of(model, x, y, samples=20), objective, [*others(model), *own])
    torch.testing.assert_close(applied(statistics)[1], expected, rtol=1e-8, atol=1e-8)


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
    model, q, x, y = problem(name, shared)
    prepared = model.prepare(q)
    held = Held.of(prepared.moments, prepared.factor)
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
    before = copy.deepcopy(vars(held))
    found, gradients = applied(gradient_statistics(model, batch, objective, others(model), held))
    assert found == pytest.approx(value.item(), rel=1e-9)
    assert all(gradient.abs().max() > 1e-3 for gradient in expected)
    torch.testing.assert_close(gradients, list(expected), rtol=1e-7, atol=1e-7)
    assert all(torch.equal(tensor, before[name]) for name, tensor in vars(held).items())


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_steps_take_kernels_and_likelihoods_without_parameters(objective):
    model, q, x, y = problem("softmax")
    model.kernel = Matern52().requires_grad_(False)
    statistics = natural_statistics(model, batch_of(model, x, y, 10), objective, [model.inducing_inputs], q)
    assert torch.isfinite(statistics.gradients[0]).all()


@SHARED
@pytest.mark.parametrize("components", [1, 2])
def test_where_q_is_held_its_expected_log_prior_counts_as_much_as_was_asked_for(components, shared):
    """Beside the objective's gradients those of the expectation by torch.distributions; the value told is without."""
    model, _, x, y = problem("softmax", shared)
    start = torch.Generator().manual_seed(3)
    prepared = model.prepare(Posterior(3, INDUCING, components, spread=0.5, generator=start))
    held = Held.of(prepared.moments, prepared.factor)

    value = loo(model, x, y, q=held, num_data=NUM_DATA)
    gram = model.kernel.gram(model.inducing_inputs, model.inducing_inputs)
    covariance = gram + torch.diag_embed(model.jitter * torch.diagonal(gram, dim1=-2, dim2=-1).detach())
    log_prior = torch.tensor(0.0, dtype=torch.float64)
    for weight, means, covariances in zip(held.log_weights.exp(), held.mean, held.covariance, strict=True):
        for q, (mean, own) in enumerate(zip(means, covariances, strict=True)):
            prior = torch.distributions.MultivariateNormal(torch.zeros_like(mean), covariance[q % len(covariance)])
            drawn = torch.distributions.MultivariateNormal(mean, own)
            cross = torch.distributions.kl_divergence(drawn, prior) + drawn.entropy()
            log_prior = log_prior - weight * cross
    expected = torch.autograd.grad(-(value + 0.3 * log_prior), others(model))

    statistics = gradient_statistics(model, batch_of(model, x, y), "loo", others(model), held, prior_share=0.3)
    found, gradients = applied(statistics)
    assert found == pytest.approx(value.item(), rel=1e-10)
    assert held.moments(prepared.inverse).log_prior(gram).item() == pytest.approx(log_prior.item(), rel=1e-8)
    torch.testing.assert_close(gradients, list(expected), rtol=1e-6, atol=1e-6)


# -- parts of a batch ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True], ids=["equal rows", "weights"])
@pytest.mark.parametrize(
    ("name", "road", "objective"),
    [
        *((name, "natural", objective) for name in ("gaussian", "bernoulli", "softmax") for objective in OBJECTIVES),
        *((name, "held", objective) for name in ("gaussian", "softmax") for objective in ("loo", "predictive")),
        *((name, "mixture", objective) for name in ("bernoulli", "softmax") for objective in OBJECTIVES),
    ],
)
def test_statistics_of_two_halves_added_give_the_update_of_the_whole_batch(name, road, objective, weighted):
    """Three steps each: q and all parameters, by Adam."""
    results = []
    for halves in (False, True):
        model, q, x, y = problem(name)
        parameters = others(model)
        batch = batch_of(model, x, y, samples=12)
        if weighted:
            batch = batch._replace(weights=batch.weights * torch.linspace(0, 3, ROWS, dtype=torch.float64))
        parts = [batch.part(slice(0, 9)), batch.part(slice(9, ROWS))] if halves else [batch]
        held = None
        if road == "held":
            prepared = model.prepare(q)
            held = Held.of(prepared.moments, prepared.factor)
        elif road == "mixture":
            model.posterior = Posterior(3, INDUCING, num_components=2, spread=0.5)
            parameters += model.posterior.parameters()
        optimiser = Adam(parameters)
        for _ in range(3):
            if road == "natural":
                found = [natural_statistics(model, part, objective, parameters, q, scored=True) for part in parts]
            else:
                found = [gradient_statistics(model, part, objective, parameters, held, 0.4, True) for part in parts]
            total = found[0] + found[1] if halves else found[0]
            told = apply(total, optimiser, [0.02] * len(parameters), q if road == "natural" else None, 0.3)
        results.append([*told, q.precision, q.shift, *(parameter.detach() for parameter in parameters)])
    for ours, whole in zip(*reversed(results), strict=True):
        torch.testing.assert_close(ours, whole, rtol=1e-10, atol=1e-10)
    moved = zip(others(problem(name)[0]), results[0][4:], strict=False)
    assert all(not torch.equal(start, end) for start, end in moved)
