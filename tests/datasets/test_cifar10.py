"""CIFAR-10: made-up files in the publisher's layout, and the real ones where they are at hand."""

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest

from autogp.datasets import data_folder, load_cifar10
from autogp.datasets.cifar10 import SHA256, TEST, TRAIN
from autogp.datasets.common import folder_sha256


def made_up() -> dict[str, np.ndarray]:
    """Two rows for each file, label first."""
    rng = np.random.default_rng(0)
    files = {name: rng.integers(256, size=(2, 3073), dtype=np.uint8) for name in TRAIN + TEST}
    for rows in files.values():
        rows[:, 0] %= 10
    return files


def write_folder(folder: Path, files: dict[str, np.ndarray]) -> None:
    (folder / "cifar-10-batches-bin").mkdir()
    for name, rows in files.items():
        rows.tofile(folder / "cifar-10-batches-bin" / name)


def write_archive(folder: Path, files: dict[str, np.ndarray], inside: str = "cifar-10-batches-bin/") -> Path:
    path = folder / "cifar-10-binary.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, rows in reversed(files.items()):
            member = tarfile.TarInfo(inside + name)
            member.size = rows.nbytes
            archive.addfile(member, io.BytesIO(rows.tobytes()))
    return path


@pytest.mark.parametrize("write", [write_folder, write_archive])
def test_rows_come_in_the_order_of_the_batches(tmp_path: Path, write) -> None:
    files = made_up()
    write(tmp_path, files)
    data = load_cifar10(tmp_path)
    train = np.concatenate([files[name] for name in TRAIN])
    assert data.x_train.dtype == np.uint8
    assert data.y_train.dtype == np.int64
    np.testing.assert_array_equal(data.x_train, train[:, 1:])
    np.testing.assert_array_equal(data.y_train, train[:, 0])
    np.testing.assert_array_equal(data.x_test, files["test_batch.bin"][:, 1:])
    np.testing.assert_array_equal(data.y_test, files["test_batch.bin"][:, 0])


def test_an_archive_writes_nothing_whatever_its_members_are_called(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    path = write_archive(folder, made_up(), inside="../escaped/")
    load_cifar10(folder)
    assert list(tmp_path.rglob("*")) == [folder, path]


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"cifar-10-batches-bin.*cifar-10-binary\.tar\.gz.*AUTOGP_DATA"):
        load_cifar10(tmp_path)
    files = made_up()
    del files["data_batch_3.bin"]
    write_archive(tmp_path, files)
    with pytest.raises(ValueError, match=r"does not hold data_batch_3\.bin"):
        load_cifar10(tmp_path)
    write_folder(tmp_path, files)
    with pytest.raises(FileNotFoundError, match=r"data_batch_3\.bin"):
        load_cifar10(tmp_path)


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    files = made_up()
    files["data_batch_2.bin"] = files["data_batch_2.bin"].reshape(-1)[:-5]
    write_folder(tmp_path, files)
    with pytest.raises(ValueError, match=r"data_batch_2\.bin should hold 3073 bytes for each image"):
        load_cifar10(tmp_path)
    files = made_up()
    files["test_batch.bin"][1, 0] = 10
    for name, rows in files.items():
        rows.tofile(tmp_path / "cifar-10-batches-bin" / name)
    with pytest.raises(ValueError, match=r"test_batch\.bin has the label 10 in row 1"):
        load_cifar10(tmp_path)


def test_half_an_archive_is_refused(tmp_path: Path) -> None:
    path = write_archive(tmp_path, made_up())
    path.write_bytes(path.read_bytes()[:10_000])
    with pytest.raises(ValueError, match="not a complete archive"):
        load_cifar10(tmp_path)


def test_the_real_files() -> None:
    folder = data_folder(None) / "cifar-10-batches-bin"
    if not folder.is_dir():
        pytest.skip(f"there is no {folder}")
    extra = [path.name for path in folder.iterdir() if path.suffix != ".bin"]
    if not extra:  # the archive also has a list of classes and a page of text
        assert folder_sha256(folder) == SHA256
    data = load_cifar10()
    assert data.x_train.shape == (50_000, 3072)
    assert data.x_test.shape == (10_000, 3072)
    assert np.bincount(data.y_train).tolist() == [5000] * 10
    assert np.bincount(data.y_test).tolist() == [1000] * 10
