"""SARCOS: a regression network of one node, by epoch and number of samples (the paper's figure 1)."""

from pathlib import Path

import torch
from torch import Tensor

from autogp.datasets import Dataset, load_sarcos, without_repeats
from autogp.experiments.base import Experiment, Preset
from autogp.inference import Settings, start_nodes
from autogp.likelihoods import Gaussian, Network
from autogp.likelihoods.base import chunks

SETTINGS = Settings(max_epochs=20, batch_size=500, learning_rate=0.1, natural_rates=(0.2, 0.02))


class SampledNetwork(Network):
    """A network of one node with its expectations by Monte Carlo, as in the paper, although it has closed forms.

    What is averaged over the samples is written out: autograd would find the same in ten times the time.
    """

    @property
    def sampled(self) -> frozenset[str]:
        return frozenset({"elbo", "predictive"})

    def expected_derivatives(
        self, mean: Tensor, variance: Tensor, y: Tensor, noise: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        if noise is None:
            return super().expected_derivatives(mean, variance, y)
        precision = 1 / self.variance.detach().to(mean.dtype)
        alpha, beta = torch.zeros_like(mean), torch.zeros_like(mean)
        for part in chunks(noise):
            weights, node = (mean + variance.sqrt() * part).split([self.num_outputs, 1], -1)
            slope = (y - weights * node) * precision
            alpha[..., :-1] += (slope * node).sum(0)
            alpha[..., -1] += torch.einsum("s...p,s...p->...", slope, weights)
            beta[..., :-1] -= node.square().sum(0) * precision
            beta[..., -1] -= weights.square().sum(0) @ precision
        return alpha / len(noise), 0.5 * beta / len(noise)

    def expected_log_prob(self, mean: Tensor, variance: Tensor, y: Tensor, noise: Tensor | None = None) -> Tensor:
        if noise is None or mean.requires_grad or variance.requires_grad:
            return super().expected_log_prob(mean, variance, y, noise)
        squares = torch.zeros_like(mean[..., :-1])  # only the noise learns: what it needs are the mean squares
        for part in chunks(noise):
            weights, node = (mean + variance.sqrt() * part).split([self.num_outputs, 1], -1)
            squares += (y - weights * node).square().sum(0)
        known = self.variance.to(mean.dtype)
        return -0.5 * ((2 * torch.pi * known).log() + squares / len(noise) / known).sum(-1)


def load(data: str, folder: str | Path | None, seed: int, download: bool) -> Dataset:
    """The publishers' splits, or ("-clean") without the training rows that are also test rows."""
    recording, _, clean = data.partition("-")
    rows = load_sarcos(folder, recording)
    return without_repeats(rows) if clean else rows


EXPERIMENT = Experiment(
    name="sarcos",
    title="SARCOS inverse dynamics",
    load=load,
    data=dict.fromkeys(("gpml", "gpml-clean", "ias", "ias-clean"), range(1)),
    likelihood=lambda: Network(num_outputs=7, variance=0.1),
    inducing=(50,),
    objectives=("elbo",),
    metrics=("smse", "nlp"),
    curve=True,
    presets={
        "ours": Preset(SETTINGS, shared=False, precision=torch.float32, start=start_nodes),
        "sampled": Preset(
            SETTINGS,
            shared=False,
            precision=torch.float32,
            start=start_nodes,
            samples=(10, 100, 1000, 10_000),
            likelihood=lambda: SampledNetwork(num_outputs=7, variance=0.1),
        ),
        "independent": Preset(
            SETTINGS,
            shared=False,
            precision=torch.float32,
            likelihood=lambda: Gaussian(num_outputs=7, variance=0.1),
        ),
        "paper": Preset(
            Settings.paper(max_epochs=100),
            shared=False,
            lengthscale=10.0,
            samples=(10, 100, 1000),
            likelihood=lambda: SampledNetwork(num_outputs=7),
        ),
    },
    beside=("sampled", "independent"),
    published={("rbf", "elbo", 50): {"smse": 0.0195}},
    published_on="sarcos-gpml",
    note=(
        "gpml is the paper's recording, ias another one of the same arm. Test rows also stand in the training sets of "
        "both publishers: -clean is without them. ours: the network with its expectations in closed form; sampled: by "
        "Monte Carlo; independent: a Gaussian process of its own for each output, with as many inducing inputs."
    ),
)
