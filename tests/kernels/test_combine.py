"""Sums and products of kernels, a user's own among them."""

import pytest
import torch
from kernel_zoo import points

from autogp.kernels import RBF, ArcCosine, Kernel, Linear, Matern32, Product, Sum
from autogp.linalg import safe_cholesky


class Wave(Kernel):
    """What a user would write: one parameter, one dimension."""

    def __init__(self, period: float):
        super().__init__()
        self.log_period = torch.nn.Parameter(torch.tensor(period, dtype=torch.float64).log())

    def gram(self, x, z):
        return torch.exp(-2 * torch.sin(torch.pi * (x - z.mT) / self.log_period.exp()) ** 2)

    def diag(self, x):
        return torch.ones_like(x[..., 0])


def test_sum_adds_values_and_diagonals():
    a, b, c = RBF(0.7, 2.0), Linear(0.5, 1.0), Matern32([1.0, 2.0, 3.0])
    x, z = points(5, 3), points(4, 3, seed=1)
    torch.testing.assert_close(Sum(a, b, c).gram(x, z), a.gram(x, z) + b.gram(x, z) + c.gram(x, z))
    torch.testing.assert_close(Sum(a, b, c).diag(x), a.diag(x) + b.diag(x) + c.diag(x))


def test_product_multiplies_values_and_diagonals():
    a, b, c = RBF(0.7, 2.0), Linear(0.5, 1.0), ArcCosine(1, 2)
    x, z = points(5, 3), points(4, 3, seed=1)
    torch.testing.assert_close(Product(a, b, c).gram(x, z), a.gram(x, z) * b.gram(x, z) * c.gram(x, z))
    torch.testing.assert_close(Product(a, b, c).diag(x), a.diag(x) * b.diag(x) * c.diag(x))


def test_operators_make_sums_and_products_with_the_usual_precedence():
    a, b, c = RBF(0.7), Linear(0.5), Matern32(1.5)
    x, z = points(5, 3), points(4, 3, seed=1)
    assert isinstance(a + b, Sum)
    assert isinstance(a * b, Product)
    torch.testing.assert_close((a + b * c).gram(x, z), a.gram(x, z) + b.gram(x, z) * c.gram(x, z))
    torch.testing.assert_close(((a + b) * c).gram(x, z), (a.gram(x, z) + b.gram(x, z)) * c.gram(x, z))


def test_one_kernel_alone_is_itself():
    x, z = points(5, 3), points(4, 3, seed=1)
    for combination in (Sum(RBF(0.7)), Product(RBF(0.7))):
        assert torch.equal(combination.gram(x, z), RBF(0.7).gram(x, z))
        assert torch.equal(combination.diag(x), RBF(0.7).diag(x))


def test_shared_and_separate_parameters_combine():
    shared, separate = RBF(0.7), Linear(torch.tensor([[1.0], [2.0], [3.0]]))
    x, z = points(5, 2), points(4, 2, seed=1)
    assert (shared + separate).gram(x, z).shape == (3, 5, 4)
    assert (separate * shared).diag(x).shape == (3, 5)
    torch.testing.assert_close((shared * separate).gram(x, z)[2], shared.gram(x, z)[0] * separate.gram(x, z)[2])


def test_user_kernel_combines_with_the_others():
    periodic, trend, decay = Wave(0.8), Linear(0.3, 0.1), RBF(2.0, 1.5)
    x, z = points(6, 1), points(4, 1, seed=1)
    own = torch.exp(-2 * torch.sin(torch.pi * (x - z.T) / 0.8) ** 2)
    torch.testing.assert_close((periodic + trend).gram(x, z)[0], own + trend.gram(x, z)[0])
    torch.testing.assert_close((decay * periodic).gram(x, z)[0], own * decay.gram(x, z)[0])
    kernel = trend + periodic * decay
    assert kernel.gram(x, z).shape == (1, 6, 4)
    torch.testing.assert_close(kernel.diag(x), torch.diagonal(kernel.gram(x, x), dim1=-2, dim2=-1))
    factor = safe_cholesky(kernel.gram(x, x))
    torch.testing.assert_close(factor @ factor.mT, kernel.gram(x, x), rtol=1e-8, atol=1e-8)


def test_gradients_reach_every_member():
    kernel = Wave(0.8) * RBF(2.0, 1.5) + Linear(0.3, 0.1)
    x, z = points(4, 1).requires_grad_(), points(3, 1, seed=1).requires_grad_()
    inputs = (x, z, *kernel.parameters())
    assert len(inputs) == 2 + 5
    assert torch.autograd.gradcheck(lambda x, z, *_: kernel.gram(x, z), inputs, atol=1e-8, rtol=1e-6)


def test_kernel_used_twice_counts_its_parameters_once():
    kernel = RBF()
    assert len(list((kernel * kernel).parameters())) == 2
    x = points(5, 3)
    torch.testing.assert_close((kernel * kernel).gram(x, x), kernel.gram(x, x).square())


def test_product_of_rbf_kernels_adds_the_inverse_squares_of_lengthscales():
    x, z = points(5, 3), points(4, 3, seed=1)
    lengthscale = (0.7**-2 + 1.3**-2) ** -0.5
    torch.testing.assert_close((RBF(0.7) * RBF(1.3)).gram(x, z), RBF(lengthscale).gram(x, z), rtol=1e-12, atol=1e-15)


def test_kernels_describe_their_members_and_a_users_own_by_its_parameters():
    assert Wave(1.5).describe() == "Wave: period 1.5"
    assert (RBF([1.0, 2.0]) + Wave(1.5)).describe() == (
        "RBF: lengthscale 1 to 2 (per column), variance 1 + Wave: period 1.5"
    )
    assert ((RBF() + RBF()) * ArcCosine(2, 3)).describe() == (
        "(RBF: lengthscale 1, variance 1 + RBF: lengthscale 1, variance 1) * (ArcCosine: degree 2, depth 3, variance 1)"
    )


@pytest.mark.parametrize("other", [2, 1.5, "rbf", None])
def test_what_is_no_kernel_is_an_error(other):
    with pytest.raises(TypeError, match=f"kernels combine with kernels, got RBF, {type(other).__name__}"):
        RBF() + other
    with pytest.raises(TypeError, match="kernels combine with kernels"):
        RBF() * other
    with pytest.raises(TypeError, match="kernels combine with kernels, got nothing"):
        Sum()
    with pytest.raises(TypeError, match="kernels combine with kernels, got nothing"):
        Product()


def test_kernel_without_gram_or_diag_says_so():
    class Empty(Kernel):
        pass

    with pytest.raises(NotImplementedError, match=r"Empty must define gram\(x, z\)"):
        Empty().gram(points(1, 1), points(1, 1))
    with pytest.raises(NotImplementedError, match=r"Empty must define diag\(x\)"):
        Empty().diag(points(1, 1))
