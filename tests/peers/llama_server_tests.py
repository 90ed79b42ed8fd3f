"""Run llama.cpp's own tests of its server against ``edgedec serve``.

    python -m tests.peers.llama_server_tests [--tests FOLDER] [--report FILE] [--json] [--listed] [WORD ...]

The suite is ``tools/server/tests`` of llama.cpp, from the sources that the benchmarks use, with the chat templates of these
sources; nothing of it is copied into the project. ``llama_server.py`` starts edgedec with the options of llama-server. Tests
that do not apply are listed with their reason in ``llama_server_tests.toml`` and are not run. All others must pass, or the
exit status is 1; so it is if an entry of the list names no test. A run of all tests that apply writes the report
(``llama_server_report.py``). ``--listed`` runs the tests of the list instead, and reports those that pass and need no entry
any more. With words, only tests whose name has one of them are run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from edgedec.errors import ToolError, UsageError
from tests.peers.llama_server_report import REPORT, report_text, suite_version

__all__ = ["Outcome", "read_list", "run_suite"]

ROOT = Path(__file__).resolve().parents[2]
LIST = Path(__file__).with_suffix(".toml")
_NO_TESTS = 5  # pytest's exit status if every test was left out


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of a run.

    Members:
        passed, failed, skipped: names of tests; the suite itself skips some.
        listed: name of each test that does not apply, with its reason.
        unused: entries of the list that name no test.
    """

    passed: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    listed: Mapping[str, str] = field(default_factory=dict)
    unused: list[str] = field(default_factory=list)


def read_list(path: Path = LIST) -> dict[str, str]:
    """Return the entries of a list with their reasons. An entry is a test, or the beginning of the names of several.

    Raises:
        UsageError: an entry stands twice, or has no reason.
    """
    entries: dict[str, str] = {}
    for group in tomllib.loads(path.read_text("utf-8"))["group"]:
        if not group.get("reason"):
            raise UsageError(f"{path.name}: a group has no reason; say why its tests do not apply")
        for name in group["tests"]:
            if name in entries:
                raise UsageError(f"{path.name}: {name} stands twice; remove one")
            entries[name] = group["reason"]
    return entries


def entry_of(test: str, entries: Mapping[str, str]) -> str | None:
    """Return the entry that names a test: its name, its name without parameters, its file, or a beginning of parameters."""
    for entry in entries:
        if test == entry or test.startswith((f"{entry}::", f"{entry}[")) or ("[" in entry and test.startswith(entry)):
            return entry
    return None


def _pytest(
    suite: Path, arguments: Sequence[str], environment: Mapping[str, str], log: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run pytest; its output is written to ``log`` while it runs, or else is returned."""
    # The suite needs its own folder on the path, which the script pytest would not add.
    command = [sys.executable, "-m", "pytest", "-p", "tests.peers.llama_server_plugin", "-p", "no:cacheprovider"]
    paths = os.pathsep.join([str(suite), str(ROOT)])
    own = {"PYTHONPATH": paths, "PYTEST_ADDOPTS": ""}  # options for our own tests would change the list that is printed
    with tempfile.NamedTemporaryFile("w+") if log is None else log.open("w+") as output:
        run = subprocess.run(
            [*command, *arguments],
            cwd=suite,
            env={**os.environ, **environment, **own},
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        output.seek(0)
        run.stdout = output.read()
    return run


def _collect(suite: Path) -> list[str]:
    run = _pytest(suite, ["--collect-only", "-q", "-m", "not slow", "unit"], {})
    tests = [line for line in run.stdout.splitlines() if line.startswith("unit/") and "::" in line]
    if run.returncode or not tests:
        raise ToolError(f"the tests in {suite} cannot be collected:\n{run.stdout[-4000:]}")
    return tests


def _results(report: Path) -> dict[str, str]:
    """Return the outcome of each test in a report in JUnit's format."""
    results = {}
    for case in ElementTree.parse(report).iter("testcase"):
        parts = case.attrib["classname"].split(".")
        name = f"{'/'.join(parts)}.py::{case.attrib['name']}"
        kinds = {child.tag for child in case}
        failed = bool(kinds & {"failure", "error"})
        results[name] = "failed" if failed else "skipped" if "skipped" in kinds else "passed"
    return results


def run_suite(
    suite: Path, *, entries: Mapping[str, str], words: Sequence[str] = (), listed: bool = False, log: Path | None = None
) -> Outcome:
    """Run the suite.

    Parameters:
        suite: the folder with llama.cpp's ``utils.py`` and ``unit``.
        entries: tests that do not apply, see ``read_list``.
        words: run only tests whose name has one of them; none: all.
        listed: run the tests that do not apply instead of the others.
        log: file for pytest's output.

    Raises:
        ToolError: the suite cannot be collected or run.
    """
    tests = _collect(suite)
    matches = {test: entry for test in tests if (entry := entry_of(test, entries)) is not None}
    chosen = [test for test in tests if (test in matches) == listed and (not words or any(w in test for w in words))]
    with tempfile.TemporaryDirectory() as folder:
        program, report = Path(folder) / "llama-server", Path(folder) / "report.xml"
        program.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -m tests.peers.llama_server "$@"\n')
        program.chmod(0o755)
        environment = {"LLAMA_SERVER_BIN_PATH": str(program)}
        run = _pytest(suite, ["-v", f"--junitxml={report}", *chosen], environment, log) if chosen else None
        if run is not None and (run.returncode not in (0, 1, _NO_TESTS) or not report.exists()):
            raise ToolError(f"the tests in {suite} cannot be run:\n{run.stdout[-4000:]}")
        results = _results(report) if run is not None else {}
    of = {kind: sorted(name for name, result in results.items() if result == kind) for kind in set(results.values())}
    return Outcome(
        passed=of.get("passed", []),
        failed=of.get("failed", []),
        skipped=of.get("skipped", []),
        listed={test: entries[entry] for test, entry in matches.items()},
        unused=sorted(set(entries) - set(matches.values())),
    )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", metavar="WORD")
    parser.add_argument(
        "--tests", type=Path, metavar="FOLDER", help="default: from llama.cpp's sources, downloaded once"
    )
    parser.add_argument("--listed", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--log", type=Path, metavar="FILE", help="write pytest's output to this file")
    parser.add_argument(
        "--report", type=Path, metavar="FILE", default=REPORT, help="default: that of the documentation"
    )
    options = parser.parse_args()
    if options.tests is None:
        suite, version = _sources()
    else:
        suite = options.tests.resolve()
        version = suite_version(suite)
    outcome = run_suite(suite, entries=read_list(), words=options.words, listed=options.listed, log=options.log)
    if not (options.words or options.listed):
        options.report.write_text(report_text(outcome, version), "utf-8")
    reasons: dict[str, int] = {}
    for reason in outcome.listed.values():
        reasons[reason] = reasons.get(reason, 0) + 1
    if options.json:
        print(json.dumps({**vars(outcome), "listed": reasons}))
    else:
        for kind in ("passed", "failed", "skipped") if options.listed or options.words else ("failed", "skipped"):
            for name in getattr(outcome, kind):
                print(f"{kind} {name}")
        print(
            f"{len(outcome.passed)} passed, {len(outcome.failed)} failed, {len(outcome.skipped)} skipped by the suite"
        )
        for reason, count in sorted(reasons.items(), key=lambda item: -item[1]):
            print(f"{count:4} do not apply: {reason}")
        for entry in outcome.unused:
            print(f"{LIST.name}: {entry} names no test")
    sys.exit(bool(outcome.unused or (outcome.failed and not options.listed)))


def _sources() -> tuple[Path, str]:
    """Return the suite of the benchmarks' sources, and its version."""
    from benchmarks.peers.llama_cpp import COMMIT, PACKAGE, RELEASE, sources

    return sources() / "tools" / "server" / "tests", f"commit {COMMIT}, in {PACKAGE} {RELEASE}"


if __name__ == "__main__":
    main()
