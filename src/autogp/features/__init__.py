"""Feature maps: modules that stand between the rows and the kernel."""

from autogp.features.base import Chain, FeatureMap, Transformer
from autogp.features.cache import apply_frozen, apply_once
from autogp.features.columns import Categories, Columns, Dates, Numbers
from autogp.features.components import PrincipalComponents
from autogp.features.convolutional import Convolutional
from autogp.features.embedding import Embedding
from autogp.features.patches import PatchLayer
from autogp.features.scaling import Scaling
from autogp.features.whitening import Whitening

__all__ = [
    "Categories",
    "Chain",
    "Columns",
    "Convolutional",
    "Dates",
    "Embedding",
    "FeatureMap",
    "Numbers",
    "PatchLayer",
    "PrincipalComponents",
    "Scaling",
    "Transformer",
    "Whitening",
    "apply_frozen",
    "apply_once",
]
