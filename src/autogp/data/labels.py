"""Class labels as numbers that count the classes."""

from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Labels"]


@dataclass(frozen=True, eq=False)
class Labels:
    """Class labels [N], each as the place of its class among those that occur.

    Attributes:
        codes: Places of the classes, int64 [N].
        classes: The classes that occur, in sorted order.
        order: All classes from the lowest to the highest, where the data say so.

    Example:
        >>> labels = Labels.of(["owl", "cat", "owl"])
        >>> labels.codes.tolist(), labels.classes.tolist()
        ([1, 0, 1], ['cat', 'owl'])
        >>> Labels.of([2, 0], classes=["owl", "bee", "cat"]).classes.tolist()
        ['cat', 'owl']
    """

    codes: np.ndarray
    classes: np.ndarray
    order: list[Any] | None = None

    @classmethod
    def of(cls, labels: Any, classes: Any = None) -> "Labels":
        """From labels of any type that can be sorted, [N], or from places among `classes`."""
        found, codes = np.unique(labels, return_inverse=True)
        if classes is not None:
            found, places = np.unique(np.asarray(classes)[found], return_inverse=True)
            codes = places[codes]
        return cls(codes, found)

    def __len__(self) -> int:
        return len(self.codes)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """The labels themselves."""
        return self.classes[self.codes].astype(dtype or self.classes.dtype, copy=False)
