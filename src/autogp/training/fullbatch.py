"""Training on all rows: q at its optimum by natural gradients, and everything else by L-BFGS, until neither gains."""

import logging
import math
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from autogp.data import Source, TargetScaler
from autogp.features import apply_frozen
from autogp.likelihoods.quadrature import align
from autogp.likelihoods.sampling import normal_nodes
from autogp.linalg import whiten
from autogp.model import Prepared, SparseGP
from autogp.objectives import log_leave_one_out
from autogp.posteriors import Natural
from autogp.training.checkpoint import Checkpoint, Checkpoints
from autogp.training.collapsed import Collapsed, pull
from autogp.training.distributed import ALONE, Processes, processes
from autogp.training.exact import Exact
from autogp.training.feed import Feed, device_named, divided, validation_score
from autogp.training.identity import data_identity, settings_identity
from autogp.training.memory import kept_memory
from autogp.training.progress import Callback, Interrupts, Progress, showing
from autogp.training.schedule import Settings
from autogp.training.settle import Block, Look, settle
from autogp.training.state import History, from_json, grouped, to_json
from autogp.training.step import FAILURES, Batch, NonFiniteError, gradients_of

__all__ = ["Profile", "converge", "warn_unless_converged"]

logger = logging.getLogger("autogp")

ITERATIONS = 1000
CORRECTIONS = 20  # pairs of steps and gradients that L-BFGS remembers
PATIENCE = 10  # iterations without a better score
WINDOW, SETTLED = 6, 5e-4  # iterations, and the nats a row that they must gain together to go on,
USUAL_WORK, MOST_WORTH = 2e9, 10.0  # multiplications of a pass over the rows, and how many times that counts
LEAST_NATS = 0.1  # or in all: evidence of less than that is none
# Units in which L-BFGS takes all parameters for alike, as long as it knows no curvature: its first step has length 1.
FIRST_STEP, INDUCING_STEP = 0.1, 0.3  # one inducing input matters less than a hyper-parameter
# Nats a row that q may be away from its optimum: at first, at last, and as a share of what an evaluation has gained.
Q_ROUGH, Q_SETTLED, Q_SHARE = 1e-4, 1e-6, 0.02
REFUSED = 3.0  # nats a row above the start of a line search: the loss where there is none; it comes back from there
FARTHEST = 30.0  # from their start for logarithms: without noise in the targets they would go on for ever
FLAT = 0.05  # nats a row and unit of a parameter: a steeper ELBO has not converged, even where no step gains
POINTS = 64  # of the rule for several latent functions, the same for all rows: the objective has no noise
BLOCK_NUMBERS = 2**21  # in the largest matrix of a block of rows
PRECISION, SHIFT = "q.precision", "q.shift"  # of the best state
NOT_CONVERGED = (
    "training has ended before the ELBO had converged: the likelihood or the kernel may have kinks, or the start may "
    "be far off. Scale the targets, or start the likelihood's parameters where the data are"
)
KEPT_NUMBERS = 2**25  # of the bases of all rows, that are kept between the steps of q; beyond they are computed again


class Profile:
    """The ELBO of all rows, maximised over q, as a function of everything else (for Gaussian noise: Titsias, 2009).

    Its gradient is that of the ELBO at the best q, which is therefore held constant.
    """

    def __init__(self, model: SparseGP, source: Source, feed: Feed, among: Processes = ALONE):
        self.model, self.feed, self.source, self.among = model, feed, source, among
        self.first = among.own(feed.num_data).start  # of the source's rows, which are this process's, among all
        self.parameters = {
            name: parameter
            for name, parameter in model.named_parameters()
            if parameter.requires_grad and not name.startswith("posterior.")
        }
        latents, size = model.likelihood.num_latents, model.inducing_inputs.shape[-2]
        sampled = "elbo" in model.likelihood.sampled
        widest = latents * max(size, POINTS if sampled else 0)
        rows = max(1, BLOCK_NUMBERS // widest)
        self.slices = [np.arange(start, min(start + rows, len(source))) for start in range(0, len(source), rows)]
        self.kept = len(source) * size * len(
            model.kernel.gram(model.inducing_inputs, model.inducing_inputs[:, :1])
        ) <= (KEPT_NUMBERS)
        self.batches = [self.read(indices) for indices in self.slices] if self.kept else None
        self.prior = Natural.prior(latents, size, model.device)
        self.prior_moments = self.prior.moments()
        self.q = Natural.of(model.posterior)
        self.sites: list[Tensor] | None = None  # of the best value so far
        self.best, self.tolerance = -math.inf, Q_ROUGH
        self.settled = False  # whether q was at its optimum at the last evaluation

    def read(self, indices: np.ndarray) -> Batch:
        x, y = (torch.from_numpy(np.require(part, requirements=["C", "W"])) for part in self.source.rows(indices))
        batch = self.feed.batch(x, y, self.first + indices)
        batch = batch._replace(weights=batch.weights * (len(indices) / self.feed.num_data))  # a part of one batch
        if "elbo" not in self.model.likelihood.sampled:
            return batch
        nodes, _ = align(normal_nodes(self.model.likelihood.num_latents, POINTS), batch.weights[None, :, None])
        return batch._replace(noise=nodes)

    def __call__(self) -> tuple[Tensor, list[Tensor]]:
        """The value, and its gradients; q and its sites are where they have settled."""
        likelihood = self.model.likelihood
        prepared = self.model.prepare(self.prior_moments)
        blocks = _Blocks(self, prepared)
        tolerance = self.tolerance * self.feed.total_weight
        start = self.q if self.sites is None else None
        self.q, sites, self.settled, look = settle(
            likelihood, blocks, self.prior, tolerance, self.sites, start, self.among
        )
        self.rows, self.value = look.rows, look.value + 0.5 * self.prior.shift.numel()
        gain = abs(self.value - self.best) / self.feed.total_weight
        self.tolerance = min(self.tolerance, max(Q_SETTLED, Q_SHARE * gain))
        if self.value > self.best:  # a warm start for what follows: from worse places it would be a worse one
            self.best, self.sites = self.value, sites
        return prepared.gram.new_tensor(self.value), self._gradients(prepared, blocks, look)

    def _gradients(self, prepared: Prepared, blocks: Iterable[Block], look: Look) -> list[Tensor]:
        """With q = N(m, S), alpha and beta constants, A = L^-1 Kzx has the gradient of A'm and diag(A'SA - A'A):
        dA = m alpha' + (I - S) A diag(-2 beta), a sum over the latent functions that share A.
        """
        parameters, shared = list(self.parameters.values()), len(prepared.inverse) == 1
        mean, rest = look.moments.mean[0], self.prior.precision - look.moments.dense[0]  # m and I - S
        upper = prepared.inverse.detach().mT
        lifted = (upper @ mean[..., None]).squeeze(-1), upper @ rest  # L^-T m and L^-T (I - S)
        outputs = [prepared.gram] if self.among.first else []
        slopes = [self._through_gram(upper, mean, rest, look)] if self.among.first else []
        gradients = [torch.zeros_like(each) for each in parameters]
        for block, rows in zip(blocks, look.rows, strict=True):
            assert block.cross is not None
            vector, matrix = (each.to(block.basis) for each in lifted)
            weighted = block.basis * (-2 * rows.beta[:, None])  # [Q, M, B]
            if shared:
                slope = vector.mT @ rows.alpha
                slope = slope.addmm_(matrix.transpose(0, 1).flatten(1), weighted.flatten(0, 1))[None]
            else:
                slope = torch.baddbmm(vector[..., None] * rows.alpha[:, None], matrix, weighted)
            outputs += [block.cross, block.prior_variance]
            slopes += [slope, rows.beta.sum(0, keepdim=True) if shared else rows.beta]
            found = pull(outputs, slopes, parameters)
            for gradient, parameter, each in zip(gradients, parameters, found, strict=True):
                gradient.add_(each)
                if parameter in rows.gradients:
                    gradient.add_(rows.gradients[parameter])
            outputs, slopes = [], []
        return self.among.sum_all(gradients)

    def _through_gram(self, upper: Tensor, mean: Tensor, rest: Tensor, look: Look) -> Tensor:
        """The gradient by Kzz = L L': L^-T P L^-1, P the lower half of -dA A' with half its diagonal.

        The sums over the rows are at hand: A alpha = slope + m, and A diag(-2 beta) A' = Lambda_target - I.
        """
        inner = mean[..., None] * (look.slope + mean)[:, None] + rest @ (look.target.precision - self.prior.precision)
        inner = (inner.sum(0, keepdim=True) if len(upper) == 1 else inner).tril()
        inner.diagonal(dim1=-2, dim2=-1).mul_(0.5)
        return -(upper @ inner @ upper.mT)

    @torch.no_grad()
    def score(self) -> float:
        """Of the last evaluation, nats a row: leave-one-out where that is finite, else the ELBO."""
        likelihood, total = self.model.likelihood, self.prior.shift.new_zeros(())
        if not likelihood.finite_loo:
            return self.value / self.feed.total_weight
        for batch, rows in zip(self.batches or map(self.read, self.slices), self.rows, strict=True):
            noise = batch.noise if "loo" in likelihood.sampled else None
            left_out = log_leave_one_out(likelihood, rows.marginals, batch.y, noise)
            total = total + (batch.weights * left_out).double().sum()
        return self.among.sum_all([total])[0].item() / self.feed.total_weight


class _Blocks:
    """All rows as q sees them, any number of times: from memory, or a block at a time."""

    def __init__(self, profile: Profile, prepared: Prepared):
        self.profile, self.prepared = profile, prepared
        self.inverse = prepared.inverse.detach()
        self.kept = list(self._made()) if profile.batches is not None else None

    def __iter__(self) -> Iterator[Block]:
        return iter(self.kept) if self.kept is not None else self._made()

    def _made(self) -> Iterator[Block]:
        model, batches = self.profile.model, self.profile.batches
        for batch in batches if batches is not None else map(self.profile.read, self.profile.slices):
            phi = model.embed(batch.x)
            cross = model.cross(phi)
            basis = whiten(self.prepared.gram.detach(), self.inverse, cross.detach())
            yield Block(basis, model.kernel.diag(phi), batch, cross)


def converge(
    model: SparseGP,
    source: Source,
    settings: Settings,
    *,
    weights: np.ndarray | None = None,
    validation: Source | None = None,
    target_scaler: TargetScaler | None = None,
    folder: str | Path | None = None,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
    verbose: bool | str = "auto",
    roughly: float = 1.0,
) -> History:
    """Maximises the ELBO of all rows until it gains no more; an epoch is an iteration of L-BFGS.

    The arguments are those of `train`. Of the settings, max_epochs, time_budget, patience (10 iterations, if none),
    checkpoint_seconds and device count. There is no noise, so that the end can be seen: when six iterations gain less
    than 5e-4 nats a row (up to ten times that where a pass over the rows is long), or a tenth of a nat in all;
    `roughly` multiplies both. A model that is left before that says so by a
    ConvergenceWarning, unless a setting asked for it. The score of a state is that of `train`, leave-one-out where that
    is finite; q is at its optimum in all of them.
    """
    if settings.objective != "elbo":
        raise ValueError(f"all rows at once are for the objective 'elbo', got {settings.objective!r}: use train")
    among = processes()
    feed = Feed(model.to(device_named(settings.device)), len(source), weights, target_scaler)
    parts = divided(among, model, feed, source, validation, (settings, folder is None, bool(callbacks)))
    kept = settings_identity(settings, model) if folder is not None and among.first else {}
    data = data_identity(source, feed.weights, validation, target_scaler) if folder is not None and among.first else {}
    behind, parts = apply_frozen(model, *parts)
    run = _Run(behind, parts[0], settings, feed, parts[1] if len(parts) > 1 else None, model, among)
    run.tolerance *= roughly
    with showing(verbose if among.first else False) as display, kept_memory():
        run.callbacks = [*callbacks, *display]
        if folder is None:
            return run.go()
        with ExitStack() as stack:
            run.interrupts = stack.enter_context(Interrupts())
            if among.first:
                run.checkpoints = stack.enter_context(Checkpoints(folder, kept, data))
            saved = among.from_first(lambda: run.saved_state(resume))
            if saved is not None:
                run.restore(saved)
            return run.go()


def warn_unless_converged(history: History, stacklevel: int) -> None:
    if history.stopped in ("converged", "no better score") and not history.converged:  # else it was asked to stop
        warnings.warn(NOT_CONVERGED, ConvergenceWarning, stacklevel=stacklevel)


class _Run:
    """A run from its start, or from where it was saved, to its end."""

    callbacks: Sequence[Callback]
    checkpoints: Checkpoints | None = None
    interrupts: Interrupts | None = None

    def __init__(
        self,
        model: SparseGP,
        source: Source,
        settings: Settings,
        feed: Feed,
        validation: Source | None,
        whole: SparseGP,
        among: Processes,
    ):
        self.model, self.settings, self.feed, self.validation = model, settings, feed, validation
        self.among = among
        self.whole = whole  # the model with the feature maps that are frozen
        suits = all(among.gather(lambda: Collapsed.suits(model, source)))
        kind = Exact if Exact.suits(model, source, among) else Collapsed if suits else Profile
        self.profile = kind(model, source, feed, among)
        parameters = self.profile.parameters
        self.start = np.concatenate(
            [np.zeros(0), *(each.detach().cpu().numpy().ravel() for each in parameters.values())]
        )
        self.logarithms = np.array(
            [".log_" in name for name, each in parameters.items() for _ in range(each.numel())], bool
        )
        far = {"inducing_inputs": INDUCING_STEP}
        self.units = np.array(
            [far.get(name, FIRST_STEP) for name, each in parameters.items() for _ in range(each.numel())], float
        )
        self.history, self.best, self.settled = History(), {}, False
        self.seconds = 0.0
        # L-BFGS is deterministic: told the same losses and gradients, it is where it was before.
        self.losses: list[float] = []
        self.gradients: list[np.ndarray] = []
        self.told = 0  # how many of them it knows
        self.iteration, self.reached = 0, math.inf  # how many have ended, and the loss at the last end
        self.last: np.ndarray | None = None  # where the loss was looked at last
        self.max_iterations = settings.max_epochs or ITERATIONS
        work = feed.num_data * model.likelihood.num_latents * model.inducing_inputs.shape[-2] ** 2
        worth = SETTLED * min(max(1.0, work / USUAL_WORK), MOST_WORTH)  # the longer six iterations take, the more
        self.tolerance = max(worth, LEAST_NATS / feed.total_weight)

    def go(self) -> History:
        self.saved = time.monotonic()
        self.started = self.saved - self.seconds
        try:
            if not self.history.stopped:
                self._minimise()
                if not self.among.same(self.best):
                    logger.warning("processes differ by rounding: they take the model of process 0")
                    self.best = self.among.from_first(lambda: self.best)
                self._save()
        finally:  # however the run ends, the model is in its best state
            self._finish()
        return self.history

    def _minimise(self) -> None:
        history = self.history
        options = {"maxiter": self.max_iterations, "maxcor": CORRECTIONS, "ftol": 0.0, "gtol": 0.0}
        place, before = self.start / self.units, math.inf
        while self.profile.parameters and not history.stopped:
            found = minimize(
                self._loss, place, jac=True, method="L-BFGS-B", callback=self._end_iteration, options=options
            )
            place = found.x
            options["maxiter"] = self.max_iterations - self.iteration
            if found.status == 1:
                history.stopped = history.stopped or "max_epochs"
            if before - found.fun < self.tolerance:  # a fresh start has not helped its line search
                break
            before = found.fun
        if not history.rows:  # it starts at its best, or nothing but q can learn
            self._record(self.start)
        history.stopped = history.stopped or "converged"
        steepest = np.abs(self.gradients[int(np.argmin(self.losses))]).max(initial=0.0) if self.losses else 0.0
        # With Gaussian noise that is steep only where targets have no noise, and the ELBO no end.
        flat = bool(steepest < FLAT) or self.model.likelihood.conjugate
        ended = flat if history.stopped == "converged" else history.stopped == "no better score"
        history.converged = ended and self.settled  # q at its optimum in the state that is kept
        if self.among.first:
            warn_unless_converged(history, stacklevel=5)

    def _loss(self, place: np.ndarray) -> tuple[float, np.ndarray]:
        """Minus the ELBO, nats a row, and its gradient, by the parameters in units of the first step."""
        vector = self.units * place
        self.told += 1
        if self.told > len(self.losses):
            value, gradient = self._evaluate(vector)
            self.losses.append(value)
            self.gradients.append(gradient)
        elif self.told == len(self.losses):  # resumed: from here on it goes on
            self._put(vector)
        self.last = vector.copy()
        return self.losses[self.told - 1], self.units * self.gradients[self.told - 1]

    def _put(self, vector: np.ndarray) -> None:
        parameters = list(self.profile.parameters.values())
        parts = torch.from_numpy(vector).split([parameter.numel() for parameter in parameters])
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.data.copy_(part.view_as(parameter))  # in its own precision

    def _evaluate(self, vector: np.ndarray) -> tuple[float, np.ndarray]:
        """Minus the ELBO, nats a row, and its gradient."""
        refused = min([self.reached, *self.losses[:1]]) + REFUSED, np.zeros_like(vector)
        if np.abs(vector - self.start)[self.logarithms].max(initial=0.0) > FARTHEST:
            return refused
        self._put(vector)
        try:
            value, gradients = with_prior(self.profile)
            value = -value.item() / self.feed.total_weight
            gradient = -_vector(gradients) / self.feed.total_weight
            if not math.isfinite(value + gradient.sum()):
                raise NonFiniteError("the ELBO or its gradient is not finite")
        except FAILURES:
            if not self.losses:  # there is no way from this start
                raise
            return refused
        return (value, gradient) if value < refused[0] else refused

    def _end_iteration(self, intermediate_result: Any) -> None:
        self.iteration, self.reached = self.iteration + 1, intermediate_result.fun
        if self.iteration > len(self.history.rows):
            self._record(self.units * intermediate_result.x)
        if self.history.stopped:
            raise StopIteration  # L-BFGS takes it for the wish to stop

    def _record(self, vector: np.ndarray) -> None:
        """Keeps the best state, and says why to stop, if so."""
        model, history, settings = self.model, self.history, self.settings
        looked = self.last is not None and np.array_equal(vector, self.last)
        value = -(self.losses[-1] if looked else self._evaluate(vector)[0])
        if self.validation is None:
            score = self.profile.score()
        else:
            score = validation_score(model, self.profile.q, self.feed, self.validation, self.among)
        epoch, self.seconds = len(history.rows) + 1, self.among.from_first(lambda: time.monotonic() - self.started)
        row = {"epoch": epoch, "step": epoch, "seconds": round(self.seconds, 3), "objective": "elbo"}
        history.rows.append(row | {"value": value, "score": score, "learning_rate": 1.0, "skipped": 0})
        if score > history.best_score:
            history.best_epoch, history.best_score = epoch, score
            self.settled = self.profile.settled
            self.best = {name: each.detach().clone() for name, each in model.state_dict().items()}
            if not isinstance(self.profile, Exact):  # there it follows from the rest
                self.best |= {PRECISION: self.profile.q.precision, SHIFT: self.profile.q.shift}
        progress = self._progress()
        # Every callback is told.
        wishes = self.among.from_first(lambda: [bool(callback(progress)) for callback in self.callbacks])
        if any(wishes):
            history.stopped = "callback"
        elif settings.time_budget is not None and self.seconds >= settings.time_budget:
            history.stopped = "time budget"
        elif (
            epoch > WINDOW and value - history.rows[-1 - WINDOW]["value"] < self.tolerance * self._share_of_tolerance()
        ):
            history.stopped = "converged"
        elif epoch - history.best_epoch >= (settings.patience or PATIENCE):
            history.stopped = "no better score"
        if self.interrupts is None:
            return
        interrupts, due = self.interrupts, time.monotonic() - self.saved > settings.checkpoint_seconds
        told = self.among.gather(lambda: (interrupts.received, due))
        received = next((signal for signal, _ in told if signal), None)
        if received or told[0][1]:
            self._save()
        if received:
            folder = None if self.checkpoints is None else self.checkpoints.folder
            raise interrupts.error(f"after step {epoch}", folder, received)

    def _share_of_tolerance(self) -> float:
        """The share of the tolerance that counts: a tenth where the ELBO is still steep."""
        flat = np.abs(self.gradients[-1]).max(initial=0.0) < FLAT or self.model.likelihood.conjugate
        return 1.0 if flat else 0.1

    def _finish(self) -> None:
        """Leaves the model in its best state, q included."""
        if self.best:
            state = dict(self.best)
            q = [state.pop(name) for name in (PRECISION, SHIFT) if name in state]
            self.model.load_state_dict(state)
            self.model.posterior.set_natural(Natural(*q) if q else self.profile.q)

    def _save(self) -> None:
        if self.interrupts is None:
            return
        own = None if self.profile.sites is None else torch.cat(self.profile.sites, -1).cpu()
        sites = [each for each in self.among.gather(lambda: own) if each is not None]
        if self.checkpoints is None:
            return
        tensors = {f"best/{name}": each for name, each in self.best.items()}
        tensors |= {f"history/{name}": each for name, each in self.history.tensors().items()}
        tensors |= {"sites": torch.cat(sites, -1)} if sites else {}
        tensors["losses"] = torch.tensor(self.losses, dtype=torch.float64)
        tensors["gradients"] = torch.from_numpy(np.array(self.gradients).reshape(len(self.losses), -1))
        history = {name: value for name, value in vars(self.history).items() if name != "rows"}
        state = {"seconds": self.seconds, "history": history, "best": self.profile.best, "settled": self.settled}
        state["tolerance"] = self.profile.tolerance
        self.checkpoints.save(len(self.history.rows), {n: each.cpu() for n, each in tensors.items()}, to_json(state))
        self.saved = time.monotonic()

    def saved_state(self, resume: bool) -> Checkpoint | None:
        assert self.checkpoints is not None
        return self.checkpoints.load_newest() if resume else self.checkpoints.refuse_existing()

    def restore(self, saved: Checkpoint) -> None:
        state, groups = from_json(saved.state), grouped(saved.tensors, "/")
        self.seconds, self.settled = state["seconds"], state["settled"]
        self.history = History(**state["history"], rows=History.rows_of(groups["history"]))
        self.best = {name: each.to(self.model.device) for name, each in groups["best"].items()}
        self.losses, self.gradients = saved.tensors["losses"].tolist(), list(saved.tensors["gradients"].numpy())
        if "sites" in saved.tensors:
            rows = self.among.own(self.feed.num_data)
            own = saved.tensors["sites"][..., rows.start : rows.stop].to(self.model.device)
            self.profile.sites = list(own.split([len(block) for block in self.profile.slices], -1))
        self.profile.best = state["best"]
        self.profile.tolerance = state["tolerance"]

    def _progress(self) -> Progress:
        last = self.history.rows[-1]
        seconds, epoch = last["seconds"], last["epoch"]
        limit, budget = self.settings.max_epochs, self.settings.time_budget
        ends = [] if limit is None else [seconds / epoch * (limit - epoch)]
        ends += [] if budget is None else [max(0.0, budget - seconds)]
        before = self.history.rows[max(0, epoch - 1 - WINDOW)]["value"] if epoch > 1 else math.nan
        return Progress(
            step=epoch,
            total_steps=self.max_iterations,
            epoch=epoch,
            epoch_end=True,
            objective="elbo",
            value=last["value"],
            score=last["score"],
            nlp=self.feed.nlp(last["score"]),
            rows_per_second=self.feed.num_data * epoch / max(seconds, 1e-9),
            seconds=seconds,
            seconds_left=min(ends, default=math.nan),
            gain=last["value"] - before,
            least_gain=self.tolerance,
            skipped=0,
            predictor=lambda: self.whole.predictor(self.profile.q),
        )


def with_prior(profile: Profile | Collapsed | Exact) -> tuple[Tensor, list[Tensor]]:
    """The ELBO plus the log density of the kernel's hyper-parameters under their priors, and its gradients."""
    value, gradients = profile()
    log_prior = profile.model.kernel.log_prior()
    if not log_prior.requires_grad:
        return value, gradients
    profile.value += log_prior.item()  # states are compared by it
    own = gradients_of(log_prior, list(profile.parameters.values()))
    return value + log_prior.detach(), [mine + theirs for mine, theirs in zip(gradients, own, strict=True)]


def _vector(tensors: Iterable[Tensor]) -> np.ndarray:
    return np.concatenate([np.zeros(0), *(tensor.detach().cpu().numpy().ravel() for tensor in tensors)])
