"""Run pytest over one file after another, each in a fork that imports a copy of the package.

The process imports the packages that all tests use, and forks for each file, because many tests take less time than
those imports. It is a script without imports of the project, which each fork finds in its own copy:

    python -P tests/mutation/worker.py

It reads a request as JSON from each line of its input, and answers with a line: the fork's exit code.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import os
import resource
import select
import signal
import sys
from pathlib import Path
from typing import Any

import amaranth.sim  # noqa: F401 - imported for the forks
import numpy as np  # noqa: F401 - imported for the forks
import pytest
from hypothesis import Phase, settings

_MEMORY = 8 << 30  # bytes that a fork may write; an edit may ask for a table of 2**60


class Log:
    """Run the tests with the least usual time first, limit the time of each, and log what they take.

    pytest stops at the first failure, so an edit that a short test notices costs no long one. A test of the log's last
    line that has no time has not ended.
    """

    def __init__(self, path: Path, usual: dict[str, float], limits_s: dict[str, float], limit_s: float) -> None:
        self._path, self._usual, self._limits_s, self._limit_s = path, usual, limits_s, limit_s
        self._seconds = 0.0

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: self._usual.get(item.nodeid, math.inf))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._seconds = 0.0
        self._write(nodeid, None)
        signal.setitimer(signal.ITIMER_PROF, self._limits_s.get(nodeid, self._limit_s))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds += report.duration

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._write(nodeid, round(self._seconds, 3))

    def _write(self, nodeid: str, seconds: float | None) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps([nodeid, seconds]) + "\n")


def run(request: dict[str, Any]) -> int:
    """Run a request in this process, which it changes: return pytest's exit code.

    Args:
        request: ``folder`` for PYTHONPATH, ``module`` that must come from it, ``arguments`` of pytest, ``output`` and
            ``log``: files to write, ``usual``: seconds of tests, for their order, ``limits_s``: seconds of the processor
            that a test may take, and ``limit_s`` of each other one and of the imports; 0: no limit. Beyond it, SIGPROF
            ends the process.
    """
    output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(output, stream)
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
    signal.setitimer(signal.ITIMER_PROF, request["limit_s"])
    os.environ["PYTHONPATH"] = os.pathsep.join([request["folder"], os.getcwd()])  # the tree's tests, for their children
    sys.path.insert(0, request["folder"])
    # The copy's module is found first, so that a test that would run against the tree fails with a message.
    spec = importlib.util.find_spec(request["module"])
    assert spec is not None
    assert spec.origin is not None
    if not Path(spec.origin).is_relative_to(request["folder"]):
        sys.stderr.write(f"imported {spec.origin}\n")
        return 1
    # Failing examples are not reduced, because only the failure matters.
    settings.register_profile("mutants", phases=[Phase.explicit, Phase.generate])
    settings.load_profile("mutants")
    log = Log(Path(request["log"]), request["usual"], request["limits_s"], request["limit_s"])
    return int(pytest.main(request["arguments"], plugins=[log]))


def wait(child: int, patience_s: float) -> int:
    """Return the exit code of a fork; kill it, with what it has started, after a time, or if the input ends before."""
    ended = os.pidfd_open(child)
    ready, _, _ = select.select([ended, sys.stdin], [], [], patience_s)
    os.close(ended)
    if ended not in ready:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) if ended in ready else -signal.SIGPROF


def serve() -> None:
    """Answer requests until the input ends."""
    while line := sys.stdin.readline():
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            os.setsid()  # a session of its own, so that a simulator that a test started dies with it
            sys.exit(run(request))
        sys.stdout.write(f"{wait(child, request['patience_s'])}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve()
