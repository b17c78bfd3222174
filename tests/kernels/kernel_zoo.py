"""Every kernel with generic parameters, shared by the latent functions or one set for each, and the inputs to try."""

import copy

import torch
from torch import Tensor

from autogp.kernels import (
    RBF,
    ArcCosine,
    Kernel,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    Product,
    RationalQuadratic,
    Sum,
)

COLUMNS = 3
NAMES = (
    "rbf",
    "rbf-isotropic",
    "matern12",
    "matern32",
    "matern52",
    "rational-quadratic",
    "periodic",
    "linear",
    "linear-bias",
    *(f"arccosine-{degree}-{depth}" for degree in (0, 1, 2) for depth in (1, 3)),
    *(f"arccosine-{degree}-2-bias" for degree in (0, 1, 2)),
    *(f"arccosine-{degree}-3-normalized" for degree in (0, 1, 2)),
    "sum",
    "product",
)


def make(name: str, groups: int = 1) -> Kernel:
    """The kernel of that name with parameters for `groups` latent functions and `COLUMNS` inputs."""
    generator = torch.Generator().manual_seed(7)

    def positive(*shape: int) -> Tensor:
        return 0.5 + 1.5 * torch.rand(groups, *shape, dtype=torch.float64, generator=generator)

    stationary = {"rbf": RBF, "matern12": Matern12, "matern32": Matern32, "matern52": Matern52}
    if name in stationary:
        return stationary[name](positive(COLUMNS), positive())
    if name == "rbf-isotropic":
        return RBF(positive(1), positive())
    if name == "rational-quadratic":
        return RationalQuadratic(positive(COLUMNS), positive(), positive())
    if name == "periodic":
        return Periodic(2 * positive(COLUMNS), positive(COLUMNS), positive())
    if name == "linear":
        return Linear(positive(COLUMNS))
    if name == "linear-bias":
        return Linear(positive(COLUMNS), positive())
    if name == "sum":
        return Sum(RBF(positive(COLUMNS), positive()), Linear(positive(COLUMNS)), Matern32(1.3))
    if name == "product":
        return Product(Matern52(positive(COLUMNS), positive()), ArcCosine(1, 2, positive(COLUMNS), positive()))
    _, degree, depth, *options = name.split("-")
    bias = positive() if "bias" in options else 0.0
    return ArcCosine(int(degree), int(depth), positive(COLUMNS), bias, positive(), normalize="normalized" in options)


def member(kernel: Kernel, group: int) -> Kernel:
    """The kernel of one latent function alone."""
    kernel = copy.deepcopy(kernel)
    for parameter in kernel.parameters():
        if len(parameter) > 1:
            parameter.data = parameter.data[group : group + 1].clone()
    return kernel


def points(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def hard_points() -> dict[str, Tensor]:
    """Rows where formulas break: equal, zero, opposite, nearly parallel, huge, tiny, far from the origin."""
    x = points(6, COLUMNS)
    rows = {
        "generic": x,
        "equal": x[:1].expand(6, COLUMNS).clone(),
        "duplicates": torch.cat([x[:3], x[:3]]),
        "zeros": torch.zeros(6, COLUMNS, dtype=torch.float64),
        "one-zero": torch.cat([x[:5], torch.zeros(1, COLUMNS, dtype=torch.float64)]),
        "opposite": torch.cat([x[:3], -x[:3]]),
        "parallel": x[:1] * torch.tensor([[1.0], [2.0], [-3.0], [1e-3], [1e3], [0.0]], dtype=torch.float64),
        "axis": torch.eye(6, COLUMNS, dtype=torch.float64),
        "close": torch.cat([x[:3], x[:3] + 1e-9 * points(3, COLUMNS, seed=1)]),
        "offset": x + 1e4,
        "mixed": x * torch.logspace(-12, 12, 6, dtype=torch.float64)[:, None],
    }
    return rows | {f"scale-{scale:g}": scale * torch.cat([x[:3], x[:3]]) for scale in (1e-12, 1e-6, 1e6, 1e9, 1e12)}
