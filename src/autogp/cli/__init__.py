"""The command line `autogp`: from a table to predictions in two commands."""

from autogp.cli.app import app

__all__ = ["app"]
