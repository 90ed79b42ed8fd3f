"""Test that a server stays within its budget whatever it is asked, and that the sweep sees one that does not."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.runtime.test_planning import needs_kernels

LARGE = [
    "tokenize signs, pieces",
    "tokenize a medium text, pieces",
    "detokenize large ids",
    "echo and log-probabilities",
    "whole answers with log-probabilities",
    "objects",
]


@pytest.fixture
def sweep(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the benchmark, which is run from the folder above it."""
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2]))
    return importlib.import_module("benchmarks.server.largest_requests")


@pytest.mark.thorough
def test_each_request_has_a_path_and_a_body_that_is_read(sweep: ModuleType) -> None:
    every = sweep.requests()
    assert len(every) >= 30
    for path, body in every.values():
        assert path.startswith("/")
        data: Any = body if isinstance(body, bytes) else sweep.encoded(body)
        assert len(data) <= 1 << 20


@needs_kernels
@pytest.mark.thorough
@pytest.mark.parametrize("mib", [32, 64])
def test_no_request_takes_more_than_the_budget(mib: int, sweep: ModuleType) -> None:
    found = list(sweep.outcomes(mib << 20, LARGE))
    assert [one.fault for one in found] == [""] * len(LARGE)
    assert {one.status for one in found} <= {200, 413}
