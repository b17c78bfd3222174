"""The state of a run: what its steps change, how it is kept aside, saved and restored."""

import copy
import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from autogp.model import SparseGP
from autogp.posteriors import Held, Natural, Unwhitened, Variational
from autogp.training.checkpoint import Checkpoint
from autogp.training.optimisers import Adam, Optimiser, RMSProp
from autogp.training.schedule import OBJECTIVES, Phase, Settings

__all__ = ["History", "RunState", "Snapshot", "from_json", "grouped", "to_json"]

COLUMNS = ("epoch", "step", "seconds", "objective", "value", "score", "learning_rate", "skipped")  # of the history
COUNTERS = (
    "seconds",
    "skipped",
    "skipped_in_a_row",
    "rollbacks",
    "step_scale",
    "epoch_value",
    "epoch_score",
    "epoch_steps",
)
Snapshot = dict[str, Tensor]  # a model's state and that of q, by name


@dataclass
class History:
    """What happened: one row per epoch, and which epoch's state was kept.

    A row has epoch, step, seconds, objective, value (per row of data), score (mean log probability of a held-out row,
    or without such rows what `train` says), learning_rate, skipped.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    best_epoch: int = 0
    best_score: float = -math.inf
    stopped: str = ""
    converged: bool = False  # where the run can tell: `converge` can

    def tensors(self) -> dict[str, Tensor]:
        """The rows, column by column."""
        columns = {name: [row[name] for row in self.rows] for name in (self.rows[0] if self.rows else ())}
        if columns:
            columns["objective"] = [OBJECTIVES.index(name) for name in columns["objective"]]
        return {
            name: torch.tensor(column, dtype=torch.int64 if isinstance(column[0], int) else torch.float64)
            for name, column in columns.items()
        }

    @staticmethod
    def rows_of(tensors: dict[str, Tensor]) -> list[dict[str, Any]]:
        columns: dict[str, list] = {name: tensors[name].tolist() for name in COLUMNS if name in tensors}
        if columns:
            columns["objective"] = [OBJECTIVES[number] for number in columns["objective"]]
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


class RunState:
    """Model, q, optimisers, counters and history; everything that a checkpoint must hold is in `tensors` and `plain`.

    q is a value beside the model: in natural form where natural gradients move it, over u while it is held, or always
    over u (`whiten=False`). Else it is the model's own posterior, which gets the value at the end of the run.
    """

    def __init__(self, model: SparseGP, settings: Settings):
        self.model = model
        use_natural = settings.optimiser == "natural" and model.posterior.has_natural_form
        self.natural = Natural.of(model.posterior) if use_natural else None
        self.held: Held | None = None
        self.over_u = None if settings.whiten else Unwhitened(model.posterior, _prior_factor(model))
        parts: dict[str, list[nn.Parameter]] = {
            "kernel": list(model.kernel.parameters()),
            "likelihood": list(model.likelihood.parameters()),
            "inducing_inputs": [model.inducing_inputs],
            "features": [] if model.features is None else list(model.features.parameters()),
            "posterior": [] if use_natural else list((self.over_u or model.posterior).parameters()),
        }
        learnt = [(part, each) for part, own in parts.items() for each in own if each.requires_grad]
        kind = RMSProp if settings.optimiser == "rmsprop" else Adam
        self.optimisers: dict[bool, Optimiser] = {}  # by whether q(u) is held
        self.parts: dict[bool, list[str]] = {}  # of their parameters
        for hold in (False, True):
            chosen = [(part, each) for part, each in learnt if not (hold and part == "posterior")]
            self.parts[hold] = [part for part, _ in chosen]
            self.optimisers[hold] = kind(each for _, each in chosen)
        self._share_averages()
        self.step = 0
        self.seconds = 0.0
        self.skipped = self.skipped_in_a_row = self.rollbacks = 0
        self.step_scale = 1.0
        self.forget_epoch()
        self.history = History()
        self.good = self.best = self.snapshot()
        self.untried: Snapshot | None = None  # the last epoch's state: good once a step from there has worked

    @property
    def q(self) -> Variational:
        """Where q is now."""
        return self.held or self.natural or self.over_u or self.model.posterior

    @property
    def kept(self) -> Variational:
        """q as the model will have it: a diagonal posterior cannot keep all of a q(u) that was held."""
        if self.held is None or self.model.posterior.upper is not None:
            return self.q
        posterior = copy.deepcopy(self.model.posterior)
        posterior.set_moments(*self._whitened(self.held))
        return posterior

    def forget_epoch(self) -> None:
        """Starts the means over an epoch anew."""
        self.epoch_value = self.epoch_score = 0.0
        self.epoch_steps = 0

    @torch.no_grad()
    def hold(self, wanted: bool) -> None:
        """Holds q(u) as it is now, or lets it go on from what was learnt while it was held."""
        if self.over_u is not None:
            return  # it stays where it is unless its own parameters move
        if wanted and self.held is None:
            prepared = self.model.prepare(self.q)
            self.held = Held.of(prepared.moments, prepared.factor)
        elif not wanted and self.held is not None:
            self.set_moments(*self._whitened(self.held))
            self.held = None

    def set_moments(self, mean: Tensor, covariance: Tensor) -> None:
        """Puts q at N(mean, covariance), [K, Q, M] and [K, Q, M, M]."""
        if self.natural is not None:
            self.natural = Natural.of_moments(mean, covariance)
        elif self.over_u is not None:
            self.over_u.set_whitened(mean, covariance, _prior_factor(self.model))
        else:
            self.model.posterior.set_moments(mean, covariance)

    @torch.no_grad()
    def finish(self) -> None:
        """Leaves the model in the best state, q included."""
        self.load(self.best)
        if self.held is not None:
            self.model.posterior.set_moments(*self._whitened(self.held))
        elif self.over_u is not None:
            moments = self.model.prepare(self.over_u).moments
            self.model.posterior.set_moments(moments.mean, moments.covariance())
            self.model.posterior.logits.copy_(self.over_u.logits)
        elif self.natural is not None and not _equal(vars(self.natural), vars(Natural.of(self.model.posterior))):
            self.model.posterior.set_natural(self.natural)  # else it would change by rounding

    @torch.no_grad()
    def _whitened(self, held: Held) -> tuple[Tensor, Tensor]:
        whitened = self.model.prepare(held).moments.whitened()
        return whitened.mean, whitened.covariance()

    # -- states kept aside ----------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """A copy of the state of model and q."""
        found = {
            f"model.{name}": tensor.detach().clone()
            for name, tensor in self.model.state_dict().items()
            if self.natural is None or not name.startswith("posterior.")
        }
        if self.held is not None:  # constant: no copy
            found |= {f"held.{name}": tensor for name, tensor in vars(self.held).items()}
        elif self.natural is not None:
            found |= {f"natural.{name}": tensor.clone() for name, tensor in vars(self.natural).items()}
        elif self.over_u is not None:
            found |= {f"over_u.{name}": tensor.detach().clone() for name, tensor in self.over_u.state_dict().items()}
        return found

    def load(self, snapshot: Snapshot) -> None:
        groups = grouped(snapshot, ".")
        self.model.load_state_dict(groups["model"], strict=False)
        self.held = Held(**groups["held"]) if "held" in groups else None
        if "natural" in groups:
            self.natural = Natural(**{name: tensor.clone() for name, tensor in groups["natural"].items()})
        if self.over_u is not None:
            self.over_u.load_state_dict(groups["over_u"])

    def go_back(self) -> None:
        """To the last good state, with half the step size."""
        self.skipped_in_a_row = 0
        self.rollbacks += 1
        self.step_scale /= 2
        self.load(self.good)
        if self.untried is not None and _equal(self.best, self.untried) and not _equal(self.best, self.good):
            self.best, self.history.best_score = self.good, -math.inf  # scored by its batches, and yet no step works
        self.untried = None

    # -- saving and restoring -------------------------------------------------------------------------------------

    def bytes(self) -> int:
        """About the size of a checkpoint."""
        return 6 * sum(tensor.numel() * tensor.element_size() for tensor in self.good.values()) + 2**20

    def tensors(self) -> dict[str, Tensor]:
        """Model, q, optimisers and the states kept aside."""
        groups = {"now": self.snapshot(), "good": self.good, "best": self.best}
        if self.untried is not None:
            groups["untried"] = self.untried
        for hold, optimiser in self.optimisers.items():
            if not hold or optimiser.state is not self.optimisers[False].state:
                groups |= {f"optimiser.{int(hold)}.{number}": values for number, values in optimiser.state.items()}
        groups["history"] = self.history.tensors()
        return {
            f"{group}/{name}": tensor.detach().cpu()
            for group, tensors in groups.items()
            for name, tensor in tensors.items()
        }

    def plain(self) -> dict[str, Any]:
        """All that is not a tensor, as JSON."""
        counters = {name: getattr(self, name) for name in COUNTERS}
        history = {name: value for name, value in vars(self.history).items() if name != "rows"}
        return {"counters": to_json(counters), "history": to_json(history)}

    def restore(self, saved: Checkpoint) -> None:
        self.step = saved.step
        for name, value in from_json(saved.state["counters"]).items():
            setattr(self, name, value)
        groups = grouped({name: tensor.to(self.model.device) for name, tensor in saved.tensors.items()}, "/")
        self.history = History(**from_json(saved.state["history"]), rows=History.rows_of(groups.pop("history", {})))
        self.load(groups["now"])
        self.good, self.best, self.untried = groups["good"], groups["best"], groups.get("untried")
        for hold, optimiser in self.optimisers.items():
            names = {number: f"optimiser.{int(hold)}.{number}" for number in range(len(optimiser.parameters))}
            optimiser.state = {number: groups[name] for number, name in names.items() if name in groups}
        self._share_averages()

    def _share_averages(self) -> None:
        """RMSProp has one average for each parameter, whatever the phase, as in the paper; those of q come last."""
        if isinstance(self.optimisers[True], RMSProp):
            self.optimisers[True].state = self.optimisers[False].state

    def rates(self, phase: Phase, share: float) -> list[float]:
        """The learning rate of each parameter of the phase's optimiser."""
        return [self.step_scale * share * phase.rate(part) for part in self.parts[phase.hold]]


@torch.no_grad()
def _prior_factor(model: SparseGP) -> Tensor:
    return model.prepare().factor


def grouped(tensors: dict[str, Tensor], separator: str) -> dict[str, dict[str, Tensor]]:
    """By what stands before the first separator."""
    groups: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        group, _, rest = name.partition(separator)
        groups.setdefault(group, {})[rest] = tensor
    return groups


def _equal(first: Snapshot, second: Snapshot) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def to_json(value: Any) -> Any:
    """JSON knows neither NaN nor infinity: they become words."""
    if isinstance(value, dict):
        return {name: to_json(item) for name, item in value.items()}
    if isinstance(value, list):
        return [to_json(item) for item in value]
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value


def from_json(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: from_json(item) for name, item in value.items()}
    if isinstance(value, list):
        return [from_json(item) for item in value]
    return float(value) if value in ("nan", "inf", "-inf") else value
