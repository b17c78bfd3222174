"""What a training run does and when: settings, the phases they make, and the step sizes over time."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral, Real

__all__ = ["OBJECTIVES", "PARTS", "Phase", "Settings"]

OBJECTIVES = ("elbo", "loo", "predictive")
PARTS = ("features", "kernel", "likelihood", "inducing_inputs", "posterior")  # of a model, that learn
HELD_SHARE = 0.75  # for leave-one-out
LEARNING_RATE = 0.05
# Of a run whose length was left open; steps that see all rows have no noise to average out.
FEWEST_EPOCHS, FEWEST_STEPS, FEWEST_WHOLE_STEPS = 30, 1000, 300
# Steps in which the learning rate rises, in a short phase a quarter of it: until q has seen some rows, and Adam some
# gradients, both are rough.
WARM_UP, WARM_UP_SHARE = 30, 0.25


@dataclass(frozen=True)
class Phase:
    """A stretch of training in which the hyper-parameters follow one objective.

    q follows the ELBO, by natural gradients where it is one Gaussian; with `hold` q(u) stays as it is.

    >>> Phase("loo", epochs=10, hold=True, rates={"kernel": 0.01}, trainable=("kernel", "likelihood")).rate("kernel")
    0.01
    """

    objective: str = "elbo"
    epochs: float = 30.0
    hold: bool = False
    rates: Mapping[str, float] = field(default_factory=dict)  # learning rates of parts of the model; others have 0.05
    trainable: tuple[str, ...] = PARTS  # the parts that learn
    natural_rates: tuple[float, float] = (0.1, 0.01)  # of the natural gradients: at the start, at the end
    prior: float = 0.0  # what E_q[log p(u)] counts where q(u) is held: 1 as in the ELBO, 0 nothing
    decay: bool = True  # the learning rates rise over the first 30 steps and fall to 0 over the phase, by a cosine

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise ValueError(f"objective must be one of {', '.join(OBJECTIVES)}, got {self.objective!r}")
        if not 0 < self.epochs < math.inf:
            raise ValueError(f"epochs must be a positive number, got {self.epochs!r}")
        object.__setattr__(self, "rates", dict(self.rates))
        object.__setattr__(self, "trainable", tuple(self.trainable))
        for name in (*self.rates, *self.trainable):
            if name not in PARTS:
                raise ValueError(f"a model has the parts {', '.join(PARTS)}; {name!r} is none of them")
        if not all(0 < rate < math.inf for rate in self.rates.values()):
            raise ValueError(f"rates must be positive, got {self.rates!r}")
        if not (len(self.natural_rates) == 2 and all(0 < rate <= 1 for rate in self.natural_rates)):
            raise ValueError(f"natural_rates must be two numbers in (0, 1], got {self.natural_rates!r}")
        if not 0 <= self.prior < math.inf:
            raise ValueError(f"prior must be a finite number, none negative, got {self.prior!r}")

    def steps(self, steps_per_epoch: int) -> int:
        return max(1, round(self.epochs * steps_per_epoch))

    def rate(self, part: str) -> float:
        """The highest learning rate of a part; 0 where it does not learn."""
        return self.rates.get(part, LEARNING_RATE) if part in self.trainable else 0.0

    def share(self, progress: float, taken: int) -> float:
        """Of the highest learning rate, at the share `progress` of the phase, after `taken` steps of its optimiser."""
        if not self.decay:
            return 1.0
        rising = min(1.0, max((taken + 1) / WARM_UP, progress / WARM_UP_SHARE))
        return rising * 0.5 * (1 + math.cos(math.pi * progress))

    def natural_rate(self, progress: float) -> float:
        """Step size of the natural gradient at the share `progress` of the phase; geometric between the two ends."""
        start, end = self.natural_rates
        return start ** (1 - progress) * end**progress


@dataclass(frozen=True)
class Settings:
    """How to train. The defaults suit minibatches of any data; `Settings.paper()` is the paper's own recipe.

    Kernel, inducing inputs, likelihood and features follow `objective`, the posterior always follows the ELBO:

    - "elbo": both in the same step.
    - "loo": first as "elbo", then, for the last `held_share` of the epochs, leave-one-out with q(u) held fixed.
    - "predictive": both in the same step, or with a `held_share` as "loo".

    With `held_share=0` every objective is followed in the same step as the ELBO. `plan`, a list of phases, replaces all
    of this.

    >>> [(phase.objective, phase.epochs) for phase in Settings(objective="loo", max_epochs=2).phases(10)]
    [('elbo', 0.5), ('loo', 1.5)]
    """

    objective: str = "elbo"
    max_epochs: int | None = None  # without it 30, or on small data as many as make 1,000 steps, 300 of all rows
    batch_size: int | None = None  # 1,000; estimators take all rows up to 2,000
    samples: int = 10  # Monte Carlo samples per row, where a likelihood needs them
    monte_carlo: bool = False  # by samples also where there are closed forms, as in the paper
    optimiser: str = "natural"  # or "rmsprop": ordinary gradients on everything
    whiten: bool = True  # ordinary gradients are by q(v), v = L^-1 u; else by q(u), as in the paper
    learning_rate: float = LEARNING_RATE  # of kernel, inducing inputs, likelihood and features
    kernel_rate: float = 1.0  # what the kernel takes of it, and of `held_learning_rate`
    natural_rates: tuple[float, float] = (0.1, 0.01)  # of the natural gradients: at the start, at the end
    held_share: float | None = None  # of the epochs; without it 0.75 for "loo", none for the others
    loo_cycle: int | None = None  # epochs of each phase, alternating; without it two phases
    held_learning_rate: float = LEARNING_RATE  # where q(u) is held
    held_prior: float = 0.0  # what E_q[log p(u)] counts there: 1 as in the ELBO, 0 nothing
    decay: bool = True  # the learning rate rises over the first 30 steps and falls to 0 over each phase, by a cosine
    plan: Sequence[Phase] | None = None  # phases of your own, in place of those that follow from the above
    patience: int | None = None  # stop after so many epochs without a better score
    time_budget: float | None = None  # seconds; step sizes then fall with time, not with epochs
    checkpoint_seconds: float = 60.0
    device: str = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        for name, allowed in (("objective", OBJECTIVES), ("optimiser", ("natural", "rmsprop"))):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}")
        for name in ("max_epochs", "batch_size", "samples", "loo_cycle", "patience", "seed"):
            if not isinstance(getattr(self, name), Integral | None):
                raise ValueError(f"{name} must be a whole number, got {getattr(self, name)!r}")
        for name, value in vars(self).items():  # NumPy's numbers cannot be kept as JSON
            if isinstance(value, Real) and not isinstance(value, bool):
                object.__setattr__(self, name, int(value) if isinstance(value, Integral) else float(value))
        if not (self.whiten or self.optimiser == "rmsprop"):
            raise ValueError("whiten=False is for ordinary gradients on everything: set optimiser='rmsprop'")
        if self.held_prior and not self.whiten:
            raise ValueError("held_prior needs whiten=True")
        if not 0 <= self.seed < 2**31:
            raise ValueError(f"seed must lie between 0 and 2^31 - 1, got {self.seed!r}")
        for name in ("samples", "learning_rate", "kernel_rate", "held_learning_rate", "checkpoint_seconds"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)!r}")
        for name in ("max_epochs", "batch_size", "patience", "time_budget", "loo_cycle"):
            if getattr(self, name) is not None and not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive or None, got {getattr(self, name)!r}")
        if not all(0 < rate <= 1 for rate in self.natural_rates):
            raise ValueError(f"natural_rates must lie in (0, 1], got {self.natural_rates!r}")
        if not 0 <= self.held_prior < math.inf:
            raise ValueError(f"held_prior must be a finite number, none negative, got {self.held_prior!r}")
        if self.held_share is not None and not 0 <= self.held_share < 1:
            raise ValueError(f"held_share must lie in [0, 1), got {self.held_share!r}")
        if self.plan is not None:
            object.__setattr__(self, "plan", tuple(self.plan))
            if not self.plan or not all(isinstance(phase, Phase) for phase in self.plan):
                raise ValueError(f"plan must be a list of phases, at least one, got {self.plan!r}")

    @classmethod
    def paper(cls, **changes) -> "Settings":
        """RMSProp at 0.003 on everything, by the parameters of q(u), batches of 1000, every expectation by 100 samples,
        objectives in turns of 100 epochs; docs/experiments.md says what differs from the paper."""
        recipe = cls(
            optimiser="rmsprop",
            whiten=False,
            batch_size=1000,
            samples=100,
            monte_carlo=True,
            learning_rate=0.003,
            held_learning_rate=0.003,
            loo_cycle=100,
            decay=False,
            max_epochs=200,
        )
        return replace(recipe, **changes)

    def epochs(self, steps_per_epoch: int) -> int:
        """As many as were asked for, or as so long epochs need."""
        fewest = FEWEST_WHOLE_STEPS if steps_per_epoch == 1 else FEWEST_STEPS
        return self.max_epochs or max(FEWEST_EPOCHS, math.ceil(fewest / steps_per_epoch))

    def phases(self, steps_per_epoch: int) -> list[Phase]:
        """The phases of a run, which ends with the objective that was asked for."""
        if self.plan is not None:
            return [replace(phase) for phase in self.plan]  # told apart, though one may stand there twice
        epochs = self.epochs(steps_per_epoch)
        steps = epochs * steps_per_epoch
        objective, share = self.objective, self.held_share
        if share is None:
            share = HELD_SHARE if objective == "loo" else 0.0
        if objective == "elbo" or not share:
            return [self._phase(objective, epochs)]
        if steps == 1:
            raise ValueError(f"objective={objective!r} has two phases, and max_epochs=1 is one step: let it be 2")
        if self.loo_cycle is None:
            turns, last = 1, min(steps - 1, max(1, round(steps * share)))
        else:
            last = min(self.loo_cycle * steps_per_epoch, steps // 2)
            turns = steps // (2 * last)
        first = steps - (2 * turns - 1) * last  # the start takes what the turns leave over
        lengths = [first, last, *[last] * (2 * turns - 2)]
        return [
            self._phase(objective if number % 2 else "elbo", length / steps_per_epoch, hold=bool(number % 2))
            for number, length in enumerate(lengths)
        ]

    def _phase(self, objective: str, epochs: float, hold: bool = False) -> Phase:
        rate = self.held_learning_rate if hold else self.learning_rate
        rates = dict.fromkeys(PARTS, rate) | {"kernel": self.kernel_rate * rate}
        prior = self.held_prior if hold else 0.0
        return Phase(objective, epochs, hold, rates, PARTS, self.natural_rates, prior, self.decay)
