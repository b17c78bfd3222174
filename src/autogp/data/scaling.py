"""Numbers shifted and scaled to zero mean and unit variance, and back."""

import torch
from torch import Tensor, nn

from autogp.data.summary import Summary

__all__ = ["Affine", "TargetScaler"]

# Types that float32 holds exactly; the others are shifted in float64 first.
NARROW_TYPES = (torch.uint8, torch.int8, torch.int16, torch.uint16, torch.float16, torch.bfloat16, torch.float32)


class Affine(nn.Module):
    """Columns minus `shift`, divided by `scale`, both [D]."""

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

    def scaled(self, values: Tensor) -> Tensor:
        """(values - shift) / scale, in float32 for what float32 holds exactly, else in float64."""
        columns = 1 if values.ndim == 1 else values.shape[-1]
        if columns != len(self.shift):
            raise ValueError(f"expected {len(self.shift)} columns, got {columns}")
        working = torch.float32 if values.dtype in NARROW_TYPES else torch.float64
        # Subtracting comes before any rounding: a large offset must not swallow the digits that vary.
        # One copy, then in place: fresh memory costs more than the arithmetic.
        return values.to(working, copy=True).sub_(self.shift.to(working)).div_(self.scale.to(working))


class TargetScaler(Affine):
    """Regression targets minus `shift`, divided by `scale`, and predictions back on the scale of the data.

    Arguments:
        shift: What is subtracted from each target [P].
        scale: What each target is then divided by [P].

    `scaler(y)` takes y [B, P], or [B] where P = 1, and keeps its shape. Missing targets (NaN) stay missing.

    Example:
        >>> scaler = TargetScaler(torch.tensor([10.0]), torch.tensor([2.0]))
        >>> scaler(torch.tensor([12.0, float("nan")]))
        tensor([1., nan], dtype=torch.float64)
        >>> scaler.inverse_mean(torch.tensor([1.0])), scaler.inverse_variance(torch.tensor([1.0]))
        (tensor([12.]), tensor([4.]))
    """

    @classmethod
    def from_summary(cls, summary: Summary) -> "TargetScaler":
        """The scaler that gives every target summarised zero mean and unit variance; constant ones become zero.

        Example:
            >>> from autogp.data import ArraySource, summarise
            >>> scaler = TargetScaler.from_summary(summarise(ArraySource([[0.0], [0.0]], [1.0, 3.0])))
            >>> scaler(torch.tensor([3.0])).item()
            1.0
        """
        if summary.y is None:
            raise ValueError("the data has no targets to scale")
        shift, scale = summary.y.shift_and_scale()
        return cls(torch.from_numpy(shift), torch.from_numpy(scale))

    def forward(self, y: Tensor) -> Tensor:
        return self.scaled(y.to(torch.float64))

    def inverse_mean(self, mean: Tensor) -> Tensor:
        """Predicted means [..., P] of scaled targets, on the scale of the data."""
        return mean * self.scale.to(mean.dtype) + self.shift.to(mean.dtype)

    def inverse_variance(self, variance: Tensor) -> Tensor:
        """Predicted variances [..., P] of scaled targets, on the scale of the data."""
        return variance * self.scale.to(variance.dtype) ** 2
