"""Run one test file against one mutant, in a process of its own that imports a copy of the package.

Results are stored in a file, so that an interrupted run continues.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from edgedec.errors import ToolError
from tests.mutation.covering_tests import module_path
from tests.mutation.mutants import Mutant

__all__ = ["KILLED", "SURVIVED", "TIMED_OUT", "Attempt", "Trials", "attempt_key", "read_attempts"]

KILLED, SURVIVED, TIMED_OUT = "killed", "survived", "timed out"
_OUTER = ("hw", "quantize", "runtime", "boards", "sim")
_LATE = -signal.SIGPROF  # exit code after the time limit
_NO_TESTS = 5  # exit code of pytest
# meaning of the exit codes for a mutant whose tests pass without it. 2: a test file cannot be imported; 3: an internal
# error, which is then caused by the mutant; 4: a conftest cannot be imported; 5: the mutant removed all tests, which a
# person would not notice; negative ones: the interpreter died
_OUTCOMES = {
    0: SURVIVED,
    1: KILLED,
    2: KILLED,
    3: KILLED,
    4: KILLED,
    _NO_TESTS: SURVIVED,
    _LATE: TIMED_OUT,
    -signal.SIGSEGV: KILLED,
    -signal.SIGABRT: KILLED,
}
_LIMIT_S = 10.0  # seconds of the processor for a test of which nothing is known
_PATIENCE_S = 3600.0  # seconds of the clock for a whole file, because a test may wait for something
_WORKER = Path(__file__).with_name("worker.py")
_LOG = logging.getLogger(__name__)


@contextmanager
def _copy(root: Path, module: str, text: str) -> Iterator[Path]:
    """Make a folder for PYTHONPATH whose package ``edgedec`` is the tree's, with its own ``hw`` and in it ``text``."""
    with tempfile.TemporaryDirectory(prefix="edgedec-mutant-") as scratch:
        package = Path(scratch) / "edgedec"
        package.mkdir()
        for path in (root / "edgedec").iterdir():
            if path.name != "__pycache__":
                (package / path.name).symlink_to(path)
        for name in _OUTER:
            if name != "hw" and (root / name).is_dir():
                (package / name).symlink_to(root / name)
        # Compiled files come along: they are as old as their sources, except that of the mutant.
        shutil.copytree(root / "hw", package / "hw")
        path = package / "hw" / f"{module}.py"
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*"):
            compiled.unlink()
        path.write_text(text, "utf-8")
        yield Path(scratch)


@dataclass(frozen=True, kw_only=True)
class _End:
    """Hold how a run of pytest ended.

    Attributes:
        code: pytest's exit code, or a signal's number times -1.
        last_test: the test that ran last, which is the one that failed, if any did; "" if none ran.
        seconds_by_test: seconds of each test that ended.
    """

    code: int
    seconds: float
    output: str
    last_test: str
    seconds_by_test: dict[str, float]


class _Worker:
    """Run pytest in forks of one process; see ``tests.mutation.worker``."""

    def __init__(self, root: Path) -> None:
        environment = os.environ | {
            "PYTHONSAFEPATH": "1",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # start-up is most of what a small test takes
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, "-P", str(_WORKER)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, cwd=root, env=environment, stdin=pipe, stdout=pipe, text=True)

    def run(self, request: Mapping[str, object]) -> int:
        """Return the exit code of a request's fork.

        Raises:
            ToolError: the worker has died.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        if not (line := self._process.stdout.readline()):
            raise ToolError(f"{_WORKER.name} ended with {self._process.wait()}; run it by itself to see why")
        return int(line)

    def close(self) -> None:
        self._process.communicate()  # it ends with its input


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """Hold the result of one test file against one mutant; it is a line of the results file, without the names."""

    key: str
    test: str
    outcome: str
    seconds: float

    def line(self, last: str = "") -> str:
        """Return the line of the results file; it does not repeat the test file of the line before it, ``last``."""
        test = "" if self.test == last else self.test
        return json.dumps([self.key, test, self.outcome, self.seconds], separators=(",", ":")) + "\n"


class Trials:
    """Run test files against mutants, and store the results in a JSON Lines file.

    A line's key changes with the mutated file and with the test file, so that no result outlives them. A mutant is killed
    only if the test that noticed it passes without it; that test runs once by itself, whatever the number of mutants.

    Args:
        limit_s: seconds of the processor for one test against a mutant; None: three times what it takes unchanged, and two
            seconds.
    """

    def __init__(self, root: Path, results: Path, limit_s: float | None) -> None:
        self.root, self.results, self.limit_s = root, results, limit_s
        self._lock, self._unchanged_lock = threading.Lock(), threading.Lock()
        self._unchanged: dict[str, _End] = {}  # test, or file -> how it ended
        self._usual: dict[str, float] = {}  # seconds of a test, perhaps with a mutant
        self._idle: list[_Worker] = []
        results.parent.mkdir(parents=True, exist_ok=True)
        self._known = read_attempts(results)
        self._last = ""  # test file of the last line that was written
        if results.is_file() and not results.read_bytes().endswith(b"\n"):
            with results.open("a", encoding="utf-8") as file:
                file.write("\n")  # ends the line that a killed run left

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._idle:
            worker.close()

    def stored(self, mutant: Mutant, tests: Sequence[Path]) -> list[Attempt]:
        """Return the results of a mutant that need not be run again."""
        keys = (attempt_key(mutant, test) for test in tests)
        return [self._known[key] for key in keys if key in self._known]

    def attempt(self, mutant: Mutant, test: Path) -> Attempt | None:
        """Run a test file against a mutant, or return its stored result; None if the file has no fast test.

        Raises:
            ToolError: the result is neither a pass nor a failure, or the tests fail without the mutant, too.
        """
        key = attempt_key(mutant, test)
        if key not in self._known:
            end = self._run(mutant.module, mutant.text, str(test))
            while end.code != 0:
                had_its_limit = end.last_test in self._unchanged
                unchanged = self._without_mutant(mutant.module, test, end.last_test)
                if unchanged.code == _NO_TESTS:
                    return None
                limit_s = _limit_s(unchanged.seconds_by_test.get(end.last_test, 0.0))
                if end.code != _LATE or had_its_limit or self.limit_s or limit_s <= _LIMIT_S:
                    break
                end = self._run(mutant.module, mutant.text, str(test))  # it may have had too little time
            if end.code not in _OUTCOMES:
                raise ToolError(f"pytest over {test.name} gave {end.code} for {mutant.diff}:\n{end.output[-2000:]}")
            outcome = _OUTCOMES[end.code]
            _LOG.info("%s %s (%s, %.1f s)", outcome, mutant.diff, test.name, end.seconds)
            self._add(key, test, outcome, end)
        return self._known[key]

    def _without_mutant(self, module: str, test: Path, name: str) -> _End:
        """Run a test without a mutant, or only collect the file's if ``name`` is "": none ran with the mutant.

        Raises:
            ToolError: it does not pass.
        """
        with self._unchanged_lock:
            if (name or str(test)) not in self._unchanged:
                arguments = [name] if name else ["--collect-only", str(test)]
                end = self._run(module, module_path(self.root, module).read_text("utf-8"), *arguments, limited=False)
                if end.code not in (0, _NO_TESTS):
                    raise ToolError(f"{module}: its tests must pass without a mutant first:\n{end.output[-2000:]}")
                self._unchanged[name or str(test)] = end
        return self._unchanged[name or str(test)]

    def _run(self, module: str, text: str, *arguments: str, limited: bool = True) -> _End:
        """Run what pytest's arguments name against the text of a module, the shortest test first.

        The limit is of the processor's time, so that a busy machine kills no mutant.

        Raises:
            ToolError: the tests would not run against the text, or the worker has died.
        """
        options = ("-x", "-q", "--import-mode=importlib", "-p", "no:cacheprovider", "--no-header", "--tb=line")
        unchanged = {
            name: seconds for end in tuple(self._unchanged.values()) for name, seconds in end.seconds_by_test.items()
        }
        own_limits = limited and not self.limit_s
        with self._lock:
            worker = self._idle.pop() if self._idle else _Worker(self.root)
        try:
            with _copy(self.root, module, text) as folder:
                output, log = folder / "output", folder / "log"
                request = {
                    "folder": str(folder),
                    "module": f"edgedec.hw.{module.replace('/', '.')}",
                    "arguments": [*options, *arguments],
                    "output": str(output),
                    "log": str(log),
                    "usual": self._usual,
                    "limits_s": {name: _limit_s(seconds) for name, seconds in unchanged.items() if own_limits},
                    "limit_s": (self.limit_s or _LIMIT_S) if limited else 0,
                    "patience_s": _PATIENCE_S,
                }
                began = time.monotonic()
                code = worker.run(request)
                seconds = time.monotonic() - began
                written = output.read_text("utf-8", errors="replace")
                lines = log.read_text("utf-8").splitlines() if log.is_file() else []
        finally:
            self._idle.append(worker)
        if written.startswith("imported "):
            raise ToolError(f"the tests of {module} would run against the tree: {written[-2000:]}")
        tests = dict[str, float | None](json.loads(line) for line in lines)
        ended = {test: seconds for test, seconds in tests.items() if seconds is not None}
        self._usual = self._usual | ended  # another thread may read it
        return _End(
            code=code, seconds=seconds, output=written, last_test=next(reversed(tests), ""), seconds_by_test=ended
        )

    def _add(self, key: str, test: Path, outcome: str, end: _End) -> None:
        name = test.relative_to(self.root).as_posix()
        attempt = Attempt(key=key, test=name, outcome=outcome, seconds=round(end.seconds, 2))
        with self._lock, self.results.open("a", encoding="utf-8") as file:
            file.write(attempt.line(self._last))
            self._last = name
            self._known[key] = attempt


def _limit_s(usual_s: float) -> float:
    return 3 * usual_s + 2


def attempt_key(mutant: Mutant, test: Path) -> str:
    """Return the key of the line that holds the result of a test file against a mutant."""
    return _digest(mutant.key.encode(), test.read_bytes())


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def read_attempts(path: Path) -> dict[str, Attempt]:
    """Return the results of earlier runs; a line that was cut off is left out."""
    attempts, last = dict[str, Attempt](), ""
    for line in path.read_text("utf-8").splitlines() if path.is_file() else ():
        try:
            key, test, outcome, seconds = json.loads(line)
        except (ValueError, TypeError):
            continue
        last = test or last
        attempts[key] = Attempt(key=key, test=last, outcome=outcome, seconds=seconds)
    return attempts
