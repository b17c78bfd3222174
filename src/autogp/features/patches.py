"""One layer of a convolutional kernel network (Mairal, 2016): a kernel on the patches of an image, pooled."""

import math

import torch
from torch import Tensor

from autogp.features.base import FeatureMap

__all__ = ["PatchLayer", "patches_of", "pooling_weights", "spherical_kmeans", "whitening_of"]

KMEANS_STEPS = 10
SMALLEST_NORM = 1e-30  # of a blank patch, which has no direction
ROOT_FLOOR = 1e-2  # added to the square roots of the eigenvalues of K_ZZ, which may be as small as rounding


class PatchLayer(FeatureMap):
    """Maps [B, H, W, C] to [B, h, w, R]: features of patches, averaged around h x w places.

    The kernel of two patches x, x' is |x| |x'| exp((cos - 1) / sigma^2), where cos is the cosine of their angle. Its
    features at F filters Z, patches of norm 1, are

        x_p    = W (patch at p - mean)                          of size x size x C numbers
        phi_p  = |x_p| exp((Z x_p / |x_p| - 1) / sigma^2)       [F]
        out    = K_ZZ^(-1/2) sum_p w_p phi_p                    w: Gaussian around each of the h x w places

    Averages come before the product with K_ZZ^(-1/2), where there are pool^2 times fewer places.

    Arguments:
        size: Height and width of a patch.
        pool: Every how many patches there is an output, down and across.
        sigma: Of the kernel.
        filters: Z, [F, size * size * C], of norm 1.
        projection: K_ZZ^(-1/2), [F, R].
        mean: Of the patches, [size * size * C].
        whitening: W, symmetric, [size * size * C, size * size * C]; without it and `mean` patches stay as they are.
    """

    filters: Tensor
    projection: Tensor
    mean: Tensor | None
    whitening: Tensor | None

    def __init__(
        self,
        size: int,
        pool: int,
        sigma: float,
        filters: Tensor,
        projection: Tensor,
        mean: Tensor | None = None,
        whitening: Tensor | None = None,
    ):
        super().__init__()
        self.size, self.pool, self.sigma = size, pool, sigma
        self.register_buffer("filters", filters)
        self.register_buffer("projection", projection)
        self.register_buffer("mean", mean)
        self.register_buffer("whitening", whitening)

    @classmethod
    def of(cls, patches: Tensor, num_filters: int, size: int, pool: int, sigma: float, ridge: float | None, seed: int):
        """Learnt from patches [N, size * size * C]; `ridge` is that of the whitening, None to leave patches as are."""
        mean = whitening = None
        if ridge is not None:
            mean, whitening = whitening_of(patches, ridge)
            patches = (patches - mean) @ whitening
        filters = spherical_kmeans(patches, num_filters, seed)
        return cls(size, pool, sigma, filters, inverse_root(filters, sigma), mean, whitening)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.prepared(x).flatten(0, 1)  # [B P, D]
        norm = patches.norm(dim=-1, keepdim=True).clamp(min=SMALLEST_NORM)
        # |x_p| exp((Z x_p / |x_p| - 1) / sigma^2) = exp(Z (x_p / |x_p| / sigma^2) + log |x_p| - 1 / sigma^2), so that
        # the largest array is written by the product, turned into exponentials in place, and read once by the pooling
        towards = patches * (self.sigma**-2 / norm)
        phi = torch.addmm(norm.log() - self.sigma**-2, towards, self.filters.mT).exp_()  # [B P, F]
        batch, down, across = len(x), *(length - self.size + 1 for length in x.shape[1:3])
        return self.pooled(phi.view(batch, down, across, -1)) @ self.projection

    def prepared(self, x: Tensor) -> Tensor:
        """Patches as the kernel sees them, [B, P, size * size * C]."""
        if self.mean is None or self.whitening is None:
            return patches_of(x, self.size).flatten(1, 2)
        # W (patch - mean). Images have few channels: a row of one plane is longer than a row of a patch to copy
        planes = _windows(x, self.size).permute(0, 3, 4, 5, 1, 2).flatten(1, 3).flatten(2)  # [B, D, P]
        shift = (self.mean @ self.whitening).expand(len(x), planes.shape[2], -1)
        return torch.baddbmm(shift, planes.mT, self.whitening.expand(len(x), -1, -1), beta=-1)

    def pooled(self, phi: Tensor) -> Tensor:
        """sum_p w_p phi_p around each place: w is a product of two, so first down, then across."""
        batch, height, width, count = phi.shape
        down, across = (pooling_weights(length, self.pool).to(phi) for length in (height, width))
        rows = down @ phi.reshape(batch, height, width * count)  # [B, h, W' F]
        return across @ rows.reshape(batch, len(down), width, count)


def patches_of(x: Tensor, size: int) -> Tensor:
    """All patches of images [B, H, W, C], [B, H - size + 1, W - size + 1, size * size * C].

    >>> patches_of(torch.arange(9.0).reshape(1, 3, 3, 1), 2)[0, 0].tolist()
    [[0.0, 1.0, 3.0, 4.0], [1.0, 2.0, 4.0, 5.0]]
    """
    return _windows(x, size).flatten(3)


def _windows(x: Tensor, size: int) -> Tensor:
    """All patches of images [B, H, W, C] as a view, [B, H - size + 1, W - size + 1, size, size, C]."""
    return x.unfold(1, size, 1).unfold(2, size, 1).permute(0, 1, 2, 4, 5, 3)


def pooling_weights(length: int, pool: int) -> Tensor:
    """Gaussian weights [ceil(length / pool), length] that sum to 1: deviation pool / sqrt 2, cut off beyond pool.

    >>> pooling_weights(4, 2).shape
    torch.Size([2, 4])
    """
    places = torch.arange(math.ceil(length / pool), dtype=torch.float64)
    centres = places * pool + (length - 1 - (len(places) - 1) * pool) / 2
    apart = torch.arange(length) - centres[:, None]
    weights = torch.exp(-((apart / pool) ** 2)) * (apart.abs() <= pool)  # exp(-apart^2 / (2 pool^2 / 2))
    return weights / weights.sum(1, keepdim=True)


def whitening_of(patches: Tensor, ridge: float) -> tuple[Tensor, Tensor]:
    """Mean and (C + ridge tr(C) / D I)^(-1/2) of patches [N, D] with covariance C."""
    mean = patches.mean(0, dtype=torch.float64)
    centred = patches - mean.to(patches)
    values, vectors = torch.linalg.eigh((centred.mT @ centred).double() / len(patches))
    floor = ridge * values.mean() or 1.0  # constant images have no covariance at all
    return mean.to(patches), (vectors / (values.clamp(min=0) + floor).sqrt() @ vectors.mT).to(patches)


def spherical_kmeans(patches: Tensor, count: int, seed: int) -> Tensor:
    """Directions [F, D] of norm 1 around which those of the patches [N, D] gather; F is `count`, or N if that is less.

    >>> spherical_kmeans(torch.tensor([[2.0, 0.0], [3.0, 0.0], [0.0, 1.0]]), 2, seed=0).sum().item()
    2.0
    """
    patches = patches[patches.norm(dim=1) > 0]
    if not len(patches):
        raise ValueError("the images never vary: there is nothing to learn patches from")
    patches = torch.nn.functional.normalize(patches)
    generator = torch.Generator().manual_seed(seed)
    centres = patches[torch.randperm(len(patches), generator=generator)[:count]]
    for _ in range(KMEANS_STEPS):
        cosine, nearest = map(
            torch.cat, zip(*((part @ centres.mT).max(1) for part in patches.split(2**14)), strict=True)
        )
        centres = torch.nn.functional.normalize(torch.zeros_like(centres).index_add_(0, nearest, patches))
        empty = torch.bincount(nearest, minlength=len(centres)) == 0  # many patches are the same, such as blank ones:
        centres[empty] = patches[cosine.argsort()[: int(empty.sum())]]  # one centre is enough, others go where none is
    return centres


def inverse_root(filters: Tensor, sigma: float) -> Tensor:
    """K_ZZ^(-1/2) of filters [F, D], eigenvalues e as 1 / (sqrt e + 0.01)."""
    z = filters.double()
    values, vectors = torch.linalg.eigh(torch.exp((z @ z.mT - 1) / sigma**2))
    return (vectors / (values.clamp(min=0).sqrt() + ROOT_FLOOR) @ vectors.mT).to(filters)
