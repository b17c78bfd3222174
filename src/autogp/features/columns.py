"""The columns of a table as features: numbers, categories, and missing values (NaN) among them."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from autogp.data import Source, TableEncoder
from autogp.data.dates import PERIODS, Date
from autogp.data.kinds import Number
from autogp.data.texts import ManyTexts, Text
from autogp.features.base import FeatureMap, as_rows
from autogp.features.embedding import CrossFitted, Embedding

__all__ = ["Categories", "Columns", "Numbers"]

FEW_CATEGORIES = 10  # of each of which the model learns how much it matters
MISSING = -2  # stands for NaN among codes, which equals nothing; -1 is a category that training never saw


class Columns(FeatureMap):
    """The columns of a table side by side: x [B, C] becomes [B, D], in the order of the columns and the dtype of x.

    Arguments:
        inputs: For each map the columns of x that it takes; together all columns, each once.
        maps: Feature maps from [B, c] to [B, d], such as `Numbers` and `Categories`, that know the `origins` of their
            outputs. They have `names`, those of their c inputs, and `columns`, those of their d outputs.

    Attributes:
        columns: Names of the D outputs.
        origin: For each output the column of x that it comes from.
        joint: Outputs that are one column of categories, and matter alike: lists of their places.

    Example:
        >>> ages = Numbers(["age"], [30.0], missing=[True])
        >>> ports = Categories(["port"], [["Bari", "Cork"]], missing=[False])
        >>> columns = Columns([[1], [0]], [ages, ports])
        >>> columns.columns, columns.origin
        (['port=Bari', 'port=Cork', 'age', 'age missing'], [0, 0, 1, 1])
        >>> columns(torch.tensor([[1.0, 20.0], [0.0, float("nan")]]))
        tensor([[ 0.,  1., 20.,  0.],
                [ 1.,  0., 30.,  1.]])
    """

    allows_missing = True
    grouped: Tensor
    order: Tensor

    def __init__(self, inputs: Sequence[Sequence[int]], maps: Sequence[FeatureMap]) -> None:
        super().__init__()
        self.inputs = [list(chosen) for chosen in inputs]
        self.maps = nn.ModuleList(maps)
        grouped = [column for chosen in self.inputs for column in chosen]
        pairs: Any = list(zip(self.inputs, maps, strict=True))
        fitting = all(len(chosen) == len(each.names) for chosen, each in pairs)
        if not fitting or not grouped or sorted(grouped) != list(range(len(grouped))):
            raise ValueError(f"inputs must name every column once, as many as each map takes, got {self.inputs}")
        self.register_buffer("grouped", torch.tensor(grouped), persistent=False)
        self.register_buffer("order", torch.zeros(0, dtype=torch.int64), persistent=False)
        self._arrange()

    def _arrange(self) -> None:
        """Puts the outputs in the order of the columns that they come from."""
        pairs: Any = list(zip(self.inputs, self.maps, strict=True))
        origins: list[int] = [origin for chosen, each in pairs for origin in each.origins(chosen)]
        names: list[str] = [name for _, each in pairs for name in each.columns]
        order = sorted(range(len(origins)), key=origins.__getitem__)
        self.origin = [origins[place] for place in order]
        self.columns = [names[place] for place in order]
        joint = [chosen[place] for chosen, each in pairs if isinstance(each, Categories) for place in each.joint]
        self.joint = [[place for place, origin in enumerate(self.origin) if origin == column] for column in joint]
        self.order = torch.tensor(order)

    @classmethod
    def of(cls, encoder: TableEncoder) -> "Columns | None":
        """The map for the arrays that `encoder` makes of tables; none for complete numbers, which stay as they are."""
        if encoder.complete:
            return None
        maps = [MAPS[kind].of(parts) for kind, _, parts in encoder.groups]
        return cls([columns for _, columns, _ in encoder.groups], maps)

    def fit(self, X: Any, y: Any = None, seed: int = 0) -> "Columns":
        """Places the categories of columns that have many, by the targets [N, P] of rows [N, C]."""
        source = as_rows(X)
        for chosen, each in self._learning:
            each.fit(_Selected(source, chosen), seed=seed)
        self._arrange()
        return self

    def cross_fitted(self, source: Source, seed: int) -> Source:
        """The rows that `fit` saw, as they are to be learnt from."""
        for chosen, each in self._learning:
            source = CrossFitted(source, chosen, each.sizes, seed)
        return source

    def settle(self) -> None:
        """Forgets what only rows of training need."""
        for _, each in self._learning:
            each.settle()

    @property
    def _learning(self) -> list[tuple[list[int], Any]]:
        """Maps that learn from targets, with the columns that they take."""
        pairs: Any = zip(self.inputs, self.maps, strict=True)
        return [(chosen, each) for chosen, each in pairs if each.from_targets]

    def resembles(self, other: "Columns") -> bool:
        """Whether the other takes the same columns in the same way, whatever it has learnt about them."""
        pairs: Any = zip(self.maps, other.maps, strict=False)
        return self.inputs == other.inputs and all(type(a) is type(b) and a.key == b.key for a, b in pairs)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1] != len(self.grouped):
            raise ValueError(f"expected {len(self.grouped)} columns, got {x.shape[-1]}")
        groups = x[..., self.grouped].split([len(chosen) for chosen in self.inputs], -1)
        found = [each(group).to(x.dtype) for each, group in zip(self.maps, groups, strict=True)]
        return torch.cat(found, -1)[..., self.order]

    def origins(self, columns: Sequence[int | None]) -> list[int | None]:
        return [columns[origin] for origin in self.origin]


class _Selected:
    """Some columns of the rows of a source."""

    def __init__(self, source: Source, columns: list[int]) -> None:
        self.source, self.columns = source, columns

    def __len__(self) -> int:
        return len(self.source)

    def rows(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        x, y = self.source.rows(indices)
        return x[:, self.columns], y


class Numbers(FeatureMap):
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

    allows_missing = True
    mean: Tensor
    flagged: Tensor

    def __init__(self, names: Sequence[str], means: Sequence[float], missing: Sequence[bool]) -> None:
        super().__init__()
        if not len(names) == len(means) == len(missing) or not all(map(math.isfinite, means)):
            raise ValueError("numbers need a name, a finite mean and whether values were missing, for each column")
        self.names, self.means, self.missing = list(names), list(means), list(map(bool, missing))
        self.key = self.names, self.missing  # what an encoder tells
        flagged = [column for column, some in enumerate(missing) if some]
        self.columns = [*names, *(f"{names[column]} missing" for column in flagged)]
        self.register_buffer("mean", torch.tensor(self.means, dtype=torch.float64), persistent=False)
        self.register_buffer("flagged", torch.tensor(flagged, dtype=torch.int64), persistent=False)

    @classmethod
    def of(cls, parts: Sequence[Number]) -> "Numbers":
        """For these columns of an encoder."""
        return cls([part.name for part in parts], [part.mean for part in parts], [part.missing > 0 for part in parts])

    def forward(self, x: Tensor) -> Tensor:
        missing = x.isnan()
        return torch.cat([torch.where(missing, self.mean.to(x.dtype), x), missing[..., self.flagged].to(x.dtype)], -1)

    def origins(self, columns: Sequence[int | None]) -> list[int | None]:
        return [*columns, *(columns[place] for place in self.flagged.tolist())]


class Categories(FeatureMap):
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

    allows_missing = True
    origin: Tensor
    code: Tensor

    def __init__(self, names: Sequence[str], categories: Sequence[Sequence[str]], missing: Sequence[bool]) -> None:
        super().__init__()
        self.names, self.categories = list(names), [list(found) for found in categories]
        self.missing = list(map(bool, missing))
        self.key = self.names, self.categories, self.missing  # what an encoder tells
        self.columns: list[str] = []
        origins: list[int] = []
        codes: list[int] = []
        for column, (name, found, some) in enumerate(zip(names, categories, self.missing, strict=True)):
            self.columns += [f"{name}={category}" for category in found] + [f"{name} missing"] * some
            codes += [*range(len(found)), *[MISSING] * some]
            origins += [column] * (len(found) + some)
        self.joint = [column for column, found in enumerate(self.categories) if len(found) > FEW_CATEGORIES]
        self.register_buffer("origin", torch.tensor(origins), persistent=False)
        self.register_buffer("code", torch.tensor(codes), persistent=False)

    @classmethod
    def of(cls, parts: Sequence[Text]) -> "Categories":
        """For these columns of an encoder."""
        names, categories = [part.name for part in parts], [part.categories for part in parts]
        return cls(names, categories, [part.missing > 0 for part in parts])

    def forward(self, x: Tensor) -> Tensor:
        return (x.nan_to_num(MISSING)[..., self.origin] == self.code).to(x.dtype)

    def origins(self, columns: Sequence[int | None]) -> list[int | None]:
        return [columns[place] for place in self.origin.tolist()]


class Dates(FeatureMap):
    """Seconds [B, c] as trend and as sine and cosine of each period; the mean and 0 where one is missing, which a last
    column says if training had such.

    Arguments:
        names: Of the columns.
        means: Of each column in training.
        missing: Whether each column had missing values in training.
        trends: Whether time goes on.
        periods: Of each column: "year", "week", "day".

    Example:
        >>> noon = Dates(["at"], [0.0], missing=[False], trends=[False], periods=[["day"]])
        >>> noon(torch.tensor([[43200.0]])).round().abs()
        tensor([[0., 1.]], dtype=torch.float64)
    """

    allows_missing = True
    mean: Tensor

    def __init__(
        self,
        names: Sequence[str],
        means: Sequence[float],
        missing: Sequence[bool],
        trends: Sequence[bool],
        periods: Sequence[Sequence[str]],
    ) -> None:
        super().__init__()
        if not len(names) == len(means) == len(missing) == len(trends) == len(periods):
            raise ValueError("dates need name, mean, trend, periods and whether values were missing, for each column")
        if not all(map(math.isfinite, means)) or not all(each in PERIODS for found in periods for each in found):
            raise ValueError(f"dates need finite means, and periods out of {', '.join(PERIODS)}")
        self.names, self.means, self.missing = list(names), list(means), list(map(bool, missing))
        self.trends, self.periods = list(map(bool, trends)), [list(found) for found in periods]
        self.key = self.names, self.missing, self.trends, self.periods  # what an encoder tells
        self.columns: list[str] = []
        self._origins: list[int] = []
        for column, name in enumerate(self.names):
            own = [name] * self.trends[column]
            own += [f"{name} {wave} of {period}" for period in self.periods[column] for wave in ("sine", "cosine")]
            own += [f"{name} missing"] * self.missing[column]
            self.columns += own
            self._origins += [column] * len(own)
        self.register_buffer("mean", torch.tensor(self.means, dtype=torch.float64), persistent=False)

    @classmethod
    def of(cls, parts: Sequence[Date]) -> "Dates":
        """For these columns of an encoder."""
        return cls(
            [part.name for part in parts],
            [part.mean for part in parts],
            [part.missing > 0 for part in parts],
            [part.trend for part in parts],
            [part.periods for part in parts],
        )

    def forward(self, x: Tensor) -> Tensor:
        missing, seconds = x.isnan(), x.to(torch.float64)
        out = []
        for column in range(len(self.names)):
            absent, time = missing[..., column], seconds[..., column]
            out += [torch.where(absent, self.mean[column], time)] * self.trends[column]
            for period in self.periods[column]:
                phase = 2 * math.pi * torch.remainder(time / PERIODS[period], 1.0)
                out += [torch.where(absent, 0.0, wave(phase)) for wave in (torch.sin, torch.cos)]
            out += [absent.to(torch.float64)] * self.missing[column]
        return torch.stack(out, -1)

    def origins(self, columns: Sequence[int | None]) -> list[int | None]:
        return [columns[place] for place in self._origins]


# For each kind of column of an encoder.
MAPS: dict[type, Any] = {Number: Numbers, Text: Categories, ManyTexts: Embedding, Date: Dates}
