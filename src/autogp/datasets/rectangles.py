"""RECTANGLES-IMAGE (Larochelle et al., 2007): is the rectangle wider or taller? The published files, or new ones."""

from pathlib import Path

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from autogp.datasets.common import FOLDER_NAMES, Dataset, data_folder

__all__ = ["draw_rectangles", "load_rectangles"]

URL = "http://www.iro.umontreal.ca/~lisa/icml2007data/rectangles_images.zip"
TRAIN_ROWS, TEST_ROWS = 12_000, 50_000
CLASSES = ("taller", "wider")

SIDE = 28
SHORTEST = 10  # of the rectangle's sides
LEAST_DIFFERENCE = 5  # between its sides
LEAST_AREA, MOST_AREA = 0.25, 0.75  # of the image
LEAST_DEVIATION = 10.0  # of a patch's pixels, in grey levels of 255: flatter ones show nothing
DRAWS = 8  # random numbers for an image, of which Philox makes four at a time


def load_rectangles(folder: str | Path | None = None, *, seed: int = 0) -> Dataset:
    """12,000 images to learn from and 50,000 to be tested on, [N, 784], row by row from the top.

    The published files, `rectangles_im_train.amat` and `rectangles_im_test.amat` in the sub-folder `rectangles`, are
    taken if they are there, in float32 and with the publisher's labels 0 and 1. Otherwise images are made by the same
    rules (`draw_rectangles`) from the photographs in `natural_images/gray20.npz`: uint8, label 1 where the rectangle
    is wider.

    Arguments:
        folder: Where the data sets are; else AUTOGP_DATA says.
        seed: Of the images that are made.
    """
    place = data_folder(folder)
    published = [place / "rectangles" / f"rectangles_im_{part}.amat" for part in ("train", "test")]
    photographs = place / "natural_images" / "gray20.npz"
    if all(path.is_file() for path in published):
        return Dataset("rectangles", *_read_amat(published[0]), *_read_amat(published[1]))
    if not photographs.is_file():
        raise FileNotFoundError(
            f"RECTANGLES-IMAGE is not at hand: there are no {published[0]} and {published[1].name}. Get them from "
            f"{URL} and put them there; or, to make images like them, put grey photographs at {photographs} (2-D uint8 "
            f"arrays). {FOLDER_NAMES}"
        )
    with np.load(photographs, allow_pickle=False) as archive:
        grey = [archive[name] for name in archive.files]
    x, y = draw_rectangles(grey, range(TRAIN_ROWS + TEST_ROWS), seed)
    train, test = slice(TRAIN_ROWS), slice(TRAIN_ROWS, None)
    return Dataset("rectangles-drawn", x[train], y[train], x[test], y[test], target_names=CLASSES)


def draw_rectangles(photographs: list[np.ndarray], numbers: range, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Images uint8 [N, 784] and labels [N], 1 where the rectangle is wider than tall, 0 where it is taller.

    Width and height are uniform among those of at least 10 pixels that differ by at least 5 and give a quarter to three
    quarters of the image, the place is uniform. The rectangle shows a patch of one photograph, the background one of
    another, each uniform among the patches that are not flat. Image i is the same whatever else is drawn.

    Arguments:
        photographs: Two or more, grey, uint8 [height, width].
        numbers: Which images: a range of step 1.
        seed: Not negative.

    Example:
        >>> noise = np.random.default_rng(0).integers(256, size=(2, 40, 40), dtype=np.uint8)
        >>> x, y = draw_rectangles(list(noise), range(5))
        >>> x.shape, (draw_rectangles(list(noise), range(3, 5))[0] == x[3:]).all().item()
        ((5, 784), True)
    """
    if numbers.step != 1 or numbers.start < 0:
        raise ValueError(f"numbers must be a range of step 1 from 0 on, got {numbers}")
    places = _lively_places(photographs)
    counter = numbers.start * (DRAWS // 4)
    u = np.random.Generator(np.random.Philox(key=seed, counter=counter)).random((len(numbers), DRAWS)).T
    sides = range(SHORTEST, SIDE + 1)
    sizes = np.array([(width, height) for width in sides for height in sides if _is_allowed(width, height)])
    width, height = sizes[_choice(u[0], len(sizes))].T
    across = _stretch(_choice(u[1], SIDE - width + 1), width)  # [N, SIDE]
    down = _stretch(_choice(u[2], SIDE - height + 1), height)
    background = _choice(u[3], len(photographs))
    filling = (background + 1 + _choice(u[4], len(photographs) - 1)) % len(photographs)
    images = np.where(
        down[:, :, None] & across[:, None, :],
        _patches(photographs, places, filling, u[5]),
        _patches(photographs, places, background, u[6]),
    )
    return images.reshape(len(numbers), SIDE**2), (width > height).astype(np.int64)


def _is_allowed(width: int, height: int) -> bool:
    share = width * height / SIDE**2
    return abs(width - height) >= LEAST_DIFFERENCE and LEAST_AREA <= share <= MOST_AREA


def _choice(u: np.ndarray, count: np.ndarray | int) -> np.ndarray:
    """Whole numbers from 0 to count - 1, from uniform ones."""
    return (u * count).astype(np.int64)


def _stretch(start: np.ndarray, length: np.ndarray) -> np.ndarray:
    """Which of the SIDE pixels of a line lie within, [N, SIDE]."""
    pixel = np.arange(SIDE)
    return (pixel >= start[:, None]) & (pixel < (start + length)[:, None])


def _lively_places(photographs: list[np.ndarray]) -> list[np.ndarray]:
    """For each photograph the top left corners [., 2] of the patches that are not flat."""
    if len(photographs) < 2:
        raise ValueError(f"two photographs are the least, got {len(photographs)}")
    places = []
    for number, photograph in enumerate(photographs):
        if photograph.ndim != 2 or photograph.dtype != np.uint8 or min(photograph.shape) < SIDE:
            raise ValueError(
                f"photograph {number} must be uint8, of {SIDE} x {SIDE} pixels or more, "
                f"got {photograph.dtype} {photograph.shape}"
            )
        # Sums over all patches at once, from the sums over everything above and to the left.
        pixels = photograph.astype(np.float64)
        sums = np.pad(np.stack([pixels, pixels**2]).cumsum(1).cumsum(2), ((0, 0), (1, 0), (1, 0)))
        rows = sums[:, SIDE:] - sums[:, :-SIDE]
        mean, square = (rows[:, :, SIDE:] - rows[:, :, :-SIDE]) / SIDE**2
        places.append(np.argwhere(square - mean**2 >= LEAST_DEVIATION**2))
        if len(places[-1]) == 0:
            raise ValueError(f"photograph {number} is flat everywhere: leave it out")
    return places


def _patches(photographs: list[np.ndarray], places: list[np.ndarray], chosen: np.ndarray, u: np.ndarray) -> np.ndarray:
    """A patch of the chosen photograph for each image, [N, SIDE, SIDE]."""
    patches = np.empty((len(chosen), SIDE, SIDE), np.uint8)
    for number, (photograph, corners) in enumerate(zip(photographs, places, strict=True)):
        rows = np.flatnonzero(chosen == number)
        top, left = corners[_choice(u[rows], len(corners))].T
        patches[rows] = sliding_window_view(photograph, (SIDE, SIDE))[top, left]
    return patches


def _read_amat(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images float32 [N, 784] and labels [N]: a line has 784 values and the label."""
    try:
        rows = np.loadtxt(path, dtype=np.float32, ndmin=2)
    except ValueError as error:
        raise ValueError(f"{path} should have {SIDE**2 + 1} numbers in each line: {error}") from error
    labels = rows[:, -1]
    if rows.shape[1] != SIDE**2 + 1 or not np.isin(labels, (0, 1)).all():
        raise ValueError(
            f"{path} should have {SIDE**2} values and a label 0 or 1 in each line, found {rows.shape[1]} numbers"
        )
    return np.ascontiguousarray(rows[:, :-1]), labels.astype(np.int64)
