"""RBF and Matérn kernels against scikit-learn, direct loops and their limits."""

import math

import numpy as np
import pytest
import torch
from kernel_zoo import points
from sklearn.gaussian_process import kernels as sklearn_kernels

from autogp.kernels import RBF, Kernel, Matern12, Matern32, Matern52

CLASSES = (RBF, Matern12, Matern32, Matern52)
each_class = pytest.mark.parametrize("kernel_class", CLASSES)


def sklearn_gram(kernel_class: type[Kernel], lengthscale: list[float] | float, x: torch.Tensor, z: torch.Tensor):
    nu = {Matern12: 0.5, Matern32: 1.5, Matern52: 2.5}.get(kernel_class)
    peer = sklearn_kernels.RBF(lengthscale) if nu is None else sklearn_kernels.Matern(lengthscale, nu=nu)
    return torch.from_numpy(peer(x.numpy(), z.numpy()))


@each_class
@pytest.mark.parametrize("lengthscale", [0.7, [0.5, 1.0, 4.0]], ids=["isotropic", "ard"])
def test_values_agree_with_scikit_learn(kernel_class, lengthscale):
    x, z = points(9, 3), points(7, 3, seed=1)
    gram = kernel_class(lengthscale, variance=2.5).gram(x, z)[0]
    torch.testing.assert_close(gram, 2.5 * sklearn_gram(kernel_class, lengthscale, x, z), rtol=1e-12, atol=1e-15)


@each_class
def test_values_agree_with_a_loop_over_pairs(kernel_class):
    profile = {
        RBF: lambda r: math.exp(-(r**2) / 2),
        Matern12: lambda r: math.exp(-r),
        Matern32: lambda r: (1 + math.sqrt(3) * r) * math.exp(-math.sqrt(3) * r),
        Matern52: lambda r: (1 + math.sqrt(5) * r + 5 * r**2 / 3) * math.exp(-math.sqrt(5) * r),
    }[kernel_class]
    x, z = points(2, 5, 3), points(2, 4, 3, seed=1)
    lengthscale, variance = torch.tensor([[0.5, 1.0, 2.0], [3.0, 0.7, 1.0]]), torch.tensor([1.5, 0.3])
    gram = kernel_class(lengthscale, variance).gram(x, z)
    for g, i, j in np.ndindex(2, 5, 4):
        r = math.sqrt(sum(((x[g, i, d] - z[g, j, d]).item() / lengthscale[g, d].item()) ** 2 for d in range(3)))
        assert gram[g, i, j].item() == pytest.approx(variance[g].item() * profile(r), rel=1e-12)


@each_class
def test_equal_points_have_the_variance_exactly(kernel_class):
    x = points(6, 3)
    for gram in (kernel_class(variance=3.0).gram(x, x), kernel_class(variance=3.0).gram(x, x.clone())):
        torch.testing.assert_close(torch.diagonal(gram[0]), torch.full((6,), 3.0, dtype=x.dtype), rtol=1e-15, atol=0)


@each_class
@pytest.mark.parametrize("offset", [1e4, 1e6])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_offset_leaves_the_values_of_the_rounded_points(kernel_class, offset, dtype, tolerance):
    x, z = (points(9, 3) + offset).to(dtype), (points(7, 3, seed=1) + offset).to(dtype)
    expected = sklearn_gram(kernel_class, 1.0, x.double() - offset, z.double() - offset)
    torch.testing.assert_close(kernel_class().gram(x, z)[0].double(), expected, rtol=tolerance, atol=tolerance)


@each_class
@pytest.mark.parametrize("scale", [1e-12, 1e-3, 1e3, 1e12])
def test_only_the_ratio_to_the_lengthscale_counts(kernel_class, scale):
    x, z = points(9, 3), points(7, 3, seed=1)
    torch.testing.assert_close(
        kernel_class(scale).gram(scale * x, scale * z), kernel_class(1.0).gram(x, z), rtol=1e-11, atol=1e-14
    )


@each_class
def test_close_points_of_float32_far_from_the_others_keep_their_covariance(kernel_class):
    """Two clusters 1e4 lengthscales apart: centring helps neither of them."""
    x = points(10, 2)
    x[5:] += 1e4
    x = x.float()
    expected = sklearn_gram(kernel_class, 1.0, x.double(), x.double())
    torch.testing.assert_close(kernel_class().gram(x, x.clone())[0].double(), expected, rtol=0, atol=1e-3)


@each_class
def test_points_at_infinity_are_independent(kernel_class):
    x = torch.tensor([[0.0], [1e12], [-1e12]], dtype=torch.float32)
    assert torch.equal(kernel_class().gram(x, x)[0], torch.eye(3))


def test_matern_smoothness_shows_at_small_distances():
    """1 - k(h) falls as h for 1/2 and as h^2 for 3/2, 5/2 and RBF."""
    x, h = torch.zeros(1, 1, dtype=torch.float64), torch.tensor([[1e-4]], dtype=torch.float64)
    drops = [1 - kernel().gram(x, h).item() for kernel in CLASSES]
    assert drops == pytest.approx([5e-9, 1e-4, 1.5e-8, 5 / 6 * 1e-8], rel=2e-4)


@each_class
def test_second_derivatives_are_refused_rather_than_wrong(kernel_class):
    x = points(3, 2).requires_grad_()
    (gradient,) = torch.autograd.grad(kernel_class().gram(x, points(2, 2, seed=1)).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


@each_class
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf"), [1.0, -2.0], []])
@pytest.mark.parametrize("name", ["lengthscale", "variance"])
def test_parameter_that_is_not_positive_is_named(kernel_class, name, value):
    with pytest.raises(ValueError, match=f"{name} must be positive and finite"):
        kernel_class(**{name: value})


@each_class
def test_parameter_with_too_many_axes_is_named(kernel_class):
    with pytest.raises(ValueError, match="lengthscale must have at most 2 axes"):
        kernel_class(lengthscale=torch.ones(1, 1, 1))
    with pytest.raises(ValueError, match="variance must have at most 1 axes"):
        kernel_class(variance=torch.ones(1, 1))


@each_class
def test_parameters_are_what_was_given(kernel_class):
    kernel = kernel_class([0.5, 2.0], [1.0, 3.0])
    torch.testing.assert_close(kernel.lengthscale, torch.tensor([[0.5, 2.0]], dtype=torch.float64))
    torch.testing.assert_close(kernel.variance, torch.tensor([1.0, 3.0], dtype=torch.float64))
    assert all(parameter.dtype == torch.float64 for parameter in kernel.parameters())


@each_class
@pytest.mark.parametrize(("dtype", "far"), [(torch.float32, 1e25), (torch.float64, 1e200)])
def test_distances_whose_squares_overflow_are_infinite(kernel_class, dtype, far):
    x = torch.tensor([[0.0, 1.0], [far, 0.0], [-far, 2.0], [far, 0.0]], dtype=dtype, requires_grad=True)
    kernel = kernel_class()
    gram = kernel.gram(x, x)[0]
    expected = torch.eye(4, dtype=dtype)
    expected[1, 3] = expected[3, 1] = 1
    assert torch.equal(gram, expected)
    gradients = torch.autograd.grad(gram.sum(), [x, *kernel.parameters()])
    assert all(torch.isfinite(gradient).all() for gradient in gradients)


@each_class
@pytest.mark.parametrize("width", [10, 1e3, 1e5])
def test_gradients_of_float32_hold_over_many_lengthscales(kernel_class, width):
    """A long series: neighbours are a lengthscale apart, the ends `width` lengthscales."""
    x, z = (
        width * torch.rand(n, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(n)) for n in (300, 40)
    )
    x = torch.cat([x, z + 0.5 * points(40, 1)]).float()
    gradients = []
    for dtype in (torch.float32, torch.float64):
        kernel, inducing = kernel_class(), z.float().to(dtype).requires_grad_()
        loss = kernel.gram(x.to(dtype), inducing).sum()
        gradients.append(torch.autograd.grad(loss, [kernel.log_lengthscale, inducing]))
    for rounded, exact in zip(*gradients, strict=True):
        assert (rounded - exact).norm() < 5e-3 * exact.norm()


@each_class
def test_inputs_that_share_a_lengthscale_have_it_each(kernel_class):
    x, z = (torch.randn(rows, 4, generator=torch.Generator().manual_seed(rows), dtype=torch.float64) for rows in (5, 3))
    shared = kernel_class(lengthscale=[0.5, 2.0], variance=1.5, shared=[0, 1, 1, 0])
    plain = kernel_class(lengthscale=[0.5, 2.0, 2.0, 0.5], variance=1.5)
    assert torch.equal(shared.gram(x, z), plain.gram(x, z))
    (slope,) = torch.autograd.grad(shared.gram(x, z).sum(), shared.log_lengthscale)
    (each,) = torch.autograd.grad(plain.gram(x, z).sum(), plain.log_lengthscale)
    assert torch.allclose(slope, torch.stack([each[:, [0, 3]].sum(1), each[:, [1, 2]].sum(1)], 1))
    for wrong in ([0, 0], [0, 2], [0, -1]):
        with pytest.raises(ValueError, match="shared must have for each input"):
            kernel_class(lengthscale=[0.5, 2.0], shared=wrong)
