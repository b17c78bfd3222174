"""What a training run does and when: settings, phases, and the step sizes over time."""

import math
from dataclasses import dataclass, replace
from numbers import Integral, Real

__all__ = ["Phase", "Settings", "phases"]

OBJECTIVES = ("elbo", "loo", "predictive")
HELD_SHARE = 0.75  # for leave-one-out
# Of a run whose length was left open; steps that see all rows have no noise to average out.
FEWEST_EPOCHS, FEWEST_STEPS, FEWEST_WHOLE_STEPS = 30, 1000, 300
# Steps in which the learning rate rises, in a short phase a quarter of it: until q has seen some rows, and Adam some
# gradients, both are rough.
WARM_UP, WARM_UP_SHARE = 30, 0.25


@dataclass(frozen=True)
class Phase:
    """A stretch of steps in which the hyper-parameters follow one objective."""

    objective: str
    steps: int
    hold: bool = False  # q(u) stays as it is; otherwise q follows the evidence lower bound


@dataclass(frozen=True)
class Settings:
    """How to train. The defaults suit minibatches of any data; `Settings.paper()` is the paper's own recipe.

    Kernel, inducing inputs and likelihood follow `objective`, the posterior always follows the evidence lower bound:

    - "elbo": both in the same step.
    - "loo": first as "elbo", then, for the last `held_share` of the epochs, leave-one-out with q(u) held fixed.
    - "predictive": both in the same step, or with a `held_share` as "loo".

    With `held_share=0` every objective is followed in the same step as the bound.

    >>> phases(Settings(objective="loo", max_epochs=2), steps_per_epoch=10)
    [Phase(objective='elbo', steps=5, hold=False), Phase(objective='loo', steps=15, hold=True)]
    """

    objective: str = "elbo"
    max_epochs: int | None = None  # without it 30, or on small data as many as make 1,000 steps, 300 of all rows
    batch_size: int = 1000
    samples: int = 10  # Monte Carlo samples per row, where a likelihood needs them
    optimiser: str = "natural"  # or "rmsprop": ordinary gradients on everything
    learning_rate: float = 0.05  # of kernel, inducing inputs and likelihood
    kernel_rate: float = 1.0  # what the kernel takes of it, and of `held_learning_rate`
    natural_rates: tuple[float, float] = (0.1, 0.01)  # of the natural gradients: at the start, at the end
    held_share: float | None = None  # of the epochs; without it 0.75 for "loo", none for the others
    loo_cycle: int | None = None  # epochs of each phase, alternating; without it two phases
    held_learning_rate: float = 0.05  # where q(u) is held
    held_prior: float = 0.0  # what E_q[log p(u)] counts there: 1 as in the bound, 0 nothing
    decay: bool = True  # the learning rate rises over the first 30 steps and falls to 0 over each phase, by a cosine
    patience: int | None = None  # stop after so many epochs without a better score
    time_budget: float | None = None  # seconds; step sizes then fall with time, not with epochs
    checkpoint_seconds: float = 60.0
    device: str = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        for name, allowed in (
            ("objective", OBJECTIVES),
            ("optimiser", ("natural", "rmsprop")),
        ):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}")
        for name in ("max_epochs", "batch_size", "samples", "loo_cycle", "patience", "seed"):
            if not isinstance(getattr(self, name), Integral | None):
                raise ValueError(f"{name} must be a whole number, got {getattr(self, name)!r}")
        for name, value in vars(self).items():  # NumPy's numbers cannot be kept as JSON
            if isinstance(value, Real) and not isinstance(value, bool):
                object.__setattr__(self, name, int(value) if isinstance(value, Integral) else float(value))
        if not 0 <= self.seed < 2**31:
            raise ValueError(f"seed must lie between 0 and 2^31 - 1, got {self.seed!r}")
        for name in (
            "batch_size",
            "samples",
            "learning_rate",
            "kernel_rate",
            "held_learning_rate",
            "checkpoint_seconds",
        ):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)!r}")
        for name in ("max_epochs", "patience", "time_budget", "loo_cycle"):
            if getattr(self, name) is not None and not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive or None, got {getattr(self, name)!r}")
        if not all(0 < rate <= 1 for rate in self.natural_rates):
            raise ValueError(f"natural_rates must lie in (0, 1], got {self.natural_rates!r}")
        if not 0 <= self.held_prior < math.inf:
            raise ValueError(f"held_prior must be a finite number, none negative, got {self.held_prior!r}")
        if self.held_share is not None and not 0 <= self.held_share < 1:
            raise ValueError(f"held_share must lie in [0, 1), got {self.held_share!r}")

    @classmethod
    def paper(cls, **changes) -> "Settings":
        """RMSProp at 0.003 on everything, batches of 1000, 100 samples, objectives in turns of 100 epochs.

        Train a `MixturePosterior` with these: natural form is for natural gradients.
        """
        recipe = cls(
            optimiser="rmsprop",
            samples=100,
            learning_rate=0.003,
            held_learning_rate=0.003,
            loo_cycle=100,
            decay=False,
            max_epochs=200,
        )
        return replace(recipe, **changes)

    def learning_rate_at(self, phase: Phase, progress: float, taken: int) -> float:
        """At the share `progress` of the phase, from 0 to 1, after as many steps of its optimiser as were `taken`."""
        highest = self.held_learning_rate if phase.hold else self.learning_rate
        if not self.decay:
            return highest
        rising = min(1.0, max((taken + 1) / WARM_UP, progress / WARM_UP_SHARE))
        return highest * rising * 0.5 * (1 + math.cos(math.pi * progress))

    def natural_rate_at(self, progress: float) -> float:
        """At the share `progress` of the time in which q moves, from 0 to 1; geometric between the two ends."""
        start, end = self.natural_rates
        return start ** (1 - progress) * end**progress


def phases(settings: Settings, steps_per_epoch: int) -> list[Phase]:
    """The phases of a run, which always ends with the objective that was asked for."""
    fewest = FEWEST_WHOLE_STEPS if steps_per_epoch == 1 else FEWEST_STEPS
    epochs = settings.max_epochs or max(FEWEST_EPOCHS, math.ceil(fewest / steps_per_epoch))
    steps = epochs * steps_per_epoch
    objective, share = settings.objective, settings.held_share
    if share is None:
        share = HELD_SHARE if objective == "loo" else 0.0
    if objective == "elbo" or not share:
        return [Phase(objective, steps)]
    if steps == 1:
        raise ValueError(f"objective={objective!r} has two phases, and max_epochs=1 is one step: let it be at least 2")
    if settings.loo_cycle is None:
        last = min(steps - 1, max(1, round(steps * share)))
        return [Phase("elbo", steps - last), Phase(objective, last, hold=True)]
    cycle = min(settings.loo_cycle * steps_per_epoch, steps // 2)
    turns = steps // (2 * cycle)
    found = [phase for _ in range(turns) for phase in (Phase("elbo", cycle), Phase(objective, cycle, hold=True))]
    found[0] = Phase("elbo", steps - (2 * turns - 1) * cycle)  # the start takes what the turns leave over
    return found
