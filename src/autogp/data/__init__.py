"""Data: sources of rows, mini-batches of them, and the scaling of inputs and targets."""

from autogp.data.batches import Batches, prefetch
from autogp.data.files import open_source
from autogp.data.scaling import InputScaler, TargetScaler
from autogp.data.sources import ArraySource, Source, Subset, fingerprint
from autogp.data.summary import Moments, Summary, check_finite, summarise

__all__ = [
    "ArraySource",
    "Batches",
    "InputScaler",
    "Moments",
    "Source",
    "Subset",
    "Summary",
    "TargetScaler",
    "check_finite",
    "fingerprint",
    "open_source",
    "prefetch",
    "summarise",
]
