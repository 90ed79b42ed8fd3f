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
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from edgedec.errors import ToolError
from tests.mutation.covering_tests import module_path
from tests.mutation.mutants import Mutant

__all__ = ["KILLED", "SURVIVED", "TIMED_OUT", "Attempt", "Trials", "attempt_key", "read_attempts"]

KILLED, SURVIVED, TIMED_OUT = "killed", "survived", "timed out"
_NOTHING = "nothing to run"
_OUTER = ("hw", "quantize", "runtime", "boards", "sim")
# meaning of pytest's exit codes for a mutant whose tests pass without it. 2: a test file cannot be imported; 3: an
# internal error, which is then caused by the mutant; 4: a conftest cannot be imported; 5: the mutant removed all tests,
# which a person would not notice; negative ones: the interpreter died
_OUTCOMES = {
    0: SURVIVED,
    1: KILLED,
    2: KILLED,
    3: KILLED,
    4: KILLED,
    5: SURVIVED,
    -signal.SIGSEGV: KILLED,
    -signal.SIGABRT: KILLED,
}
_UNCHANGED_OUTCOMES = {0: SURVIVED, 5: _NOTHING}
_MEMORY = 8 << 30  # bytes that a mutant's process may write; an edit may ask for a table of 2**60
# The copy's module is found first, so that a test that would run against the tree fails with a message. Failing
# examples are not reduced, because only the failure matters.
_CHILD = f"""
import importlib.util, pathlib, resource, sys
resource.setrlimit(resource.RLIMIT_DATA, ({_MEMORY}, {_MEMORY}))
limit, folder, module = (sys.argv.pop(1) for _ in range(3))
if float(limit):
    resource.setrlimit(resource.RLIMIT_CPU, (int(float(limit)) + 1, -1))
origin = importlib.util.find_spec(module).origin
if not pathlib.Path(origin).is_relative_to(folder):
    sys.exit(f"imported {{origin}}")
from hypothesis import Phase, settings
settings.register_profile("mutants", phases=[Phase.explicit, Phase.generate])
settings.load_profile("mutants")
import pytest
sys.exit(pytest.main(sys.argv[1:]))
"""
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
        shutil.copytree(root / "hw", package / "hw", ignore=shutil.ignore_patterns("__pycache__"))
        (package / "hw" / f"{module}.py").write_text(text, "utf-8")
        yield Path(scratch)


def _run(root: Path, module: str, text: str, test: Path, limit_s: float | None) -> tuple[int | None, float, str]:
    """Return (pytest's exit code or None after the time limit, seconds, output).

    The limit is of the processor's time, so that a busy machine kills no mutant; one that sleeps gets ten times as long.
    """
    with _copy(root, module, text) as folder:
        options = ("-x", "-q", "--import-mode=importlib", "-p", "no:cacheprovider", "--no-header", "--tb=line")
        name = f"edgedec.hw.{module.replace('/', '.')}"
        command = [sys.executable, "-P", "-c", _CHILD, str(limit_s or 0), str(folder), name, *options, str(test)]
        environment = os.environ | {
            "PYTHONPATH": str(folder),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONSAFEPATH": "1",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # start-up is most of what a small test takes
            "OMP_NUM_THREADS": "1",
        }
        began = time.monotonic()
        # The process has a session of its own, so that a simulator that a test started dies with it.
        with subprocess.Popen(
            command,
            cwd=root,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        ) as process:
            try:
                output, _ = process.communicate(timeout=None if limit_s is None else 10 * limit_s + 600)
            except BaseException as error:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
                if not isinstance(error, subprocess.TimeoutExpired):
                    raise
                return None, time.monotonic() - began, ""
    if output.startswith("imported "):
        raise ToolError(f"the tests of {module} would run against the tree: {output[-2000:]}")
    code = None if process.returncode == -signal.SIGXCPU else process.returncode
    return code, time.monotonic() - began, output


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """Hold the result of one test file against one mutant, or against none; it is a line of the results file."""

    key: str
    diff: str
    test: str
    outcome: str
    seconds: float


class Trials:
    """Run test files against mutants, and store the results in a JSON Lines file.

    A line's key changes with the mutated file and with the test file, so that no result outlives them; that of a test
    without a mutant changes with any file of ``hw/``, and is in a file beside it, because it is about this machine.
    """

    def __init__(self, root: Path, results: Path, limit_s: float | None) -> None:
        self.root, self.results, self.limit_s = root, results, limit_s
        self._hardware = _digest(*(path.read_bytes() for path in sorted((root / "hw").rglob("*.py"))))
        self._write_lock, self._unchanged_lock = threading.Lock(), threading.Lock()
        results.parent.mkdir(parents=True, exist_ok=True)
        self._unchanged = results.with_suffix(".unchanged.jsonl")
        self._known = read_attempts(results) | read_attempts(self._unchanged)
        for path in (results, self._unchanged):
            if path.is_file() and not path.read_bytes().endswith(b"\n"):
                with path.open("a", encoding="utf-8") as file:
                    file.write("\n")  # ends the line that a killed run left

    def unchanged(self, module: str, test: Path) -> float | None:
        """Return the seconds that a test file takes without a mutant, or None if it has no fast test.

        Raises:
            ToolError: it does not pass.
        """
        key = _digest(self._hardware.encode(), test.read_bytes())
        with self._unchanged_lock:
            if key not in self._known:
                text = module_path(self.root, module).read_text("utf-8")
                code, seconds, output = _run(self.root, module, text, test, None)
                if code not in _UNCHANGED_OUTCOMES:
                    raise ToolError(f"{module}: its tests must pass without a mutant first:\n{output[-2000:]}")
                self._add(key, "", test, _UNCHANGED_OUTCOMES[code], seconds)
        attempt = self._known[key]
        return None if attempt.outcome == _NOTHING else attempt.seconds

    def attempt(self, mutant: Mutant, test: Path) -> Attempt:
        """Run a test file against a mutant, or return its stored result.

        Raises:
            ToolError: the result is neither a pass nor a failure.
        """
        key = attempt_key(mutant, test)
        if key not in self._known:
            usual = self.unchanged(mutant.module, test)
            assert usual is not None
            limit = self.limit_s or 5 * usual + 30
            code, seconds, output = _run(self.root, mutant.module, mutant.text, test, limit)
            if code is not None and code not in _OUTCOMES:
                raise ToolError(f"pytest over {test.name} gave {code} for {mutant.diff}:\n{output[-2000:]}")
            outcome = TIMED_OUT if code is None else _OUTCOMES[code]
            _LOG.info("%s %s (%s, %.1f s)", outcome, mutant.diff, test.name, seconds)
            self._add(key, mutant.diff, test, outcome, seconds)
        return self._known[key]

    def _add(self, key: str, diff: str, test: Path, outcome: str, seconds: float) -> None:
        name = test.relative_to(self.root).as_posix()
        attempt = Attempt(key=key, diff=diff, test=name, outcome=outcome, seconds=round(seconds, 2))
        path = self.results if diff else self._unchanged
        with self._write_lock, path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(attempt)) + "\n")
            self._known[key] = attempt


def attempt_key(mutant: Mutant, test: Path) -> str:
    """Return the key of the line that holds the result of a test file against a mutant."""
    return _digest(mutant.key.encode(), test.read_bytes())


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def read_attempts(path: Path) -> dict[str, Attempt]:
    """Return the results of earlier runs; a line that was cut off is left out."""
    attempts: dict[str, Attempt] = {}
    for line in path.read_text("utf-8").splitlines() if path.is_file() else ():
        try:
            attempt = Attempt(**json.loads(line))
        except (ValueError, TypeError):
            continue
        attempts[attempt.key] = attempt
    return attempts
