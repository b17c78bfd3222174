"""Kernels, likelihoods and feature maps from a Python file that the user names."""

import importlib.util
from pathlib import Path
from typing import Any

import typer
from torch import nn

__all__ = ["classes_of", "with_own_parts"]


def classes_of(path: Path | None) -> list[type[nn.Module]]:
    """The modules that a Python file defines. The file is run: only its user names it, never a model file."""
    if path is None:
        return []
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise typer.BadParameter(f"{path} should end in .py", param_hint="--code")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = [each for each in vars(module).values() if isinstance(each, type) and issubclass(each, nn.Module)]
    return [each for each in found if each.__module__ == module.__name__]


def with_own_parts(settings: dict[str, Any], path: Path | None) -> dict[str, Any]:
    """Arguments of an estimator: a kernel or likelihood with the name of a class of the file is an object of it."""
    classes = {each.__name__: each for each in classes_of(path)}
    names = {part: settings.get(part) for part in ("kernel", "likelihood")}
    return settings | {part: classes[name]() for part, name in names.items() if name in classes}
