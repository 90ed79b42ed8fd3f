"""Test the counters of the benchmark of idle servers, on processes whose rest is known."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2]))
    return importlib.import_module("benchmarks.server.idle")


@contextmanager
def process(program: str) -> Iterator[subprocess.Popen[str]]:
    """Run a program of Python up to its first line on stdout, and end it with the block."""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            child.stdout.readline()
            yield child
        finally:
            child.kill()


def test_a_process_that_sleeps_costs_nothing(benchmark: Any) -> None:
    with process("import time; print(flush=True); time.sleep(600)") as child:
        rest = benchmark.measure_rest(child.pid, 0.1)
    assert rest.wakeups_per_second <= 10, "the sleep itself may begin within the time"
    assert rest.cpu_percent < 5


def test_wake_ups_of_all_threads_count(benchmark: Any) -> None:
    """Threads wake as long as they are measured, so that the clock of the test does not matter."""
    program = """
import threading, time
def wake():
    while True:
        time.sleep(0.001)
threads = [threading.Thread(target=wake, daemon=True) for _ in range(2)]
for thread in threads:
    thread.start()
print(flush=True)
time.sleep(600)
"""
    with process(program) as child:
        rest = benchmark.measure_rest(child.pid, 0.2)
    assert rest.wakeups_per_second > 20
    assert rest.cpu_percent > 0


def test_the_memory_of_a_process_is_told(benchmark: Any) -> None:
    with process("block = bytearray(b'x') * (32 << 20); print(flush=True); import time; time.sleep(600)") as child:
        assert 32 << 20 < benchmark.anonymous_bytes(child.pid) < 96 << 20
