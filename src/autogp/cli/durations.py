"""Durations as people write them."""

import re

import typer

__all__ = ["parse_duration"]

DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?")


def parse_duration(text: str) -> float:
    """Seconds.

    Example:
        >>> parse_duration("1h30m"), parse_duration("90"), parse_duration("0.5m")
        (5400.0, 90.0, 30.0)
    """
    match = DURATION.fullmatch(text.strip().lower())
    hours, minutes, seconds = (float(part or 0) for part in match.groups()) if match else (0, 0, 0)
    found = 3600 * hours + 60 * minutes + seconds
    if found <= 0:
        raise typer.BadParameter(f"{text!r} is no duration: write 90s, 5m or 1h30m")
    return found
