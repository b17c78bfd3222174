"""From a fitted estimator and held-out rows to one HTML file."""

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from sklearn.base import is_classifier

import autogp
from autogp.data.sources import evenly_spaced
from autogp.estimators import GPClassifier, GPRegressor
from autogp.estimators.summary import described_facts
from autogp.features.base import as_map
from autogp.report.classes import class_content
from autogp.report.figures import training_figure
from autogp.report.heldout import HeldOut, figure_of, percent, share_of
from autogp.report.numbers import number_content
from autogp.report.pictures import heat_map, picture
from autogp.storage import replacing

__all__ = ["write_report"]

MOST_BARS = 20
MOST_PICTURES = 100  # of inducing inputs
INDUCING_ROWS = 10  # of a table


def write_report(
    path: str | Path,
    estimator: GPClassifier | GPRegressor,
    X: Any,
    y: Any = None,
    *,
    title: str | None = None,
    feature_names: Sequence[str] | None = None,
    image_shape: Sequence[int] | None = None,
) -> None:
    """Writes a report on a fitted model as one HTML file, which opens anywhere without a network.

    Arguments:
        path: The file to write; what was there stays until the new one is complete.
        estimator: A fitted `GPClassifier` or `GPRegressor`.
        X: Rows that the model has not learnt from, as `predict` takes them.
        y: Their targets; None where X is a source that has them.
        title: The heading.
        feature_names: Names of the columns, where X has none.
        image_shape: (H, W), (3, H, W) or (H, W, 3) where rows are images; found out for square ones.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise ValueError(f"there is no folder {path.parent} to write {path.name} into")
    if not isinstance(estimator, GPClassifier | GPRegressor):
        raise TypeError(f"estimator must be a fitted GPClassifier or GPRegressor, got {type(estimator).__name__}")
    if is_classifier(estimator) and estimator.model_.likelihood.num_classes is None:  # pyright: ignore
        raise ValueError("a report is on one target, but this classifier has several labels: fit one for each label")
    held = HeldOut(estimator, X, y, feature_names, image_shape)
    classes = is_classifier(estimator)
    content = class_content(held) if classes else number_content(held)
    _add_looks(held, content["hard"])
    today = datetime.date.today()
    page = (
        _environment()
        .get_template("report.html")
        .render(
            content,
            title=title or f"How good is this {'classifier' if classes else 'model'}?",
            version=autogp.__version__,
            date=f"{today.day} {today:%B %Y}",
            rows=len(held),
            trained_rows=estimator.n_rows_,
            columns=estimator.n_features_in_,
            shown_columns=held.columns(),
            facts=described_facts(estimator, importance=False),
            notes=[] if estimator.encoder_ is None else estimator.encoder_.notes,
            training=_training(estimator),
            importance=_importance(held),
            filters=_filters(held),
            inducing=_inducing(held, **content["at_inducing"]),
        )
    )
    page = page.replace(" %", "\N{NO-BREAK SPACE}%")  # a number and its unit stay on one line
    with replacing(path) as temporary:
        temporary.write_bytes(page.encode())


def _environment() -> Environment:
    """Templates that escape whatever they are given: names and labels come from data."""
    environment = Environment(
        loader=PackageLoader("autogp.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"figure": figure_of, "percent": percent}
    return environment


def _add_looks(held: HeldOut, groups: list[dict[str, Any]]) -> None:
    """What the hard rows look like: pictures, or the values of their most important columns."""
    for group in groups:
        rows = group.pop("indices")
        group["pictures"] = held.image_shape is not None
        if not len(rows):
            continue
        looks = held.pictures(rows) if group["pictures"] else held.table(rows)
        for row, look in zip(group["rows"], looks, strict=True):
            row["look"] = look


def _training(estimator: Any) -> dict[str, Any] | None:
    if not estimator.history_:
        return None
    last = estimator.history_[-1]
    return {
        "figure": training_figure(estimator.history_),
        "epochs": last["epoch"],
        "steps": last["step"],
        "seconds": last["seconds"],
        "objectives": list(dict.fromkeys(row["objective"] for row in estimator.history_)),
        "scaled": estimator.target_scaler_ is not None,
        "skipped": last["skipped"],
        "scored": any(row["score"] != row["value"] for row in estimator.history_),
    }


def _importance(held: HeldOut) -> dict[str, Any]:
    shares = held.importances
    if held.image_shape is not None:
        return {"picture": heat_map(shares, held.image_shape), "most": percent(shares.max())}
    encoder = held.estimator.encoder_
    left_out = {} if encoder is None else encoder.ignored
    order = [i for i in np.argsort(-shares, kind="stable") if held.names[i] not in left_out][:MOST_BARS]
    bars = [
        {"name": held.names[i], "share": share_of(shares[i]), "width": f"{100 * shares[i] / shares.max():.1f}"}
        for i in order
    ]
    return {"bars": bars, "others": len(shares) - len(left_out) - len(bars), "rest": share_of(1 - shares[order].sum())}


def _filters(held: HeldOut) -> list[str]:
    """The small pictures that images are compared with, as addresses; grey is 0, and each has its own range."""
    features = held.estimator.model_.features
    found = None if features is None else as_map(features).patterns()
    if found is None or found.shape[3] not in (1, 3):
        return []
    shown = np.moveaxis(found.detach().cpu().numpy()[:MOST_PICTURES], 3, 1)  # planes, [F, C, h, w]
    return [picture(z, z.shape, (-abs(z).max(), abs(z).max())) for z in shown]


def _inducing(held: HeldOut, rows: np.ndarray, said: list[str], heading: str) -> dict[str, Any]:
    pictures = held.image_shape is not None
    chosen = evenly_spaced(len(rows), MOST_PICTURES if pictures else INDUCING_ROWS)
    looks = held.pictures(rows[chosen]) if pictures else held.table(rows[chosen])
    return {
        "count": held.estimator.model_.inducing_inputs.shape[-2],
        "rows": len(rows),
        "heading": heading,
        "pictures": pictures,
        "shown": [{"look": look, "said": said[place]} for place, look in zip(chosen, looks, strict=True)],
    }
