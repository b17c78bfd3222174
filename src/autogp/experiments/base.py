"""What an experiment is: data and settings, and the runs that follow from them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import torch

from autogp.datasets import Dataset
from autogp.likelihoods import Gaussian, Likelihood
from autogp.model import SparseGP
from autogp.training import Settings

__all__ = ["Experiment", "Loader", "Peer", "Preset", "Run"]


class Loader(Protocol):
    """Reads one of an experiment's data sets; for sets with several published splits, the seed counts them."""

    def __call__(self, data: str, folder: str | Path | None, seed: int, download: bool) -> Dataset: ...


@dataclass(frozen=True)
class Preset:
    """One way to train: the settings, and where the model starts."""

    settings: Settings
    scaling: Literal["standard", "global"] = "standard"  # of the inputs; "global" suits images
    components: int | None = None  # so many principal components of the inputs, in their place
    shared: bool = True  # one kernel and one set of inducing inputs for all latent functions
    by_class: bool = False  # k-means within each class
    variance: float = 1.0  # of the kernel
    lengthscale: float | None = None  # none: from the distances between rows
    samples: tuple[int | None, ...] = (None,)  # Monte Carlo samples to try; none: those of the settings
    inducing: tuple[int, ...] | None = None  # in place of the experiment's
    likelihood: Callable[[], Likelihood] | None = None  # in place of the experiment's
    precision: torch.dtype | None = None  # of blocks of rows; none: float64 where there are few columns
    start: Callable[[SparseGP], None] | None = None  # what else is done to the model before its first step
    exact: bool = False  # the bound from all rows at once, for Gaussian noise; other objectives go on from there
    by_kernel: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # settings that are a kernel's own


@dataclass(frozen=True)
class Peer:
    """Another method on the same rows, to compare with.

    From the data, the number of samples and the seed it makes parts of a record: "scores", "settings", "seconds" (of
    "training") and "epochs" at least.
    """

    measure: Callable[[Dataset, int | None, int], dict[str, Any]]
    samples: tuple[int | None, ...] = (None,)


@dataclass(frozen=True)
class Experiment:
    """Data, a likelihood, and what is varied: a run for every combination, and for every peer."""

    name: str
    title: str
    load: Loader
    metrics: tuple[str, ...]  # what tables and figures show; every score is recorded
    likelihood: Callable[[], Likelihood] = Gaussian
    presets: Mapping[str, Preset] = field(default_factory=dict)  # none: the peers are all there is
    inducing: tuple[int, ...] = ()
    objectives: tuple[str, ...] = ()
    kernels: tuple[str, ...] = ("rbf",)
    data: Mapping[str, range] = field(default_factory=lambda: {"": range(1)})  # the data sets, and the seeds for each
    beside: tuple[str, ...] = ()  # presets that run along with "ours"
    peers: Mapping[str, Peer] = field(default_factory=dict)  # these too
    curve: bool = False  # whether the scores are followed over the epochs
    # The paper's results by kernel, objective and inducing inputs, and the name of the data that they are for.
    published: Mapping[tuple[str, str, int], Mapping[str, float]] = field(default_factory=dict)
    published_on: str = ""
    note: str = ""  # for whoever reads the table

    def runs(self, preset: str, seed: int | None = None) -> list["Run"]:
        """All runs, data set by data set; `seed` stands for the experiment's own seeds."""
        if preset not in self.presets and preset != "ours":
            raise ValueError(f"{self.name} has no preset {preset!r}: leave it out")
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
                    for kernel in self.kernels
                    for inducing in self.presets[name].inducing or self.inducing
                    for objective in self.objectives
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
        """What is varied, in words: mnist-ours-loo-200-seed0."""
        parts = [self.experiment.name]
        parts += [self.data] if len(self.experiment.data) > 1 else []
        parts += [self.kernel] if len(self.experiment.kernels) > 1 and self.kernel else []
        parts += [self.preset_name] if self.is_peer else [self.preset_name, self.objective, str(self.inducing)]
        parts += [f"{self.samples}samples"] if self.samples is not None else []
        return "-".join([*parts, f"seed{self.seed}"]).replace(" ", "-")

    @property
    def is_peer(self) -> bool:
        return self.preset_name in self.experiment.peers

    @property
    def preset(self) -> Preset:
        return self.experiment.presets[self.preset_name]

    def settings(self, time_budget: float | None) -> Settings:
        preset = replace(self.preset.settings, **self.preset.by_kernel.get(self.kernel, {}))
        found = replace(preset, objective=self.objective, seed=self.seed, time_budget=time_budget)
        return found if self.samples is None else replace(found, samples=self.samples)
