"""Mutation testing of ``hw/``: how many small wrong edits do the unit tests notice?

Each mutant is made in a temporary copy of the package, never in the tree, and the tests of its module run against it.

    python -m edgedec.sim.mutation --modules divider trit_decoder --count 20 --seed 0 --json
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from edgedec.errors import EdgedecError, ToolError, UsageError
from edgedec.paths import cache_folder
from edgedec.sim.mutants import KINDS, Mutant, find_mutants

__all__ = ["Report", "Result", "covering_tests", "mutate"]

KILLED, SURVIVED, TIMED_OUT = "killed", "survived", "timed out"
_OUTER = ("hw", "quantize", "runtime", "boards", "sim")
_OUTCOMES = {0: SURVIVED, 1: KILLED, 2: KILLED}  # pytest's exit codes; 2: the mutant cannot even be imported
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Result:
    key: str
    module: str
    kind: str
    diff: str
    outcome: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Report:
    """kill_rate: of those that the tests noticed, a hanging simulation included; 0 to 1."""

    mutants: int
    killed: int
    survived: int
    timed_out: int
    kill_rate: float
    kinds: dict[str, dict[str, int]]
    survivors: list[Result]


def covering_tests(root: Path, module: str) -> list[Path]:
    """tests/hw/test_MODULE.py, and the test files beside it that import the module.

    Raises:
        UsageError: there is neither module nor test.
    """
    if not (root / "hw" / f"{module}.py").is_file():
        known = ", ".join(sorted(path.stem for path in (root / "hw").glob("*.py") if path.stem != "__init__"))
        raise UsageError(f"hw has no module {module!r}; it has {known}")
    own = root / "tests" / "hw" / f"test_{module}.py"
    found = [own] if own.is_file() else []
    for path in sorted((root / "tests" / "hw").glob("test_*.py")):
        if path != own and f"edgedec.hw.{module}" in _imports(path):
            found.append(path)
    if not found:
        raise UsageError(f"no test in tests/hw imports edgedec.hw.{module}: write tests/hw/test_{module}.py")
    return found


def _imports(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names


@contextmanager
def _copy(root: Path, module: str, text: str) -> Iterator[Path]:
    """A folder for PYTHONPATH whose package ``edgedec`` is the tree's, with its own ``hw`` and in it ``text``."""
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


def _run(root: Path, module: str, text: str, tests: Sequence[Path], limit_s: float | None) -> tuple[str, float, str]:
    """(outcome, seconds, what pytest said)"""
    # The copy's module is imported first, so that a test that would run against the tree fails loudly.
    check = (
        "import sys, pathlib, importlib.util as u; "
        f"s = u.find_spec('edgedec.hw.{module}'); "
        "pathlib.Path(s.origin).is_relative_to(sys.argv.pop(1)) or sys.exit(f'imported {s.origin}'); "
        "import pytest; sys.exit(pytest.main(sys.argv[1:]))"
    )
    with _copy(root, module, text) as folder:
        options = ("-x", "-q", "--import-mode=importlib", "-p", "no:cacheprovider", "--no-header", "--tb=line")
        command = [sys.executable, "-P", "-c", check, str(folder), *options, *map(str, tests)]
        environment = os.environ | {
            "PYTHONPATH": str(folder),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONSAFEPATH": "1",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # start-up is most of what a small test takes
            "OMP_NUM_THREADS": "1",
        }
        began = time.monotonic()
        # A session of its own: a simulator that a test started dies with it.
        with subprocess.Popen(
            command,
            cwd=root,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                said, _ = process.communicate(timeout=limit_s)
            except BaseException as error:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
                if not isinstance(error, subprocess.TimeoutExpired):
                    raise
                return TIMED_OUT, time.monotonic() - began, ""
    if process.returncode not in _OUTCOMES or said.startswith("imported "):
        raise ToolError(f"pytest over {module}'s tests gave {process.returncode}:\n{said[-2000:]}")
    return _OUTCOMES[process.returncode], time.monotonic() - began, said


def _read_results(path: Path) -> dict[str, Result]:
    """What earlier runs found; a line that was cut off is left out."""
    found: dict[str, Result] = {}
    for line in path.read_text("utf-8").splitlines() if path.is_file() else ():
        try:
            result = Result(**json.loads(line))
        except (ValueError, TypeError):
            continue
        found[result.key] = result
    return found


def _key(mutant: Mutant, tests: Sequence[Path]) -> str:
    """Changes with the module and with its tests, so that no result outlives them."""
    told = hashlib.sha256(mutant.key.encode())
    for path in tests:
        told.update(path.read_bytes())
    return told.hexdigest()[:16]


def _limit(root: Path, module: str, tests: Sequence[Path]) -> float:
    """Seconds that a mutant of a module gets: ten times what its tests take unchanged.

    Raises:
        ToolError: they do not pass.
    """
    text = (root / "hw" / f"{module}.py").read_text("utf-8")
    outcome, seconds, said = _run(root, module, text, tests, None)
    if outcome != SURVIVED:
        raise ToolError(f"{module}: its tests must pass without a mutant first:\n{said[-2000:]}")
    return 10 * seconds + 10


def mutate(
    root: Path,
    modules: Sequence[str],
    *,
    count: int,
    seed: int = 0,
    kinds: Sequence[str] = KINDS,
    jobs: int = 1,
    results: Path | None = None,
    limit_s: float | None = None,
) -> Report:
    """Try ``count`` mutants drawn over all ``modules``, or all there are where there are fewer.

    Args:
        root: the tree with hw/ and tests/hw/.
        kinds: of edits; see ``edgedec.sim.mutants.KINDS``.
        jobs: pytest processes at a time.
        results: a JSON Lines file; what stands in it is not run again, what is found is added. None: one for this tree
            in the cache folder.
        limit_s: for one mutant; None: ten times what the module's tests take.

    Raises:
        UsageError: an unknown module or kind, a module without tests, or nothing to mutate.
        ToolError: the tests fail without a mutant.
    """
    if count < 1 or jobs < 1 or (limit_s is not None and limit_s <= 0):
        raise UsageError(f"count, jobs and the time limit must be positive, not {count}, {jobs}, {limit_s}")
    if strange := sorted(set(kinds) - set(KINDS)):
        raise UsageError(f"no kind of mutant {strange[0]!r}; there are {', '.join(KINDS)}")
    tests = {module: covering_tests(root, module) for module in sorted(set(modules))}
    pool = [
        mutant
        for module in tests
        for mutant in find_mutants(module, (root / "hw" / f"{module}.py").read_text("utf-8"))
        if mutant.kind in kinds
    ]
    if not pool:
        raise UsageError(f"nothing to mutate in {', '.join(tests)}")
    chosen = random.Random(seed).sample(pool, min(count, len(pool)))
    if results is None:
        results = cache_folder() / "mutation" / f"{hashlib.sha256(str(root).encode()).hexdigest()[:8]}.jsonl"
    results.parent.mkdir(parents=True, exist_ok=True)
    known = _read_results(results)
    if results.is_file() and not results.read_bytes().endswith(b"\n"):
        with results.open("a", encoding="utf-8") as file:
            file.write("\n")  # ends the line that a killed run left
    keys = [_key(mutant, tests[mutant.module]) for mutant in chosen]
    waiting = [(key, mutant) for key, mutant in zip(keys, chosen, strict=True) if key not in known]
    limits = {
        module: limit_s or _limit(root, module, tests[module]) for module in sorted({m.module for _, m in waiting})
    }
    lock = threading.Lock()

    def attempt(item: tuple[str, Mutant]) -> None:
        key, mutant = item
        outcome, seconds, _ = _run(root, mutant.module, mutant.text, tests[mutant.module], limits[mutant.module])
        result = Result(
            key=key,
            module=mutant.module,
            kind=mutant.kind,
            diff=mutant.diff,
            outcome=outcome,
            seconds=round(seconds, 2),
        )
        with lock, results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(result)) + "\n")
            known[key] = result
        _LOG.info("%s %s (%.1f s)", outcome, mutant.diff, seconds)

    # Threads that wait for processes: each mutant has an interpreter of its own.
    with ThreadPoolExecutor(jobs) as executor:
        list(executor.map(attempt, waiting))
    return _report([known[key] for key in keys])


def _report(found: Sequence[Result]) -> Report:
    counts = {outcome: sum(result.outcome == outcome for result in found) for outcome in (KILLED, SURVIVED, TIMED_OUT)}
    kinds = {
        kind: {outcome: sum(r.kind == kind and r.outcome == outcome for r in found) for outcome in counts}
        for kind in KINDS
        if any(result.kind == kind for result in found)
    }
    return Report(
        mutants=len(found),
        killed=counts[KILLED],
        survived=counts[SURVIVED],
        timed_out=counts[TIMED_OUT],
        kill_rate=1 - counts[SURVIVED] / len(found),
        kinds=kinds,
        survivors=sorted((r for r in found if r.outcome == SURVIVED), key=lambda r: r.diff),
    )


def _text(report: Report) -> str:
    lines = [
        f"{report.mutants} mutants: {report.killed} killed, {report.timed_out} timed out, {report.survived} survived; "
        f"kill rate {report.kill_rate:.1%}"
    ]
    return "\n".join([*lines, *(f"survived ({result.kind}): {result.diff}" for result in report.survivors)])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m edgedec.sim.mutation", description=__doc__.splitlines()[0])
    parser.add_argument("--modules", nargs="+", required=True, metavar="NAME", help="of hw/, without .py")
    parser.add_argument("--count", type=int, default=20, help="mutants over all of them (20)")
    parser.add_argument("--seed", type=int, default=0, help="which mutants (0)")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="pytest processes at a time")
    parser.add_argument("--time-limit", type=float, metavar="S", help="for one mutant (10 times the tests' own time)")
    parser.add_argument("--results", type=Path, help="JSON Lines file to resume from (one in the cache folder)")
    parser.add_argument("--root", type=Path, default=Path.cwd(), help="tree with hw/ and tests/hw/ (this folder)")
    parser.add_argument("--json", action="store_true", help="machine output on stdout")
    options = parser.parse_args(arguments)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s")
    try:
        report = mutate(
            options.root.resolve(),
            options.modules,
            count=options.count,
            seed=options.seed,
            kinds=options.kinds,
            jobs=options.jobs,
            results=options.results,
            limit_s=options.time_limit,
        )
    except EdgedecError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    sys.stdout.write((json.dumps(asdict(report), indent=2) if options.json else _text(report)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
