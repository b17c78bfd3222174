"""The columns of a table as features: numbers, categories, and missing values (NaN) among them."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Categories", "Columns", "Numbers"]

MISSING = -2  # stands for NaN among codes, which equals nothing; -1 is a category that training never saw


class Columns(nn.Module):
    """The columns of a table side by side: x [B, C] becomes [B, D], in the order of the columns and the dtype of x.

    Arguments:
        inputs: For each map the columns of x that it takes; together all columns, each once.
        maps: Modules from [B, c] to [B, d], such as `Numbers` and `Categories`. A map of your own has two attributes
            besides: `columns`, the names of its d outputs, and `origins`, for each of them which of the c inputs it
            comes from. Its method `inverse`, from [B, d] to [B, c], is for reports alone.

    Attributes:
        columns: Names of the D outputs.
        origins: For each output the column of x that it comes from.

    Example:
        >>> ages = Numbers(["age"], [30.0], missing=[True])
        >>> ports = Categories(["port"], [["Bari", "Cork"]], missing=[False])
        >>> columns = Columns([[1], [0]], [ages, ports])
        >>> columns.columns, columns.origins
        (['port=Bari', 'port=Cork', 'age', 'age missing'], [0, 0, 1, 1])
        >>> columns(torch.tensor([[1.0, 20.0], [0.0, float("nan")]]))
        tensor([[ 0.,  1., 20.,  0.],
                [ 1.,  0., 30.,  1.]])
    """

    grouped: Tensor
    order: Tensor

    def __init__(self, inputs: Sequence[Sequence[int]], maps: Sequence[nn.Module]) -> None:
        super().__init__()
        self.inputs = [list(chosen) for chosen in inputs]
        self.maps = nn.ModuleList(maps)
        grouped = [column for chosen in self.inputs for column in chosen]
        pairs: Any = list(zip(self.inputs, maps, strict=True))
        fit = all(set(each.origins) == set(range(len(chosen))) for chosen, each in pairs)
        if not fit or not grouped or sorted(grouped) != list(range(len(grouped))):
            raise ValueError(f"inputs must name every column once, as many as each map takes, got {self.inputs}")
        origins: list[int] = [chosen[origin] for chosen, each in pairs for origin in each.origins]
        names: list[str] = [name for _, each in pairs for name in each.columns]
        order = sorted(range(len(origins)), key=origins.__getitem__)
        self.origins = [origins[place] for place in order]
        self.columns = [names[place] for place in order]
        self.register_buffer("grouped", torch.tensor(grouped), persistent=False)
        self.register_buffer("order", torch.tensor(order), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1] != len(self.grouped):
            raise ValueError(f"expected {len(self.grouped)} columns, got {x.shape[-1]}")
        groups = x[..., self.grouped].split([len(chosen) for chosen in self.inputs], -1)
        return torch.cat([each(group) for each, group in zip(self.maps, groups, strict=True)], -1)[..., self.order]

    def inverse(self, features: Tensor) -> Tensor:
        """The rows [B, C] whose features are nearest to these, [B, D]; categories are the likeliest ones."""
        maps: Any = self.maps
        groups = features[..., self.order.argsort()].split([len(each.columns) for each in maps], -1)
        rows = torch.cat([each.inverse(group) for each, group in zip(maps, groups, strict=True)], -1)
        return rows[..., self.grouped.argsort()]


class Numbers(nn.Module):
    """Numbers [B, c], the mean where one is missing; where training had missing values, a second column says so.

    Arguments:
        names: Of the columns.
        means: Of each column in training.
        missing: Whether each column had missing values in training.

    Example:
        >>> Numbers(["age"], [30.0], missing=[True])(torch.tensor([[20.0], [float("nan")]]))
        tensor([[20.,  0.],
                [30.,  1.]])
    """

    mean: Tensor
    flagged: Tensor

    def __init__(self, names: Sequence[str], means: Sequence[float], missing: Sequence[bool]) -> None:
        super().__init__()
        if not len(names) == len(means) == len(missing) or not all(map(math.isfinite, means)):
            raise ValueError("numbers need a name, a finite mean and whether values were missing, for each column")
        self.names, self.means, self.missing = list(names), list(means), list(map(bool, missing))
        flagged = [column for column, some in enumerate(missing) if some]
        self.columns = [*names, *(f"{names[column]} missing" for column in flagged)]
        self.origins = [*range(len(names)), *flagged]
        self.register_buffer("mean", torch.tensor(self.means, dtype=torch.float64), persistent=False)
        self.register_buffer("flagged", torch.tensor(flagged, dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        missing = x.isnan()
        return torch.cat([torch.where(missing, self.mean.to(x.dtype), x), missing[..., self.flagged].to(x.dtype)], -1)

    def inverse(self, features: Tensor) -> Tensor:
        """The numbers, and NaN where the second column says so."""
        x, missing = features.split([len(self.mean), len(self.flagged)], -1)
        return x.index_copy(-1, self.flagged, x[..., self.flagged].where(missing <= 0.5, math.nan))


class Categories(nn.Module):
    """Codes of categories [B, c] as columns of zeros and ones, one for each category; other codes are all zeros.

    Arguments:
        names: Of the columns.
        categories: Of each column, in the order of their codes 0, 1, ...
        missing: Whether each column had missing values in training: these are a category, the last.

    Example:
        >>> Categories(["port"], [["Bari", "Cork"]], missing=[True])(torch.tensor([[1.0], [-1.0], [float("nan")]]))
        tensor([[0., 1., 0.],
                [0., 0., 0.],
                [0., 0., 1.]])
    """

    origin: Tensor
    code: Tensor

    def __init__(self, names: Sequence[str], categories: Sequence[Sequence[str]], missing: Sequence[bool]) -> None:
        super().__init__()
        self.names, self.categories = list(names), [list(found) for found in categories]
        self.missing = list(map(bool, missing))
        self.columns: list[str] = []
        self.origins: list[int] = []
        codes: list[int] = []
        for column, (name, found, some) in enumerate(zip(names, categories, self.missing, strict=True)):
            self.columns += [f"{name}={category}" for category in found] + [f"{name} missing"] * some
            codes += [*range(len(found)), *[MISSING] * some]
            self.origins += [column] * (len(found) + some)
        self.register_buffer("origin", torch.tensor(self.origins), persistent=False)
        self.register_buffer("code", torch.tensor(codes), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return (x.nan_to_num(MISSING)[..., self.origin] == self.code).to(x.dtype)

    def inverse(self, features: Tensor) -> Tensor:
        """The code of the largest column of each category, NaN where it is that of missing values."""
        sizes = [len(found) + some for found, some in zip(self.categories, self.missing, strict=True)]
        pairs = zip(features.split(sizes, -1), self.code.split(sizes), strict=True)
        codes = torch.stack([code[group.argmax(-1)] for group, code in pairs], -1).to(features.dtype)
        return codes.where(codes != MISSING, math.nan)
