"""Positive parameters, kept as logarithms in float64."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

__all__ = ["describe_parameters", "describe_range", "optional_parameter", "positive_parameter"]


def positive_parameter(
    value: float | Sequence | Tensor, name: str, ndim: int = 1, size: int | None = None
) -> nn.Parameter:
    """The logarithm of a positive value as a float64 parameter of `ndim` axes; `size`, if given, is that of the last.

    >>> positive_parameter(1.0, "lengthscale", ndim=2).shape
    torch.Size([1, 1])
    >>> positive_parameter(2.0, "variance", size=3).exp().tolist()
    [2.0, 2.0, 2.0]
    """
    tensor = torch.as_tensor(value, dtype=torch.float64).detach()
    if tensor.ndim > ndim:
        raise ValueError(f"{name} must have at most {ndim} axes, got shape {tuple(tensor.shape)}")
    if tensor.numel() == 0 or not (torch.isfinite(tensor).all() and (tensor > 0).all()):
        raise ValueError(f"{name} must be positive and finite, got {value}")
    tensor = tensor.reshape((1,) * (ndim - tensor.ndim) + tensor.shape)
    if size is not None:
        if tensor.shape[-1] not in (1, size):
            raise ValueError(f"{name} must be one number or {size}, got shape {tuple(tensor.shape)}")
        tensor = tensor.expand(*tensor.shape[:-1], size)
    return nn.Parameter(tensor.log().contiguous())  # log copies, so the caller's tensor is left alone


def optional_parameter(value: float | Sequence | Tensor | None, name: str) -> nn.Parameter | None:
    """A positive parameter, or none where the value is 0 or None."""
    if value is None or (isinstance(value, (int, float)) and value == 0):
        return None
    return positive_parameter(value, name)


def describe_parameters(module: nn.Module, *axes: str) -> list[str]:
    """The positive parameters of a module (not of its members) in words; `axes` say what their axes run over.

    >>> from autogp.kernels import RBF
    >>> describe_parameters(RBF(lengthscale=[1.0, 2.0], variance=3.0), "function", "column")
    ['lengthscale 1 to 2 (per column)', 'variance 3']
    """
    found = []
    for name, log in module.named_parameters(recurse=False):
        if name.startswith("log_"):
            several = [axis for axis, size in zip(axes, log.shape, strict=False) if size > 1]
            words = f" (per {' and '.join(several)})" if several else ""
            found.append(f"{name.removeprefix('log_').replace('_', ' ')} {describe_range(log.exp())}{words}")
    return found


def describe_range(values: Tensor) -> str:
    """The smallest and the largest value, or the one value that they all have."""
    low, high = values.min().item(), values.max().item()
    return f"{low:.3g}" if math.isclose(low, high, rel_tol=1e-3) else f"{low:.3g} to {high:.3g}"
