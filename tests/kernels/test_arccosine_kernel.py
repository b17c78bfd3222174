"""The arc-cosine kernel against its recursion in plain Python, and its corners: zero vectors, opposite points."""

import math

import numpy as np
import pytest
import torch
from kernel_zoo import points

from autogp.kernels import ArcCosine
from autogp.linalg import safe_cholesky

degrees = pytest.mark.parametrize("degree", [0, 1, 2])
depths = pytest.mark.parametrize("depth", [1, 2, 3, 4])


def angular(degree: int, t: float) -> float:
    if degree == 0:
        return math.pi - t
    if degree == 1:
        return math.sin(t) + (math.pi - t) * math.cos(t)
    return 3 * math.sin(t) * math.cos(t) + (math.pi - t) * (1 + 2 * math.cos(t) ** 2)


def recursion(degree: int, depth: int, xz: float, xx: float, zz: float) -> tuple[float, float, float]:
    """The paper's appendix, from the three inner products."""
    for _ in range(depth):
        t = math.acos(max(-1.0, min(1.0, xz / math.sqrt(xx * zz))))
        xz = (xx * zz) ** (degree / 2) * angular(degree, t) / math.pi
        xx, zz = (k**degree * angular(degree, 0.0) / math.pi for k in (xx, zz))
    return xz, xx, zz


@degrees
@depths
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("bias", [0.0, 0.4])
def test_values_agree_with_the_recursion_of_the_appendix(degree, depth, bias, normalize):
    weights, variance = [0.5, 1.0, 2.0], 1.7
    kernel = ArcCosine(degree, depth, weights, bias, variance, normalize)
    x, z = 0.6 * points(5, 3), 0.6 * points(4, 3, seed=1)
    gram, diag = kernel.gram(x, z)[0], kernel.diag(x)[0]

    def inner(a: torch.Tensor, b: torch.Tensor) -> float:
        return bias + sum(w * p * q for w, p, q in zip(weights, a.tolist(), b.tolist(), strict=True))

    for i, j in np.ndindex(5, 4):
        xz, xx, zz = recursion(degree, depth, inner(x[i], z[j]), inner(x[i], x[i]), inner(z[j], z[j]))
        scale = math.sqrt(xx * zz) if normalize else 1.0
        assert gram[i, j].item() == pytest.approx(variance * xz / scale, rel=1e-11)
        assert diag[i].item() == pytest.approx(variance * (1.0 if normalize else xx), rel=1e-11)


@depths
def test_diagonal_is_a_power_of_the_norm(depth):
    x = points(5, 3)
    squared = x.square().sum(-1)
    power, factor = 2**depth, 3.0 ** (2**depth - 1)  # k <- 3 k^2
    torch.testing.assert_close(ArcCosine(0, depth).diag(x)[0], torch.ones_like(squared))
    torch.testing.assert_close(ArcCosine(1, depth).diag(x)[0], squared)
    torch.testing.assert_close(ArcCosine(2, depth).diag(x)[0], factor * squared**power, rtol=1e-12, atol=0)


@degrees
def test_first_layer_at_known_angles(degree):
    """0, 90 and 180 degrees: J_n = J_n(0), then pi / 2, 1, pi / 2, then 0."""
    x = torch.tensor([[2.0, 0.0]], dtype=torch.float64)
    z = torch.tensor([[3.0, 0.0], [0.0, 3.0], [-3.0, 0.0]], dtype=torch.float64)
    at_right_angle = {0: 0.5, 1: 1 / math.pi, 2: 0.5}[degree]
    expected = torch.tensor([[[{0: 1.0, 1: 1.0, 2: 3.0}[degree], at_right_angle, 0.0]]], dtype=torch.float64)
    torch.testing.assert_close(ArcCosine(degree).gram(x, z), 6.0**degree * expected, rtol=1e-14, atol=1e-7)


@degrees
@depths
def test_opposite_points_agree_with_the_limit(degree, depth):
    """In one dimension without bias all angles are 0 or pi; after the first layer a right angle takes pi's place."""
    x = torch.tensor([[0.3], [1.0], [-0.7], [-2.0]], dtype=torch.float64)
    gram = ArcCosine(degree, depth, normalize=True).gram(x, x)[0]
    limit, *_ = recursion(degree, depth - 1, 0.0, 1.0, 1.0)
    limit /= recursion(degree, depth - 1, 1.0, 1.0, 1.0)[0]
    same = (x.sign() == x.sign().T).double()
    torch.testing.assert_close(gram, same + (1 - same) * limit, rtol=0, atol=1e-14 if degree else 2e-8)


@degrees
@depths
@pytest.mark.parametrize("normalize", [False, True])
def test_zero_vector_has_a_direction_of_its_own(degree, depth, normalize):
    """It is orthogonal to all other points, at angle 0 to itself."""
    kernel = ArcCosine(degree, depth, variance=2.0, normalize=normalize)
    zero, x = torch.zeros(2, 3, dtype=torch.float64), 0.5 * points(4, 3)
    flat = normalize or degree == 0
    torch.testing.assert_close(kernel.diag(zero), torch.full((1, 2), 2.0 if flat else 0.0, dtype=torch.float64))
    torch.testing.assert_close(
        kernel.gram(zero, zero), torch.full((1, 2, 2), 2.0 if flat else 0.0, dtype=torch.float64)
    )
    xz, xx, zz = recursion(degree, depth, 0.0, 1.0, 1.0)
    expected = 2.0 * xz / math.sqrt(xx * zz) if flat else 0.0
    torch.testing.assert_close(kernel.gram(x, zero), torch.full((1, 4, 2), expected, dtype=torch.float64))


@degrees
@depths
@pytest.mark.parametrize("columns", [1, 2, 5])
@pytest.mark.parametrize("bias", [0.0, 1.0])
def test_gram_with_zero_vectors_is_positive_semi_definite(degree, depth, columns, bias):
    x = points(12, columns)
    x[[2, 5, 11]] = 0
    x[7] = x[1]
    x[8] = -x[1]
    gram = ArcCosine(degree, depth, bias=bias, normalize=True).gram(x, x)[0]
    assert torch.linalg.eigvalsh(gram)[0] > (-1e-7 if degree == 0 else -1e-13)
    factor = safe_cholesky(ArcCosine(degree, depth, bias=bias).gram(x, x)[0])
    assert torch.isfinite(factor).all()


@degrees
@pytest.mark.parametrize("scale", [1e-12, 1e-6, 1e6, 1e12])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_normalized_kernel_without_bias_does_not_see_the_scale(degree, scale, dtype):
    kernel, x = ArcCosine(degree, 3, normalize=True), points(6, 3).to(dtype)
    rtol = {torch.float32: 1e-3, torch.float64: 1e-7}[dtype]
    torch.testing.assert_close(kernel.gram(scale * x, scale * x), kernel.gram(x, x), rtol=rtol, atol=0)


@degrees
def test_duplicates_among_other_points_are_exactly_parallel(degree):
    """Eight layers of degree 0 take a 256th root: a distance of 1e-16 in place of 0 would move k by 0.7."""
    x = points(10, 3)
    gram = ArcCosine(degree, 8, normalize=True).gram(torch.cat([x, x]), x)[0]
    torch.testing.assert_close(torch.diagonal(gram[10:]), torch.ones(10, dtype=torch.float64), rtol=1e-15, atol=0)


@pytest.mark.parametrize("degree", [0, 1, 2])
def test_second_derivatives_are_refused_rather_than_wrong(degree):
    x = points(3, 2).requires_grad_()
    (gradient,) = torch.autograd.grad(ArcCosine(degree).gram(x, points(2, 2, seed=1)).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


@pytest.mark.parametrize("degree", [-1, 3, 0.5, "1", None])
def test_wrong_degree_is_named(degree):
    with pytest.raises(ValueError, match="degree must be 0, 1 or 2, got"):
        ArcCosine(degree=degree)


@pytest.mark.parametrize("depth", [0, -1, 101, 1.5, 2.0, "2", None])
def test_wrong_depth_is_named(depth):
    with pytest.raises(ValueError, match="depth must be an integer from 1 to 100, got"):
        ArcCosine(depth=depth)


def test_integers_of_numpy_serve_as_degree_and_depth():
    kernel = ArcCosine(np.int64(2), np.int64(3))
    assert (type(kernel.degree), type(kernel.depth)) == (int, int)


@pytest.mark.parametrize("name", ["weight_variance", "variance", "bias"])
@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), [1.0, 0.0]])
def test_parameter_that_is_not_positive_is_named(name, value):
    with pytest.raises(ValueError, match=f"{name} must be positive and finite"):
        ArcCosine(**{name: value})


def test_zero_weight_variance_and_variance_are_errors_and_zero_bias_is_the_paper():
    with pytest.raises(ValueError, match="weight_variance must be positive"):
        ArcCosine(weight_variance=0.0)
    with pytest.raises(ValueError, match="variance must be positive"):
        ArcCosine(variance=0.0)
    assert ArcCosine(bias=0.0).bias is None
