"""A model from its file: what it is, and how data files become rows that it takes."""

from pathlib import Path
from typing import Any

from sklearn.base import is_classifier

from autogp.cli.code import classes_of
from autogp.cli.terminal import Terminal
from autogp.data import TableEncoder, is_table
from autogp.estimators import load_model
from autogp.estimators.summary import describe

__all__ = ["encoder_for", "facts", "open_model", "show_model", "target_of"]


def show_model(terminal: Terminal, path: Path, code: Path | None = None) -> None:
    """The command `autogp info`."""
    model = open_model(path, code)
    terminal.say(describe(model))
    notes = [] if model.encoder_ is None else model.encoder_.notes
    for note in notes:
        terminal.say(f"  {note}")
    terminal.result({"model": str(path), **facts(model), "notes": notes, "summary": describe(model)})


def open_model(path: Path, code: Path | None = None) -> Any:
    """The estimator in a model file; `code` is a Python file with classes of its own."""
    if is_table(path) or path.suffix in (".npz", ".npy"):
        raise ValueError(f"{path} is data, not a model: name the model first, then the data")
    return load_model(path, modules=classes_of(code))


def facts(model: Any) -> dict[str, Any]:
    """What a program may want to know about a model."""
    names = getattr(model, "feature_names_in_", None)
    last = model.history_[-1] if model.history_ else {}
    return {
        "estimator": type(model).__name__,
        "likelihood": type(model.model_.likelihood).__name__,
        "kernel": type(model.model_.kernel).__name__,
        "inducing": model.model_.inducing_inputs.shape[-2],
        "rows": model.n_rows_,
        "target": target_of(model),
        "classes": list(model.classes_) if is_classifier(model) else None,
        "inputs": model.n_features_in_ if names is None else list(names),
        "ignored": {} if model.encoder_ is None else model.encoder_.ignored,
        "epochs": last.get("epoch"),
        "seconds": last.get("seconds"),
        "elbo": model.elbo_,
        "loo_score": model.loo_score_,
    }


def target_of(model: Any) -> str | None:
    """The name of the column that the model was trained to predict."""
    return model.target_names_[0] if model.target_names_ is not None and len(model.target_names_) == 1 else None


def encoder_for(model: Any, path: str) -> TableEncoder | None:
    """How the columns of a table become the model's inputs; None for files of arrays, which hold them already."""
    if not is_table(path):
        if model.encoder_ is not None and not model.encoder_.plain:
            raise ValueError(f"{path} has no named columns, but the model was trained on a table: give CSV or Parquet")
        return None
    if model.encoder_ is not None:
        return model.encoder_
    if not hasattr(model, "feature_names_in_"):
        raise ValueError(
            f"{path} has named columns, but the model was trained on {model.n_features_in_} columns without names: "
            "give npz, npy or idx"
        )
    return TableEncoder.of_numbers(list(model.feature_names_in_))
