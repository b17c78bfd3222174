"""Scaling of inputs and of regression targets to zero mean and unit variance, and back."""

from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from autogp.data.summary import Moments, Summary

__all__ = ["InputScaler", "TargetScaler"]

# Types that float32 holds exactly; the others are shifted in float64 first.
NARROW_TYPES = (torch.uint8, torch.int8, torch.int16, torch.uint16, torch.float16, torch.bfloat16, torch.float32)


class _Scaler(nn.Module):
    shift: Tensor
    scale: Tensor

    def __init__(self, shift: Tensor, scale: Tensor) -> None:
        super().__init__()
        if shift.ndim != 1 or shift.shape != scale.shape or len(shift) == 0:
            raise ValueError(f"shift and scale must be vectors of the same length, got {shift.shape} and {scale.shape}")
        if not (torch.isfinite(shift).all() and torch.isfinite(scale).all() and (scale > 0).all()):
            raise ValueError("shift must be finite, and scale positive and finite")
        self.register_buffer("shift", shift.to(torch.float64))
        self.register_buffer("scale", scale.to(torch.float64))

    def forward(self, values: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        columns = 1 if values.ndim == 1 else values.shape[-1]
        if columns != len(self.shift):
            raise ValueError(f"expected {len(self.shift)} columns, got {columns}")
        wide = dtype == torch.float64 or values.dtype not in NARROW_TYPES
        working = torch.float64 if wide else torch.float32
        # Subtracting comes before rounding to `dtype`: a large offset must not swallow the digits that vary.
        # One copy, then in place: fresh memory costs more than the arithmetic.
        scaled = values.to(working, copy=True)
        return scaled.sub_(self.shift.to(working)).div_(self.scale.to(working)).to(dtype)


class InputScaler(_Scaler):
    """Inputs minus `shift`, divided by `scale`.

    Arguments:
        shift: What is subtracted from each column [D].
        scale: What each column is then divided by [D].

    `scaler(x, dtype)` takes x [B, D] of any numeric dtype and returns [B, D] in `dtype`.

    Example:
        >>> scaler = InputScaler(torch.tensor([10.0, 0.0]), torch.tensor([2.0, 1.0]))
        >>> scaler(torch.tensor([[12, 3]], dtype=torch.uint8), torch.float32)
        tensor([[1., 3.]])
    """

    @classmethod
    def from_summary(cls, summary: Summary, mode: Literal["standard", "global", "none"] = "standard") -> "InputScaler":
        """The scaler that fits the data summarised; columns that never vary become zero.

        Arguments:
            summary: From `summarise`.
            mode: "standard" gives every column unit variance; "global" divides all columns by one number, the root of
                their mean variance, as suits images; "none" leaves inputs as they are.

        Example:
            >>> from autogp.data import ArraySource, summarise
            >>> summary = summarise(ArraySource([[1.0, 7.0], [3.0, 7.0]]))
            >>> InputScaler.from_summary(summary)(torch.tensor([[3.0, 7.0]]), torch.float32)
            tensor([[1., 0.]])
        """
        shift, scale = _shift_and_scale(summary.x)
        if mode == "global":
            root = float(np.sqrt(np.mean(summary.x.std**2)))
            scale = torch.full_like(scale, root or 1.0)
        elif mode == "none":
            shift, scale = torch.zeros_like(shift), torch.ones_like(scale)
        elif mode != "standard":
            raise ValueError(f"mode must be 'standard', 'global' or 'none', got {mode!r}")
        return cls(shift, scale)


class TargetScaler(_Scaler):
    """Regression targets minus `shift`, divided by `scale`, and predictions back on the scale of the data.

    Arguments:
        shift: What is subtracted from each target [P].
        scale: What each target is then divided by [P].

    `scaler(y, dtype)` takes y [B, P], or [B] where P = 1, and keeps its shape. Missing targets (NaN) stay missing.

    Example:
        >>> scaler = TargetScaler(torch.tensor([10.0]), torch.tensor([2.0]))
        >>> scaler(torch.tensor([12.0, float("nan")]))
        tensor([1., nan])
        >>> scaler.inverse_mean(torch.tensor([1.0])), scaler.inverse_variance(torch.tensor([1.0]))
        (tensor([12.]), tensor([4.]))
    """

    @classmethod
    def from_summary(cls, summary: Summary) -> "TargetScaler":
        """The scaler that gives every target summarised zero mean and unit variance; constant ones become zero.

        Example:
            >>> from autogp.data import ArraySource, summarise
            >>> TargetScaler.from_summary(summarise(ArraySource([[0.0], [0.0]], [1.0, 3.0])))(torch.tensor([3.0]))
            tensor([1.])
        """
        if summary.y is None:
            raise ValueError("the data has no targets to scale")
        return cls(*_shift_and_scale(summary.y))

    def inverse_mean(self, mean: Tensor) -> Tensor:
        """Predicted means [..., P] of scaled targets, on the scale of the data."""
        return mean * self.scale.to(mean.dtype) + self.shift.to(mean.dtype)

    def inverse_variance(self, variance: Tensor) -> Tensor:
        """Predicted variances [..., P] of scaled targets, on the scale of the data."""
        return variance * self.scale.to(variance.dtype) ** 2


def _shift_and_scale(moments: Moments) -> tuple[Tensor, Tensor]:
    # Rounding can leave a constant column a mean one digit off and a tiny deviation: its extremes tell for certain.
    constant = moments.minimum == moments.maximum
    shift = np.where(constant, moments.minimum, moments.mean)
    scale = np.where(constant | (moments.std == 0), 1.0, moments.std)
    return torch.from_numpy(shift), torch.from_numpy(scale)
