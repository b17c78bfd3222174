"""Where training starts: inducing inputs from the data, lengthscales from distances, variances from the targets."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from scipy.cluster.vq import kmeans2
from scipy.spatial.distance import pdist
from torch import Tensor, nn

from autogp.data import Source
from autogp.data.sources import as_tensor
from autogp.kernels import (
    RBF,
    ArcCosine,
    Kernel,
    Linear,
    LogNormal,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    RationalQuadratic,
    Selected,
)
from autogp.model import SparseGP, apply_map
from autogp.training.expression import Term, build, terms_of
from autogp.training.state import RunState
from autogp.training.step import FAILURES, Batch, draw

__all__ = [
    "KERNELS",
    "Start",
    "all_inputs",
    "leave_saddle",
    "sample_rows",
    "start_from",
    "start_inducing_inputs",
    "start_kernel",
    "start_latents",
]

SAMPLE_ROWS = 20_000  # k-means sees no more,
ROWS_A_CENTRE, FEWEST_ROWS = 25, 2_000  # nor more than it needs
DISTANCE_ROWS = 1_000
SMALL_SAMPLE = 5_000  # up to here k-means proper, above with minibatches
SADDLE_ROWS = 100  # of the first batch, which tell whether q stands where no row has a slope
START_SPREAD = 0.1  # of the mean of q(v), standard deviations of its prior
STRETCH = 7.0  # how much longer the lengthscales of latents are that do not start at 0
# The prior of lengthscales: its median, half median distances, and the deviations of their logarithms, all together and
# each from the others.
LONGER, TOGETHER, APART = 2.0, 1.0, 0.5
KERNELS = (
    "rbf",
    "matern12",
    "matern32",
    "matern52",
    "rational_quadratic",
    "periodic",
    "categorical",
    "linear",
    "arccosine",
)


@dataclass(frozen=True)
class Start:
    """Where an estimator's model starts, in place of what it would choose.

    >>> Start(variance=20.0)
    Start(variance=20.0, lengthscale=None, by_class=None, dtype=None, prior=True, latents=True)
    """

    variance: float | None = None  # of the kernel; by default 10 for classes, else 1
    lengthscale: float | None = None  # for all columns; by default half the median distance between rows
    by_class: bool | None = None  # whether each class has its share of the inducing inputs; by default it has
    dtype: str | None = None  # of blocks of rows, float32 or float64; by default float64 up to 50 columns
    prior: bool = True  # whether lengthscales have a log-normal prior, where training sees all rows at once
    latents: bool = True  # whether latent functions start where the likelihood says, such as the nodes of a network

    def __post_init__(self) -> None:
        for name in ("variance", "lengthscale"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name} must be positive and finite, got {value!r}")
        if self.dtype not in (None, "float32", "float64"):
            raise ValueError(f"dtype must be 'float32' or 'float64', got {self.dtype!r}")


def start_inducing_inputs(
    source: Source,
    num_inducing: int,
    features: nn.Module | None = None,
    seed: int = 0,
    by_class: bool = False,
    dtype: torch.dtype = torch.float32,
    groups: int = 1,
) -> Tensor:
    """Cluster centres of features of a sample of rows, [M, D]; M is `num_inducing`, or as many as are distinct.

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
    x, y = sample_rows(source, features, most, seed)
    if own:
        return torch.from_numpy(_class_centres(x, y, groups, num_inducing, seed)).to(dtype)
    parts = [_distinct(part) for part in ([x] if not by_class else [x[y == label] for label in np.unique(y)])]
    shares = _shares([len(part) for part in parts], num_inducing)
    init = "random" if by_class else "k-means++"  # within a class rows are alike, and k-means++ takes most of the time
    centres = [_centres(part, size, seed, init) for part, size in zip(parts, shares, strict=True) if size]
    z = torch.from_numpy(_distinct(np.concatenate(centres))).to(dtype)
    return z if groups == 1 else z.expand(groups, -1, -1)


@torch.no_grad()
def all_inputs(source: Source, features: nn.Module | None = None) -> Tensor:
    """The features of all rows, each once, in float64, [M, D]: inducing inputs of a model that is exact.

    >>> import numpy as np
    >>> from autogp.data import ArraySource
    >>> all_inputs(ArraySource(np.repeat(np.eye(3), 5, axis=0))).shape
    torch.Size([3, 3])
    """
    x = torch.from_numpy(np.require(source.rows(np.arange(len(source)))[0], requirements=["C", "W"]))
    phi = x if features is None else apply_map(features, x)
    return torch.from_numpy(_distinct(phi.double().cpu().numpy()))


def start_kernel(
    name: str,
    source: Source,
    features: nn.Module | None = None,
    groups: int = 1,
    variance: float = 1.0,
    seed: int = 0,
    lengthscale: float | None = None,
    columns: dict[str, tuple[int, list[int]]] | None = None,
    joint: Sequence[Sequence[int]] = (),
    prior: bool = False,
) -> Kernel:
    """A kernel by its name or as an expression, for `groups` latent functions (1: shared), one lengthscale per input.

    Unless they are given, lengthscales start at half the median distance between the features of rows, where an RBF
    kernel is exp(-2). With `prior` those of a stationary kernel have a log-normal prior, whose median is the median
    distance; it grows as the square root of the number of columns. For expressions that name columns, `columns` has
    the place of each in the source, and which features come from it. Each list of features in `joint` shares a
    lengthscale.
    """
    columns = columns or {}
    x, _ = sample_rows(source, features, DISTANCE_ROWS, seed)
    if name in KERNELS:
        shared = _shared(range(x.shape[1]), joint)
        return _named_kernel(name, x, groups, variance, lengthscale, shared=shared, prior=prior)
    addends = terms_of(name, KERNELS)
    variance = variance if len(addends) == 1 else 1.0

    def make(term: Term) -> Kernel:
        places = [place for column in term.columns for place in _outputs(name, column, columns)]
        part = x[:, places] if places else x
        sources = [columns[column][0] for column in term.columns] or slice(None)
        given = {
            option: _scaled(source, features, sources, amount)[places or slice(None)]
            for option, amount in term.options.items()
            if option != "variance"
        }
        period, own = given.get("period"), given.get("lengthscale")
        shared = _shared(places or range(x.shape[1]), joint) if own is None else None
        size, scale = term.options.get("variance", variance), lengthscale if own is None else own
        kernel = _named_kernel(term.name, part, groups, size, scale, period, shared, prior)
        if period is not None:
            kernel.log_period.requires_grad_(False)  # it is known
        return Selected(kernel, places) if places else kernel

    return build(name, KERNELS, make)


def _shared(features: Sequence[int], joint: Sequence[Sequence[int]]) -> list[int] | None:
    """For each of these features the number of its lengthscale; none where each has its own.

    >>> _shared([0, 1, 2, 3], [[1, 2]])
    [0, 1, 1, 2]
    """
    first = {feature: columns[0] for columns in joint for feature in columns}
    leaders = [first.get(feature, feature) for feature in features]
    numbers = {leader: number for number, leader in enumerate(dict.fromkeys(leaders))}
    return None if len(numbers) == len(leaders) else [numbers[leader] for leader in leaders]


def _outputs(text: str, column: str, columns: dict[str, tuple[int, list[int]]]) -> list[int]:
    if column not in columns:
        known = f"those are {', '.join(list(columns)[:20])}" if columns else "the features mix the columns"
        raise ValueError(f"kernel={text!r}: there is no column {column!r}; {known}")
    return columns[column][1]


@torch.no_grad()
def _scaled(source: Source, features: nn.Module | None, chosen: list[int] | slice, amount: float) -> Tensor:
    """By how much features change where columns of the data grow by an amount, [D]."""
    x = np.nan_to_num(np.asarray(source.rows(np.zeros(1, np.int64))[0], dtype=np.float64))
    x = np.repeat(x, 2, axis=0)
    x[1, chosen] += amount
    found = torch.from_numpy(x) if features is None else apply_map(features, torch.from_numpy(x))
    return (found[1] - found[0]).double().abs().cpu()


def _named_kernel(
    name: str,
    x: np.ndarray,
    groups: int,
    variance: float,
    lengthscale: float | Tensor | None,
    period: Tensor | None = None,
    shared: list[int] | None = None,
    prior: bool = False,
) -> Kernel:
    """A kernel by its name for inputs such as x [R, D], of which some may share lengthscales."""
    apart = pdist(x)
    typical = float(np.median(apart[apart > 0])) if (apart > 0).any() else 1.0
    each = torch.as_tensor(typical / 2 if lengthscale is None else lengthscale, dtype=torch.float64)
    lengthscales = torch.where(each > 0, each, 1.0).expand(groups, x.shape[1])
    size = torch.full((groups,), variance, dtype=torch.float64)
    stationary = {
        "rbf": RBF,
        "matern12": Matern12,
        "matern32": Matern32,
        "matern52": Matern52,
        "rational_quadratic": RationalQuadratic,
    }
    if name in stationary:
        if shared is not None:
            kernel = stationary[name](lengthscales[:, : max(shared) + 1], size, shared=shared)
        else:
            kernel = stationary[name](lengthscales, size)
        if prior:
            kernel.priors = {"lengthscale": LogNormal(math.log(LONGER * typical / 2), TOGETHER, APART)}
        return kernel
    if name == "categorical":  # the same correlation exp(-d^2 / 2 lengthscale^2) between any two categories
        return RBF(lengthscales[:, :1], size)
    if name == "periodic":
        if period is None:
            period = torch.from_numpy(np.ptp(x, axis=0).astype(np.float64)) / 4  # of the range
        period = torch.where(period > 0, period, 1.0).expand(groups, -1)
        return Periodic(period, torch.ones_like(period), size)
    if lengthscale is not None:  # the paper's form, without a bias
        weights, bias = lengthscales**-2, None
    else:  # <x, x> = 1 for a typical row, plus a bias of the same size
        weights, bias = 0.5 * lengthscales**-2, torch.ones_like(size)
    if name == "linear":
        return Linear(variance * weights, bias=None if bias is None else variance * bias)
    assert name == "arccosine"
    return ArcCosine(degree=1, depth=3, weight_variance=weights, bias=bias, variance=size)


@torch.no_grad()
def sample_rows(source: Source, features: nn.Module | None, most: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Features of rows in float32 and their targets, at most `most` of them, at random."""
    count = len(source)
    if count > most:
        chosen = np.sort(np.random.default_rng(seed).choice(count, most, replace=False))
    else:
        chosen = np.arange(count)
    x, y = source.rows(chosen)
    if features is not None:
        x = apply_map(features, as_tensor(x)).cpu().numpy()
    return np.asarray(x, dtype=np.float32), y


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
    with warnings.catch_warnings():  # centres that have not settled serve as well: training moves them
        warnings.simplefilter("ignore")
        if len(rows) <= SMALL_SAMPLE:
            rows, random = rows.astype(np.float64), np.random.default_rng(seed)
            spread = init == "k-means++"
            start = _spread(rows, size, random) if spread else random.choice(rows, size, replace=False)
            return kmeans2(rows, start, iter=20, minit="matrix")[0]
        from sklearn.cluster import MiniBatchKMeans  # here: half a second, and few rows need no batches

        options: dict[str, Any] = {"init": init, "n_init": 1, "max_iter": 20, "random_state": seed}
        return np.asarray(MiniBatchKMeans(size, batch_size=2048, **options).fit(rows).cluster_centers_)


def _spread(rows: np.ndarray, size: int, random: np.random.Generator) -> np.ndarray:
    """The start of k-means++: each next row with a probability in proportion to its squared distance from the nearest.

    SciPy's own measures all the distances again for each next row.
    """
    chosen, nearest = [random.integers(len(rows))], np.full(len(rows), np.inf)
    while len(chosen) < size:
        nearest = np.minimum(nearest, np.square(rows - rows[chosen[-1]]).sum(1))
        chosen.append(np.searchsorted(np.cumsum(nearest / nearest.sum()), random.uniform()))
    return rows[chosen]


@torch.no_grad()
def leave_saddle(state: RunState, batch: Batch, samples: int, generator: torch.Generator) -> bool:
    """Moves q a little where no row has a slope, and says whether it did.

    A product of functions that are all 0 would stay 0 for ever.
    """
    model = state.model
    try:
        prepared = model.prepare(state.q)
        if prepared.moments.mean.any():
            return False
        batch = batch.part(slice(SADDLE_ROWS))
        marginals = model.marginals(model.embed(batch.x), prepared)
    except FAILURES:
        return False  # its steps will say so
    start = prepared.moments.mean
    away = torch.randn(
        start.shape, dtype=start.dtype, device=start.device, generator=generator
    )  # whatever the rows are
    noise = draw(model, len(batch.x), samples, generator) if "elbo" in model.likelihood.sampled else None
    slope, _ = model.likelihood.expected_derivatives(marginals.mean, marginals.variance, batch.y, noise)
    if slope.any():
        return False
    state.set_moments(START_SPREAD * away, prepared.moments.covariance())
    return True


@torch.no_grad()
def start_from(model: SparseGP, other: SparseGP) -> None:
    """Starts kernel and inducing inputs where another model has ended, as far as shapes allow; q stays at its prior.

    So do the parameters of the likelihood, where both are of one kind.
    """
    alike = type(model.likelihood) is type(other.likelihood)
    theirs = dict(other.named_parameters())
    learnt = {name: mine for name, mine in model.named_parameters() if mine.requires_grad}
    for name, mine in learnt.items():
        if name in theirs and (name.startswith(("kernel.", "inducing_inputs")) or (alike and "likelihood." in name)):
            their = theirs[name]
            if their.ndim == mine.ndim and all(a in (1, b) for a, b in zip(their.shape, mine.shape, strict=True)):
                mine.copy_(their)


@torch.no_grad()
def start_latents(model: SparseGP, seed: int = 0) -> None:
    """Starts latent functions where the likelihood says, within 0.1; those that do not start at 0 vary slowly.

    A regression network starts with its nodes at 1: as outputs that are independent of each other. From there it learns
    what they share. From functions that are all near 0 it goes wherever chance takes it.
    """
    values = model.likelihood.start_values
    if values is None or not any(values):
        return
    chosen = torch.tensor([value != 0 for value in values])
    model.kernel.stretch(chosen, STRETCH)
    prepared = model.prepare()
    mean, covariance = prepared.moments.mean.clone(), prepared.moments.covariance().clone()
    start = torch.tensor(values, dtype=mean.dtype, device=mean.device)[chosen, None].expand_as(mean[:, chosen])
    if chosen.sum() > 1:  # else they would stay equal
        generator = torch.Generator(mean.device).manual_seed(seed)
        start = start + START_SPREAD * torch.randn(
            start.shape, dtype=mean.dtype, device=mean.device, generator=generator
        )
    inverse = prepared.inverse if len(prepared.inverse) == 1 else prepared.inverse[chosen]
    mean[:, chosen] = (inverse @ start[..., None]).squeeze(-1)
    covariance[:, chosen] *= START_SPREAD**2
    model.posterior.set_moments(mean, covariance)
