"""Columns of Arrow tables as numbers or as text, with errors that name column, row and value."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

__all__ = ["NUMBER", "as_table", "describe_unusable", "is_number", "is_text", "numbers_of", "texts_of"]

NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"  # as it is written in text

pc: Any = pyarrow.compute  # its functions exist at run time only


def as_table(frame: Any) -> pa.Table:
    """A pandas DataFrame as an Arrow table, with names as text and without its index.

    Example:
        >>> import pandas as pd
        >>> as_table(pd.DataFrame({"age": [20, None], 7: ["x", 1]})).to_pydict()
        {'age': [20.0, None], '7': ['x', '1']}
    """
    names = [str(name) for name in frame.columns]
    return pa.table([_from_series(frame.iloc[:, position]) for position in range(len(names))], names=names)


def is_text(kind: pa.DataType) -> bool:
    """Whether a column of this type is text, or categories by another name."""
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_dictionary)
    return any(test(kind) for test in tests)


def is_number(kind: pa.DataType) -> bool:
    """Whether a column of this type is numbers, truth values or nothing at all."""
    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_boolean, pa.types.is_null)
    return any(test(kind) for test in tests)


def numbers_of(table: pa.Table | pa.RecordBatch, names: list[str], first_row: int, place: str) -> np.ndarray:
    """Columns as float64 [B, D], missing values as NaN; infinite ones are an error."""
    values = np.empty((table.num_rows, len(names)))
    for position, name in enumerate(names):
        column = table.column(name)
        if is_text(column.type):
            column = _parsed(column, name, first_row, place)
        elif not is_number(column.type):
            raise ValueError(f"{place}{describe_unusable(name, column.type)}")
        # Not safe in Arrow's sense: whole numbers beyond 2^53 are rounded.
        values[:, position] = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    infinite = np.isinf(values)
    if infinite.any():
        row, position = np.argwhere(infinite)[0]
        raise ValueError(f"{place}column {names[position]!r} has an infinite value in row {first_row + row}")
    return values


def texts_of(column: pa.Array | pa.ChunkedArray, name: str, place: str) -> Any:
    """A column as text without blanks around it, and without a value where nothing is left."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    try:
        column = pc.utf8_trim_whitespace(column.cast(pa.large_string()))
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
        raise ValueError(f"{place}{describe_unusable(name, column.type)}") from error
    return pc.if_else(pc.equal(column, ""), pa.scalar(None, pa.large_string()), column)


def describe_unusable(name: str, kind: pa.DataType) -> str:
    if pa.types.is_temporal(kind):
        return f"column {name!r} holds dates or times: turn them into numbers, such as days, or leave the column out"
    return f"column {name!r} holds {kind}, neither numbers nor text: leave the column out"


def _parsed(column: pa.Array | pa.ChunkedArray, name: str, first_row: int, place: str) -> Any:
    """Text where training saw numbers."""
    column = texts_of(column, name, place)
    row = pc.match_substring_regex(column, NUMBER).index(False).as_py()
    if row >= 0:
        value = column[row].as_py()
        raise ValueError(f"{place}column {name!r} must hold numbers, but row {first_row + row} holds {value[:80]!r}")
    return column


def _from_series(series: Any) -> pa.Array | pa.ChunkedArray:
    try:
        return pa.Array.from_pandas(series)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        # Python objects of several kinds: text says all of them.
        return pa.array([None if none else str(value) for value, none in zip(series, series.isna(), strict=True)])
