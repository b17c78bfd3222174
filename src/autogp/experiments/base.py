"""What an experiment is: data and settings, and the runs that follow from them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Protocol

from autogp.datasets import Dataset
from autogp.inference import Settings
from autogp.likelihoods import Likelihood

__all__ = ["Experiment", "Loader", "Preset", "Run"]


class Loader(Protocol):
    """Reads one of an experiment's data sets; for sets with several published splits, the seed counts them."""

    def __call__(self, data: str, folder: str | Path | None, seed: int, download: bool) -> Dataset: ...


@dataclass(frozen=True)
class Preset:
    """One way to train: the settings, and where the model starts."""

    settings: Settings
    scaling: Literal["standard", "global"] = "standard"  # of the inputs; "global" suits images
    shared: bool = True  # one kernel and one set of inducing inputs for all latent functions
    by_class: bool = False  # k-means within each class
    variance: float = 1.0  # of the kernel
    lengthscale: float | None = None  # none: from the distances between rows
    samples: tuple[int | None, ...] = (None,)  # Monte Carlo samples to try; none: those of the settings
    likelihood: Callable[[], Likelihood] | None = None  # in place of the experiment's


@dataclass(frozen=True)
class Experiment:
    """Data, a likelihood, and what is varied: a run for every combination."""

    name: str
    title: str
    load: Loader
    likelihood: Callable[[], Likelihood]
    presets: Mapping[str, Preset]
    inducing: tuple[int, ...]
    objectives: tuple[str, ...]
    metrics: tuple[str, ...]  # what tables and figures show; every score is recorded
    kernels: tuple[str, ...] = ("rbf",)
    data: Mapping[str, range] = field(default_factory=lambda: {"": range(1)})  # the data sets, and the seeds for each
    curve: bool = False  # whether the scores are followed over the epochs
    # The paper's results by kernel, objective and inducing inputs, and the name of the data that they are for.
    published: Mapping[tuple[str, str, int], Mapping[str, float]] = field(default_factory=dict)
    published_on: str = ""

    def runs(self, preset: str, seed: int | None = None) -> list["Run"]:
        """All runs, data set by data set; `seed` stands for the experiment's own seeds."""
        if preset not in self.presets:
            raise ValueError(f"{self.name} has the presets {', '.join(self.presets)}, not {preset!r}")
        return [
            Run(self, preset, data, kernel, objective, inducing, samples, each)
            for data, seeds in self.data.items()
            for each in (seeds if seed is None else (seed,))
            for samples in self.presets[preset].samples
            for kernel in self.kernels
            for inducing in self.inducing
            for objective in self.objectives
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
        """What is varied, in words: mnist-ours-loo-200-seed0."""
        parts = [self.experiment.name]
        parts += [self.data] if len(self.experiment.data) > 1 else []
        parts += [self.kernel] if len(self.experiment.kernels) > 1 else []
        parts += [self.preset_name, self.objective, str(self.inducing)]
        parts += [f"{self.samples}samples"] if self.samples is not None else []
        return "-".join([*parts, f"seed{self.seed}"])

    @property
    def preset(self) -> Preset:
        return self.experiment.presets[self.preset_name]

    def settings(self, time_budget: float | None) -> Settings:
        found = replace(self.preset.settings, objective=self.objective, seed=self.seed, time_budget=time_budget)
        return found if self.samples is None else replace(found, samples=self.samples)
