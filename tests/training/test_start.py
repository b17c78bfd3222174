"""Where training starts: inducing inputs are distinct points among the data, kernels have the data's own scale."""

import math

import numpy as np
import pytest
import torch
from scipy.cluster.vq import kmeans2
from threadpoolctl import threadpool_limits

from autogp.data import ArraySource, summarise
from autogp.features import Scaling
from autogp.kernels import RBF, ArcCosine, Linear, Matern12, Matern32, Matern52, Periodic, RationalQuadratic
from autogp.likelihoods import Gaussian, Network
from autogp.model import SparseGP
from autogp.training.start import (
    KERNELS,
    SAMPLE_ROWS,
    _centres,
    start_inducing_inputs,
    start_kernel,
    start_latents,
)


@pytest.fixture(autouse=True, scope="module")
def one_thread_in_kmeans():
    with threadpool_limits(1):
        yield


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def distinct(rows: torch.Tensor) -> int:
    return len(np.unique(rows.numpy(), axis=0))


class CountingSource:
    """A source of any length that counts the rows that were asked for."""

    def __init__(self, length: int):
        self.length = length
        self.read = 0

    def __len__(self) -> int:
        return self.length

    def rows(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self.read += len(indices)
        return np.stack([np.sin(indices), np.cos(0.5 * indices)], 1), indices % 3


@pytest.mark.parametrize(("rows", "wanted"), [(200, 1), (200, 17), (17, 17), (5, 17), (1, 17), (1, 1)])
def test_there_are_as_many_as_asked_for_or_as_there_are_rows(rows, wanted):
    x = random(rows, 3)
    z = start_inducing_inputs(ArraySource(x), wanted)
    assert z.shape == (min(rows, wanted), 3)
    assert z.dtype == torch.float32
    assert distinct(z) == len(z)
    assert (z.numpy() >= x.min(0) - 1e-6).all()
    assert (z.numpy() <= x.max(0) + 1e-6).all()


@pytest.mark.parametrize("by_class", [False, True])
def test_there_are_never_more_than_distinct_rows(by_class):
    x = np.repeat(random(6, 2), 30, axis=0)
    labels = np.tile([0, 1], 90)  # each class has all six
    z = start_inducing_inputs(ArraySource(x, labels), 50, by_class=by_class)
    assert distinct(z) == len(z) == 6


def test_one_row_many_times_gives_one_inducing_input():
    z = start_inducing_inputs(ArraySource(np.full((100, 4), 2.5)), 10)
    assert z.tolist() == [[2.5, 2.5, 2.5, 2.5]]


def test_zero_and_minus_zero_are_one_point():
    assert len(start_inducing_inputs(ArraySource(np.array([[0.0], [-0.0]])), 2)) == 1


def test_distinct_rows_that_scaling_or_rounding_makes_equal_count_once():
    x = np.array([[1e9], [1e9 + 1], [1e9 + 2], [0.0]])  # the first three are one number in float32
    assert len(start_inducing_inputs(ArraySource(x), 4)) == 2


def test_every_class_has_its_share_however_rare():
    x = np.concatenate([random(500, 2), 50 + random(3, 2), -50 + random(20, 2)])
    labels = np.repeat([0, 1, 2], [500, 3, 20])
    z = start_inducing_inputs(ArraySource(x, labels), 30, by_class=True).numpy()
    counts = [(np.abs(z) < 20).all(1).sum(), (z > 20).all(1).sum(), (z < -20).all(1).sum()]
    assert counts == [14, 3, 13]  # ten each; the second has only three, and leaves seven to the others
    z = start_inducing_inputs(ArraySource(x, labels), 3, by_class=True).numpy()
    assert sorted(np.round(z[:, 0] / 50).tolist()) == [-1, 0, 1]


def test_labels_may_have_gaps_and_fewer_places_than_classes():
    x, labels = random(60, 2), np.repeat([7, -1, 100], 20)
    assert len(start_inducing_inputs(ArraySource(x, labels), 2, by_class=True)) == 2


def test_constant_columns_stay_as_they_are():
    x = random(100, 3)
    x[:, 1] = 4.0
    z = start_inducing_inputs(ArraySource(x), 10)
    assert z.shape == (10, 3)
    assert (z[:, 1] == 4.0).all()


def test_inducing_inputs_are_on_the_scale_of_the_scaled_rows():
    images = np.random.default_rng(0).integers(0, 256, size=(300, 6), dtype=np.uint8)
    source = ArraySource(images)
    scaler = Scaling.from_summary(summarise(source))
    z = start_inducing_inputs(source, 20, scaler)
    assert z.abs().max() < 2
    few = start_inducing_inputs(ArraySource(images[:5]), 20, scaler)
    torch.testing.assert_close(few, scaler(torch.from_numpy(images[:5])), rtol=0, atol=0)
    assert start_inducing_inputs(source, 20, scaler, dtype=torch.float64).dtype == torch.float64


def test_cluster_centres_cover_the_data():
    """Their mean squared distance to the rows is well below that of as many rows drawn at random."""
    x = random(3000, 2)
    z = start_inducing_inputs(ArraySource(x), 40).numpy()

    def spread(points: np.ndarray) -> float:
        return float(((x[:, None] - points[None]) ** 2).sum(-1).min(1).mean())

    assert spread(z) < 0.8 * spread(x[:40])


def test_k_means_starts_with_the_rows_that_scipys_would_choose():
    x, size = random(300, 4), 25
    expected, _ = kmeans2(x, size, iter=20, minit="++", seed=np.random.default_rng(3))
    np.testing.assert_array_equal(_centres(x, size, seed=3), expected)


@pytest.mark.parametrize(("rows", "size"), [(400, 12), (8000, 240)])  # k-means, and with minibatches
def test_the_seed_decides(rows, size):
    source = ArraySource(random(rows, 3), np.arange(rows) % 4)
    for by_class in (False, True):
        first, again, other = (start_inducing_inputs(source, size, seed=seed, by_class=by_class) for seed in (1, 1, 2))
        assert torch.equal(first, again)
        assert not torch.equal(first, other)


@pytest.mark.parametrize("length", [SAMPLE_ROWS, SAMPLE_ROWS + 1, 10**9])
@pytest.mark.parametrize(("size", "rows"), [(5, 2_000), (100, 2_500), (900, 20_000)])
def test_no_more_rows_are_read_than_k_means_needs(length, size, rows):
    source = CountingSource(length)
    assert len(start_inducing_inputs(source, size, by_class=True)) == size
    assert source.read == rows
    source = CountingSource(length)
    start_kernel("rbf", source)
    assert source.read <= 20_000


def test_three_quarters_of_a_classs_own_inducing_inputs_are_of_the_class():
    """Classes of 40, 3 and 40 rows around 0, 10 and 20."""
    labels = np.repeat([0, 1, 2], [40, 3, 40])
    x = 10.0 * labels + np.random.default_rng(0).uniform(-1, 1, len(labels))
    z = start_inducing_inputs(ArraySource(x[:, None], labels), 12, by_class=True, groups=3)
    found = [[int((z[own] / 10).round().eq(label).sum()) for label in range(3)] for own in range(3)]
    assert found == [[9, 2, 1], [5, 3, 4], [2, 1, 9]]


def test_classes_have_all_distinct_rows_where_there_are_too_few():
    source = ArraySource(np.eye(6)[[0, 1, 2, 3, 4, 5, 5]], np.array([0, 0, 0, 0, 0, 1, 1]))
    z = start_inducing_inputs(source, 10, by_class=True, groups=2)
    assert z.shape == (2, 6, 6)


@pytest.mark.parametrize("size", [1, 6])
def test_a_class_that_the_sample_does_not_have_takes_all_its_inducing_inputs_from_the_others(size):
    source = ArraySource(np.arange(12.0)[:, None], np.arange(12) // 4)
    z = start_inducing_inputs(source, size, by_class=True, groups=4)
    assert z.shape == (4, size, 1)
    assert torch.isfinite(z).all()


def test_groups_that_are_no_classes_start_from_the_same_centres():
    source = ArraySource(random(50, 2))
    z = start_inducing_inputs(source, 5, groups=3)
    assert torch.equal(z, start_inducing_inputs(source, 5).expand(3, 5, 2))


def test_fewer_than_one_inducing_input_is_refused():
    with pytest.raises(ValueError, match="num_inducing must be at least 1, got 0"):
        start_inducing_inputs(ArraySource(random(5, 2)), 0)


TYPES = {
    "rbf": RBF,
    "matern12": Matern12,
    "matern32": Matern32,
    "matern52": Matern52,
    "linear": Linear,
    "arccosine": ArcCosine,
    "rational_quadratic": RationalQuadratic,
    "periodic": Periodic,
    "categorical": RBF,
}


def test_every_name_gives_its_kernel():
    assert set(TYPES) == set(KERNELS)
    for name, kind in TYPES.items():
        assert type(start_kernel(name, ArraySource(random(50, 3)))) is kind
    with pytest.raises(ValueError, match=r"no kernel 'cubic'; those by name are rbf, "):
        start_kernel("cubic", ArraySource(random(50, 3)))


def test_lengthscale_is_half_the_median_distance():
    x = random(300, 5) * [1, 2, 3, 4, 5]
    distances = [math.dist(a, b) for i, a in enumerate(x) for b in x[:i]]
    kernel = start_kernel("rbf", ArraySource(x), groups=2, variance=3.0)
    expected = torch.full((2, 5), float(np.median(distances)) / 2, dtype=torch.float64)
    torch.testing.assert_close(kernel.lengthscale, expected, rtol=1e-5, atol=0)
    torch.testing.assert_close(kernel.variance, torch.tensor([3.0, 3.0], dtype=torch.float64))


def test_rows_at_the_median_distance_correlate_by_exp_minus_two_in_the_rbf_kernel():
    x = torch.from_numpy(random(500, 8))
    gram = start_kernel("rbf", ArraySource(x)).gram(x, x)
    assert gram.median().item() == pytest.approx(math.exp(-2), abs=0.01)


@pytest.mark.parametrize("name", ["linear", "arccosine"])
def test_kernels_without_lengthscale_have_about_unit_inputs(name):
    x = 20 * random(400, 10)
    kernel = start_kernel(name, ArraySource(x))
    weights = kernel.variance if name == "linear" else kernel.weight_variance
    squares = (torch.from_numpy(x).square() * weights).sum(-1)
    assert squares.median().item() == pytest.approx(1, abs=0.15)


AWKWARD = {
    "constant": np.full((30, 2), 3.0),
    "all zero": np.zeros((30, 2)),
    "one row": np.array([[1.0, -2.0]]),
    "one distinct row among equals": np.array([[0.0, 0.0]] * 29 + [[1.0, 1.0]]),
    "constant column": np.stack([np.arange(30.0), np.zeros(30)], 1),
    "far from the origin": 1e5 + random(30, 2),
    "small": 1e-6 * random(30, 2),
    "large": 1e6 * random(30, 2),
}


@pytest.mark.parametrize("data", AWKWARD)
@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel_starts_finite_on_awkward_data(name, data):
    source = ArraySource(AWKWARD[data])
    kernel = start_kernel(name, source, groups=1, variance=2.0)
    assert all(torch.isfinite(parameter).all() for parameter in kernel.parameters())
    z = start_inducing_inputs(source, 5)
    prediction = SparseGP(kernel, Gaussian(), z).predict(torch.from_numpy(AWKWARD[data]))
    assert torch.isfinite(prediction.mean).all()
    assert (prediction.variance >= 1).all()


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_come_for_as_many_latent_functions_as_asked(name):
    x = torch.from_numpy(random(20, 3))
    for groups in (1, 4):
        assert start_kernel(name, ArraySource(x), groups=groups).gram(x, x[:2]).shape == (groups, 20, 2)


def test_kernels_depend_on_the_seed_only_where_there_are_too_many_rows():
    few, many = ArraySource(random(900, 2)), ArraySource(random(5000, 2))
    scales = {
        (name, seed): start_kernel("rbf", source, seed=seed).log_lengthscale[0, 0].item()
        for name, source in (("few", few), ("many", many))
        for seed in (0, 1)
    }
    assert scales["few", 0] == scales["few", 1]
    assert scales["many", 0] != scales["many", 1]
    assert scales["many", 0] == start_kernel("rbf", many, seed=0).log_lengthscale[0, 0].item()


@pytest.mark.parametrize("nodes", [1, 2])
def test_nodes_of_a_network_start_at_1_and_vary_slowly(nodes: int) -> None:
    likelihood = Network(num_outputs=3, num_nodes=nodes)
    x = torch.from_numpy(random(40, 2))
    z = x[:8].expand(likelihood.num_latents, 8, 2)
    kernel = RBF(lengthscale=torch.ones(likelihood.num_latents, 2))
    model = SparseGP(kernel, likelihood, z)
    start_latents(model)
    with torch.no_grad():
        marginals = model(x[:8])
    assert marginals.mean[0, :, :-nodes].abs().max() == 0
    at_one = marginals.mean[0, :, -nodes:]
    assert (at_one - 1).abs().max() < (1e-3 if nodes == 1 else 0.5)
    assert nodes == 1 or not torch.allclose(at_one[:, 0], at_one[:, 1])
    assert marginals.variance[0, :, -nodes:].max() < 0.02
    assert kernel.lengthscale[-1].min() > 2 * kernel.lengthscale[0].max()


def test_latents_without_start_values_stay_where_they_are() -> None:
    model = SparseGP(RBF(), Gaussian(), torch.randn(3, 1))
    start_latents(model)
    assert not model.posterior.mean.any()
    assert model.kernel.lengthscale.item() == 1
