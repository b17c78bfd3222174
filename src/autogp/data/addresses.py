"""Files by path or by address, such as s3://bucket/rows.parquet: whatever pyarrow can open."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import fs

__all__ = ["TABLE_SUFFIXES", "File", "is_address", "table_files"]

TABLE_SUFFIXES = (".csv", ".csv.gz", ".tsv", ".parquet")


@dataclass(frozen=True)
class File:
    """A file in a file system, called by what the user wrote.

    Example:
        >>> str(File("s3://trips/may.parquet", None, "trips/may.parquet")), File("a.csv.gz", None, "a.csv.gz").parquet
        ('s3://trips/may.parquet', False)
    """

    name: str
    system: Any  # pyarrow's
    path: str
    size: int = 0
    changed: int = 0  # when, in nanoseconds

    def __str__(self) -> str:
        return self.name

    @property
    def parquet(self) -> bool:
        """Whether it is Parquet, else CSV."""
        return self.path.endswith(".parquet")

    def open(self) -> pa.NativeFile:
        """Its bytes, in any order."""
        return self.system.open_input_file(self.path)

    def stream(self) -> pa.NativeFile:
        """Its bytes from the first to the last, unpacked where the name ends in .gz."""
        return self.system.open_input_stream(self.path, compression="detect")


def is_address(path: str | Path) -> bool:
    """Whether this is an address, not a path.

    >>> is_address("s3://trips/may.parquet"), is_address("may.parquet")
    (True, False)
    """
    return "://" in str(path)


def table_files(path: str | Path) -> list[File]:
    """The file, or all tables below the folder in the order of their names."""
    name = str(path)
    try:
        system, place = fs.FileSystem.from_uri(name) if is_address(path) else (fs.LocalFileSystem(), name)
        if is_address(path):  # without keys and options, which are not for messages
            name = f"{name.split('://')[0]}://{place}"
        found = system.get_file_info(place)
        if found.type == fs.FileType.Directory:
            return _below(name, system, place)
    except (OSError, pa.ArrowException) as error:
        raise ValueError(f"{name} cannot be opened: {error}") from None
    if found.type == fs.FileType.NotFound:
        raise FileNotFoundError(f"there is no file {name}")
    if found.type != fs.FileType.File:
        raise ValueError(f"{name} is not a file: name a file of data")
    if found.size == 0:
        raise ValueError(f"{name} is empty")
    return [File(name, system, place, found.size, found.mtime_ns)]


def _below(name: str, system: Any, folder: str) -> list[File]:
    """Files whose names start with . or _ are other programs' notes."""
    files = [
        File(name.rstrip("/") + each.path.removeprefix(folder.rstrip("/")), system, each.path, each.size, each.mtime_ns)
        for each in system.get_file_info(fs.FileSelector(folder, recursive=True))
        if each.type == fs.FileType.File and each.size and each.base_name.endswith(TABLE_SUFFIXES)
        if not each.base_name.startswith((".", "_"))
    ]
    if not files:
        raise ValueError(f"{name} is a folder without {', '.join(TABLE_SUFFIXES)} files: name a file of data")
    if len({file.parquet for file in files}) > 1:
        raise ValueError(f"{name} holds both Parquet and CSV files: name a folder with one kind")
    return sorted(files, key=lambda file: file.path)
