"""Sources from files: numpy arrays, the idx files of MNIST, and tables (CSV, Parquet)."""

import gzip
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal
from zipfile import BadZipFile

import numpy as np
import pyarrow as pa

from autogp.data.addresses import TABLE_SUFFIXES, is_address, table_files
from autogp.data.encoding import TableEncoder
from autogp.data.readers import Form
from autogp.data.sources import ArraySource
from autogp.data.summary import check_finite
from autogp.data.tables import Among, encoded_batches, open_table
from autogp.data.texts import Unseen
from autogp.storage import open_regular

__all__ = ["is_table", "open_source", "read_rows"]

# The names under which an .npz archive may hold inputs and targets.
INPUT_NAMES = ("x", "X", "data")
TARGET_NAMES = ("y", "Y", "target", "labels")

# The third byte of an idx file; numbers are big-endian.
IDX_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
READ_NUMBERS = 2**22  # in a piece of a file: many rows at a time cost a model less
IDX_NAME = re.compile(r"[.-]idx\d?(-ubyte)?(\.gz)?$")


def open_source(
    path: str | Path,
    target: str | Path | Sequence[str] | None = None,
    *,
    columns: Sequence[str] | None = None,
    ignore: Sequence[str] = (),
    classes: Sequence[str] | None = None,
    encoder: TableEncoder | None = None,
    dtype: Literal["float32", "float64"] = "float32",
    cache: str | Path | None = None,
    categorical: Sequence[str] = (),
    decimal: str | None = None,
    header: bool = True,
    drop_missing_targets: bool = False,
    among: Among | None = None,
) -> ArraySource:
    """The rows of a file, by the end of its name; large files stay on disk.

    - `.npy`: inputs, memory-mapped; `target` is the path of another `.npy`.
    - `.npz`: inputs are the array named x, X or data; targets the one that `target` names, or y, Y, target or labels.
    - `.idx`, `-idx3-ubyte`, also followed by `.gz`: images, memory-mapped unless compressed; `target` is the path of
      the labels, by default the file whose name has "labels" for "images".
    - `.csv`, `.csv.gz`, `.tsv`, `.parquet`: `target` is one column or a list of columns; inputs are the others but
      those in `ignore`, or those in `columns`.
    - A folder: all such tables below it, in the order of their names, with the columns of the first; either Parquet or
      CSV.

    A table or a folder may also be an address that pyarrow can open, such as `s3://bucket/rows.parquet`.

    Without targets y is [N, 0], which serves prediction.

    A table is read in pieces into a memory-mapped copy: uint8 where all inputs are whole numbers from 0 to 255, else
    `dtype` (float64 also where float32 would change whole numbers, or round by more than 1e-5 of a column's range). Its
    first line must hold the names. Text among the inputs becomes numbers or dates where it holds such, else codes of
    categories, and a missing value is NaN:
    `source.encoder`, a `TableEncoder`, knows the categories, and `autogp.features.Columns` makes of them what a kernel
    can use. `source.notes` tells what was assumed. A target of text becomes integers that count `source.classes`, the
    labels in sorted order; others stay numbers. A missing target is an error, but among several targets it is NaN.

    Arguments:
        path: The file, folder or address.
        target: Where the targets are, as above.
        columns: Names of a table's inputs, in order.
        ignore: Names of a table's columns that are no inputs.
        classes: Class labels of a table's target, in order, to number them as another source does.
        encoder: Of another source, to encode this table's inputs as it did; in place of `columns`.
        dtype: Of a table's inputs.
        cache: Folder for the copy of a table, where it is found when the same file is opened again. By default the
            copy is temporary and goes with the source.
        categorical: Columns of a table that are categories, whatever they look like.
        decimal: The decimal mark of a table's numbers, "." or ","; by default each column tells.
        header: Whether the first line of CSV holds the names; else they are f0, f1, ...
        drop_missing_targets: Whether rows of a table without a target are left out; a note counts them.
        among: Processes that open a table together, `autogp.training.distributed.processes()`: those that see the same
            `cache`, or the same folder of temporary files, make one copy, and each reads its share of the row groups
            (of CSV: of the files). All of them must make this call.

    Example:
        >>> import tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> path = Path(folder.name, "cars.csv")
        >>> _ = path.write_text("weight,doors,kind\\n1.5,4,saloon\\n2.5,2,coupe\\n")
        >>> source = open_source(path, target="kind")
        >>> len(source), source.columns, source.classes, source.y.tolist()
        (2, ['weight', 'doors'], ['coupe', 'saloon'], [1, 0])
        >>> folder.cleanup()
    """
    if is_table(path):
        target = str(target) if isinstance(target, Path) else target
        if decimal not in (None, ".", ","):
            raise ValueError(f"decimal must be '.' or ',', got {decimal!r}")
        form = Form(tuple(categorical), decimal, header)
        files = table_files(path) if among is None else among.gather(lambda: table_files(path))[among.rank]
        return open_table(
            files,
            target,
            columns,
            ignore,
            classes,
            encoder,
            dtype,
            cache,
            form,
            drop_missing_targets,
            among,
        )
    path = _existing(path)
    if columns or ignore or classes or encoder is not None or not isinstance(target, str | Path | None):
        raise ValueError(
            f"columns, ignore, classes, encoder and several targets are for tables {TABLE_SUFFIXES}, not {path}"
        )
    if path.suffix == ".npy":
        return _of_arrays(_read_npy(path), None if target is None else _read_npy(_existing(target)))
    if path.suffix == ".npz":
        return _open_npz(path, target)
    if IDX_NAME.search(path.name):
        labels = _labels_beside(path) if target is None else _existing(target)
        return ArraySource(_read_idx(path), None if labels is None else _read_idx(labels))
    raise ValueError(f"{path} should end in {', '.join(TABLE_SUFFIXES)}, .npy, .npz, .idx(.gz) or -ubyte(.gz)")


def is_table(path: str | Path) -> bool:
    """Whether this has named columns: CSV, Parquet, a folder of them, or an address."""
    return is_address(path) or Path(path).name.endswith(TABLE_SUFFIXES) or Path(path).is_dir()


def read_rows(
    path: str | Path,
    encoder: TableEncoder | None = None,
    unseen: Unseen | None = None,
    carried: Sequence[str] = (),
    header: bool = True,
) -> Iterator[tuple[np.ndarray, pa.Table | None]]:
    """All inputs of a file from the first row to the last, some megabytes [B, C] at a time, beside columns `carried`
    of a table as they are; nothing is copied to disk.

    Arguments:
        path: A file as for `open_source`.
        encoder: How a table becomes numbers.
        unseen: Counts what the encoder did not see in training.
        carried: Further columns of a table.
        header: Whether the first line of CSV holds the names.

    Example:
        >>> import tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> path = Path(folder.name, "ports.csv")
        >>> _ = path.write_text("port\\nCork\\nBari\\n")
        >>> [x.tolist() for x, _ in read_rows(path, open_source(path).encoder)]
        [[[1.0], [0.0]]]
        >>> folder.cleanup()
    """
    if is_table(path):
        files = table_files(path)
        if encoder is None:
            raise ValueError(f"{path} has named columns: an encoder must say how they become numbers")
        pieces = encoded_batches(files, encoder, Unseen() if unseen is None else unseen, carried, header)
    elif carried:
        raise ValueError(f"{path} has no named columns: {carried[0]!r} is none of them")
    else:
        source = open_source(path)
        check_finite(source, allow_missing_inputs=True)
        step = max(1, READ_NUMBERS // source.rows(np.zeros(1, np.int64))[0].shape[1])
        starts = range(0, len(source), step)
        pieces = ((source.rows(np.arange(start, min(start + step, len(source))))[0], None) for start in starts)
    pending: list[tuple[np.ndarray, pa.RecordBatch | None]] = []
    for piece in pieces:
        pending.append(piece)
        if sum(x.size for x, _ in pending) >= READ_NUMBERS:
            yield _joined(pending)
            pending = []
    if pending:
        yield _joined(pending)


def _joined(pieces: list[tuple[np.ndarray, pa.RecordBatch | None]]) -> tuple[np.ndarray, pa.Table | None]:
    batches = [batch for _, batch in pieces if batch is not None]
    return np.concatenate([x for x, _ in pieces]), pa.Table.from_batches(batches) if batches else None


def _existing(path: str | Path) -> Path:
    path = Path(path)
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is not a file: name a file of data")
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    if path.stat().st_size == 0:
        raise ValueError(f"{path} is empty")
    return path


@contextmanager
def _loading(path: Path) -> Iterator[None]:
    """NumPy's errors about the file, which name neither it nor what to do, in words."""
    try:
        yield
    except (ValueError, EOFError, BadZipFile, KeyError, zlib.error) as error:
        if "Object arrays" in str(error) or "Python objects" in str(error):
            raise ValueError(f"{path} holds Python objects: save arrays of numbers") from error
        raise ValueError(f"{path} is not a {path.suffix[1:]} file of NumPy, or a damaged one") from error


@contextmanager
def _decompressing(path: Path) -> Iterator[None]:
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path} is damaged: {error}") from error


def _read_npy(path: Path) -> np.ndarray:
    with _loading(path):
        return np.lib.format.open_memmap(path, mode="r")


def _open_npz(path: Path, target: str | Path | None) -> ArraySource:
    with open_regular(path) as file:
        with _loading(path):
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise ValueError("a lone array")
        names = archive.files
        x_name = next((name for name in INPUT_NAMES if name in names), None)
        y_name = next((name for name in ([str(target)] if target else TARGET_NAMES) if name in names), None)
        # A lone array of inputs is data to predict; a target under another name is more likely than none.
        if x_name is None or (y_name is None and (target or len(names) > 1)):
            wanted = repr(target) if target else " or ".join(TARGET_NAMES)
            raise ValueError(
                f"{path} should hold inputs named {' or '.join(INPUT_NAMES)} and targets named {wanted}; "
                f"it holds {', '.join(names) or 'nothing'}"
            )
        with _loading(path):
            x, y = archive[x_name], None if y_name is None else archive[y_name]
        if y is not None and len(x) != len(y):
            raise ValueError(f"{path}: {x_name} has {len(x)} rows, but {y_name} has {len(y)}")
        return _of_arrays(x, y)


def _of_arrays(x: np.ndarray, y: np.ndarray | None) -> ArraySource:
    """A single target may be a column vector."""
    return ArraySource(x, y[:, 0] if y is not None and y.ndim == 2 and y.shape[1] == 1 else y)


def _labels_beside(path: Path) -> Path | None:
    labels = path.with_name(path.name.replace("images", "labels").replace("idx3", "idx1"))
    return labels if labels != path and labels.is_file() else None


def _read_idx(path: Path) -> np.ndarray:
    """An idx file: two zero bytes, the type, the number of axes, each axis as uint32, then the numbers."""
    compressed = path.suffix == ".gz"
    with _decompressing(path), open_regular(path) as raw, gzip.open(raw) if compressed else raw as file:
        magic = file.read(4)
        if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in IDX_TYPES or magic[3] == 0:
            raise ValueError(f"{path} is not an idx file: it starts with {magic.hex(' ')}")
        header = file.read(4 * magic[3])
        if len(header) < 4 * magic[3]:
            raise ValueError(f"{path} ends within its header")
        dtype = np.dtype(IDX_TYPES[magic[2]])
        shape = tuple(np.frombuffer(header, ">u4").tolist())
        expected = dtype.itemsize * int(np.prod(shape))
        offset = 4 + len(header)
        content = file.read() if compressed else b""
        found = len(content) if compressed else os.fstat(raw.fileno()).st_size - offset
        if found != expected:
            raise ValueError(f"{path} should hold {expected} bytes after its header, for {shape}, but holds {found}")
        if compressed or expected == 0:
            return np.frombuffer(content, dtype).reshape(shape)
        return np.memmap(raw, dtype, mode="r", offset=offset, shape=shape)
