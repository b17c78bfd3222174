"""What an experiment is: data, arguments of an estimator, and what is varied."""

import functools
import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from autogp.datasets import Dataset
from autogp.estimators import GPClassifier, GPRegressor
from autogp.experiments.call import code, imports
from autogp.training import Settings, Start

__all__ = ["PAPER", "Experiment", "Loader", "Peer", "Preset", "Run"]

Loader = functools.partial  # of a function whose result is a Dataset; it may take `folder` and `download`


@dataclass(frozen=True)
class Preset:
    """One way to train: arguments of the estimator, besides those that the experiment varies."""

    arguments: Mapping[str, Any]
    inducing: tuple[int, ...] | None = None  # in place of the experiment's,
    objectives: tuple[str, ...] | None = None  # and these
    kernels: tuple[str, ...] | None = None
    samples: tuple[int | None, ...] = (None,)  # Monte Carlo samples to try; none: those of the settings
    by_kernel: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # settings that are a kernel's own
    loader: Loader | None = None  # of other rows than the experiment's
    curve: bool = True  # whether test scores are followed, where the experiment does: features of images take too long


PAPER = Preset(  # of the paper, for several classes
    {
        "share_kernel": False,
        "scaling": "standard",
        "start": Start(variance=1.0, lengthscale=10.0, by_class=False),
        "settings": Settings.paper(),
    }
)


@dataclass(frozen=True)
class Peer:
    """Another method on the same rows, to compare with.

    From the data, the number of samples and the seed it makes parts of a record: "scores", "settings", "seconds" (of
    "training") and "epochs" at least.
    """

    measure: Any  # Callable[[Dataset, int | None, int], dict[str, Any]]
    samples: tuple[int | None, ...] = (None,)


@dataclass(frozen=True)
class Experiment:
    """Data, an estimator, and what is varied: a run for every combination, and for every peer."""

    name: str
    title: str
    load: Any  # Callable[[str, int], Loader]: of the name of the data set and the seed, which counts published splits
    metrics: tuple[str, ...]  # what tables and figures show; every score is recorded
    estimator: type[GPClassifier | GPRegressor] = GPClassifier
    presets: Mapping[str, Preset] = field(default_factory=dict)  # none: the peers are all there is
    inducing: tuple[int, ...] = ()
    objectives: tuple[str, ...] = ()
    kernels: tuple[str, ...] = ("rbf",)
    data: Mapping[str, range] = field(default_factory=lambda: {"": range(1)})  # the data sets, and the seeds for each
    beside: tuple[str, ...] = ()  # presets that run along with "ours"
    peers: Mapping[str, Peer] = field(default_factory=dict)  # these too
    curve: str = ""  # over what the test scores are followed: "epoch", or "time" where epochs are long
    # The paper's results by kernel, objective and inducing inputs, and the names of the data that they are for.
    published: Mapping[tuple[str, str, int], Mapping[str, float]] = field(default_factory=dict)
    published_on: tuple[str, ...] = ()
    note: str = ""  # for whoever reads the table

    def runs(self, preset: str, seed: int | None = None) -> list["Run"]:
        """All runs, data set by data set; `seed` stands for the experiment's own seeds."""
        if preset not in self.presets and preset != "ours":
            raise ValueError(f"{self.name} has no preset {preset!r}; it has {', '.join(self.presets) or 'none'}")
        presets, peers = ([preset, *self.beside], self.peers) if preset == "ours" else ([preset], {})
        return [
            run
            for data, seeds in self.data.items()
            for each in (seeds if seed is None else (seed,))
            for run in [
                *(
                    Run(self, name, data, kernel, objective, inducing, samples, each)
                    for name in presets
                    if name in self.presets
                    for samples in self.presets[name].samples
                    for kernel in self.presets[name].kernels or self.kernels
                    for inducing in self.presets[name].inducing or self.inducing
                    for objective in self.presets[name].objectives or self.objectives
                ),
                *(
                    Run(self, name, data, "", "", 0, samples, each)
                    for name, peer in peers.items()
                    for samples in peer.samples
                ),
            ]
        ]


@dataclass(frozen=True)
class Run:
    """One training of an experiment."""

    experiment: Experiment
    preset_name: str
    data: str
    kernel: str
    objective: str
    inducing: int
    samples: int | None
    seed: int

    @property
    def name(self) -> str:
        """What is varied, in words that are also a file name: mnist-ours-loo-200-seed0."""
        parts = [self.experiment.name]
        parts += [self.data] if len(self.experiment.data) > 1 else []
        parts += [self.kernel] if len(self.experiment.kernels) > 1 and self.kernel else []
        parts += [self.preset_name] if self.is_peer else [self.preset_name, self.objective, str(self.inducing)]
        parts += [f"{self.samples}samples"] if self.samples is not None else []
        return re.sub(r"[, ]+", "-", "-".join([*parts, f"seed{self.seed}"]))

    @property
    def is_peer(self) -> bool:
        return self.preset_name in self.experiment.peers

    @property
    def loader(self) -> Loader:
        own = None if self.is_peer else self.experiment.presets[self.preset_name].loader
        return own or self.experiment.load(self.data, self.seed)

    def load(self, folder: str | Path | None = None, download: bool = False) -> Dataset:
        known = inspect.signature(self.loader).parameters
        options = {"folder": folder, "download": download}
        return self.loader(**{name: value for name, value in options.items() if name in known})

    def arguments(self, time_budget: float | None = None) -> dict[str, Any]:
        """Of the estimator."""
        preset = self.experiment.presets[self.preset_name]
        settings: Settings = preset.arguments["settings"]
        changes: dict[str, Any] = dict(preset.by_kernel.get(self.kernel, {}))
        changes |= {} if self.samples is None else {"samples": self.samples}
        found = {"n_inducing": self.inducing, "kernel": self.kernel, "objective": self.objective, **preset.arguments}
        found |= {"settings": replace(settings, **changes), "random_state": self.seed}
        return found if time_budget is None else found | {"time_budget": time_budget}

    def call(self, time_budget: float | None = None) -> str:
        """The run as a program."""
        arguments = self.arguments(time_budget)
        kind = self.experiment.estimator
        listed = ", ".join(f"{name}={code(value)}" for name, value in arguments.items())
        return "\n".join(
            [
                *imports(kind, self.loader.func, *arguments.values()),
                "",
                f"data = {code(self.loader)}",
                f"model = {kind.__name__}({listed})",
                "model.fit(data.x_train, data.y_train)",
            ]
        )
