"""What holds for every kernel: shapes, broadcasting, precision, gradients, positive semi-definiteness, errors."""

import copy

import pytest
import torch
from kernel_zoo import COLUMNS, NAMES, hard_points, make, member, points
from torch.autograd import gradcheck

from autogp.kernels import RBF, Kernel

float32, float64 = torch.float32, torch.float64
each_kernel = pytest.mark.parametrize("name", NAMES)


@each_kernel
@pytest.mark.parametrize("dtype", [float32, float64])
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("shape", [(7, COLUMNS), (1, 7, COLUMNS), (3, 7, COLUMNS)])
def test_diag_is_the_diagonal_of_gram(name, shape, groups, dtype):
    kernel, x = make(name, groups), points(*shape).to(dtype)
    diagonal = torch.diagonal(kernel.gram(x, x), dim1=-2, dim2=-1)
    assert kernel.diag(x).shape == diagonal.shape
    assert kernel.diag(x).dtype == dtype
    rtol = 10 * torch.finfo(dtype).eps
    torch.testing.assert_close(kernel.diag(x), diagonal, rtol=rtol, atol=0)
    torch.testing.assert_close(
        kernel.diag(x), torch.diagonal(kernel.gram(x, x.clone()), dim1=-2, dim2=-1), rtol=rtol, atol=0
    )


@each_kernel
def test_gram_is_symmetric_in_its_arguments(name):
    kernel, x, z = make(name, 3), points(5, COLUMNS), points(4, COLUMNS, seed=1)
    torch.testing.assert_close(kernel.gram(x, z), kernel.gram(z, x).mT, rtol=1e-12, atol=1e-14)


@each_kernel
def test_separate_parameters_give_each_latent_function_its_own_kernel(name):
    kernel, x, z = make(name, 3), points(5, COLUMNS), points(4, COLUMNS, seed=1)
    gram, diag = kernel.gram(x, z), kernel.diag(x)
    assert gram.shape == (3, 5, 4)
    assert diag.shape == (3, 5)
    for group in range(3):
        torch.testing.assert_close(gram[group : group + 1], member(kernel, group).gram(x, z), rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(diag[group : group + 1], member(kernel, group).diag(x), rtol=1e-12, atol=1e-14)
    assert (gram[0] - gram[1]).abs().max() > 1e-3 or "normalized" in name or name.startswith("arccosine-0")


@each_kernel
@pytest.mark.parametrize("groups", [1, 3])
def test_separate_inputs_give_each_latent_function_its_own_points(name, groups):
    kernel, x, z = make(name, groups), points(5, COLUMNS), points(3, 4, COLUMNS, seed=1)
    gram = kernel.gram(x, z)
    assert gram.shape == (3, 5, 4)
    torch.testing.assert_close(kernel.gram(z, x), gram.mT, rtol=1e-12, atol=1e-14)
    for group in range(3):
        alone = member(kernel, group) if groups == 3 else kernel
        torch.testing.assert_close(gram[group : group + 1], alone.gram(x, z[group]), rtol=1e-12, atol=1e-14)


@each_kernel
def test_shared_parameters_and_inputs_give_one_matrix(name):
    assert make(name).gram(points(5, COLUMNS), points(4, COLUMNS, seed=1)).shape == (1, 5, 4)


@each_kernel
def test_no_rows_give_an_empty_matrix(name):
    kernel, z = make(name, 3), points(4, COLUMNS)
    assert kernel.gram(z[:0], z).shape == (3, 0, 4)
    assert kernel.gram(z, z[:0]).shape == (3, 4, 0)
    assert kernel.diag(z[:0]).shape == (3, 0)


@each_kernel
def test_float32_agrees_with_float64(name):
    kernel, x, z = make(name, 3), points(20, COLUMNS), points(15, COLUMNS, seed=1)
    x, z = x.float().double(), z.float().double()
    exact, gram = kernel.gram(x, z), kernel.gram(x.float(), z.float())
    assert gram.dtype == float32
    scale = (kernel.diag(x)[:, :, None] * kernel.diag(z)[:, None, :]).sqrt()
    assert ((gram.double() - exact).abs() / scale).max() < 5e-6
    torch.testing.assert_close(kernel.diag(x.float()).double(), kernel.diag(x), rtol=5e-6, atol=0)


@each_kernel
@pytest.mark.parametrize("groups", [1, 3])
def test_gradients_agree_with_finite_differences(name, groups):
    kernel = make(name, groups)
    x, z = points(3, COLUMNS).requires_grad_(), points(groups, 2, COLUMNS, seed=1).requires_grad_()
    parameters = tuple(kernel.parameters())
    size = max(1.0, kernel.gram(x, x).abs().max().item())
    # Entry by entry for one latent function; for three, one random direction shows whether the axes are right.
    options = {"rtol": 1e-6, "atol": 1e-7 * size, "fast_mode": groups > 1}
    assert gradcheck(lambda x, z, *_: kernel.gram(x, z), (x, z, *parameters), **options)
    assert gradcheck(lambda x, *_: kernel.gram(x, x), (x, *parameters), **options)
    assert gradcheck(lambda x, *_: kernel.diag(x), (x, *parameters), **options)


@each_kernel
def test_gradients_are_finite_at_hard_points(name):
    """Equal, zero, opposite, huge, tiny rows; left out is only what overflows float32 in exact arithmetic."""
    kernel = make(name)
    left_out = set()
    for case, rows in hard_points().items():
        for same in (True, False):
            exact = values_and_gradients(kernel, rows, same)
            assert all(torch.isfinite(tensor).all() for tensor in exact), f"{case} in float64, same={same}"
            if any(tensor.abs().max() >= 1e36 for tensor in exact):
                left_out.add(case)
                continue
            rounded = values_and_gradients(kernel, rows.float(), same)
            assert all(torch.isfinite(tensor).all() for tensor in rounded), f"{case} in float32, same={same}"
    quadratic = name.startswith("arccosine-2") and "normalized" not in name
    huge = {"scale-1e+06", "scale-1e+09", "scale-1e+12", "mixed", "offset", "parallel"}
    assert left_out <= (huge if quadratic else set())


def values_and_gradients(kernel: Kernel, rows: torch.Tensor, same: bool) -> list[torch.Tensor]:
    x = rows.clone().requires_grad_()
    z = x if same else rows.clone().requires_grad_()
    gram, diag = kernel.gram(x, z), kernel.diag(x)
    weights = points(*gram.shape, seed=2).to(rows.dtype)
    leaves = [x, z, *kernel.parameters()]
    gradients = torch.autograd.grad((weights * gram).sum() + diag.sum(), leaves, allow_unused=True)
    return [gram.detach(), diag.detach(), *(gradient for gradient in gradients if gradient is not None)]


@each_kernel
def test_gram_is_positive_semi_definite_at_hard_points(name):
    kernel = make(name, 3)
    for case, rows in hard_points().items():
        with torch.no_grad():
            gram, norm = kernel.gram(rows, rows), kernel.diag(rows).sqrt()
        norm = torch.where(norm > 0, norm, 1.0)
        lowest = torch.linalg.eigvalsh(gram / norm[:, :, None] / norm[:, None, :]).min()
        # 1e-8: half of the digits of an angle near pi are rounding, and degree 0 sees the angle itself.
        assert lowest > (-1e-7 if name.startswith("arccosine-0") else -1e-11), case


@each_kernel
def test_equal_rows_have_equal_covariances(name):
    kernel, x = make(name, 3), points(8, COLUMNS)
    gram = kernel.gram(torch.cat([x, x]), torch.cat([x, x]))
    torch.testing.assert_close(torch.diagonal(gram[:, 8:, :8], dim1=-2, dim2=-1), kernel.diag(x), rtol=1e-14, atol=0)


@each_kernel
def test_offset_common_to_all_rows_costs_no_precision_of_stationary_kernels(name):
    if "rbf" not in name and "matern" not in name:
        return
    kernel, x, z = make(name), points(6, COLUMNS), points(5, COLUMNS, seed=1)
    moved_x, moved_z = x + 1e4, z + 1e4
    torch.testing.assert_close(
        kernel.gram(moved_x, moved_z), kernel.gram(moved_x - 1e4, moved_z - 1e4), rtol=1e-11, atol=0
    )


@each_kernel
def test_copy_computes_the_same(name):
    kernel, x = make(name, 3), points(4, COLUMNS)
    twin = make(name, 3)
    for parameter in twin.parameters():
        parameter.data += 1
    assert not torch.equal(twin.gram(x, x), kernel.gram(x, x)) or not list(kernel.parameters())
    twin.load_state_dict(copy.deepcopy(kernel.state_dict()))
    assert torch.equal(twin.gram(x, x), kernel.gram(x, x))


class TestErrors:
    @each_kernel
    @pytest.mark.parametrize("shape", [(COLUMNS,), (1, 1, 5, COLUMNS), ()])
    def test_wrong_number_of_axes_is_named(self, name, shape):
        bad, good = torch.ones(shape, dtype=float64), points(5, COLUMNS)
        with pytest.raises(ValueError, match=r"x must have shape \[N, D\]"):
            make(name).gram(bad, good)
        with pytest.raises(ValueError, match=r"z must have shape \[N, D\]"):
            make(name).gram(good, bad)
        with pytest.raises(ValueError, match=r"x must have shape \[N, D\]"):
            make(name).diag(bad)

    @each_kernel
    def test_what_is_no_floating_tensor_is_named(self, name):
        good = points(5, COLUMNS)
        with pytest.raises(TypeError, match=r"x must be a floating-point tensor, got torch\.int64"):
            make(name).gram(good.long(), good)
        with pytest.raises(TypeError, match="z must be a floating-point tensor, got ndarray"):
            make(name).gram(good, good.numpy())
        with pytest.raises(TypeError, match="x must be a floating-point tensor, got list"):
            make(name).diag(good.tolist())

    @each_kernel
    def test_two_precisions_do_not_mix(self, name):
        with pytest.raises(TypeError, match=r"same dtype, got torch\.float32 and torch\.float64"):
            make(name).gram(points(5, COLUMNS).float(), points(5, COLUMNS))

    @each_kernel
    @pytest.mark.parametrize("columns", [1, COLUMNS - 1, COLUMNS + 1])
    def test_wrong_number_of_columns_is_an_error(self, name, columns):
        good, bad = points(5, COLUMNS), points(5, columns)
        if name != "rbf-isotropic":
            message = f"has {columns} columns, but the kernel has parameters for {COLUMNS}"
            with pytest.raises(ValueError, match=f"x {message}"):
                make(name).gram(bad, bad)
            with pytest.raises(ValueError, match=f"x {message}"):
                make(name).diag(bad)
        for x, z in ((good, bad), (bad, good)):
            with pytest.raises(ValueError, match="columns"):
                make(name).gram(x, z)

    def test_isotropic_kernel_refuses_to_broadcast_one_column_against_three(self):
        with pytest.raises(ValueError, match="x and z must have the same columns, got 1 and 3"):
            RBF().gram(points(5, 1), points(4, 3))
        with pytest.raises(ValueError, match="x and z must have the same columns, got 3 and 1"):
            RBF().gram(points(5, 3), points(4, 1))

    def test_huge_finite_values_are_no_error(self):
        x = torch.full((40, 2), 1e38)  # whose sum overflows float32
        assert torch.equal(RBF().diag(x), torch.ones(1, 40))
