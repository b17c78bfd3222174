"""Data sets in their publishers' files, from a local folder or downloaded with a checksum."""

from autogp.datasets.cifar10 import load_cifar10
from autogp.datasets.common import Dataset, data_folder
from autogp.datasets.digits import load_digits
from autogp.datasets.mnist import load_mnist
from autogp.datasets.mnist8m import DeformedDigits, load_mnist8m
from autogp.datasets.rectangles import load_rectangles
from autogp.datasets.sarcos import load_sarcos, without_repeats
from autogp.datasets.savigp import load_savigp
from autogp.datasets.uci import load_uci

__all__ = [
    "Dataset",
    "DeformedDigits",
    "data_folder",
    "load_cifar10",
    "load_digits",
    "load_mnist",
    "load_mnist8m",
    "load_rectangles",
    "load_sarcos",
    "load_savigp",
    "load_uci",
    "without_repeats",
]
