"""Stamps of the third ring: at which commit each of its parts passed last, and how far the code has gone on since.

Continuous integration does not run the third ring, which takes an hour and wants torch. Whoever changes what a part tests
runs ``make test-nightly`` or ``make test-compare`` on a committed tree and commits ``tests/stamps.json``, which the run
writes if all its tests pass. ``make test`` prints how many commits have touched a part's folders since, and its
test_stamps.py fails past ``Part.limit``.

A run can be killed and started again at the same commit: it leaves out what has passed, which it notes in
``build/rings/``. On a modified tree the tests run, and no stamp is written. A test that failed and passed in a later run of
the commit is counted in the stamp.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

STAMPS = Path("tests/stamps.json")
# Options of pytest with which a run is not a run of all tests of a part.
_CHOICES = (
    *("markexpr", "keyword", "deselect", "ignore", "ignore_glob", "lf", "failedfirst", "stepwise"),
    *("collectonly", "setuponly", "setupplan"),
)


@dataclass(frozen=True)
class Part:
    """A part of the third ring.

    Members:
        folders: changes in these folders ask for a run.
        limit: number of commits to them that may go without a run.
        packages: without these, a run would skip most of it.
    """

    folders: tuple[str, ...]
    limit: int
    packages: tuple[str, ...] = ()


PARTS = {
    "nightly": Part(("boards", "edgedec/reference/integer_profile", "hw", "runtime", "sim"), 60),
    "compare": Part(
        ("edgedec/families", "edgedec/reference/float_profile", "quantize", "runtime/text"),
        60,
        ("torch", "transformers", "xllamacpp"),
    ),
}


@dataclass(frozen=True)
class Stamp:
    """A run in which no test of a part failed: commit, day (UTC), and how many tests passed and were skipped.

    ``failed_before`` counts those that failed in an earlier run of the commit and passed in this one.
    """

    commit: str
    day: str
    passed: int
    skipped: int
    failed_before: int = 0


class NoHistoryError(Exception):
    """The commits since a stamp cannot be counted: there is no repository of git, or one without the whole history."""


def read_stamps(root: Path) -> dict[str, Stamp]:
    """Return the stamps of a checkout by the names of the parts; a part that never passed has none."""
    file = root / STAMPS
    return (
        {name: Stamp(**stamp) for name, stamp in json.loads(file.read_text("utf-8")).items()} if file.exists() else {}
    )


def write_stamp(root: Path, name: str, stamp: Stamp) -> None:
    stamps = {part: asdict(old) for part, old in read_stamps(root).items()} | {name: asdict(stamp)}
    (root / STAMPS).write_text(json.dumps(stamps, indent=2, sort_keys=True) + "\n", "utf-8")


def age(root: Path, name: str) -> int:
    """Return how many commits have touched the folders of a part since its stamp.

    Raises:
        NoHistoryError: these commits are not here to be counted.
        ValueError: there is no stamp, or its commit is not an ancestor of the one that is checked out.
    """
    if not (root / ".git").exists():
        raise NoHistoryError("this folder is not a clone of the repository")
    if _git(root, "rev-parse", "HEAD") is None:
        raise NoHistoryError("git is not installed, or refuses to read this clone: try `git status`")
    stamp = read_stamps(root).get(name)
    if stamp is None:
        raise ValueError(f"{STAMPS} has no stamp of {name}: run make test-{name}")
    if _git(root, "merge-base", "--is-ancestor", stamp.commit, "HEAD") is None:
        if _git(root, "rev-parse", "--is-shallow-repository") == "true":
            raise NoHistoryError("this clone is shallow")
        raise ValueError(f"{stamp.commit[:10]}, where {name} passed, is not in this history: run make test-{name}")
    count = _git(root, "rev-list", "--count", f"{stamp.commit}..HEAD", "--", *PARTS[name].folders)
    if count is None:
        raise NoHistoryError("git cannot count the commits of this clone")
    return int(count)


def describe_ages(root: Path) -> str:
    """Return a line of all parts: "nightly passed 3 of at most 60 commits ago; compare ..."."""
    return "; ".join(_describe(root, name) for name in PARTS)


def _describe(root: Path, name: str) -> str:
    try:
        return f"{name} passed {age(root, name)} of at most {PARTS[name].limit} commits ago"
    except NoHistoryError as error:
        return f"{name} has no age: {error}"
    except ValueError as error:
        return str(error)


def _git(root: Path, *arguments: str) -> str | None:
    """Return what git prints, or None if it fails or is not installed."""
    # A hook of git sets variables that name other places.
    plain = {name: text for name, text in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False, env=plain
        )
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _state(root: Path) -> str | None:
    """Return the commit that is checked out, or None if a file is modified or new, or git cannot say.

    The stamps themselves may be modified, because a run of the other part writes them.
    """
    if _git(root, "status", "--porcelain", "--", ".", f":(exclude){STAMPS}") != "":
        return None
    return _git(root, "rev-parse", "HEAD")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--stamp", choices=sorted(PARTS), help=f"run this part of the third ring and write {STAMPS}")


def pytest_configure(config: pytest.Config) -> None:
    name: str | None = config.getoption("--stamp")
    if name is None:
        config.pluginmanager.register(PlainRun())
        return
    if not _is_worker(config):
        chosen = [option for option in _CHOICES if getattr(config.option, option, None)]
        if chosen or config.args != config.getini("testpaths"):
            raise pytest.UsageError(
                "--stamp runs a whole part of the third ring: leave out the names of files, -m, -k and all else that "
                f"chooses tests or runs none{': ' * bool(chosen)}{', '.join(chosen)}"
            )
        if missing := [package for package in PARTS[name].packages if find_spec(package) is None]:
            raise pytest.UsageError(f"{name} needs {', '.join(missing)}: run make test-{name}, which installs it")
    config.option.markexpr = name
    config.pluginmanager.register(StampedRun(config, name))


def _is_worker(config: pytest.Config) -> bool:
    """Return whether this is a process of pytest-xdist's other than the controller, which sees all reports."""
    return hasattr(config, "workerinput")


class PlainRun:
    """Any other run: its first lines say how old the stamps are."""

    def pytest_report_header(self, config: pytest.Config) -> str:
        return f"the third ring: {describe_ages(config.rootpath)}"


class StampedRun:
    """A run of a whole part: it goes on where an earlier run of the commit ended, and writes the stamp."""

    def __init__(self, config: pytest.Config, name: str) -> None:
        self.name, self.root = name, config.rootpath
        self.is_worker = _is_worker(config)
        self.commit = None if self.is_worker else _state(self.root)
        self.notes = self.root / f"build/rings/{name}-{self.commit}.txt"
        self.failures = self.notes.with_suffix(".failed.txt")
        # A worker gets them from the controller, because all workers must collect the same tests.
        self.passed = set[str](config.workerinput["passed"] if self.is_worker else _lines(self.notes))  # type: ignore[attr-defined]
        self.before, self.failed_before = frozenset(self.passed), _lines(self.failures)
        self.skipped, self.failed = set[str](), set[str]()
        self.stamp: Stamp | None = None

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Hand what has passed before this run to a worker of pytest-xdist, also to one that replaces another."""
        node.workerinput["passed"] = sorted(self.before)

    def pytest_report_header(self) -> str:
        if self.commit is None:
            return f"{self.name}: files are modified or new, or git cannot say, so this run writes no stamp"
        if not self.passed:
            return f"{self.name} at {self.commit[:10]}"
        return f"{self.name} at {self.commit[:10]}: {len(self.passed)} tests passed in an earlier run, as {self.notes} says"

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        done = [item for item in items if item.nodeid in self.before]
        config.hook.pytest_deselected(items=done)
        items[:] = [item for item in items if item.nodeid not in self.before]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:  # a file without what it needs
            self.skipped.add(report.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self.is_worker:
            return
        if report.failed:
            self.failed.add(report.nodeid)
            self._note(self.failures, report.nodeid)
        elif report.skipped:
            self.skipped.add(report.nodeid)
        elif report.when == "teardown" and report.nodeid not in self.failed | self.skipped:
            self.passed.add(report.nodeid)
            self._note(self.notes, report.nodeid)

    def _note(self, file: Path, nodeid: str) -> None:
        if self.commit is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("a", encoding="utf-8") as notes:
                notes.write(nodeid + "\n")

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if self.is_worker or self.commit is None or not self.passed:
            return
        if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
            session.exitstatus = exitstatus = pytest.ExitCode.OK  # all had passed before
        if exitstatus == pytest.ExitCode.OK and _state(self.root) == self.commit:
            day = time.strftime("%Y-%m-%d", time.gmtime())
            self.stamp = Stamp(
                self.commit, day, len(self.passed), len(self.skipped), len(self.failed_before & self.passed)
            )
            write_stamp(self.root, self.name, self.stamp)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.stamp:
            terminalreporter.write_line(f"commit {STAMPS}: {self.name} passed at {self.stamp.commit[:10]}")
        elif not self.is_worker:
            terminalreporter.write_line(
                f"{STAMPS} was not written: a test failed, none ran, or a file is or became modified or new"
            )


def _lines(file: Path) -> set[str]:
    """Return the lines of a file; none if it does not exist."""
    return set(file.read_text("utf-8").splitlines()) if file.exists() else set[str]()
