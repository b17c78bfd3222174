"""Estimators with scikit-learn's interface."""

from autogp.estimators.classifier import GPClassifier
from autogp.estimators.files import load_model
from autogp.estimators.regressor import GPRegressor

__all__ = ["GPClassifier", "GPRegressor", "load_model"]
