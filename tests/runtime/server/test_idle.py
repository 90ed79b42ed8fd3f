"""Test the memory and the rest of a server that waits for requests, in a process of its own."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]

PATIENCE_S = 60.0
MIB = 1 << 20
SLACK = 2 * MIB  # growth of the process beside the model: objects of a request, pages that the heap cannot give back
# A server that says how much anonymous memory it has just before it loads its model.
SERVER = """
import sys
from pathlib import Path
from edgedec.runtime.session.session import Session
from edgedec.cli.app import main

load = Session.load

def told(*args, **options):
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    print("before", int(line.split()[1]) << 10, flush=True)
    return load(*args, **options)

Session.load = told
sys.argv = ["edgedec", "serve", "-m", "demo", "-t", "1", "-c", "1024", "--kv-bits", "16", "--port", "0", *sys.argv[1:]]
main()
"""


@contextmanager
def server(*words: str) -> Iterator[tuple[subprocess.Popen[str], httpx.Client]]:
    """Run the server, and yield its process and a client."""
    command = [sys.executable, "-c", SERVER, *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            line = process.stderr.readline()
            match = re.search(r"at (http://127\.0\.0\.1:\d+)", line)
            assert match is not None, line + process.stderr.read()
            with httpx.Client(base_url=match[1], timeout=PATIENCE_S, trust_env=False) as client:
                yield process, client
        finally:
            process.kill()


def anonymous_bytes(process: subprocess.Popen[str]) -> int:
    """Return the anonymous memory of a process that is resident."""
    match = re.search(r"^RssAnon:\s+(\d+) kB$", Path(f"/proc/{process.pid}/status").read_text(), re.MULTILINE)
    assert match is not None
    return int(match[1]) << 10


def await_memory(process: subprocess.Popen[str], most: float) -> None:
    """Wait until a process has less anonymous memory than so many bytes."""
    end = time.monotonic() + PATIENCE_S
    while (size := anonymous_bytes(process)) >= most:
        assert time.monotonic() < end, f"{size} bytes are resident, {most} are expected at most"
        time.sleep(0.02)


def test_a_server_gives_the_memory_of_its_model_back_when_it_unloads_it() -> None:
    """Compare with the process as it was before the model was loaded, and then with each unloading before."""
    with server("--idle-unload", "0.3") as (process, client):
        assert process.stdout is not None
        before = int(process.stdout.readline().removeprefix("before"))
        least = 0
        for number in range(3):
            body = {"prompt": f"Once {number}", "max_tokens": 40, "temperature": 0}
            assert client.post("/v1/completions", json=body).status_code == 200
            client.post("/v1/completions", json={**body, "grammar": "start: /[a-z]+/"})  # an error without its package
            assert client.post("/v1/completions", json={**body, "prompt": []}).status_code == 400
            loaded = anonymous_bytes(process)
            assert loaded - before > 16 * MIB, "the model takes too little memory for this test"
            # Libraries that the first requests have imported stay.
            await_memory(process, least + SLACK if least else before + (loaded - before) / 4)
            least = least or anonymous_bytes(process)
            assert client.get("/props").json()["is_sleeping"]
