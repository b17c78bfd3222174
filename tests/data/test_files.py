"""Each kind of array file opens to the rows that were saved, or says what is wrong with it."""

import gzip
import os
from pathlib import Path

import numpy as np
import pytest

from autogp.data import files, open_source, read_rows, readers

IMAGES = np.random.default_rng(0).integers(0, 256, (7, 4, 3), dtype=np.uint8)
LABELS = np.arange(7, dtype=np.uint8)


def idx(array: np.ndarray, code: int = 0x08) -> bytes:
    sizes = np.array(array.shape, ">u4").tobytes()
    return bytes([0, 0, code, array.ndim]) + sizes + array.tobytes()


def test_npy_is_memory_mapped_with_targets_from_another_file(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", IMAGES)
    np.save(tmp_path / "y.npy", LABELS)
    source = open_source(tmp_path / "x.npy", tmp_path / "y.npy")
    assert not source.in_memory
    x, y = source.rows(np.array([6, 2]))
    assert x.dtype == np.uint8
    assert (x == IMAGES[[6, 2]].reshape(2, -1)).all()
    assert y.tolist() == [6, 2]
    assert open_source(str(tmp_path / "x.npy")).y.shape == (7, 0)


@pytest.mark.parametrize(("x_name", "y_name"), [("x", "y"), ("X", "Y"), ("data", "target"), ("data", "labels")])
def test_npz_is_read_by_the_names_of_its_arrays(tmp_path: Path, x_name: str, y_name: str) -> None:
    np.savez(tmp_path / "data.npz", **{x_name: IMAGES, y_name: LABELS})
    source = open_source(tmp_path / "data.npz")
    assert (source.rows(np.arange(7))[0] == IMAGES.reshape(7, -1)).all()
    assert (source.y == LABELS).all()


def test_npz_target_can_be_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=IMAGES, y=LABELS, age=LABELS * 2)
    assert open_source(tmp_path / "data.npz", "age").y.tolist() == (LABELS * 2).tolist()


def test_npz_of_inputs_alone_has_no_targets(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=IMAGES)
    assert open_source(tmp_path / "data.npz").y.shape == (7, 0)


@pytest.mark.parametrize("names", [("x_train", "y"), ("x", "y_train"), ("x", "y")])
def test_npz_with_other_names_says_which_it_holds(tmp_path: Path, names: tuple[str, str]) -> None:
    np.savez(tmp_path / "data.npz", **{names[0]: IMAGES, names[1]: LABELS})
    target = "z" if names == ("x", "y") else None
    with pytest.raises(ValueError, match=f"it holds {names[0]}, {names[1]}"):
        open_source(tmp_path / "data.npz", target)


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("style", ["train-{}-idx{}-ubyte", "train-{}.idx{}-ubyte"])
def test_idx_images_find_their_labels_beside_them(tmp_path: Path, suffix: str, style: str) -> None:
    pack = gzip.compress if suffix else bytes
    images = tmp_path / (style.format("images", 3) + suffix)
    images.write_bytes(pack(idx(IMAGES)))
    assert open_source(images).y.shape == (7, 0)
    labels = tmp_path / (style.format("labels", 1) + suffix)
    labels.write_bytes(pack(idx(LABELS)))
    source = open_source(images)
    assert source.in_memory == bool(suffix)
    x, y = source.rows(np.array([6, 0]))
    assert x.dtype == np.uint8
    assert (x == IMAGES[[6, 0]].reshape(2, -1)).all()
    assert y.tolist() == [6, 0]
    assert (open_source(images, labels).y == LABELS).all()


def test_idx_of_other_types_comes_out_in_native_order(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(4, 2))
    (tmp_path / "x.idx").write_bytes(idx(x.astype(">f8"), 0x0E))
    found = open_source(tmp_path / "x.idx").rows(np.arange(4))[0]
    assert found.dtype.isnative
    assert (found == x).all()


@pytest.mark.parametrize("name", ["x.idx", "x.idx.gz"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"GIF89a", "not an idx file: it starts with 47 49 46 38"),
        (b"\0", "not an idx file"),
        (idx(IMAGES)[:-1], "should hold 84 bytes after its header, .* but holds 83"),
        (idx(IMAGES) + b"\0", "but holds 85"),
        (idx(IMAGES)[:9], "ends within its header"),
    ],
)
def test_damaged_idx_is_refused(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    with pytest.raises(ValueError, match=message):
        open_source(tmp_path / name)


def test_pickled_objects_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([[{}]], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="Python objects"):
        open_source(tmp_path / "x.npy")


def test_absent_empty_and_unknown_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no file .*x\.npy"):
        open_source(tmp_path / "x.npy")
    np.save(tmp_path / "x.npy", IMAGES)
    with pytest.raises(FileNotFoundError, match=r"there is no file .*y\.npy"):
        open_source(tmp_path / "x.npy", tmp_path / "y.npy")
    for name in ("a.npy", "a.npz", "a.idx", "a.csv", "a.parquet"):
        (tmp_path / name).touch()
        with pytest.raises(ValueError, match="is empty"):
            open_source(tmp_path / name)
    (tmp_path / "x.mat").write_bytes(b"MATLAB")
    with pytest.raises(ValueError, match=r"x\.mat should end in \.csv, .*\.npy"):
        open_source(tmp_path / "x.mat")


def test_options_of_tables_are_refused_for_arrays(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", IMAGES)
    with pytest.raises(ValueError, match="are for tables"):
        open_source(tmp_path / "x.npy", columns=["a"])
    with pytest.raises(ValueError, match="are for tables"):
        open_source(tmp_path / "x.npy", classes=["a"])
    with pytest.raises(ValueError, match="are for tables"):
        open_source(tmp_path / "x.npy", ["a", "b"])


def test_rows_of_a_file_come_in_order_and_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "READ_NUMBERS", 8)
    monkeypatch.setattr(readers, "CSV_BLOCK_BYTES", 120)
    x = np.random.default_rng(0).normal(size=(50, 2))
    np.save(tmp_path / "x.npy", x)
    np.savetxt(tmp_path / "x.csv", x, delimiter=",", header="a,b", comments="")
    encoder = open_source(tmp_path / "x.csv").encoder
    for name in ("x.npy", "x.csv"):
        pieces = list(read_rows(tmp_path / name, encoder))
        assert len(pieces) > 10
        np.testing.assert_array_equal(np.concatenate([each for each, _ in pieces]), x)


def test_rows_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([[1.0, np.inf]]))
    with pytest.raises(ValueError, match="inputs hold inf in row 0, column 1"):
        list(read_rows(tmp_path / "x.npy"))
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    encoder = open_source(tmp_path / "x.csv").encoder
    with pytest.raises(ValueError, match="an encoder must say how they become numbers"):
        list(read_rows(tmp_path / "x.csv"))
    (tmp_path / "x.csv").write_text("a,b\n")
    with pytest.raises(ValueError, match=r"x\.csv has no rows"):
        list(read_rows(tmp_path / "x.csv", encoder))


def test_damaged_compression_is_named(tmp_path: Path) -> None:
    for content in (
        gzip.compress(idx(IMAGES))[:-20],
        b"\x1f\x8b" + bytes(40),
        gzip.compress(idx(IMAGES))[:20] + b"?" * 9,
    ):
        (tmp_path / "x.idx.gz").write_bytes(content)
        with pytest.raises(ValueError, match=r"x\.idx\.gz is damaged"):
            open_source(tmp_path / "x.idx.gz")
    np.savez_compressed(tmp_path / "x.npz", x=np.random.default_rng(0).normal(size=(50, 4)))
    content = bytearray((tmp_path / "x.npz").read_bytes())
    content[60:75] = bytes(15)
    (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(ValueError, match=r"x\.npz is not a npz file of NumPy, or a damaged one"):
        open_source(tmp_path / "x.npz")


@pytest.mark.parametrize("name", ["a.npy", "a.npz"])
def test_files_that_are_not_what_their_name_says_are_named(tmp_path: Path, name: str) -> None:
    for content in (b"\x80\x04 not numpy", b"PK\x03\x04 cut off"):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=rf"{name} is not a {name[2:]} file of NumPy, or a damaged one"):
            open_source(tmp_path / name)
    with pytest.raises(ValueError, match=r"is a folder without .csv, .*: name a file"):
        open_source(tmp_path)


def test_text_in_two_bytes_is_told_from_utf_8(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("x,y\n1,2\n".encode("utf-16"))
    with pytest.raises(ValueError, match="is not in UTF-8"):
        open_source(tmp_path / "a.csv", "y")


@pytest.mark.parametrize("name", ["x.npz", "train-images-idx3-ubyte", "train-images-idx3-ubyte.gz"])
def test_a_file_swapped_for_a_pipe_after_it_was_looked_at_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    path = tmp_path / name
    path.write_bytes(b"content")
    monkeypatch.setattr(files, "_existing", lambda path: (path.unlink(), os.mkfifo(path), path)[-1])
    with pytest.raises(OSError, match="not a regular file"):
        open_source(path)
