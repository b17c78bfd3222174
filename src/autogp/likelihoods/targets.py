"""Targets as tensors that a likelihood takes, or an error that names the row."""

import torch
from torch import Tensor

__all__ = ["as_targets", "check_labels", "check_real_targets"]


def as_targets(y: Tensor) -> Tensor:
    """Targets as a tensor, from whatever holds numbers."""
    try:
        return torch.as_tensor(y)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"y must be a tensor of numbers, got {type(y).__name__}: {error}") from error


def check_labels(y: Tensor, num_classes: int) -> Tensor:
    """Labels 0 to C - 1 as integers [B]."""
    y = as_targets(y)
    if y.ndim != 1 or y.is_complex() or y.dtype == torch.bool:
        raise ValueError(f"y must be a vector of integer labels, got {y.dtype} with shape {tuple(y.shape)}")
    y = y if y.is_floating_point() else y.to(torch.int64)
    labels = torch.nan_to_num(y, nan=-1.0).to(torch.int64)
    bad = (labels != y) | (labels < 0) | (labels >= num_classes)
    if bad.any():
        row = int(bad.nonzero()[0, 0])
        raise ValueError(f"y must hold integer labels from 0 to {num_classes - 1}, got {y[row].item()} at row {row}")
    return labels


def check_real_targets(y: Tensor, num_outputs: int | None = None, missing: bool = False) -> Tensor:
    """Targets as floats, [B, P] where the number of outputs is given; NaN passes only where targets may be missing."""
    y = as_targets(y)
    if y.is_complex() or y.ndim < 1:
        raise ValueError(f"y must be a tensor of real numbers, one row per input, got {y.dtype} {tuple(y.shape)}")
    y = y if y.is_floating_point() else y.to(torch.float64)
    if num_outputs is not None:
        given = tuple(y.shape)
        y = y[:, None] if y.ndim == 1 else y
        if y.ndim != 2 or y.shape[1] != num_outputs:
            expected = "[B] or [B, 1]" if num_outputs == 1 else f"[B, {num_outputs}]"
            raise ValueError(f"y must have shape {expected}, got {given}")
    bad = torch.isinf(y) if missing else ~torch.isfinite(y)
    if bad.any():
        where = bad.nonzero()[0].tolist()
        kind = "infinity" if missing else "NaN or infinity"
        raise ValueError(f"y contains {kind}, first at row {where[0]}")
    return y
