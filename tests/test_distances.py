"""Squared distances: exact where they can be, with gradients that are finite everywhere."""

import pytest
import torch

from autogp.distances import squared_distance

float64 = torch.float64


def points(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=float64, generator=torch.Generator().manual_seed(seed))


def direct_distance(x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    return (x.double()[..., :, None, :] - z.double()[..., None, :, :]).square().sum(-1)


class TestSquaredDistance:
    @pytest.mark.parametrize("offset", [0.0, 1e3, 1e6])
    def test_agrees_with_direct_differences(self, offset):
        x, z = points(7, 3) + offset, points(5, 3, seed=1) + offset
        torch.testing.assert_close(squared_distance(x, z), direct_distance(x, z), rtol=1e-11, atol=1e-12)

    @pytest.mark.parametrize("offset", [0.0, 1e3, 1e6])
    def test_float32_agrees_with_differences_of_the_rounded_points(self, offset):
        x, z = (points(7, 3) + offset).float(), (points(5, 3, seed=1) + offset).float()
        distance = squared_distance(x, z)
        assert distance.dtype == torch.float32
        torch.testing.assert_close(distance.double(), direct_distance(x, z), rtol=1e-4, atol=1e-4)

    @pytest.mark.parametrize(("x_groups", "z_groups", "scale_groups"), [(3, 1, 1), (1, 3, 1), (1, 1, 3), (3, 3, 3)])
    def test_one_group_serves_all(self, x_groups, z_groups, scale_groups):
        x, z, scale = points(x_groups, 6, 2), points(z_groups, 5, 2, seed=1), points(scale_groups, 1, 2, seed=2).exp()
        distance = squared_distance(x, z, scale)
        assert distance.shape == (3, 6, 5)
        torch.testing.assert_close(distance, direct_distance(x * scale, z * scale), rtol=1e-11, atol=1e-12)
        leaves = [part.requires_grad_() for part in (x, z, scale)]
        assert torch.autograd.gradcheck(squared_distance, leaves)

    def test_close_pairs_are_found_in_every_member_of_a_batch(self):
        x, z = points(6, 2), points(3, 5, 2, seed=1)
        z[0, 1], z[1, 4], z[2, 0] = x[2] + 1e-9, x[5], x[0] - 1e-7
        torch.testing.assert_close(squared_distance(x, z), direct_distance(x, z), rtol=1e-7, atol=0)
        torch.testing.assert_close(squared_distance(z, x), direct_distance(z, x), rtol=1e-7, atol=0)

    @pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-2), (float64, 1e-6)])
    def test_relative_precision_holds_for_two_far_clusters_of_close_points(self, dtype, tolerance):
        """Centring cannot help here: without the differences the distances would be rounding alone."""
        x = points(20, 3)
        x[10:] += 1e4
        x = x.to(dtype)
        actual, expected = squared_distance(x, x).double(), direct_distance(x, x)
        off = ~torch.eye(20, dtype=torch.bool)
        assert ((actual - expected).abs()[off] < tolerance * expected[off]).all()

    @pytest.mark.parametrize("dtype", [torch.float32, float64])
    @pytest.mark.parametrize("columns", [1, 3, 784, 3072])
    def test_diagonal_between_a_tensor_and_itself_is_exactly_zero(self, columns, dtype):
        x = (points(30, columns) + 10).to(dtype)
        assert torch.equal(torch.diagonal(squared_distance(x, x)), torch.zeros(30, dtype=dtype))
        assert torch.equal(torch.diagonal(squared_distance(x, x.clone())), torch.zeros(30, dtype=dtype))

    @pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
    def test_equal_rows_are_exactly_at_distance_zero(self, scale):
        x = scale * points(10, 4)
        distance = squared_distance(torch.cat([x, x]), x)
        assert torch.equal(torch.diagonal(distance[10:]), torch.zeros(10, dtype=float64))

    def test_close_pairs_come_in_chunks(self, monkeypatch):
        x, z = points(3, 8, 4), points(5, 4, seed=1)
        z[2], z[4] = x[0, 3] + 1e-9, x[2, 7]
        expected = squared_distance(x, z), squared_distance(x, x)
        for numbers in (1, 7, 12):
            monkeypatch.setattr("autogp.distances.CHUNK_NUMBERS", numbers)
            assert torch.equal(squared_distance(x, z), expected[0])
            assert torch.equal(squared_distance(x, x), expected[1])

    def test_no_distance_is_negative(self):
        x = points(50, 2).float() * 1e-3 + points(1, 2).float() * 1e3
        assert (squared_distance(x, x + 1e-5) >= 0).all()

    def test_gradient_agrees_with_that_of_the_differences(self):
        x, z, weights = points(6, 3), points(5, 3, seed=1), points(6, 5, seed=2)
        z[2] = x[1] + 1e-9  # one close pair among others
        z[3] = x[4]
        expected = torch.autograd.functional.jacobian(lambda *p: (weights * direct_distance(*p)).sum(), (x, z))
        actual = torch.autograd.functional.jacobian(lambda *p: (weights * squared_distance(*p)).sum(), (x, z))
        torch.testing.assert_close(actual, expected, rtol=1e-11, atol=1e-12)

    def test_gradient_is_the_same_each_time(self):
        """The backward pass of many close pairs adds in a fixed order, in float32 and in parallel too."""
        x, weights = points(5, 2).float().repeat(400, 1), points(2000, 500).float()
        weights[direct_distance(x, x[:500]) > 0] = 0  # large gradients of the others would hide the last digits
        gradients = []
        threads = torch.get_num_threads()
        torch.set_num_threads(2)
        for _ in range(5):
            leaf = x.clone().requires_grad_()
            (gradient,) = torch.autograd.grad((weights * squared_distance(leaf, leaf[:500] + 1e-4)).sum(), leaf)
            gradients.append(gradient)
        torch.set_num_threads(threads)
        assert all(torch.equal(gradient, gradients[0]) for gradient in gradients)

    def test_gradient_of_a_tensor_with_itself_is_finite_and_zero_in_sum(self):
        x = points(8, 2)
        x = torch.cat([x, x[:3]]).requires_grad_()
        (gradient,) = torch.autograd.grad(squared_distance(x, x).exp().sum(), x)
        assert torch.isfinite(gradient).all()
        assert gradient.sum(0).abs().max() < 1e-9 * gradient.abs().max()
