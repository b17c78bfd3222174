"""One layer of a convolutional kernel network (Mairal, 2016): a kernel on the patches of an image, pooled."""

import math

import torch
from torch import Tensor

from autogp.features.base import FeatureMap

__all__ = ["PatchLayer", "patches_of", "pooling_weights", "spherical_kmeans"]

KMEANS_STEPS = 10
FEW_CHANNELS = 8
SMALLEST_NORM = 1e-15  # of a blank patch, which has no direction; what it gives has squares that float32 holds in full
ROOT_FLOOR = 1e-2  # added to the square roots of the eigenvalues of K_ZZ, which may be as small as rounding


class PatchLayer(FeatureMap):
    """Maps [B, H, W, C] to [B, h, w, R]: features of patches, averaged around h x w places.

    The kernel of two patches x, x' is |x| |x'| exp((cos - 1) / sigma^2), where cos is the cosine of their angle. Its
    features at F filters Z, patches of norm 1, are

        x_p    the patch at p                                   of size x size x C numbers
        phi_p  = |x_p| exp((Z x_p / |x_p| - 1) / sigma^2)       [F]
        out    = K_ZZ^(-1/2) sum_p w_p phi_p                    w: Gaussian around each of the h x w places

    Averages come before the product with K_ZZ^(-1/2), where there are pool^2 times fewer places.

    Arguments:
        size: Height and width of a patch.
        pool: Every how many patches there is an output, down and across.
        sigma: Of the kernel.
        filters: Z, [F, size * size * C], of norm 1.
        projection: K_ZZ^(-1/2), [F, R].
    """

    filters: Tensor
    projection: Tensor

    def __init__(self, size: int, pool: int, sigma: float, filters: Tensor, projection: Tensor):
        super().__init__()
        self.size, self.pool, self.sigma = size, pool, sigma
        self.register_buffer("filters", filters)
        self.register_buffer("projection", projection)

    @classmethod
    def of(cls, patches: Tensor, num_filters: int, size: int, pool: int, sigma: float, seed: int) -> "PatchLayer":
        """Learnt from patches [N, size * size * C]."""
        filters = spherical_kmeans(patches, num_filters, seed)
        return cls(size, pool, sigma, filters, inverse_root(filters, sigma))

    def forward(self, x: Tensor) -> Tensor:
        patches = self.patches(x)  # [B P, D]
        norm = self.squared_norms(x).clamp(min=SMALLEST_NORM**2).sqrt()  # [B P, 1]
        # |x_p| exp((Z x_p / |x_p| - 1) / sigma^2) = 2^(Z (s x_p / |x_p|) + log2 |x_p| - s), s = log2(e) / sigma^2: the
        # largest array is written by the product, raised in place, and read once by the pooling. Powers of 2 take half
        # the time of powers of e.
        sharpness = math.log2(math.e) / self.sigma**2
        towards = patches * (sharpness / norm)
        phi = torch.addmm(norm.log2() - sharpness, towards, self.filters.mT).exp2_()  # [B P, F]
        batch, down, across = len(x), *(length - self.size + 1 for length in x.shape[1:3])
        return self.pooled(phi.view(batch, down, across, -1)) @ self.projection

    def squared_norms(self, x: Tensor) -> Tensor:
        """|x_p|^2 of all patches, [B P, 1]: sums over windows of the squares of pixels."""
        down = x.square().sum(3).unfold(1, self.size, 1).sum(3)  # [B, H', W]
        return down.unfold(2, self.size, 1).sum(3).reshape(-1, 1)

    def patches(self, x: Tensor) -> Tensor:
        """Those of all images, [B P, size * size * C]."""
        windows = _windows(x, self.size)
        if x.shape[3] >= FEW_CHANNELS:
            return windows.reshape(-1, self.filters.shape[1])
        # A row of a plane is longer than a row of a patch: it takes less time to copy planes, and to transpose
        return windows.permute(3, 4, 5, 0, 1, 2).reshape(self.filters.shape[1], -1).mT

    def pooled(self, phi: Tensor) -> Tensor:
        """sum_p w_p phi_p around each place: w is a product of two, so first down, then across."""
        batch, height, width, count = phi.shape
        down, across = (pooling_weights(length, self.pool).to(phi) for length in (height, width))
        # Weights that are expanded are multiplied where phi is; else it would be transposed, by a copy
        rows = down.expand(batch, -1, -1) @ phi.reshape(batch, height, width * count)  # [B, h, W' F]
        found = across.expand(batch * len(down), -1, -1) @ rows.reshape(batch * len(down), width, count)
        return found.reshape(batch, len(down), len(across), count)


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


def spherical_kmeans(patches: Tensor, count: int, seed: int) -> Tensor:
    """Directions [F, D] of norm 1 around which those of the patches [N, D] gather; F is `count`, or N if that is less.

    >>> spherical_kmeans(torch.tensor([[2.0, 0.0], [3.0, 0.0], [0.0, 1.0]]), 2, seed=0).sum().item()
    2.0
    """
    patches = patches[patches.norm(dim=1) > 0]  # blank ones have no direction
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
