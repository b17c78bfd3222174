"""Tables of results, written batch by batch: the whole file appears, or none."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
from pyarrow import csv, parquet

from autogp.storage import replacing

__all__ = ["TableWriter", "check_writable", "table_writer"]

TableWriter = csv.CSVWriter | parquet.ParquetWriter


def check_writable(out: Path, data: Path, model: Path | None = None) -> None:
    """Raises before any work is done where the result could not be written, or would replace what it is made from."""
    if not out.parent.is_dir():
        raise ValueError(f"there is no folder {out.parent} to write {out.name} into")
    if out.is_dir():
        raise ValueError(f"{out} is a folder: name a file")
    if out.exists() and not out.is_file():
        raise ValueError(f"{out} is not a file that could be replaced: name another")
    for what, path in (("data", data), ("model", model)):
        if path is not None and out.exists() and path.exists() and out.samefile(path):
            raise ValueError(f"{out} is the {what} itself: write to another file")
    if not os.access(out.parent, os.W_OK):
        raise ValueError(f"the folder {out.parent} cannot be written into")


@contextmanager
def table_writer(out: Path, schema: pa.Schema) -> Iterator[TableWriter]:
    """A writer of CSV or Parquet, by the end of the name; the file gets its name when the block ends well."""
    kind = csv.CSVWriter if out.suffix == ".csv" else parquet.ParquetWriter
    with replacing(out) as temporary, kind(temporary, schema) as writer:
        yield writer
