"""A frozen feature map is applied once to each row, and what it gives is kept, unless that costs more than it saves."""

import copy
import tempfile
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import nn

from autogp.data import ArraySource, Source, blocks
from autogp.data.sources import as_tensor
from autogp.features.base import Chain, as_map
from autogp.model import SparseGP, apply_map

__all__ = ["apply_frozen", "apply_once", "worth_keeping"]

MEMORY_BYTES = 2**30  # of features that are kept in memory; more go to disk


def apply_frozen(model: SparseGP, *sources: Source) -> tuple[SparseGP, list[Source]]:
    """The model behind the frozen maps at the start of its chain, and the sources as these maps give them.

    The model that is returned shares all parameters with `model`: what it learns, `model` has learnt. Maps whose result
    is not `worth_keeping` stay with it.
    """
    maps = [] if model.features is None else list(_flattened(model.features))
    count = next((i for i, each in enumerate(maps) if any(p.requires_grad for p in each.parameters())), len(maps))
    if not worth_keeping(maps[:count], sources[0], model.device):
        return model, list(sources)
    frozen, rest = copy.deepcopy(Chain(*maps[:count])).eval(), maps[count:]  # as predictions are made
    behind = copy.copy(model)
    behind._modules = {**model._modules, "features": Chain(*rest) if rest else None}
    return behind, [apply_once(frozen, source, model.device, model.dtype) for source in sources]


@torch.no_grad()
def worth_keeping(maps: Sequence[nn.Module], source: Source, device: torch.device | None = None) -> bool:
    """Whether to apply frozen maps once to all rows, rather than to each batch.

    Not maps that are elementwise: they cost less than reading their result would. Nor light ones where their result
    would be a file, and the rows themselves come from memory or are made when they are read.
    """
    if all(as_map(each).elementwise for each in maps):
        return False
    if not getattr(source, "in_memory", False) or not all(
        as_map(each).elementwise or as_map(each).light for each in maps
    ):
        return True
    x = as_tensor(source.rows(np.zeros(1, np.int64))[0]).to(device)
    return len(source) * apply_map(Chain(*maps), x).nbytes <= MEMORY_BYTES


def _flattened(features: nn.Module) -> list[nn.Module]:
    """The maps of chains within chains, in order."""
    if not isinstance(features, Chain):
        return [features]
    return [inner for each in features.maps for inner in _flattened(each)]


@torch.no_grad()
def apply_once(
    features: nn.Module,
    source: Source,
    device: torch.device | None = None,
    dtype: torch.dtype | None = None,
    watch: Callable[[int, int], None] | None = None,
) -> ArraySource:
    """phi(x) beside y, for all rows: in memory, or in a file without a name, which goes with the source or the process.

    `dtype` is by default that in which the map gives its features; `watch` is told how many rows are done, of how many.
    """
    out = None
    targets = []
    for rows, x, y in blocks(source):
        phi = apply_map(features, as_tensor(x).to(device))
        if out is None:
            kind = np.dtype(str(dtype or phi.dtype).removeprefix("torch."))
            shape = (len(source), phi.shape[1])
            if shape[0] * shape[1] * kind.itemsize <= MEMORY_BYTES:
                out = np.empty(shape, kind)
            else:
                with tempfile.TemporaryFile() as file:  # the map keeps it
                    out = np.memmap(file, kind, mode="w+", shape=shape)
        out[rows] = phi.cpu().numpy()
        targets.append(y)
        if watch is not None:
            watch(rows.stop, len(source))
    assert out is not None
    return ArraySource(out, np.concatenate(targets))
