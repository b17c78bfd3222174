"""What a user may pass as X, turned into a source of rows of numbers."""

import sys
import warnings
from typing import Any

import numpy as np
from sklearn.utils.validation import validate_data

from autogp.data import ArraySource, Source, TableEncoder, Unseen, as_table

__all__ = ["WithTargets", "as_source", "is_source", "targets_of"]

TARGET_ROWS = 10_000


class WithTargets:
    """The inputs of a source beside other targets [N] or [N, P]."""

    def __init__(self, source: Source, y: np.ndarray):
        if len(source) != len(y):
            raise ValueError(f"X has {len(source)} rows but y has {len(y)}")
        self.source = source
        self.y = y
        self.in_memory = getattr(source, "in_memory", False)

    def __len__(self) -> int:
        return len(self.y)

    def rows(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.source.rows(indices)[0], self.y[indices]


def targets_of(source: Any) -> np.ndarray:
    """All targets of a source; text labels where it counts classes."""
    if hasattr(source, "y"):
        y = np.asarray(source.y)
    else:
        starts = range(0, len(source), TARGET_ROWS)
        blocks = (np.arange(start, min(start + TARGET_ROWS, len(source))) for start in starts)
        y = np.concatenate([source.rows(block)[1] for block in blocks])
    if y.ndim == 2 and y.shape[1] == 0:
        raise ValueError("the source has no targets: name them when it is opened, or pass y")
    classes = getattr(source, "classes", None)
    return y if classes is None else np.array(classes)[y]


def is_source(X: Any) -> bool:
    """Whether X is rows already, numbers as the model takes them, such as `open_source` gives."""
    return callable(getattr(X, "rows", None)) and hasattr(X, "__len__")


def as_source(estimator: Any, X: Any, reset: bool) -> Source:
    """X as rows of numbers, after scikit-learn's checks; `reset` (in fit) learns names, number and encoding of columns.

    A DataFrame with text, categories or missing values is encoded as `TableEncoder` does; everything else must hold
    finite numbers, and keeps its type: integers stay integers.
    """
    if reset:
        estimator.target_names_ = getattr(X, "targets", None)
    if is_source(X):
        return _checked_source(estimator, X, reset)
    encode = _needs_encoding(X) if reset else getattr(estimator, "encoder_", None) is not None
    if not encode:
        if reset:
            estimator.encoder_ = None
        return ArraySource(_plain(validate_data(estimator, X, reset=reset, accept_sparse="csr", dtype="numeric")))
    if not _is_frame(X):
        raise ValueError(
            f"X must be a DataFrame with the columns {', '.join(estimator.encoder_.inputs)}, as in fit, "
            f"got {type(X).__name__}"
        )
    validate_data(estimator, X, reset=reset, skip_check_array=True)
    table, unseen = as_table(X), Unseen()
    if reset:
        estimator.encoder_ = TableEncoder.fit([table])
    x = estimator.encoder_.transform(table, unseen=unseen)
    for sentence in unseen.sentences():
        warnings.warn(sentence, stacklevel=4)
    return ArraySource(x, columns=estimator.encoder_.columns)


def _checked_source(estimator: Any, source: Any, reset: bool) -> Source:
    columns = source.rows(np.zeros(1, np.int64))[0].shape[1]
    encoder = getattr(source, "encoder", None)
    if reset:
        estimator.encoder_ = encoder
        names = encoder.inputs if encoder is not None else getattr(source, "columns", None)
        estimator.n_features_in_ = columns if encoder is None else len(encoder.inputs)
        if names is not None:
            estimator.feature_names_in_ = np.array(names, dtype=object)
        elif hasattr(estimator, "feature_names_in_"):
            del estimator.feature_names_in_
    expected = len(estimator.input_scaler_.shift) if not reset else columns
    if columns != expected:
        raise ValueError(f"X has {columns} features, but {type(estimator).__name__} is expecting {expected} features")
    return source


def _plain(X: Any) -> Any:
    """Types that torch does not know, in one that it does."""
    kind, size = X.dtype.kind, X.dtype.itemsize
    if kind == "O" or (kind == "f" and size > 8):
        return X.astype(np.float64)
    return X


def _is_frame(X: Any) -> bool:
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(X, pandas.DataFrame)


def _needs_encoding(X: Any) -> bool:
    """Whether X is a DataFrame with a column that is not of finite numbers."""
    if not _is_frame(X):
        return False
    return any(dtype.kind not in "biuf" for dtype in X.dtypes) or bool(X.isna().to_numpy().any())
