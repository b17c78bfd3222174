"""Inputs shifted and scaled: each column by its own deviation, or all by one number."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from autogp.data import Summary
from autogp.data.scaling import Affine
from autogp.features.base import FeatureMap

__all__ = ["Scaling"]

SAME_UNIT_COLUMNS = 16


class Scaling(Affine, FeatureMap):
    """Inputs minus `shift`, divided by `scale`, both [D].

    Rows may have any numeric type: what float32 holds exactly is computed in float32, all else in float64.

    >>> scaling = Scaling(torch.tensor([10.0, 0.0]), torch.tensor([2.0, 1.0]))
    >>> scaling(torch.tensor([[12, 3]], dtype=torch.uint8))
    tensor([[1., 3.]])
    """

    elementwise = True

    @classmethod
    def from_summary(
        cls,
        summary: Summary,
        mode: Literal["auto", "standard", "global", "none"] = "standard",
        joint: Sequence[Sequence[int]] = (),
    ) -> "Scaling":
        """The scaling that fits the data summarised; columns that never vary become zero.

        Arguments:
            summary: From `summarise`.
            mode: "standard" gives every column unit variance; "global" divides all columns by one number, the root of
                their mean variance, as suits images; "none" leaves inputs as they are. "auto" is "global" where most
                of at least 16 columns share a range, as pixels do, and columns with a smaller range are stretched to
                it; else it is "standard".
            joint: Columns that are one together, such as zeros and ones for categories: "standard" divides them by one
                number, the root of the sum of their variances.

        Example:
            >>> from autogp.data import ArraySource, summarise
            >>> summary = summarise(ArraySource([[1.0, 7.0], [3.0, 7.0]]))
            >>> Scaling.from_summary(summary)(torch.tensor([[3.0, 7.0]]))
            tensor([[1., 0.]])
        """
        shift, scale = summary.x.shift_and_scale()
        if mode == "auto":
            ratio = _ranges(summary)
            mode, ratio = ("standard", 1.0) if ratio is None else ("global", ratio)
        else:
            ratio = 1.0
        if mode == "global":
            scale = np.full_like(scale, float(np.sqrt(np.mean(summary.x.std**2))) or 1.0) * ratio
        elif mode == "none":
            shift, scale = np.zeros_like(shift), np.ones_like(scale)
        elif mode == "standard":
            for columns in map(list, joint):
                scale[columns] = float(np.sqrt(np.sum(summary.x.std[columns] ** 2))) or 1.0
        else:
            raise ValueError(f"mode must be 'auto', 'standard', 'global' or 'none', got {mode!r}")
        return cls(torch.from_numpy(shift), torch.from_numpy(scale))

    def forward(self, x: Tensor) -> Tensor:
        return self.scaled(x)

    def origins(self, columns: Sequence[int | None]) -> list[int | None]:
        return list(columns)


def _ranges(summary: Summary) -> np.ndarray | None:
    """The range of each column beside the one that most columns share, [D]; none where they share none."""
    low, high = summary.x.minimum, summary.x.maximum
    varies = low < high
    if varies.sum() < SAME_UNIT_COLUMNS:
        return None
    span = high[varies].max() - low[varies].min()
    shared = (low - low[varies].min() <= 0.1 * span) & (high[varies].max() - high <= 0.1 * span)
    if shared[varies].mean() <= 0.5:
        return None
    return np.where(shared | ~varies, 1.0, (high - low) / span)
