"""MNIST8M (Loosli, Canu and Bottou, 2007): 134 deformations of each digit of MNIST, as published or made like it."""

import bz2
import gzip
import lzma
from collections.abc import Iterator
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path
from typing import IO, Any

import numpy as np
from scipy.ndimage import gaussian_filter

from autogp.data import Subset, open_source
from autogp.datasets.common import Dataset, data_folder
from autogp.datasets.mnist import load_mnist
from autogp.storage import replacing

__all__ = ["DeformedDigits", "load_mnist8m"]

SIDE = 28
VARIANTS = 135  # of each training digit, itself among them
TEST_ROWS = 10_000  # the publisher counts the test digits first
FIELDS = 1522
FIELD_SMOOTHING, TANGENT_SMOOTHING = 4.0, 1.0  # pixels
UNIT = 32  # fields are whole numbers of 1 / UNIT pixels: integers are exact, so a row is the same on every machine
FARTHEST = 4 * UNIT  # four of 100,000 are cut: 16 bits then hold every sum of products
# Where the pixels of a shifted image come from, (down, across): up, down, left, right, the four diagonals, none.
SHIFTS = ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (1, -1), (-1, 1), (-1, -1), (0, 0))
IMAGES, LABELS = "mnist8m-patterns-idx3-ubyte", "mnist8m-labels-idx1-ubyte"
TEXTS = tuple(f"mnist8m{scale}{packed}" for scale in ("", ".scale") for packed in ("", ".xz", ".bz2", ".gz"))
PIECE_ROWS = 1000  # made at a time: they stay in a processor's cache
TEXT_BYTES = 2**25  # converted at a time


def load_mnist8m(folder: str | Path | None = None, *, download: bool = False, variants: int = VARIANTS) -> Dataset:
    """8,100,000 rows to learn from, uint8 [N, 784], and the 10,000 test digits of MNIST.

    Row r is a variant of training digit r mod 60,000; the first 60,000 are the digits themselves. The published files
    are taken if the sub-folder `mnist8m` has them: `mnist8m-patterns-idx3-ubyte` and `mnist8m-labels-idx1-ubyte`
    (6.35 GB), or LIBSVM's text, `mnist8m` or `mnist8m.scale` (also .xz, .bz2, .gz), which is first converted to these
    two, a piece at a time. Else each row is made when it is read (`DeformedDigits`): similar to the published one, not
    equal to it. Either way `x_train` is a source of rows.

    Arguments:
        folder: Where the data sets are; else AUTOGP_DATA says. MNIST itself must be there.
        download: Whether to fetch MNIST if it is not there (12 MB).
        variants: So many of the 135 of each digit, the first ones: 60,000 rows each.
    """
    if not 1 <= variants <= VARIANTS:
        raise ValueError(f"variants must be from 1 to {VARIANTS}, got {variants!r}")
    digits = load_mnist(folder, download=download)
    place = data_folder(folder) / "mnist8m"
    texts = [place / name for name in TEXTS if (place / name).is_file()]
    if texts and not (place / LABELS).is_file():
        _convert(texts[0], place / IMAGES, place / LABELS)
    rest: dict[str, Any] = {
        "x_test": digits.x_test,
        "y_test": digits.y_test,
        "target_names": digits.target_names,
        "variants": variants,
    }
    rows = variants * len(digits.x_train)
    if (place / IMAGES).is_file():
        source, expected = open_source(place / IMAGES, place / LABELS), VARIANTS * len(digits.x_train)
        if source.x.shape != (expected, SIDE, SIDE):
            raise ValueError(f"{place / IMAGES} should hold {expected} images of 28 x 28, it holds {source.x.shape}")
        x_train = source if rows == expected else Subset(source, np.arange(rows))
        return Dataset("mnist8m", x_train, source.y[:rows].astype(np.int64), **rest)
    x_train = DeformedDigits(digits.x_train, digits.y_train, variants)
    return Dataset("mnist8m-generated", x_train, np.tile(digits.y_train, variants), **rest)


class DeformedDigits:
    """A source of `variants` of each image: itself, then deformations, each made when it is read.

    Row r is made from image a = r mod n by the publisher's rule for row i = 10,000 + r of the whole collection:

        k1 = ((131071 i) mod 2^32) mod 1521,   k2 = (k1 + 1 + 2 i) mod 1522,   s = -1 if k1 + k2 is odd, else +1
        x + s (F_k1 T0_a - F_k2 T1_a), cut to 0..255, then shifted by at most a pixel, by number k1 mod 9

    F are smooth random fields, T0 and T1 the image's derivatives down and across.

    Arguments:
        x: Images, uint8 [n, 784], row by row from the top.
        y: Their targets, [n].
        variants: Of each image, at least 1.

    Example:
        >>> digits = DeformedDigits(np.full((2, 784), 9, np.uint8), np.array([3, 4]), variants=5)
        >>> x, y = digits.rows(np.array([0, 9]))
        >>> len(digits), x.shape, y.tolist()
        (10, (2, 784), [3, 4])
    """

    in_memory = True

    def __init__(self, x: np.ndarray, y: np.ndarray, variants: int = VARIANTS):
        if x.dtype != np.uint8 or x.ndim != 2 or x.shape[1] != SIDE**2 or len(x) != len(y):
            raise ValueError(f"x must be uint8 [n, 784] and y [n], got {x.dtype} {x.shape} and {np.shape(y)}")
        self.images, self.labels, self.variants = x, y, variants
        self.fields = random_fields()
        self.tangents = tangents(x)

    def __len__(self) -> int:
        return len(self.images) * self.variants

    def rows(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Inputs uint8 [B, 784] and targets [B]."""
        variant, a = np.divmod(indices, len(self.images))
        x, deformed = self.images[a], np.flatnonzero(variant)
        if len(deformed):
            x[deformed] = self._deformed(indices[deformed] + TEST_ROWS, a[deformed])
        return x, self.labels[a]

    def _deformed(self, i: np.ndarray, a: np.ndarray) -> np.ndarray:
        pieces = np.array_split(np.arange(len(i)), -(-len(i) // PIECE_ROWS))
        return np.concatenate([self._piece(i[piece], a[piece]) for piece in pieces])

    def _piece(self, i: np.ndarray, a: np.ndarray) -> np.ndarray:
        k1, k2, sign, shift = deformation(i)
        down, across = self.tangents
        # x + s (F_k1 T0 - F_k2 T1), in units of 1 / UNIT grey levels
        moved = self.fields[k1] * down[a]
        moved -= self.fields[k2] * across[a]
        moved *= sign.astype(np.int16)[:, None]
        moved += self.images[a].astype(np.int16) * np.int16(UNIT)
        np.clip(moved, 0, 255 * UNIT, out=moved)
        images = np.right_shift(moved, UNIT.bit_length() - 1, out=moved).astype(np.uint8).reshape(-1, SIDE, SIDE)
        out = np.zeros_like(images)
        for number, (rows, columns) in enumerate(SHIFTS):
            chosen = np.flatnonzero(shift == number)
            to, source = _overlap(rows), _overlap(-rows)
            to_column, source_column = _overlap(columns), _overlap(-columns)
            out[chosen, to, to_column] = images[chosen, source, source_column]
        return out.reshape(len(i), -1)


def deformation(i: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Of rows i as the publisher counts them: the two fields, the sign, and the number of the shift."""
    i = np.asarray(i, np.int64)
    k1 = (131071 * i) % 2**32 % (FIELDS - 1)
    k2 = (k1 + 1 + 2 * i) % FIELDS
    return k1, k2, 1 - 2 * ((k1 + k2) % 2), k1 % len(SHIFTS)


def random_fields() -> np.ndarray:
    """Smooth displacements of one pixel, root mean square, in units of 1 / UNIT pixels: int16 [FIELDS, 784]."""
    margin = int(3 * FIELD_SMOOTHING)  # so that fields vary as much at the edges
    noise = np.random.RandomState(0).uniform(-1, 1, (FIELDS, SIDE + 2 * margin, SIDE + 2 * margin))
    smooth = gaussian_filter(noise, (0, FIELD_SMOOTHING, FIELD_SMOOTHING))[:, margin:-margin, margin:-margin]
    scaled = np.rint(smooth / np.sqrt(np.square(smooth).mean()) * UNIT)
    return scaled.clip(-FARTHEST, FARTHEST).astype(np.int16).reshape(FIELDS, -1)


def tangents(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Smoothed derivatives of images [n, 784] down and across, in grey levels per pixel: int8 [n, 784] each."""
    found = np.empty((2, *x.shape), np.int8)
    for start in range(0, len(x), 5000):
        images = x[start : start + 5000].reshape(-1, SIDE, SIDE).astype(np.float64)
        for axis in (0, 1):
            order: Any = (0, 1, 0) if axis == 0 else (0, 0, 1)
            sigma = (0, TANGENT_SMOOTHING, TANGENT_SMOOTHING)
            slopes = gaussian_filter(images, sigma, order, mode="constant")
            found[axis, start : start + 5000] = np.rint(slopes).reshape(len(images), -1)  # at most 255 / sqrt(2 pi)
    return found[0], found[1]


def _overlap(shift: int) -> slice:
    """Which rows of an image come from another row of it, where row r comes from row r + shift."""
    return slice(max(0, -shift), SIDE - max(0, shift))


def _convert(text: Path, images: Path, labels: Path) -> None:
    """LIBSVM's text, `label pixel:value ...` with pixels counted from 1, as the publisher's two files."""
    opener = {".xz": lzma.open, ".bz2": bz2.open, ".gz": gzip.open}.get(text.suffix, open)
    with ExitStack() as stack:
        file = stack.enter_context(opener(text, "rb"))
        # The labels get their name last: where they are, the images are whole.
        y_path, x_path = stack.enter_context(replacing(labels)), stack.enter_context(replacing(images))
        x_file, y_file = (stack.enter_context(Path(path).open("wb")) for path in (x_path, y_path))
        count = 0
        x_file.write(bytes(16))
        y_file.write(bytes(8))
        for x, y in _text_rows(file, text):
            x_file.write(x)
            y_file.write(y)
            count += len(y)
        for out, shape in ((x_file, (count, SIDE, SIDE)), (y_file, (count,))):
            out.seek(0)
            out.write(bytes([0, 0, 8, len(shape)]) + np.array(shape, ">u4").tobytes())
            out.flush()


def _text_rows(file: IO[bytes], text: Path) -> Iterator[tuple[bytes, bytes]]:
    """Pixels 0..255 and labels; the scaled file has pixels 0..1."""
    from sklearn.datasets import load_svmlight_file

    rest, row = b"", 0
    scale = 255 if ".scale" in text.suffixes else 1
    while piece := file.read(TEXT_BYTES):
        lines, newline, rest = (rest + piece).rpartition(b"\n")
        if newline:
            yield _piece(lines, text, row, scale, load_svmlight_file)
            row += lines.count(b"\n") + 1
    if rest:
        yield _piece(rest, text, row, scale, load_svmlight_file)


def _piece(lines: bytes, text: Path, row: int, scale: int, load: Any) -> tuple[bytes, bytes]:
    try:
        x, y = load(BytesIO(lines), n_features=SIDE**2, zero_based=False)
        pixels = np.rint(x.toarray() * scale)
        if pixels.min() < 0 or pixels.max() > 255 or y.min() < 0 or y.max() > 9:
            raise ValueError(f"pixels must be from 0 to {255 // scale} and labels from 0 to 9")
    except ValueError as error:
        raise ValueError(f"{text} is not LIBSVM's text of MNIST8M, in the lines from {row + 1} on: {error}") from None
    return pixels.astype(np.uint8).tobytes(), y.astype(np.uint8).tobytes()
