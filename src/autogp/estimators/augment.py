"""Deformed copies of images as further rows of training."""

import math
from typing import TYPE_CHECKING

import numpy as np
from torch import nn

from autogp.data import Deformations, Deformed, Source
from autogp.features.base import as_map

if TYPE_CHECKING:
    from autogp.estimators.base import GPEstimator

__all__ = ["augmented", "variants"]


def augmented(
    estimator: "GPEstimator", rows: Source, weights: np.ndarray | None, seed: int
) -> tuple[Source, np.ndarray | None]:
    """The rows, which must be images, and deformed copies of them, each with the weight of its image."""
    how, given = estimator.augment, estimator.features
    how = how if isinstance(how, Deformations) else Deformations(variants(estimator) - 1)
    own = as_map(given).image_shape if isinstance(given, nn.Module) else None
    shape = how.image_shape or estimator.image_shape_ or own
    if estimator.encoder_ is not None or shape is None:
        raise ValueError(
            "augment is for images: pass X as an array [N, H, W] or [N, H, W, C], or say what images the rows are "
            "by augment=Deformations(image_shape=(H, W))"
        )
    if math.prod(shape) != estimator.n_features_in_:
        raise ValueError(f"augment: images of {tuple(shape)} have other than {estimator.n_features_in_} pixels")
    return Deformed(rows, shape, how, seed), None if weights is None else np.tile(weights, variants(estimator))


def variants(estimator: "GPEstimator") -> int:
    """Of each row of training: itself and its deformed copies."""
    how = estimator.augment
    return 1 + (how.copies if isinstance(how, Deformations) else how or 0)
