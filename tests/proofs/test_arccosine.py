"""The arc-cosine kernel against its defining integral, against random networks, and where formulas break."""

import itertools
import math
from functools import cache

import mpmath
import numpy as np
import pytest
import torch
from torch import Tensor

from autogp.kernels import ArcCosine

float32, float64 = torch.float32, torch.float64
degrees = pytest.mark.parametrize("degree", [0, 1, 2])


def points(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=float64, generator=torch.Generator().manual_seed(seed))


# The integral ---------------------------------------------------------------------------------------------------------


def layer(degree: int, xx: mpmath.mpf, zz: mpmath.mpf, xz: mpmath.mpf) -> mpmath.mpf:
    """(|x||z|)^n (2^n n! / pi) * integral from t - pi/2 to pi/2 of (cos p cos(p - t))^n dp, to thirty digits."""
    t = mpmath.acos(xz / mpmath.sqrt(xx * zz))
    integral = mpmath.quad(lambda p: (mpmath.cos(p) * mpmath.cos(p - t)) ** degree, [t - mpmath.pi / 2, mpmath.pi / 2])
    return mpmath.sqrt(xx * zz) ** degree * 2**degree * mpmath.factorial(degree) / mpmath.pi * integral


@cache
def growth(degree: int) -> mpmath.mpf:
    """The integral at angle 0: k(x, x) = growth * |x|^2n."""
    return layer(degree, mpmath.mpf(1), mpmath.mpf(1), mpmath.mpf(1))


def by_integrals(degree: int, depth: int, x: Tensor, z: Tensor, weights: list[float], bias: float) -> list[float]:
    """k_1(x, z) to k_depth(x, z), composed as in the appendix: each layer's covariances are the next inner products."""
    with mpmath.workdps(30):
        xx, xz, zz = (
            mpmath.mpf(bias) + sum(mpmath.mpf(w) * p * q for w, p, q in zip(weights, a, b, strict=True))
            for a, b in itertools.combinations_with_replacement((x.tolist(), z.tolist()), 2)
        )
        values = []
        for _ in range(depth):
            xz = layer(degree, xx, zz, xz)
            xx, zz = growth(degree) * xx**degree, growth(degree) * zz**degree
            values.append(float(xz))
        return values


@degrees
@pytest.mark.parametrize(("bias", "weights"), [(0.0, [1.0, 1.0, 1.0]), (0.3, [0.5, 1.0, 2.0])], ids=["paper", "bias"])
def test_kernel_equals_the_integral(degree, bias, weights):
    """To 1e-12 relative for depths 1 to 4, at generic and at nearly parallel points."""
    x, z = 0.7 * points(5, 3), 0.7 * points(4, 3, seed=1)
    z[2] = 1.7 * x[0] + 1e-3 * points(3, seed=2)  # an angle of about 1e-3
    z[3] = torch.linalg.cross(x[1], x[2])  # a right angle
    grams = [ArcCosine(degree, depth, weights, bias, variance=1.5).gram(x, z)[0] for depth in (1, 2, 3, 4)]
    for i, j in np.ndindex(5, 4):
        exact = by_integrals(degree, 4, x[i], z[j], weights, bias)
        assert [gram[i, j].item() / 1.5 for gram in grams] == pytest.approx(exact, rel=1e-12, abs=0), (i, j)


@degrees
def test_normalized_kernel_is_the_quotient_of_integrals(degree):
    x, z, weights = 0.7 * points(3, 2), 0.7 * points(3, 2, seed=1), [1.0, 1.0]
    gram = ArcCosine(degree, 2, bias=0.2, normalize=True).gram(x, z)[0]
    for i, j in np.ndindex(3, 3):
        xz, xx, zz = (
            by_integrals(degree, 2, a, b, weights, 0.2)[-1] for a, b in ((x[i], z[j]), (x[i], x[i]), (z[j], z[j]))
        )
        assert gram[i, j].item() == pytest.approx(xz / math.sqrt(xx * zz), rel=1e-12, abs=0)


# Random networks ------------------------------------------------------------------------------------------------------

WEIGHTS, BIAS = (0.5, 2.0), 0.3
ROWS = torch.tensor([[0.8, 0.3], [0.9, 0.1], [0.2, 0.6]], dtype=float64)


def covariances(draws: int, neurons: int, degree: int, bias: float, generator: torch.Generator) -> Tensor:
    """Means over neurons of 2 max(0, w.x)^n max(0, w.z)^n [draws, rows, rows], weights and bias w being Gaussian.

    Less noise at no bias: w and -w are equally likely, so max(0, (w.x)(w.z))^n has the same mean (of steps: whether the
    signs agree); and the length of w, independent of its direction, enters by E|w|^2n = 3 and 15 in three dimensions.
    """
    scale = torch.tensor([*WEIGHTS, bias]).sqrt()
    rows = torch.cat([ROWS, torch.ones(len(ROWS), 1)], 1).float() * scale
    direction = torch.nn.functional.normalize(torch.randn(draws * neurons, 3, generator=generator), dim=-1)
    activation = rows @ direction.T  # [rows, draws * neurons]
    result = torch.empty(draws, len(ROWS), len(ROWS), dtype=float64)
    for i, j in itertools.combinations_with_replacement(range(len(ROWS)), 2):
        product = activation[i] * activation[j]
        product = (product > 0).float() if degree == 0 else product.clamp_min_(0) ** degree
        result[:, i, j] = result[:, j, i] = (1, 3, 15)[degree] * product.reshape(draws, neurons).double().mean(1)
    return result


def check(draws: Tensor, exact: Tensor) -> None:
    """The mean of independent draws is within 5 standard errors; a deviation of 0.5 % would be 7 of them or more."""
    error = draws.std(0) / math.sqrt(len(draws)) + 1e-12 * exact
    assert ((draws.mean(0) - exact).abs() < 5 * error).all()
    assert (error < 0.005 / 7 * exact).all()


@degrees
@pytest.mark.parametrize("bias", [0.0, BIAS])
def test_first_layer_is_the_covariance_of_random_neurons(degree, bias):
    generator = torch.Generator().manual_seed(degree)
    draws = [covariances(200, 1000, degree, bias, generator) for _ in range((20, 20, 30)[degree])]
    exact = ArcCosine(degree, 1, WEIGHTS, bias, variance=1.7).gram(ROWS, ROWS)[0]
    check(1.7 * torch.cat(draws), exact)


@degrees
def test_second_layer_is_that_of_wide_random_networks(degree):
    """Independent networks with 2 x 4,000 neurons in the first layer, the second in the mean over its weights.

    A finite first layer biases the mean by O(1 / width); twice the whole's less the mean of both halves' takes it away.
    """
    generator = torch.Generator().manual_seed(10 + degree)
    exact = ArcCosine(degree, 2, WEIGHTS, BIAS).gram(ROWS, ROWS)[0]
    draws = []
    for _ in range((10, 10, 40)[degree]):
        halves = covariances(100, 4000, degree, BIAS, generator).reshape(50, 2, len(ROWS), len(ROWS))
        draws.append(2 * second_layer(halves.mean(1), degree) - second_layer(halves, degree).mean(1))
    check(torch.cat(draws), exact)


def second_layer(inner: Tensor, degree: int) -> Tensor:
    """2 E[max(0, a)^n max(0, b)^n] for Gaussians a and b of these covariances: the textbook's angles."""
    norm = torch.diagonal(inner, dim1=-2, dim2=-1).sqrt()
    norms = norm[..., :, None] * norm[..., None, :]
    t = torch.arccos((inner / norms).clamp(-1, 1))
    j = {
        0: math.pi - t,
        1: t.sin() + (math.pi - t) * t.cos(),
        2: 3 * t.sin() * t.cos() + (math.pi - t) * (1 + 2 * t.cos() ** 2),
    }[degree]
    return norms**degree * j / math.pi


# Gradients ------------------------------------------------------------------------------------------------------------


@degrees
@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("normalize", [False, True])
def test_gradient_equals_central_differences(degree, depth, normalize):
    """Of a weighted sum of covariances, by inputs, weight variances, bias and variance; to 1e-6 relative."""
    kernel = ArcCosine(degree, depth, [0.5, 1.0, 2.0], 0.3, 1.5, normalize)
    x, z = (0.6 * points(5, 3)).requires_grad_(), (0.6 * points(4, 3, seed=1)).requires_grad_()
    weights = points(5, 4, seed=2)

    def loss() -> Tensor:
        return (weights * kernel.gram(x, z)[0]).sum() + kernel.gram(x, x)[0].sum()

    leaves = {"x": x, "z": z, **dict(kernel.named_parameters())}
    gradients = torch.autograd.grad(loss(), list(leaves.values()))
    for (name, leaf), gradient in zip(leaves.items(), gradients, strict=True):
        flat = leaf.detach().reshape(-1)  # shares the leaf's memory
        numeric = torch.tensor([central_difference(loss, flat, i) for i in range(len(flat))], dtype=float64)
        error = (gradient.reshape(-1) - numeric).abs().max()
        assert error < 1e-6 * gradient.abs().max(), name
        close = (gradient.reshape(-1) - numeric).abs() < 1e-6 * gradient.reshape(-1).abs() + 1e-9 * gradient.abs().max()
        assert close.all(), name


def central_difference(loss, flat: Tensor, index: int, step: float = 1e-4) -> float:
    """Fourth order: (8 (f(h) - f(-h)) - (f(2h) - f(-2h))) / 12 h."""
    start = flat[index].item()
    values = {}
    with torch.no_grad():
        for multiple in (-2, -1, 1, 2):
            flat[index] = start + multiple * step
            values[multiple] = loss().item()
        flat[index] = start
    return (8 * (values[1] - values[-1]) - (values[2] - values[-2])) / (12 * step)


# Stress ---------------------------------------------------------------------------------------------------------------


def stress_points(scenario: str) -> Tensor:
    x = points(6, 3)
    return {
        "generic": lambda: x,
        "zero": lambda: torch.zeros_like(x),
        "some-zero": lambda: torch.cat([x[:3], torch.zeros(3, 3, dtype=float64)]),
        "equal": lambda: x[:1].repeat(6, 1),
        "opposite": lambda: torch.cat([x[:3], -x[:3]]),
        "close": lambda: torch.cat([x[:3], x[:3] + 1e-9 * points(3, 3, seed=1)]),  # nearly parallel
        "close-opposite": lambda: torch.cat([x[:3], -x[:3] + 1e-9 * points(3, 3, seed=1)]),
        "huge": lambda: 1e12 * torch.cat([x[:3], x[:2], -x[:1]]),
        "tiny": lambda: 1e-12 * torch.cat([x[:3], x[:2], -x[:1]]),
        "mixed": lambda: x * torch.logspace(-12, 12, 6, dtype=float64)[:, None],
        "one-dimension": lambda: torch.tensor([[1.0], [2.0], [-1.0], [0.0], [1e-9], [1.0]], dtype=float64),
        "offset": lambda: x + 1e4,
    }[scenario]()


SCENARIOS = (
    *("generic", "zero", "some-zero", "equal", "opposite", "close"),
    *("close-opposite", "huge", "tiny", "mixed", "one-dimension", "offset"),
)
# Scenario, degree, depth, dtype, bias, normalize.
COMBINATIONS = list(
    itertools.product(SCENARIOS, (0, 1, 2), (1, 2, 3, 8), (float32, float64), (0.0, 0.7), (False, True))
)


def overflows(scenario: str, degree: int, depth: int, dtype: torch.dtype, bias: float, normalize: bool) -> bool:
    """Whether the exact value or its gradient is beyond the type: k <- 3 k^2 in each layer, from the largest |x|^2."""
    if degree < 2 or normalize:
        return False
    rows = stress_points(scenario)
    exponent = math.log10(bias + rows.square().sum(-1).max().item() + 1e-300)
    for _ in range(depth):
        exponent = math.log10(3) + 2 * exponent
    margin = 5 + max(0.0, -math.log10(rows.abs().max().item() + 1e-300) if bias else 0.0)
    return exponent + margin > math.log10(torch.finfo(dtype).max)


STRESS = [case for case in COMBINATIONS if not overflows(*case)]


def test_there_are_at_least_700_stress_cases():
    """All 1,152 combinations but those whose exact value overflows: unnormalised degree 2, deep, or at large inputs."""
    assert len(COMBINATIONS) == 1152
    assert len(STRESS) >= 1000
    left_out = set(COMBINATIONS) - set(STRESS)
    assert all(degree == 2 and not normalize for _, degree, _, _, _, normalize in left_out)
    assert ("generic", 2, 3, float64, 0.7, False) in STRESS


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_values_and_gradients_are_finite_under_stress(scenario):
    for _, degree, depth, dtype, bias, normalize in (case for case in STRESS if case[0] == scenario):
        kernel = ArcCosine(degree, depth, bias=bias, normalize=normalize)
        x = stress_points(scenario).to(dtype).requires_grad_()
        z = x.detach().clone().requires_grad_()
        weights = points(6, 6, seed=2).to(dtype)
        same, other, diag = kernel.gram(x, x)[0], kernel.gram(x, z)[0], kernel.diag(x)[0]
        loss = (weights * (same + other)).sum() + diag.sum()
        gradients = torch.autograd.grad(loss, [x, z, *kernel.parameters()], allow_unused=True)
        where = f"degree {degree}, depth {depth}, {dtype}, bias {bias}, normalize {normalize}"
        for tensor in (same, other, diag, *gradients):
            assert tensor is None or torch.isfinite(tensor).all(), where
        # |k(x, z)|^2 <= k(x, x) k(z, z), and k(x, x) = diag(x).
        norm = diag.detach().double().sqrt()
        bound = norm[:, None] * norm * (1 + 1e-5) + torch.finfo(dtype).tiny ** 0.5  # diag may underflow
        assert (same.abs() <= bound).all(), where
        assert (other.abs() <= bound).all(), where
        assert torch.equal(torch.diagonal(same), torch.diagonal(other)), where
