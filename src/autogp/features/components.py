"""Principal components of the inputs."""

from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from autogp.data import Subset, blocks
from autogp.data.scaling import NARROW_TYPES
from autogp.data.sources import evenly_spaced
from autogp.features.base import Transformer, as_rows

__all__ = ["PrincipalComponents"]

ENOUGH_ROWS = 200_000


class PrincipalComponents(Transformer):
    """The inputs projected on the directions in which they vary most: (x - mean) V, [B, num_components].

    Frozen: `fit` finds the directions, in two passes over the rows. Outputs keep their variances, so scale them by one
    number, as estimators do.

    >>> import numpy as np
    >>> from autogp.data import ArraySource
    >>> rows = np.array([[0.0, 0.0], [3.0, 4.0]])
    >>> PrincipalComponents(1).fit(ArraySource(rows))(torch.from_numpy(rows)).abs().tolist()
    [[2.5], [2.5]]
    """

    scaled_outputs = True
    light = True
    learnt = ("mean", "directions")
    mean: Tensor | None  # [D]
    directions: Tensor | None  # V, [D, num_components]

    def __init__(self, num_components: int, mean: Tensor | None = None, directions: Tensor | None = None):
        super().__init__()
        if not isinstance(num_components, Integral) or num_components < 1:
            raise ValueError(f"num_components must be a positive integer, got {num_components!r}")
        shapes = [() if each is None else tuple(each.shape) for each in (mean, directions)]
        if shapes != [(), ()] and (len(shapes[0]) != 1 or shapes[1] != (*shapes[0], num_components)):
            raise ValueError(f"mean must be [D] and directions [D, {num_components}], got {shapes[0]} and {shapes[1]}")
        self.num_components = num_components
        self.register_buffer("mean", None if mean is None else mean.to(torch.float64))
        self.register_buffer("directions", None if directions is None else directions.to(torch.float64))

    def fit(self, X: Any, y: Any = None, seed: int = 0) -> "PrincipalComponents":
        """Eigenvectors of the covariance of the rows, at most 200,000 of them, the largest eigenvalues first."""
        source = as_rows(X)
        if len(source) > ENOUGH_ROWS:
            source = Subset(source, evenly_spaced(len(source), ENOUGH_ROWS))
        total, count = torch.zeros(()), len(source)
        for _, x, _ in blocks(source):
            total = total + torch.as_tensor(x).double().sum(0)
        mean = total / count
        if self.num_components > min(len(mean), count):
            raise ValueError(
                f"num_components={self.num_components} is more than {count} rows of {len(mean)} columns can have"
            )
        covariance = torch.zeros(len(mean), len(mean), dtype=torch.float64)
        for _, x, _ in blocks(source):
            rows = _floating(torch.as_tensor(x))
            centred = rows - mean.to(rows.dtype)
            covariance += centred.mT @ centred
        vectors = torch.linalg.eigh(covariance).eigenvectors.flip(-1)[:, : self.num_components]
        largest = vectors.abs().argmax(0, keepdim=True)
        self.mean, self.directions = mean, vectors * vectors.gather(0, largest).sign()  # one of two signs, for good
        return self

    def forward(self, x: Tensor) -> Tensor:
        if self.mean is None or self.directions is None:
            raise ValueError("the principal components are not known yet: call fit with rows first")
        x = _floating(x)
        return (x - self.mean.to(x.dtype)) @ self.directions.to(x.dtype)


def _floating(x: Tensor) -> Tensor:
    """In float32 what that holds exactly, else in float64."""
    return x.to(torch.float32 if x.dtype in NARROW_TYPES else torch.float64)
