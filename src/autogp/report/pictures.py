"""Rows of pixels as pictures: which shape they have, and PNG files inside the page."""

import base64
import io
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.image import imsave

from autogp.data import Source, TableEncoder

__all__ = ["find_image_shape", "heat_map", "picture"]

SMALLEST_SIDE = 8
ACCENT = (59, 130, 196)  # between the two accents of the page


def find_image_shape(
    source: Source, encoder: TableEncoder | None, given: Sequence[int] | None
) -> tuple[int, ...] | None:
    """The shape of the images that the rows are, (H, W), (3, H, W) or (H, W, 3), or None where they are no images.

    Without a word from the user they are taken for images where their number is that of square pictures, of one or of
    three channels, and neighbours go together.
    """
    columns = source.rows(np.zeros(1, np.int64))[0].shape[1]
    if given is not None:
        shape = tuple(given)
        coloured = len(shape) == 3 and (shape[0] in (1, 3) or shape[2] in (1, 3))
        if not (len(shape) == 2 or coloured) or math.prod(shape) != columns:
            raise ValueError(
                f"image_shape must be (H, W), (3, H, W) or (H, W, 3) with {columns} pixels in all, got {given!r}"
            )
        return shape
    stored = getattr(getattr(source, "x", None), "shape", ())
    if len(stored) == 3 or (len(stored) == 4 and stored[3] in (1, 3)):
        return tuple(stored[1:])
    if encoder is not None and not encoder.plain:
        return None
    for channels in (1, 3):
        side = math.isqrt(columns // channels)
        if channels * side**2 == columns and side >= SMALLEST_SIDE:
            x, _ = source.rows(np.arange(min(len(source), 1000)))
            return ((side, side) if channels == 1 else (3, side, side)) if _neighbours_agree(x, side) else None
    return None


def picture(x: np.ndarray, shape: tuple[int, ...], limits: tuple[float, float]) -> str:
    """One row as the address of a PNG; `limits` are the values of black and white."""
    low, high = limits
    light = np.clip((np.asarray(x, dtype=np.float64) - low) / ((high - low) or 1), 0, 1)
    pixels = (255 * _channels_last(light, shape)).round().astype(np.uint8)
    return _address(np.broadcast_to(pixels, (*pixels.shape[:2], 3)))


def heat_map(shares: np.ndarray, shape: tuple[int, ...]) -> str:
    """Shares of pixels as the address of a PNG: clear where there is none, so that any background suits."""
    total = _channels_last(shares, shape).sum(-1)
    pixels = np.zeros((*total.shape, 4), np.uint8)
    pixels[..., :3] = ACCENT
    pixels[..., 3] = (255 * total / (total.max() or 1)).round()
    return _address(pixels)


def _channels_last(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    if len(shape) == 2:
        return x.reshape(*shape, 1)
    return np.moveaxis(x.reshape(shape), 0, -1) if shape[0] in (1, 3) else x.reshape(shape)


def _neighbours_agree(x: np.ndarray, side: int) -> bool:
    """Whether columns that would be neighbours, across and down, go together more than any two columns do."""
    x = x[:, : side**2].astype(np.float64)
    deviation = x.std(axis=0)
    varies = deviation > 0
    scaled = np.where(varies, (x - x.mean(axis=0)) / np.where(varies, deviation, 1), 0)
    image, there = scaled.reshape(-1, side, side), varies.reshape(side, side)
    across = (image[:, :, 1:] * image[:, :, :-1]).mean(axis=0)[there[:, 1:] & there[:, :-1]]
    down = (image[:, 1:] * image[:, :-1]).mean(axis=0)[there[1:] & there[:-1]]
    if not (across.size and down.size):
        return False
    any_two = np.abs(scaled.T @ scaled / len(scaled))[np.ix_(varies, varies)].mean()
    return min(across.mean(), down.mean()) > max(0.2, 1.3 * any_two)


def _address(pixels: np.ndarray) -> str:
    buffer = io.BytesIO()
    nothing: Any = {"Software": None}
    imsave(buffer, pixels, format="png", metadata=nothing)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
