"""Sums and products of kernels, written `a + b` and `a * b`, and kernels of some inputs only."""

from collections.abc import Sequence
from functools import reduce
from operator import add, mul
from typing import Any

from torch import Tensor, nn

from autogp.kernels.base import Kernel, check_points

__all__ = ["Product", "Selected", "Sum"]


class _Combined(Kernel):
    """What sums and products share: their members."""

    kernels: Any  # an nn.ModuleList, whose members pyright takes for modules of any kind

    def __init__(self, *kernels: Kernel):
        super().__init__()
        if not kernels or not all(isinstance(kernel, Kernel) for kernel in kernels):
            got = ", ".join(type(kernel).__name__ for kernel in kernels) or "nothing"
            raise TypeError(f"kernels combine with kernels, got {got}")
        self.kernels = nn.ModuleList(kernels)

    def stretch(self, latents: Tensor, factor: float) -> None:
        for kernel in self.kernels:
            kernel.stretch(latents, factor)


class Sum(_Combined):
    """k = k_1 + k_2 + ...: functions that are sums of independent functions."""

    def gram(self, x: Tensor, z: Tensor) -> Tensor:
        return reduce(add, (kernel.gram(x, z) for kernel in self.kernels))

    def diag(self, x: Tensor) -> Tensor:
        return reduce(add, (kernel.diag(x) for kernel in self.kernels))

    def describe(self) -> str:
        return " + ".join(kernel.describe() for kernel in self.kernels)


class Product(_Combined):
    """k = k_1 * k_2 * ...: similar only where every factor finds the points similar."""

    def gram(self, x: Tensor, z: Tensor) -> Tensor:
        return reduce(mul, (kernel.gram(x, z) for kernel in self.kernels))

    def diag(self, x: Tensor) -> Tensor:
        return reduce(mul, (kernel.diag(x) for kernel in self.kernels))

    def describe(self) -> str:
        return " * ".join(f"({kernel.describe()})" for kernel in self.kernels)


class Selected(Kernel):
    """A kernel of some of the inputs: k(x, z) = kernel(x[columns], z[columns]).

    >>> import torch
    >>> from autogp.kernels import RBF
    >>> Selected(RBF(), columns=[1]).gram(torch.tensor([[5.0, 0.0]]), torch.zeros(1, 2)).item()
    1.0
    """

    def __init__(self, kernel: Kernel, columns: Sequence[int]):
        super().__init__()
        if not isinstance(kernel, Kernel):
            raise TypeError(f"kernel must be a Kernel, got {type(kernel).__name__}")
        columns = list(columns)
        if not columns or not all(isinstance(column, int) and column >= 0 for column in columns):
            raise ValueError(f"columns must be a list of numbers from 0, got {columns}")
        self.kernel = kernel
        self.columns = columns

    def gram(self, x: Tensor, z: Tensor) -> Tensor:
        return self.kernel.gram(self._part(x), self._part(z))

    def diag(self, x: Tensor) -> Tensor:
        return self.kernel.diag(self._part(x))

    def stretch(self, latents: Tensor, factor: float) -> None:
        self.kernel.stretch(latents, factor)

    def describe(self) -> str:
        return self.kernel.describe()

    def _part(self, x: Tensor) -> Tensor:
        check_points(x=x)
        if x.shape[-1] <= max(self.columns):
            raise ValueError(f"the kernel is of column {max(self.columns)}, but there are {x.shape[-1]} columns")
        return x[..., self.columns]
