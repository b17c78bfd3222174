"""Values as the Python code that makes them."""

import functools
import inspect
from dataclasses import MISSING, fields, is_dataclass
from importlib import import_module
from typing import Any

from torch import nn

__all__ = ["code", "imports"]

HOMES = (
    "autogp",
    "autogp.data",
    "autogp.datasets",
    "autogp.features",
    "autogp.kernels",
    "autogp.likelihoods",
    "autogp.training",
)


def code(value: Any) -> str:
    """The expression for a number, a text, a dataclass, a module of plain arguments, or a call that is put off.

    >>> from autogp.features import PrincipalComponents
    >>> from autogp.training import Settings
    >>> code({"features": PrincipalComponents(80), "settings": Settings(max_epochs=24)})
    "{'features': PrincipalComponents(num_components=80), 'settings': Settings(max_epochs=24)}"
    """
    if isinstance(value, functools.partial):
        listed = [code(each) for each in value.args] + [f"{name}={code(each)}" for name, each in value.keywords.items()]
        return f"{value.func.__name__}({', '.join(listed)})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {code(each)}" for key, each in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        inner = ", ".join(map(code, value))
        return f"[{inner}]" if isinstance(value, list) else f"({inner},)" if len(value) == 1 else f"({inner})"
    if is_dataclass(value):
        given = {each.name: getattr(value, each.name) for each in fields(value)}
        defaults = {
            each.name: each.default_factory() if each.default_factory is not MISSING else each.default
            for each in fields(value)
        }
    elif isinstance(value, nn.Module):
        parameters = inspect.signature(type(value)).parameters
        given = {name: getattr(value, name) for name in parameters}
        given = {name: tuple(each) if isinstance(each, nn.ModuleList) else each for name, each in given.items()}
        defaults = {name: parameter.default for name, parameter in parameters.items()}
    else:
        return repr(value)
    changed = {name: each for name, each in given.items() if not (each is defaults[name] or each == defaults[name])}
    listed = [f"{name}={code(each)}" for name, each in changed.items()]
    return f"{type(value).__name__}({', '.join(listed)})"


def imports(*values: Any) -> list[str]:
    """Lines that import what the code of these values names."""
    found: dict[str, set[str]] = {}

    def visit(value: Any) -> None:
        if isinstance(value, (dict, list, tuple)):
            for each in value.values() if isinstance(value, dict) else value:
                visit(each)
            return
        kind = value if inspect.isclass(value) or inspect.isfunction(value) else type(value)
        if kind.__module__.startswith("autogp"):
            public = [home for home in HOMES if kind.__name__ in import_module(home).__all__]
            found.setdefault(public[0] if public else kind.__module__, set()).add(kind.__name__)
        if is_dataclass(value) and not inspect.isclass(value):
            visit([getattr(value, each.name) for each in fields(value)])

    for value in values:
        visit(value)
    return [f"from {home} import {', '.join(sorted(names))}" for home, names in sorted(found.items())]
