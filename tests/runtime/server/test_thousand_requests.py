"""Test a thousand requests of eight clients to a server in a process of its own, once for each drafter.

Every completed text is that of the same request alone and without guesses; the server's peak memory is within its budget,
and no slot, row, reservation, descriptor or file is left.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from edgedec.memory.byte_sizes import parse_bytes
from edgedec.runtime.session.session import Session
from tests.runtime.server.test_many_clients import alone, requests

COUNT, CLIENTS, SLOTS = 1000, 8, 4
BUDGET = "64MiB"
DRAFT = ("-md", "demo-draft")
PATIENCE_S = 60.0


@contextmanager
def server(folder: Path, *words: str) -> Iterator[tuple[subprocess.Popen[str], httpx.Client]]:
    """Run ``edgedec serve`` with caches in ``folder``, and yield its process and a client."""
    command = [sys.executable, "-m", "edgedec", "serve", "-m", "demo", "-t", "1", "-c", "256", "--kv-bits", "16"]
    command += ["-np", str(SLOTS), "--port", "0", "--memory-budget", BUDGET, "--disk-cache", "16MiB", *words]
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        try:
            line = process.stderr.readline()
            match = re.search(r"at (http://127\.0\.0\.1:\d+)", line)
            assert match is not None, line + process.stderr.read()
            with httpx.Client(base_url=match[1], timeout=PATIENCE_S, trust_env=False) as client:
                yield process, client
        finally:
            process.kill()


def text_of(client: httpx.Client, pair: tuple[int, dict[str, Any]]) -> str | None:
    """Return the text of a request; None if its client, every fifth one, left.

    One client in ten leaves after some events of its stream, and one in ten after a random time, which may be before its
    request has left the queue.
    """
    number, body = pair
    draw = random.Random(number)
    if number % 5 == 4:
        longer = {**body, "stream": True, "max_tokens": 200, "ignore_eos": True, "json_schema": None}
        waits = draw.uniform(0.001, 0.1) if number % 2 else PATIENCE_S
        try:
            with client.stream("POST", "/v1/completions", json=longer, timeout=waits) as response:
                assert response.status_code == 200
                for _ in zip(range(draw.randrange(40)), response.iter_lines(), strict=False):
                    pass
        except httpx.TimeoutException:
            assert number % 2, "a client that does not leave waited too long"
        return None
    if number % 2:
        with client.stream("POST", "/v1/completions", json={**body, "stream": True}) as response:
            assert response.status_code == 200, response.read()
            lines = [line[6:] for line in response.iter_lines() if line.startswith("data: ")]
        assert lines[-1] == "[DONE]"
        return "".join(choice["text"] for line in lines[:-1] for choice in json.loads(line)["choices"])
    response = client.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["text"])


def figures(client: httpx.Client) -> dict[str, float]:
    lines = client.get("/metrics").text.splitlines()
    return {name: float(value) for name, value in (line.split(" ") for line in lines if not line.startswith("#"))}


def descriptors(process: subprocess.Popen[str]) -> Counter[str]:
    """Return what the open descriptors of a process lead to, without the numbers of sockets and pipes."""
    counts = Counter[str]()
    for entry in Path(f"/proc/{process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # the process has closed it meanwhile
            counts[re.sub(r"\d+", "N", os.readlink(entry))] += 1
    return counts


@pytest.fixture(scope="module")
def expected(session: Session) -> list[tuple[dict[str, Any], str]]:
    """Return all requests, and the text of each alone and without guesses."""
    return [(body, alone(session, body)) for body in requests(COUNT, seed=COUNT)]


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("drafter", "words"),
    [("none", ()), ("ngram", ()), ("model", DRAFT), ("auto", DRAFT), ("grammar", ())],
)
def test_a_thousand_texts_are_those_alone_and_nothing_is_left(
    expected: list[tuple[dict[str, Any], str]], tmp_path: Path, drafter: str, words: tuple[str, ...]
) -> None:
    with server(tmp_path, "--spec-type", drafter, "--draft-max", "4", *words) as (process, client):
        client.post("/v1/completions", json={"prompt": "Once", "max_tokens": 1}).raise_for_status()
        before = descriptors(process)
        with ThreadPoolExecutor(CLIENTS) as clients:
            texts = list(clients.map(partial(text_of, client), enumerate(body for body, _ in expected)))
        end = time.monotonic() + PATIENCE_S
        while (left := figures(client))["llamacpp:requests_processing"] or left["llamacpp:requests_deferred"]:
            assert time.monotonic() < end, f"requests are left: {left}"
            time.sleep(0.01)
        assert not any(slot["is_processing"] for slot in client.get("/slots").json())
        memory = client.get("/memory").json()["ledger"]
        assert memory["items"]["requests"] == 0
        assert 0 < left["edgedec:peak_bytes"] <= parse_bytes(BUDGET)
        assert 0 < memory["peak_bytes"] <= parse_bytes(BUDGET)
        assert left["edgedec:cancelled_total"] > COUNT / 20
        guessed = left["llamacpp:spec_decode_num_accepted_tokens_total"]
        assert (guessed == 0) == (drafter == "none")
        client.close()
        while descriptors(process) - before:
            assert time.monotonic() < end, f"descriptors are left: {descriptors(process) - before}"
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    files = [path for path in (tmp_path / "edgedec/sequences").rglob("*") if path.is_file() and path.name != "lock"]
    assert files == []
    answered = [(text, alone) for text, (_, alone) in zip(texts, expected, strict=True) if text is not None]
    assert len(answered) == COUNT - COUNT // 5
    assert [text for text, _ in answered] == [alone for _, alone in answered]
