"""Feature maps: modules that stand between the rows and the kernel."""

from autogp.features.base import Chain, FeatureMap
from autogp.features.cache import apply_frozen
from autogp.features.components import PrincipalComponents
from autogp.features.scaling import Scaling

__all__ = ["Chain", "FeatureMap", "PrincipalComponents", "Scaling", "apply_frozen"]
