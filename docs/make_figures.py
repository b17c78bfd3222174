"""Draws the pictures of the README and of docs/images.md: `python docs/make_figures.py` (half a minute).

The second needs MNIST and CIFAR-10 in the folder that AUTOGP_DATA names.
"""

from pathlib import Path

import matplotlib
import numpy as np
import torch

from autogp import SparseGP
from autogp.data import ArraySource
from autogp.datasets import load_cifar10, load_mnist
from autogp.features import Convolutional
from autogp.kernels import RBF
from autogp.likelihoods import Likelihood, Poisson, Softmax, StudentT
from autogp.training import Settings, train

matplotlib.use("Agg")
from matplotlib import pyplot

FOLDER = Path(__file__).parent / "images"
BLUE, ORANGE, GREEN = "#2b6cb0", "#dd6b20", "#2f855a"


def fit(likelihood: Likelihood, x: np.ndarray, y: np.ndarray, inducing: np.ndarray, lengthscale: float) -> SparseGP:
    model = SparseGP(RBF([lengthscale] * x.shape[1], 2.0), likelihood, torch.from_numpy(inducing))
    settings = Settings(max_epochs=300, natural_rates=(0.5, 0.1), learning_rate=0.02)
    train(model, ArraySource(x, y), settings)
    return model


def robust_regression(axis, rng: np.random.Generator) -> None:
    x = np.sort(rng.uniform(-3, 3, 80))[:, None]
    y = np.sin(2 * x[:, 0]) + 0.15 * rng.standard_normal(80)
    wild = rng.choice(80, 10, replace=False)
    y[wild] += rng.uniform(-4, 4, 10)
    model = fit(StudentT(scale=0.2), x, y, np.linspace(-3, 3, 20)[:, None], 1.0)
    grid = torch.linspace(-3.6, 3.6, 300, dtype=torch.float64)[:, None]
    marginals = model.marginals(grid)
    mean, deviation = marginals.mean[0, :, 0].detach(), marginals.variance[0, :, 0].detach().sqrt()
    axis.fill_between(grid[:, 0], mean - 2 * deviation, mean + 2 * deviation, color=BLUE, alpha=0.2, lw=0)
    axis.plot(grid[:, 0], mean, color=BLUE)
    axis.plot(x[:, 0], y, "o", color="#555555", ms=3)
    axis.set(title="Outliers: Student-t", ylim=(-4, 4))


def counts(axis, rng: np.random.Generator) -> None:
    x = np.sort(rng.uniform(0, 10, 120))[:, None]
    rate = np.exp(1.2 + 1.3 * np.sin(x[:, 0]))
    y = rng.poisson(rate)
    model = fit(Poisson(), x, y, np.linspace(0, 10, 20)[:, None], 1.5)
    grid = torch.linspace(0, 10, 300, dtype=torch.float64)[:, None]
    marginals = model.marginals(grid)
    mean, deviation = marginals.mean[0, :, 0].detach(), marginals.variance[0, :, 0].detach().sqrt()
    axis.fill_between(
        grid[:, 0], torch.exp(mean - 2 * deviation), torch.exp(mean + 2 * deviation), color=ORANGE, alpha=0.25, lw=0
    )
    axis.plot(grid[:, 0], torch.exp(mean), color=ORANGE)
    axis.vlines(x[:, 0], 0, y, color="#555555", lw=0.8)
    axis.set(title="Counts: Poisson", ylim=(0, None))


def classes(axis, rng: np.random.Generator) -> None:
    angle = rng.uniform(0, 2 * np.pi / 3, 240)
    y = np.repeat(np.arange(3), 80)
    radius = np.sqrt(rng.uniform(0.1, 1, 240))
    turn = angle + 2 * np.pi / 3 * y + 1.5 * radius + 0.25 * rng.standard_normal(240)
    x = 2.2 * radius[:, None] * np.stack([np.cos(turn), np.sin(turn)], 1)
    model = fit(Softmax(3), x, y, x[::8], 1.0)
    side = torch.linspace(-3, 3, 160, dtype=torch.float64)
    grid = torch.cartesian_prod(side, side)
    probabilities = model.predict(grid).mean.reshape(160, 160, 3).numpy()
    colours = np.array([matplotlib.colors.to_rgb(colour) for colour in (BLUE, ORANGE, GREEN)])
    # Where the model does not know, the picture fades to white.
    certainty = np.clip((probabilities.max(-1, keepdims=True) - 1 / 3) * 1.5, 0, 1)
    picture = 1 - certainty * (1 - probabilities @ colours)
    axis.imshow(
        picture.transpose(1, 0, 2), origin="lower", extent=(-3, 3, -3, 3), aspect="auto", interpolation="bilinear"
    )
    axis.scatter(x[:, 0], x[:, 1], c=colours[y], s=9, edgecolors="white", linewidths=0.4)
    axis.set(title="Classes: softmax")


def filters(axis, images: np.ndarray, size: int) -> None:
    """The filters of a first layer, each on its own scale."""
    layer = Convolutional(images.shape[1:], layers=[(64, size, 3)], num_components=10).fit(images).fitted[0]
    tiles = layer.filters.numpy().reshape(8, 8, size, size, -1)
    low, high = tiles.min((2, 3, 4), keepdims=True), tiles.max((2, 3, 4), keepdims=True)
    framed = np.pad((tiles - low) / (high - low), ((0, 0), (0, 0), (0, 1), (0, 1), (0, 0)), constant_values=1)
    page = framed.transpose(0, 2, 1, 3, 4).reshape(8 * (size + 1), 8 * (size + 1), -1)
    axis.imshow(page if page.shape[-1] == 3 else page[..., 0], cmap="gray", interpolation="nearest")
    axis.axis("off")


def image_filters() -> None:
    figure, axes = pyplot.subplots(1, 2, figsize=(7, 3.5), layout="constrained")
    filters(axes[0], load_mnist().x_train[:1000].reshape(-1, 28, 28), 5)
    filters(axes[1], load_cifar10().x_train[:1000].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), 5)
    figure.savefig(FOLDER / "filters.png", dpi=110)


def main() -> None:
    figure, axes = pyplot.subplots(1, 3, figsize=(11, 3.2), layout="constrained")
    for axis, draw in zip(axes, (robust_regression, counts, classes), strict=True):
        draw(axis, np.random.default_rng(1))
        axis.spines[["top", "right"]].set_visible(False)
    FOLDER.mkdir(exist_ok=True)
    figure.savefig(FOLDER / "likelihoods.png", dpi=140)
    image_filters()


if __name__ == "__main__":
    main()
