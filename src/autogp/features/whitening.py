"""Whitened images: what a pixel says beyond its neighbours."""

import torch
from torch import Tensor

from autogp.features.base import FeatureMap

__all__ = ["Whitening", "inverse_root_covariance"]


class Whitening(FeatureMap):
    """Maps images [B, H, W, C] to images of the same shape, in which neighbouring pixels are no longer correlated.

        out_p = w' (patch around p - mean),   w: the columns of (S + ridge tr(S) / D I)^(-1/2) for the central pixel

    where S is the covariance of patches of D = size * size * C numbers. Images are reflected at their borders.

    Arguments:
        mean: Of the patches, [D].
        weights: w, [D, C].
    """

    mean: Tensor
    weights: Tensor

    def __init__(self, mean: Tensor, weights: Tensor):
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("weights", weights)

    @classmethod
    def of(cls, patches: Tensor, channels: int, ridge: float) -> "Whitening":
        """Learnt from patches [N, size * size * channels], `size` odd."""
        mean, root = inverse_root_covariance(patches, ridge)
        first = (len(root) - channels) // 2
        return cls(mean, root[:, first : first + channels].contiguous())

    def forward(self, x: Tensor) -> Tensor:
        count, channels = self.weights.shape
        size = round((count / channels) ** 0.5)
        planes = torch.nn.functional.pad(x.permute(0, 3, 1, 2), (size // 2,) * 4, mode="reflect")
        kernel = self.weights.unflatten(0, (size, size, channels)).permute(3, 2, 0, 1)
        found = torch.nn.functional.conv2d(planes, kernel, bias=-self.mean @ self.weights)
        return found.permute(0, 2, 3, 1).contiguous()


def inverse_root_covariance(patches: Tensor, ridge: float) -> tuple[Tensor, Tensor]:
    """Mean and (S + ridge tr(S) / D I)^(-1/2) of patches [N, D] with covariance S."""
    mean = patches.mean(0, dtype=torch.float64)
    centred = patches - mean.to(patches)
    values, vectors = torch.linalg.eigh((centred.mT @ centred).double() / len(patches))
    floor = ridge * values.mean() or 1.0  # constant images have no covariance at all
    return mean.to(patches), (vectors / (values.clamp(min=0) + floor).sqrt() @ vectors.mT).to(patches)
