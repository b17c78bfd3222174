"""CIFAR-10: photographs of ten kinds of things, 32 x 32 pixels in colour, in the publisher's binary version."""

import tarfile
from pathlib import Path

import numpy as np

from autogp.datasets.common import Dataset, data_folder, download_archive, missing

__all__ = ["CLASSES", "load_cifar10"]

URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
SHA256 = "5fdcf57d170bdbc7da569af1dabd64d7d3c7507e9e7aa861fc7b691d5355c232"  # of the folder of six files
TRAIN = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST = ("test_batch.bin",)
ROW_BYTES = 1 + 3 * 32 * 32  # the label, then the red, green and blue plane
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def load_cifar10(folder: str | Path | None = None, *, download: bool = False) -> Dataset:
    """50,000 images to learn from and 10,000 to be tested on: uint8 [N, 3072] and labels that count `CLASSES`.

    A row is the red plane, row by row from the top, then the green and the blue one.

    Arguments:
        folder: Where the data sets are; else AUTOGP_DATA says. This one is its sub-folder `cifar-10-batches-bin`, or
            the archive `cifar-10-binary.tar.gz` as it was published, which is read without being unpacked.
        download: Whether to fetch the files if they are not there (170 MB).
    """
    place = data_folder(folder) / "cifar-10-batches-bin"
    archive = place.with_name("cifar-10-binary.tar.gz")
    if not place.is_dir() and archive.is_file():
        files = _from_archive(archive)
    else:
        if not place.is_dir():
            if not download:
                raise missing("CIFAR-10 (binary version)", place, f"{URL} (unpacked, or the archive beside it)")
            download_archive(URL, place, ("*.bin",), SHA256)
        files = {name: _content(place / name) for name in TRAIN + TEST}
    (x_train, y_train), (x_test, y_test) = (_rows([files[name] for name in names]) for names in (TRAIN, TEST))
    return Dataset("cifar10", x_train, y_train, x_test, y_test, target_names=CLASSES)


def _content(path: Path) -> np.ndarray:
    if not path.is_file():
        raise missing("CIFAR-10 (binary version)", path, URL)
    return _checked(np.fromfile(path, np.uint8), str(path))


def _from_archive(path: Path) -> dict[str, np.ndarray]:
    """The six files by name; nothing is written to the disk, whatever the archive's members are called."""
    found = {}
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                name = member.name.rpartition("/")[2]
                if name in TRAIN + TEST and (file := archive.extractfile(member)) is not None:
                    found[name] = _checked(np.frombuffer(file.read(), np.uint8), f"{name} in {path}")
    except (tarfile.TarError, EOFError) as error:
        raise ValueError(f"{path} is not a complete archive: {error}. Get it again from {URL}.") from error
    absent = [name for name in TRAIN + TEST if name not in found]
    if absent:
        raise ValueError(f"{path} does not hold {', '.join(absent)}: the binary version is at {URL}")
    return found


def _checked(content: np.ndarray, place: str) -> np.ndarray:
    """The bytes as rows [N, 3073]."""
    if content.size == 0 or content.size % ROW_BYTES:
        raise ValueError(f"{place} should hold {ROW_BYTES} bytes for each image, but it has {content.size} bytes")
    rows = content.reshape(-1, ROW_BYTES)
    if rows[:, 0].max() >= len(CLASSES):
        row = int(np.argmax(rows[:, 0] >= len(CLASSES)))
        raise ValueError(f"{place} has the label {rows[row, 0]} in row {row}, where 0 to 9 are expected")
    return rows


def _rows(files: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    return (
        np.concatenate([rows[:, 1:] for rows in files]),
        np.concatenate([rows[:, 0] for rows in files]).astype(np.int64),
    )
