"""Text on its way to a terminal."""

import re

__all__ = ["escaped"]

# Controls but tab and line feed, marks of the writing direction, line separators, undecodable bytes of file names.
STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def escaped(text: str) -> str:
    r"""The text with every character that steers a terminal written out; file names, labels and cells may hold them.

    Example:
        >>> print(escaped("\x1b[2J Größe \u202e"))
        \x1b[2J Größe \u202e
    """
    return STEERING.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
