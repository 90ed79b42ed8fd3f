"""Test the soak: its requests, what its clients count as a failure, and a short run where a control group can be made."""

from __future__ import annotations

import importlib.util
import sys
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from edgedec.errors import DeviceError

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "soak.py"


@pytest.fixture(scope="module")
def benchmark() -> Any:
    spec = importlib.util.spec_from_file_location("soak", BENCHMARK)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["soak"] = module  # its dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_requests_are_of_all_kinds_and_depend_on_the_seed_alone(benchmark: Any) -> None:
    asked = benchmark.requests(60, 0)
    assert asked == benchmark.requests(60, 0) != benchmark.requests(60, 1)
    assert any(body["temperature"] == 0 for body in asked)
    assert any(body["temperature"] for body in asked)
    assert any(body["json_schema"] for body in asked)
    assert {8, 240} <= {body["max_tokens"] for body in asked}


def client(benchmark: Any, counts: Any, *, small: bool) -> Any:
    asked = benchmark.requests(60, 0)
    return benchmark.Client("http://127.0.0.1:1", asked, [""] * 60, counts, threading.Event(), seed=0, small=small)


@pytest.mark.parametrize(
    ("status", "headers", "small", "failures"),
    [
        (429, {"Retry-After": "2"}, False, 0),
        (429, {"Retry-After": "2"}, True, 1),  # a small request is always admitted
        (429, {}, False, 1),
        (503, {"Retry-After": "2"}, False, 1),
        (500, {}, False, 1),
    ],
)
def test_other_refusals_than_a_429_of_a_large_request_are_failures(
    benchmark: Any, status: int, headers: dict[str, str], small: bool, failures: int
) -> None:
    counts = benchmark.SoakCounts()
    response = httpx.Response(status, headers=headers, json={"error": {"code": "why"}})
    assert client(benchmark, counts, small=small)._refused(response) == (2.0 if headers else 1.0)
    assert (len(counts.failures), counts.counts["failures"]) == (failures, failures)
    assert counts.counts["refused: why"] == 1


def test_a_text_that_is_not_the_one_alone_is_a_failure(benchmark: Any) -> None:
    counts = benchmark.SoakCounts()
    answer = httpx.MockTransport(lambda request: httpx.Response(200, json={"choices": [{"text": "other"}]}))
    with httpx.Client(base_url="http://a", transport=answer) as http:
        one = client(benchmark, counts, small=True)
        one._one(http, benchmark.requests(1, 0)[0], "other")
        assert counts.failures == []
        one._one(http, benchmark.requests(1, 0)[0], "expected")
    assert len(counts.failures) == 1


@pytest.mark.slow
def test_a_short_run_holds(benchmark: Any) -> None:
    try:
        with benchmark.MemoryGroup("edgedec-test", 1 << 30):
            pass
    except DeviceError as error:
        pytest.skip(str(error))
    figures = benchmark.soak(
        seconds=20, limit="256MiB", budget="56MiB", least_room=6 << 20, clients=4, seed=1, out=None
    )  # too short for a wave
    assert set(figures["failures"]) <= {"no memory was reclaimed"}
    assert figures["counts"]["completed"] > 0
