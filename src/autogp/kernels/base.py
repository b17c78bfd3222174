"""What every kernel is, and the pieces that kernels are made of."""

import math
from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor, nn

from autogp.kernels.priors import LogNormal
from autogp.parameters import describe_parameters

__all__ = ["Kernel", "check_finite", "check_points"]


class Kernel(nn.Module):
    """A covariance function for G latent functions at once: write `gram` and `diag`, and the rest follows.

    G is the leading size of the parameters: 1 where all latent functions share them, Q where each has its own.
    Parameters are kept in float64; a kernel computes in the precision of its inputs.

    >>> import torch
    >>> class Cosine(Kernel):
    ...     def gram(self, x, z):
    ...         return torch.cos(x[..., :, None, 0] - z[..., None, :, 0])
    ...     def diag(self, x):
    ...         return torch.ones_like(x[..., 0])
    >>> (Cosine() + Cosine()).gram(torch.zeros(3, 1), torch.zeros(1, 2, 1)).shape
    torch.Size([1, 3, 2])
    """

    priors: Mapping[str, LogNormal] = MappingProxyType({})  # of positive parameters, by name; a file does not keep them

    def log_prior(self) -> Tensor:
        """Log density of the logarithms of all hyper-parameters that have a prior, here and in the kernels within."""
        parts = [module for module in self.modules() if isinstance(module, Kernel)]
        found = [
            prior.log_density(getattr(part, f"log_{name}")) for part in parts for name, prior in part.priors.items()
        ]
        return torch.stack(found).sum() if found else torch.zeros((), dtype=torch.float64)

    def gram(self, x: Tensor, z: Tensor) -> Tensor:
        """Covariances [G, N, M] between the rows of x ([N, D] or [G, N, D]) and of z ([M, D] or [G, M, D])."""
        raise NotImplementedError(f"{type(self).__name__} must define gram(x, z)")

    def diag(self, x: Tensor) -> Tensor:
        """Variances [G, N] at the rows of x ([N, D] or [G, N, D]): the diagonal of gram(x, x)."""
        raise NotImplementedError(f"{type(self).__name__} must define diag(x)")

    def stretch(self, latents: Tensor, factor: float) -> None:
        """Lets the functions of these latents vary more slowly by this factor, where the kernel knows how."""

    def describe(self) -> str:
        """A line for summaries: the name of the class and its positive parameters, those called `log_...`."""
        facts = ", ".join(describe_parameters(self, "function", "column"))
        return f"{type(self).__name__}: {facts}" if facts else type(self).__name__

    def __add__(self, other: "Kernel") -> "Kernel":
        from autogp.kernels.combine import Sum

        return Sum(self, other)

    def __mul__(self, other: "Kernel") -> "Kernel":
        from autogp.kernels.combine import Product

        return Product(self, other)


def check_points(num_features: int | None = None, **points: Tensor) -> None:
    """Raises an error that names the argument which is not a floating tensor [..., N, D] of one D and dtype.

    A kernel with one parameter per input passes their number; `None` or 1 admits any D.
    """
    for name, x in points.items():
        if not isinstance(x, Tensor) or not x.is_floating_point():
            kind = x.dtype if isinstance(x, Tensor) else type(x).__name__
            raise TypeError(f"{name} must be a floating-point tensor, got {kind}")
        if x.ndim not in (2, 3):
            raise ValueError(f"{name} must have shape [N, D] or [G, N, D], got {tuple(x.shape)}")
        if num_features not in (None, 1, x.shape[-1]):
            raise ValueError(f"{name} has {x.shape[-1]} columns, but the kernel has parameters for {num_features}")
    (first, x), *others = points.items()
    for name, z in others:
        if z.shape[-1] != x.shape[-1]:
            raise ValueError(f"{first} and {name} must have the same columns, got {x.shape[-1]} and {z.shape[-1]}")
        if z.dtype != x.dtype:
            raise TypeError(f"{first} and {name} must have the same dtype, got {x.dtype} and {z.dtype}")


def check_finite(**points: Tensor) -> None:
    """Raises an error that names the argument, row and column of the first number that is not finite."""
    for name, x in points.items():
        # A sum is one pass without a temporary; only if it is not finite is the culprit looked for.
        if not math.isfinite(x.detach().sum().item()) and not torch.isfinite(x).all():
            where = (~torch.isfinite(x)).nonzero()[0].tolist()
            raise ValueError(f"{name} contains NaN or infinity, first at row {where[-2]}, column {where[-1]}")
