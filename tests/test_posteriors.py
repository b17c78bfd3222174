"""Posteriors over the inducing values: moments, projections, natural steps, and conversions between them."""

import math

import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal, kl_divergence

from autogp import Posterior
from autogp.moments import DenseMoments, DiagonalMoments, HeldMoments, Moments, RootMoments
from autogp.posteriors import Held, Natural, Sites, Unwhitened

LATENTS, INDUCING, ROWS = 3, 5, 7


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def prior(groups: int = 1) -> tuple[Tensor, Tensor]:
    """A factor L [G, M, M] of some prior covariance, and its inverse."""
    noise = randn(groups, INDUCING, INDUCING, seed=7)
    factor = torch.linalg.cholesky(noise @ noise.mT + 0.5 * torch.eye(INDUCING, dtype=torch.float64))
    return factor, torch.linalg.inv(factor)


def natural() -> Natural:
    q = Natural.prior(LATENTS, INDUCING)
    noise = randn(LATENTS, INDUCING, INDUCING)
    q.precision.add_(noise @ noise.mT)
    q.shift.add_(noise[..., 0])
    return q


def mixture(components: int, diagonal: bool) -> Posterior:
    posterior = Posterior(LATENTS, INDUCING, components, diagonal)
    with torch.no_grad():
        for seed, parameter in enumerate(posterior.parameters()):
            parameter.copy_(0.5 * randn(*parameter.shape, seed=seed))
    return posterior


def held(groups: int = 1) -> Held:
    return Held.of(mixture(2, False).moments(prior(groups)[1]), prior(groups)[0])


POSTERIORS = {
    "natural": natural,
    "one component": lambda: mixture(1, False),
    "mixture": lambda: mixture(3, False),
    "diagonal mixture": lambda: mixture(3, True),
    "held": held,
}


def whitened(moments: Moments) -> Tensor:
    return moments.whitened().mean if isinstance(moments, HeldMoments) else moments.mean


# -- where they start --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "posterior",
    [
        Natural.prior(LATENTS, INDUCING),
        Posterior(LATENTS, INDUCING),
        Posterior(LATENTS, INDUCING, diagonal=True),
        Posterior(LATENTS, INDUCING, 3, spread=0.0),
    ],
)
def test_posteriors_start_at_the_prior(posterior):
    moments = posterior.moments(prior()[1])
    assert moments.mean.abs().max() == 0
    eye = torch.eye(INDUCING, dtype=torch.float64)
    torch.testing.assert_close(moments.covariance(), eye.expand_as(moments.covariance()))
    assert moments.kl().abs().item() < 1e-12
    assert moments.log_weights.exp().sum().item() == pytest.approx(1)


def test_components_start_apart_and_depend_on_the_generator_alone():
    """Components that start equal stay equal."""
    first, again = Posterior(LATENTS, INDUCING, 2), Posterior(LATENTS, INDUCING, 2)
    other = Posterior(LATENTS, INDUCING, 2, generator=torch.Generator().manual_seed(1))
    assert (first.mean[0] - first.mean[1]).abs().max() > 0.1
    torch.testing.assert_close(first.mean, again.mean, rtol=0, atol=0)
    assert not torch.equal(first.mean, other.mean)


@pytest.mark.parametrize("sizes", [(0, 5, 1), (2, 0, 1), (2, 5, 0), (2, 5, -1)])
def test_sizes_that_are_not_positive_are_refused(sizes):
    with pytest.raises(ValueError, match="must be positive"):
        Posterior(*sizes)


# -- moments -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", POSTERIORS)
def test_log_det_is_that_of_the_covariance(name):
    moments = POSTERIORS[name]().moments(prior()[1])
    covariance = moments.dense if name == "held" else moments.covariance()
    torch.testing.assert_close(moments.log_det, torch.logdet(covariance), rtol=1e-10, atol=1e-10)


def test_gaussian_moments_invert_the_natural_parameters():
    posterior = natural()
    moments = posterior.moments(prior()[1])
    covariance = torch.linalg.inv(posterior.precision)
    torch.testing.assert_close(moments.covariance()[0], covariance, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(
        moments.mean[0], (covariance @ posterior.shift[..., None])[..., 0], rtol=1e-10, atol=1e-12
    )


def test_a_precision_that_is_not_positive_definite_gives_nan_for_its_latent_alone():
    posterior = natural()
    posterior.precision[1].neg_()
    moments = posterior.moments(prior()[1])
    assert moments.covariance()[0, 1].isnan().all()
    assert moments.mean[0, 1].isnan().all()
    torch.testing.assert_close(moments.covariance()[0, 0], torch.linalg.inv(posterior.precision[0]), rtol=1e-10, atol=0)


@pytest.mark.parametrize("condition", [1.0, 1e4, 1e8])
def test_covariances_are_exact_for_precisions_of_any_condition(condition):
    """Lambda = I + something large, as data make it: S Lambda = I to the accuracy that the condition allows."""
    posterior, size = Natural.prior(1, 120), 120
    directions = torch.linalg.qr(randn(size, size)).Q
    eigenvalues = torch.logspace(0, math.log10(condition), size, dtype=torch.float64)
    posterior.precision.copy_(directions * eigenvalues @ directions.mT)
    covariance = posterior.moments(torch.eye(size)).covariance()[0, 0]
    expected = directions / eigenvalues @ directions.mT
    assert (covariance - expected).norm() < 1e-15 * size * condition * expected.norm()
    assert torch.equal(covariance, covariance.mT)


@pytest.mark.parametrize("name", POSTERIORS)
@pytest.mark.parametrize("groups", [1, LATENTS])
def test_projection_is_the_mean_and_variance_of_a_linear_map(name, groups):
    """f = A'v has mean A'm and variance diag(A'SA)."""
    posterior = held(groups) if name == "held" else POSTERIORS[name]()
    moments, basis = posterior.moments(prior(groups)[1]), randn(groups, INDUCING, ROWS, seed=3)
    mean, variance = moments.project(basis)
    wide = basis.expand(LATENTS, -1, -1)
    torch.testing.assert_close(mean, torch.einsum("qmb,kqm->kqb", wide, whitened(moments)), rtol=1e-9, atol=1e-10)
    expected = torch.einsum("qmb,kqmn,qnb->kqb", wide, moments.covariance(), wide)
    torch.testing.assert_close(variance, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("groups", [1, LATENTS])
def test_factored_moments_are_the_dense_ones(groups):
    posterior = natural()
    dense, factored = posterior.moments(prior()[1]), posterior.factored(torch.float64)
    found = []
    for moments in (dense, factored):
        basis = randn(groups, INDUCING, ROWS, seed=3).requires_grad_()
        mean, variance = moments.project(basis)
        (mean.square().sum() + variance.exp().sum()).backward()
        found.append((moments.mean, moments.log_det, moments.covariance(), mean, variance, basis.grad))
    torch.testing.assert_close(found[1], found[0], rtol=1e-9, atol=1e-10)


def test_the_trace_of_factored_moments_is_exact_for_diagonals_and_near_for_the_rest():
    posterior = Natural.prior(2, 300)
    posterior.precision.mul_(torch.linspace(1, 5, 300, dtype=torch.float64))
    posterior.shift.fill_(0.1)
    exact = posterior.moments(prior()[1]).kl()
    torch.testing.assert_close(posterior.factored(torch.float64).kl(), exact, rtol=1e-12, atol=0)
    noise = randn(2, 300, 100)
    posterior.precision.add_(noise @ noise.mT)
    exact = posterior.moments(prior()[1]).kl()
    torch.testing.assert_close(posterior.factored(torch.float64).kl(), exact, rtol=0.01, atol=0)


def test_factored_moments_of_a_precision_that_is_none_are_not_a_number():
    posterior = natural()
    posterior.precision[1].neg_()
    moments = posterior.factored(torch.float64)
    assert moments.mean.isnan().any(-1).tolist() == [[False, True, False]]


@pytest.mark.parametrize("name", POSTERIORS)
@pytest.mark.parametrize("groups", [1, LATENTS])
def test_gradients_of_the_projection_by_the_basis_equal_finite_differences(name, groups):
    posterior = held(groups) if name == "held" else POSTERIORS[name]()
    moments = posterior.moments(prior(groups)[1])
    basis = randn(groups, INDUCING, ROWS, seed=3).requires_grad_()
    assert torch.autograd.gradcheck(moments.project, (basis,), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", ["natural", "held"])
def test_a_second_derivative_of_constant_covariances_is_refused_rather_than_wrong(name):
    moments = POSTERIORS[name]().moments(prior()[1])
    basis = randn(1, INDUCING, ROWS, seed=3).requires_grad_()
    (slope,) = torch.autograd.grad(moments.project(basis)[1].square().sum(), basis, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.sum().backward()


@pytest.mark.parametrize("diagonal", [False, True])
def test_gradients_of_a_mixture_by_its_parameters_equal_finite_differences(diagonal):
    posterior, basis = mixture(2, diagonal), randn(1, INDUCING, ROWS, seed=3)
    names = [name for name, _ in posterior.named_parameters()]

    def value(*parameters: Tensor) -> Tensor:
        replaced = dict(zip(names, parameters, strict=True))
        copied = mixture(2, diagonal)
        for name in names:
            delattr(copied, name)
            setattr(copied, name, replaced[name])
        moments = copied.moments(prior()[1])
        mean, variance = moments.project(basis)
        weights = moments.log_weights.exp()[:, None, None]
        return (weights * mean).sum(), (weights * variance).sum(), moments.kl()

    start = tuple(parameter.detach().clone().requires_grad_() for parameter in posterior.parameters())
    assert torch.autograd.gradcheck(value, start, rtol=1e-6, atol=1e-8)


def test_kinds_of_moments_agree_on_equal_distributions():
    """The same diagonal covariances by their diagonals, by a root, and as they are."""
    scale = randn(2, LATENTS, INDUCING, seed=1).exp()
    log_weights, mean = torch.log_softmax(randn(2), 0), randn(2, LATENTS, INDUCING, seed=2)
    log_det, basis = 2 * scale.log().sum(-1), randn(1, INDUCING, ROWS, seed=3)
    kinds = [
        DiagonalMoments(log_weights, mean, log_det, scale.square()),
        RootMoments(log_weights, mean, log_det, torch.diag_embed(scale)),
        DenseMoments(log_weights, mean, log_det, torch.diag_embed(scale.square())),
    ]
    for kind in kinds[1:]:
        torch.testing.assert_close(kind.kl(), kinds[0].kl(), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(kind.covariance(), kinds[0].covariance(), rtol=1e-12, atol=1e-12)
        for found, expected in zip(kind.project(basis), kinds[0].project(basis), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", POSTERIORS)
def test_projection_of_a_float32_basis_is_float32_and_close(name):
    moments, basis = POSTERIORS[name]().moments(prior()[1]), randn(1, INDUCING, ROWS, seed=3)
    for found, expected in zip(moments.project(basis.float()), moments.project(basis), strict=True):
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)


# -- natural steps -----------------------------------------------------------------------------------------------------


def step(q: Natural, groups: int = 1, rate: float = 0.3, weights: Tensor | None = None, rows=slice(None)):
    basis = randn(groups, INDUCING, ROWS, seed=3)[..., rows]
    mean, alpha, beta = (randn(ROWS, LATENTS, seed=seed)[rows] for seed in (4, 5, 6))
    weights = torch.ones(len(mean), dtype=torch.float64) if weights is None else weights
    q.blend(Sites.of_rows(basis, mean, alpha, -beta.abs(), weights), rate)
    return basis, mean, alpha, -beta.abs()


@pytest.mark.parametrize("groups", [1, LATENTS])
@pytest.mark.parametrize("rate", [1.0, 0.3])
def test_natural_step_is_its_formula(groups, rate):
    posterior, before = natural(), natural()
    basis, mean, alpha, beta = step(posterior, groups, rate, weights=torch.arange(1.0, ROWS + 1, dtype=torch.float64))
    for latent in range(LATENTS):
        block = basis[latent % groups]
        precision, shift = torch.eye(INDUCING, dtype=torch.float64), torch.zeros(INDUCING, dtype=torch.float64)
        for row in range(ROWS):
            curvature = -2 * beta[row, latent]
            precision = precision + (row + 1) * curvature * torch.outer(block[:, row], block[:, row])
            shift = shift + (row + 1) * (alpha[row, latent] + curvature * mean[row, latent]) * block[:, row]
        expected = (1 - rate) * before.precision[latent] + rate * precision
        torch.testing.assert_close(posterior.precision[latent], expected, rtol=1e-12, atol=1e-12)
        expected = (1 - rate) * before.shift[latent] + rate * shift
        torch.testing.assert_close(posterior.shift[latent], expected, rtol=1e-12, atol=1e-12)


def test_a_row_of_weight_two_steps_like_two_rows_and_of_weight_zero_like_none():
    double, repeated = natural(), natural()
    step(double, weights=torch.tensor([2.0, 0, 1, 1, 1, 1, 1], dtype=torch.float64))
    step(repeated, rows=[0, 0, 2, 3, 4, 5, 6])
    torch.testing.assert_close(double.precision, repeated.precision, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(double.shift, repeated.shift, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("groups", [1, LATENTS])
def test_step_of_a_matrix_of_many_blocks_equals_the_formula(groups):
    size, rate = 203, 0.3
    posterior = Natural.prior(LATENTS, size)
    basis, mean, alpha = randn(groups, size, ROWS), randn(ROWS, LATENTS, seed=1), randn(ROWS, LATENTS, seed=2)
    beta, weights = -randn(ROWS, LATENTS, seed=3).square(), randn(ROWS, seed=4).exp()
    posterior.blend(Sites.of_rows(basis, mean, alpha, beta, weights), rate)
    wide = basis.expand(LATENTS, -1, -1)
    data = torch.einsum("qmb,bq,b,qnb->qmn", wide, -2 * beta, weights, wide)
    eye = torch.eye(size, dtype=torch.float64)
    torch.testing.assert_close(posterior.precision, eye + rate * data, rtol=1e-11, atol=1e-11)
    slope = torch.einsum("qmb,bq,b->qm", wide, alpha - 2 * beta * mean, weights)
    torch.testing.assert_close(posterior.shift, rate * slope, rtol=1e-11, atol=1e-11)


def test_precision_stays_symmetric_over_many_steps():
    posterior = natural()
    for _ in range(200):
        step(posterior, rate=0.05)
    torch.testing.assert_close(posterior.precision, posterior.precision.mT, rtol=0, atol=0)


def test_a_float32_basis_steps_nearly_like_a_float64_one():
    coarse, exact = natural(), natural()
    basis, mean, alpha, beta = step(exact)
    coarse.blend(Sites.of_rows(basis.float(), mean.float(), alpha.float(), beta.float(), torch.ones(ROWS)), 0.3)
    assert coarse.precision.dtype == torch.float64
    torch.testing.assert_close(coarse.precision, exact.precision, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(coarse.shift, exact.shift, rtol=1e-5, atol=1e-5)


def test_convex_rows_add_slope_but_no_curvature():
    posterior, before = natural(), natural()
    basis, mean, alpha = randn(1, INDUCING, 1, seed=3), randn(1, LATENTS, seed=4), randn(1, LATENTS, seed=5)
    ones = torch.ones(1, LATENTS, dtype=torch.float64)
    posterior.blend(Sites.of_rows(basis, mean, alpha, ones, ones[:, 0]), 1.0)
    torch.testing.assert_close(
        posterior.precision, torch.eye(INDUCING, dtype=torch.float64).expand_as(before.precision)
    )
    torch.testing.assert_close(posterior.shift, alpha[0][:, None] * basis[0, :, 0], rtol=1e-12, atol=1e-12)


# -- conversions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["moments", "natural form", "natural form of moments"])
def test_setting_moments_gives_them_back(way):
    moments, fresh = natural().moments(prior()[1]), Posterior(LATENTS, INDUCING)
    if way == "moments":
        fresh.set_moments(moments.mean, moments.covariance())
    elif way == "natural form":
        fresh.set_natural(natural())
        torch.testing.assert_close(Natural.of(fresh).precision, natural().precision, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(Natural.of(fresh).shift, natural().shift, rtol=1e-10, atol=1e-10)
    else:
        fresh.set_natural(Natural.of_moments(moments.mean, moments.covariance()))
    found = fresh.moments(prior()[1])
    torch.testing.assert_close(found.mean, moments.mean, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(found.covariance(), moments.covariance(), rtol=1e-10, atol=1e-12)
    assert found.kl().item() == pytest.approx(moments.kl().item(), rel=1e-10)


@pytest.mark.parametrize("diagonal", [False, True])
def test_setting_moments_of_a_mixture_gives_them_back(diagonal):
    moments, fresh = mixture(3, diagonal).moments(prior()[1]), Posterior(LATENTS, INDUCING, 3, diagonal)
    fresh.set_moments(moments.mean.detach(), moments.covariance().detach())
    torch.testing.assert_close(fresh.moments(prior()[1]).covariance(), moments.covariance(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("groups", [1, LATENTS])
@pytest.mark.parametrize("name", [name for name in POSTERIORS if name != "held"])
def test_holding_q_of_u_and_whitening_it_again_changes_nothing(name, groups):
    factor, inverse = prior(groups)
    moments = POSTERIORS[name]().moments(inverse)
    found = Held.of(moments, factor).moments(inverse)
    torch.testing.assert_close(found.whitened().mean, moments.mean, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(found.covariance(), moments.covariance(), rtol=1e-9, atol=1e-10)
    assert found.kl().item() == pytest.approx(moments.kl().item(), rel=1e-9)


@pytest.mark.parametrize("components", [1, 2])
@pytest.mark.parametrize("diagonal", [False, True])
@pytest.mark.parametrize("groups", [1, LATENTS])
def test_parameters_of_q_of_u_have_the_divergence_and_marginals_of_u(groups, diagonal, components):
    """Against formulas in the coordinates of u; an untrained posterior starts at N(0, I) over u, as in the paper."""
    factor, inverse = prior(groups)
    posterior, fresh = mixture(components, diagonal), Posterior(LATENTS, INDUCING, components, diagonal)
    q = Unwhitened(posterior, factor)
    q.load_state_dict(posterior.state_dict())
    moments = q.moments(inverse)
    covariance = posterior.moments().covariance()  # S_u
    torch.testing.assert_close(factor @ moments.covariance() @ factor.mT, covariance, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close((factor @ moments.mean[..., None])[..., 0], posterior.mean, rtol=1e-9, atol=1e-10)
    if components == 1:
        zero = torch.zeros(INDUCING, dtype=torch.float64)
        expected = kl_divergence(
            MultivariateNormal(posterior.mean[0], covariance[0]), MultivariateNormal(zero, factor @ factor.mT)
        )
        assert moments.kl().item() == pytest.approx(expected.sum().item(), rel=1e-9)
    started = Unwhitened(fresh, factor)
    assert all(torch.equal(one, other) for one, other in zip(started.parameters(), fresh.parameters(), strict=True))
    same = Unwhitened(posterior, factor).moments(inverse)  # of one that was trained: the same q
    torch.testing.assert_close(same.mean, posterior.mean, rtol=1e-9, atol=1e-10)
    if not diagonal:
        torch.testing.assert_close(same.covariance(), covariance, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("groups", [1, LATENTS])
def test_held_q_of_u_stays_while_the_prior_moves(groups):
    factor, inverse = prior(groups)
    posterior = Held.of(natural().moments(inverse), factor)
    moved = 2 * factor
    found = posterior.moments(torch.linalg.inv(moved))
    u = MultivariateNormal(posterior.mean[0], posterior.covariance[0])
    expected = kl_divergence(u, MultivariateNormal(torch.zeros(INDUCING, dtype=torch.float64), moved @ moved.mT)).sum()
    assert found.kl().item() == pytest.approx(expected.item(), rel=1e-9)
    torch.testing.assert_close(
        (moved @ found.whitened().mean[..., None])[..., 0], posterior.mean, rtol=1e-9, atol=1e-10
    )
    torch.testing.assert_close(moved @ found.covariance() @ moved.mT, posterior.covariance, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("condition", [1.0, 1e6, 1e12])
def test_the_root_of_a_natural_form_is_as_exact_as_its_condition_allows(condition):
    """The root is that of the inverse by triangular solves alone: no covariance has to be factorised."""
    size, q = 60, Natural.prior(1, 60)
    directions = torch.linalg.qr(randn(size, size)).Q
    eigenvalues = torch.logspace(0, math.log10(condition), size, dtype=torch.float64)
    q.precision.copy_((directions * eigenvalues) @ directions.mT)
    posterior = Posterior(1, size)
    posterior.set_natural(q)
    root = posterior.moments().root[0, 0]
    assert torch.equal(root, root.triu())
    identity = root.mT @ q.precision[0] @ root
    assert (identity - torch.eye(size, dtype=torch.float64)).abs().max() < 1e-13 + 1e-17 * condition


@pytest.mark.parametrize("posterior", [Posterior(2, 3, 2), Posterior(2, 3, diagonal=True)])
def test_natural_form_is_for_one_full_gaussian(posterior):
    assert not posterior.has_natural_form
    with pytest.raises(TypeError, match="one Gaussian with a full covariance"):
        Natural.of(posterior)


@pytest.mark.parametrize(("components", "diagonal"), [(1, False), (3, False), (2, True)])
def test_states_are_saved_and_loaded(components, diagonal):
    posterior, fresh = mixture(components, diagonal), Posterior(LATENTS, INDUCING, components, diagonal)
    fresh.load_state_dict(posterior.state_dict())
    torch.testing.assert_close(fresh.moments().kl(), posterior.moments().kl(), rtol=0, atol=0)
