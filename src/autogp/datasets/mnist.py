"""MNIST: handwritten digits of 28 x 28 pixels, in the four idx files of LeCun, Cortes and Burges."""

from pathlib import Path

import numpy as np

from autogp.data import open_source
from autogp.datasets.common import Dataset, data_folder, missing
from autogp.datasets.common import download as download_file

__all__ = ["load_mnist"]

MIRROR = "https://ossci-datasets.s3.amazonaws.com/mnist"  # the publisher's own site no longer serves the files
SHA256 = {
    "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}


def load_mnist(folder: str | Path | None = None, *, download: bool = False) -> Dataset:
    """60,000 digits to learn from and 10,000 to be tested on: uint8 [N, 784], row by row from the top, and labels.

    Arguments:
        folder: Where the data sets are; else AUTOGP_DATA says. The files of this one, compressed or not, are in its
            sub-folder `mnist`.
        download: Whether to fetch files that are not there (12 MB).
    """
    place = data_folder(folder) / "mnist"
    parts = [_read(place, part, download) for part in ("train", "t10k")]
    (x_train, y_train), (x_test, y_test) = parts
    return Dataset("mnist", x_train, y_train, x_test, y_test, target_names=tuple("0123456789"))


def _read(place: Path, part: str, download: bool) -> tuple[np.ndarray, np.ndarray]:
    images, labels = (_file(place / f"{part}-{kind}-ubyte.gz", download) for kind in ("images-idx3", "labels-idx1"))
    source = open_source(images, labels)
    if source.x.shape[1:] != (28, 28) or source.y.ndim != 1 or source.y.max(initial=0) > 9:
        raise ValueError(
            f"{images} and {labels} should hold images of 28 x 28 and labels from 0 to 9, "
            f"they hold {source.x.shape} and {source.y.shape}"
        )
    return np.asarray(source.x).reshape(-1, 784), source.y.astype(np.int64)


def _file(path: Path, download: bool) -> Path:
    unpacked = path.with_suffix("")
    if not path.exists() and unpacked.exists():
        return unpacked
    if not path.exists():
        url = f"{MIRROR}/{path.name}"
        if not download:
            raise missing("MNIST", path, url)
        download_file(url, path, SHA256[path.name])
    return path
