"""The sparse GP: chunks, precision, joint distributions and samples, errors, likelihoods of the user's own."""

import copy
import math
import re
import subprocess
import sys
import textwrap
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import autogp.model
from autogp import NotPositiveDefiniteError, Posterior, SparseGP, elbo, loo, predictive
from autogp.kernels import RBF, Kernel, Matern32
from autogp.likelihoods import Bernoulli, Gaussian, Likelihood, Network, Poisson, Softmax, StudentT
from autogp.posteriors import Held, Natural, Sites


def rows(number: int, columns: int = 2, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(number, columns, dtype=torch.float64, generator=generator).to(dtype)


def scattered(model: SparseGP, seed: int = 0) -> SparseGP:
    """The model, its q moved to some place of no distinction."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.posterior.parameters():
            parameter.add_(0.4 * torch.randn(parameter.shape, dtype=torch.float64, generator=generator))
    return model


def models() -> dict[str, SparseGP]:
    """One of each kind of posterior, kernel and inducing inputs, for several likelihoods."""
    z = rows(6, seed=1)
    separate = RBF([[0.8, 1.2], [1.0, 0.7], [1.5, 1.5]], [1.0, 2.0, 0.5])
    return {
        "gaussian": scattered(SparseGP(RBF([0.8, 1.2], 1.4), Gaussian(2, variance=0.2), z)),
        "separate kernels": scattered(SparseGP(separate, Gaussian(3, variance=0.2), z)),
        "separate inputs": scattered(SparseGP(RBF(), Softmax(3), rows(18, seed=1).reshape(3, 6, 2))),
        "separate kernels and inputs": scattered(SparseGP(separate, Softmax(3), rows(18, seed=1).reshape(3, 6, 2))),
        "mixture": scattered(SparseGP(RBF(), Bernoulli(), z, posterior=Posterior(1, 6, 3, spread=1.0))),
        "diagonal mixture": scattered(SparseGP(RBF(), Poisson(), z, posterior=Posterior(1, 6, 2, diagonal=True))),
        "mixture of separate kernels": scattered(SparseGP(separate, Network(2), z, posterior=Posterior(3, 6, 2))),
    }


MODELS = list(models())


# -- chunks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_prediction_in_chunks_of_any_size_equals_prediction_at_once(name):
    model, x = models()[name], rows(23)
    predictor = model.predictor()
    whole = predictor(x)
    for chunk_size in (*range(1, 23), 24, 1000, None):
        for chunk, found in predictor.chunks(x, chunk_size):
            torch.testing.assert_close(found.mean, whole.mean[:, chunk], rtol=1e-11, atol=1e-12)
            torch.testing.assert_close(found.variance, whole.variance[:, chunk], rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_mean_of_a_predictor_is_that_of_the_mixture(name):
    model, x = models()[name], rows(23)
    found = model(x)
    expected = (found.log_weights.exp()[:, None, None] * found.mean).sum(0).detach()
    torch.testing.assert_close(model.predictor().mean(x), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("lower", [False, True])
def test_predictor_takes_any_root_of_the_covariance(lower):
    model, x = models()["gaussian"], rows(23)
    with torch.no_grad():
        moments = model.posterior.moments()
        covariance = moments.covariance()
        root = (
            torch.linalg.cholesky(covariance) if lower else torch.linalg.cholesky(covariance.flip(-2, -1)).flip(-2, -1)
        )
        q = SimpleNamespace(moments=lambda inverse: replace(moments, root=root))
        torch.testing.assert_close(model.predictor(q)(x).variance, model(x).variance, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_chunks_are_the_marginals_of_their_rows(name):
    model, x = models()[name], rows(23)
    whole, seen = model(x), 0
    for rows_of_chunk, part in model.predictor().chunks(x, chunk_size=5):
        assert rows_of_chunk.start == seen
        seen = rows_of_chunk.stop
        assert not part.mean.requires_grad
        torch.testing.assert_close(part.mean, whole.mean[:, rows_of_chunk].detach(), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(part.variance, whole.variance[:, rows_of_chunk].detach(), rtol=1e-12, atol=1e-12)
    assert seen == 23


class LargestTensor(TorchDispatchMode):
    """Remembers the most numbers that any operation allocated; what `given` holds does not count."""

    def __init__(self, given: Tensor) -> None:
        super().__init__()
        self.given = given.untyped_storage().data_ptr()
        self.numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, Tensor) and tensor.untyped_storage().data_ptr() != self.given:
                self.numbers = max(self.numbers, tensor.untyped_storage().nbytes() // tensor.element_size())
        return result


@pytest.mark.parametrize("columns", [2, 600])
@pytest.mark.parametrize("name", ["softmax", "gaussian", "mixture", "separate kernels"])
def test_temporaries_of_a_prediction_do_not_grow_with_its_rows(name, columns, monkeypatch):
    limit = 2**16
    monkeypatch.setattr(autogp.model, "CHUNK_NUMBERS", limit)
    z = rows(30, columns, seed=1)
    model = {
        "softmax": SparseGP(RBF(), Softmax(3), z),
        "gaussian": SparseGP(RBF(), Gaussian(), z),
        "mixture": SparseGP(RBF(), Bernoulli(), z, posterior=Posterior(1, 30, 4)),
        "separate kernels": SparseGP(RBF(torch.ones(3, columns)), Gaussian(3), z),
    }[name]
    x = rows(3000, columns)
    with LargestTensor(x) as largest:
        model.predict(x)
    assert largest.numbers <= limit
    with LargestTensor(x) as largest:
        model(x)
    assert largest.numbers > limit


def test_memory_of_a_prediction_does_not_grow_with_its_rows():
    """In a process of its own, for the peak. All rows at once would take 320 MB for each of several temporaries."""
    program = """
        import resource, torch
        from autogp import SparseGP
        from autogp.kernels import RBF
        from autogp.likelihoods import Gaussian
        torch.set_num_threads(1)
        model = SparseGP(RBF(), Gaussian(), torch.randn(400, 4))
        def peak():
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # MB
        model.predict(torch.randn(40_000, 4))
        before = peak()
        prediction = model.predict(torch.randn(200_000, 4))
        assert prediction.mean.shape == (200_000, 1) and prediction.mean.dtype == torch.float32
        print(peak() - before)
    """
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True)
    assert float(run.stdout) < 200


# -- precision ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_float32_blocks_are_close_to_float64_blocks(name):
    model, x = models()[name], rows(40)
    coarse = copy.deepcopy(model)
    coarse.jitter.fill_(1e-6)  # as if built in float32
    prepared = coarse.prepare()
    exact = coarse.marginals(x, prepared)  # blocks in float64 beside the same L
    found = coarse(x)
    assert found.mean.dtype == found.variance.dtype == torch.float32
    torch.testing.assert_close(found.mean.double(), exact.mean, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found.variance.double(), exact.variance, rtol=1e-3, atol=1e-4)
    for one, other in zip(coarse.predict(x), coarse.likelihood.predict(*exact[:3]), strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one.double(), other, rtol=2e-3, atol=1e-4)


@pytest.mark.parametrize("built", [torch.float32, torch.float64])
def test_predictions_do_not_depend_on_the_precision_of_the_rows(built):
    """Inducing inputs so dense that L depends on the jitter, which therefore must be the same for all rows."""
    x = torch.linspace(-3, 3, 97, dtype=torch.float64)[:, None]
    model = SparseGP(RBF(), Gaussian(variance=0.01), torch.linspace(-3, 3, 30)[:, None].to(built))
    y = torch.sin(x)
    with torch.no_grad():
        blocks = x.to(built)
        prepared = model.prepare()
        basis, _ = model.basis(blocks, prepared)
        mean, variance = (part[0] for part in model.marginals(blocks, prepared)[1:3])
    alpha, beta = model.likelihood.expected_derivatives(mean, variance, y)
    q = Natural.of(model.posterior)
    q.blend(Sites.of_rows(basis, mean, alpha.to(mean), beta.to(mean), torch.ones_like(mean[:, 0])), 1.0)
    model.posterior.set_natural(q)
    single, double = model.predict(x.float()), model.predict(x)
    assert (double.mean - y).abs().max() < 0.02
    assert (single.mean - double.mean).abs().max() < 0.001
    torch.testing.assert_close(single.variance, double.variance, rtol=0.01, atol=0)


def test_jitter_is_part_of_the_models_state():
    built_in_float32 = SparseGP(RBF(), Gaussian(), rows(5, dtype=torch.float32))
    loaded = SparseGP(RBF(), Gaussian(), rows(5))
    assert loaded.jitter == 1e-10
    loaded.load_state_dict(built_in_float32.state_dict())
    assert loaded.jitter == 1e-6


def test_float32_samples_of_a_precise_posterior_can_be_drawn():
    """What the data leave of the variance is below the rounding of float32."""
    z = torch.linspace(-3, 3, 30)[:, None]
    model = SparseGP(RBF(), Gaussian(variance=1e-4), z)
    with torch.no_grad():
        model.posterior.log_scale.sub_(math.log(1e3))
    x = torch.linspace(-3, 3, 200)[:, None]
    draws = model.sample(x, 50, torch.Generator().manual_seed(0))
    assert draws.dtype == torch.float32
    assert draws.shape == (50, 200, 1)
    assert draws.std() < 0.01


# -- joint distribution and samples ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_diagonal_of_the_joint_covariance_is_the_marginal_variance(name):
    model, x = models()[name], rows(9)
    joint, marginals = model.joint(x), model(x)
    torch.testing.assert_close(joint.log_weights, marginals.log_weights)
    torch.testing.assert_close(joint.mean.mT, marginals.mean, rtol=1e-12, atol=1e-12)
    found = torch.diagonal(joint.covariance, dim1=-2, dim2=-1).mT
    torch.testing.assert_close(found, marginals.variance, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(joint.covariance, joint.covariance.mT, rtol=1e-10, atol=1e-12)
    assert torch.linalg.eigvalsh(joint.covariance).min() > -1e-10


@pytest.mark.parametrize("name", MODELS)
def test_joint_at_the_inducing_inputs_is_q_of_u(name):
    """b = L m and covariance L S L', with the jitter that L L' has over Kzz."""
    model = models()[name]
    prepared = model.prepare()
    moments, factor = prepared.moments, prepared.factor
    mean = (factor @ moments.mean[..., None]).squeeze(-1)
    covariance = factor @ moments.covariance() @ factor.mT
    for latent in range(model.likelihood.num_latents):
        joint = model.joint(model.inducing_inputs[latent % len(model.inducing_inputs)].detach())
        torch.testing.assert_close(joint.mean[:, latent], mean[:, latent], rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(joint.covariance[:, latent], covariance[:, latent], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["gaussian", "separate kernels", "mixture", "diagonal mixture"])
def test_samples_have_the_joints_mean_and_covariance(name):
    model, x, number = models()[name], rows(4), 200_000
    generator = torch.Generator().manual_seed(0)
    draws = model.sample(x, number, generator).mT  # [S, Q, R]
    with torch.no_grad():
        log_weights, means, covariances = model.joint(x)
    pi = log_weights.exp()[:, None, None]
    mean = (pi * means).sum(0)  # [Q, R]
    away = means - mean
    covariance = (pi[..., None] * (covariances + away[..., :, None] * away[..., None, :])).sum(0)
    error = (torch.diagonal(covariance, dim1=-2, dim2=-1) / number).sqrt()
    assert ((draws.mean(0) - mean).abs() / error).max() < 5
    products = (draws - mean)[..., :, None] * (draws - mean)[..., None, :]
    assert ((products.mean(0) - covariance).abs() / (products.std(0) / number**0.5)).max() < 5
    # All entries and four times the draws together, to see half a per cent: white noise has a mean square of 1.
    root = torch.linalg.cholesky(covariance)
    squares = []
    for more in (draws, *(model.sample(x, number, generator).mT for _ in range(3))):
        white = torch.linalg.solve_triangular(root, (more - mean)[..., None], upper=False)
        squares.append(white.square().mean((1, 2, 3)))
    pooled = torch.cat(squares)
    error = pooled.std() / len(pooled) ** 0.5
    assert error < 0.001
    assert (pooled.mean() - 1).abs() < 5 * error


def test_samples_of_a_mixture_come_from_its_components_as_often_as_their_weights():
    model, number = SparseGP(RBF(), Gaussian(), rows(3, seed=1), posterior=Posterior(1, 3, 3)), 100_000
    weights = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
    with torch.no_grad():
        model.posterior.logits.copy_(weights.log())
        model.posterior.mean.copy_(torch.tensor([-100.0, 0.0, 100.0])[:, None, None].expand(3, 1, 3))
    u = model.sample(model.inducing_inputs[0].detach(), number, torch.Generator().manual_seed(0))[:, 0, 0]
    found = torch.stack([(u < -50).double(), (u.abs() < 50).double(), (u > 50).double()]).mean(1)
    assert ((found - weights).abs() / (weights * (1 - weights) / number).sqrt()).max() < 5


def test_samples_depend_on_the_generator_alone():
    model, x = models()["mixture"], rows(4)
    first, again, other = (model.sample(x, 3, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1))
    torch.testing.assert_close(first, again, rtol=0, atol=0)
    assert not torch.equal(first, other)


# -- the prior's part --------------------------------------------------------------------------------------------------


def test_marginals_far_from_all_inducing_inputs_are_the_prior():
    model = scattered(SparseGP(RBF(1.0, 1.7), Gaussian(), rows(6)))
    far = model(torch.full((1, 2), 100.0, dtype=torch.float64))
    assert far.mean.abs().item() < 1e-12
    assert far.variance.item() == pytest.approx(1.7, rel=1e-12)


def test_marginals_of_the_prior_have_mean_zero_and_the_kernels_variance():
    marginals = SparseGP(RBF(1.0, 1.7), Gaussian(), rows(6))(rows(20))
    torch.testing.assert_close(marginals.mean, torch.zeros_like(marginals.mean))
    torch.testing.assert_close(marginals.variance, torch.full_like(marginals.variance, 1.7), rtol=1e-9, atol=0)


def test_variances_are_positive_and_clamps_are_counted_where_rounding_makes_them_negative():
    z = torch.linspace(-1, 1, 40)[:, None]
    model = SparseGP(RBF(2.0), Gaussian(), z)
    with torch.no_grad():
        model.posterior.log_scale.sub_(math.log(1e4))
    marginals = model(z)
    assert (marginals.variance > 0).all()
    assert (marginals.residual < 0).any()
    assert SparseGP(RBF(0.1), Gaussian(), rows(5))(rows(5, seed=2)).residual.min() > 0


def test_marginals_of_a_held_q_are_those_of_the_posterior_that_it_holds():
    model, x = models()["separate kernels"], rows(9)
    prepared = model.prepare()
    held = Held.of(prepared.moments, prepared.factor)
    for found, expected in zip(model(x, held), model(x), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-9)
    for found, expected in zip(model.predictor(held)(x), model(x), strict=True):
        torch.testing.assert_close(found, expected.detach(), rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "hold"),
    [*((name, False) for name in MODELS), ("gaussian", True), ("separate kernels", True), ("mixture", True)],
)
def test_gradients_of_marginals_equal_finite_differences(name, hold):
    model, x = models()[name], rows(5)
    prepared = model.prepare()
    q = Held.of(prepared.moments, prepared.factor) if hold else None
    parameters = [*model.kernel.parameters(), model.inducing_inputs]
    weights = [rows(part.numel(), 1, seed=seed).reshape(part.shape) for seed, part in enumerate(model(x, q)[1:3])]

    def value() -> Tensor:
        return sum((weight * part).sum() for weight, part in zip(weights, model(x, q)[1:3], strict=True))

    slopes = torch.autograd.grad(value(), parameters)
    for parameter, slope in zip(parameters, slopes, strict=True):
        direction = rows(parameter.numel(), 1, seed=5).reshape(parameter.shape)
        start, values = parameter.detach().clone(), []
        with torch.no_grad():
            for step in (-2e-3, -1e-3, 1e-3, 2e-3):
                parameter.copy_(start + step * direction)
                values.append(value().item())
            parameter.copy_(start)
        expected = (values[0] - 8 * values[1] + 8 * values[2] - values[3]) / 12e-3
        assert (slope * direction).sum().item() == pytest.approx(expected, rel=1e-6, abs=1e-8)


# -- likelihoods of the user's own -------------------------------------------------------------------------------------


class Laplace(Likelihood):
    """Nothing but a density."""

    def log_prob(self, f, y):
        return -(y - f[..., 0]).abs() - torch.tensor(2.0).log()


class Preference(Likelihood):
    """Two latent functions, the worth of two things, of which one is preferred."""

    num_latents = 2

    def log_prob(self, f, y):
        return torch.nn.functional.logsigmoid(y * (f[..., 0] - f[..., 1]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("posterior", ["gaussian", "mixture"])
@pytest.mark.parametrize("likelihood", [Laplace(), Preference()])
def test_a_likelihood_with_nothing_but_log_prob_has_everything(likelihood, posterior, dtype):
    latents = likelihood.num_latents
    mixture = Posterior(latents, 6, 2) if posterior == "mixture" else None
    model = SparseGP(RBF(), likelihood, rows(6, seed=1, dtype=dtype), posterior=mixture)
    x = rows(30, dtype=dtype)
    y = torch.sin(3 * x[:, 0]).sign()
    for objective in (elbo, loo, predictive):
        exact = objective(model, x, y, num_data=300)
        (slope,) = torch.autograd.grad(exact, model.kernel.log_lengthscale)
        assert torch.isfinite(exact)
        assert torch.isfinite(slope).all()
        sampled = objective(model, x, y, num_data=300, samples=4000, generator=torch.Generator().manual_seed(0))
        assert sampled.item() == pytest.approx(exact.item(), rel=0.02)
    prediction = model.predict(x)
    assert prediction.mean.shape == prediction.variance.shape == (30, latents)
    assert prediction.mean.dtype == dtype
    marginals = model(x)
    alpha, beta = likelihood.expected_derivatives(marginals.mean, marginals.variance, y)
    assert alpha.shape == beta.shape == marginals.mean.shape


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("x", "error", "words"),
    [
        (rows(4, 3), ValueError, r"x must have shape \[N, 2\], got \(4, 3\)"),
        (rows(4)[None], ValueError, r"x must have shape \[N, 2\], got \(1, 4, 2\)"),
        (rows(4)[:, 0], ValueError, "x must have shape"),
        (rows(4)[:0], ValueError, "x must have at least one row"),
        (rows(4) / 0, ValueError, "x contains NaN or infinity, first at row 0, column 0"),
        (torch.where(torch.arange(8).reshape(4, 2) == 5, torch.nan, 0.0), ValueError, "row 2, column 1"),
        (rows(4).numpy(), TypeError, "x must be a tensor of real numbers, got ndarray"),
    ],
)
@pytest.mark.parametrize("method", ["forward", "predict", "joint", "sample", "elbo", "loo", "predictive"])
def test_wrong_rows_are_refused_in_words(x, error, words, method):
    model = SparseGP(RBF(), Gaussian(variance=5.0), rows(5))
    objectives = {"elbo": elbo, "loo": loo, "predictive": predictive}
    call = partial(objectives[method], model, y=torch.zeros(len(x))) if method in objectives else getattr(model, method)
    with pytest.raises(error, match=words):
        call(x=x)


@pytest.mark.parametrize(
    ("inducing_inputs", "error", "words"),
    [
        (rows(5)[:0], ValueError, r"inducing_inputs must have rows and columns, got shape \(0, 2\)"),
        (rows(5)[:, :0], ValueError, r"inducing_inputs must have rows and columns, got shape \(5, 0\)"),
        (rows(5)[:, 0], ValueError, "inducing_inputs must have shape"),
        (rows(5).repeat(2, 1, 1), ValueError, r"\[M, D\] or \[3, M, D\] for a likelihood of 3 latent functions"),
        (rows(5)[None, None], ValueError, "inducing_inputs must have shape"),
        (rows(5) * torch.nan, ValueError, "inducing_inputs contains NaN or infinity"),
        (rows(5).int(), TypeError, "inducing_inputs must be a floating-point tensor, got torch.int32"),
        (rows(5).numpy(), TypeError, "inducing_inputs must be a floating-point tensor, got ndarray"),
    ],
)
def test_wrong_inducing_inputs_are_refused_in_words(inducing_inputs, error, words):
    with pytest.raises(error, match=words):
        SparseGP(RBF(), Softmax(3), inducing_inputs)


@pytest.mark.parametrize("inducing_inputs", [rows(5), rows(5).repeat(2, 1, 1)])
def test_a_kernel_for_another_number_of_latents_is_refused(inducing_inputs):
    with pytest.raises(ValueError, match=r"for 3 latent functions, the likelihood needs 1 \(shared\) or 2"):
        SparseGP(RBF(variance=[1.0, 2.0, 3.0]), Gaussian(2), inducing_inputs).predict(rows(4))


def test_a_kernel_for_another_number_of_columns_is_refused():
    with pytest.raises(ValueError, match="2 columns, but the kernel has parameters for 3"):
        SparseGP(RBF([1.0, 1.0, 1.0]), Gaussian(), rows(5))


@pytest.mark.parametrize(("latents", "inducing"), [(2, 5), (1, 4), (1, 1)])
def test_a_posterior_of_another_shape_is_refused(latents, inducing):
    """One of them would broadcast in silence."""
    model = SparseGP(RBF(), Gaussian(), rows(5), posterior=Posterior(latents, inducing))
    words = f"over {latents} latent functions at {inducing} inducing inputs, the model has 1 and 5"
    with pytest.raises(ValueError, match=words):
        elbo(model, rows(4), torch.zeros(4))


@pytest.mark.parametrize("chunk_size", [0, -1])
def test_chunks_of_no_rows_are_refused(chunk_size):
    with pytest.raises(ValueError, match=f"chunk_size must be at least 1, got {chunk_size}"):
        next(SparseGP(RBF(), Gaussian(), rows(5)).predictor().chunks(rows(4), chunk_size))


class Distance(Kernel):
    """Symmetric, but no covariance."""

    def gram(self, x, z):
        return torch.cdist(x, z) + 1

    def diag(self, x):
        return torch.ones_like(x[..., 0])


@pytest.mark.parametrize("action", ["prepare", "predict", "elbo"])
def test_a_matrix_that_cannot_be_factorised_names_kernel_pair_and_remedy(action):
    z = torch.tensor([[0.0, 0.0], [1.0, 0.0], [3.0, 0.0], [3.0, 0.25]])
    model = SparseGP(Distance(), Gaussian(), z)
    call = {"prepare": model.prepare, "predict": partial(model.predict, z), "elbo": partial(elbo, model, z, z[:, 0])}
    with pytest.raises(NotPositiveDefiniteError) as caught:
        call[action]()
    message = str(caught.value)
    assert "kernel Distance" in message
    assert "the closest inducing inputs, 2 and 3, are 0.25 apart" in message
    assert re.search("Use fewer inducing inputs, or a kernel with shorter lengthscales", message)
    assert "relative jitter of 0.0001" in message


def test_parameters_beyond_floating_point_are_named_too():
    model = SparseGP(Matern32(), StudentT(), rows(5))
    with torch.no_grad():
        model.kernel.log_variance.fill_(1000.0)
    with pytest.raises(NotPositiveDefiniteError, match=r"NaN or infinity.*kernel Matern32"):
        model.predict(rows(4))


def test_inducing_inputs_that_coincide_are_factorised_with_jitter():
    z = rows(5).repeat(2, 1)
    model = scattered(SparseGP(RBF(), Gaussian(), z))
    assert torch.isfinite(elbo(model, rows(20), torch.zeros(20)))
