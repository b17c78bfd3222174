"""Sums and products of kernels, written `a + b` and `a * b`."""

from functools import reduce
from operator import add, mul
from typing import Any

from torch import Tensor, nn

from autogp.kernels.base import Kernel

__all__ = ["Product", "Sum"]


class _Combined(Kernel):
    """What sums and products share: their members."""

    kernels: Any  # an nn.ModuleList, whose members pyright takes for modules of any kind

    def __init__(self, *kernels: Kernel):
        super().__init__()
        if not kernels or not all(isinstance(kernel, Kernel) for kernel in kernels):
            got = ", ".join(type(kernel).__name__ for kernel in kernels) or "nothing"
            raise TypeError(f"kernels combine with kernels, got {got}")
        self.kernels = nn.ModuleList(kernels)


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
