"""A report on a fitted model: one HTML file that opens anywhere, without a network."""

from autogp.report.write import write_report

__all__ = ["write_report"]
