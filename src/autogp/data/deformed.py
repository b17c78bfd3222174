"""Images and small deformations of them, as further rows to learn from."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.ndimage import gaussian_filter
from torch.nn import functional

from autogp.data.sources import Source

__all__ = ["Deformations", "Deformed", "has_planes"]

FIELDS = 1_000
SMOOTHING = 1 / 7  # of the fields: the deviation of the Gaussian filter, relative to the shorter side
PIECE_NUMBERS = 2**20  # deformed at a time: they stay in a processor's cache
SPLITMIX = tuple(map(np.uint64, (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)))  # its multipliers


@dataclass(frozen=True)
class Deformations:
    """Which copies of an image to learn from besides the image itself.

    Copy c of an image x has at each place p the value x(p + s + bend F(p)), between pixels by bilinear interpolation
    and beyond the edge that of the edge: s is a shift by whole pixels, at random and at most `shift` down and across, F
    a smooth random field with a root mean square of one pixel down and across.

    Attributes:
        copies: Deformed copies of each image.
        shift: The largest shift in pixels.
        bend: The size of the smooth displacements, in pixels.
        mirror: Whether every other copy is mirrored, left for right, first.
        image_shape: (H, W), (H, W, C) or (3, H, W) of the images, where they are flat rows; images [N, H, W(, C)] and
            `Convolutional` features tell it themselves.
    """

    copies: int = 4
    shift: int = 1
    bend: float = 1.0
    mirror: bool = False
    image_shape: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        for name, least in (("copies", 1), ("shift", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
                raise ValueError(f"{name} must be a whole number from {least}, got {value!r}")
            object.__setattr__(self, name, int(value))
        if not 0 <= self.bend < math.inf:
            raise ValueError(f"bend must be a finite number from 0, got {self.bend!r}")
        shape = self.image_shape
        if shape is not None and (len(shape) not in (2, 3) or not all(isinstance(n, int) and n > 0 for n in shape)):
            raise ValueError(f"image_shape must be (H, W), (H, W, C) or (3, H, W), got {shape!r}")


class Deformed:
    """The images of a source, then copies of all of them, each made when it is read.

    Row c N + a is copy c of image a, copy 0 the image itself. What a row is follows from its number and the seed alone.

    Arguments:
        source: N images as flat rows, with targets.
        shape: (H, W), (H, W, C), or (3, H, W) for rows that hold the red plane first.
        how: The deformations.
        seed: Of all that is random.

    Example:
        >>> from autogp.data import ArraySource
        >>> images = ArraySource(np.eye(9, dtype=np.uint8).reshape(9, 3, 3), np.arange(9))
        >>> x, y = Deformed(images, (3, 3), Deformations(2, bend=0.0), seed=0).rows(np.array([4, 4 + 9]))
        >>> x[0].tolist(), y.tolist()
        ([0, 0, 0, 0, 1, 0, 0, 0, 0], [4, 4])
    """

    def __init__(self, source: Source, shape: Sequence[int], how: Deformations, seed: int):
        self.source, self.how, self.seed, self.planes_first = source, how, seed, has_planes(shape)
        self.shape = (*shape, 1)[:3]
        self.in_memory = getattr(source, "in_memory", False)
        self.sides = self.shape[1:] if self.planes_first else self.shape[:2]
        self.fields = torch.from_numpy(random_fields(self.sides, seed)) * how.bend  # [F, H, W]

    def __len__(self) -> int:
        return len(self.source) * (1 + self.how.copies)

    def rows(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Inputs [B, D] in the type of the source, and targets."""
        copy, image = np.divmod(indices, len(self.source))
        x, y = self.source.rows(image)
        x, chosen = np.array(x), np.flatnonzero(copy)
        step = max(1, PIECE_NUMBERS // x.shape[1])
        for start in range(0, len(chosen), step):
            piece = chosen[start : start + step]
            x[piece] = self._deformed(x[piece], indices[piece], copy[piece])
        return x, y

    def _deformed(self, x: np.ndarray, row: np.ndarray, copy: np.ndarray) -> np.ndarray:
        pixels = torch.from_numpy(x.astype(np.float32)).reshape(-1, *self.shape)
        pixels = pixels if self.planes_first else pixels.movedim(-1, 1)  # [B, C, H, W]
        if self.how.mirror:
            pixels = torch.where(torch.from_numpy(copy % 2 == 1)[:, None, None, None], pixels.flip(-1), pixels)
        drawn = hashed(row, self.seed)  # [B, 4]
        height, width = self.sides
        shift = torch.from_numpy(drawn[:, 2:] % (2 * self.how.shift + 1)) - self.how.shift  # [B, 2]
        down, across = (
            self.fields[torch.from_numpy(drawn[:, axis] % FIELDS)] + shift[:, axis, None, None] + place
            for axis, place in enumerate((torch.arange(height)[:, None], torch.arange(width)))
        )  # where each pixel comes from, [B, H, W]
        # grid_sample counts from -1, the outer edge of the first pixel, to 1, that of the last, across before down.
        grid = torch.stack([(2 * across + 1) / width - 1, (2 * down + 1) / height - 1], -1)
        found = functional.grid_sample(pixels, grid, padding_mode="border", align_corners=False)
        found = found if self.planes_first else found.movedim(1, -1)
        found = found.reshape(len(x), -1).numpy()
        return found.astype(x.dtype) if x.dtype.kind == "f" else np.rint(found).astype(x.dtype)


def has_planes(image_shape: Sequence[int]) -> bool:
    """Whether a row holds one plane for each channel."""
    return len(image_shape) == 3 and image_shape[0] in (1, 3) and image_shape[2] not in (1, 3)


def random_fields(sides: Sequence[int], seed: int) -> np.ndarray:
    """Smooth fields with a root mean square of 1: float32 [FIELDS, H, W]."""
    smoothing = SMOOTHING * min(sides)
    margin = math.ceil(3 * smoothing)  # so that fields vary as much at the edges
    random = np.random.default_rng(seed)
    noise = random.standard_normal((FIELDS, *(side + 2 * margin for side in sides)), np.float32)
    smooth = gaussian_filter(noise, (0, smoothing, smoothing))[:, margin:-margin, margin:-margin]
    return np.ascontiguousarray(smooth / np.sqrt(np.square(smooth).mean()))


def hashed(row: np.ndarray, seed: int) -> np.ndarray:
    """Four whole numbers from 0 to 2^31 for each row, [B, 4], as good as random: SplitMix64 of row and seed."""
    number = 4 * row.astype(np.uint64)[:, None] + np.arange(4, dtype=np.uint64) + (np.uint64(seed) << np.uint64(32))
    with np.errstate(over="ignore"):
        z = number * SPLITMIX[0]
        z = (z ^ (z >> np.uint64(30))) * SPLITMIX[1]
        z = (z ^ (z >> np.uint64(27))) * SPLITMIX[2]
    return ((z ^ (z >> np.uint64(31))) >> np.uint64(33)).astype(np.int64)
