"""One model file: tensors and a JSON description of the objects that they belong to."""

from autogp.persistence.files import Saved, load, save

__all__ = ["Saved", "load", "save"]
