"""Where training starts: inducing inputs from the data, lengthscales from distances, variances from the targets."""

import math
import warnings
from functools import cache
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import pairwise_distances
from torch import Tensor

from autogp.data import InputScaler, Source
from autogp.kernels import RBF, ArcCosine, Kernel, Linear, Matern12, Matern32, Matern52
from autogp.kernels.stationary import Stationary
from autogp.likelihoods import Network
from autogp.model import SparseGP
from autogp.posteriors import HeldPosterior
from autogp.training.schedule import Settings
from autogp.training.step import FAILURES, Batch, draw

__all__ = [
    "KERNELS",
    "leave_saddle",
    "start_inducing_inputs",
    "start_kernel",
    "start_nodes",
]

SAMPLE_ROWS = 20_000  # k-means sees no more,
ROWS_A_CENTRE, FEWEST_ROWS = 25, 2_000  # nor more than it needs
DISTANCE_ROWS = 1_000
SMALL_SAMPLE = 5_000  # up to here k-means proper, above with minibatches
START_SPREAD = 0.1  # of the mean of q(v), standard deviations of its prior
NODE_STRETCH = 7.0  # how much longer the lengthscales of a network's nodes are at the start than those of its weights
KERNELS = ("rbf", "matern12", "matern32", "matern52", "linear", "arccosine")


def start_inducing_inputs(
    source: Source,
    num_inducing: int,
    scaler: InputScaler | None = None,
    seed: int = 0,
    by_class: bool = False,
    dtype: torch.dtype = torch.float32,
    groups: int = 1,
) -> Tensor:
    """Cluster centres of a sample of the (scaled) rows, [M, D]; M is `num_inducing`, or as many rows as are distinct.

    With `by_class` (targets 0 to Q - 1) each class gets its share of the centres. `groups` above 1 is for a kernel for
    each latent function: [groups, M, D], the same centres for all; by class, where the latent functions are those of
    the classes, three quarters from the class itself and the rest from all others. A model computes in the precision
    of its inducing inputs, `dtype`.

    >>> import numpy as np
    >>> from autogp.data import ArraySource
    >>> start_inducing_inputs(ArraySource(np.repeat(np.eye(3), 5, axis=0)), num_inducing=10).shape
    torch.Size([3, 3])
    """
    if num_inducing < 1:
        raise ValueError(f"num_inducing must be at least 1, got {num_inducing}")
    own = by_class and groups > 1
    most = SAMPLE_ROWS if own else min(SAMPLE_ROWS, max(FEWEST_ROWS, ROWS_A_CENTRE * num_inducing))
    x, y = _sample(source, scaler, most, seed)
    if own:
        return torch.from_numpy(_class_centres(x, y, groups, num_inducing, seed)).to(dtype)
    parts = [_distinct(part) for part in ([x] if not by_class else [x[y == label] for label in np.unique(y)])]
    shares = _shares([len(part) for part in parts], num_inducing)
    init = "random" if by_class else "k-means++"  # within a class rows are alike, and k-means++ takes most of the time
    centres = [_centres(part, size, seed, init) for part, size in zip(parts, shares, strict=True) if size]
    z = torch.from_numpy(_distinct(np.concatenate(centres))).to(dtype)
    return z if groups == 1 else z.expand(groups, -1, -1)


def start_kernel(
    name: str, source: Source, scaler: InputScaler | None = None, groups: int = 1, variance: float = 1.0, seed: int = 0
) -> Kernel:
    """A kernel by its name, for `groups` latent functions (1: shared), one lengthscale per input.

    Lengthscales start at half the median distance between (scaled) rows, where an RBF kernel is exp(-2).
    """
    x, _ = _sample(source, scaler, DISTANCE_ROWS, seed)
    dimension = x.shape[1]
    apart = pairwise_distances(x)[np.triu_indices(len(x), 1)]
    typical = float(np.median(apart[apart > 0])) if (apart > 0).any() else 1.0
    lengthscale = torch.full((groups, dimension), typical / 2, dtype=torch.float64)
    size = torch.full((groups,), variance, dtype=torch.float64)
    stationary = {"rbf": RBF, "matern12": Matern12, "matern32": Matern32, "matern52": Matern52}
    if name in stationary:
        return stationary[name](lengthscale, size)
    # <x, x> = 1 for a typical row, plus a bias of the same size
    weights = 2 / typical**2 * torch.ones(groups, dimension, dtype=torch.float64)
    if name == "linear":
        return Linear(variance * weights, bias=size)
    if name == "arccosine":
        return ArcCosine(degree=1, depth=3, weight_variance=weights, bias=torch.ones(groups), variance=size)
    raise ValueError(f"kernel must be one of {', '.join(KERNELS)}, got {name!r}")


def _sample(source: Source, scaler: InputScaler | None, most: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Scaled rows in float32 and their targets, at most `most` of them, at random."""
    count = len(source)
    if count > most:
        chosen = np.sort(np.random.default_rng(seed).choice(count, most, replace=False))
    else:
        chosen = np.arange(count)
    x, y = source.rows(chosen)
    if scaler is None:
        return np.asarray(x, dtype=np.float32), y
    return scaler(torch.from_numpy(np.require(x, requirements=["C", "W"])), torch.float32).numpy(), y


def _distinct(rows: np.ndarray) -> np.ndarray:
    """The rows without repetitions, in order of first appearance; by hashing, since sorting wide rows takes seconds."""
    rows = rows + 0.0  # -0 and 0 are equal, but not their bytes
    first = {row.tobytes(): number for number, row in reversed(list(enumerate(rows)))}
    return rows[sorted(first.values())]


def _shares(counts: list[int], total: int) -> list[int]:
    """Divides `total` evenly between groups that can take no more than their counts; the rest goes to the others."""
    shares = [0] * len(counts)
    total = min(total, sum(counts))
    while total:
        open_groups = [i for i, count in enumerate(counts) if shares[i] < count]
        each = max(1, total // len(open_groups))
        for i in open_groups:
            step = min(each, counts[i] - shares[i], total)
            shares[i] += step
            total -= step
    return shares


def _class_centres(x: np.ndarray, y: np.ndarray, classes: int, size: int, seed: int) -> np.ndarray:
    """For each class three quarters from itself, or as many as it has, the rest evenly from the others: [Q, M, D]."""
    parts = [_distinct(x[y == label]) for label in range(classes)]
    counts = [len(part) for part in parts]
    centres = cache(lambda part, size: _centres(parts[part], size, seed, "random"))
    found = []
    for own, count in enumerate(counts):
        shares = _shares([*counts[:own], 0, *counts[own + 1 :]], max(math.ceil(size / 4), size - count))
        shares[own] = min(count, size - sum(shares))
        found.append(np.concatenate([centres(part, share) for part, share in enumerate(shares) if share]))
    return np.stack(found)


def _centres(rows: np.ndarray, size: int, seed: int, init: str = "k-means++") -> np.ndarray:
    if size >= len(rows):
        return rows
    from sklearn.cluster import KMeans, MiniBatchKMeans  # here: a fifteenth of the import, and few rows need no centres

    options: dict[str, Any] = {"n_clusters": size, "init": init, "n_init": 1, "max_iter": 20, "random_state": seed}
    few = len(rows) <= SMALL_SAMPLE
    clusters = KMeans(**options) if few else MiniBatchKMeans(batch_size=2048, **options)
    with warnings.catch_warnings():  # centres that have not settled serve as well: training moves them
        warnings.simplefilter("ignore", ConvergenceWarning)
        return np.asarray(clusters.fit(rows).cluster_centers_)


@torch.no_grad()
def leave_saddle(model: SparseGP, batch: Batch, settings: Settings, generator: torch.Generator) -> bool:
    """Moves q a little where no row has a slope, and says whether it did.

    A product of functions that are all 0 would stay 0 for ever.
    """
    try:
        prepared = model.prepare()
        if prepared.moments.mean.any():
            return False
        marginals = model.marginals(batch.x, prepared)
    except FAILURES:
        return False  # its steps will say so
    generator.manual_seed(settings.seed << 32)
    noise = draw(model.likelihood.sampled & {"elbo"}, marginals, settings.samples, generator)
    slope, _ = model.likelihood.expected_derivatives(*marginals[1:3], batch.y, noise.get("elbo"))
    if slope.any():
        return False
    start = prepared.moments.mean
    away = torch.randn(start.shape, dtype=start.dtype, device=start.device, generator=generator)
    assert not isinstance(model.posterior, HeldPosterior)
    model.posterior.set_moments(START_SPREAD * away, prepared.moments.covariance())
    return True


@torch.no_grad()
def start_nodes(model: SparseGP, seed: int = 0) -> None:
    """Starts a regression network with nodes at 1, within 0.1, that vary slowly: as outputs independent of each other.

    From there it learns what the outputs share. From functions that are all near 0 it goes wherever chance takes it.
    Kernel and inducing inputs must be separate for each latent function.
    """
    likelihood, kernel = model.likelihood, model.kernel
    if not isinstance(likelihood, Network) or isinstance(model.posterior, HeldPosterior):
        raise TypeError("start_nodes is for a model with the likelihood Network and a posterior that learns")
    nodes = slice(likelihood.num_latents - likelihood.num_nodes, None)
    if isinstance(kernel, Stationary):
        if len(kernel.log_lengthscale) == 1:
            raise ValueError("start_nodes needs a kernel with parameters for each latent function")
        kernel.log_lengthscale[nodes] += math.log(NODE_STRETCH)
    prepared = model.prepare()
    mean, covariance = prepared.moments.mean.clone(), prepared.moments.covariance().clone()
    values = torch.ones_like(mean[:, nodes])
    if likelihood.num_nodes > 1:  # else they would stay equal
        generator = torch.Generator(mean.device).manual_seed(seed)
        values += START_SPREAD * torch.randn(values.shape, dtype=mean.dtype, device=mean.device, generator=generator)
    inverse = prepared.inverse if len(prepared.inverse) == 1 else prepared.inverse[nodes]
    mean[:, nodes] = (inverse @ values[..., None]).squeeze(-1)
    covariance[:, nodes] *= START_SPREAD**2
    model.posterior.set_moments(mean, covariance)
