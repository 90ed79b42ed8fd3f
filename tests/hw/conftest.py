from __future__ import annotations

import warnings

import pytest
from amaranth.hdl import UnusedElaboratable


def pytest_configure(config: pytest.Config) -> None:
    # A component whose constructor refuses its parameters is, to Amaranth, one that nobody used.
    config.addinivalue_line("filterwarnings", "ignore::amaranth.hdl.UnusedElaboratable")


def pytest_unconfigure(config: pytest.Config) -> None:
    warnings.filterwarnings("ignore", category=UnusedElaboratable)  # of those that go with the interpreter
