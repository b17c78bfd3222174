"""What a feature map is, and maps applied one after the other."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.base import BaseEstimator, TransformerMixin
from torch import Tensor, nn

from autogp.data import ArraySource, Source, blocks
from autogp.data.sources import as_tensor
from autogp.model import apply_map

__all__ = ["Chain", "FeatureMap", "Mapped", "Transformer", "as_map"]


class FeatureMap(nn.Module):
    """A module from rows [B, ...] to [B, D]. Any `torch.nn.Module` serves; this one declares what others need to know.

    Parameters of the module are learnt with the kernel; one without any is frozen, and applied once to each row.
    """

    allows_missing: bool = False  # whether rows may hold NaN, which means that a value is missing
    elementwise: bool = False  # cheap, and no narrower than the rows: applied batch by batch rather than kept
    light: bool = (
        False  # takes less time than a training step: applied batch by batch where memory cannot keep its result
    )
    any_dtype: bool = False  # whether rows reach it as they are, not in the precision of its parameters
    from_targets: bool = False  # whether `fit` learns from the targets, so that rows of training need `CrossFitted`
    image_shape: Sequence[int] | None = None  # of the images that rows are, where they are images
    scaled_outputs: bool = False  # whether estimators hand it raw rows and scale what it gives, or scale its inputs
    watch: Callable[[int, int], None] | None = None  # told by a `fit` that takes long how many rows it has read, of all

    def fit(self, X: Any, y: Any = None, seed: int = 0) -> "FeatureMap":
        """Learns from rows, where the map has something to learn before training."""
        return self

    def origins(self, columns: Sequence[int | None]) -> list[int | None] | None:
        """For each output the column of the data that it comes from, given those of the inputs; None if they mix."""
        return None

    def patterns(self) -> Tensor | None:
        """Where rows are images, the small pictures [F, h, w, C] that the map compares them with, if it does."""
        return None


class Transformer(FeatureMap, TransformerMixin, BaseEstimator):
    """A feature map that is a transformer of scikit-learn too: for pipelines, grid searches and other estimators.

    `fit` takes a source of rows or an array. Arguments of the constructor are kept under their names; `learnt` names
    those that `fit` finds, which are no parameters.
    """

    learnt: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def _get_param_names(cls) -> list[str]:
        return [name for name in super()._get_param_names() if name not in cls.learnt]

    def transform(self, X: Any) -> np.ndarray:
        """Features [N, D] of rows [N, ...], a block at a time."""
        parts = [x for _, x, _ in blocks(Mapped(as_rows(X), self))]
        return np.concatenate(parts)


class Chain(FeatureMap):
    """Maps applied in order.

    >>> import torch
    >>> from autogp.features import Scaling
    >>> double = Scaling(torch.zeros(2), torch.full((2,), 0.5))
    >>> Chain(double, double)(torch.ones(1, 2))
    tensor([[4., 4.]])
    """

    any_dtype = True  # each map has its own

    def __init__(self, *maps: nn.Module):
        super().__init__()
        self.maps = nn.ModuleList(maps)

    @property
    def allows_missing(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return bool(len(self.maps)) and as_map(self.maps[0]).allows_missing

    @property
    def scaled_outputs(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return bool(len(self.maps)) and as_map(self.maps[-1]).scaled_outputs

    def fit(self, X: Any, y: Any = None, seed: int = 0) -> "Chain":
        source = as_rows(X)
        for number, each in enumerate(self.maps):
            as_map(each).fit(Mapped(source, Chain(*self.maps[:number])), seed=seed)
        return self

    def forward(self, x: Tensor) -> Tensor:
        for each in self.maps:
            x = apply_map(each, x)
        return x

    def origins(self, columns: Sequence[int | None]) -> list[int | None] | None:
        found: list[int | None] | None = list(columns)
        for each in self.maps:
            found = None if found is None else as_map(each).origins(found)
        return found

    def patterns(self) -> Tensor | None:
        return next((found for each in self.maps if (found := as_map(each).patterns()) is not None), None)


class Mapped:
    """The rows of a source as a map gives them, computed whenever they are read."""

    def __init__(self, source: Source, features: nn.Module):
        self.source, self.features = source, features

    def __len__(self) -> int:
        return len(self.source)

    @torch.no_grad()
    def rows(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        x, y = self.source.rows(indices)
        return apply_map(self.features, as_tensor(x)).numpy(), y


def as_rows(X: Any) -> Source:
    """A source as it is, an array [N, ...] as a source of its rows."""
    return X if callable(getattr(X, "rows", None)) else ArraySource(X)


class _Plain(FeatureMap):
    """What is assumed of a module that declares nothing."""


def as_map(module: nn.Module) -> FeatureMap:
    """The module itself where it declares what it can do, else what is assumed of any module."""
    return module if isinstance(module, FeatureMap) else _Plain()
