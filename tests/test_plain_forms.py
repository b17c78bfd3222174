"""Hand-written gradients against autograd's, on the same formulas in plain torch; and the benchmarks that use these."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from autogp import distances, linalg, moments
from autogp.data import ArraySource
from autogp.kernels import RBF, ArcCosine, Kernel, Matern12, Matern32, Matern52
from autogp.likelihoods import Softmax
from autogp.model import SparseGP
from autogp.training import Settings, train
from benchmarks import plain
from benchmarks.ablation import TOGETHER, measure, table
from benchmarks.against import compare
from benchmarks.plain import PLAIN, replaced
from benchmarks.training_steps import PROBLEMS, Problem, Ratio

float64 = torch.float64
groups = pytest.mark.parametrize("groups", [1, 3])


def points(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=float64, generator=torch.Generator().manual_seed(seed))


def covariances(groups: int, size: int = 120) -> Tensor:
    root = points(groups, size, size)
    return root @ root.mT / size + torch.eye(size, dtype=float64)


def assert_same(
    custom: Callable, other: Callable, *leaves: Tensor, symmetric: bool = False, tolerance: float = 1e-8
) -> None:
    """Of values and gradients; of the first leaf's gradient the symmetric part, where it is a covariance matrix."""

    def evaluate(function: Callable) -> list[Tensor]:
        inputs = [leaf.clone().requires_grad_() for leaf in leaves]
        outputs = function(*inputs)
        outputs = [outputs] if isinstance(outputs, Tensor) else list(outputs)
        loss = sum((points(*output.shape, seed=9) * output).sum() for output in outputs)
        assert isinstance(loss, Tensor)
        first, *rest = torch.autograd.grad(loss, inputs)
        return [*outputs, first + first.mT if symmetric else first, *rest]

    for mine, theirs in zip(evaluate(custom), evaluate(other), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("x_groups", "z_groups", "scale_groups"), [(3, 1, 1), (1, 3, 1), (1, 1, 3), (3, 3, 3)])
@pytest.mark.parametrize("columns", [1, 4], ids=["isotropic", "ard"])
def test_distance(x_groups, z_groups, scale_groups, columns):
    x, z = points(x_groups, 120, 4), points(z_groups, 7, 4, seed=1)
    z[:, 2], z[:, 5] = x[0, 3], x[0, 8] + 1e-9  # an equal pair and a close one
    scale = points(scale_groups, 1, columns, seed=2).exp()
    assert_same(distances._Distance.apply, plain.distance, x, z, scale)


@pytest.mark.parametrize(("x_groups", "scale_groups"), [(3, 1), (1, 3), (3, 3)])
def test_distance_of_rows_among_themselves(x_groups, scale_groups):
    x, scale = points(x_groups, 210, 4), points(scale_groups, 1, 4, seed=1).exp()
    x[:, 2], x[:, 5] = x[:, 3], x[:, 8] + 1e-9
    assert_same(distances._OwnDistance.apply, plain.own_distance, x, scale)


@groups
@pytest.mark.parametrize("name", ["whiten", "solve"])
def test_products_with_the_inverse_factor(name, groups):
    def with_inverse(function: Callable) -> Callable:
        return lambda matrix, cross: function(matrix, linalg.safe_factor_and_inverse(matrix)[1], cross)

    custom, other = with_inverse(getattr(linalg, name)), with_inverse(getattr(plain, name))
    assert_same(custom, other, covariances(groups), points(groups, 120, 11, seed=1), symmetric=True)


@groups
def test_expected_log_normal(groups):
    second = covariances(3) + 0.5

    def with_inverse(function: Callable) -> Callable:
        return lambda matrix: function(matrix, linalg.safe_factor_and_inverse(matrix)[1], second)

    custom, other = with_inverse(linalg.expected_log_normal), with_inverse(plain.expected_log_normal)
    assert_same(custom, other, covariances(groups), symmetric=True)


@groups
def test_projection(groups):
    """Two components and three latents."""
    basis, mean, covariance = points(groups, 20, 11), points(2, 3, 20, seed=1), covariances(6, 20).unflatten(0, (2, 3))
    log_weights, numbers = torch.full((2,), 0.5, dtype=float64).log(), torch.zeros(2, 3, dtype=float64)
    dense = moments.DenseMoments(log_weights, mean, numbers, covariance)
    factor = torch.linalg.cholesky(covariance)
    factored = moments.FactoredMoments(log_weights, mean, numbers, factor, numbers)
    assert_same(dense.condition, lambda basis: plain.dense_projection(dense, basis), basis)
    assert_same(factored.condition, lambda basis: plain.factored_projection(factored, basis), basis)


@pytest.mark.parametrize(
    ("name", "kernel"),
    [("_Matern", kind(1.5)) for kind in (Matern12, Matern32, Matern52)]
    + [("_Layer", ArcCosine(degree, depth)) for degree in (0, 1, 2) for depth in (1, 3)],
)
def test_kernel_at_equal_opposite_and_zero_rows_too(name: str, kernel: Kernel):
    x = points(8, 3)
    x[1], x[2], x[3], x[4] = x[0], -x[0], 0, x[5] + 1e-6

    def grams(x: Tensor) -> tuple[Tensor, Tensor]:
        return kernel.gram(x, x), kernel.gram(x, x[:6].clone())

    def in_plain_torch(x: Tensor) -> tuple[Tensor, Tensor]:
        with replaced(name) as called:
            found = grams(x)
        assert called == {name}
        return found

    assert_same(grams, in_plain_torch, x, tolerance=1e-6)  # near opposite rows slopes of 1e8 meet gradients of 0


KERNELS = {"_Matern": lambda: Matern52(torch.ones(3, 2)), "_Layer": lambda: ArcCosine(1, 3, torch.ones(3, 2))}


def trained(name: str) -> dict[str, Tensor]:
    x, kernel = points(60, 2), KERNELS.get(name, lambda: RBF(torch.ones(3, 2)))()
    model = SparseGP(kernel, Softmax(3), points(3, 6, 2, seed=1))
    settings = Settings(objective="loo", max_epochs=3, batch_size=20, held_prior=0.1)
    train(model, ArraySource(x.numpy(), x.argmax(1).numpy()), settings, verbose=False)
    return model.state_dict()


@pytest.mark.parametrize("name", PLAIN)
def test_training_is_the_same_in_plain_torch(name):
    expected = trained(name)
    with replaced(name) as called:
        found = trained(name)
    assert called == {name}
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)


def test_ablation_measures_the_functions_that_a_problem_uses():
    small = Problem(inputs=2, inducing=5, latents=2, held=True)
    found, shortest = measure(small, list(PLAIN), seconds=0.0)
    assert not {"_Matern", "_Layer", "_Whiten"} & found.keys()
    assert {"_Solve", "expected_log_normal", TOGETHER} <= found.keys()
    assert all(0.1 < ratio.value < 10 for ratio in found.values())
    assert 0 < shortest < 10


def test_ablation_tells_what_pays_everywhere_somewhere_and_nowhere():
    def ratios(*values: float) -> dict[str, Ratio]:
        return dict(zip(("_Projection", "_Whiten", "_Distance"), (Ratio(value, 0.01) for value in values), strict=True))

    lines = table({"a": ratios(1.2, 1.0, 1.0), "b": ratios(1.1, 1.0, 1.0), "c": ratios(1.3, 1.2, 1.04)}).splitlines()
    verdicts = {line.split(" | ")[0]: line.split(" | ")[-1] for line in lines[2:]}
    assert verdicts == {"| _Projection": "stays |", "| _Whiten": "stays for some |", "| _Distance": "goes |"}


def test_source_trees_are_compared_by_times_and_counts_of_a_step():
    root = Path(__file__).parents[1]
    problem, threads, ratio, _, operations, waits, size = compare(root, root, "table, regression, M = 50", 1, rounds=1)
    assert (problem, threads) == ("table, regression, M = 50", "1")
    assert 0.2 < float(ratio.split()[0]) < 5
    for counted in (operations, waits, size):
        mine, other = counted.split()
        assert f"({mine})" == other
        assert float(mine) > 0
    assert problem in PROBLEMS
