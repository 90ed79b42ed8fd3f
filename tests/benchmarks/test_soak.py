"""Test the soak: its requests, what its clients count as a failure, and a short run where a control group can be made."""

from __future__ import annotations

import importlib
import importlib.util
import random
import threading
from typing import Any

import httpx
import pytest

from edgedec.errors import DeviceError

rules: Any = importlib.import_module("benchmarks.server.soak_rules")


@pytest.fixture(scope="module")
def benchmark() -> Any:
    return importlib.import_module("benchmarks.server.soak")


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


@pytest.mark.parametrize(
    ("status", "headers", "small", "code", "failures"),
    [
        (429, {"Retry-After": "2"}, True, "queue_full", 0),
        (503, {"Retry-After": "2"}, False, "too_many_requests", 0),
        (429, {"Retry-After": "2"}, True, "memory_short", 1),
        (503, {}, False, "too_many_requests", 1),
        (500, {"Retry-After": "2"}, False, "why", 1),
    ],
)
def test_beside_attacks_a_client_may_be_refused_for_want_of_places(
    benchmark: Any, status: int, headers: dict[str, str], small: bool, code: str, failures: int
) -> None:
    counts = benchmark.SoakCounts()
    one = client(benchmark, counts, small=small)
    one._attacked = True
    one._refused(httpx.Response(status, headers=headers, json={"error": {"code": code}}))
    assert len(counts.failures) == failures


def test_attackers_get_statuses_that_the_documentation_names() -> None:
    statuses = rules.documented_statuses()
    assert {400, 401, 404, 405, 408, 413, 429, 503} <= statuses
    assert not {200, 500} & statuses
    answers = {
        "refused": {"401": 3, "lost": 2},
        "schema": {"200": 1, "400": 2, "500": 1},
        "grammar": {"lost": 1, "418": 2, "429": 9},
    }
    assert rules.undocumented(answers, statuses) == [
        "the attack schema had 1 answers 500",
        "the attack grammar had 1 answers lost",
        "the attack grammar had 2 answers 418",
    ]


def sizes(periods: int, bytes_per_period: int, noise: int = 0) -> list[tuple[float, int]]:
    """Return the memory of a process by seconds: it fills a cache in the first period, and differs within each one."""
    draw = random.Random(0)
    return [
        (
            second,
            (100 << 20)
            - (50 << 20) * (second < 60)
            + (second % 60 << 20)
            + second // 60 * bytes_per_period
            + draw.randrange(-noise, noise + 1),
        )
        for second in range(60 * periods + 1)
    ]


def test_a_memory_that_grows_in_each_period_rises() -> None:
    line = rules.memory_line(sizes(20, 1 << 18), 60.0)
    assert line == {"periods": 19, "bytes_per_hour": 60 << 18, "error_bytes_per_hour": 0, "rises": True}
    assert rules.memory_line(sizes(20, 1 << 18, noise=20 << 20), 60.0)["rises"]


def test_a_memory_that_differs_only_does_not_rise() -> None:
    for noise in (0, 20 << 20):
        assert rules.memory_line(sizes(20, 0, noise), 60.0)["rises"] is False


def test_a_short_run_says_nothing_about_the_memory() -> None:
    assert rules.memory_line([], 60.0)["rises"] is None
    assert rules.memory_line(sizes(3, 1 << 20), 60.0) == {
        "periods": 2,
        "bytes_per_hour": None,
        "error_bytes_per_hour": None,
        "rises": None,
    }
    assert rules.memory_line(sizes(4, 1 << 20), 60.0)["bytes_per_hour"] == 60 << 20


@pytest.mark.nightly
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
