"""Where rows come from: the `Source` protocol, arrays of every kind, and subsets."""

import hashlib
import mmap
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import scipy.sparse
import torch

from autogp.data.encoding import TableEncoder

__all__ = ["ArraySource", "Source", "Subset", "as_tensor", "blocks", "evenly_spaced", "fingerprint"]

BLOCK_NUMBERS = 2**22  # read at a time


class Source(Protocol):
    """Rows by number: all that training needs to know about data.

    Any object with these two methods is a source. `rows` must return the same row for the same number each time. An
    attribute `in_memory` may say that it never waits for a disk.

    Example:
        >>> class Squares:
        ...     def __len__(self):
        ...         return 1000
        ...
        ...     def rows(self, indices):
        ...         x = indices[:, None] / 1000
        ...         return x, x[:, 0] ** 2
        >>> fingerprint(Squares())["features"]
        1
    """

    def __len__(self) -> int:
        """The number of rows N."""
        ...

    def rows(self, indices: np.ndarray, /) -> tuple[np.ndarray, np.ndarray]:
        """Inputs [B, D] in their stored dtype and targets [B] or [B, P], for int64 `indices` [B] in any order."""
        ...


class ArraySource:
    """Rows of arrays in memory or memory-mapped, which are never copied as a whole.

    Arguments:
        x: Inputs [N, D], or images [N, H, W] or [N, H, W, C], which are flattened row by row: a numeric array, torch
            CPU tensor, pandas DataFrame or scipy sparse matrix (made dense batch by batch). Integers stay integers.
        y: Targets [N] or [N, P]; none means P = 0, for inputs that are only to be predicted.
        columns: Names of the D inputs; those of a DataFrame are kept.
        targets: Names of the targets.
        classes: Names of the classes that integer targets count.
        encoder: How a table became these inputs.
        notes: What was assumed of a table, in sentences.

    Example:
        >>> source = ArraySource(np.arange(6, dtype=np.uint8).reshape(3, 2), np.array([0.5, 1.5, 2.5]))
        >>> x, y = source.rows(np.array([2, 0]))
        >>> x.tolist(), x.dtype.name, y.tolist()
        ([[4, 5], [0, 1]], 'uint8', [2.5, 0.5])
    """

    def __init__(
        self,
        x: Any,
        y: Any = None,
        *,
        columns: Sequence[str] | None = None,
        targets: Sequence[str] | None = None,
        classes: Sequence[str] | None = None,
        encoder: TableEncoder | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        if columns is None and _is_pandas(x) and x.ndim == 2:
            columns = [str(name) for name in x.columns]
        self.x = _as_numeric(x, "x")
        if self.x.ndim < 2 or 0 in self.x.shape:
            raise ValueError(f"x must be [N, D] or images [N, H, W(, C)] with at least one row, got {self.x.shape}")
        length = self.x.shape[0]
        self.y: np.ndarray = np.zeros((length, 0)) if y is None else _as_numeric(y, "y", sparse=False)
        if self.y.ndim not in (1, 2):
            raise ValueError(f"y must be [N] or [N, P], got {self.y.shape}")
        if len(self.y) != length:
            raise ValueError(f"x has {length} rows but y has {len(self.y)}")
        self.columns = None if columns is None else list(columns)
        self.targets = None if targets is None else list(targets)
        self.classes = None if classes is None else list(classes)
        self.encoder = encoder
        self.notes = list(notes)

    @property
    def image_shape(self) -> tuple[int, ...] | None:
        """(H, W) or (H, W, C) where x holds images."""
        return tuple(self.x.shape[1:]) if self.x.ndim in (3, 4) else None

    @property
    def in_memory(self) -> bool:
        """Whether reading a row never waits for a disk."""
        return not any(_is_mapped(array) for array in (self.x, self.y))

    def __len__(self) -> int:
        return self.x.shape[0]

    def rows(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Copies of the rows: inputs [B, D] and targets [B] or [B, P]."""
        x = self.x[indices]
        dense = x.toarray() if scipy.sparse.issparse(x) else x.reshape(len(indices), -1)
        return _native(dense), _native(self.y[indices])


class Subset:
    """Some rows of another source, for instance those kept for validation; nothing is copied.

    Example:
        >>> source = ArraySource(np.eye(4), np.arange(4))
        >>> validation = Subset(source, np.array([1, 3]))
        >>> len(validation), validation.rows(np.array([1]))[1].tolist()
        (2, [3])
    """

    def __init__(self, source: Source, indices: np.ndarray) -> None:
        indices = np.asarray(indices)
        if indices.ndim != 1 or indices.dtype.kind not in "iu":
            raise ValueError(f"indices must be whole numbers [B], got {indices.dtype} {indices.shape}")
        if len(indices) == 0 or indices.min() < 0 or indices.max() >= len(source):
            raise ValueError(f"indices must be at least one row from 0 to {len(source) - 1}")
        self.source = source
        self.indices = indices.astype(np.int64, copy=False)
        self.in_memory = getattr(source, "in_memory", False)

    def __len__(self) -> int:
        return len(self.indices)

    def rows(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The rows of the other source that `indices` [B] counts within this subset."""
        return self.source.rows(self.indices[indices])


def blocks(source: Source) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
    """All rows in order, some megabytes at a time: which they are, inputs [B, D] and targets.

    Example:
        >>> [(rows.stop, x.shape) for rows, x, _ in blocks(ArraySource(np.eye(3)))]
        [(3, (3, 3))]
    """
    columns = source.rows(np.zeros(1, np.int64))[0].shape[1]
    step = max(1, BLOCK_NUMBERS // columns)
    for start in range(0, len(source), step):
        rows = slice(start, min(start + step, len(source)))
        x, y = source.rows(np.arange(rows.start, rows.stop))
        yield rows, np.asarray(x), np.asarray(y)


def as_tensor(array: np.ndarray) -> torch.Tensor:
    """Without a copy, but of arrays that torch cannot share: read-only (memory-mapped files), or running backwards."""
    return torch.from_numpy(np.require(array, requirements=["C", "W"]))


def fingerprint(source: Source) -> dict[str, Any]:
    """What a checkpoint remembers of its data: sizes, dtypes and a hash of all rows.

    Example:
        >>> found = fingerprint(ArraySource(np.eye(3, dtype=np.float32), np.arange(3)))
        >>> found["rows"], found["features"], found["x_dtype"], found["y_dtype"], found["y_shape"]
        (3, 3, 'float32', 'int64', [])
    """
    x, y = map(np.asarray, source.rows(np.zeros(1, np.int64)))
    hashes = hashlib.sha256(), hashlib.sha256()  # of x and of y: where a block ends does not matter
    for _, *arrays in blocks(source):
        for array, digest in zip(arrays, hashes, strict=True):
            # Little-endian everywhere, so that the same data has the same hash on every machine.
            digest.update(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).data)
    return {
        "rows": len(source),
        "features": x.shape[1],
        "x_dtype": x.dtype.name,
        "y_dtype": y.dtype.name,
        "y_shape": list(y.shape[1:]),
        "sha256": hashlib.sha256(b"".join(digest.digest() for digest in hashes)).hexdigest(),
    }


def evenly_spaced(length: int, count: int) -> np.ndarray:
    """Up to `count` different row numbers from the first row to the last, ascending.

    Example:
        >>> evenly_spaced(9, 3).tolist(), evenly_spaced(2, 3).tolist()
        ([0, 4, 8], [0, 1])
    """
    return np.arange(length) if count >= length else np.linspace(0, length - 1, count).astype(np.int64)


def _as_numeric(value: Any, name: str, sparse: bool = True) -> Any:
    """`value` as an array of numbers, or as a CSR matrix, without a copy where that can be."""
    if sparse and scipy.sparse.issparse(value):
        array = value.tocsr()
    elif _is_pandas(value):
        array = _from_pandas(value, name)
    elif isinstance(value, torch.Tensor):
        array = value.detach().numpy()
    else:
        array = np.asarray(value)
    # Torch has no dtype wider than eight bytes, so numpy's long double is refused here.
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
        raise ValueError(f"{name} must hold real numbers, got {array.dtype}")
    return array.view(np.uint8) if array.dtype.kind == "b" and isinstance(array, np.ndarray) else array


def _is_pandas(value: Any) -> bool:
    # Who passes a DataFrame has imported pandas; the package itself does without.
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(value, pandas.DataFrame | pandas.Series)


def _from_pandas(value: Any, name: str) -> np.ndarray:
    dtypes = value.dtypes.items() if value.ndim == 2 else [(value.name, value.dtype)]
    for column, dtype in dtypes:
        if dtype.kind not in "biuf":
            raise ValueError(f"{name} must hold numbers, but column {column!r} holds {dtype}")
    array = value.to_numpy()
    # Nullable columns, and truth values beside numbers, come out as Python objects.
    return value.to_numpy(dtype=np.float64, na_value=np.nan) if array.dtype == object else array


def _is_mapped(array: Any) -> bool:
    while isinstance(array, np.ndarray):
        array = array.base
    return isinstance(array, mmap.mmap)


def _native(array: np.ndarray) -> np.ndarray:
    # Torch takes this machine's byte order only; idx files are big-endian.
    return array.astype(array.dtype.newbyteorder("="), copy=False)
