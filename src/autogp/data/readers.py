"""CSV and Parquet files as a stream of record batches, with errors that say where the file is wrong."""

import difflib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import csv, parquet

from autogp.data.columns import describe_unusable, is_number, is_text
from autogp.data.encoding import TableEncoder

__all__ = ["Layout", "column_names", "plan_layout", "read_batches", "refuse_unknown"]

# Arrow reads some thirty blocks ahead; a line must fit into one.
CSV_BLOCK_BYTES = 2**20
PARQUET_BATCH_BYTES = 16 * 2**20

# Arrow tells where a CSV file is wrong in the text of its errors only; the header is its row 1.
WRONG_VALUE = re.compile(r"column #(\d+): Row #(\d+): CSV conversion error to \w+: invalid value '(.*)'", re.DOTALL)
NOT_UTF_8 = "is not in UTF-8: save it in that encoding (spreadsheets call it CSV UTF-8)"
WRONG_WIDTH = re.compile(r"Row #(\d+): Expected (\d+) columns, got (\d+)")


@dataclass(frozen=True)
class Layout:
    """Which columns of a table are inputs and targets, and how they are read.

    Example:
        >>> Layout(["width"], ["kind"], {"width": pa.float64(), "kind": pa.string()}, True, False, ",").inputs
        ['width']
    """

    inputs: list[str]
    targets: list[str]
    types: dict[str, pa.DataType]
    text_target: bool  # the only target is class labels
    integer_targets: bool  # the targets are whole numbers as far as can be told before reading them all
    delimiter: str  # of a CSV file


def plan_layout(
    path: Path,
    target: str | Sequence[str] | None,
    columns: Sequence[str] | None,
    ignore: Sequence[str],
    text: bool,
    encoder: TableEncoder | None,
) -> Layout:
    """The layout of the file: columns that are not targets are inputs, unless `columns` or `encoder` names them.

    Arguments:
        path: A CSV or Parquet file.
        target: One column, several, or none.
        columns: The inputs, in order.
        ignore: Columns that are no inputs.
        text: Whether the target is class labels even if they look like numbers.
        encoder: How the inputs were read before.
    """
    schema, delimiter = _header(path)
    in_file = Counter(schema.names)
    targets = [target] if isinstance(target, str) else list(target or [])
    refuse_unknown(path, [*targets, *(columns or []), *ignore], schema.names)
    if encoder is not None:
        encoder.require(schema.names, f"{path}: ")
        columns = encoder.used
    if columns is None:
        columns = [name for name in schema.names if name not in targets]
    inputs = [name for name in columns if name not in ignore]
    used = inputs + targets
    in_use = Counter(used)
    repeated = [name for name in used if in_file[name] > 1 or in_use[name] > 1]
    if repeated:
        raise ValueError(f"{path}: column {repeated[0]!r} appears more than once")
    if not inputs:
        raise ValueError(f"{path} has no columns besides the target")

    found = {name: schema.field(name).type for name in used}
    text_target = isinstance(target, str) and (text or is_text(found[target]))
    texts = {name for name in inputs if is_text(found[name])} if encoder is None else set(encoder.categories)
    texts |= set(targets) if text_target else set()
    for name in inputs:
        if name not in texts and not is_number(found[name]) and not is_text(found[name]):
            raise ValueError(f"{path}: {describe_unusable(name, found[name])}")
    for name in targets:
        # Text in CSV goes on, to be refused by row and value.
        if name not in texts and not is_number(found[name]) and (path.suffix == ".parquet" or not is_text(found[name])):
            raise ValueError(f"{path}: target column {name!r} holds {found[name]}, not numbers")
    # A column of numbers is read as float64 wherever it starts with whole ones: others may follow.
    numbers = {name: pa.bool_() if pa.types.is_boolean(kind) else pa.float64() for name, kind in found.items()}
    types = {name: pa.string() if name in texts else numbers[name] for name in used}
    integers = all(pa.types.is_integer(found[name]) or pa.types.is_boolean(found[name]) for name in targets)
    return Layout(inputs, targets, types, text_target, integers, delimiter)


def read_batches(path: Path, layout: Layout) -> Iterator[pa.RecordBatch]:
    """The columns of `layout`, a few megabytes of rows at a time; numbers as Arrow finds them, labels as text."""
    names = layout.inputs + layout.targets
    if path.suffix == ".parquet":
        # Not buffered ahead: that would hold whole row groups, whose size nothing bounds.
        try:
            with parquet.ParquetFile(path, pre_buffer=False) as file:
                yield from file.iter_batches(max(1, PARQUET_BATCH_BYTES // (8 * len(names))), columns=names)
        except (pa.ArrowException, OSError) as error:
            raise ValueError(f"{path} is damaged: {error}") from None
        return
    try:
        options = {"include_columns": names, "column_types": layout.types, "strings_can_be_null": True}
        with _open_csv(path, layout.delimiter, **options) as reader:
            yield from reader
    except (pa.ArrowInvalid, OSError) as error:
        raise _explained(path, error) from None


def column_names(path: Path) -> list[str]:
    """The columns of a CSV or Parquet file, in order."""
    return _header(path)[0].names


def refuse_unknown(path: Path, wanted: Sequence[str], names: Sequence[str]) -> None:
    """Raises `ValueError` where a wanted column is not among the file's, and says which may be meant."""
    found = set(names)
    for name in wanted:
        if name not in found:
            raise ValueError(f"{path} has no column {name!r}; {_suggestion(name, list(names))}")


def _header(path: Path) -> tuple[pa.Schema, str]:
    """Names and types of the columns, as stored in Parquet or as the first block of a CSV file looks; its delimiter."""
    if path.suffix == ".parquet":
        try:
            return parquet.read_schema(path), ""
        except (pa.ArrowInvalid, OSError) as error:
            raise ValueError(f"{path} is not a Parquet file, or a damaged one: {error}") from None
    try:
        with pa.input_stream(path, compression="detect") as stream:
            start = stream.read(2 * CSV_BLOCK_BYTES)  # more than the block that is looked at, which may end in a line
        if b"\0" in start:
            raise ValueError(f"{path} {NOT_UTF_8}")
        header = re.sub(rb'"[^"]*"', b"", start).split(b"\n", 1)[0]  # names in quotes may hold any of them
        likeliest = max(",;\t", key=lambda mark: header.count(mark.encode()))
        delimiter = "\t" if path.suffix == ".tsv" else likeliest
        with _open_csv(pa.BufferReader(start), delimiter) as reader:
            schema = reader.schema
    except (pa.ArrowInvalid, OSError) as error:
        raise _explained(path, error) from None
    # Text in another encoding is bytes to Arrow, and fails on its way to Python.
    with suppress(UnicodeDecodeError):
        if pa.binary() not in schema.types and schema.names:
            return schema, delimiter
    raise ValueError(f"{path} {NOT_UTF_8}")


def _open_csv(file: Path | pa.NativeFile, delimiter: str, **conversion: Any) -> csv.CSVStreamingReader:
    return csv.open_csv(
        file,
        # One thread, so that errors know their row.
        read_options=csv.ReadOptions(use_threads=False, block_size=CSV_BLOCK_BYTES),
        parse_options=csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        convert_options=csv.ConvertOptions(**conversion),
    )


def _explained(path: Path, error: Exception) -> ValueError:
    message = str(error)
    if match := WRONG_VALUE.search(message):
        column, row, value = match.groups()
        name = column_names(path)[int(column)]
        return ValueError(f"{path}: column {name!r} must hold numbers, but row {int(row) - 1} holds {value[:80]!r}")
    if match := WRONG_WIDTH.search(message):
        row, expected, found = map(int, match.groups())
        return ValueError(
            f"{path}: line {row} (blank ones not counted) has {found} columns, but the header has {expected}"
        )
    if "straddl" in message:
        return ValueError(f"{path} has a line of more than {CSV_BLOCK_BYTES:,} bytes, or a quote that is never closed")
    if "invalid UTF8" in message:
        return ValueError(f"{path} {NOT_UTF_8}")
    if "Empty CSV" in message:
        return ValueError(f"{path} has no rows")
    return ValueError(f"{path}: {message}")


def _suggestion(name: str, names: list[str]) -> str:
    by_lower = {each.strip().lower(): each for each in names}
    close = [by_lower[each] for each in difflib.get_close_matches(name.strip().lower(), by_lower)]
    if close:
        return f"did you mean {' or '.join(map(repr, close))}?"
    more = ", ..." if len(names) > 20 else ""
    return f"its columns are {', '.join(map(repr, names[:20]))}{more}"
