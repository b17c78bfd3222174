"""Factorisations: exact where they can be, typed errors where they cannot."""

import logging

import pytest
import torch

from autogp.distances import squared_distance
from autogp.linalg import (
    FIRST_JITTER,
    LAST_JITTER,
    NotPositiveDefiniteError,
    row_blocks,
    safe_cholesky,
    safe_factor_and_inverse,
    solve,
    whiten,
)

float64 = torch.float64


def spectrum(*eigenvalues: float, seed: int = 0) -> torch.Tensor:
    """A symmetric matrix with these eigenvalues and random eigenvectors."""
    generator = torch.Generator().manual_seed(seed)
    size = len(eigenvalues)
    basis = torch.linalg.qr(torch.randn(size, size, dtype=float64, generator=generator)).Q
    matrix = basis @ torch.diag(torch.tensor(eigenvalues, dtype=float64)) @ basis.T
    return (matrix + matrix.T) / 2


def points(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=float64, generator=torch.Generator().manual_seed(seed))


class TestSafeCholesky:
    @pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
    def test_well_conditioned_matrices_are_factorised_exactly(self, scale):
        matrix = scale * spectrum(1.0, 2.0, 3.0, 4.0, 5.0)
        factor = safe_cholesky(matrix)
        torch.testing.assert_close(factor, torch.linalg.cholesky(matrix), rtol=1e-9, atol=1e-9 * scale**0.5)
        torch.testing.assert_close(factor @ factor.T, matrix, rtol=1e-9, atol=1e-9 * scale)
        assert torch.equal(factor, factor.tril())

    def test_jitter_is_relative_to_each_diagonal_entry(self):
        matrix = torch.diag(torch.tensor([1e-8, 1.0, 1e8], dtype=float64))
        factor = safe_cholesky(matrix, first_jitter=1e-6)
        torch.testing.assert_close(factor @ factor.T, matrix * (1 + 1e-6), rtol=1e-12, atol=0)

    def test_batch_members_climb_the_ladder_independently(self):
        good = spectrum(1.0, 2.0, 3.0)
        bad = spectrum(-1e-6, 1.0, 2.0, seed=1)  # needs a jitter above 1e-6 of its diagonal
        batch = safe_cholesky(torch.stack([good, bad, good]))
        assert torch.equal(batch[0], safe_cholesky(good))
        assert torch.equal(batch[1], safe_cholesky(bad))
        assert torch.equal(batch[2], batch[0])
        errors = (batch @ batch.mT - torch.stack([good, bad, good])).flatten(1).norm(dim=1)
        assert errors[0] < 1e-9
        assert 1e-6 < errors[1] < 1e-4

    def test_leading_axes_are_kept(self):
        matrix = torch.stack([spectrum(1.0, 2.0), spectrum(3.0, 4.0)]).expand(3, 2, 2, 2)
        assert torch.equal(safe_cholesky(matrix)[1, 1], safe_cholesky(spectrum(3.0, 4.0)))

    def test_level_that_worked_is_the_smallest_that_works_and_is_logged(self, caplog):
        caplog.set_level(logging.INFO, logger="autogp")
        safe_cholesky(spectrum(1.0, 2.0))
        assert not caplog.records
        unit = torch.tensor([[1.0, 1 + 3e-7], [1 + 3e-7, 1.0]], dtype=float64)  # smallest eigenvalue -3e-7
        factor = safe_cholesky(unit)
        torch.testing.assert_close(factor @ factor.T - unit, 1e-6 * torch.eye(2, dtype=float64), rtol=1e-6, atol=1e-12)
        assert "1e-06" in caplog.text

    def test_float32_stays_float32(self):
        factor = safe_cholesky(spectrum(1.0, 2.0, 3.0).float(), FIRST_JITTER[torch.float32])
        assert factor.dtype == torch.float32
        torch.testing.assert_close(factor @ factor.T, spectrum(1.0, 2.0, 3.0).float(), rtol=1e-5, atol=1e-5)

    def test_gradient_agrees_with_finite_differences(self):
        matrix, weights = spectrum(1.0, 2.0, 3.0, 5.0), points(4, 4)

        def loss(matrix: torch.Tensor) -> torch.Tensor:
            return (weights * safe_cholesky((matrix + matrix.T) / 2)).sum()

        leaf = matrix.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(leaf), leaf)
        step = 1e-6
        for i in range(4):
            for j in range(4):
                bump = torch.zeros_like(matrix)
                bump[i, j] = step
                difference = (loss(matrix + bump) - loss(matrix - bump)) / (2 * step)
                assert gradient[i, j].item() == pytest.approx(difference.item(), rel=1e-7, abs=1e-8)

    def test_gradient_is_finite_where_the_matrix_is_singular(self):
        x = points(6, 2)
        x = torch.cat([x, x]).requires_grad_()  # each row twice
        factor = safe_cholesky(torch.exp(-0.5 * squared_distance(x, x)))
        (gradient,) = torch.autograd.grad(factor.sum(), x)
        assert torch.isfinite(gradient).all()

    @pytest.mark.parametrize("lowest", [-1e-3, -1.0, -1e6])
    def test_negative_eigenvalue_raises_the_typed_error(self, lowest):
        with pytest.raises(NotPositiveDefiniteError, match=r"3 x 3.*relative jitter of 0\.0001"):
            safe_cholesky(spectrum(lowest, 1.0, 2.0))

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
    def test_what_is_not_finite_raises_the_typed_error(self, value):
        matrix = spectrum(1.0, 2.0, 3.0)
        matrix[1, 2] = value
        with pytest.raises(NotPositiveDefiniteError, match="NaN or infinity"):
            safe_cholesky(matrix)

    def test_negative_diagonal_raises_the_typed_error(self):
        for matrix in (-torch.eye(3, dtype=float64), torch.diag(torch.tensor([1.0, -1e-3, 1.0], dtype=float64))):
            with pytest.raises(NotPositiveDefiniteError):
                safe_cholesky(matrix)

    def test_error_is_an_arithmetic_error(self):
        assert issubclass(NotPositiveDefiniteError, ArithmeticError)

    @pytest.mark.parametrize("dtype", [torch.float32, float64])
    def test_zero_matrix_has_a_finite_invertible_factor(self, dtype):
        matrix = torch.zeros(3, 3, dtype=dtype, requires_grad=True)
        factor = safe_cholesky(matrix)
        assert (factor @ factor.T).abs().max() < 1e-30
        assert (torch.diagonal(factor) > 0).all()
        assert torch.isfinite(torch.autograd.grad(factor.sum(), matrix)[0]).all()

    def test_row_of_zeros_leaves_the_others_alone(self):
        matrix = torch.zeros(4, 4, dtype=float64)
        keep = torch.tensor([0, 2, 3])
        matrix[keep[:, None], keep] = spectrum(1.0, 2.0, 3.0)
        factor = safe_cholesky(matrix)
        torch.testing.assert_close(factor @ factor.T, matrix, rtol=1e-9, atol=1e-9)

    @pytest.mark.parametrize("value", [1e-300, 1e-8, 4.0, 1e12, 1e300])
    def test_one_by_one_is_a_square_root(self, value):
        factor = safe_cholesky(torch.tensor([[value]], dtype=float64))
        assert factor.shape == (1, 1)
        assert factor.item() == pytest.approx(value**0.5, rel=1e-9)

    def test_diagonals_of_thirty_magnitudes_are_equilibrated(self):
        scale = torch.tensor([1e-15, 1e-6, 1.0, 1e6, 1e15], dtype=float64).sqrt()
        correlation = spectrum(0.5, 0.8, 1.0, 1.2, 1.5)
        correlation = correlation / (torch.diagonal(correlation)[:, None] * torch.diagonal(correlation)).sqrt()
        matrix = scale[:, None] * correlation * scale
        factor = safe_cholesky(matrix)
        # Entries below 2e-16 of the mean diagonal count as rounding; the others keep their own relative precision.
        torch.testing.assert_close((factor @ factor.T)[2:, 2:], matrix[2:, 2:], rtol=1e-9, atol=0)

    @pytest.mark.parametrize("shape", [(3,), (2, 3), (4, 2, 3)])
    def test_shape_that_is_not_square_is_an_error(self, shape):
        with pytest.raises(ValueError, match="square"):
            safe_cholesky(torch.ones(shape))

    def test_ladder_ends_where_the_method_says(self):
        assert {torch.float64: 1e-10, torch.float32: 1e-6} == FIRST_JITTER
        assert LAST_JITTER == 1e-4


class TestFactorAndInverse:
    @pytest.mark.parametrize("size", [1, 2, 63, 200, 256, 257, 601])
    def test_value_is_the_factor_and_its_inverse(self, size):
        root = torch.randn(3, size, size, dtype=float64, generator=torch.Generator().manual_seed(size))
        matrix = root @ root.mT / size + torch.eye(size, dtype=float64)
        factor, inverse = safe_factor_and_inverse(matrix)
        torch.testing.assert_close(factor, safe_cholesky(matrix), rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(
            inverse @ factor, torch.eye(size, dtype=float64).expand(3, -1, -1), rtol=0, atol=1e-12
        )

    @pytest.mark.parametrize("size", [5, 70])
    def test_gradient_equals_that_of_factorising_and_solving(self, size):
        generator = torch.Generator().manual_seed(0)
        root, first, second = torch.randn(3, 2, size, size, dtype=float64, generator=generator)
        matrix = (root @ root.mT / size + torch.eye(size, dtype=float64)).requires_grad_()

        def symmetric_gradient(factor, inverse):
            (gradient,) = torch.autograd.grad((first.tril() * factor + second.tril() * inverse).sum(), matrix)
            return gradient + gradient.mT

        factor = safe_cholesky(matrix)
        solved = torch.linalg.solve_triangular(factor, torch.eye(size, dtype=float64), upper=False)
        expected = symmetric_gradient(factor, solved)
        torch.testing.assert_close(
            symmetric_gradient(*safe_factor_and_inverse(matrix)), expected, rtol=1e-9, atol=1e-10
        )

    def test_what_is_not_positive_definite_climbs_the_ladder(self):
        matrix = torch.ones(100, 100, dtype=float64)
        close = matrix + 1e-9 * torch.randn(100, 100, dtype=float64, generator=torch.Generator().manual_seed(0))
        close = 0.5 * (close + close.mT)  # eigenvalues of about -1e-8: more than the first rung
        factor, inverse = safe_factor_and_inverse(close)
        assert (factor @ factor.mT - close).norm() / close.norm() < 1e-3
        torch.testing.assert_close(inverse @ factor, torch.eye(100, dtype=float64), rtol=0, atol=1e-6)
        with pytest.raises(NotPositiveDefiniteError):
            safe_factor_and_inverse(-matrix)


class TestWhiten:
    @pytest.mark.parametrize("size", [1, 2, 49, 50, 101, 203, 260])
    def test_blocks_of_rows_cover_each_row_once(self, size):
        rows = [row for start, stop in row_blocks(size) for row in range(start, stop)]
        assert rows == list(range(size))

    @pytest.mark.parametrize("size", [1, 7, 120, 203])
    @pytest.mark.parametrize("groups", [1, 3])
    def test_value_and_gradients_equal_those_of_factorising_and_solving(self, size, groups):
        generator = torch.Generator().manual_seed(size)
        root, cross, weights = (
            torch.randn(groups, size, width, dtype=float64, generator=generator) for width in (size, 11, 11)
        )
        matrix = (root @ root.mT / size + torch.eye(size, dtype=float64)).requires_grad_()
        cross.requires_grad_()

        def with_gradients(basis):
            matrix_grad, cross_grad = torch.autograd.grad((weights * basis.square()).sum(), (matrix, cross))
            return basis, matrix_grad + matrix_grad.mT, cross_grad  # of the matrix the symmetric part has a meaning

        factor = torch.linalg.cholesky(matrix)
        expected = with_gradients(torch.linalg.solve_triangular(factor, cross, upper=False))
        found = with_gradients(whiten(matrix, torch.linalg.inv(factor), cross))
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)

    @pytest.mark.parametrize("lengthscale", [0.02, 0.2, 1.0, 5.0])
    def test_float32_rows_beside_a_nearly_singular_matrix_lose_nothing_to_the_blocks(self, lengthscale):
        """Gradients by inducing inputs of conditions up to 1e8, against float64 and against products in full."""
        z, x, weights = points(150, 1), points(400, 1, seed=1), points(1, 150, 400, seed=2)
        errors = {}
        for name, dtype in (("exact", float64), ("blocks", torch.float32), ("full", torch.float32)):
            inducing = z.clone().requires_grad_()
            gram = torch.exp(-0.5 * squared_distance(inducing / lengthscale, inducing / lengthscale))[None]
            _, inverse = safe_factor_and_inverse(gram, FIRST_JITTER[torch.float32])
            rows = (inducing.to(dtype) / lengthscale, x.to(dtype) / lengthscale)
            cross = torch.exp(-0.5 * squared_distance(*rows))[None]
            basis = inverse.to(dtype) @ cross if name == "full" else whiten(gram, inverse, cross)
            (errors[name],) = torch.autograd.grad((weights.to(dtype) * basis.square()).sum(), inducing)
        blocks, full = ((errors[name] - errors["exact"]).norm().item() for name in ("blocks", "full"))
        assert blocks < 1.2 * full + 1e-5 * errors["exact"].norm().item()

    @pytest.mark.parametrize("size", [1, 7, 120, 203])
    @pytest.mark.parametrize("groups", [1, 3])
    def test_solving_has_the_value_and_gradients_of_the_inverse(self, size, groups):
        generator = torch.Generator().manual_seed(size)
        root, cross, pull = (
            torch.randn(groups, size, width, dtype=float64, generator=generator) for width in (size, 11, 11)
        )
        matrix = (root @ root.mT / size + torch.eye(size, dtype=float64)).requires_grad_()
        cross.requires_grad_()

        def with_gradients(weights, norms):
            value = (pull * weights.square()).sum() + norms.square().sum()
            matrix_grad, cross_grad = torch.autograd.grad(value, (matrix, cross))
            return weights, norms, matrix_grad + matrix_grad.mT, cross_grad

        expected = with_gradients(*(lambda w: (w, (cross * w).sum(-2)))(torch.linalg.inv(matrix) @ cross))
        found = with_gradients(*solve(matrix, torch.linalg.inv(torch.linalg.cholesky(matrix)), cross))
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)

    def test_a_second_derivative_is_refused_rather_than_wrong(self):
        cross = points(1, 3, 2).requires_grad_()
        eye = torch.eye(3, dtype=float64)[None]
        (slope,) = torch.autograd.grad(whiten(eye, eye, cross).square().sum(), cross, create_graph=True)
        with pytest.raises(RuntimeError, match="once_differentiable"):
            slope.sum().backward()
