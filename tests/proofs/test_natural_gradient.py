"""The natural-gradient step: its direction, where it lands, what minibatches do to it, and q(u) held fixed."""

import copy
import math

import numpy as np
import pytest
import torch
from formulas import collapsed_bound, natural_step, rbf
from torch import Tensor

from autogp import Posterior, SparseGP, elbo, loo, predictive
from autogp.kernels import RBF
from autogp.likelihoods import Bernoulli, Gaussian, Likelihood, Poisson, Softmax, StudentT
from autogp.posteriors import Held, Natural

LENGTHSCALE, VARIANCE, NOISE = 0.9, 1.3, 0.2


class UserSoftmax(Likelihood):
    """Softmax as a user would write it: fixed nodes, and derivatives by differentiating through them."""

    num_latents = 3

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        return torch.log_softmax(f, -1).gather(-1, y[:, None].expand(*f.shape[:-1], 1)).squeeze(-1)

    def check_targets(self, y: Tensor) -> Tensor:
        return y


def inputs(rows: int = 48, seed: int = 0) -> tuple[Tensor, torch.Generator]:
    generator = torch.Generator().manual_seed(seed)
    return 4 * torch.rand(rows, 2, dtype=torch.float64, generator=generator) - 2, generator


def problem(name: str, rows: int = 48) -> tuple[SparseGP, Tensor, Tensor]:
    """A model with a q that is not the optimum, and data."""
    x, generator = inputs(rows)
    signal = torch.stack([torch.sin(2 * x[:, 0]), x[:, 1], x[:, 0] * x[:, 1]], 1)
    kernel: RBF = RBF(LENGTHSCALE, VARIANCE)
    z = x[:10]
    if name == "gaussian":
        likelihood, y = Gaussian(3, variance=NOISE), signal + 0.4 * torch.randn(signal.shape, generator=generator)
    elif name == "gaussian, separate kernels and inputs":
        likelihood, y = Gaussian(3, variance=NOISE), signal + 0.4 * torch.randn(signal.shape, generator=generator)
        kernel, z = RBF([[0.9], [1.2], [0.7]], [1.3, 0.8, 2.0]), torch.stack([x[:10], x[10:20], x[20:30]])
    elif name.startswith("bernoulli"):
        likelihood = Bernoulli(link=name.removeprefix("bernoulli, "))
        y = (torch.rand(rows, generator=generator) < torch.sigmoid(3 * signal[:, 0])).double()
    elif name == "poisson":
        likelihood, y = Poisson(), torch.poisson(signal[:, 0].exp(), generator=generator)
    else:
        likelihood = UserSoftmax() if name == "softmax, by a user" else Softmax(3)
        y = torch.multinomial(torch.softmax(3 * signal, 1), 1, generator=generator)[:, 0]
    model = SparseGP(kernel, likelihood, z)
    scatter(model.posterior, generator)
    return model, x, y


def scatter(posterior: Posterior, generator: torch.Generator) -> None:
    """Moves q to some place of no distinction."""
    q = Natural.of(posterior)
    noise = torch.randn(q.precision.shape, dtype=torch.float64, generator=generator)
    q.precision.add_(0.3 * noise @ noise.mT)
    q.shift.add_(noise[..., 0])
    posterior.set_natural(q)


def slopes(model: SparseGP, x: Tensor, y: Tensor) -> Tensor:
    """Gradient of the ELBO with respect to the mean and the root of q."""
    parameters = [model.posterior.mean, model.posterior.log_scale, model.posterior.upper]
    return torch.cat([part.flatten() for part in torch.autograd.grad(elbo(model, x, y), parameters)])


def natural_gradient(model: SparseGP, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """d bound / d eta_1 and d bound / d eta_2 for the expectation parameters eta_1 = m, eta_2 = S + m m'.

    The bound is written out here, from the basis on.
    """
    prepared = model.prepare()
    basis, prior_variance = (part.detach() for part in model.basis(x, prepared))
    m, covariance = prepared.moments.mean[0].detach(), prepared.moments.covariance()[0].detach()
    first = m.clone().requires_grad_()
    second = (covariance + m[:, :, None] * m[:, None, :]).requires_grad_()
    spread = second - first[:, :, None] * first[:, None, :]
    mean = (basis * first[:, :, None]).sum(1)  # [Q, B]
    basis = basis.expand(len(m), -1, -1)
    explained = torch.einsum("qmb,qmn,qnb->qb", basis, spread, basis)
    variance = prior_variance - basis.square().sum(1) + explained
    data = model.likelihood.expected_log_prob(mean.T, variance.T, model.likelihood.check_targets(y)).sum()
    divergence = 0.5 * (
        torch.diagonal(spread, dim1=1, dim2=2).sum() + first.square().sum() - first.numel() - torch.logdet(spread).sum()
    )
    slope, curvature = torch.autograd.grad(data - divergence, (first, second))
    return slope, 0.5 * (curvature + curvature.mT)


CONCAVE = [
    "gaussian",
    "gaussian, separate kernels and inputs",
    "bernoulli, logit",
    "bernoulli, probit",
    "poisson",
    "softmax, by a user",
]


@pytest.mark.parametrize("rate", [1.0, 0.1])
@pytest.mark.parametrize("name", CONCAVE)
def test_step_is_the_gradient_by_expectation_parameters(name, rate):
    """In natural parameters (b, -Lambda / 2) the natural gradient is the plain gradient by (m, S + m m')."""
    model, x, y = problem(name)
    slope, curvature = natural_gradient(model, x, y)
    before = Natural.of(model.posterior)
    natural_step(model, x, y, rate)
    after = Natural.of(model.posterior)
    assert slope.abs().max() > 0.1
    assert curvature.abs().max() > 0.1
    torch.testing.assert_close((after.shift - before.shift) / rate, slope, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close((after.precision - before.precision) / rate, -2 * curvature, rtol=1e-8, atol=1e-8)


def test_step_of_the_softmax_is_that_of_its_exact_expectations():
    """Its derivatives are averages of E[p] and E[p (1 - p)] over Sobol points: near the gradient of the integral."""
    model, x, y = problem("softmax")
    nodes, log_weights = (torch.from_numpy(part) for part in np.polynomial.hermite_e.hermegauss(24))
    grid = torch.cartesian_prod(nodes, nodes, nodes)[:, None]  # [H, 1, Q]
    weights = torch.cartesian_prod(*[log_weights / math.sqrt(2 * math.pi)] * 3).prod(-1)

    class Exact(UserSoftmax):
        def expected_log_prob(self, mean, variance, y, noise=None):
            return torch.einsum("h,h...->...", weights, self.log_prob(mean + variance.sqrt() * grid, y))

    exact = copy.deepcopy(model)
    exact.likelihood = Exact()
    slope, curvature = natural_gradient(exact, x, y)
    before = Natural.of(model.posterior)
    natural_step(model, x, y)
    after = Natural.of(model.posterior)
    assert (after.shift - before.shift - slope).abs().max() < 2e-3 * slope.abs().max()
    assert (after.precision - before.precision + 2 * curvature).abs().max() < 2e-3 * 2 * curvature.abs().max()


@pytest.mark.parametrize("name", ["gaussian", "gaussian, separate kernels and inputs"])
def test_one_step_of_rate_one_lands_on_the_optimum_from_anywhere(name):
    model, x, y = problem(name)
    assert slopes(model, x, y).abs().max() > 1
    natural_step(model, x, y)
    assert slopes(model, x, y).abs().max() < 1e-9
    again = copy.deepcopy(model)
    natural_step(again, x, y)
    found, expected = Natural.of(again.posterior), Natural.of(model.posterior)
    torch.testing.assert_close(found.precision, expected.precision, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found.shift, expected.shift, rtol=1e-9, atol=1e-9)


def test_one_step_of_rate_one_reaches_the_collapsed_bound():
    model, x, y = problem("gaussian")
    z, rows = model.inducing_inputs[0].detach().numpy(), x.numpy()
    natural_step(model, x, y)
    grams = [rbf(a, b, LENGTHSCALE, VARIANCE) for a, b in ((z, z), (z, rows), (rows, rows))]
    expected = sum(collapsed_bound(*grams, column, NOISE) for column in y.numpy().T)
    assert elbo(model, x, y).item() == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("name", ["bernoulli, logit", "bernoulli, probit", "poisson", "softmax, by a user"])
def test_repeated_steps_converge_to_a_stationary_point(name):
    model, x, y = problem(name)
    start = elbo(model, x, y)
    for _ in range(80):
        natural_step(model, x, y, rate=0.9)
    assert slopes(model, x, y).abs().max() < 1e-8
    assert elbo(model, x, y) > start + 1
    # q is Gaussian and log p concave, so that the ELBO is concave in (m, root): the point is its maximum
    best = elbo(model, x, y)
    generator = torch.Generator().manual_seed(1)
    for scale in (1e-2, 1e-1):
        nearby = copy.deepcopy(model)
        with torch.no_grad():
            for parameter in nearby.posterior.parameters():
                parameter.add_(scale * torch.randn(parameter.shape, dtype=torch.float64, generator=generator))
        assert elbo(nearby, x, y) < best


def test_repeated_steps_of_the_softmax_stop_within_the_error_of_its_points():
    """Value and derivatives are averages over the same points of different functions, so they differ a little."""
    model, x, y = problem("softmax")
    exact, _, _ = problem("softmax, by a user")
    for _ in range(80):
        natural_step(model, x, y, rate=0.9)
        natural_step(exact, x, y, rate=0.9)
    still = copy.deepcopy(model)
    natural_step(still, x, y, rate=0.9)
    found, expected = Natural.of(still.posterior), Natural.of(model.posterior)
    torch.testing.assert_close(found.shift, expected.shift, rtol=1e-9, atol=1e-9)
    assert 0 <= (elbo(exact, x, y) - elbo(model, x, y)).item() < 1e-3


@pytest.mark.parametrize("name", [*CONCAVE, "softmax"])
def test_minibatch_steps_average_to_the_full_step(name):
    model, x, y = problem(name)
    full = copy.deepcopy(model)
    natural_step(full, x, y, rate=0.3)
    whole = Natural.of(full.posterior)
    parts = []
    for rows in torch.randperm(48, generator=torch.Generator().manual_seed(2)).split(8):
        part = copy.deepcopy(model)
        natural_step(part, x[rows], y[rows], rate=0.3, num_data=48)
        parts.append(Natural.of(part.posterior))
        assert (parts[-1].shift - whole.shift).abs().max() > 0.1
    for found, expected in (
        (torch.stack([part.precision for part in parts]).mean(0), whole.precision),
        (torch.stack([part.shift for part in parts]).mean(0), whole.shift),
    ):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_clipping_keeps_the_precision_positive_definite_where_log_p_is_not_concave():
    x, generator = inputs()
    y = torch.sin(2 * x[:, 0]) + 20 * torch.randn(48, dtype=torch.float64, generator=generator)  # outliers throughout
    model = SparseGP(RBF(LENGTHSCALE, VARIANCE), StudentT(df=3.0, scale=0.05), x[:20])
    unclipped = False
    for _ in range(50):
        with torch.no_grad():
            basis, _ = model.basis(x, model.prepare())
            marginals = model(x)
        _, beta = model.likelihood.expected_derivatives(marginals.mean[0], marginals.variance[0], y[:, None])
        assert (beta > 0).any()  # convex somewhere
        target = torch.eye(20, dtype=torch.float64) - 2 * (basis[0] * beta[:, 0]) @ basis[0].T
        unclipped |= bool(torch.linalg.eigvalsh(target)[0] < 0)
        natural_step(model, x, y, rate=0.9)
        assert torch.linalg.eigvalsh(Natural.of(model.posterior).precision)[0, 0] >= 1 - 1e-9
        assert torch.isfinite(elbo(model, x, y))
    assert unclipped  # without the clip the step would have left the positive definite matrices


def held(model: SparseGP) -> Held:
    prepared = model.prepare()
    return Held.of(prepared.moments, prepared.factor)


@pytest.mark.parametrize("name", CONCAVE)
def test_whitened_and_held_posteriors_of_equal_moments_agree(name):
    model, x, y = problem(name)
    natural_step(model, x, y, rate=0.5)
    q = held(model)
    assert model.prepare(q).moments.kl().item() == pytest.approx(model.prepare().moments.kl().item(), rel=1e-9)
    finite = name in ("bernoulli, logit", "softmax, by a user")  # for the others q is too wide here
    for objective in (elbo, predictive, loo) if finite else (elbo, predictive):
        assert objective(model, x, y, q=q).item() == pytest.approx(objective(model, x, y).item(), rel=1e-9)
    for found, expected in zip(model.predictor(q).predict(x), model.predict(x), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("diagonal", [False, True])
def test_a_held_mixture_agrees_with_the_mixture(diagonal):
    model, x, y = problem("bernoulli, logit")
    model.posterior = Posterior(1, 10, num_components=3, diagonal=diagonal, spread=0.7)
    with torch.no_grad():
        model.posterior.logits.copy_(torch.tensor([0.3, -0.5, 0.1]))
        model.posterior.log_scale.copy_(0.5 * torch.randn(3, 1, 10, generator=torch.Generator().manual_seed(3)))
    q = held(model)
    for objective in (elbo, predictive, loo):
        assert objective(model, x, y, q=q).item() == pytest.approx(objective(model, x, y).item(), rel=1e-9)
    assert model.prepare(q).moments.kl().item() == pytest.approx(model.prepare().moments.kl().item(), rel=1e-9)


def unwhitened(log_lengthscale: float, z, x, y, mean, covariance) -> tuple[float, float]:
    """Bound and leave-one-out of the logistic model for q(u) = N(mean, covariance), textbook form."""
    lengthscale = math.exp(log_lengthscale)
    kzz = rbf(z, z, lengthscale, VARIANCE) + 1e-10 * VARIANCE * np.eye(len(z))
    project = np.linalg.solve(kzz, rbf(z, x, lengthscale, VARIANCE))  # Kzz^-1 Kzx
    m = project.T @ mean
    v = VARIANCE - (rbf(z, x, lengthscale, VARIANCE) * project).sum(0) + (project * (covariance @ project)).sum(0)
    divergence = 0.5 * (
        np.trace(np.linalg.solve(kzz, covariance))
        + mean @ np.linalg.solve(kzz, mean)
        - len(z)
        + np.linalg.slogdet(kzz)[1]
        - np.linalg.slogdet(covariance)[1]
    )
    nodes, weights = np.polynomial.hermite_e.hermegauss(20)
    f = m + np.sqrt(v) * nodes[:, None]
    data = weights / weights.sum() @ -np.logaddexp(0, -(2 * y - 1) * f)
    return float(data.sum() - divergence), float(-np.logaddexp(0, -(2 * y - 1) * m + v / 2).sum())


def test_lengthscale_gradient_with_q_of_u_held_is_that_of_the_unwhitened_formula():
    model, x, y = problem("bernoulli, logit")
    natural_step(model, x, y, rate=0.5)
    fixed = held(model)
    mean, covariance = fixed.mean[0, 0].numpy(), fixed.covariance[0, 0].numpy()
    arguments = (model.inducing_inputs[0].detach().numpy(), x.numpy(), y.numpy(), mean, covariance)
    centre, step = math.log(LENGTHSCALE), 1e-3
    for number, objective in enumerate((elbo, loo)):
        values = [unwhitened(centre + shift * step, *arguments)[number] for shift in (-2, -1, 1, 2)]
        expected = float(np.dot([1, -8, 8, -1], values)) / (12 * step)
        assert objective(model, x, y, q=fixed).item() == pytest.approx(unwhitened(centre, *arguments)[number], rel=1e-9)
        slope, other = (
            torch.autograd.grad(objective(model, x, y, q=q), model.kernel.log_lengthscale)[0].item()
            for q in (fixed, None)
        )
        assert slope == pytest.approx(expected, rel=1e-7)
        assert abs(slope - other) > 0.01 * abs(slope)  # holding q(v) is another thing
