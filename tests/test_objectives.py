"""The three objectives: their reductions, weights, minibatches, estimates by sampling, and errors."""

import math

import pytest
import torch
from torch import Tensor

from autogp import InfiniteLOOError, Posterior, SparseGP, elbo, loo, predictive
from autogp.kernels import RBF
from autogp.likelihoods import Bernoulli, Gaussian, Likelihood, Network, Poisson, Softmax, StudentT
from autogp.model import Marginals
from autogp.objectives import expected_log_prob, log_predictive, pareto_k

ROWS, COMPONENTS = 12, 3
OBJECTIVES = {"elbo": elbo, "loo": loo, "predictive": predictive}


def likelihoods() -> dict[str, Likelihood]:
    return {
        "gaussian": Gaussian(2, variance=torch.tensor([6.0, 8.0])),
        "logit": Bernoulli(),
        "probit": Bernoulli(link="probit"),
        "softmax": Softmax(3),
        "poisson": Poisson(),
        "student-t": StudentT(),
        "network": Network(2),
    }


FINITE = ["gaussian", "logit", "softmax", "student-t"]


def targets(likelihood: Likelihood, rows: int = ROWS) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    if isinstance(likelihood, Softmax):
        return torch.randint(3, (rows,), generator=generator)
    if isinstance(likelihood, Bernoulli):
        return torch.randint(2, (rows,), generator=generator)
    if isinstance(likelihood, Poisson):
        return torch.randint(5, (rows,), generator=generator)
    outputs = 2 if isinstance(likelihood, Gaussian | Network) else 1
    return torch.randn(rows, outputs, dtype=torch.float64, generator=generator)


def problem(name: str, components: int = COMPONENTS) -> tuple[SparseGP, Tensor, Tensor]:
    likelihood, generator = likelihoods()[name], torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, 2, dtype=torch.float64, generator=generator)
    model = SparseGP(RBF(1.0, 0.8), likelihood, x[:5], posterior=Posterior(likelihood.num_latents, 5, components))
    with torch.no_grad():
        for parameter in model.posterior.parameters():
            parameter.add_(0.5 * torch.randn(parameter.shape, dtype=torch.float64, generator=generator))
        model.posterior.log_scale.sub_(0.5)
    return model, x, targets(likelihood)


def noise_for(marginals: Marginals, samples: int, seed: int = 0) -> Tensor:
    shape = (samples, *marginals.mean.mT.shape)
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).mT


def leave_one_out(likelihood: Likelihood, marginals: Marginals, y: Tensor, noise: Tensor | None = None) -> Tensor:
    """The reduction of q(f) that every likelihood has; Gaussian noise has another for one component."""
    return Likelihood.log_leave_one_out(likelihood, *marginals, y, noise)


# -- reductions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FINITE)
def test_reductions_of_samples_equal_brute_force(name):
    """sum_k pi_k mean_s l, -log sum_k pi_k mean_s exp(-l), log sum_k pi_k mean_s exp(l), number by number."""
    model, x, y = problem(name)
    likelihood, marginals = model.likelihood, model(x)
    y, noise = likelihood.check_targets(y), noise_for(marginals, samples=7)
    pi = marginals.log_weights.exp()
    expected = torch.zeros(3, ROWS, dtype=torch.float64)
    for row in range(ROWS):
        total = [0.0, 0.0, 0.0]
        for k in range(COMPONENTS):
            for s in range(7):
                f = marginals.mean[k, row] + marginals.variance[k, row].sqrt() * noise[s, k, row]
                log_p = likelihood.log_prob(f[None], y[[row]]).item()
                share = pi[k].item() / 7
                for number, value in enumerate((log_p, math.exp(-log_p), math.exp(log_p))):
                    total[number] += share * value
        expected[:, row] = torch.tensor([total[0], -math.log(total[1]), math.log(total[2])], dtype=torch.float64)
    for function, values in zip((expected_log_prob, leave_one_out, log_predictive), expected, strict=True):
        torch.testing.assert_close(function(likelihood, marginals, y, noise).detach(), values, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", FINITE)
def test_closed_forms_of_a_mixture_are_mixed_by_their_weights(name):
    model, x, y = problem(name)
    likelihood, marginals = model.likelihood, model(x)
    y, pi = likelihood.check_targets(y), marginals.log_weights.exp()[:, None]
    parts = [
        Marginals(torch.zeros(1, dtype=torch.float64), marginals.mean[[k]], marginals.variance[[k]], marginals.residual)
        for k in range(COMPONENTS)
    ]
    data, left_out, density = (
        torch.stack([function(likelihood, part, y) for part in parts])
        for function in (expected_log_prob, leave_one_out, log_predictive)
    )
    for function, expected in (
        (expected_log_prob, (pi * data).sum(0)),
        (leave_one_out, -(pi * (-left_out).exp()).sum(0).log()),
        (log_predictive, (pi * density.exp()).sum(0).log()),
    ):
        torch.testing.assert_close(function(likelihood, marginals, y), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", FINITE)
def test_leave_one_out_is_below_the_elbos_data_term_and_that_below_the_predictive(name):
    """Jensen twice: 1 / E[1/p] <= exp E[log p] <= E[p]."""
    model, x, y = problem(name)
    arguments = (model.likelihood, model(x), model.likelihood.check_targets(y))
    low, middle, high = (function(*arguments) for function in (leave_one_out, expected_log_prob, log_predictive))
    assert (low < middle).all()
    assert (middle < high).all()


@pytest.mark.parametrize("name", FINITE)
def test_the_three_agree_where_q_has_no_spread(name):
    model, x, y = problem(name, components=1)
    likelihood, y = model.likelihood, model.likelihood.check_targets(y)
    mean = model(x).mean
    marginals = Marginals(torch.zeros(1, dtype=torch.float64), mean, torch.full_like(mean, 1e-14), torch.tensor(0))
    for function in (expected_log_prob, leave_one_out, log_predictive):
        found = function(likelihood, marginals, y)
        torch.testing.assert_close(found, likelihood.log_prob(mean[0], y), rtol=1e-7, atol=1e-7)


def test_reductions_survive_probabilities_that_underflow():
    """p = exp(-2000) is 0 in floating point; logsumexp never sees it."""
    likelihood, y = Bernoulli(), torch.ones(1, 1)
    mean = torch.full((2, 1, 1), -2000.0)
    marginals = Marginals(torch.full((2,), 0.5).log(), mean, torch.ones_like(mean), torch.tensor(0))
    for noise in (None, torch.zeros(5, 2, 1, 1)):
        for function in (expected_log_prob, leave_one_out, log_predictive):
            assert function(likelihood, marginals, y, noise).item() == pytest.approx(-2000, rel=0.02)


# -- totals ------------------------------------------------------------------------------------------------------------


def objectives_of(name: str) -> list[str]:
    return list(OBJECTIVES) if name in FINITE else ["elbo", "predictive"]


CASES = [(name, objective) for name in likelihoods() for objective in objectives_of(name)]


@pytest.mark.parametrize(("name", "objective"), CASES)
def test_objectives_are_totals_of_their_rows(name, objective):
    model, x, y = problem(name)
    function = {"elbo": expected_log_prob, "loo": leave_one_out, "predictive": log_predictive}[objective]
    rows = function(model.likelihood, model(x), model.likelihood.check_targets(y))
    divergence = model.prepare().moments.kl() if objective == "elbo" else 0.0
    expected = rows.sum() - divergence
    torch.testing.assert_close(OBJECTIVES[objective](model, x, y), expected, rtol=1e-12, atol=1e-12)
    found = OBJECTIVES[objective](model, x, y, num_data=100 * ROWS)
    torch.testing.assert_close(found, 100 * rows.sum() - divergence, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("name", "objective"), CASES)
def test_minibatches_of_a_partition_average_to_the_full_value(name, objective):
    model, x, y = problem(name)
    full = OBJECTIVES[objective](model, x, y)
    for size in (1, 3, 4, 6):
        parts = [
            OBJECTIVES[objective](model, x[rows], y[rows], num_data=ROWS)
            for rows in torch.randperm(ROWS, generator=torch.Generator().manual_seed(size)).split(size)
        ]
        torch.testing.assert_close(torch.stack(parts).mean(), full, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(("name", "objective"), CASES)
def test_a_short_last_batch_is_scaled_by_its_own_size(name, objective):
    """Weighted by their sizes, batches of 5, 5 and 2 rows give the full value too."""
    model, x, y = problem(name)
    parts = [
        (len(rows), OBJECTIVES[objective](model, x[rows], y[rows], num_data=ROWS))
        for rows in torch.arange(ROWS).split(5)
    ]
    found = sum(size * value for size, value in parts) / ROWS
    torch.testing.assert_close(found, OBJECTIVES[objective](model, x, y), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(("name", "objective"), CASES)
def test_weight_two_is_the_row_repeated_and_weight_zero_the_row_absent(name, objective):
    model, x, y = problem(name)
    function = OBJECTIVES[objective]
    weights = torch.ones(ROWS, dtype=torch.float64)
    weights[4], weights[7] = 2, 0
    kept = [0, 1, 2, 3, 4, 4, 5, 6, 8, 9, 10, 11]
    found = function(model, x, y, weights=weights)
    torch.testing.assert_close(found, function(model, x[kept], y[kept]), rtol=1e-12, atol=1e-12)
    # with one num_data for both, and as many rows
    found = function(model, x, y, weights=weights, num_data=600)
    torch.testing.assert_close(found, function(model, x[kept], y[kept], num_data=600), rtol=1e-12, atol=1e-12)
    weights[4] = 1
    kept.remove(4)
    found = function(model, x, y, weights=weights, num_data=12)
    torch.testing.assert_close(found, function(model, x[kept], y[kept], num_data=11), rtol=1e-12, atol=1e-12)


def test_a_missing_target_adds_nothing():
    model, x, y = problem("gaussian")
    y[3, :] = torch.nan
    present = torch.arange(ROWS) != 3
    for function in OBJECTIVES.values():
        torch.testing.assert_close(function(model, x, y), function(model, x[present], y[present]))


# -- sampling ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gaussian", "logit", "poisson", "student-t", "network"])
def test_sampled_elbo_is_unbiased(name):
    """The mean of 20,000 estimates from one sample each, all at once."""
    model, x, y = problem(name)
    likelihood, repeats = model.likelihood, 20_000
    with torch.no_grad():
        model.kernel.log_variance.sub_(2.0)  # exp(f) of a wide f would need many more samples
        exact = elbo(model, x, y, num_data=50).item()
        found = elbo(model, x, y, num_data=50, samples=repeats, generator=torch.Generator().manual_seed(1)).item()
        marginals = model(x)
        f = marginals.mean + marginals.variance.sqrt() * noise_for(marginals, repeats, seed=1)
        data = marginals.log_weights.exp()[:, None] * likelihood.log_prob(f, likelihood.check_targets(y))  # [S, K, B]
        estimates = 50 / ROWS * data.sum((1, 2)) - model.prepare().moments.kl()
    assert found == pytest.approx(estimates.mean().item(), rel=1e-10)
    error = estimates.std().item() / repeats**0.5
    assert error < 0.001 * abs(exact)  # half a per cent would be seen
    assert abs(found - exact) < 5 * error


def test_elbo_by_few_samples_is_unbiased():
    """As a trainer calls it: again and again, with one generator."""
    model, x, y = problem("logit")
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        exact = elbo(model, x, y)
        estimates = torch.stack([elbo(model, x, y, samples=4, generator=generator) for _ in range(800)])
    error = estimates.std().item() / 800**0.5
    assert error < 0.002 * abs(exact.item())
    assert abs(estimates.mean().item() - exact.item()) < 5 * error


@pytest.mark.parametrize("objective", ["loo", "predictive"])
@pytest.mark.parametrize("name", FINITE)
def test_sampled_objectives_converge_to_the_exact_ones(name, objective):
    model, x, y = problem(name)
    function = OBJECTIVES[objective]
    with torch.no_grad():
        exact = function(model, x, y).item()
        found = [
            function(model, x, y, samples=20_000, generator=torch.Generator().manual_seed(seed)).item()
            for seed in range(5)
        ]
    assert sum(found) / len(found) == pytest.approx(exact, rel=0.005)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_sampled_objectives_depend_on_the_generator_alone(objective):
    model, x, y = problem("softmax")
    first, again, other = (
        OBJECTIVES[objective](model, x, y, samples=5, generator=torch.Generator().manual_seed(seed))
        for seed in (0, 0, 1)
    )
    assert first == again
    assert first != other


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("name", FINITE)
def test_float32_rows_give_nearly_the_same_value_and_gradient(name, objective):
    model, x, y = problem(name)
    model.jitter.fill_(1e-6)
    results = []
    for rows in (x, x.float()):
        value = OBJECTIVES[objective](model, rows, y, num_data=100)
        results.append((value, *torch.autograd.grad(value, [model.kernel.log_lengthscale, model.posterior.mean])))
    for exact, found in zip(*results, strict=True):
        torch.testing.assert_close(found.double(), exact.double(), rtol=1e-3, atol=1e-3 * exact.abs().max().item())


# -- where leave-one-out is infinite -----------------------------------------------------------------------------------


@pytest.mark.parametrize("samples", [None, 10])
@pytest.mark.parametrize("name", ["poisson", "network"])
def test_infinite_leave_one_out_names_the_likelihood_and_the_remedy(name, samples):
    model, x, y = problem(name)
    with pytest.raises(InfiniteLOOError, match="predictive") as caught:
        loo(model, x, y, samples=samples)
    assert type(model.likelihood).__name__ in str(caught.value)


@pytest.mark.parametrize("likelihood", [Gaussian(variance=0.5), Bernoulli(link="probit")])
def test_a_q_as_wide_as_the_noise_has_no_leave_one_out(likelihood):
    """The error counts the rows, and gives the first one with its own variance."""
    x = torch.tensor([[0.0], [5.0], [9.0]], dtype=torch.float64)
    model = SparseGP(RBF(1.0, 3.0), likelihood, x[:1])
    with torch.no_grad():
        model.posterior.log_scale.sub_(math.log(10))
    name = type(likelihood).__name__
    with pytest.raises(InfiniteLOOError, match=f"{name} likelihood: at 2 of 3 rows.*row 1, with variance 3") as caught:
        leave_one_out(likelihood, model(x), likelihood.check_targets(torch.zeros(3)))
    assert "predictive" in str(caught.value)
    assert torch.isfinite(predictive(model, x, torch.zeros(3)))
    assert torch.isfinite(loo(model, x[:1], torch.zeros(1)))


def test_leave_one_out_of_gaussian_noise_is_finite_however_wide_q_is():
    """What no inducing input tells of f has learnt from no row: it stays in the prediction, and is not divided out."""
    x = torch.tensor([[0.0], [5.0], [9.0]], dtype=torch.float64)
    model = SparseGP(RBF(1.0, 3.0), Gaussian(variance=0.5), x[:1])
    far = loo(model, x[1:], torch.zeros(2))
    expected = torch.distributions.Normal(0.0, 3.5**0.5).log_prob(torch.tensor(0.0)) * 2
    assert far.item() == pytest.approx(expected.item(), rel=1e-4)


# -- the Pareto diagnostic ---------------------------------------------------------------------------------------------


def test_pareto_k_tells_heavy_tails_from_light_ones():
    """Ratios U^-k have a Pareto tail of shape k."""
    uniform = torch.rand(20_000, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for k in (0.3, 0.7, 1.5):
        found = pareto_k(-k * uniform.log())
        assert found.shape == (50,)
        assert ((found.mean() - k).abs() / (found.std() / 50**0.5)).item() < 5
    assert pareto_k(uniform).max() < 0.2  # bounded ratios


def test_pareto_k_is_of_each_column_by_itself_in_any_precision_and_shape():
    ratios = torch.randn(500, 3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = pareto_k(ratios)
    assert found.shape == (3, 2)
    for index in ((0, 0), (2, 1)):
        torch.testing.assert_close(pareto_k(ratios[:, *index]), found[index], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(pareto_k(ratios.float()), found, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(pareto_k(ratios + 1000), found, rtol=1e-9, atol=1e-9)  # a common factor


def test_pareto_k_of_constant_ratios_is_harmless_and_of_infinite_ones_is_not():
    assert pareto_k(torch.zeros(100)) < 0.7
    assert pareto_k(torch.tensor([math.inf, *[0.0] * 99])) == math.inf


def test_pareto_k_of_too_few_samples_is_refused():
    assert torch.isfinite(pareto_k(torch.randn(21, generator=torch.Generator().manual_seed(0))))
    with pytest.raises(ValueError, match="at least 21 samples, got 20"):
        pareto_k(torch.zeros(20))


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"y": torch.zeros(ROWS - 1, 2)}, "y must have one row per row of x, got 11 and 12"),
        ({"y": torch.zeros(ROWS, 3)}, r"y must have shape \[B, 2\], got \(12, 3\)"),
        ({"y": torch.full((ROWS, 2), torch.inf)}, "y contains infinity, first at row 0"),
        ({"weights": torch.ones(ROWS - 1)}, "weights must be 12 finite numbers, none negative"),
        ({"weights": torch.ones(ROWS, 1)}, "weights must be 12 finite numbers, none negative"),
        ({"weights": -torch.ones(ROWS)}, "weights must be 12 finite numbers, none negative"),
        ({"weights": torch.full((ROWS,), torch.nan)}, "weights must be 12 finite numbers, none negative"),
        ({"samples": 0}, "samples must be at least 1, got 0"),
        ({"samples": -3}, "samples must be at least 1, got -3"),
        ({"num_data": ROWS - 1}, "num_data must be at least the size of the batch, 12, got 11"),
        ({"num_data": 0}, "num_data must be at least the size of the batch, 12, got 0"),
    ],
)
def test_wrong_arguments_are_refused_in_words(objective, arguments, words):
    model, x, y = problem("gaussian")
    with pytest.raises(ValueError, match=words):
        OBJECTIVES[objective](model, **({"x": x, "y": y} | arguments))


@pytest.mark.parametrize("likelihood", [Gaussian(variance=0.5), Bernoulli(link="probit")], ids=["gaussian", "probit"])
def test_samples_do_not_hide_that_leave_one_out_is_infinite(likelihood):
    noise = torch.randn(50, 1, 2, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mean, narrow = torch.zeros(1, 2, 1, dtype=torch.float64), torch.full((1, 2, 1), 0.1, dtype=torch.float64)
    y = likelihood.check_targets(torch.tensor([1.0, 0.0], dtype=torch.float64))
    rows = Marginals(torch.zeros(1, dtype=torch.float64), mean, narrow, torch.tensor(0))
    assert torch.isfinite(likelihood.log_leave_one_out(*rows, y, noise)).all()
    wide = rows._replace(variance=torch.tensor([0.1, 2.0], dtype=torch.float64).reshape(1, 2, 1))
    with pytest.raises(InfiniteLOOError, match=r"at 1 of 2 rows .* row 1, with variance 2"):
        likelihood.log_leave_one_out(*wide, y, noise)
