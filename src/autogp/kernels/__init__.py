"""Covariance functions."""

from autogp.kernels.arccosine import ArcCosine
from autogp.kernels.base import Kernel
from autogp.kernels.combine import Product, Selected, Sum
from autogp.kernels.linear import Linear
from autogp.kernels.periodic import Periodic
from autogp.kernels.priors import LogNormal
from autogp.kernels.stationary import RBF, Matern12, Matern32, Matern52, RationalQuadratic

__all__ = [
    "RBF",
    "ArcCosine",
    "Kernel",
    "Linear",
    "LogNormal",
    "Matern12",
    "Matern32",
    "Matern52",
    "Periodic",
    "Product",
    "RationalQuadratic",
    "Selected",
    "Sum",
]
