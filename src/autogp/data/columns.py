"""Columns of Arrow tables as numbers or as text, with errors that name column, row and value."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
from pyarrow import interchange

from autogp.data.written import Written, written_numbers

__all__ = ["as_table", "describe_unusable", "is_date", "is_number", "is_text", "numbers_of", "texts_of"]

pc: Any = pyarrow.compute  # its functions exist at run time only


def as_table(frame: Any) -> pa.Table:
    """A DataFrame of pandas, polars or another library as an Arrow table, with names as text and without its index.

    Example:
        >>> import pandas as pd
        >>> as_table(pd.DataFrame({"age": [20, None], 7: ["x", 1]})).to_pydict()
        {'age': [20.0, None], '7': ['x', '1']}
    """
    if not hasattr(frame, "iloc"):  # whatever speaks Arrow's protocol, or the older one of DataFrames
        return pa.table(frame) if hasattr(frame, "__arrow_c_stream__") else interchange.from_dataframe(frame)
    names = [str(name) for name in frame.columns]
    return pa.table([_from_series(frame.iloc[:, position]) for position in range(len(names))], names=names)


def is_text(kind: pa.DataType) -> bool:
    """Whether a column of this type is text, or categories by another name."""
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_dictionary)
    return any(test(kind) for test in tests)


def is_number(kind: pa.DataType) -> bool:
    """Whether a column of this type is numbers, truth values, durations or nothing at all."""
    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_boolean, pa.types.is_null)
    return any(test(kind) for test in (*tests, pa.types.is_duration))


def is_date(kind: pa.DataType) -> bool:
    """Whether a column of this type is dates or times."""
    return any(test(kind) for test in (pa.types.is_date, pa.types.is_timestamp, pa.types.is_time))


def numbers_of(
    table: pa.Table | pa.RecordBatch,
    names: list[str],
    first_row: int,
    place: str,
    written: Mapping[str, Written] | None = None,
) -> np.ndarray:
    """Columns as float64 [B, D], missing values as NaN; infinite ones are an error. Durations are seconds.

    `written` says of columns of text how their numbers are written.
    """
    values = np.empty((table.num_rows, len(names)))
    for position, name in enumerate(names):
        column = table.column(name)
        if is_text(column.type):
            text = texts_of(column, name, place)
            values[:, position], wrong = written_numbers(text, (written or {}).get(name, Written()))
            if wrong >= 0:
                raise ValueError(
                    f"{place}column {name!r} holds numbers, but {text[wrong].as_py()[:80]!r} in row "
                    f"{first_row + wrong}: correct it, leave it empty if the value is missing, or say that the column "
                    f"is categorical"
                )
            continue
        if not is_number(column.type):
            raise ValueError(f"{place}{describe_unusable(name, column.type)}")
        if pa.types.is_duration(column.type):
            column = pc.divide(column.cast(pa.duration("us"), safe=False).cast(pa.int64()).cast(pa.float64()), 1e6)
        # Not safe in Arrow's sense: whole numbers beyond 2^53 are rounded.
        values[:, position] = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    infinite = np.isinf(values)
    if infinite.any():
        row, position = np.argwhere(infinite)[0]
        raise ValueError(f"{place}column {names[position]!r} has an infinite value in row {first_row + row}")
    return values


def texts_of(column: pa.Array | pa.ChunkedArray, name: str, place: str) -> Any:
    """A column as text without blanks around it, and without a value where nothing is left; 7.0 is 7."""
    if pa.types.is_dictionary(column.type):
        column = _decoded(column)
    if pa.types.is_floating(column.type) and pc.all(pc.equal(column, pc.round(column))).as_py() is not False:
        column = column.cast(pa.int64(), safe=False)
    try:
        column = pc.utf8_trim_whitespace(column.cast(pa.large_string()))
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
        raise ValueError(f"{place}{describe_unusable(name, column.type)}") from error
    return pc.if_else(pc.equal(column, ""), pa.scalar(None, pa.large_string()), column)


def _decoded(column: Any) -> pa.ChunkedArray:
    """A column of categories as their values; text in views, as polars has it, has no cast from a dictionary."""
    kind = column.type.value_type
    kind = pa.large_string() if is_text(kind) else kind
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    return pa.chunked_array([chunk.dictionary.cast(kind).take(chunk.indices) for chunk in chunks], type=kind)


def describe_unusable(name: str, kind: Any) -> str:
    return f"column {name!r} holds {kind}, neither numbers, dates nor text: leave the column out"


def _from_series(series: Any) -> pa.Array | pa.ChunkedArray:
    if hasattr(series.dtype, "freq"):  # months, quarters or years: pandas' periods
        series = series.dt.to_timestamp()
    if "interval" in (str(series.dtype)[:8], str(getattr(series.dtype, "categories", series).dtype)[:8]):
        series = series.astype(object)  # such as (0, 10], of pandas' cut
    try:
        return pa.Array.from_pandas(series)
    except pa.ArrowNotImplementedError:
        raise ValueError(describe_unusable(str(series.name), series.dtype)) from None
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        # Python objects of several kinds: text says all of them.
        return pa.array([None if none else str(value) for value, none in zip(series, series.isna(), strict=True)])
