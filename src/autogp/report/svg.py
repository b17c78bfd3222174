"""Matplotlib figures as SVG inside the page, in the page's own colours and font."""

import io
import re
import warnings
from typing import Any

import matplotlib
from markupsafe import Markup, escape
from matplotlib.figure import Figure

__all__ = ["ACCENT", "INK", "LINE", "MUTED", "PAPER", "WARN", "canvas", "in_page"]

# Drawn in these, and then replaced by the style sheet's variables, which differ between light and dark.
INK, MUTED, LINE, ACCENT, WARN, PAPER = "#010101", "#020202", "#030303", "#040404", "#050505", "#060606"
VARIABLES = {INK: "ink", MUTED: "muted", LINE: "line", ACCENT: "accent", WARN: "warn", PAPER: "paper"}

STYLE: dict[Any, Any] = {
    "font.size": 9.5,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": LINE,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": LINE,
    "grid.linewidth": 0.7,
    "xtick.color": LINE,
    "ytick.color": LINE,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "text.color": INK,
    "svg.fonttype": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "ytick.major.size": 0,
    "xtick.major.size": 3,
    "figure.constrained_layout.h_pad": 0.06,
    "figure.constrained_layout.w_pad": 0.04,
}


def canvas(width: float, height: float, **options: Any) -> tuple[Figure, Any]:
    """A figure of so many inches, and its axes."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        return figure, figure.subplots(**options)


def in_page(figure: Figure, name: str, alt: str) -> Markup:
    """The figure as an SVG element; `name` sets its ids apart from those of other figures."""
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": name}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # text stays text: the browser has fonts for it
        figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    text = buffer.getvalue()
    width, height = re.findall(r'viewBox="0 0 (\S+) (\S+)"', text)[0]
    text = text[text.index("<g") : text.rindex("</svg>")]
    text = re.sub(r'<g id="[^"]*"', "<g", text)  # only markers and clips are referred to
    text = re.sub(r"font-family: [^;\"]+;? ?", "", text)
    text = re.sub(r' transform="rotate\(-0 [^)]*\)"', "", text)
    text = re.sub(r' (d|x|y|transform)="[^"]*"', lambda found: _shorter(found[0]), text)
    text = re.sub(r"\s+", " ", text).replace("> <", "><")
    for colour, variable in VARIABLES.items():
        text = text.replace(colour, f"var(--{variable})")
    head = f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(alt)}">'
    return Markup(f"{head}{text}</svg>")


def _shorter(numbers: str) -> str:
    return re.sub(r"\d+\.\d{2,}", lambda found: f"{float(found[0]):.1f}", numbers)
