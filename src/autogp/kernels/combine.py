"""Sums and products of kernels, written `a + b` and `a * b`."""

from torch import Tensor, nn

from autogp.kernels.base import Kernel

__all__ = ["Product", "Sum"]


class Sum(Kernel):
    """k = k_1 + k_2 + ...: functions that are sums of independent functions."""

    def __init__(self, *kernels: Kernel):
        super().__init__()
        self.kernels = _members(kernels)

    def gram(self, x: Tensor, z: Tensor) -> Tensor:
        first, *rest = (kernel.gram(x, z) for kernel in self.kernels)  # pyright: ignore[reportCallIssue]
        return sum(rest, first)

    def diag(self, x: Tensor) -> Tensor:
        first, *rest = (kernel.diag(x) for kernel in self.kernels)  # pyright: ignore[reportCallIssue]
        return sum(rest, first)


class Product(Kernel):
    """k = k_1 * k_2 * ...: similar only where every factor finds the points similar."""

    def __init__(self, *kernels: Kernel):
        super().__init__()
        self.kernels = _members(kernels)

    def gram(self, x: Tensor, z: Tensor) -> Tensor:
        first, *rest = (kernel.gram(x, z) for kernel in self.kernels)  # pyright: ignore[reportCallIssue]
        for factor in rest:
            first = first * factor
        return first

    def diag(self, x: Tensor) -> Tensor:
        first, *rest = (kernel.diag(x) for kernel in self.kernels)  # pyright: ignore[reportCallIssue]
        for factor in rest:
            first = first * factor
        return first


def _members(kernels: tuple[Kernel, ...]) -> nn.ModuleList:
    if not kernels or not all(isinstance(kernel, Kernel) for kernel in kernels):
        got = ", ".join(type(kernel).__name__ for kernel in kernels) or "nothing"
        raise TypeError(f"kernels combine with kernels, got {got}")
    return nn.ModuleList(kernels)
