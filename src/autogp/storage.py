"""One file of tensors and a JSON description, in safetensors layout: written whole or not at all, checked on read."""

__all__ = ["StorageError", "read_tensors", "replace_file", "write_tensors"]

import errno
import hashlib
import json
import math
import os
import secrets
from collections.abc import Iterable
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

_FORMAT = 1
# A few bytes of hostile JSON become a hundred bytes of Python objects: this bounds them to about 120 MB.
_HEADER_LIMIT = 4 << 20
_RANK_LIMIT = 64  # numpy's own
_DTYPES = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
_CODES = {dtype: code for code, dtype in _DTYPES.items()}

# What a file holds, by name and in file order: data type and shape.
_Layout = dict[str, tuple[np.dtype, tuple[int, ...]]]


class StorageError(ValueError):
    """A file that cannot be trusted, or content that a file cannot hold.

    `damaged` is true where the content of the file is broken, so that an older copy may stand in for it; it is false
    where the file is missing, unreadable, of another kind or from a newer autogp.
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
        text = _encode(description)
        # Tuples, integer keys and the like would silently come back as something else.
        if json.loads(text) != description or not isinstance(description.get("kind"), str):
            raise ValueError("the description must be plain JSON (string keys, lists) with a string under 'kind'")
        arrays = {name: _array(name, tensor) for name, tensor in tensors.items()}
        layout = _in_file_order({name: (array.dtype, array.shape) for name, array in arrays.items()})
        checksum = hashlib.sha256(_header(layout, text, checksum=""))
        for name in layout:
            checksum.update(_bytes(arrays[name]))
        header = _header(layout, text, checksum.hexdigest())
        if len(header) > _HEADER_LIMIT:
            raise ValueError(f"names and description take {len(header)} bytes: put long series into tensors")
    except (TypeError, ValueError, RecursionError) as error:
        raise StorageError(f"{path} cannot be written: {error}") from error
    replace_file(path, [len(header).to_bytes(8, "little"), header, *(_bytes(arrays[name]) for name in layout)])


def read_tensors(path: str | Path, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `write_tensors` wrote under this kind; refuse anything else with `StorageError`.

    Nothing in the file is believed before it is checked, and no memory is taken beyond the size of the file and of
    its parsed header.

    >>> read_tensors("/dev/null", kind="model")
    Traceback (most recent call last):
    autogp.storage.StorageError: /dev/null is not a file: give the path of a file written by autogp
    """
    path = Path(path)
    try:
        if not path.is_file():  # looked at before it is opened, since opening a pipe would wait for its writer
            problem = "is not a file" if path.exists() else "does not exist"
            raise StorageError(f"{path} {problem}: give the path of a file written by autogp")
        with path.open("rb") as file:
            tensors, description = _read(path, file)
    except StorageError:
        raise
    except (ValueError, RecursionError) as error:
        text = str(error) if type(error) is ValueError else "its header is not valid JSON"
        raise StorageError(f"{path} is damaged: {text}; restore it from a copy or write it again", True) from error
    except (MemoryError, RuntimeError) as error:  # the second is how torch says it
        raise StorageError(f"{path} does not fit into memory: read it on a larger machine") from error
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}; check its permissions and its disk") from error
    if description["kind"] != kind:
        raise StorageError(f"{path} holds a {description['kind'][:80]!r}, not a {kind!r}: give the path of a {kind}")
    return tensors, description


def _read(path: Path, file: BufferedReader) -> tuple[dict[str, Tensor], dict[str, Any]]:
    length = os.fstat(file.fileno()).st_size
    header_length = int.from_bytes(file.read(8), "little")
    if length < 8 or header_length > length - 8:
        raise ValueError(f"it was not written by autogp, or is cut off ({length} bytes, fewer than its header says)")
    if header_length > _HEADER_LIMIT:
        raise ValueError(f"its header of {header_length} bytes is beyond the limit of {_HEADER_LIMIT}")
    header = file.read(header_length)
    layout, text, checksum = _parse(path, header)
    # The header is rebuilt from names, data types and shapes alone, so its offsets are never believed; keys given
    # twice, tensors that overlap and anything else that the writer would not write shows as a difference.
    if header != _header(layout, text, checksum):
        raise ValueError("its header is not laid out as autogp writes it")
    expected = 8 + header_length + sum(_byte_count(dtype, shape) for dtype, shape in layout.values())
    if length != expected:
        raise ValueError(f"it has {length} bytes where its header calls for {expected}")
    description = json.loads(text)
    if not isinstance(description, dict) or not isinstance(description.get("kind"), str):
        raise ValueError("its description names no kind")
    if _encode(description) != text:
        raise ValueError("its description is not laid out as autogp writes it")

    tensors = {}
    found = hashlib.sha256(_header(layout, text, checksum=""))
    for name, (dtype, shape) in layout.items():
        # Not numpy's memory: products of matrices keep their bits only where the alignment is the same.
        tensor = torch.empty(shape, dtype=getattr(torch, dtype.name))
        array = tensor.numpy()
        content = _bytes(array)
        if file.readinto(content) != content.nbytes:
            raise ValueError("it became shorter while it was read")
        found.update(content)
        if dtype == np.bool_ and array.view(np.uint8).max(initial=0) > 1:
            raise ValueError(f"the boolean tensor {name[:80]!r} holds a byte that is neither 0 nor 1")
        tensors[name] = tensor
    if found.hexdigest() != checksum:
        raise ValueError("its content does not match its checksum")
    return tensors, description


def _parse(path: Path, header: bytes) -> tuple[_Layout, str, str]:
    """Layout, description and checksum that a header states."""
    table = json.loads(header.decode("ascii"))
    match table:
        case {"__metadata__": {"format": str(number)}}:
            if number.isdecimal() and len(number) < 10 and int(number) > _FORMAT:
                raise StorageError(f"{path} was written by a newer autogp (format {number}): upgrade autogp to read it")
            if number != str(_FORMAT):
                raise ValueError(f"its format {number[:80]!r} is unknown")
        case _:
            raise ValueError("it names no format, so autogp did not write it")
    match table.pop("__metadata__"):
        case {"description": str(text), "sha256": str(checksum)}:
            pass
        case _:
            raise ValueError("it lacks a description or a checksum")
    layout: _Layout = {}
    for name, entry in table.items():
        match entry:
            case {"dtype": str(code), "shape": [*shape]} if code in _DTYPES and all(
                type(size) is int for size in shape
            ):
                layout[name] = (_DTYPES[code], tuple(shape))
                _byte_count(*layout[name])
            case _:
                raise ValueError(f"the tensor {name[:80]!r} has an unknown data type or shape")
    return _in_file_order(layout), text, checksum


def _header(layout: _Layout, description: str, checksum: str) -> bytes:
    """The only header for this content; padded so that the data, largest items first, are all aligned."""
    metadata = {"description": description, "format": str(_FORMAT), "sha256": checksum}
    table: dict[str, Any] = {"__metadata__": metadata}
    start = 0
    for name, (dtype, shape) in layout.items():
        stop = start + _byte_count(dtype, shape)
        table[name] = {"dtype": _CODES[dtype], "shape": shape, "data_offsets": [start, stop]}
        start = stop
    header = _encode(table).encode("ascii")
    return header + b" " * (-len(header) % 8)


def _encode(content: Any) -> str:
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _in_file_order(layout: _Layout) -> _Layout:
    return dict(sorted(layout.items(), key=lambda item: (-item[1][0].itemsize, item[0])))


def _byte_count(dtype: np.dtype, shape: tuple[int, ...]) -> int:
    if len(shape) > _RANK_LIMIT or any(not 0 <= size < 2**63 for size in shape):
        raise ValueError("a tensor has an impossible shape")
    # Strides of an empty tensor must fit into 64 bits as well.
    if math.prod(max(size, 1) for size in shape) * dtype.itemsize >= 2**63:
        raise ValueError("a tensor is larger than any memory")
    return math.prod(shape) * dtype.itemsize


def _array(name: str, tensor: Tensor) -> np.ndarray:
    """The tensor as an array in main memory: itself where it is there already."""
    if not isinstance(name, str) or name == "__metadata__":
        raise ValueError(f"{name!r} is no name for a tensor")
    allowed = [f"torch.{dtype.name}" for dtype in _CODES]
    if str(tensor.dtype) not in allowed:
        raise ValueError(f"the tensor {name!r} is {tensor.dtype}; allowed are {', '.join(allowed)}")
    return np.require(tensor.numpy(force=True), requirements="C")


def _bytes(array: np.ndarray) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def replace_file(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    """Put the parts into a file at `path`, which holds either all of its old content or all of its new one."""
    if path.exists() and not path.is_file():  # a device or a pipe must not give way to a file
        raise OSError(errno.EINVAL, "is not a file that could be replaced", str(path))
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
    file = temporary.open("xb")
    try:
        with file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno is not None and error.filename is None:  # a full disk has none
            error.filename = str(path)
        raise
    if os.name == "posix":  # elsewhere folders cannot be opened
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
