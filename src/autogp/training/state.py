"""The state of a run: what its steps change, how it is kept aside, saved and restored."""

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from autogp.model import SparseGP
from autogp.moments import HeldMoments
from autogp.posteriors import GaussianPosterior, HeldPosterior
from autogp.training.checkpoint import Checkpoint
from autogp.training.optimisers import Adam, Optimiser, RMSProp
from autogp.training.schedule import OBJECTIVES, Settings

__all__ = ["History", "RunState"]

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
    """Model, optimisers, counters and history; everything that a checkpoint must hold is in `tensors` and `plain`."""

    def __init__(self, model: SparseGP, settings: Settings):
        if isinstance(model.posterior, HeldPosterior):
            raise TypeError("a held posterior does not learn: give the model a GaussianPosterior or MixturePosterior")
        if isinstance(model.posterior, GaussianPosterior) and settings.optimiser != "natural":
            raise TypeError(
                f"optimiser={settings.optimiser!r} cannot move a GaussianPosterior, which learns by natural gradients: "
                "give the model a MixturePosterior"
            )
        self.model = model
        self.free_posterior = model.posterior  # what learns; a phase may put a held one in its place
        kernel, posterior = list(model.kernel.parameters()), list(model.posterior.parameters())
        others = [*kernel, *model.likelihood.parameters(), model.inducing_inputs]
        shares = [settings.kernel_rate] * len(kernel) + [1.0] * (len(others) - len(kernel))
        kind = RMSProp if settings.optimiser == "rmsprop" else Adam
        self.optimisers: dict[bool, Optimiser] = {  # by whether q(u) is held
            False: kind([*others, *posterior], shares + [1.0] * len(posterior)),
            True: kind(others, shares),
        }
        self.step = 0
        self.seconds = 0.0
        self.skipped = self.skipped_in_a_row = self.rollbacks = 0
        self.step_scale = 1.0
        self.forget_epoch()
        self.history = History()
        self.good = self.best = self.snapshot()
        self.untried: dict[str, Tensor] | None = None  # the last epoch's state: good once a step from there has worked

    def forget_epoch(self) -> None:
        """Starts the means over an epoch anew."""
        self.epoch_value = self.epoch_score = 0.0
        self.epoch_steps = 0

    def snapshot(self) -> dict[str, Tensor]:
        """A copy of the model's state."""
        return {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}

    def load(self, snapshot: dict[str, Tensor]) -> None:
        self.model.posterior = self.free_posterior
        self.model.load_state_dict(snapshot)

    def go_back(self) -> None:
        """To the last good state, with half the step size."""
        self.skipped_in_a_row = 0
        self.rollbacks += 1
        self.step_scale /= 2
        self.load(self.good)
        if self.untried is not None and _equal(self.best, self.untried) and not _equal(self.best, self.good):
            self.best, self.history.best_score = self.good, -math.inf  # scored by its batches, and yet no step works
        self.untried = None

    # -- phases that hold q(u) ------------------------------------------------------------------------------------

    @property
    def held(self) -> bool:
        return self.model.posterior is not self.free_posterior

    @torch.no_grad()
    def hold(self) -> None:
        """Puts a posterior in place that holds q(u) as it is now."""
        if not self.held:
            prepared = self.model.prepare()
            self.model.posterior = HeldPosterior(prepared.moments, prepared.factor)

    @torch.no_grad()
    def release(self) -> None:
        """Gives what was learnt while q(u) was held back to the posterior that learns."""
        if self.held:
            moments = self.model.prepare().moments
            assert isinstance(moments, HeldMoments)
            self.free_posterior.set_moments(moments.whitened_mean(), moments.covariance())
            self.model.posterior = self.free_posterior

    # -- saving and restoring -------------------------------------------------------------------------------------

    def bytes(self) -> int:
        """About the size of a checkpoint."""
        return 6 * sum(tensor.numel() * tensor.element_size() for tensor in self.good.values()) + 2**20

    def tensors(self) -> dict[str, Tensor]:
        """Model, optimisers and the states kept aside."""
        groups = {"model": self.model.state_dict(), "good": self.good, "best": self.best}
        if self.held:
            groups["free"] = self.free_posterior.state_dict()
        if self.untried is not None:
            groups["untried"] = self.untried
        for hold, optimiser in self.optimisers.items():
            for number, values in optimiser.state.items():
                groups[f"optimiser.{int(hold)}.{number}"] = values
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
        return {"counters": _to_json(counters), "history": _to_json(history), "held": self.held}

    def restore(self, saved: Checkpoint) -> None:
        self.step = saved.step
        for name, value in _from_json(saved.state["counters"]).items():
            setattr(self, name, value)
        groups: dict[str, dict[str, Tensor]] = {}
        for name, tensor in saved.tensors.items():
            group, _, rest = name.partition("/")
            groups.setdefault(group, {})[rest] = tensor.to(self.model.inducing_inputs.device)
        rows = groups.pop("history", {})
        self.history = History(**_from_json(saved.state["history"]), rows=History.rows_of(rows))
        if saved.state["held"]:
            self.free_posterior.load_state_dict(groups["free"])
            self.hold()
        self.model.load_state_dict(groups["model"])
        self.good, self.best, self.untried = groups["good"], groups["best"], groups.get("untried")
        for hold, optimiser in self.optimisers.items():
            names = {number: f"optimiser.{int(hold)}.{number}" for number in range(len(optimiser.parameters))}
            optimiser.state = {number: groups[name] for number, name in names.items() if name in groups}


def _equal(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return all(torch.equal(first[name], second[name]) for name in first)


def _to_json(value: Any) -> Any:
    """JSON knows neither NaN nor infinity: they become words."""
    if isinstance(value, dict):
        return {name: _to_json(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_to_json(item) for item in value]
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value


def _from_json(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _from_json(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_from_json(item) for item in value]
    return float(value) if value in ("nan", "inf", "-inf") else value
