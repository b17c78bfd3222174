"""With a Gaussian likelihood the model is Gaussian process regression, exactly or through Titsias' bound."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from formulas import collapsed_bound, exact_posterior, log_evidence, natural_step, rbf

from autogp import SparseGP, elbo
from autogp.kernels import RBF
from autogp.likelihoods import Gaussian
from autogp.posteriors import Natural

LENGTHSCALE, VARIANCE, NOISE = np.array([0.8, 1.5]), 1.7, 0.1


def data(rows: int = 40, outputs: int = 1, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs [rows, 2], targets [rows, outputs] drawn from the model, and test inputs [15, 2]."""
    rng = np.random.default_rng(seed)
    x, new = rng.uniform(-5, 5, (rows, 2)), rng.uniform(-6, 6, (15, 2))
    total = rbf(x, x, LENGTHSCALE, VARIANCE) + NOISE * np.eye(rows)
    return x, np.linalg.cholesky(total) @ rng.standard_normal((rows, outputs)), new


def fitted(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> SparseGP:
    """The model with the optimal q: one natural step of rate 1 from the prior."""
    kernel = RBF(lengthscale=torch.from_numpy(LENGTHSCALE), variance=VARIANCE)
    model = SparseGP(kernel, Gaussian(y.shape[1], variance=NOISE), torch.from_numpy(z))
    natural_step(model, torch.from_numpy(x), torch.from_numpy(y))
    return model


def bound(model: SparseGP, x: np.ndarray, y: np.ndarray) -> float:
    return elbo(model, torch.from_numpy(x), torch.from_numpy(y)).item()


def exact_evidence(x: np.ndarray, y: np.ndarray) -> float:
    kxx = rbf(x, x, LENGTHSCALE, VARIANCE)
    return sum(log_evidence(kxx, column, NOISE) for column in y.T)


@pytest.mark.parametrize("seed", range(5))
def test_elbo_with_inducing_at_data_equals_exact_evidence(seed):
    x, y, _ = data(seed=seed)
    assert bound(fitted(x, y, z=x), x, y) == pytest.approx(exact_evidence(x, y), rel=1e-8)


@pytest.mark.parametrize("seed", range(5))
def test_posterior_with_inducing_at_data_equals_exact_posterior(seed):
    x, y, new = data(seed=seed)
    mean, covariance = exact_posterior(
        rbf(x, x, LENGTHSCALE, VARIANCE),
        rbf(new, x, LENGTHSCALE, VARIANCE),
        rbf(new, new, LENGTHSCALE, VARIANCE),
        y[:, 0],
        NOISE,
    )
    model = fitted(x, y, z=x)
    marginals, joint = model(torch.from_numpy(new)), model.joint(torch.from_numpy(new))
    prediction = model.predict(torch.from_numpy(new))
    for found, expected in (
        (marginals.mean[0, :, 0], mean),
        (marginals.variance[0, :, 0], np.diag(covariance)),
        (joint.mean[0, 0], mean),
        (joint.covariance[0, 0], covariance),
        (prediction.mean[:, 0], mean),
        (prediction.variance[:, 0], np.diag(covariance) + NOISE),
    ):
        np.testing.assert_allclose(found.detach().numpy(), expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize("size", [1, 5, 12, 25])
def test_elbo_at_optimal_q_equals_collapsed_bound(size):
    x, y, _ = data()
    z = x[:size]
    expected = collapsed_bound(
        rbf(z, z, LENGTHSCALE, VARIANCE),
        rbf(z, x, LENGTHSCALE, VARIANCE),
        rbf(x, x, LENGTHSCALE, VARIANCE),
        y[:, 0],
        NOISE,
    )
    assert bound(fitted(x, y, z), x, y) == pytest.approx(expected, rel=1e-8)


def test_elbo_at_any_other_q_is_below_collapsed_bound():
    x, y, _ = data()
    model = fitted(x, y, x[:12])
    best = bound(model, x, y)
    generator = torch.Generator().manual_seed(0)
    q = Natural.of(model.posterior)
    for scale in (1e-3, 1e-1, 1.0):
        noise = torch.randn(q.precision.shape, dtype=torch.float64, generator=generator)
        moved = Natural(q.precision + scale * noise @ noise.mT, q.shift + scale * noise[..., 0])
        model.posterior.set_natural(moved)
        assert bound(model, x, y) < best - 1e-8


def test_collapsed_bound_grows_with_nested_inducing_inputs_up_to_the_evidence():
    x, y, _ = data()
    bounds = [bound(fitted(x, y, x[:size]), x, y) for size in range(2, 41, 2)]
    evidence = exact_evidence(x, y)
    assert all(later > earlier for earlier, later in pairwise(bounds))
    assert bounds[0] < evidence - 10
    assert all(value < evidence for value in bounds)


def test_several_outputs_are_the_sum_of_independent_processes():
    x, y, new = data(outputs=3)
    together = fitted(x, y, x[:15])
    apart = [fitted(x, y[:, [output]], x[:15]) for output in range(3)]
    alone = sum(bound(model, x, y[:, [output]]) for output, model in enumerate(apart))
    assert bound(together, x, y) == pytest.approx(alone, rel=1e-12)
    joint = together(torch.from_numpy(new))
    for output, model in enumerate(apart):
        single = model(torch.from_numpy(new))
        torch.testing.assert_close(joint.mean[..., [output]], single.mean, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(joint.variance[..., [output]], single.variance, rtol=1e-10, atol=1e-12)


def test_several_outputs_with_inducing_at_data_have_the_sum_of_exact_evidences():
    x, y, _ = data(outputs=3)
    assert bound(fitted(x, y, x), x, y) == pytest.approx(exact_evidence(x, y), rel=1e-8)


@pytest.mark.parametrize("separate_kernel", [False, True])
@pytest.mark.parametrize("separate_inputs", [False, True])
def test_separate_kernels_of_equal_parameters_equal_the_shared_kernel(separate_kernel, separate_inputs):
    x, y, new = data(outputs=3)
    shared = fitted(x, y, x[:15])
    copies = 3 if separate_kernel else 1
    kernel = RBF(torch.from_numpy(LENGTHSCALE).repeat(copies, 1), torch.full((copies,), VARIANCE, dtype=torch.float64))
    z = torch.from_numpy(x[:15])
    separate = SparseGP(kernel, Gaussian(3, variance=NOISE), z.repeat(3, 1, 1) if separate_inputs else z)
    natural_step(separate, torch.from_numpy(x), torch.from_numpy(y))
    assert bound(separate, x, y) == pytest.approx(bound(shared, x, y), rel=1e-11)
    for found, expected in zip(separate(torch.from_numpy(new))[1:3], shared(torch.from_numpy(new))[1:3], strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


def test_separate_kernels_of_their_own_parameters_are_independent_processes():
    x, y, _ = data(outputs=2)
    lengthscales, variances = np.array([[0.5, 0.9], [1.4, 0.7]]), np.array([0.6, 2.3])
    z = torch.from_numpy(np.stack([x, x[::-1]]))
    kernel = RBF(torch.from_numpy(lengthscales), torch.from_numpy(variances))
    model = SparseGP(kernel, Gaussian(2, variance=torch.tensor([0.1, 0.3])), z)
    natural_step(model, torch.from_numpy(x), torch.from_numpy(y))
    expected = sum(
        log_evidence(rbf(x, x, lengthscales[output], variances[output]), y[:, output], noise)
        for output, noise in enumerate(np.float32([0.1, 0.3]).astype(float))
    )
    assert bound(model, x, y) == pytest.approx(expected, rel=1e-8)
