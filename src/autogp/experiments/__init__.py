"""Experiments: each table and figure from one command, and what came out as files."""

from autogp.experiments.base import Experiment, Preset, Run
from autogp.experiments.command import EXPERIMENTS, reproduce
from autogp.experiments.run import execute
from autogp.experiments.tables import make_tables

__all__ = ["EXPERIMENTS", "Experiment", "Preset", "Run", "execute", "make_tables", "reproduce"]
