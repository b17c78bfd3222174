"""The demonstration behind `make demo`: handwritten digits, beside scikit-learn's own classifiers."""

import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from autogp.estimators import GPClassifier
from autogp.metrics import error_rate, expected_calibration_error, negative_log_probability
from autogp.report import write_report

__all__ = ["main"]

EPOCHS = 150


def main(folder: Path = Path("demo")) -> None:
    """Trains three classifiers on 1,347 digits, tests them on the other 450, and writes a report on the first."""
    console = Console()
    images, labels = load_digits(return_X_y=True)
    split = train_test_split(images, labels, test_size=450, random_state=0, stratify=labels)
    x, x_test, y, y_test = map(np.asarray, split)
    console.print(f"Handwritten digits of 8 x 8 pixels: {len(x):,} training images, {len(x_test)} test images.\n")
    table = Table("model", "seconds", "errors", "rate", "NLP", "calibration", box=None)
    models = _models(x)
    for name, model in models.items():
        with console.status(f"training {name}"):
            started = time.perf_counter()
            probabilities = model.fit(x, y).predict_proba(x_test)
            seconds = time.perf_counter() - started
        rate = error_rate(y_test, probabilities)
        table.add_row(
            name,
            f"{seconds:.1f}",
            f"{round(rate * len(y_test))}",
            f"{100 * rate:.1f} %",
            f"{negative_log_probability(y_test, probabilities):.3f}",
            f"{expected_calibration_error(y_test, probabilities):.3f}",
        )
    console.print(table)
    console.print("\nNLP: mean of -log p(true digit). Calibration: gap between confidence and accuracy.")
    console.print("Lower is better for all.")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "report.html"
    write_report(path, models["autogp GPClassifier"], x_test, y_test, title="Handwritten digits")
    console.print(f"\nThe report on the first model: open [bold]{path}[/bold] in a browser.")


def _models(x: np.ndarray) -> dict[str, Any]:
    # scikit-learn's own has one binary GP for each digit, on all rows. Its optimiser would take many minutes, so its
    # kernel stays at a common choice: the median distance over sqrt(2).
    typical = np.median(np.linalg.norm(x[:500, None] - x[None, :500], axis=-1))
    fixed: dict[str, Any] = {"optimizer": None}
    return {
        "autogp GPClassifier": GPClassifier(
            n_inducing=150, objective="loo", max_epochs=EPOCHS, random_state=0, verbose=False
        ),
        "scikit-learn Gaussian process": GaussianProcessClassifier(10.0 * RBF(typical / np.sqrt(2)), **fixed),
        "scikit-learn logistic regression": make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000)),
    }


if __name__ == "__main__":
    main()
