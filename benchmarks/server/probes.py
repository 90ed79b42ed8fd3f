"""Clients that measure how long a server lets them wait: for a first token, between two tokens, and for ``/health``."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from benchmarks.server.server_process import HOST

__all__ = ["ProbeSamples", "Probes"]

_TIMEOUT_S = 60.0
_CHAT_PAUSE_S, _HEALTH_PAUSE_S = 0.25, 0.02  # seconds between requests of a probe


@dataclass
class ProbeSamples:
    """Times in milliseconds, and the requests that failed, by status or error."""

    times_ms: list[float] = field(default_factory=list)
    failures: dict[str, int] = field(default_factory=dict)

    def failed(self, why: str) -> None:
        """Count a failure."""
        self.failures[why] = self.failures.get(why, 0) + 1

    def as_json(self) -> dict[str, Any]:
        """Return the number of times, their median, 99th percentile and longest (null without any), and the failures."""
        times = self.times_ms
        return {
            "count": len(times),
            "median_ms": median(times) if times else None,
            "p99_ms": sorted(times)[99 * len(times) // 100] if times else None,
            "longest_ms": max(times, default=None),
            "failures": self.failures,
        }


class Probes:
    """Three clients, each of which sends one request after another in a thread of its own, within a ``with`` block.

    Parameters:
        port: port of the server on this machine.
        key: API key of the clients.

    Members:
        chat: times from a request for a chat of two tokens to its first token.
        gaps: times between two events of a stream. A stream that ends is begun anew, which is no gap.
        health: times of ``/health``, each over a connection of its own.
    """

    def __init__(self, port: int, key: str) -> None:
        self._port, self._key = port, key
        self.chat, self.gaps, self.health = ProbeSamples(), ProbeSamples(), ProbeSamples()
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._repeat, args=(probe, samples, pause), daemon=True)
            for probe, samples, pause in (
                (self._ask_chat, self.chat, _CHAT_PAUSE_S),
                (self._read_stream, self.gaps, 0.0),
                (self._ask_health, self.health, _HEALTH_PAUSE_S),
            )
        ]

    def __enter__(self) -> Probes:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(_TIMEOUT_S + 1)

    def _repeat(self, probe: Callable[[], None], samples: ProbeSamples, pause: float) -> None:
        while not self._stop.is_set():
            try:
                probe()
            except (OSError, http.client.HTTPException) as error:
                samples.failed(type(error).__name__)
                self._stop.wait(_HEALTH_PAUSE_S)
            self._stop.wait(pause)

    def _ask_chat(self) -> None:
        body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2, "ignore_eos": True}
        began = time.perf_counter()
        with self._events("/v1/chat/completions", body, self.chat) as events:
            for event in events:
                if any(choice["delta"].get("content") for choice in event.get("choices", ())):
                    self.chat.times_ms.append(1000 * (time.perf_counter() - began))
                    break
            for _ in events:
                pass

    def _read_stream(self) -> None:
        body = {"prompt": "Once upon a time", "n_predict": 400, "ignore_eos": True}
        last = 0.0
        with self._events("/completion", body, self.gaps) as events:
            for event in events:
                now = time.perf_counter()
                if last:
                    self.gaps.times_ms.append(1000 * (now - last))
                last = 0.0 if event.get("stop") else now
                if self._stop.is_set():
                    break

    def _ask_health(self) -> None:
        began = time.perf_counter()
        with closing(http.client.HTTPConnection(HOST, self._port, timeout=_TIMEOUT_S)) as connection:
            connection.request("GET", "/health", headers={"Connection": "close"})
            response = connection.getresponse()
            response.read()
        if response.status == 200:
            self.health.times_ms.append(1000 * (time.perf_counter() - began))
        else:
            self.health.failed(str(response.status))

    @contextmanager
    def _events(self, path: str, body: dict[str, Any], samples: ProbeSamples) -> Iterator[Iterator[dict[str, Any]]]:
        """Yield the events of a stream; none if it was refused."""
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self._key}", "Connection": "close"}
        with closing(http.client.HTTPConnection(HOST, self._port, timeout=_TIMEOUT_S)) as connection:
            connection.request("POST", path, json.dumps({**body, "temperature": 0, "stream": True}), headers)
            response = connection.getresponse()
            if response.status != 200:
                samples.failed(str(response.status))
                yield iter(())
                return
            yield self._parsed(response, samples)

    def _parsed(self, response: http.client.HTTPResponse, samples: ProbeSamples) -> Iterator[dict[str, Any]]:
        for line in response:
            if line.startswith(b"data: {"):
                event: dict[str, Any] = {}
                with suppress(ValueError):
                    event = json.loads(line[len(b"data: ") :])
                if "error" in event:
                    samples.failed(str(event["error"].get("code")))
                    return
                yield event
