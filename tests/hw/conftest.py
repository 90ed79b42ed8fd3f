from __future__ import annotations

import warnings

import pytest
from amaranth.hdl import UnusedElaboratable


def pytest_configure(config: pytest.Config) -> None:
    # Amaranth warns that a component whose constructor refuses its parameters was never used.
    config.addinivalue_line("filterwarnings", "ignore::amaranth.hdl.UnusedElaboratable")


def pytest_unconfigure(config: pytest.Config) -> None:
    warnings.filterwarnings("ignore", category=UnusedElaboratable)  # components that are dropped with the interpreter
