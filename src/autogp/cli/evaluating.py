"""The commands `autogp evaluate` and `autogp report`: predictions against what a file holds."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import is_classifier

from autogp import metrics
from autogp.cli.models import encoder_for, open_model, target_of
from autogp.cli.predicting import QUANTILES, output_names
from autogp.cli.terminal import Terminal
from autogp.cli.writing import check_writable
from autogp.data import ArraySource, check_finite, open_source
from autogp.estimators.inputs import targets_of
from autogp.estimators.summary import label_names
from autogp.training.distributed import processes

__all__ = ["evaluate_file", "report_file"]

WORDS = {
    "error": "share of rows whose class is missed",
    "nlp": "mean of -log p(target): punishes confident mistakes",
    "brier": "squared error of the probabilities, 0 to 2",
    "calibration": "gap between confidence and accuracy",
    "auc": "how often a row of the second class is ranked above one of the first",
    "smse": "mean squared error over the target's variance",
    "r2": "share of the target's variance that is explained",
    "rmse": "typical error, in the target's unit",
    "coverage": "share of targets between q05 and q95: should be 0.9",
}


def evaluate_file(
    terminal: Terminal,
    model_path: Path,
    data: str,
    target: str | None,
    exposure: str | None = None,
    code: Path | None = None,
) -> None:
    """Shows the scores of a model on a file with targets."""
    model = open_model(model_path, code)
    source = _open(model, data, target, exposure)
    scores, by_target = _scores(model, source) if exposure is None else (_count_scores(model, source), {})
    for note in source.notes:
        terminal.note(note)
    terminal.say(f"{model_path} on {len(source):,} rows of {data}")
    columns = {"all targets": scores, **by_target} if by_target else {"value": scores}
    rows = ([name, *(_shown(each.get(name)) for each in columns.values()), WORDS[name]] for name in scores)
    terminal.table(["score", *columns, ""], rows)
    terminal.result(
        {"rows": len(source), **scores, "notes": source.notes} | ({"targets": by_target} if by_target else {})
    )


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def report_file(
    terminal: Terminal, model_path: Path, data: str, target: str | None, out: Path, code: Path | None = None
) -> None:
    """Writes the page that `autogp report` promises."""
    from autogp.report import write_report  # here: matplotlib is a tenth of what `autogp evaluate` would import

    check_writable(out, data, model_path)
    model = open_model(model_path, code)
    source = _open(model, data, target)
    for note in source.notes:
        terminal.note(note)
    what = target or target_of(model)
    title = f"How well does {model_path.name} predict {what or 'the targets'} in {Path(data).name}?"
    write_report(out, model, source, title=title)
    terminal.say(f"{out} is written: open it in a browser")
    terminal.result({"out": str(out), "rows": len(source), "notes": source.notes})


def _open(model: Any, data: str, target: str | None, exposure: str | None = None) -> ArraySource:
    encoder = encoder_for(model, data)
    # A row without a target cannot be scored: how many there are is among the notes.
    reading: dict[str, Any] = {"encoder": encoder, "among": processes(), "drop_missing_targets": True}
    if exposure is not None:
        target = target or target_of(model)
        if encoder is None or target is None or is_classifier(model):
            raise ValueError("--exposure is for a table and a model of counts, the target of which has a name")
        return open_source(data, [target, exposure], **reading)
    if encoder is None:
        source = open_source(data, target)
        if source.y.ndim == 2 and source.y.shape[1] == 0:
            raise ValueError(f"{data} holds no targets: say with --target where they are")
        check_finite(source, allow_missing_targets=True)
        return source
    several = None if target else model.target_names_
    if several is not None and len(several) > 1:
        return open_source(data, several, **reading)
    target = target or target_of(model)
    if target is None:
        raise ValueError("the model does not know the name of its target: say --target COLUMN")
    if target in encoder.used:
        raise ValueError(f"column {target!r} is an input of the model: --target names the column that it predicts")
    text = is_classifier(model) and model.classes_.dtype.kind in "UO"
    classes = [str(label) for label in model.classes_] if text else None
    source = open_source(data, target, classes=classes, **reading)
    if source.classes is not None and not text:
        known = f"the classes {_listed(model.classes_)}" if is_classifier(model) else "numbers"
        raise ValueError(
            f"{data}: target column {target!r} holds text, such as {source.classes[0]!r}; the model predicts {known}"
        )
    return source


def _codes(model: Any, source: ArraySource) -> np.ndarray:
    """The place of each row's class among the model's, [N]."""
    if source.classes is not None:
        return source.y
    place = np.searchsorted(model.classes_, source.y).clip(0, len(model.classes_) - 1)
    wrong = np.flatnonzero(model.classes_[place] != source.y)
    if len(wrong):
        row = int(wrong[0])
        raise ValueError(
            f"the target holds {source.y[row]} in row {row + 1}, which is none of the model's classes "
            f"{_listed(model.classes_)}"
        )
    return place


def _listed(classes: np.ndarray) -> str:
    return ", ".join(map(str, classes[:20]))


def _label_scores(y: np.ndarray, probabilities: np.ndarray) -> dict[str, float]:
    """Scores of labels [N, P]: each label of a row counts as a prediction of two classes."""
    if y.shape != probabilities.shape:
        raise ValueError(f"the data has targets of shape {y.shape[1:]}, the model has {probabilities.shape[1]} labels")
    known = ~np.isnan(y)
    p = probabilities[known]
    return metrics.class_scores(y[known].astype(np.int64), np.stack([1 - p, p], -1))


def _count_scores(model: Any, source: ArraySource) -> dict[str, float]:
    """Scores of counts and their exposures, [N, 2]."""
    y, exposure = source.y.T
    mean = model.predict(source, exposure=exposure)
    low, high = model.predict(source, quantiles=[QUANTILES["q05"], QUANTILES["q95"]], exposure=exposure).T
    return metrics.number_scores(y, mean, model.log_density(source, y, exposure), (low, high))


def _scores(model: Any, source: ArraySource) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """Scores of all targets, and where there are several, of each by its name."""
    among = processes()

    def shared(function: Callable[[Any], np.ndarray]) -> np.ndarray:
        """Of all rows, in order; each process has a part of them."""
        if len(source) < among.count:
            return function(source)
        return np.concatenate(among.gather(lambda: function(among.part(source))))

    if is_classifier(model) and model.model_.likelihood.num_classes is None:
        y, probabilities = source.y, shared(model.predict_proba)
        scores = _label_scores(y, probabilities)
        parts = zip(label_names(model), y.T[..., None], probabilities.T[..., None], strict=True)
        return scores, {name: _label_scores(*part) for name, *part in parts}
    if is_classifier(model):
        codes, probabilities = _codes(model, source), shared(model.predict_proba)
        scores = metrics.class_scores(codes, probabilities)
        two = probabilities.shape[1] == 2 and len(np.unique(codes)) == 2
        return scores | ({"auc": metrics.area_under_curve(codes, probabilities)} if two else {}), {}
    mean = shared(model.predict)
    if source.y.shape != mean.shape:
        raise ValueError(f"the data has targets of shape {source.y.shape[1:]}, the model of shape {mean.shape[1:]}")
    limits = [QUANTILES["q05"], QUANTILES["q95"]]
    low, high = np.moveaxis(shared(lambda rows: model.predict(rows, quantiles=limits)), -1, 0)
    density = shared(lambda rows: model.log_density(rows, targets_of(rows)))
    scores = metrics.number_scores(source.y, mean, density, (low, high))
    if mean.ndim == 1:
        return scores, {}
    parts = zip(output_names(model, mean.shape[1]), source.y.T, mean.T, low.T, high.T, strict=True)
    return scores, {name: metrics.number_scores(y, own, interval=(a, b)) for name, y, own, a, b in parts}
