"""One model file: tensors, and a JSON description of the objects that they belong to; nothing in it is run."""

__all__ = ["Saved", "load", "save"]

import inspect
import math
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

import autogp
from autogp.model import SparseGP
from autogp.persistence.checks import (
    MOST_LEVELS,
    MOST_MODULES,
    MOST_NUMBERS,
    OWN,
    check_numbers,
    check_parts,
    make_posterior,
)
from autogp.posteriors import Posterior
from autogp.storage import StorageError, read_tensors, write_tensors


class Saved(NamedTuple):
    """What a file holds: the objects by name, and the caller's own description and tensors."""

    modules: dict[str, nn.Module]
    description: dict[str, Any]
    tensors: dict[str, Tensor]


def save(
    path: str | Path,
    modules: dict[str, nn.Module],
    description: dict[str, Any],
    tensors: dict[str, Tensor] | None = None,
) -> None:
    """Write models and parts of models, with a description in plain JSON and tensors, to one file.

    A class of your own keeps each argument of its constructor as an attribute of the same name (a number, a string, a
    module, or a list of these), as a parameter or buffer of that name, or as a parameter `log_<name>` that holds its
    logarithm. What would not come back equal is not written.

    >>> import tempfile
    >>> from autogp.kernels import RBF
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(f"{folder}/model.autogp", {"kernel": RBF(lengthscale=2.0)}, {"columns": ["age"]})
    ...     saved = load(f"{folder}/model.autogp")
    >>> saved.modules["kernel"].lengthscale.item(), saved.description
    (2.0, {'columns': ['age']})
    """
    stored = {f"tensors.{name}": tensor for name, tensor in (tensors or {}).items()}
    used: set[type] = set()
    try:
        for name, module in modules.items():
            if not isinstance(module, nn.Module):
                raise TypeError(f"{name!r} must be a torch module, got {type(module).__name__}")
            stored |= {f"{name}.{key}": tensor.detach().cpu() for key, tensor in module.state_dict().items()}
        content = {
            "kind": "model",
            "versions": {"autogp": autogp.__version__, "torch": torch.__version__},
            "modules": {name: _describe(module, used) for name, module in modules.items()},
            "frozen": [name for name, parameter in _parameters(modules) if not parameter.requires_grad],
            "evaluating": [name for name, part in _parts(modules) if not part.training],
            "description": description,
        }
        _restore(content, stored, used)
    except Exception as error:
        raise StorageError(f"{path} cannot be written: {_brief(error)}") from error
    write_tensors(path, stored, content)


def load(path: str | Path, modules: Sequence[type] = ()) -> Saved:
    """Read what `save` wrote: objects that compute the same bits as those saved. Anything else is a `StorageError`.

    Only autogp's own classes are built, and those that you pass as `modules`.
    """
    _by_name(modules)  # the caller's mistakes are not the file's
    tensors, content = read_tensors(path, kind="model")
    try:
        return _restore(content, tensors, modules)
    except _UnknownTypeError as error:
        raise StorageError(f"{path} cannot be loaded: {_brief(error)}") from error
    except Exception as error:  # whatever a hostile description makes fail, there is one answer
        raise StorageError(f"{path} holds no sound model: {_brief(error)}; save it again", damaged=True) from error


class _UnknownTypeError(ValueError):
    """A type that is neither autogp's own nor passed by the caller."""


def _parts(modules: dict[str, nn.Module]) -> Iterator[tuple[str, nn.Module]]:
    """All modules within, by the path of their attributes."""
    for name, module in modules.items():
        yield from module.named_modules(prefix=name, remove_duplicate=False)


def _parameters(modules: dict[str, nn.Module]) -> Iterator[tuple[str, nn.Parameter]]:
    for name, module in modules.items():
        yield from module.named_parameters(prefix=name, remove_duplicate=False)


def _describe(module: nn.Module, used: set[type]) -> dict[str, Any]:
    """The type of a module and the arguments of its constructor, as JSON; arguments that are tensors go without saying.

    The types met are added to `used`.
    """
    kind = type(module)
    used.add(kind)
    arguments = {}
    for name in _signature(kind).parameters:
        tensors = module._parameters | module._buffers
        value = getattr(module, name, tensors)  # no attribute has this value
        if isinstance(value, Tensor) or value is tensors:
            if tensors.get(name) is None and tensors.get(f"log_{name}") is None:
                raise TypeError(_advice(kind, name))
        else:
            arguments[name] = _encode(value, used, _advice(kind, name))
    return {"type": kind.__name__, "arguments": arguments}


def _encode(value: Any, used: set[type], advice: str) -> Any:
    if isinstance(value, (list, tuple, nn.ModuleList)):
        return [_encode(item, used, advice) for item in value]
    if isinstance(value, nn.Module):
        return _describe(value, used)
    value = value.item() if isinstance(value, np.generic) else value
    if value is None or isinstance(value, (bool, int, str)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise TypeError(advice)


def _restore(content: dict[str, Any], tensors: dict[str, Tensor], types: Iterable[type]) -> Saved:
    """The modules described, with their tensors in place, and what is the caller's own."""
    match content:
        case {
            "modules": dict(described),
            "frozen": list(frozen),
            "evaluating": list(evaluating),
            "description": dict(description),
            "versions": dict(),
        }:
            pass
        case _:
            raise ValueError("it lacks a description of its modules")
    for name in described:
        if not name.isidentifier() or name == "tensors":
            raise ValueError(f"{name[:80]!r} is no name for a module: use letters, digits and _, not 'tensors'")
    groups: dict[str, dict[str, Tensor]] = {name: {} for name in [*described, "tensors"]}
    for key, tensor in tensors.items():
        name, _, rest = key.partition(".")
        if name not in groups or not rest:
            raise ValueError(f"the tensor {key[:80]!r} belongs to no module")
        groups[name][rest] = tensor
    builder = _Builder(tensors, _by_name(types))
    modules = {}
    with torch.no_grad(), torch.random.fork_rng(devices=[]):  # a constructor may draw numbers
        for name, entry in described.items():
            modules[name] = builder.build(entry, name)
            _assign(modules[name], groups[name], name)
            check_numbers(modules[name])
    parameters, parts = dict(_parameters(modules)), dict(_parts(modules))
    if not (set(frozen) <= parameters.keys() and set(evaluating) <= parts.keys()):
        raise ValueError("it lists parameters or modules that it does not have")
    for name, parameter in parameters.items():
        parameter.requires_grad_(name not in frozen)
    for name, part in parts.items():
        part.training = name not in evaluating
    return Saved(modules, description, groups["tensors"])


class _Builder:
    """Makes modules through their constructors, which check what the description says."""

    def __init__(self, tensors: dict[str, Tensor], types: dict[str, type]):
        self.tensors = tensors
        self.types = types
        self.count = 0

    def build(self, content: Any, path: str) -> nn.Module:
        match content:
            case {"type": str(name), "arguments": dict(arguments)} if len(content) == 2:
                pass
            case _:
                raise ValueError(f"{path} is not described by a type and its arguments")
        self.count += 1
        if self.count > MOST_MODULES or path.count(".") > 2 * MOST_LEVELS:
            raise ValueError(f"it has more than {MOST_MODULES} modules, or more than {MOST_LEVELS} within each other")
        if name not in self.types:
            raise _UnknownTypeError(
                f"{path} is a {name[:80]!r}, which is none of autogp's own classes: pass yours, "
                f"load(path, modules=[{name[:80]}]) (on the command line --code FILE.py), or upgrade autogp"
            )
        kind = self.types[name]
        signature = _signature(kind)
        for argument, value in arguments.items():
            if argument not in signature.parameters:
                raise ValueError(f"{path}: {name} has no argument {argument[:80]!r}")
            if kind in OWN and isinstance(value, int) and abs(value) > MOST_NUMBERS:
                raise ValueError(f"{path}: the argument {argument!r} is beyond {MOST_NUMBERS}")
        values = {key: value for key in signature.parameters for value in self._values(key, arguments, path)}
        try:
            if kind is Posterior:
                return make_posterior(self.tensors, path)
            if kind is SparseGP:
                check_parts(**values)
            bound = inspect.BoundArguments(signature, values)  # pyright: ignore[reportArgumentType]
            module = kind(*bound.args, **bound.kwargs)
        except Exception as error:
            raise ValueError(f"{path} cannot be made: {_brief(error)}") from error
        for argument in arguments:
            if not _same(getattr(module, argument, None), values[argument]):
                raise ValueError(f"{path} does not keep the argument {argument!r} as given: {_advice(kind, argument)}")
        return module

    def _values(self, key: str, arguments: dict[str, Any], path: str) -> list[Any]:
        """An argument's value: from the description, else a tensor of its name, else of its logarithm, else none."""
        own, log = self.tensors.get(f"{path}.{key}"), self.tensors.get(f"{path}.log_{key}")
        if key in arguments:
            return [self._decode(arguments[key], f"{path}.{key}")]
        if own is None and log is not None:
            if log.numel() > MOST_NUMBERS:
                raise ValueError(f"{path}: the argument {key!r} has more than {MOST_NUMBERS} numbers")
            own = log.exp()
        return [] if own is None else [own if own.ndim else own.item()]

    def _decode(self, content: Any, path: str) -> Any:
        if isinstance(content, list):
            return [self._decode(item, f"{path}.{i}") for i, item in enumerate(content)]
        return self.build(content, path) if isinstance(content, dict) else content


def _assign(module: nn.Module, state: dict[str, Tensor], path: str) -> None:
    """Put the file's tensors in place of those that the constructor made, which they must match."""
    own = module.state_dict()
    for name in sorted(own.keys() ^ state.keys()):
        raise ValueError(
            f"the tensor '{path}.{name[:80]}' is " + ("missing" if name in own else "not one of its module")
        )
    for name, tensor in state.items():
        if (tensor.shape, tensor.dtype) != (own[name].shape, own[name].dtype):
            raise ValueError(
                f"the tensor '{path}.{name}' is {tensor.dtype} of shape {tuple(tensor.shape)}; its module makes "
                f"{own[name].dtype} of shape {tuple(own[name].shape)}"
            )
    module.load_state_dict(state, assign=True)


def _by_name(types: Iterable[type]) -> dict[str, type]:
    found = {kind.__name__: kind for kind in OWN}
    for kind in types:
        if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
            raise TypeError(f"modules must be classes derived from torch.nn.Module, got {kind!r}")
        if found.setdefault(kind.__name__, kind) is not kind:
            raise ValueError(f"two classes have the name {kind.__name__!r}: give yours another")
    return found


@cache
def _signature(kind: type) -> inspect.Signature:
    if kind.__init__ is nn.Module.__init__ or kind is Posterior:  # no arguments, or none that its tensors do not tell
        return inspect.Signature()
    signature = inspect.signature(kind)
    for parameter in signature.parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            raise TypeError(f"the constructor of {kind.__name__} takes **{parameter.name}: name its arguments instead")
    return signature


def _same(kept: Any, given: Any) -> bool:
    if isinstance(given, list):
        kept = list(kept) if isinstance(kept, (list, tuple, nn.ModuleList)) else None
        return kept is not None and len(kept) == len(given) and all(map(_same, kept, given))
    kept = kept.item() if isinstance(kept, np.generic) else kept
    return kept is given or (type(kept) is type(given) and kept == given)


def _advice(kind: type, argument: str) -> str:
    if kind.__module__.startswith("torch."):
        return f"a {kind.__name__} of torch cannot be saved by itself: make it in the constructor of your own module"
    return (
        f"the constructor of {kind.__name__} must keep its argument {argument!r} as self.{argument} (a number, a "
        "string, a module or a list of these), as a parameter or buffer of that name, or its logarithm as "
        f"self.log_{argument}"
    )


def _brief(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 500 else text[:500] + " ..."
