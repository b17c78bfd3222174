"""Data sets in their publishers' files, from a local folder or downloaded with a checksum."""

from autogp.datasets.common import Dataset, data_folder
from autogp.datasets.savigp import load_savigp
from autogp.datasets.uci import load_uci

__all__ = ["Dataset", "data_folder", "load_savigp", "load_uci"]
