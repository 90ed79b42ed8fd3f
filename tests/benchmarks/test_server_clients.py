"""Test the benchmark of many clients: its figures, its requests, and its refusal of wrong answers."""

from __future__ import annotations

import importlib.util
import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from edgedec.errors import DeviceError, UsageError


@pytest.fixture(scope="module")
def benchmark() -> Any:
    return importlib.import_module("benchmarks.server.clients")


def stream(benchmark: Any, moments: list[float], counts: list[int] | None = None, sent: float = 0.0) -> Any:
    counts = counts or [1] * len(moments)
    return benchmark.Stream(sent=sent, moments=moments, counts=counts, ids=list(range(sum(counts))))


def test_the_rate_counts_the_time_in_which_all_write(benchmark: Any) -> None:
    early = stream(benchmark, [1.0, 2.0, 3.0, 4.0])
    late = stream(benchmark, [2.0, 2.5, 3.5, 5.0], [1, 3, 2, 1])
    # From 2 to 4 seconds: two ids of the first stream, and five of the second.
    assert benchmark.rate([early, late]) == pytest.approx(7 / 2)


def test_streams_one_after_another_have_no_rate(benchmark: Any) -> None:
    with pytest.raises(UsageError, match="do not overlap"):
        benchmark.rate([stream(benchmark, [1.0, 2.0]), stream(benchmark, [3.0, 4.0])])


def test_figures_are_those_of_all_rounds(benchmark: Any) -> None:
    first = [stream(benchmark, [1.0, 2.0, 3.0], sent=0.5)]
    second = [stream(benchmark, [1.0, 1.5, 2.5], sent=0.9)]
    figures = benchmark.figures([first, second])
    assert figures["tokens_per_second"] == pytest.approx((1 + 4 / 3) / 2)
    assert figures["tokens_per_second_range"] == pytest.approx([1, 4 / 3])
    assert figures["first_ms"] == pytest.approx({"median": 300, "longest": 500})
    assert figures["gap_ms"] == pytest.approx({"median": 1000, "longest": 1000})
    ratios = benchmark.ratios([second, second], [first, second])
    assert ratios == pytest.approx({"smallest": 1, "median": 7 / 6, "largest": 4 / 3})


def test_texts_are_compared_place_by_place(benchmark: Any) -> None:
    ours, peer = stream(benchmark, [1.0, 2.0, 3.0, 4.0]), stream(benchmark, [1.0, 2.0, 3.0, 4.0])
    peer.ids[2] = -1
    assert benchmark.same_ids([[ours]], [[peer]]) == pytest.approx(3 / 4)


@pytest.mark.thorough
def test_prompts_differ(benchmark: Any) -> None:
    prompts = benchmark.make_prompts(24)
    assert {len(prompt) for prompt in prompts} == {64}
    assert len({tuple(prompt) for prompt in prompts}) == 24
    with pytest.raises(UsageError, match="not 1000000"):
        benchmark.make_prompts(1_000_000)


def test_both_servers_get_the_same_settings(benchmark: Any, tmp_path: Path) -> None:
    llama = benchmark.llama_cpp.LlamaCpp(source=tmp_path, binaries=tmp_path)
    lines = benchmark.commands(llama, tmp_path / "b", tmp_path / "g", clients=8, threads=2, positions=256)
    peer, ours, guessing = (lines[name] for name in (benchmark.PEER, benchmark.PLAIN, benchmark.GUESSING))
    for line in (peer, ours, guessing):
        assert line[line.index("--threads") + 1] == "2"
        assert line[line.index("--parallel") + 1] == "8"
        assert line[line.index("--host") + 1] == "127.0.0.1"
    assert peer[peer.index("--ctx-size") + 1] == "2048"
    assert ours[ours.index("--ctx-size") + 1] == "256"
    assert (peer[peer.index("--cache-type-k") + 1], ours[ours.index("--kv-bits") + 1]) == ("f16", "16")
    assert guessing == [*ours, "--spec-type", "ngram"]


class FakeServer:
    """A server that writes ``lengths[at]`` ids to the request number ``at``, after it has all requests."""

    def __init__(self, lengths: list[int]) -> None:
        self.name = "a fake"
        self.bodies: list[Any] = []
        together = threading.Barrier(len(lengths))
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                fake.bodies.append(body)
                together.wait()
                self.send_response(200)
                self.end_headers()
                for at in range(lengths[body["prompt"][0]]):
                    self.wfile.write(b"data: " + json.dumps({"tokens": [at]}).encode() + b"\n\n: ping\n\n")
                self.wfile.write(b'data: {"tokens": [], "stop": true}\n\n')

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def fake(request: pytest.FixtureRequest, benchmark: Any) -> Iterator[FakeServer]:
    server = FakeServer(request.param)
    server.post = lambda path, body: benchmark.ServerProcess.post(server, path, body)  # type: ignore[attr-defined]
    yield server
    server.close()


@pytest.mark.parametrize("fake", [[4, 4, 4]], indirect=True)
def test_all_clients_ask_together(benchmark: Any, fake: FakeServer) -> None:
    streams = benchmark.run_clients(fake, [[0], [1], [2]], 4)
    assert [one.ids for one in streams] == [[0, 1, 2, 3]] * 3
    assert all(one.sent < one.moments[0] <= one.moments[-1] for one in streams)
    assert sorted(body["prompt"] for body in fake.bodies) == [[0], [1], [2]]
    assert all((body["temperature"], body["ignore_eos"], body["n_predict"]) == (0, True, 4) for body in fake.bodies)


@pytest.mark.parametrize("fake", [[4, 3]], indirect=True)
def test_a_text_of_another_length_is_refused(benchmark: Any, fake: FakeServer) -> None:
    with pytest.raises(DeviceError, match="wrote 3 ids instead of 4"):
        benchmark.run_clients(fake, [[0], [1]], 4)


def test_a_server_that_ends_is_named_with_its_last_words(benchmark: Any) -> None:
    command = [sys.executable, "-c", "print('no such model'); raise SystemExit(3)"]
    with pytest.raises(DeviceError, match=r"(?s)a server has ended with code 3.*no such model"):
        benchmark.ServerProcess("a server", command)
