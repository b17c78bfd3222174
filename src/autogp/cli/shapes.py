"""Shapes of images as people write them."""

import re

import typer

__all__ = ["parse_shape"]


def parse_shape(text: str) -> tuple[int, ...]:
    """Height, width and, where there are several, channels.

    Example:
        >>> parse_shape("28x28"), parse_shape("32x32x3")
        ((28, 28), (32, 32, 3))
    """
    if not re.fullmatch(r"\d+x\d+(x\d+)?", text.strip().lower()):
        raise typer.BadParameter(f"{text!r} is no shape of images: write 28x28, 32x32x3 or 3x32x32")
    return tuple(map(int, text.strip().lower().split("x")))
