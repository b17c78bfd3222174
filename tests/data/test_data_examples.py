"""The examples in the documentation of the data layer are true."""

import doctest
import importlib

import pytest


@pytest.mark.parametrize(
    "name", ["batches", "columns", "encoding", "files", "labels", "readers", "scaling", "sources", "summary", "texts"]
)
def test_examples_hold(name: str) -> None:
    found = doctest.testmod(importlib.import_module(f"autogp.data.{name}"))
    assert found.attempted
    assert not found.failed
