"""Estimators as they are by default on images that no setting was chosen on: `python -m benchmarks.image_defaults`.

Ten sets, drawn here from a seed or made from the digits of scikit-learn. `GPClassifier().fit(images, y)` stands beside
the same with `features=None`, which sees pixels, and a support vector machine with an RBF kernel on pixels. Scores of
test rows and CPU seconds, one thread, go to results/images/defaults.json.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.ndimage import gaussian_filter, rotate, zoom
from sklearn.datasets import load_digits
from sklearn.svm import SVC

from autogp import GPClassifier
from autogp.experiments.record import plain, read_json, write_json
from autogp.metrics import class_scores

SEED = 0
Images = tuple[np.ndarray, np.ndarray]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(SETS), metavar="set", help=", ".join(SETS))
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--results", type=Path, default=Path("results"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    path = options.results / "images" / "defaults.json"
    for name in options.names:
        found = read_json(path) or {}
        kept = found.get(name, {}).get("methods", {})
        write_json(path, found | {name: plain(measure(name, options.methods, kept))})
    print(table(read_json(path)))


def measure(name: str, methods: list[str], kept: dict[str, Any]) -> dict[str, Any]:
    """Scores of these methods; `kept` are those of others."""
    make, rows = SETS[name]
    x, y = make(np.random.default_rng(SEED))
    train, test = (x[:rows], y[:rows]), (x[rows:], y[rows:])
    found = dict(kept)
    for method in methods:
        work, started = METHODS[method], time.process_time()
        scores = work(train, test)
        found[method] = {**scores, "cpu_seconds": time.process_time() - started}
        print(name, method, found[method], flush=True)
    return {"rows": rows, "tested": len(test[1]), "shape": list(x.shape[1:]), "methods": found}


def machine(train: Images, test: Images) -> dict[str, float]:
    (x, y), (rows, labels) = ((each.reshape(len(each), -1) / train[0].max(), of) for each, of in (train, test))
    return {"error": float(np.mean(SVC(C=10).fit(x, y).predict(rows) != labels))}


def ours(train: Images, test: Images, **arguments: Any) -> dict[str, float]:
    return class_scores(test[1], GPClassifier(random_state=SEED, **arguments).fit(*train).predict_proba(test[0]))


METHODS: dict[str, Callable[[Images, Images], dict[str, float]]] = {
    "autogp, images": ours,
    "autogp, pixels": partial(ours, features=None),
    "SVM, pixels": machine,
}


def digits(rng: np.random.Generator) -> Images:
    """8 x 8 pixels, in random order."""
    x, y = (np.asarray(each) for each in load_digits(return_X_y=True))
    order = rng.permutation(len(y))
    return x[order].reshape(-1, 8, 8).astype(np.uint8), y[order]


def large_digits(rng: np.random.Generator) -> Images:
    """24 x 24 pixels, 0 to 1."""
    x, y = digits(rng)
    return np.clip(np.asarray(zoom(x / 16, (1, 3, 3), order=1)), 0, 1), y


def rotated(rng: np.random.Generator) -> Images:
    """Digits, each by its own angle of 60 degrees at most."""
    x, y = large_digits(rng)
    angles = rng.uniform(-60, 60, len(x))
    turned = [rotate(each, angle, reshape=False, order=1) for each, angle in zip(x, angles, strict=True)]
    return (255 * np.clip(turned, 0, 1)).astype(np.uint8), y


def backgrounds(rng: np.random.Generator) -> Images:
    """Digits before smooth clouds."""
    x, y = large_digits(rng)
    clouds = gaussian_filter(rng.normal(size=x.shape), (0, 2, 2))
    clouds = (clouds - clouds.min()) / (clouds.max() - clouds.min())
    return (255 * np.maximum(x, 0.9 * clouds)).astype(np.uint8), y


def textures(rng: np.random.Generator) -> Images:
    """Stripes of six directions with noise, 32 x 32: nothing stands at a fixed place."""
    y = rng.integers(0, 6, 1500)
    down, across = np.mgrid[:32, :32]
    angle = np.pi * y / 6 + rng.normal(0, 0.08, len(y))
    phase, length = rng.uniform(0, 2 * np.pi, len(y)), rng.uniform(4, 8, len(y))
    along = np.cos(angle)[:, None, None] * down + np.sin(angle)[:, None, None] * across
    waves = np.sin(2 * np.pi * along / length[:, None, None] + phase[:, None, None])
    return waves + rng.normal(0, 1.5, waves.shape), y


def shapes(rng: np.random.Generator, count: int, side: int, colours: bool = False) -> Images:
    """Discs, squares, triangles and crosses of any size and place, with noise; coloured at random or grey."""
    y = rng.integers(0, 4, count)
    down, across = np.mgrid[:side, :side]
    images = []
    for kind in y:
        radius = rng.uniform(side / 8, side / 4)
        u, v = (places - rng.uniform(radius, side - radius) for places in (down, across))
        inside = (
            u**2 + v**2 < radius**2,
            (abs(u) < 0.85 * radius) & (abs(v) < 0.85 * radius),
            (abs(u) < radius) & (abs(v) < (u + radius) / 2),
            ((abs(u) < radius / 3) & (abs(v) < radius)) | ((abs(v) < radius / 3) & (abs(u) < radius)),
        )[kind]
        ground, front = rng.uniform(0, 1, (2, 3 if colours else 1))
        front = front if colours else np.ones(1)
        images.append(np.where(inside[..., None], front, 0.5 * ground))
    x = np.stack(images)
    x = np.clip(x + rng.normal(0, 0.1, x.shape), 0, 1)
    x = (255 * x).astype(np.uint8)
    return (x if colours else x[..., 0]), y


def balls(rng: np.random.Generator) -> Images:
    """Which of three colours the larger of two discs has, 24 x 24 x 3."""
    y = rng.integers(0, 3, 1600)
    other = (y + rng.integers(1, 3, len(y))) % 3
    down, across = np.mgrid[:24, :24]
    x = rng.normal(0.3, 0.1, (len(y), 24, 24, 3))
    for image, first, second in zip(x, y, other, strict=True):
        left = rng.integers(0, 2)
        for colour, radius, side in ((first, 5, left), (second, 3, 1 - left)):
            centre = rng.uniform(6, 18), rng.uniform(5, 8) + 10 * side
            inside = (down - centre[0]) ** 2 + (across - centre[1]) ** 2 < radius**2
            image[inside] = 0.2
            image[inside, colour] = 0.9
    return (255 * np.clip(x, 0, 1)).astype(np.uint8), y


SETS: dict[str, tuple[Callable[[np.random.Generator], Images], int]] = {  # and how many rows are for training
    "digits, 8 x 8": (digits, 1000),
    "digits, 50 rows": (digits, 50),
    "two coloured discs, 12 rows": (balls, 12),
    "rotated digits": (rotated, 1000),
    "digits before clouds": (backgrounds, 1000),
    "striped textures": (textures, 750),
    "two coloured discs": (balls, 800),
    "coloured shapes, 32 x 32": (lambda rng: shapes(rng, 2000, 32, colours=True), 1000),
    "shapes, 64 x 64": (lambda rng: shapes(rng, 1200, 64), 600),
    "shapes, 28 x 28, 5,000 rows": (lambda rng: shapes(rng, 6500, 28), 5000),
}


def table(found: dict) -> str:
    """Error of each method, and NLP and CPU seconds of ours, in Markdown."""
    lines = ["| set | rows | " + " | ".join(METHODS) + " |", "|" + "---|" * (2 + len(METHODS))]
    for name, each in found.items():
        cells = [
            f"{100 * scores['error']:.1f} %"
            + (f", {scores['nlp']:.3f}, {scores['cpu_seconds']:.0f} s" if "nlp" in scores else "")
            for scores in (each["methods"][method] for method in METHODS)
        ]
        lines.append(f"| {name} | {each['rows']:,} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
