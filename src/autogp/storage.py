"""Tensors and a JSON description in one safetensors file, checked on reading; files written whole or not at all."""

__all__ = ["StorageError", "open_regular", "read_tensors", "replacing", "write_tensors"]

import errno
import hashlib
import json
import math
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

_FORMAT = 2
_KEY = "autogp"  # the only entry of the metadata, because the library writes several entries in random order
# A few bytes of hostile JSON become a hundred bytes of Python objects: this bounds them to about 120 MB.
_HEADER_LIMIT = 4 << 20
_RANK_LIMIT = 64  # numpy's own
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "I64": torch.int64,
    "I32": torch.int32,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


class StorageError(ValueError):
    """A file that cannot be trusted, or content that a file cannot hold.

    `damaged` is true where the content of the file is broken, so that an older copy may stand in for it; it is false
    where the file is missing, unreadable, of another kind or from another version of autogp.
    """

    def __init__(self, message: str, damaged: bool = False):
        super().__init__(message)
        self.damaged = damaged


def write_tensors(path: str | Path, tensors: dict[str, Tensor], description: dict[str, Any]) -> None:
    """Write tensors and their description to one file, atomically; equal content gives equal bytes.

    The description is plain JSON (string keys, lists, finite numbers) with a string under "kind". What the operating
    system refuses (a full disk, no permission) comes out as OSError, and the file that was there before stays.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_tensors(f"{folder}/model.autogp", {"mean": torch.zeros(2)}, {"kind": "model", "inducing": 2})
    ...     read_tensors(f"{folder}/model.autogp", kind="model")
    ({'mean': tensor([0., 0.])}, {'inducing': 2, 'kind': 'model'})
    """
    path = Path(path)
    try:
        # Tuples, integer keys and the like would silently come back as something else.
        if json.loads(_encode(description)) != description or not isinstance(description.get("kind"), str):
            raise ValueError("the description must be plain JSON (string keys, lists) with a string under 'kind'")
        arrays = {name: _array(name, tensor) for name, tensor in tensors.items()}
        about = {"format": _FORMAT, "sha256": _checksum(description, arrays), "description": description}
        content = safetensors.numpy.save(arrays, {_KEY: _encode(about)})
        if (length := int.from_bytes(content[:8], "little")) > _HEADER_LIMIT:
            raise ValueError(f"names and description take {length} bytes: put long series into tensors")
    except (TypeError, ValueError, RecursionError, SafetensorError) as error:
        raise StorageError(f"{path} cannot be written: {error}") from error
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def read_tensors(path: str | Path, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `write_tensors` wrote under this kind; refuse anything else with `StorageError`.

    Nothing in the file is believed before it is checked, and no memory is taken beyond the size of the file and of
    its parsed header.

    >>> read_tensors("/dev/null", kind="model")
    Traceback (most recent call last):
    autogp.storage.StorageError: /dev/null cannot be read: not a regular file
    """
    path = Path(path)
    try:
        with open_regular(path) as file:
            tensors, description = _read(path, file)
    except StorageError:
        raise
    except FileNotFoundError as error:
        raise StorageError(f"{path} does not exist: give the path of a file written by autogp") from error
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError, SafetensorError) as error:
        reason = "its description is not valid JSON" if isinstance(error, RecursionError) else str(error)[:200]
        raise StorageError(f"{path} is damaged: {reason}; restore it from a copy or write it again", True) from error
    except (MemoryError, RuntimeError) as error:  # the second is how torch says it
        raise StorageError(f"{path} does not fit into memory: read it on a larger machine") from error
    if description["kind"] != kind:
        raise StorageError(f"{path} holds a {description['kind'][:80]!r}, not a {kind!r}: give the path of a {kind}")
    return tensors, description


def _read(path: Path, file: BufferedReader) -> tuple[dict[str, Tensor], dict[str, Any]]:
    size, length = os.fstat(file.fileno()).st_size, int.from_bytes(file.read(8), "little")
    if length > min(size - 8, _HEADER_LIMIT):  # before the library parses it
        raise ValueError(f"it was not written by autogp, or is cut off ({size} bytes)")
    # By its descriptor: the path may be that of another file by now.
    with safe_open(f"/dev/fd/{file.fileno()}" if os.name == "posix" else path, "numpy") as stored:
        description, checksum = _parse(path, stored.metadata() or {})
        entries = {name: stored.get_slice(name) for name in stored.offset_keys()}
    tensors = {}
    file.seek(8 + length)
    for name, entry in entries.items():  # in the order of the data, which have no gaps: the library checks that
        dtype, shape = _DTYPES.get(entry.get_dtype()), entry.get_shape()
        # The strides of an empty tensor must fit into 64 bits as well.
        if dtype is None or len(shape) > _RANK_LIMIT or 8 * math.prod(max(1, side) for side in shape) >= 2**63:
            raise ValueError(f"the tensor {name[:80]!r} has an unknown data type or shape")
        # Not numpy's memory: products of matrices keep their bits only where the alignment is the same.
        tensors[name] = tensor = torch.empty(shape, dtype=dtype)
        content = _bytes(tensor.numpy())
        if file.readinto(content.data) != content.nbytes:
            raise ValueError("it became shorter while it was read")
        if dtype == torch.bool and content.max(initial=0) > 1:
            raise ValueError(f"the boolean tensor {name[:80]!r} holds a byte that is neither 0 nor 1")
    if _checksum(description, {name: tensor.numpy() for name, tensor in tensors.items()}) != checksum:
        raise ValueError("its content does not match its checksum")
    return tensors, description


def _parse(path: Path, metadata: dict[str, str]) -> tuple[dict[str, Any], str]:
    """Description and checksum."""
    if metadata.get("format") == "1" and "sha256" in metadata:
        raise StorageError(f"{path} was written by an earlier autogp in format 1; fit the model again and save it")
    text = metadata.get(_KEY, "null")
    about = json.loads(text)
    match about:
        case {"format": int(number)} if number > _FORMAT:
            raise StorageError(f"{path} was written by a newer autogp (format {number}): upgrade autogp to read it")
        # NaN, keys given twice and anything else that the writer would not write show as a difference.
        case {"format": 2, "sha256": str(checksum), "description": {"kind": str()}} if _encode(about) == text:
            return about["description"], checksum
    raise ValueError("autogp did not write its description")


def _encode(content: Any) -> str:
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _checksum(description: dict[str, Any], arrays: dict[str, np.ndarray]) -> str:
    found = hashlib.sha256(_encode(description).encode())
    for name, array in sorted(arrays.items()):
        found.update(_encode([name, array.dtype.name, array.shape]).encode())
        found.update(_bytes(array).data)
    return found.hexdigest()


def _array(name: str, tensor: Tensor) -> np.ndarray:
    """The tensor as an array in main memory: itself where it is there already."""
    if not isinstance(name, str) or name == "__metadata__":
        raise ValueError(f"{name!r} is no name for a tensor")
    if tensor.dtype not in _DTYPES.values():
        raise ValueError(f"the tensor {name!r} is {tensor.dtype}; allowed are {', '.join(map(str, _DTYPES.values()))}")
    return np.require(tensor.numpy(force=True), requirements="C")


def _bytes(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1).view(np.uint8)


def open_regular(path: str | Path) -> BufferedReader:
    """The file, opened for reading; a pipe or a device is an OSError at once, where it could make the reader wait."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """A temporary file beside `path` to write to, which takes its name and place when the block ends without an error.

    `path` holds either all of its old content or all of its new one, on the disk too. What the operating system
    refuses comes out as an OSError that names `path`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replacing(f"{folder}/notes.txt") as temporary:
    ...         _ = temporary.write_text("all of it")
    ...     Path(folder, "notes.txt").read_text()
    'all of it'
    """
    path = Path(path)
    if path.exists() and not path.is_file():  # a device or a pipe must not give way to a file
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        temporary.touch(exist_ok=False)
        yield temporary
        _sync(temporary, os.O_RDWR)
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        # A full disk names no file; another file than the temporary one is the block's own affair.
        if isinstance(error, OSError) and error.errno is not None and error.filename in (None, str(temporary)):
            raise OSError(error.errno, os.strerror(error.errno), str(path)) from error
        raise
    if os.name == "posix":  # elsewhere folders cannot be opened
        _sync(path.parent, os.O_RDONLY)


def _sync(path: Path, flags: int) -> None:
    """Wait until the disk has it."""
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
