"""The demonstration behind `make demo`: handwritten digits, beside scikit-learn's own classifiers."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF as SklearnRBF
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from autogp.data import ArraySource, InputScaler, summarise
from autogp.inference import Settings, train
from autogp.inference.start import start_inducing_inputs, start_kernel
from autogp.likelihoods import Softmax
from autogp.metrics import error_rate, expected_calibration_error, negative_log_probability
from autogp.model import SparseGP

__all__ = ["main"]

FOLDER = Path("demo")


def autogp_probabilities(x: np.ndarray, y: np.ndarray, x_test: np.ndarray) -> np.ndarray:
    source = ArraySource(x, y)
    scaler = InputScaler.from_summary(summarise(source), "global")
    model = SparseGP(
        start_kernel("rbf", source, scaler, variance=10.0),
        Softmax(10),
        start_inducing_inputs(source, 150, scaler, by_class=True),
    )
    train(model, source, Settings(objective="loo", max_epochs=150), input_scaler=scaler)
    return model.predict(scaler(torch.from_numpy(x_test))).mean.double().numpy()


def gaussian_process_probabilities(x: np.ndarray, y: np.ndarray, x_test: np.ndarray) -> np.ndarray:
    # One binary GP for each digit, on all rows. Its optimiser would take many minutes, so its kernel stays at a common
    # choice: the median distance over sqrt(2).
    typical = np.median(np.linalg.norm(x[:500, None] - x[None, :500], axis=-1))
    options: dict[str, Any] = {"optimizer": None}
    model = GaussianProcessClassifier(10.0 * SklearnRBF(typical / np.sqrt(2)), **options)
    return model.fit(x, y).predict_proba(x_test)


def logistic_probabilities(x: np.ndarray, y: np.ndarray, x_test: np.ndarray) -> np.ndarray:
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))
    return model.fit(x, y).predict_proba(x_test)


CONTENDERS: dict[str, Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]] = {
    "autogp, 150 inducing inputs": autogp_probabilities,
    "scikit-learn GaussianProcessClassifier": gaussian_process_probabilities,
    "scikit-learn LogisticRegression": logistic_probabilities,
}


def main() -> None:
    """Trains the three on the same 1,347 digits, tests them on the other 450, and draws what autogp found hard."""
    console = Console()
    images, labels = load_digits(return_X_y=True)
    split = train_test_split(images, labels, test_size=450, random_state=0, stratify=labels)
    x, x_test, y, y_test = map(np.asarray, split)
    console.print(f"Handwritten digits: {len(x)} images of 8 x 8 to learn from, {len(x_test)} to be tested on.\n")
    table = Table("model", "seconds", "errors", "rate", "NLP", "calibration", box=None)
    results = {}
    for name, probabilities in CONTENDERS.items():
        with console.status(f"training {name}"):
            started = time.perf_counter()
            results[name] = probabilities(x, y, x_test)
            seconds = time.perf_counter() - started
        rate = error_rate(y_test, results[name])
        table.add_row(
            name,
            f"{seconds:.1f}",
            f"{round(rate * len(y_test))}",
            f"{100 * rate:.1f} %",
            f"{negative_log_probability(y_test, results[name]):.3f}",
            f"{expected_calibration_error(y_test, results[name]):.3f}",
        )
    console.print(table)
    console.print("\nNLP: mean of -log p(right digit). Calibration: gap between confidence and accuracy.")
    console.print("Smaller is better for all.")
    picture = draw(x_test, y_test, results["autogp, 150 inducing inputs"])
    console.print(f"\nThe digits that autogp is least sure of, with its probabilities: [bold]{picture}[/bold]")


def draw(images: np.ndarray, labels: np.ndarray, probabilities: np.ndarray) -> Path:
    """The 16 least certain digits and the probabilities they get."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    hardest = np.argsort(probabilities.max(axis=1))[:16]
    figure, axes = pyplot.subplots(4, 8, figsize=(11, 6), width_ratios=[1, 1.4] * 4, layout="constrained")
    for number, (picture, bars) in zip(hardest, axes.reshape(-1, 2), strict=True):
        guess = int(probabilities[number].argmax())
        picture.imshow(images[number].reshape(8, 8), cmap="gray_r")
        picture.set_xticks([])
        picture.set_yticks([])
        colours = ["#1b9e77" if digit == labels[number] else "#bbbbbb" for digit in range(10)]
        bars.bar(range(10), probabilities[number], color=colours)
        bars.set_ylim(0, 1)
        bars.set_xticks(range(10), [str(digit) for digit in range(10)], fontsize=6)
        bars.set_yticks([0, 0.5, 1], ["0", "½", "1"], fontsize=6)
        bars.set_title(
            f"says {guess}, is {labels[number]}",
            fontsize=8,
            color="#1b9e77" if guess == labels[number] else "#d95f02",
        )
        bars.spines[["top", "right"]].set_visible(False)
    figure.suptitle("The least certain of 450 test digits; green: the right answer")
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / "digits.png"
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
    return path


if __name__ == "__main__":
    main()
