"""The training loop: batches in, a better model out, and nothing lost when it is killed."""

import logging
import math
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from autogp.data import Batches, Source, TargetScaler, prefetch
from autogp.data.sources import as_tensor
from autogp.features import apply_frozen
from autogp.likelihoods import InfiniteLOOError
from autogp.model import SparseGP
from autogp.posteriors import Natural
from autogp.training.checkpoint import Checkpoint, Checkpoints
from autogp.training.distributed import Processes, processes
from autogp.training.feed import Feed, device_named, divided, validation_score
from autogp.training.identity import data_identity, settings_identity
from autogp.training.memory import kept_memory
from autogp.training.optimisers import Optimiser
from autogp.training.progress import Callback, Interrupts, Progress, showing
from autogp.training.schedule import WARM_UP, WARM_UP_SHARE, Phase, Settings
from autogp.training.start import leave_saddle
from autogp.training.state import History, RunState, Snapshot
from autogp.training.step import FAILURES, Batch, Statistics, apply, draw, gradient_statistics, natural_statistics

__all__ = ["History", "TrainingDivergedError", "train"]

logger = logging.getLogger("autogp")

DEFAULT_SETTINGS = Settings()
BATCH_SIZE = 1000
SKIPS_IN_A_ROW = 3  # then the run goes back to its last good state, with half the step size
ROLLBACKS = 5
ALONE, ALONE_SHARE = 8, 0.1  # first steps in which q moves alone, at most a share of all steps
COMPARED_STEPS = 1000  # after so many, processes compare their models


class TrainingDivergedError(ArithmeticError):
    """Training that stays non-finite however small its steps are made."""


def train(
    model: SparseGP,
    source: Source,
    settings: Settings = DEFAULT_SETTINGS,
    *,
    weights: np.ndarray | None = None,
    validation: Source | None = None,
    target_scaler: TargetScaler | None = None,
    folder: str | Path | None = None,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
    verbose: bool | str = "auto",
) -> History:
    """Trains the model in place and leaves it in the best state seen, as scored at the end of each epoch.

    The score is the mean log predictive probability of the `validation` rows; without them the objective over the
    epoch's own batches, or for the ELBO leave-one-out where that is finite. Feature maps that are frozen are applied
    once to each row. With a `folder` the run is saved there at intervals and at SIGINT or SIGTERM; `resume=True` goes
    on from the newest checkpoint, and ends in the same bits as a run that was never broken. A callback that returns
    True stops the run. `verbose` shows progress on standard error: True, False, or "auto", on a terminal only.

    Under torchrun each process computes with its own part of the rows, and all end with the same model; process 0 has
    the checkpoints, callbacks and the display.

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
    among = processes()
    feed = Feed(model.to(device_named(settings.device)), len(source), weights, target_scaler)
    parts = divided(among, model, feed, source, validation, (settings, folder is None, bool(callbacks)))
    kept = settings_identity(settings, model) if folder is not None and among.first else {}
    data = data_identity(source, feed.weights, validation, target_scaler) if folder is not None and among.first else {}
    behind, parts = apply_frozen(model, *parts)
    state = RunState(behind, settings)
    run = _Run(state, parts[0], settings, feed, parts[1] if len(parts) > 1 else None, model, among)
    with showing(verbose if among.first else False) as display, kept_memory():
        if folder is None:
            run.loop(callbacks, display)
            return state.history
        with ExitStack() as stack:
            run.interrupts = stack.enter_context(Interrupts())
            if among.first:
                checkpoints = Checkpoints(folder, kept, data, reserve_bytes=2 * state.bytes())
                run.checkpoints = stack.enter_context(checkpoints)
            saved = among.from_first(lambda: run.saved(resume))
            if saved is not None:
                state.restore(saved)
            run.loop(callbacks, display)
    return state.history


class _Run:
    """A run from wherever its state is to its end."""

    def __init__(
        self,
        state: RunState,
        source: Source,
        settings: Settings,
        feed: Feed,
        validation: Source | None,
        whole: SparseGP,
        among: Processes,
    ):
        self.state, self.model, self.settings = state, state.model, settings
        self.whole = whole  # the model with the feature maps that are frozen
        self.among = among
        self.checkpoints: Checkpoints | None = None
        self.interrupts: Interrupts | None = None
        total, size = feed.num_data, min(settings.batch_size or BATCH_SIZE, feed.num_data)
        self.batches = Batches(source, size, settings.seed, total, among.own(total).start)
        self.feed, self.validation = feed, validation
        self.generator = torch.Generator(feed.device)
        self.phases = settings.phases(self.batches.steps_per_epoch)
        self.lengths = [phase.steps(self.batches.steps_per_epoch) for phase in self.phases]
        self.total_steps = sum(self.lengths)
        self.failure: Exception | None = None  # of the last step that was skipped
        objectives = {phase.objective for phase in self.phases}
        # Never the predictive density of rows that were learnt from, unless it is the objective: it praises a model
        # that has not yet learnt its noise.
        self.scored_by_loo = objectives == {"elbo"} and validation is None and self.model.likelihood.finite_loo
        if "loo" in objectives:
            self.feed.check_loo(source)

    def saved(self, resume: bool) -> Checkpoint | None:
        """The checkpoint to go on from."""
        assert self.checkpoints is not None
        found = self.checkpoints.load_newest() if resume else self.checkpoints.refuse_existing()
        if found is not None and found.state.get("processes", 1) != self.among.count:
            before = found.state.get("processes", 1)
            logger.warning("going on with %d processes, after %d: the same up to rounding", self.among.count, before)
        return found

    def loop(self, callbacks: Sequence[Callback], display: Sequence[Callback]) -> None:
        if self.state.step == 0:
            x, y = map(as_tensor, self.batches.load(0))
            self.generator.manual_seed(self.settings.seed << 32)
            if leave_saddle(self.state, self.feed.batch(x, y, None), self.settings.samples, self.generator):
                self.state.good = self.state.best = self.state.snapshot()
        try:
            self._steps(callbacks, display)
        finally:  # however the run ends, the model is whole and can be trained further
            self.state.finish()

    def _steps(self, callbacks: Sequence[Callback], display: Sequence[Callback]) -> None:
        state, among = self.state, self.among
        self.started = time.monotonic() - state.seconds
        saved = time.monotonic()
        stop = state.history.stopped
        for step, x, y in prefetch(self.batches, state.step, self.total_steps) if not stop else ():
            phase, progress = self._phase()
            self._update(step, x, y, phase, progress)
            state.step = step + 1
            state.seconds = among.seconds(time.monotonic() - self.started)
            epoch_end = state.step % self.batches.steps_per_epoch == 0 or state.step == self.total_steps
            out_of_time = self.settings.time_budget is not None and state.seconds >= self.settings.time_budget
            if epoch_end or out_of_time:
                stop = self._end_epoch(phase, progress)
            if out_of_time:
                stop = "time budget"
            report = self._progress(phase, epoch_end)
            for show in display:
                show(report)
            wishes = among.from_first(lambda: [bool(each(report)) for each in callbacks]) if callbacks else ()  # noqa: B023
            if any(wishes):
                stop = stop or "callback"
            if stop == "callback" and not epoch_end:
                self._end_epoch(phase, progress)  # else what the broken epoch has learnt would be lost
            if self._phase()[0] is not phase:  # within an epoch: two objectives have no mean
                state.forget_epoch()
            if state.step == self.total_steps:
                stop = stop or "max_epochs"
            state.history.stopped = stop
            if stop or state.step % COMPARED_STEPS == 0:
                self._compare()
            received = None if self.interrupts is None else among.received(self.interrupts.received)
            if self.checkpoints is not None:
                due = time.monotonic() - saved > self.settings.checkpoint_seconds
                if stop or received or due:
                    self.checkpoints.save(state.step, state.tensors(), state.plain() | {"processes": among.count})
                    saved = time.monotonic()
            if self.interrupts is not None and received:
                folder = None if self.checkpoints is None else self.checkpoints.folder
                raise self.interrupts.error(f"after step {state.step} of {self.total_steps}", folder, received)
            if stop:
                break

    def _compare(self) -> None:
        """All processes have the same model: they go on from that of process 0 if machines round differently."""
        state = self.state
        if not self.among.same(state.snapshot()):
            logger.warning("after step %d processes differ by rounding: they go on from process 0", state.step)
            state.restore(self.among.from_first(lambda: Checkpoint(state.step, state.tensors(), state.plain())))

    def _phase(self) -> tuple[Phase, float]:
        """The phase that the next step belongs to, and how much of it has passed."""
        passed: float = self.state.step
        if self.settings.time_budget is not None:
            passed = max(passed, self.state.seconds / self.settings.time_budget * self.total_steps)
        for phase, steps in zip(self.phases[:-1], self.lengths, strict=False):
            if passed < steps:
                return phase, passed / steps
            passed -= steps
        return self.phases[-1], min(passed / self.lengths[-1], 1.0)

    def _update(self, step: int, x: Tensor, y: Tensor, phase: Phase, progress: float) -> None:
        """One step of the optimiser; one that would not be finite changes nothing but the count of such steps."""
        state, optimiser = self.state, self.state.optimisers[phase.hold]
        try:
            state.hold(phase.hold)
            rates = state.rates(phase, self._rate_share(phase, progress))
            natural = state.natural if state.held is None else None
            if natural is not None and self._alone(step, natural, optimiser):
                rates = [0.0] * len(rates)
            parameters = optimiser.parameters if any(rates) else []
            found = self._statistics(self._batch(step, x, y, phase), phase, natural, parameters)
            received = None if self.interrupts is None else self.interrupts.received
            found = self.among.sum_statistics(found, self.model, parameters, natural, self.started, received)
            if natural is not None:
                rate = state.step_scale * max(phase.natural_rate(progress), 1 / (step + 1))
                q = natural if "posterior" in phase.trainable else None
                value, score = apply(found, optimiser, rates, q, rate)
            else:
                value, score = apply(found, optimiser, rates)
        except FAILURES as error:
            self._skip(error)
            return
        if state.untried is not None:
            state.good, state.untried = state.untried, None
        state.skipped_in_a_row = 0
        state.epoch_steps += 1
        state.epoch_value += value / self.feed.total_weight
        state.epoch_score += (score if self.scored_by_loo else value) / self.feed.total_weight

    def _alone(self, step: int, natural: Natural, optimiser: Optimiser) -> bool:
        """Whether q moves alone: near the prior, where it has started, gradients by Z and lengthscales are rounding."""
        first = step < min(ALONE, ALONE_SHARE * self.total_steps) and not optimiser.taken
        return first and (step > 0 or not natural.shift.any())

    def _batch(self, step: int, x: Tensor, y: Tensor, phase: Phase) -> Batch:
        """The rows of the step's batch that this process has, and their part of the batch's noise."""
        settings, indices, own = self.settings, self.batches.indices(step), self.batches.own(step)
        batch = self.feed.batch(x, y, indices[own], len(indices))
        self.generator.manual_seed((settings.seed << 32) + step)  # noise depends on (seed, step) alone
        if settings.monte_carlo or self.model.likelihood.sampled & {"elbo", phase.objective}:
            noise = draw(self.model, len(indices), settings.samples, self.generator)
            start = min(own.start, len(indices) - 1)  # also for a row that does not count
            batch = batch._replace(noise=noise[:, :, start : start + len(x)], monte_carlo=settings.monte_carlo)
        return batch

    def _statistics(
        self, batch: Batch, phase: Phase, natural: Natural | None, parameters: Sequence[nn.Parameter]
    ) -> Statistics | Exception:
        """Or why there are none: other processes must hear of it."""
        scored = self.scored_by_loo
        try:
            if natural is not None:
                return natural_statistics(self.model, batch, phase.objective, parameters, natural, scored)
            return gradient_statistics(
                self.model,
                batch,
                phase.objective,
                parameters,
                self.state.held or self.state.over_u,
                phase.prior,
                scored,
            )
        except FAILURES as error:
            return error

    def _skip(self, error: Exception) -> None:
        state = self.state
        self.failure = error
        state.skipped += 1
        state.skipped_in_a_row += 1
        if state.skipped_in_a_row < SKIPS_IN_A_ROW:
            return
        if state.rollbacks == ROLLBACKS:
            if isinstance(error, InfiniteLOOError):
                raise error  # no smaller step helps, and its message says what does
            raise TrainingDivergedError(
                f"training diverged: after {ROLLBACKS} returns to an earlier state with ever smaller steps it still "
                f"fails ({error}). Scale the inputs and targets, lower learning_rate, or build "
                "the model with float64 inducing inputs."
            ) from error
        logger.warning("%d steps in a row failed (%s): going back, with half the step size", SKIPS_IN_A_ROW, error)
        state.go_back()

    def _end_epoch(self, phase: Phase, progress: float) -> str:
        """Scores the model, keeps it if it is the best, and says why to stop, if so."""
        state = self.state
        count = state.epoch_steps
        if not count and isinstance(self.failure, InfiniteLOOError) and self._in_vain(phase):
            raise self.failure
        snapshot, score = self._scored()
        history = state.history
        epoch = len(history.rows) + 1
        history.rows.append(
            {
                "epoch": epoch,
                "step": state.step,
                "seconds": round(state.seconds, 3),
                "objective": phase.objective,
                "value": state.epoch_value / count if count else math.nan,
                "score": score,
                "learning_rate": max(state.rates(phase, self._rate_share(phase, progress)), default=0.0),
                "skipped": state.skipped,
            }
        )
        state.forget_epoch()
        state.untried = snapshot
        # A batch is scored before its step: where it is the whole epoch, the score is of the epoch before.
        before = self.validation is None and self.batches.steps_per_epoch == 1 and epoch > 1
        scored, scored_epoch = (state.good, epoch - 1) if before else (snapshot, epoch)
        # Each phase has its own score, but for that of held-out rows; what the first ones are for is seen in the last.
        last = phase is self.phases[-1] or state.step >= self.total_steps
        comparable = last or self.validation is not None
        if score > history.best_score or not (comparable or math.isnan(score)):
            history.best_score = score if comparable else -math.inf
            history.best_epoch, state.best = scored_epoch, scored
        start = sum(self.lengths[: next(i for i, each in enumerate(self.phases) if each is phase)])
        waited = min(epoch - history.best_epoch, sum(row["step"] > start for row in history.rows))
        if last and self.settings.patience is not None and waited >= self.settings.patience:
            return "no better score"
        return ""

    def _rate_share(self, phase: Phase, progress: float) -> float:
        """Of the highest learning rate. Steps that see all rows have no noise: theirs need not rise first."""
        risen = self.batches.steps_per_epoch == 1 or progress >= WARM_UP_SHARE
        taken = WARM_UP if risen else self.state.optimisers[phase.hold].taken  # which waits for the device
        return phase.share(progress, taken)

    def _in_vain(self, phase: Phase) -> bool:
        """Whether no step of a phase has worked, after a whole epoch; after all of them where they are too short for
        the run to have gone back."""
        steps = self.batches.steps_per_epoch
        tried = self.state.step % steps == 0 if steps >= SKIPS_IN_A_ROW else self.state.step >= self.total_steps
        rows = self.state.history.rows
        return tried and all(math.isnan(row["value"]) for row in rows if row["objective"] == phase.objective)

    def _scored(self) -> tuple[Snapshot, float]:
        """The state as it would be kept, and its score; the last good one and NaN if it went too far."""
        state = self.state
        try:
            if self.validation is not None:
                return state.snapshot(), validation_score(
                    self.model, state.kept, self.feed, self.validation, self.among
                )
            if state.held is not None:
                with torch.no_grad():
                    self.model.prepare(state.held)  # raises where the kernel has no factor any more
        except FAILURES:
            return state.good, math.nan
        return state.snapshot(), state.epoch_score / state.epoch_steps if state.epoch_steps else math.nan

    def _progress(self, phase: Phase, epoch_end: bool) -> Progress:
        state = self.state
        share = state.step / self.total_steps
        if self.settings.time_budget is not None:
            share = max(share, state.seconds / self.settings.time_budget)
        rows = state.history.rows
        score = rows[-1]["score"] if rows else math.nan
        return Progress(
            step=state.step,
            total_steps=self.total_steps,
            epoch=state.step / self.batches.steps_per_epoch,
            epoch_end=epoch_end,
            objective=phase.objective,
            value=state.epoch_value / state.epoch_steps
            if state.epoch_steps
            else (rows[-1]["value"] if rows else math.nan),
            score=score,
            nlp=self.feed.nlp(score),
            rows_per_second=state.step * self.feed.num_data / self.batches.steps_per_epoch / max(state.seconds, 1e-9),
            seconds=state.seconds,
            seconds_left=state.seconds * (1 / share - 1) if share < 1 else 0.0,
            gain=math.nan,
            least_gain=math.nan,
            skipped=state.skipped,
            predictor=lambda: self.whole.predictor(state.kept),
        )
