"""Test the progress that a stream reports: the reading of its prompt, and the times of each part."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

from edgedec.runtime.server.progress import ProgressClock
from tests.runtime.server.support.serving import Served

LONG = "Once upon a time there was a cat who liked fish and a dog who liked the cat. " * 8
LLAMA_CPP = {"prompt_n", "prompt_ms", "prompt_per_token_ms", "prompt_per_second", "cache_n"} | {
    f"predicted_{name}" for name in ("n", "ms", "per_token_ms", "per_second")
}


def chunks(served: Served, path: str, **body: Any) -> list[dict[str, Any]]:
    response = served.post(path, stream=True, **body)
    assert response.status_code == 200, response.text
    lines = [line for line in response.text.split("\n\n") if line.startswith("data: {")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def requests(text: str) -> list[tuple[str, dict[str, Any]]]:
    options = {"temperature": 0}
    return [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": text}], "max_tokens": 4, **options}),
        ("/v1/completions", {"prompt": text, "max_tokens": 4, **options}),
        ("/completion", {"prompt": text, "n_predict": 4, **options}),
    ]


@pytest.mark.thorough
@pytest.mark.parametrize("number", range(3))
def test_the_reading_of_a_prompt_is_reported(served: Served, number: int) -> None:
    path, body = requests(f"{number} {LONG}")[number]
    parts = chunks(served, path, return_progress=True, **body)
    reports = [part for part in parts if "prompt_progress" in part]
    progress = [part["prompt_progress"] for part in reports]
    total, cache = progress[0]["total"], progress[0]["cache"]
    tokens = served.post(path, **body).json()
    counted = tokens["usage"]["prompt_tokens"] if "usage" in tokens else tokens["tokens_evaluated"]
    assert {(one["total"], one["cache"]) for one in progress} == {(counted, cache)}
    assert (progress[0]["processed"], progress[0]["time_ms"]) == (cache, 0)
    assert progress[-1]["processed"] == total
    assert len(progress) > 2
    assert all(a["processed"] < b["processed"] and a["time_ms"] <= b["time_ms"] for a, b in pairwise(progress))
    for part in reports:
        assert set(part["timings"]) == LLAMA_CPP
        assert part["timings"]["prompt_n"] == part["prompt_progress"]["processed"] - cache
        assert part["timings"]["predicted_n"] == 0
    texts = [number for number, part in enumerate(parts) if part not in reports]
    assert parts.index(reports[-1]) < texts[1]  # the first may be the role

    again = [
        part["prompt_progress"]
        for part in chunks(served, path, return_progress=True, **body)
        if "prompt_progress" in part
    ]
    assert [one["processed"] for one in again] == [again[0]["cache"], total]
    assert again[0]["cache"] == total - 1

    plain = chunks(served, path, **body)
    assert not any("prompt_progress" in part for part in plain)
    assert len(plain) == len(parts) - len(reports)
    whole = served.post(path, return_progress=True, timings_per_token=True, **body).json()
    assert "prompt_progress" not in whole


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("number", range(3))
def test_the_times_of_each_part(served: Served, number: int) -> None:
    path, body = requests("Once upon a time")[number]
    parts = chunks(served, path, timings_per_token=True, **body)
    *timed, last = [part["timings"] for part in parts if "timings" in part]
    assert [set(one) for one in timed] == [LLAMA_CPP] * 4
    assert [one["predicted_n"] for one in timed] == [1, 2, 3, 4]
    assert [one["predicted_ms"] for one in timed] == sorted(one["predicted_ms"] for one in timed)
    assert timed[0]["predicted_per_second"] == 0 < timed[1]["predicted_per_second"]
    assert {one["prompt_n"] + one["cache_n"] for one in timed} == {last["prompt_n"] + last["cache_n"]}


def test_the_clock() -> None:
    now = [10.0]
    clock = ProgressClock(3, 9, lambda: now[0])
    first = clock.read(2)
    assert first is not None
    assert (first.index, first.total, first.cached, first.processed, first.prompt_ms) == (3, 9, 2, 2, 0)
    assert clock.read(2) is None
    now[0] += 2
    second = clock.read(6)
    assert second is not None
    assert (second.cached, second.processed, second.prompt_ms, second.predicted_n) == (2, 6, 2000, 0)
    assert second.as_json()["prompt_progress"] == {"total": 9, "cache": 2, "processed": 6, "time_ms": 2000}
    now[0] += 1
    begun = clock.begin_text()
    assert begun is not None
    assert (begun.processed, begun.prompt_ms) == (9, 3000)
    assert clock.begin_text() is None
    now[0] += 4
    written = clock.written(3)
    assert (written.prompt_ms, written.predicted_n, written.predicted_ms) == (3000, 3, 4000)
    timings = written.timings_json()
    assert (timings["prompt_n"], timings["prompt_per_second"]) == (7, pytest.approx(7 / 3))
    assert (timings["predicted_per_token_ms"], timings["predicted_per_second"]) == (2000, 0.5)
