"""A stored file comes back exactly as it was written, or is refused."""

import errno
import hashlib
import json
import os
import resource
import tracemalloc
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from autogp.storage import StorageError, read_tensors, replacing, write_tensors

DESCRIPTION = {"kind": "model"}
ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
DATA = bytes(8)


def encode(content: Any) -> str:
    return json.dumps(content, separators=(",", ":"))


def canonical(content: Any) -> str:
    return json.dumps(content, sort_keys=True, separators=(",", ":"))


def pack(header: str | bytes, data: bytes = b"", length: int | None = None) -> bytes:
    header = header.encode() if isinstance(header, str) else header
    header += b" " * (-len(header) % 8)
    return (len(header) if length is None else length).to_bytes(8, "little") + header + data


def checksum(description: str, name: str = "a", dtype: str = "float32", shape: Any = (2,), data: bytes = DATA) -> str:
    return hashlib.sha256(description.encode() + canonical([name, dtype, shape]).encode() + data).hexdigest()


def forge(entries: Any = None, data: bytes = DATA, metadata: Any = None, **changes: Any) -> bytes:
    """A file made without the code under test, its checksum right unless the tensors are others."""
    entries = {"a": ENTRY} if entries is None else entries
    if metadata is None:
        about = {"description": DESCRIPTION, "format": 2, "sha256": checksum(canonical(DESCRIPTION)), **changes}
        metadata = {"autogp": canonical({key: value for key, value in about.items() if value is not None})}
    return pack(encode({"__metadata__": metadata, **entries}), data)


def described(text: str) -> bytes:
    """A description that need not be JSON, with a right checksum."""
    return forge(metadata={"autogp": f'{{"description":{text},"format":2,"sha256":"{checksum(text)}"}}'})


def entry(**changes: Any) -> bytes:
    return forge({"a": ENTRY | changes})


def empty(shape: list[Any]) -> bytes:
    return forge({"a": {"dtype": "F64", "shape": shape, "data_offsets": [0, 0]}}, b"")


def pair(first: list[int], second: list[int]) -> bytes:
    return forge({"a": ENTRY | {"data_offsets": first}, "b": ENTRY | {"data_offsets": second}}, bytes(16))


def edit(old: str, new: str) -> bytes:
    """The text of a right header with a piece changed, and its length mended."""
    content = forge()
    header = content[8 : len(content) - len(DATA)].decode().rstrip()
    assert old in header
    return pack(header.replace(old, new, 1), DATA)


RIGHT = forge()
ATTACKS: dict[str, bytes] = {
    # the length of the header
    "empty file": b"",
    "seven bytes": bytes(7),
    "header of length zero": bytes(8),
    "header length of all ones": b"\xff" * 8 + RIGHT[8:],
    "header length with the sign bit": (2**63).to_bytes(8, "little") + RIGHT[8:],
    "header one byte beyond the file": (len(RIGHT) - 7).to_bytes(8, "little") + RIGHT[8:],
    "header that swallows the data": (len(RIGHT) - 8).to_bytes(8, "little") + RIGHT[8:],
    "header length in big-endian": RIGHT[7::-1] + RIGHT[8:],
    "header beyond the limit": pack(" " * (5 << 20)),
    "right header beyond the limit": forge({"a" * (5 << 20): ENTRY}),
    "header that ends a byte early": (len(RIGHT) - len(DATA) - 9).to_bytes(8, "little") + RIGHT[8:],
    # not JSON, or not an object
    "text": b"step,loss\n1,0.5\n2,0.4\n",
    "zip archive": b"PK\x03\x04" + bytes(200),
    "pickle": b"\x80\x04\x95\x0f\x00\x00\x00\x00\x00\x00\x00cos\nsystem\n",
    "header of noise": pack(bytes(range(256))),
    "header in UTF-16": pack(canonical({"a": ENTRY}).encode("utf-16")),
    "header with a byte-order mark": pack(b"\xef\xbb\xbf" + canonical({"a": ENTRY}).encode()),
    "header cut off": pack(RIGHT[8:40]),
    "header with a tail": edit("[0,8]}}", "[0,8]}}x"),
    "header is null": pack("null"),
    "header is a list": pack("[]"),
    "header is a number": pack("1"),
    "header is a string": pack('"__metadata__"'),
    "header is NaN": pack("NaN"),
    "header is an integer of a million digits": pack("1" * 1_000_000),
    # bombs
    "lists nested deeply": pack("[" * 1_000_000),
    "objects nested deeply": pack('{"a":' * 200_000),
    "lists nested deeply in a tensor": edit("[2]", "[" * 100_000 + "]" * 100_000),
    "lists nested deeply in the description": described('{"a":' + "[" * 100_000 + "]" * 100_000 + ',"kind":"model"}'),
    "objects nested deeply in the description": described('{"a":' * 100_000 + "1" + "}" * 100_000),
    "a million lists": pack("[" + "[]," * 1_000_000 + "[]]"),
    # metadata
    "no metadata": pack(encode({"a": ENTRY}), DATA),
    "metadata is a string": forge(metadata="format"),
    "metadata is a list": forge(metadata=["format", "2"]),
    "metadata is empty": forge(metadata={}),
    "metadata of another library": forge(metadata={"format": "pt"}),
    "metadata holds a number": forge(metadata={"autogp": 2}),
    "metadata is not JSON": forge(metadata={"autogp": "{"}),
    "metadata is null in JSON": forge(metadata={"autogp": "null"}),
    "metadata is an integer of a million digits": forge(metadata={"autogp": "1" * 1_000_000}),
    "metadata with blanks": forge(metadata={"autogp": " null"}),
    "metadata given twice": edit('"a":', '"__metadata__":{"autogp":"1"},"a":'),
    "no format": forge(format=None),
    "format as a text": forge(format="2"),
    "format zero": forge(format=0),
    "format negative": forge(format=-1),
    "format true": forge(format=True),
    "format with a fraction": forge(format=2.5),
    "format newer": forge(format=3),
    "format much newer": forge(format=999999999),
    "format earlier": forge(metadata={"description": canonical(DESCRIPTION), "format": "1", "sha256": "0" * 64}),
    "no description": forge(description=None),
    "no checksum": forge(sha256=None),
    "checksum is a number": forge(sha256=0),
    "checksum empty": forge(sha256=""),
    "checksum of something else": forge(sha256="0" * 64),
    "checksum in capitals": forge(sha256=checksum(canonical(DESCRIPTION)).upper()),
    # description
    "description is a text": described(encode(canonical(DESCRIPTION))),
    "description empty": described(""),
    "description is a list": described('["kind"]'),
    "description is null": described("null"),
    "description cut off": described('{"kind":"model"'),
    "description with blanks": described('{"kind": "model"}'),
    "description out of order": described('{"kind":"model","a":1}'),
    "description with a key twice": described('{"kind":"checkpoint","kind":"model"}'),
    "description with NaN": described('{"a":NaN,"kind":"model"}'),
    "description with infinity": described('{"a":-Infinity,"kind":"model"}'),
    "description with an overflowing number": described('{"a":1e999,"kind":"model"}'),
    "description with an integer of ten thousand digits": described('{"a":' + "1" * 10_000 + ',"kind":"model"}'),
    "description without kind": described('{"a":1}'),
    "description with a kind that is a number": described('{"kind":1}'),
    "description of another kind": described('{"kind":"checkpoint"}'),
    # names and entries
    "tensor more": edit('"a":', '"b":{"data_offsets":[8,8],"dtype":"F32","shape":[0]},"a":'),
    "tensor with another name": edit('"a":', '"b":'),
    "tensor is null": forge({"a": None}),
    "tensor is a list": forge({"a": [1, 2]}),
    "tensor is an empty object": forge({"a": {}}),
    "tensor with a key twice": edit('"dtype":"F32"', '"dtype":"F64","dtype":"F32"'),
    "tensor with a name of a megabyte": forge({"a" * (1 << 20): ENTRY | {"dtype": "?"}}),
    # data types
    **{f"data type {code!r}": entry(dtype=code) for code in ["F16", "BF16", "F8_E4M3", "I16", "U64", "C64"]},
    **{f"data type {code!r}": entry(dtype=code) for code in ["f32", "F32 ", "", "O", "object", None, 32, ["F32"], {}]},
    "data type of another size": entry(dtype="F64"),
    # shapes
    "shape missing": forge({"a": {"dtype": "F32", "data_offsets": [0, 8]}}),
    **{f"shape {shape!r}": entry(shape=shape) for shape in [None, 2, "2", {}, [2.0], [True, 2], ["2"], [None], [[2]]]},
    **{
        f"shape {shape!r}": entry(shape=shape) for shape in [[-2], [-1, -2], [1], [3], [2, 2], [], [2**63], [2**64 + 2]]
    },
    "shape whose product wraps to two": entry(shape=[2**32 + 1, 2**32 + 2]),
    "shape whose product wraps to zero": entry(shape=[2**32, 2**32], data_offsets=[0, 0]),
    "shape beyond any memory": entry(shape=[2**60], data_offsets=[0, 2**62]),
    "shape with a number of 4000 digits": entry(shape=[10**4000]),
    "shape with one dimension more": entry(shape=[1, 2]),
    "shape of 65 dimensions": entry(shape=[2] + [1] * 64),
    "shape of 200 thousand dimensions": entry(shape=[2] + [1] * 200_000),
    "empty shape with sizes that overflow": empty([0, 2**62, 2**62]),
    "empty shape with a size that overflows": empty([0, 2**63]),
    "empty shape with strides that overflow": empty([0, 2**60]),
    # offsets
    "offsets missing": forge({"a": {"dtype": "F32", "shape": [2]}}),
    **{f"offsets {offsets!r}": entry(data_offsets=offsets) for offsets in [None, [], [0], [0, 8, 8], "08", [0.0, 8.0]]},
    **{f"offsets {offsets!r}": entry(data_offsets=offsets) for offsets in [[8, 0], [-8, 0], [0, 9], [0, 7], [8, 16]]},
    **{f"offsets {offsets!r}": entry(data_offsets=offsets) for offsets in [[0, 2**63], [2**64, 2**64 + 8], [False, 8]]},
    "offsets that coincide": pair([0, 8], [0, 8]),
    "offsets that overlap": pair([0, 8], [4, 12]),
    "offsets with a gap": pair([0, 8], [12, 20]),
    "offsets swapped": pair([8, 16], [0, 8]),
    # data
    "data missing": forge(data=b""),
    "data short of a byte": forge(data=bytes(7)),
    "data with a byte more": forge(data=bytes(9)),
    "data with a megabyte more": forge(data=bytes(1 << 20)),
    "data changed": RIGHT[:-1] + b"\x01",
    "two files in one": RIGHT + RIGHT,
    "boolean that is neither": forge({"a": {"dtype": "BOOL", "shape": [1], "data_offsets": [0, 1]}}, b"\x02"),
}


def same(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Equal in every bit, NaN included."""
    one, two = first.numpy(force=True), second.numpy(force=True)
    return one.dtype == two.dtype and one.shape == two.shape and one.tobytes() == two.tobytes()


def example_tensors() -> dict[str, torch.Tensor]:
    return {
        "mean": torch.arange(6, dtype=torch.float64).reshape(2, 3),
        "rate": torch.tensor(0.5),
        "labels": torch.tensor([1, -1], dtype=torch.int32),
        "mask": torch.tensor([True, False, True]),
        "pixels": torch.tensor([[0, 255]], dtype=torch.uint8),
        "nothing": torch.empty(0, 4, dtype=torch.int64),
    }


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
arrays = st.sampled_from(["float32", "float64", "int64", "int32", "uint8", "bool"]).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
)


@settings(deadline=None, max_examples=100)
@given(
    tensors=st.dictionaries(st.text(max_size=8).filter(lambda name: name != "__metadata__"), arrays, max_size=5),
    description=st.dictionaries(st.text(max_size=5), json_values, max_size=3),
)
def test_what_is_read_is_what_was_written(tmp_path_factory, tensors, description):
    path = tmp_path_factory.getbasetemp() / "round trip"
    written = {name: torch.from_numpy(array.copy()) for name, array in tensors.items()}
    description["kind"] = "model"
    write_tensors(path, written, description)
    read, read_description = read_tensors(path, kind="model")
    assert read_description == description
    assert read.keys() == written.keys()
    assert all(same(read[name], written[name]) for name in written)


def test_tensors_that_are_views_parameters_or_special_numbers_come_back(tmp_path):
    numbers = torch.tensor([float("nan"), float("inf"), -0.0, 5e-324], dtype=torch.float64)
    matrix = torch.arange(12.0).reshape(3, 4)
    tensors = {
        "numbers": numbers,
        "transposed": matrix.T,
        "every other": matrix[:, ::2],
        "expanded": torch.ones(1, 1).expand(3, 2),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "imaginary": torch.tensor([1 + 2j]).conj().imag,
    }
    write_tensors(tmp_path / "file", tensors, {"kind": "model"})
    read, _ = read_tensors(tmp_path / "file", kind="model")
    assert all(same(read[name], tensors[name]) for name in tensors)
    read["parameter"] += 1  # what is read is the reader's own


def test_read_tensors_are_aligned_as_torch_aligns_its_own(tmp_path):
    write_tensors(tmp_path / "file", {str(n): torch.ones(n) for n in range(1, 200)}, {"kind": "model"})
    read, _ = read_tensors(tmp_path / "file", kind="model")
    assert all(tensor.data_ptr() % 64 == 0 for tensor in read.values())  # products keep their bits


def test_safetensors_itself_reads_the_file(tmp_path):
    write_tensors(tmp_path / "file", example_tensors(), {"kind": "model"})
    read = safetensors.torch.load_file(tmp_path / "file")
    assert all(same(read[name], tensor) for name, tensor in example_tensors().items())


def test_equal_content_gives_equal_bytes_whatever_the_order(tmp_path):
    tensors = example_tensors()
    write_tensors(tmp_path / "first", tensors, {"kind": "model", "a": {"x": 1, "y": 2}})
    write_tensors(tmp_path / "second", dict(reversed(tensors.items())), {"a": {"y": 2, "x": 1}, "kind": "model"})
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()


def test_the_format_is_the_one_written_down_here(tmp_path):
    write_tensors(tmp_path / "file", {"a": torch.zeros(2)}, {"kind": "model"})
    assert (tmp_path / "file").read_bytes() == RIGHT


def test_data_are_aligned_to_their_items(tmp_path):
    write_tensors(tmp_path / "file", example_tensors(), {"kind": "model"})
    content = (tmp_path / "file").read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    assert length % 8 == 0
    for name, tensor in example_tensors().items():
        assert header[name]["data_offsets"][0] % tensor.itemsize == 0


@pytest.mark.parametrize("attack", ATTACKS)
def test_hostile_file_is_refused_cheaply(tmp_path, attack):
    path = tmp_path / "hostile.autogp"
    path.write_bytes(ATTACKS[attack])
    tracemalloc.start()
    try:
        with pytest.raises(StorageError, match=r"hostile\.autogp") as refusal:
            read_tensors(path, kind="model")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(str(refusal.value)) < 1000
    assert peak < 100 << 20
    assert refusal.value.damaged is not any(word in attack for word in ("newer", "earlier", "another kind"))


def test_newer_format_asks_for_an_upgrade(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(forge(format=3, unheard_of={"a": 1}))
    with pytest.raises(StorageError, match=r"newer autogp \(format 3\): upgrade"):
        read_tensors(path, kind="model")


def test_earlier_format_asks_for_another_fit(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(ATTACKS["format earlier"])
    with pytest.raises(StorageError, match="written by an earlier autogp in format 1; fit the model again and save it"):
        read_tensors(path, kind="model")


def test_another_kind_is_named(tmp_path):
    write_tensors(tmp_path / "file", {}, {"kind": "checkpoint"})
    with pytest.raises(StorageError, match="holds a 'checkpoint', not a 'model'"):
        read_tensors(tmp_path / "file", kind="model")


def test_every_flipped_bit_is_refused(tmp_path):
    path = tmp_path / "file"
    write_tensors(path, {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([True])}, {"kind": "model"})
    content = path.read_bytes()
    with path.open("r+b", buffering=0) as file:
        for position in range(len(content)):
            for bit in range(8):
                os.pwrite(file.fileno(), bytes([content[position] ^ 1 << bit]), position)
                with pytest.raises(StorageError):
                    read_tensors(path, kind="model")
            os.pwrite(file.fileno(), content[position : position + 1], position)
    read_tensors(path, kind="model")


def test_every_other_length_is_refused(tmp_path):
    path = tmp_path / "file"
    write_tensors(path, {"a": torch.tensor([1.0, 2.0])}, {"kind": "model"})
    content = path.read_bytes()
    for length in [*range(len(content)), *range(len(content) + 1, len(content) + 20)]:
        path.write_bytes(content.ljust(length, b"\0")[:length])
        with pytest.raises(StorageError):
            read_tensors(path, kind="model")


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_loop(path: Path) -> None:
    path.symlink_to(path)


def make_dangling(path: Path) -> None:
    path.symlink_to(path.parent / "nowhere")


def make_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [Path.mkdir, make_fifo, make_loop, make_dangling, make_device, lambda path: None])
def test_what_is_not_a_file_is_refused(tmp_path, make):
    make(tmp_path / "odd")
    with pytest.raises(StorageError, match=r"odd (does not exist|cannot be read)") as refusal:
        read_tensors(tmp_path / "odd", kind="model")
    assert not refusal.value.damaged


def test_a_file_swapped_for_a_pipe_just_before_it_is_opened_is_refused_at_once(tmp_path, monkeypatch):
    path, real = tmp_path / "file", os.open
    write_tensors(path, {}, {"kind": "model"})

    def swap_and_open(name: Any, *arguments: Any) -> int:
        path.unlink()
        os.mkfifo(path)
        return real(name, *arguments)

    monkeypatch.setattr(os, "open", swap_and_open)
    with pytest.raises(StorageError, match="not a regular file"):
        read_tensors(path, kind="model")


def test_a_file_replaced_while_it_is_read_is_read_as_it_was(tmp_path, monkeypatch):
    path, real = tmp_path / "file", os.fstat
    write_tensors(path, {"a": torch.zeros(3)}, {"kind": "model"})

    def look_and_replace(descriptor: int) -> os.stat_result:
        found = real(descriptor)
        monkeypatch.undo()
        write_tensors(path, {"another": torch.ones(5, 5)}, {"kind": "model", "other": True})
        return found

    monkeypatch.setattr(os, "fstat", look_and_replace)
    assert read_tensors(path, kind="model")[0].keys() == {"a"}
    assert read_tensors(path, kind="model")[0].keys() == {"another"}


@pytest.mark.parametrize("name", ["file/below", "x" * 300, "nul\0byte", "/proc/self/mem"])
def test_odd_paths_are_refused(tmp_path, name):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError):
        read_tensors(tmp_path / name, kind="model")


def test_file_without_permission_is_refused(tmp_path, monkeypatch):
    write_tensors(tmp_path / "file", {}, {"kind": "model"})

    monkeypatch.setattr(os, "open", fail_with(errno.EACCES))
    with pytest.raises(StorageError, match="cannot be read: Permission denied") as refusal:
        read_tensors(tmp_path / "file", kind="model")
    assert not refusal.value.damaged


def test_file_larger_than_memory_is_refused(tmp_path, monkeypatch):
    write_tensors(tmp_path / "file", {"a": torch.zeros(2)}, {"kind": "model"})

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(torch, "empty", fail)
    with pytest.raises(StorageError, match="does not fit into memory"):
        read_tensors(tmp_path / "file", kind="model")


@pytest.mark.parametrize(
    ("tensors", "description"),
    [
        ({"a": torch.zeros(1, dtype=torch.bfloat16)}, {"kind": "model"}),
        ({"a": torch.zeros(1, dtype=torch.complex64)}, {"kind": "model"}),
        ({"a": torch.zeros([1] * 65)}, {"kind": "model"}),
        ({"__metadata__": torch.zeros(1)}, {"kind": "model"}),
        ({0: torch.zeros(1)}, {"kind": "model"}),
        ({}, {}),
        ({}, {"kind": 1}),
        ({}, {"kind": "model", "a": float("nan")}),
        ({}, {"kind": "model", "a": (1, 2)}),
        ({}, {"kind": "model", "a": {1: 2}}),
        ({}, {"kind": "model", "a": torch.zeros(1)}),
        ({}, {"kind": "model", "a": "x" * (5 << 20)}),
    ],
)
def test_what_would_not_come_back_is_not_written(tmp_path, tensors, description):
    with pytest.raises(StorageError, match="file cannot be written"):
        write_tensors(tmp_path / "file", tensors, description)
    assert not list(tmp_path.iterdir())


def fail_with(number: int) -> Any:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def fill_the_disk(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content[:100])
        fail_with(errno.ENOSPC)()


@pytest.mark.parametrize(
    ("owner", "name", "replacement"),
    [
        (Path, "write_bytes", fill_the_disk),
        (os, "fsync", fail_with(errno.ENOSPC)),
        (os, "fsync", fail_with(errno.EIO)),
        (os, "fsync", interrupt),
        (os, "replace", fail_with(errno.EACCES)),
        (os, "replace", interrupt),
    ],
)
def test_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, owner, name, replacement):
    path = tmp_path / "file"
    write_tensors(path, {"a": torch.zeros(2)}, {"kind": "model"})
    old = path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, replacement)
        with pytest.raises((OSError, KeyboardInterrupt)):
            write_tensors(path, {"a": torch.ones(1000)}, {"kind": "model"})
    assert path.read_bytes() == old
    assert list(tmp_path.iterdir()) == [path]


def test_write_beyond_the_size_limit_of_the_process_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    write_tensors(path, {"a": torch.zeros(2)}, {"kind": "model"})
    old = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            write_tensors(path, {"a": torch.zeros(10_000)}, {"kind": "model"})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == old
    assert list(tmp_path.iterdir()) == [path]


def test_content_is_on_the_disk_before_its_name_and_the_name_before_the_return(tmp_path, monkeypatch):
    calls = []
    for name in ["fsync", "replace"]:
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *arguments, name=name, real=real: (calls.append(name), real(*arguments)))
    write_tensors(tmp_path / "file", {}, {"kind": "model"})
    assert calls == ["fsync", "replace", "fsync"]


def test_replacing_gives_the_mode_that_open_would(tmp_path):
    before = os.umask(0o027)
    try:
        with replacing(tmp_path / "file") as temporary:
            temporary.write_text("new")
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640


def test_errors_of_the_temporary_file_name_the_final_one_and_others_their_own(tmp_path):
    with pytest.raises(FileNotFoundError) as error, replacing(tmp_path / "missing" / "file"):
        pass
    assert error.value.filename == str(tmp_path / "missing" / "file")
    for failure in (OSError(errno.ENOSPC, "No space"), OSError(errno.EACCES, "Denied", "data.csv")):
        with pytest.raises(OSError, match=r"file|data\.csv") as error, replacing(tmp_path / "file"):
            raise failure
        assert error.value.filename == (failure.filename or str(tmp_path / "file"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("make", [Path.mkdir, make_fifo, make_device])
def test_what_is_not_a_file_is_not_replaced(tmp_path, make):
    make(tmp_path / "odd")
    with pytest.raises(OSError, match="not a regular file"), replacing(tmp_path / "odd"):
        pass
    assert not (tmp_path / "odd").is_file()


def test_memory_stays_near_the_size_of_the_tensors(tmp_path):
    tensors = {name: torch.ones(1000, 1000) for name in "abcdefgh"}
    size = sum(tensor.nbytes for tensor in tensors.values())

    def peak(work: Any) -> float:
        tracemalloc.start()
        try:
            work()
            return tracemalloc.get_traced_memory()[1] / size
        finally:
            tracemalloc.stop()

    path = tmp_path / "file"
    copies = 0 if version("safetensors") >= "0.8" else 1  # of each tensor, made by the library
    assert peak(lambda: write_tensors(path, tensors, {"kind": "model"})) < 1.1 + copies
    assert peak(lambda: write_tensors(path, {name: t.T for name, t in tensors.items()}, {"kind": "model"})) < 2.1
    assert peak(lambda: read_tensors(path, kind="model")) < 0.1  # beside the tensors themselves, which torch holds
