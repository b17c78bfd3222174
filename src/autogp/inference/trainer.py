"""The training loop: batches in, a better model out, and nothing lost when it is killed."""

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.linalg import LinAlgError  # pyright: ignore[reportAttributeAccessIssue]

from autogp.data import Batches, InputScaler, Source, TargetScaler, check_finite, prefetch
from autogp.inference.callbacks import Interrupts, Progress
from autogp.inference.checkpoint import Checkpoint, Checkpoints
from autogp.inference.identity import data_identity, settings_identity
from autogp.inference.schedule import Phase, Settings, phases
from autogp.inference.steps import OBJECTIVES, Batch, NonFiniteError, StepResult, draw, gradient_step, natural_step
from autogp.likelihoods import InfiniteLOOError
from autogp.linalg import NotPositiveDefiniteError
from autogp.model import SparseGP
from autogp.objectives import log_predictive
from autogp.posteriors import GaussianPosterior, HeldMoments, HeldPosterior

__all__ = ["History", "TrainingDivergedError", "train"]

logger = logging.getLogger("autogp")

DEFAULT_SETTINGS = Settings()
SKIPS_IN_A_ROW = 3  # then the run goes back to its last good state, with half the step size
ROLLBACKS = 5
SCORE_ROWS = 8192
START_SPREAD = 0.1  # of the mean of q(v), standard deviations of its prior
FAILURES = (NonFiniteError, NotPositiveDefiniteError, InfiniteLOOError, LinAlgError)  # of a step: it is skipped
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


class TrainingDivergedError(ArithmeticError):
    """Training that stays non-finite however small its steps are made."""


@dataclass
class History:
    """What happened: one row per epoch, and which epoch's state was kept.

    A row has epoch, step, seconds, objective, value (per row of data), score (mean log probability of a held-out row,
    or without validation rows of a training row), learning_rate, skipped.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    best_epoch: int = 0
    best_score: float = -math.inf
    stopped: str = ""


def train(
    model: SparseGP,
    source: Source,
    settings: Settings = DEFAULT_SETTINGS,
    *,
    weights: np.ndarray | None = None,
    validation: Source | None = None,
    input_scaler: InputScaler | None = None,
    target_scaler: TargetScaler | None = None,
    folder: str | Path | None = None,
    resume: bool = False,
    callbacks: Sequence[Callable[[Progress], bool | None]] = (),
) -> History:
    """Trains the model in place and leaves it in the best state seen, as scored at the end of each epoch.

    The score is the mean log predictive probability of the `validation` rows; without them, leave-one-out or predictive
    over the epoch's own batches. Rows are scaled as they are read. With a `folder` the run is saved there at intervals
    and at SIGINT or SIGTERM; `resume=True` goes on from the newest checkpoint, and ends in the same bits as a run that
    was never broken. A callback that returns True stops the run.

    >>> import torch
    >>> from autogp.data import ArraySource
    >>> from autogp.kernels import RBF
    >>> from autogp.likelihoods import Gaussian
    >>> x = torch.linspace(-1, 1, 50, dtype=torch.float64)[:, None]
    >>> model = SparseGP(RBF(), Gaussian(), x[::5])
    >>> history = train(model, ArraySource(x, torch.sin(3 * x)), Settings(max_epochs=3))
    >>> len(history.rows)
    3
    """
    for rows in (source, validation):
        if rows is not None:
            check_finite(rows, allow_missing_targets=_may_be_missing(model, rows))
    run = _Run(model, source, settings, weights, validation, input_scaler, target_scaler)
    if folder is None:
        run.loop(callbacks)
        return run.history
    kept = settings_identity(settings, model)
    data = data_identity(source, run.weights, validation, input_scaler, target_scaler)
    with (
        Checkpoints(folder, kept, data, reserve_bytes=2 * run.state_bytes()) as checkpoints,
        Interrupts() as interrupts,
    ):
        saved = checkpoints.load_newest() if resume else checkpoints.refuse_existing()
        if saved is not None:
            run.restore(saved)
        run.loop(callbacks, checkpoints, interrupts)
    return run.history


class _Run:
    """The state of a run; everything that a checkpoint must hold is in `tensors()` and `state()`."""

    def __init__(
        self,
        model: SparseGP,
        source: Source,
        settings: Settings,
        weights: np.ndarray | None,
        validation: Source | None,
        input_scaler: InputScaler | None,
        target_scaler: TargetScaler | None,
    ):
        self.device = torch.device(
            ("cuda" if torch.cuda.is_available() else "cpu") if settings.device == "auto" else settings.device
        )
        self.dtype = model.precision
        self.model = model.to(self.device)
        self.settings = settings
        self.batches = Batches(source, min(settings.batch_size, len(source)), settings.seed)
        self.num_data = len(source)
        self.weights = None if weights is None else _checked_weights(weights, len(source)).to(self.dtype)
        self.total_weight = float(len(source)) if self.weights is None else self.weights.double().sum().item()
        self.validation = validation
        self.input_scaler = None if input_scaler is None else input_scaler.to(self.device)
        self.target_scaler = None if target_scaler is None else target_scaler.to(self.device)
        self.generator = torch.Generator(self.device)

        self.phases = phases(settings, self.batches.steps_per_epoch)
        self.total_steps = sum(phase.epochs for phase in self.phases) * self.batches.steps_per_epoch
        if isinstance(model.posterior, HeldPosterior):
            raise TypeError("a held posterior does not learn: give the model a GaussianPosterior or MixturePosterior")
        if isinstance(model.posterior, GaussianPosterior) and settings.optimiser != "natural":
            raise TypeError(
                f"optimiser={settings.optimiser!r} cannot move a GaussianPosterior, which learns by natural gradients: "
                "give the model a MixturePosterior"
            )
        self.free_posterior = model.posterior  # what learns; a phase may put a held one in its place
        others = [*model.kernel.parameters(), *model.likelihood.parameters(), model.inducing_inputs]
        self.optimisers = {
            False: self._optimiser([*others, *model.posterior.parameters()]),
            True: self._optimiser(others),
        }

        self.step = 0
        self.seconds = 0.0
        self.skipped = self.skipped_in_a_row = self.rollbacks = 0
        self.step_scale = 1.0
        self.epoch_value = self.epoch_score = 0.0
        self.epoch_steps = 0
        self.history = History()
        self.failure: Exception | None = None  # of the last step that was skipped
        self.good = self.best = self._snapshot()
        self.untried: dict[str, Tensor] | None = None  # the last epoch's state: good once a step from there has worked
        if settings.objective == "loo":
            self._check_loo(source)

    # -- the loop -------------------------------------------------------------------------------------------------

    def loop(
        self,
        callbacks: Sequence[Callable[[Progress], bool | None]],
        checkpoints: Checkpoints | None = None,
        interrupts: Interrupts | None = None,
    ) -> None:
        if self.step == 0:
            self._leave_saddle()
        try:
            self._steps(callbacks, checkpoints, interrupts)
        finally:  # however the run ends, the model is whole and can be trained further
            self._load(self.best)
            self.model.zero_grad(set_to_none=True)

    def _steps(
        self,
        callbacks: Sequence[Callable[[Progress], bool | None]],
        checkpoints: Checkpoints | None,
        interrupts: Interrupts | None,
    ) -> None:
        started = time.monotonic() - self.seconds
        saved = time.monotonic()
        stop = self.history.stopped
        for step, x, y in prefetch(self.batches, self.step, self.total_steps) if not stop else ():
            phase, progress = self._phase()
            self._update(step, x, y, phase, progress)
            self.step = step + 1
            self.seconds = time.monotonic() - started
            epoch_end = self.step % self.batches.steps_per_epoch == 0
            out_of_time = self.settings.time_budget is not None and self.seconds >= self.settings.time_budget
            if epoch_end or out_of_time:
                stop = self._end_epoch(phase, progress)
            if out_of_time:
                stop = "time budget"
            report = self._progress(phase, epoch_end)
            for callback in callbacks:
                if callback(report):
                    stop = stop or "callback"
            if stop == "callback" and not epoch_end:
                self._end_epoch(phase, progress)  # else what the broken epoch has learnt would be lost
            if self.step == self.total_steps:
                stop = stop or "max_epochs"
            self.history.stopped = stop
            if checkpoints is not None and interrupts is not None:
                due = time.monotonic() - saved > self.settings.checkpoint_seconds
                if stop or interrupts.received or due:
                    checkpoints.save(self.step, self.tensors(), self.state())
                    saved = time.monotonic()
                if interrupts.received:
                    raise interrupts.error(f"after step {self.step} of {self.total_steps}", checkpoints.folder)
            if stop:
                break

    def _phase(self) -> tuple[Phase, float]:
        """The phase that the next step belongs to, and how much of it has passed."""
        epochs = self.step / self.batches.steps_per_epoch
        if self.settings.time_budget is not None:
            epochs = max(epochs, self.seconds / self.settings.time_budget * sum(phase.epochs for phase in self.phases))
        for phase in self.phases[:-1]:
            if epochs < phase.epochs:
                return phase, epochs / phase.epochs
            epochs -= phase.epochs
        return self.phases[-1], min(epochs / self.phases[-1].epochs, 1.0)

    def _update(self, step: int, x: Tensor, y: Tensor, phase: Phase, progress: float) -> None:
        """One step of the optimiser; one that would not be finite changes nothing but the count of such steps."""
        batch = self._batch(x, y, self.batches.indices(step) if self.weights is not None else None)
        settings = self.settings
        optimiser = self.optimisers[phase.hold]
        for group in optimiser.param_groups:
            group["lr"] = self.step_scale * settings.learning_rate_at(phase, progress)
        optimiser.zero_grad()
        self.generator.manual_seed((settings.seed << 32) + step)  # noise depends on (seed, step) alone
        try:
            self._hold(phase)
            if isinstance(self.model.posterior, GaussianPosterior) and settings.optimiser == "natural":
                rate = self.step_scale * max(settings.natural_rate_at(progress), 1 / (step + 1))
                result = natural_step(self.model, batch, phase.objective, rate, settings.samples, self.generator)
            else:
                result = gradient_step(self.model, batch, phase.objective, settings.samples, self.generator)
        except FAILURES as error:
            self._skip(error)
            return
        optimiser.step()
        if self.untried is not None:
            self.good, self.untried = self.untried, None
        self.skipped_in_a_row = 0
        self.epoch_steps += 1
        self.epoch_value += result.value.item() / self.total_weight
        if self.validation is None:
            self.epoch_score += self._training_score(batch, result)

    def _skip(self, error: Exception) -> None:
        self.failure = error
        self.skipped += 1
        self.skipped_in_a_row += 1
        if self.skipped_in_a_row < SKIPS_IN_A_ROW:
            return
        self.skipped_in_a_row = 0
        self.rollbacks += 1
        if self.rollbacks > ROLLBACKS:
            if isinstance(error, InfiniteLOOError):
                raise error  # no smaller step helps, and its message says what does
            raise TrainingDivergedError(
                f"training diverged: after {self.rollbacks - 1} returns to an earlier state with ever smaller steps it "
                f"still fails ({error}). Scale the inputs and targets, lower learning_rate, or build "
                "the model with float64 inducing inputs."
            ) from error
        self.step_scale /= 2
        logger.warning("%d steps in a row failed (%s): going back, with half the step size", SKIPS_IN_A_ROW, error)
        self._load(self.good)
        if self.untried is not None and _equal(self.best, self.untried) and not _equal(self.best, self.good):
            self.best, self.history.best_score = self.good, -math.inf  # scored by its batches, and yet no step works
        self.untried = None

    def _end_epoch(self, phase: Phase, progress: float) -> str:
        """Scores the model, keeps it if it is the best, and says why to stop, if so."""
        count = self.epoch_steps
        if not count and isinstance(self.failure, InfiniteLOOError) and self.step % self.batches.steps_per_epoch == 0:
            raise self.failure  # a whole epoch in vain
        state, score = self._scored_state()
        history = self.history
        epoch = len(history.rows) + 1
        history.rows.append(
            {
                "epoch": epoch,
                "step": self.step,
                "seconds": round(self.seconds, 3),
                "objective": phase.objective,
                "value": self.epoch_value / count if count else math.nan,
                "score": score,
                "learning_rate": self.step_scale * self.settings.learning_rate_at(phase, progress),
                "skipped": self.skipped,
            }
        )
        self.epoch_value = self.epoch_score = 0.0
        self.epoch_steps = 0
        self.untried = state
        # Scores are compared within the last phase: what the others are for is only seen at its end.
        last = phase is self.phases[-1] or self.step >= self.total_steps
        if score > history.best_score or not (last or math.isnan(score)):
            history.best_score = score if last else -math.inf
            history.best_epoch, self.best = epoch, state
        if last and self.settings.patience is not None and epoch - history.best_epoch >= self.settings.patience:
            return "no better score"
        return ""

    # -- scores ---------------------------------------------------------------------------------------------------

    def _scored_state(self) -> tuple[dict[str, Tensor], float]:
        """The model's state as it would be kept, and its score; the last good one and NaN if it went too far."""
        held = self.model.posterior
        try:
            self._release()
            state = self._snapshot()
            if self.validation is not None:
                return state, self._validation_score()
            return state, self.epoch_score / self.epoch_steps if self.epoch_steps else math.nan
        except FAILURES:
            return self.good, math.nan
        finally:
            self.model.posterior = held

    @torch.no_grad()
    def _training_score(self, batch: Batch, result: StepResult) -> float:
        """Leave-one-out of the batch just seen; predictive where that may be infinite, or is what training follows."""
        likelihood = self.model.likelihood
        name = "loo" if likelihood.finite_loo and self.settings.objective != "predictive" else "predictive"
        noise = draw(likelihood.sampled & {name}, result.marginals, self.settings.samples, self.generator)
        rows = OBJECTIVES[name](likelihood, result.marginals, batch.y, noise.get(name))
        return (batch.weights * rows).sum().item() / self.total_weight

    @torch.no_grad()
    def _validation_score(self) -> float:
        assert self.validation is not None
        total, count = 0.0, len(self.validation)
        for start in range(0, count, SCORE_ROWS):
            x, y = _tensors(self.validation, np.arange(start, min(start + SCORE_ROWS, count)))
            batch = self._batch(x, y, None)
            for rows, marginals in self.model.chunks(batch.x):
                total += log_predictive(self.model.likelihood, marginals, batch.y[rows]).sum().item()
        return total / count

    def _batch(self, x: Tensor, y: Tensor, indices: np.ndarray | None) -> Batch:
        """Rows as the model takes them: on its device, scaled, checked, and each with its weight."""
        x, y = x.to(self.device, non_blocking=True), y.to(self.device, non_blocking=True)
        x = x.to(self.dtype) if self.input_scaler is None else self.input_scaler(x, self.dtype)
        if self.target_scaler is not None:
            y = self.target_scaler(y, self.dtype)
        y = self.model.likelihood.check_targets(y)
        weights = x.new_full((len(x),), self.num_data / len(x))
        if indices is not None and self.weights is not None:
            weights = weights * self.weights[torch.from_numpy(indices)].to(self.device)
        return Batch(x, y.to(self.dtype) if y.is_floating_point() else y, weights)

    def _progress(self, phase: Phase, epoch_end: bool) -> Progress:
        share = self.step / self.total_steps
        if self.settings.time_budget is not None:
            share = max(share, self.seconds / self.settings.time_budget)
        rows = self.history.rows
        return Progress(
            step=self.step,
            total_steps=self.total_steps,
            epoch=self.step / self.batches.steps_per_epoch,
            epoch_end=epoch_end,
            objective=phase.objective,
            value=self.epoch_value / self.epoch_steps
            if self.epoch_steps
            else (rows[-1]["value"] if rows else math.nan),
            score=rows[-1]["score"] if rows else math.nan,
            rows_per_second=self.step * self.num_data / self.batches.steps_per_epoch / max(self.seconds, 1e-9),
            seconds=self.seconds,
            seconds_left=self.seconds * (1 / share - 1) if share < 1 else 0.0,
            skipped=self.skipped,
        )

    # -- phases that hold q(u) ------------------------------------------------------------------------------------

    def _hold(self, phase: Phase) -> None:
        """Puts the posterior in place that the phase needs."""
        if phase.hold and self.model.posterior is self.free_posterior:
            with torch.no_grad():
                prepared = self.model.prepare()
            self.model.posterior = HeldPosterior(prepared.moments, prepared.factor)
        elif not phase.hold:
            self._release()

    @torch.no_grad()
    def _release(self) -> None:
        """Gives what was learnt while q(u) was held back to the posterior that learns."""
        if self.model.posterior is self.free_posterior:
            return
        moments = self.model.prepare().moments
        assert isinstance(moments, HeldMoments)
        self.free_posterior.set_moments(moments.whitened_mean(), moments.covariance())
        self.model.posterior = self.free_posterior

    # -- saving and restoring -------------------------------------------------------------------------------------

    def _snapshot(self) -> dict[str, Tensor]:
        """A copy of the model's state."""
        return {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}

    def _load(self, state: dict[str, Tensor]) -> None:
        self.model.posterior = self.free_posterior
        self.model.load_state_dict(state)

    def state_bytes(self) -> int:
        return 6 * sum(tensor.numel() * tensor.element_size() for tensor in self.good.values()) + 2**20

    def tensors(self) -> dict[str, Tensor]:
        """Model, optimisers and the states kept aside."""
        groups = {"model": self.model.state_dict(), "good": self.good, "best": self.best}
        if self.model.posterior is not self.free_posterior:
            groups["free"] = self.free_posterior.state_dict()
        if self.untried is not None:
            groups["untried"] = self.untried
        for hold, optimiser in self.optimisers.items():
            for number, values in optimiser.state_dict()["state"].items():
                groups[f"optimiser.{int(hold)}.{number}"] = values
        return {
            f"{group}/{name}": tensor.detach().cpu()
            for group, tensors in groups.items()
            for name, tensor in tensors.items()
        }

    def state(self) -> dict[str, Any]:
        counters = {name: getattr(self, name) for name in COUNTERS}
        held = self.model.posterior is not self.free_posterior
        return {"counters": _to_json(counters), "history": _to_json(asdict(self.history)), "held": held}

    def restore(self, saved: Checkpoint) -> None:
        self.step = saved.step
        for name, value in _from_json(saved.state["counters"]).items():
            setattr(self, name, value)
        self.history = History(**_from_json(saved.state["history"]))
        groups: dict[str, dict[str, Tensor]] = {}
        for name, tensor in saved.tensors.items():
            group, _, rest = name.partition("/")
            groups.setdefault(group, {})[rest] = tensor.to(self.device)
        if saved.state["held"]:
            self.free_posterior.load_state_dict(groups["free"])
            with torch.no_grad():
                prepared = self.model.prepare()
            self.model.posterior = HeldPosterior(prepared.moments, prepared.factor)
        self.model.load_state_dict(groups["model"])
        self.good, self.best, self.untried = groups["good"], groups["best"], groups.get("untried")
        for hold, optimiser in self.optimisers.items():
            numbers = range(len(optimiser.param_groups[0]["params"]))
            states = {number: groups.get(f"optimiser.{int(hold)}.{number}") for number in numbers}
            optimiser.load_state_dict(
                {
                    "state": {number: values for number, values in states.items() if values},
                    "param_groups": optimiser.state_dict()["param_groups"],
                }
            )

    @torch.no_grad()
    def _leave_saddle(self) -> None:
        """Moves q a little where no row has a slope: a product of functions that are all 0 would stay 0 for ever."""
        batch = self._batch(*_tensors(self.batches.source, self.batches.indices(0)), None)
        try:
            prepared = self.model.prepare()
            if prepared.moments.mean.any():
                return
            marginals = self.model.marginals(batch.x, prepared)
        except FAILURES:
            return  # its steps will say so
        self.generator.manual_seed(self.settings.seed << 32)
        noise = draw(self.model.likelihood.sampled & {"elbo"}, marginals, self.settings.samples, self.generator)
        slope, _ = self.model.likelihood.expected_derivatives(*marginals[1:3], batch.y, noise.get("elbo"))
        if not slope.any():
            start = prepared.moments.mean
            away = torch.randn(start.shape, dtype=start.dtype, device=start.device, generator=self.generator)
            self.free_posterior.set_moments(START_SPREAD * away, prepared.moments.covariance())
            self.good = self.best = self._snapshot()

    def _check_loo(self, source: Source) -> None:
        """Raises InfiniteLOOError now, not hours later, for a likelihood that has no leave-one-out for any q."""
        batch = self._batch(*_tensors(source, np.zeros(1, np.int64)), None)
        mean = batch.x.new_zeros(1, 1, self.model.likelihood.num_latents)
        with torch.no_grad():
            self.model.likelihood.log_expected_inverse_prob(mean, torch.full_like(mean, 1e-6), batch.y)

    def _optimiser(self, parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
        if self.settings.optimiser == "rmsprop":
            return torch.optim.RMSprop(parameters, lr=self.settings.learning_rate, alpha=0.9)
        return torch.optim.Adam(parameters, lr=self.settings.learning_rate, fused=True)


def _may_be_missing(model: SparseGP, source: Source) -> bool:
    """Whether the likelihood takes NaN for a target that is missing."""
    _, y = source.rows(np.zeros(1, np.int64))
    y = np.array(y, dtype=np.float64)
    y.reshape(-1)[:1] = math.nan
    try:
        model.likelihood.check_targets(torch.from_numpy(y))
    except ValueError:
        return False
    return True


def _tensors(source: Source, indices: np.ndarray) -> tuple[Tensor, Tensor]:
    x, y = (torch.from_numpy(np.require(part, requirements=["C", "W"])) for part in source.rows(indices))
    return x, y


def _checked_weights(weights: np.ndarray, count: int) -> Tensor:
    found = torch.as_tensor(weights, dtype=torch.float64)
    if found.shape != (count,) or not torch.isfinite(found).all() or (found < 0).any() or not found.any():
        raise ValueError(f"weights must be {count} finite numbers, one per row, none negative and not all zero")
    return found


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
