"""Feature maps: modules that turn rows into what the kernel sees."""

from autogp.features.columns import Categories, Columns, Numbers

__all__ = ["Categories", "Columns", "Numbers"]
