"""Features of images: a convolutional kernel network, learnt from their patches without labels."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
import torch
from sklearn.utils.extmath import randomized_svd
from torch import Tensor, nn

from autogp.data import Source
from autogp.data.deformed import has_planes
from autogp.data.sources import as_tensor
from autogp.features.base import Transformer, as_rows
from autogp.features.patches import PatchLayer, patches_of
from autogp.features.whitening import Whitening

__all__ = ["Convolutional"]

SMALLEST_SIDE = 8
SMALL_SIDE = 16
WHITENED_SIZE = 7  # of the patches by which images are whitened,
RIDGE = 0.01  # by how much at most,
BLANK_SHARE = 0.1  # and of how many of them may be blank
PATCH_IMAGES = 3_000  # from which a layer learns,
MOST_PATCHES = 50_000
SAMPLE_NUMBERS = 2**26  # 256 MiB: of patches, and of features whose principal components are found
COMPONENT_ROWS = 10_000
SAMPLE_ROWS = 500  # read at a time
RANK_FLOOR = 1e-6  # of the largest deviation: smaller ones are rounding
CHUNK_NUMBERS = 2**20  # of the largest array of a forward pass: it stays in a processor's cache


class Convolutional(Transformer):
    """Features of images [B, num_components], for a kernel on images that sees patches and forgives small shifts.

    A convolutional kernel network (Mairal, 2016): each layer compares the patches of its input with filters, by a
    kernel of their angle, and pools what it finds (`PatchLayer`). Filters are cluster centres of patches of the data;
    labels are not needed. The principal components of the last layer's output are the features, each divided by its
    deviation to the power of 1 - `power`.

    Rows are [B, H, W], [B, H, W, C] or flat, of any numeric type; the range of the pixels does not matter.

    Arguments:
        image_shape: (H, W), (H, W, C), or (3, H, W) for rows that hold the red plane first, at least 8 x 8.
        layers: For each layer the number of filters, the height of a patch, and the pooling: every how many patches
            there is an output. None for two layers that suit the size of the images.
        num_components: D, or as many as there are.
        power: 1 keeps the variances of the components, 0 makes them equal.
        sigma: Of the kernel of patches, a typical distance between patches of norm 1.
        ridge: Of the whitening of images, relative to the mean variance of a pixel; None for no whitening. "auto" is
            0.01, or None for images below 16 pixels and those of which a tenth or more is blank, as drawings are.
        mirror: Whether an image and its mirror image, left for right, have the same features: the mean of the two.
        fitted, mean, directions: What `fit` learns: the layers, and the principal components of what they give.

    Example:
        >>> images = np.random.default_rng(0).integers(0, 256, (30, 8, 8), dtype=np.uint8)
        >>> Convolutional((8, 8), layers=[(16, 3, 2)], num_components=5).fit(images).transform(images).shape
        (30, 5)
    """

    image_shape: Sequence[int]
    ridge: float | Literal["auto"] | None
    scaled_outputs = True
    learnt = ("fitted", "mean", "directions")
    mean: Tensor | None  # [D']
    directions: Tensor | None  # [D', D]

    def __init__(
        self,
        image_shape: Sequence[int],
        layers: Sequence[Sequence[int]] | None = None,
        num_components: int = 150,
        power: float = 0.5,
        sigma: float = 0.6,
        ridge: float | Literal["auto"] | None = "auto",
        mirror: bool = False,
        fitted: Sequence[nn.Module] = (),
        mean: Tensor | None = None,
        directions: Tensor | None = None,
    ):
        super().__init__()
        self.image_shape = image_shape  # pyright: ignore[reportIncompatibleVariableOverride]
        self.layers = layers
        self.num_components, self.power, self.sigma, self.ridge = num_components, power, sigma, ridge
        self.mirror = mirror
        self.fitted = fitted if isinstance(fitted, nn.ModuleList) else nn.ModuleList(fitted)
        self.register_buffer("mean", mean)
        self.register_buffer("directions", directions)
        self._check()

    @staticmethod
    def suits(image_shape: Sequence[int]) -> bool:
        """Whether images of this shape have patches: those from 8 x 8 on do."""
        return len(image_shape) in (2, 3) and min(_sizes(image_shape)[:2]) >= SMALLEST_SIDE

    def _check(self) -> None:
        if not self.suits(self.image_shape) or min(self.image_shape) < 1:
            raise ValueError(
                f"image_shape must be (H, W), (H, W, C) or (3, H, W), 8 x 8 at least, got {tuple(self.image_shape)}"
            )
        height, width, _ = _sizes(self.image_shape)
        for number, (filters, size, pool) in enumerate(self._layers):
            if min(filters, size, pool) < 1 or size > min(height, width):
                raise ValueError(
                    f"layer {number} of {self._layers}: filters, size and pooling must be positive, and patches of "
                    f"{size} x {size} fit into {height} x {width}"
                )
            height, width = (math.ceil((length - size + 1) / pool) for length in (height, width))
        if self.num_components < 1:
            raise ValueError(f"num_components must be at least 1, got {self.num_components}")

    @property
    def _layers(self) -> list[tuple[int, int, int]]:
        if self.layers is None:
            return default_layers(*_sizes(self.image_shape))
        return [(filters, size, pool) for filters, size, pool in self.layers]

    def fit(self, X: Any, y: Any = None, seed: int = 0) -> "Convolutional":
        """Filters from patches of some thousand images, then principal components of some ten thousand."""
        source = as_rows(X)
        random = np.random.default_rng(seed)
        self.fitted, self.mean, self.directions = nn.ModuleList(), None, None
        patches = self._patches(source, WHITENED_SIZE, random)
        if bool((patches == patches[0, 0]).all()):
            raise ValueError("the images never vary: there is nothing to learn patches from")
        if (ridge := self._ridge(patches)) is not None:
            self.fitted.append(Whitening.of(patches, _sizes(self.image_shape)[2], ridge))
        for filters, size, pool in self._layers:
            patches = self._patches(source, size, random)
            self.fitted.append(PatchLayer.of(patches, filters, size, pool, self.sigma, seed))
        self._find_components(source, random)
        return self

    def _ridge(self, patches: Tensor) -> float | None:
        """That of the whitening; "auto" leaves drawings on a blank ground as they are, and very small images."""
        if self.ridge != "auto":
            return self.ridge
        height, width, channels = _sizes(self.image_shape)
        pixels = patches.unflatten(1, (-1, channels))
        blank = (pixels == pixels[:, :1]).all(2).all(1).double().mean()
        return None if min(height, width) < SMALL_SIDE or blank > BLANK_SHARE else RIDGE

    def forward(self, x: Tensor) -> Tensor:
        if self.mean is None or self.directions is None:
            raise ValueError("the features are not known yet: call fit with images first")
        return torch.cat([(found - self.mean) @ self.directions for found in self._pooled(x)])

    def _pooled(self, x: Tensor) -> Iterator[Tensor]:
        """What all layers give, [B, h * w * R], a few rows at a time; with `mirror` for both sides of the mirror."""
        for images in self._images(x):
            maps = self._maps(images)
            yield ((maps + self._maps(images.flip(2))) / 2 if self.mirror else maps).flatten(1)

    def _maps(self, images: Tensor) -> Tensor:
        """What the layers so far give for images [B, H, W, C], [B, h, w, R]."""
        for layer in self.fitted:
            images = layer(images)
        return images

    def _images(self, x: Tensor) -> Iterator[Tensor]:
        """Rows as images [B, H, W, C], a few at a time."""
        height, width, channels = shape = _sizes(self.image_shape)
        if x.shape[1:].numel() != math.prod(shape):
            raise ValueError(f"expected images of shape {tuple(self.image_shape)}, got rows of {tuple(x.shape[1:])}")
        dtype = torch.float32 if self.mean is None else self.mean.dtype
        for part in x.to(dtype).split(self._chunk_rows()):
            if has_planes(self.image_shape):
                yield part.reshape(-1, channels, height, width).permute(0, 2, 3, 1).contiguous()
            else:
                yield part.reshape(-1, *shape).contiguous()

    def patterns(self) -> Tensor | None:
        """Filters of the first layer, as they are compared with patches of whitened images."""
        first = next((each for each in self.fitted if isinstance(each, PatchLayer)), None)
        return None if first is None else first.filters.unflatten(1, (first.size, first.size, -1))

    def _chunk_rows(self) -> int:
        """How many rows keep the largest array of a forward pass in a processor's cache."""
        largest, (height, width, channels) = 1, _sizes(self.image_shape)
        for filters, size, pool in self._layers:
            height, width = height - size + 1, width - size + 1
            largest = max(largest, height * width * max(filters, size * size * channels))
            height, width, channels = math.ceil(height / pool), math.ceil(width / pool), filters
        return max(1, CHUNK_NUMBERS // largest)

    @torch.no_grad()
    def _patches(self, source: Source, size: int, random: np.random.Generator) -> Tensor:
        """Patches of what the layers so far give, at random places of random images, [N, size * size * C]."""
        count = min(len(source), PATCH_IMAGES, max(1, SAMPLE_NUMBERS // math.prod(self.image_shape)))
        found = []
        for x in self._sample(source, count, random):
            for images in self._images(x):
                patches = patches_of(self._maps(images), size).flatten(1, 2)  # [B, places, D]
                most = min(MOST_PATCHES, SAMPLE_NUMBERS // patches.shape[2])
                each = min(math.ceil(most / count), patches.shape[1])
                places = torch.from_numpy(random.random(patches.shape[:2]).argsort(1)[:, :each])
                found.append(patches[torch.arange(len(patches))[:, None], places].flatten(0, 1))
        return torch.cat(found)

    @torch.no_grad()
    def _find_components(self, source: Source, random: np.random.Generator) -> None:
        """Directions V of most variance: features are (maps - mean) V deviations^(power - 1)."""
        first = torch.from_numpy(np.asarray(source.rows(np.zeros(1, np.int64))[0]))
        width = next(self._pooled(first)).shape[1]
        count = min(len(source), COMPONENT_ROWS, max(1, SAMPLE_NUMBERS // width))
        found = torch.cat([part for x in self._sample(source, count, random) for part in self._pooled(x)])
        self.mean = found.mean(0)
        found -= self.mean
        most = min(self.num_components, *found.shape)
        _, values, vectors = randomized_svd(found.numpy(), most, random_state=int(random.integers(2**31)))
        deviations, directions = torch.from_numpy(values.copy()) / math.sqrt(count), torch.from_numpy(vectors.copy()).mT
        kept = deviations > RANK_FLOOR * deviations.max()
        self.directions = (directions * deviations ** (self.power - 1))[:, kept].contiguous()

    def _sample(self, source: Source, count: int, random: np.random.Generator) -> Iterator[Tensor]:
        """`count` rows at random, some hundred at a time."""
        chosen, done = np.sort(random.choice(len(source), count, replace=False)), 0
        for rows in np.array_split(chosen, math.ceil(count / SAMPLE_ROWS)):
            yield as_tensor(source.rows(rows)[0])
            done += len(rows)
            if self.watch is not None:
                self.watch(done, count)


def _sizes(image_shape: Sequence[int]) -> tuple[int, int, int]:
    """Height, width and channels."""
    first, second, third = (*image_shape, 1)[:3]
    return (second, third, first) if has_planes(image_shape) else (first, second, third)


def default_layers(height: int, width: int, channels: int) -> list[tuple[int, int, int]]:
    """Two layers for images of this shape: the first gives about 8 places down and across, the second about 3."""
    side = min(height, width)
    if side < SMALL_SIDE:
        return [(64, 3, 1), (128, 3, 2)]
    first = max(2, round((side - 4) / 8))
    return [(64, 5, first), (200, 3, max(1, math.ceil((math.ceil((side - 4) / first) - 2) / 3)))]
