"""Tables of results, written batch by batch: the whole file appears, or none."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute
import typer
from pyarrow import csv, parquet

from autogp.printing import escaped
from autogp.storage import replacing

__all__ = ["TableWriter", "ask_before_replacing", "check_writable", "harmless", "table_writer"]

pc: Any = pyarrow.compute  # its functions exist at run time only
TableWriter = csv.CSVWriter | parquet.ParquetWriter


def check_writable(out: Path, data: str, model: Path | None = None) -> None:
    """Raises before any work is done where the result could not be written, or would replace what it is made from."""
    if not out.parent.is_dir():
        raise ValueError(f"there is no folder {out.parent} to write {out.name} into")
    if out.is_dir():
        raise ValueError(f"{out} is a folder: name a file")
    if out.exists() and not out.is_file():
        raise ValueError(f"{out} is not a file that could be replaced: name another")
    for what, path in (("data", Path(data)), ("model", model)):
        if path is not None and out.exists() and path.exists() and out.samefile(path):
            raise ValueError(f"{out} is the {what} itself: write to another file")
    if not os.access(out.parent, os.W_OK):
        raise ValueError(f"the folder {out.parent} cannot be written into")


def ask_before_replacing(out: Path, force: bool) -> None:
    """On a terminal the user is asked whether a file may be replaced; a script has said so by its name."""
    if out.exists() and not force and sys.stdin.isatty():
        typer.confirm(f"{escaped(str(out))} is there already: replace it?", abort=True, err=True)


def harmless(table: pa.Table | pa.RecordBatch) -> pa.Table | pa.RecordBatch:
    """The table with ' before text that starts with = + - @, which a spreadsheet would run as a formula.

    >>> harmless(pa.table({"class": ["=1+1", "owl"], "mean": [-1, 2]})).to_pydict()
    {'class': ["'=1+1", 'owl'], 'mean': [-1, 2]}
    """
    for place, field in enumerate(table.schema):
        if pa.types.is_string(field.type) or pa.types.is_large_string(field.type):
            column = pc.replace_substring_regex(table.column(place), r"^([=+\-@\t\r])", r"'\1")
            table = table.set_column(place, field.name, column)
    return table


@contextmanager
def table_writer(out: Path, schema: pa.Schema) -> Iterator[TableWriter]:
    """A writer of CSV or Parquet, by the end of the name; the file gets its name when the block ends well."""
    kind = csv.CSVWriter if out.suffix == ".csv" else parquet.ParquetWriter
    with replacing(out) as temporary, kind(temporary, schema) as writer:
        yield writer
