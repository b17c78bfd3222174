"""Covariance functions."""

from autogp.kernels.arccosine import ArcCosine
from autogp.kernels.base import Kernel
from autogp.kernels.combine import Product, Sum
from autogp.kernels.linear import Linear
from autogp.kernels.stationary import RBF, Matern12, Matern32, Matern52

__all__ = ["RBF", "ArcCosine", "Kernel", "Linear", "Matern12", "Matern32", "Matern52", "Product", "Sum"]
