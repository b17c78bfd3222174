"""What the data sets share: the arrays they become, where their files are, and how missing ones are fetched."""

import hashlib
import os
import tarfile
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

__all__ = ["Dataset", "data_folder", "download", "download_archive", "folder_sha256", "missing", "read_numbers"]

TIMEOUT_SECONDS = 30
CHUNK_BYTES = 2**18


@dataclass(frozen=True)
class Dataset:
    """Rows to learn from and rows to be tested on.

    Example:
        >>> rows = np.zeros((3, 2))
        >>> Dataset("example", rows, rows[:, 0], rows, rows[:, 0]).x_train.shape
        (3, 2)
    """

    name: str
    x_train: Any  # [N, D]: an array, or a source of rows where they are too many
    y_train: np.ndarray  # [N] or [N, P]
    x_test: np.ndarray
    y_test: np.ndarray
    input_names: tuple[str, ...] = ()  # of the columns of x, where they have names
    target_names: tuple[str, ...] = ()  # of the outputs, or of the classes 0, 1, ...
    variants: int = 1  # training rows r and r + N / variants are made from the same original


def data_folder(folder: str | Path | None = None) -> Path:
    """Where data sets are kept: `folder`, else the environment variable AUTOGP_DATA, else ~/.cache/autogp."""
    return Path(folder or os.environ.get("AUTOGP_DATA") or Path.home() / ".cache" / "autogp").expanduser()


# How to name the folder, at the end of every message about files that are not at hand.
FOLDER_NAMES = (
    "The folder of all data sets is named by folder=... (--data on the command line) or by the environment variable "
    "AUTOGP_DATA."
)


def missing(what: str, path: Path, source: str) -> FileNotFoundError:
    """The error for files that are not at hand: where they come from, and where they belong."""
    return FileNotFoundError(
        f"{what} is not at hand: there is no {path}. Have it fetched by download=True (--download on the command "
        f"line), or get it from {source} and put it there. {FOLDER_NAMES}"
    )


def read_numbers(path: Path, source: str, delimiter: str | None = None) -> np.ndarray:
    """A text file of numbers, [N, D]; an error says where to get it again."""
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing; get the whole collection anew from {source}")
    try:
        return np.loadtxt(path, delimiter=delimiter, ndmin=2)
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}. Get it anew from {source}") from None


def download(url: str, path: Path, sha256: str) -> None:
    """One file from its publisher; it appears as `path` only when it is complete and has the right sum."""
    with _fetched(url, path, f"its place is {path}") as file:
        _check(url, _file_sha256(file), sha256)
        file.replace(path)


def download_archive(url: str, path: Path, members: Sequence[str], sha256: str) -> None:
    """Files of a tar archive as the folder `path`, which appears only when it is complete and has the right sum.

    Arguments:
        url: Where the archive is.
        path: The folder to make; it must not exist, or be empty.
        members: Patterns such as "data/*.csv" of the files to keep, without the one folder that all of them are in.
        sha256: `folder_sha256` of the result. Some publishers pack on demand, and the archive's own sum changes.
    """
    if path.exists() and any(path.iterdir()):
        raise FileExistsError(f"{path} exists, but some of its files are missing. Move it away, then download again.")
    with _fetched(url, path, f"unpack it, and make its one folder {path}") as file:
        unpacked = file.parent / "unpacked"
        unpacked.mkdir()
        try:
            with tarfile.open(file) as archive:
                for member in archive:
                    inner = PurePosixPath(*PurePosixPath(member.name).parts[1:])
                    if member.isfile() and any(inner.match(pattern) for pattern in members):
                        archive.extract(member.replace(name=str(inner)), unpacked, filter="data")
        except (tarfile.TarError, EOFError) as error:
            raise ValueError(f"{url} is not a complete archive: {error}. Try again.") from error
        _check(url, folder_sha256(unpacked), sha256)
        unpacked.replace(path)


def folder_sha256(folder: Path) -> str:
    """One sum for all files of a folder: that of the lines `sha256sum` writes for them, sorted by path."""
    paths = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    lines = "".join(f"{_file_sha256(folder / path)}  {path}\n" for path in paths)
    return hashlib.sha256(lines.encode()).hexdigest()


@contextmanager
def _fetched(url: str, path: Path, by_hand: str) -> Iterator[Path]:
    """What is at the address, as a file in a scratch folder beside `path`: moving it there takes no copy."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".download-", dir=path.parent) as scratch:
        file = Path(scratch) / "content"
        try:
            _transfer(url, file, path.name)
        except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
            reason = getattr(error, "reason", error)
            raise ConnectionError(
                f"{url} could not be downloaded: {reason}. If you get it by other means, {by_hand}."
            ) from error
        yield file


def _transfer(url: str, file: Path, label: str) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    console = Console(stderr=True)
    with (
        urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as response,
        file.open("wb") as target,
        Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress,
    ):
        length = response.headers.get("Content-Length")
        bar = progress.add_task(f"downloading {label}", total=int(length) if length else None)
        while chunk := response.read(CHUNK_BYTES):
            target.write(chunk)
            progress.advance(bar, len(chunk))
        if length and target.tell() < int(length):
            raise ConnectionError(f"the connection broke after {target.tell()} of {length} bytes")


def _check(url: str, found: str, expected: str) -> None:
    if found != expected:
        raise ValueError(
            f"{url} is not what is expected: its SHA-256 is {found}, not {expected}. Try again; if it stays so, the "
            "publisher has changed it."
        )


def _file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
