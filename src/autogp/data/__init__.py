"""Data: sources of rows, mini-batches of them, tables as numbers, and the scaling of inputs and targets."""

from autogp.data.batches import Batches, prefetch
from autogp.data.columns import as_table
from autogp.data.deformed import Deformations, Deformed
from autogp.data.encoding import TableEncoder
from autogp.data.files import is_table, open_source, read_rows
from autogp.data.labels import Labels
from autogp.data.scaling import TargetScaler
from autogp.data.sources import ArraySource, Source, Subset, blocks, fingerprint
from autogp.data.summary import Moments, Summary, check_finite, summarise
from autogp.data.texts import Unseen

__all__ = [
    "ArraySource",
    "Batches",
    "Deformations",
    "Deformed",
    "Labels",
    "Moments",
    "Source",
    "Subset",
    "Summary",
    "TableEncoder",
    "TargetScaler",
    "Unseen",
    "as_table",
    "blocks",
    "check_finite",
    "fingerprint",
    "is_table",
    "open_source",
    "prefetch",
    "read_rows",
    "summarise",
]
