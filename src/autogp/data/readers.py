"""CSV and Parquet files as a stream of record batches, with errors that say where the file is wrong."""

import difflib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute
from pyarrow import csv, parquet

from autogp.data.addresses import File
from autogp.data.columns import describe_unusable, is_date, is_number, is_text, texts_of
from autogp.data.encoding import TableEncoder
from autogp.data.written import CODE, Written, number_form

__all__ = ["Form", "Layout", "column_names", "plan_layout", "read_batches", "refuse_unknown", "row_groups"]

# Arrow reads some thirty blocks ahead; a line must fit into one.
CSV_BLOCK_BYTES = 2**20
PARQUET_BATCH_BYTES = 16 * 2**20
MOST_COLUMNS = 20_000
MOST_FOOTER = 64 * 2**20  # bytes that describe a Parquet file
# A file of measurements does not shrink like this; one that was made to fill a disk or memory does.
MOST_UNFOLDED, MOST_SHRUNK = 2**28, 1_000  # bytes, and how many of them in one of the file

pc: Any = pyarrow.compute  # its functions exist at run time only

# Arrow tells where a CSV file is wrong in the text of its errors only; the header is its row 1.
WRONG_VALUE = re.compile(r"column #(\d+): Row #(\d+): CSV conversion error to (.+?): invalid value '(.*)'", re.DOTALL)
NOT_UTF_8 = "is not in UTF-8: save it in that encoding (spreadsheets call it CSV UTF-8)"
LONG_LINE = f"has a line of more than {CSV_BLOCK_BYTES:,} bytes, or a quote that is never closed"
WRONG_WIDTH = re.compile(r"Row #(\d+): Expected (\d+) columns, got (\d+)")


@dataclass(frozen=True)
class Form:
    """What a user knows of a table, and its delimiter: how a CSV file is read."""

    categorical: tuple[str, ...] = ()
    decimal: str | None = None
    header: bool = True  # without one the columns are called f0, f1, ...
    delimiter: str = ","


@dataclass(frozen=True)
class Layout:
    """Which columns of a table are inputs and targets, and how they are read.

    Example:
        >>> Layout(["width"], ["kind"], {"width": pa.float64(), "kind": pa.string()}, True, False, {}, Form()).inputs
        ['width']
    """

    inputs: list[str]
    targets: list[str]
    types: dict[str, pa.DataType]
    text_target: bool  # the only target is class labels
    integer_targets: bool  # the targets are whole numbers as far as can be told before reading them all
    written: dict[str, Written]  # how targets in text are written that are numbers
    form: "Form"


def plan_layout(
    path: File,
    target: str | Sequence[str] | None,
    columns: Sequence[str] | None,
    ignore: Sequence[str],
    text: bool,
    encoder: TableEncoder | None,
    form: Form = Form(),  # noqa: B008
    carried: Sequence[str] = (),
) -> Layout:
    """The layout of the file: columns that are not targets are inputs, unless `columns` or `encoder` names them.

    Arguments:
        path: A CSV or Parquet file.
        target: One column, several, or none.
        columns: The inputs, in order.
        ignore: Columns that are no inputs.
        text: Whether the target is class labels even if they look like numbers.
        encoder: How the inputs were read before.
        form: What the user knows of the file.
        carried: Further columns that are read.
    """
    schema, sample, form = _header(path, form)
    in_file = Counter(schema.names)
    targets = [target] if isinstance(target, str) else list(target or [])
    refuse_unknown(path, [*targets, *(columns or []), *ignore, *carried], schema.names)
    if encoder is not None:
        encoder.require(schema.names, f"{path}: ")
        columns = encoder.used
    if columns is None:
        columns = [name for name in schema.names if name not in targets]
    inputs = [name for name in columns if name not in ignore]
    used = inputs + targets
    in_use = Counter(used)
    further = [name for name in dict.fromkeys(carried) if name not in used]
    repeated = [name for name in used if in_file[name] > 1 or in_use[name] > 1]
    if repeated:
        raise ValueError(f"{path}: column {repeated[0]!r} appears more than once")
    if not inputs:
        raise ValueError(f"{path} has no columns besides the target")

    found = {name: schema.field(name).type for name in used}
    written: dict[str, Written] = {}
    for name in targets:
        if is_date(found[name]) or not (is_number(found[name]) or is_text(found[name])):
            raise ValueError(f"{path}: target column {name!r} holds {found[name]}, not numbers or classes")
        if is_text(found[name]) and not pa.types.is_dictionary(found[name]) and not text:
            shape = number_form(texts_of(sample(name), name, f"{path}: "), form.decimal)
            written |= {} if shape is None else {name: shape}
    text_target = isinstance(target, str) and (text or (is_text(found[target]) and target not in written))
    if encoder is None:
        refuse_unknown(path, form.categorical, schema.names)
        texts = {name for name in inputs if is_text(found[name]) or name in form.categorical}
    else:
        texts = {name for name in inputs if name in encoder.categories or is_text(found[name])}
    texts |= set(written) | (set(targets) if text_target else set())
    for name in inputs:
        if name not in texts and not is_number(found[name]) and not is_date(found[name]):
            raise ValueError(f"{path}: {describe_unusable(name, found[name])}")
    types = {name: pa.string() if name in texts else _read_as(found[name]) for name in used}
    integers = all(pa.types.is_integer(found[name]) or pa.types.is_boolean(found[name]) for name in targets)
    types |= {name: pa.string() if is_text(schema.field(name).type) else schema.field(name).type for name in further}
    return Layout(inputs, targets, types, text_target, integers, written, form)


def _read_as(kind: pa.DataType) -> pa.DataType:
    """The type of a column of CSV that starts like this: fractions may follow whole numbers, and parts of seconds."""
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    return kind if is_date(kind) or pa.types.is_boolean(kind) else pa.float64()


def read_batches(path: File, layout: Layout, groups: range | None = None) -> Iterator[pa.RecordBatch]:
    """The columns of `layout`, a few megabytes of rows at a time; numbers as Arrow finds them, labels as text.

    `groups` are the row groups of a Parquet file that are read; by default all.
    """
    names = list(layout.types)
    if path.parquet:
        try:
            yield from _parquet_batches(path, names, max(1, PARQUET_BATCH_BYTES // (8 * len(names))), groups)
        except (pa.ArrowException, OSError) as error:
            raise ValueError(f"{path} is damaged: {error}") from None
        return
    try:
        options = {"include_columns": names, "column_types": layout.types, "strings_can_be_null": True}
        with path.stream() as stream, _open_csv(stream, layout.form, **options) as reader:
            yield from reader
    except (pa.ArrowInvalid, OSError) as error:
        raise _explained(path, error, layout.form) from None


def row_groups(path: File) -> list[int]:
    """The rows of each row group of a Parquet file."""
    try:
        with _open_parquet(path) as file:
            return [file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)]
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path} is not a Parquet file, or a damaged one: {error}") from None


def column_names(path: File, form: Form = Form()) -> list[str]:  # noqa: B008
    """The columns of a CSV or Parquet file, in order."""
    return _header(path, form)[0].names


def refuse_unknown(path: File, wanted: Sequence[str], names: Sequence[str]) -> None:
    """Raises `ValueError` where a wanted column is not among the file's, and says which may be meant."""
    found = set(names)
    for name in wanted:
        if name not in found:
            raise ValueError(f"{path} has no column {name!r}; {_suggestion(name, list(names))}")


def _header(path: File, form: Form) -> tuple[pa.Schema, Callable[[str], Any], Form]:
    """Names and types of the columns, as stored in Parquet or as the first block of a CSV file looks; the first values
    of a column by its name; and the form with the delimiter."""
    if path.parquet:
        try:
            return _parquet_schema(path), lambda name: _first_values(path, name), form
        except (pa.ArrowInvalid, OSError) as error:
            raise ValueError(f"{path} is not a Parquet file, or a damaged one: {error}") from None
    try:
        with path.stream() as stream:
            start = stream.read(2 * CSV_BLOCK_BYTES)  # more than the block that is looked at, which may end in a line
        if b"\0" in start:
            raise ValueError(f"{path} {NOT_UTF_8}")
        form = replace(form, delimiter=_delimiter(path, start, form.decimal))
        if max(map(len, start.splitlines()), default=0) > CSV_BLOCK_BYTES:
            raise ValueError(f"{path} {LONG_LINE}")
        with _open_csv(pa.BufferReader(start), form) as reader:
            first = reader.read_next_batch()
    except (pa.ArrowInvalid, OSError, StopIteration) as error:
        raise _explained(path, error, form) from None
    schema = first.schema
    # Text in another encoding is bytes to Arrow, and fails on its way to Python.
    with suppress(UnicodeDecodeError):
        if pa.binary() not in schema.types and schema.names:
            return _with_codes(schema, start, form), first.column, form
    raise ValueError(f"{path} {NOT_UTF_8}")


def _delimiter(path: File, start: bytes, decimal: str | None) -> str:
    header = re.sub(rb'"[^"]*"', b"", start).split(b"\n", 1)[0]  # names in quotes may hold any of them
    marks = ";\t" if decimal == "," and re.search(rb"[;\t]", header) else ",;\t"  # commas may be within numbers
    likeliest = max(marks, key=lambda mark: header.count(mark.encode()))
    delimiter = "\t" if path.path.endswith(".tsv") else likeliest
    columns = header.count(delimiter.encode()) + 1
    if columns > MOST_COLUMNS:
        raise ValueError(f"{path} has at least {columns:,} columns in its first line; {MOST_COLUMNS:,} are the most")
    return delimiter


def _with_codes(schema: pa.Schema, start: bytes, form: Form) -> pa.Schema:
    """The schema with columns as text whose digits start with 0, such as 02139."""
    whole = [name for name, kind in zip(schema.names, schema.types, strict=True) if pa.types.is_integer(kind)]
    if not re.search(rb"(^|[^\d.])0\d", start) or not whole or len(set(schema.names)) < len(schema.names):
        return schema
    types = dict.fromkeys(whole, pa.string())
    with _open_csv(pa.BufferReader(start), form, include_columns=whole, column_types=types) as reader:
        first = reader.read_next_batch()
    for name in whole:
        if pc.any(pc.match_substring_regex(first.column(name), CODE)).as_py():
            schema = schema.set(schema.names.index(name), pa.field(name, pa.string()))
    return schema


def _parquet_schema(path: File) -> pa.Schema:
    """Refuses files that were made to unfold without end, from what they say of themselves."""
    size = path.size
    with path.open() as file:
        file.seek(max(0, size - 8))
        footer = int.from_bytes(file.read(4), "little")
    if MOST_FOOTER < footer <= size:
        raise ValueError(f"{path} describes its columns in {footer:,} bytes: it has too many of them")
    with _open_parquet(path) as file:
        metadata = file.metadata
        if metadata.num_columns > MOST_COLUMNS:
            raise ValueError(f"{path} has {metadata.num_columns:,} columns; {MOST_COLUMNS:,} are the most")
        stored = sum(metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))
        unfolded = max(stored, 8 * metadata.num_rows * metadata.num_columns)
        if unfolded > max(MOST_UNFOLDED, MOST_SHRUNK * size):
            raise ValueError(
                f"{path} has {size:,} bytes, which unfold to {unfolded:,}: no table of measurements does that"
            )
        return file.schema_arrow


def _open_parquet(path: File, texts: Sequence[str] = ()) -> parquet.ParquetFile:
    """With the columns `texts` as dictionaries."""
    # Not buffered ahead: that would hold whole row groups, whose size nothing bounds.
    return parquet.ParquetFile(path.open(), pre_buffer=False, read_dictionary=list(texts))


def _parquet_batches(path: File, names: list[str], rows: int, groups: range | None) -> Iterator[pa.RecordBatch]:
    """At most so many rows at a time, and fewer where text is long: a few bytes may say that it is in every row."""
    with _open_parquet(path) as file:
        schema = file.schema_arrow
        refuse_unknown(path, names, schema.names)
    kinds = {name: schema.field(name).type for name in names}
    texts = [name for name, kind in kinds.items() if is_text(kind) and not pa.types.is_dictionary(kind)]
    with _open_parquet(path, texts) as file:
        for batch in file.iter_batches(rows, columns=names, row_groups=None if groups is None else list(groups)):
            longest = max((_longest(batch.column(name)) for name in names if is_text(kinds[name])), default=0)
            size = max(1, PARQUET_BATCH_BYTES // max(1, longest))
            for start in range(0, batch.num_rows, size):
                piece = batch.slice(start, size)
                columns = [_plain(piece.column(name), kinds[name]) for name in names]
                yield pa.record_batch(columns, names=names)


def _longest(column: pa.DictionaryArray) -> int:
    """Bytes of the longest text."""
    return pc.max(pc.binary_length(column.dictionary.cast(pa.large_string()))).as_py() or 0


def _plain(column: pa.Array, kind: pa.DataType) -> pa.Array:
    return column if column.type == kind else column.dictionary_decode().cast(kind)  # pyright: ignore


def _first_values(path: File, name: str) -> Any:
    batch = next(_parquet_batches(path, [name], 1_000, None), None)
    return pa.nulls(0, pa.string()) if batch is None else batch.column(0)


def _open_csv(file: pa.NativeFile, form: Form, **conversion: Any) -> csv.CSVStreamingReader:
    generated = {} if form.header else {"autogenerate_column_names": True}
    return csv.open_csv(
        file,
        # One thread, so that errors know their row.
        read_options=csv.ReadOptions(use_threads=False, block_size=CSV_BLOCK_BYTES, **generated),
        parse_options=csv.ParseOptions(delimiter=form.delimiter, newlines_in_values=True),
        convert_options=csv.ConvertOptions(decimal_point=form.decimal or ".", **conversion),
    )


def _explained(path: File, error: Exception, form: Form) -> ValueError:
    message = str(error)
    if match := WRONG_VALUE.search(message):
        column, row, kind, value = match.groups()
        name = column_names(path, form)[int(column)]
        what = "numbers" if kind in ("double", "int64", "bool") else "dates or times"
        row = int(row) - form.header
        return ValueError(f"{path}: column {name!r} must hold {what}, but row {row} holds {value[:80]!r}")
    if match := WRONG_WIDTH.search(message):
        row, expected, found = map(int, match.groups())
        return ValueError(
            f"{path}: line {row} (blank ones not counted) has {found} columns, but the header has {expected}"
        )
    if "straddl" in message:
        return ValueError(f"{path} {LONG_LINE}")
    if "invalid UTF8" in message:
        return ValueError(f"{path} {NOT_UTF_8}")
    if "Empty CSV" in message or isinstance(error, StopIteration):
        return ValueError(f"{path} has no rows")
    return ValueError(f"{path}: {message}")


def _suggestion(name: str, names: list[str]) -> str:
    by_lower = {each.strip().lower(): each for each in names}
    close = [by_lower[each] for each in difflib.get_close_matches(name.strip().lower(), by_lower)]
    if close:
        return f"did you mean {' or '.join(map(repr, close))}?"
    more = ", ..." if len(names) > 20 else ""
    return f"its columns are {', '.join(map(repr, names[:20]))}{more}"
