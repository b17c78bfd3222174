"""What a user may pass as X, turned into a source of rows of numbers."""

import math
import warnings
from typing import Any

import numpy as np
from scipy.sparse import issparse
from sklearn.utils.validation import validate_data

from autogp.data import ArraySource, Labels, Source, TableEncoder, Unseen, as_table
from autogp.data.dates import FIRST_DAY, LAST_DAY
from autogp.data.encoding import names_rows, refuse_repeated

__all__ = ["WithTargets", "as_source", "is_source", "refuse_non_finite", "targets_of"]

TARGET_ROWS = 10_000
CHECKED_NUMBERS = 2**22  # at a time
LARGEST = 1e150  # whose square, times a number of rows, float64 still holds


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


def targets_of(source: Any) -> np.ndarray | Labels:
    """All targets of a source; labels where it counts classes."""
    if hasattr(source, "y"):
        y = np.asarray(source.y)
    else:
        starts = range(0, len(source), TARGET_ROWS)
        blocks = (np.arange(start, min(start + TARGET_ROWS, len(source))) for start in starts)
        y = np.concatenate([source.rows(block)[1] for block in blocks])
    if y.ndim == 2 and y.shape[1] == 0:
        raise ValueError("the source has no targets: name them when it is opened, or pass y")
    classes = getattr(source, "classes", None)
    return y if classes is None else Labels.of(y, classes)


def is_source(X: Any) -> bool:
    """Whether X is rows already, as `open_source` gives; frames of polars have a method `rows` too."""
    return callable(getattr(X, "rows", None)) and hasattr(X, "__len__") and not _is_frame(X)


def as_source(estimator: Any, X: Any, reset: bool) -> Source:
    """X as rows of numbers, after scikit-learn's checks; `reset` (in fit) learns names, number and encoding of columns.

    A DataFrame with text, categories or missing values becomes one number per column as `TableEncoder` says; everything
    else must hold numbers, and keeps its type: integers stay integers. NaN means missing. Images [N, H, W(, C)] are
    rows of pixels, none of which may be missing in fit.
    """
    X = _stacked(X)
    if reset:
        estimator.target_names_ = getattr(X, "targets", None)
        estimator.image_shape_ = image_shape_of(X)
    elif estimator.image_shape_ is not None and getattr(X, "shape", None) == estimator.image_shape_:
        raise ValueError(f"X is one image of shape {X.shape}: pass X[None], an array of one image")
    elif estimator.image_shape_ is not None and image_shape_of(X) not in (None, estimator.image_shape_):
        raise ValueError(
            f"X holds images of shape {image_shape_of(X)}, but {type(estimator).__name__} is expecting "
            f"{estimator.image_shape_}"
        )
    if is_source(X):
        return _checked_source(estimator, X, reset)
    frame = _is_frame(X)
    if frame and hasattr(X, "iloc"):
        refuse_repeated([str(name) for name in X.columns], X.columns, "X: ")
        if not len(X.columns):
            raise ValueError("X has 0 feature(s), that is no columns, while a minimum of 1 is required.")
    if not frame and callable(getattr(X, "collect", None)):
        raise ValueError(f"X is a {type(X).__name__}, which holds no rows yet: pass X.collect()")
    encoder = None if reset else estimator.encoder_
    if reset and estimator.categorical is not None and not frame:
        raise ValueError("categorical names columns of a DataFrame, which X is not")
    if reset:
        encode = estimator.categorical is not None or _needs_encoding(X)
    else:
        encode = encoder is not None and (frame or not encoder.numbers)
    if encode:
        if not frame:
            raise ValueError(
                f"X must be a DataFrame with the columns {', '.join(estimator.encoder_.inputs)}, as in fit, "
                f"got {type(X).__name__}"
            )
        return _encoded(estimator, X, reset)
    shape = image_shape_of(X)
    x = _numbers(estimator, X if shape is None else np.asarray(X).reshape(len(X), math.prod(shape)), reset)
    if shape is not None and reset:
        refuse_non_finite(x, "X")
    if reset:
        estimator.encoder_ = _encoder_of_gaps(x, getattr(estimator, "feature_names_in_", None))
    return ArraySource(x if shape is None else x.reshape(-1, *shape))


def _encoded(estimator: Any, frame: Any, reset: bool) -> Source:
    validate_data(estimator, frame, reset=reset, skip_check_array=True)
    table, unseen = as_table(frame), Unseen()
    if reset:
        estimator.encoder_ = TableEncoder.fit([table], categorical=estimator.categorical or ())
    x = estimator.encoder_.transform(table, unseen=unseen)
    refuse_non_finite(x, "X", estimator.encoder_.used, missing=True)
    left_out = [f"column {note}" for note in estimator.encoder_.notes_of_ignored]
    for sentence in left_out if reset else unseen.sentences():
        warnings.warn(sentence, stacklevel=5)
    return ArraySource(x, columns=estimator.encoder_.used)


def _encoder_of_gaps(x: Any, names: Any) -> TableEncoder | None:
    """Of an array [N, D] in which NaN means missing; none where nothing is missing."""
    if issparse(x) or x.dtype.kind != "f" or not np.isnan(x.sum()):
        return None
    missing = np.isnan(x).sum(0)
    if (missing == len(x)).any():
        column = int(np.argmax(missing == len(x)))
        name = column if names is None else repr(names[column])
        raise ValueError(f"Input X contains NaN in every row of column {name} (counted from 0): leave the column out.")
    names = [f"x{column}" for column in range(x.shape[1])] if names is None else list(names)
    means: Any = np.nanmean(x, 0, dtype=np.float64).tolist()
    return TableEncoder.of_numbers(names, means, missing.tolist())


def _stacked(X: Any) -> Any:
    """A list of images as one array [N, H, W(, C)]; anything else as it is."""
    if not isinstance(X, (list, tuple)) or not X or not all(getattr(each, "ndim", 0) in (2, 3) for each in X):
        return X
    sizes = sorted({tuple(each.shape) for each in X})
    if len(sizes) > 1:
        raise ValueError(f"all images must have one shape, got {sizes[0]}, {sizes[1]}, ...: make them the same size")
    return np.stack(X)


def image_shape_of(X: Any) -> tuple[int, ...] | None:
    """(H, W) or (H, W, C) where X is images, in an array [N, H, W] or [N, H, W, C] or a source that says so."""
    if is_source(X):
        return getattr(X, "image_shape", None)
    shape = tuple(getattr(X, "shape", ()))
    return shape[1:] if len(shape) in (3, 4) and 0 not in shape[1:] else None


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
    fitted = estimator.encoder_
    expected = estimator.n_features_in_ if fitted is None else len(fitted.used)
    if encoder is not None and not _encodes_alike(estimator, encoder):
        names = "encoder=model.encoder_" if fitted is not None else "columns=list(model.feature_names_in_)"
        raise ValueError(
            f"X was opened with columns or an encoding of its own, not with those of fit: open_source(path, {names})"
        )
    if encoder is not None and isinstance(source, ArraySource):
        refuse_non_finite(source.x, "X", encoder.used, missing=True, first=1)
    if columns != expected:
        raise ValueError(f"X has {columns} features, but {type(estimator).__name__} is expecting {expected} features")
    return source


def _encodes_alike(estimator: Any, encoder: TableEncoder) -> bool:
    """Whether a table became numbers as that of fit did: complete columns of numbers need only be the same ones."""
    fitted = estimator.encoder_
    if fitted is not None and not (fitted.plain and encoder.plain):
        return encoder.describe() == fitted.describe()
    names = getattr(estimator, "feature_names_in_", None)
    return names is None or encoder.used == list(names)


def refuse_non_finite(
    values: Any, name: str, columns: Any = None, missing: bool = False, largest: float = LARGEST, first: int = 0
) -> None:
    """Raises ValueError naming the first number of an array [N] or [N, D] (dense or sparse) that is not finite, or
    beyond the largest; where values may be missing, NaN passes. `first` is the number of the first row, which is 1 in
    files."""
    if values.dtype.kind != "f":
        return
    step = max(1, CHECKED_NUMBERS // math.prod(values.shape[1:]))
    for start in range(0, values.shape[0], step):
        block = values[start : start + step]
        if not _wrong(block.data if issparse(block) else block, missing, largest).any():
            continue
        block = block.toarray() if issparse(block) else block
        place = tuple(np.argwhere(_wrong(block, missing, largest))[0].tolist())
        value = block[place]
        what = "NaN" if np.isnan(value) else "infinity" if np.isinf(value) else f"{value:g}, too large to be scaled"
        where = f"row {first + start + place[0]}"
        if len(place) > 1:
            where += f", column {place[1] if columns is None else repr(columns[place[1]])}"
        raise ValueError(f"Input {name} contains {what}, first in {where} (counted from {first}).")


def _wrong(values: np.ndarray, missing: bool, largest: float) -> np.ndarray:
    largest = min(largest, float(np.finfo(values.dtype).max))
    return np.abs(values) > largest if missing else ~(np.abs(values) <= largest)


def _numbers(estimator: Any, X: Any, reset: bool) -> Any:
    """X as an array of finite numbers, dense or CSR, in a type that torch knows."""
    try:
        options: dict[str, Any] = {"accept_sparse": "csr", "dtype": "numeric", "ensure_all_finite": False}
        found: Any = validate_data(estimator, X, reset=reset, **options)
    except ValueError as error:
        text = _first_text(X)
        if text is None:
            raise
        raise ValueError(
            f"Input X contains text, first {text}. Pass a DataFrame, whose text columns are encoded, or numbers."
        ) from error
    if found.dtype.kind == "O" or (found.dtype.kind == "f" and found.dtype.itemsize > 8):
        found = found.astype(np.float64)
    refuse_non_finite(found, "X", getattr(estimator, "feature_names_in_", None), missing=not issparse(found))
    return found


def _first_text(X: Any) -> str | None:
    """Where an array has text that is no number."""
    cells = np.asarray(X, dtype=object)
    for place, value in np.ndenumerate(cells) if cells.ndim == 2 else ():
        try:
            if isinstance(value, (str, bytes)):
                float(value)
        except ValueError:
            return f"{value!r} in row {place[0]}, column {place[1]} (counted from 0)"
    return None


def _is_frame(X: Any) -> bool:
    """Whether X is a DataFrame of pandas, polars or any library that speaks Arrow's protocol or that of DataFrames."""
    return hasattr(X, "__dataframe__") or (hasattr(X, "__arrow_c_stream__") and hasattr(X, "columns"))


def _needs_encoding(X: Any) -> bool:
    """Whether X is a DataFrame that is more than an array of finite numbers with names."""
    if not _is_frame(X) or not hasattr(X, "iloc"):
        return _is_frame(X)
    numbers = all(dtype.kind in "biuf" for dtype in X.dtypes) and not X.isna().to_numpy().any()
    if not numbers or not all(isinstance(name, str) for name in X.columns):
        return not numbers
    days = (X.min() >= FIRST_DAY) & (X.max() <= LAST_DAY)  # perhaps
    return any(map(names_rows, X.columns)) or bool((days | (X.min() == X.max())).any())
