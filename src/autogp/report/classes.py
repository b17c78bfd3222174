"""What a report says about a classifier."""

import math
from typing import Any

import numpy as np

from autogp import metrics
from autogp.report.figures import reliability_figure
from autogp.report.heldout import HeldOut, percent, score_of
from autogp.report.regions import dependence

__all__ = ["class_content"]

MOST_CLASSES = 20  # of a confusion matrix
MOST_PAIRS = 15
HARD_ROWS = 12


def class_content(held: HeldOut) -> dict[str, Any]:
    """Scores, calibration, confusions and hard rows, for the template."""
    labels = [str(label) for label in held.estimator.classes_]
    probabilities = held.estimator.predict_proba(held.source)
    said: Any = probabilities.argmax(axis=1)
    confidence = probabilities.max(axis=1)
    counts = np.zeros((len(labels), len(labels)), np.int64)  # [true, said]
    np.add.at(counts, (held.y, said), 1)
    return {
        "task": f"tells {len(labels)} classes apart",
        "scores": [
            *_scores(held.y, metrics.class_scores(held.y, probabilities), labels),
            *_ranking(held.y, probabilities, labels),
        ],
        "dependence": dependence(held, of_class=1) if len(labels) == 2 else [],
        "dependence_of": f"the probability of {labels[1]}",
        "calibration": {
            "title": "Can its confidence be trusted?",
            "figure": reliability_figure(confidence, said == held.y, len(labels)),
            "words": _confidence_words(confidence, said == held.y),
            "reading": "Each point holds the rows that the model is about equally sure of. On the dashed line it is "
            "right as often as it says; below, it is overconfident. The shaded bars show how far chance alone may have "
            "moved it.",
        },
        "confusion": _matrix(counts, labels) if len(labels) <= MOST_CLASSES else None,
        "confused_pairs": _pairs(counts, labels) if len(labels) > MOST_CLASSES else None,
        "hard": [
            _hard(
                held,
                probabilities,
                labels,
                held.distinct(np.argsort(confidence, kind="stable"), HARD_ROWS),
                "Least certain",
                "The rows whose most probable class has the least probability.",
            ),
            _hard(
                held,
                probabilities,
                labels,
                held.distinct(_confidently_wrong(confidence, said != held.y), HARD_ROWS),
                "Confidently wrong",
                "The mistakes that the model was surest of: worth a look for wrong labels and missing columns.",
            ),
        ],
        "at_inducing": _at_inducing(held, probabilities, labels),
    }


def _scores(y: np.ndarray, scores: dict[str, float], labels: list[str]) -> list[dict[str, str]]:
    frequencies = np.bincount(y, minlength=len(labels)) / len(y)
    guess = int(frequencies.argmax())
    error, nlp = scores["error"], scores["nlp"]
    known = frequencies[frequencies > 0]
    return [
        {
            "name": "Error",
            "value": percent(error),
            "words": f"{round(error * len(y)):,} of {len(y):,} rows get a wrong class. Always saying "
            f"“{labels[guess]}”, the most common one, would miss {percent(1 - frequencies[guess])}.",
        },
        {
            "name": "NLP",
            "value": score_of(nlp),
            "words": "Negative log probability of the right class: 0 is perfect, and confident mistakes cost most. On "
            f"(geometric) average the right class gets {percent(math.exp(-nlp))}; by class frequencies alone it would "
            f"get {percent(math.exp(np.sum(known * np.log(known))))}.",
        },
        {
            "name": "Brier score",
            "value": score_of(scores["brier"]),
            "words": "Squared distance between the probabilities and what happened: 0 is perfect, 2 the worst. Class "
            f"frequencies alone would score {score_of(1 - np.sum(frequencies**2))}.",
        },
        {
            "name": "Calibration error",
            "value": score_of(scores["calibration"]),
            "words": "Typical gap between how sure the model is and how often it is right: at 0, a probability can be "
            "taken at its word.",
        },
    ]


def _ranking(y: np.ndarray, probabilities: np.ndarray, labels: list[str]) -> list[dict[str, str]]:
    """How well the probability of the second of two classes puts its rows first."""
    if len(labels) != 2 or len(np.unique(y)) < 2:
        return []
    words = (
        f"Area under the ROC curve: how often a row of class “{labels[1]}” gets a higher probability of it than a row "
        f"of class “{labels[0]}”. Chance is 0.5, whatever the shares of the classes."
    )
    return [{"name": "AUC", "value": score_of(metrics.area_under_curve(y, probabilities)), "words": words}]


def _confidence_words(confidence: np.ndarray, right: np.ndarray) -> str:
    gap = right.mean() - confidence.mean()
    chance = 2 * math.sqrt(np.sum(confidence * (1 - confidence))) / len(confidence)
    words = f"It is right for {percent(right.mean())} of the rows, and on average {percent(confidence.mean())} sure: "
    if abs(gap) <= chance:
        return words + "no more of a difference than chance makes."
    return words + ("more modest than it need be." if gap > 0 else "more confident than it should be.")


def _matrix(counts: np.ndarray, labels: list[str]) -> dict[str, Any]:
    totals = counts.sum(axis=1, keepdims=True)
    shares = counts / np.maximum(totals, 1)
    rows = []
    for number, label in enumerate(labels):
        cells = [
            {"count": int(count), "strength": f"{math.sqrt(share):.2f}", "right": other == number}
            for other, (count, share) in enumerate(zip(counts[number], shares[number], strict=True))
        ]
        found = percent(shares[number, number]) if totals[number] else "–"
        rows.append({"label": label, "cells": cells, "found": found})
    return {"labels": labels, "rows": rows}


def _pairs(counts: np.ndarray, labels: list[str]) -> list[dict[str, Any]]:
    wrong = counts - np.diag(np.diag(counts))
    order = np.argsort(-wrong, axis=None, kind="stable")[:MOST_PAIRS]
    return [
        {
            "true": labels[true],
            "said": labels[said],
            "count": int(wrong[true, said]),
            "share": percent(wrong[true, said] / counts[true].sum()),
        }
        for true, said in zip(*np.unravel_index(order, counts.shape), strict=True)
        if wrong[true, said]
    ]


def _confidently_wrong(confidence: np.ndarray, wrong: np.ndarray) -> np.ndarray:
    rows = np.flatnonzero(wrong)
    return rows[np.argsort(-confidence[rows], kind="stable")]


def _hard(
    held: HeldOut, probabilities: Any, labels: list[str], rows: np.ndarray, title: str, words: str
) -> dict[str, Any]:
    found = []
    for row in rows:
        best = np.argsort(-probabilities[row], kind="stable")[:3]
        found.append(
            {
                "number": int(row) + 1,
                "true": labels[held.y[row]],
                "said": labels[best[0]],
                "right": bool(best[0] == held.y[row]),
                "sure": percent(probabilities[row, best[0]]),
                "own": percent(probabilities[row, held.y[row]]),
                "bars": [
                    {
                        "label": labels[number],
                        "share": f"{probabilities[row, number]:.3f}",
                        "percent": f"{100 * probabilities[row, number]:.0f} %",
                        "true": bool(number == held.y[row]),
                    }
                    for number in best
                ],
            }
        )
    return {"title": title, "words": words, "rows": found, "indices": rows, "none": "No row was wrong."}


def _at_inducing(held: HeldOut, probabilities: np.ndarray, labels: list[str]) -> dict[str, Any]:
    """The rows nearest to inducing inputs, in the order of what the model says of them."""
    rows = np.unique(held.nearest_to_inducing())
    said = probabilities[rows].argmax(axis=1)
    order = np.lexsort((-probabilities[rows].max(axis=1), said))
    return {"rows": rows[order], "said": [labels[number] for number in said[order]], "heading": "says"}
