"""MNIST: made-up files in the publisher's layout, and the real ones where they are at hand."""

import gzip
import hashlib
from pathlib import Path

import numpy as np
import pytest

from autogp.datasets import data_folder, load_mnist
from autogp.datasets.mnist import SHA256


def write_idx(path: Path, array: np.ndarray) -> None:
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    content = header + array.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def write_mnist(folder: Path, suffix: str = ".gz", side: int = 28) -> dict[str, np.ndarray]:
    (folder / "mnist").mkdir()
    rng = np.random.default_rng(0)
    arrays = {}
    for part, rows in (("train", 6), ("t10k", 4)):
        arrays[f"{part}-images-idx3-ubyte"] = rng.integers(256, size=(rows, side, side), dtype=np.uint8)
        arrays[f"{part}-labels-idx1-ubyte"] = rng.integers(10, size=rows, dtype=np.uint8)
    for name, array in arrays.items():
        write_idx(folder / "mnist" / f"{name}{suffix}", array)
    return arrays


@pytest.mark.parametrize("suffix", [".gz", ""])
def test_images_become_rows_and_labels_integers(tmp_path: Path, suffix: str) -> None:
    arrays = write_mnist(tmp_path, suffix)
    data = load_mnist(tmp_path)
    assert data.x_train.dtype == np.uint8
    assert data.y_train.dtype == np.int64
    np.testing.assert_array_equal(data.x_train, arrays["train-images-idx3-ubyte"].reshape(6, 784))
    np.testing.assert_array_equal(data.y_train, arrays["train-labels-idx1-ubyte"])
    np.testing.assert_array_equal(data.x_test, arrays["t10k-images-idx3-ubyte"].reshape(4, 784))
    np.testing.assert_array_equal(data.y_test, arrays["t10k-labels-idx1-ubyte"])


def test_a_missing_file_is_named_with_its_origin(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    path = tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz"
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"t10k-labels.*https://.*AUTOGP_DATA"):
        load_mnist(tmp_path)


def test_images_of_another_size_are_refused(tmp_path: Path) -> None:
    write_mnist(tmp_path, side=20)
    with pytest.raises(ValueError, match="28 x 28"):
        load_mnist(tmp_path)


def test_the_real_files() -> None:
    folder = data_folder(None) / "mnist"
    if not folder.is_dir():
        pytest.skip(f"there is no {folder}")
    for name, expected in SHA256.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == expected, name
    data = load_mnist()
    assert data.x_train.shape == (60_000, 784)
    assert data.x_test.shape == (10_000, 784)
    assert np.bincount(data.y_train).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert np.bincount(data.y_test).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
