"""Stamps of the third ring: at which commit each of its parts passed last, and how far the code has gone on since.

Continuous integration does not run the third ring, which takes an hour and wants torch. Whoever changes what a part tests
runs ``make test-nightly`` or ``make test-compare`` on a committed tree and commits ``tests/stamps.json``, which the run
writes if all its tests pass. ``make test`` prints how many commits have touched a part's folders since, and its
test_stamps.py fails past ``Part.limit``.

A run can be killed and started again at the same commit: it leaves out what has passed, which it notes in
``build/rings/``. On a modified tree the tests run, and no stamp is written.
"""

from __future__ import annotations

import json
import subprocess
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

STAMPS = Path("tests/stamps.json")


@dataclass(frozen=True)
class Part:
    """A part of the third ring: the folders whose changes it is for, and how many commits to them may go without a run."""

    folders: tuple[str, ...]
    limit: int


PARTS = {
    "nightly": Part(("boards", "edgedec/reference/integer_profile", "hw", "runtime", "sim"), 60),
    "compare": Part(("edgedec/families", "edgedec/reference/float_profile", "quantize", "runtime/text"), 60),
}


@dataclass(frozen=True)
class Stamp:
    """A run in which no test of a part failed: commit, day (UTC), and how many tests passed and were skipped."""

    commit: str
    day: str
    passed: int
    skipped: int


class NoHistoryError(Exception):
    """The commits since a stamp cannot be counted here: no repository of git, or one without the whole history."""


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
    if _git(root, "rev-parse", "--show-prefix") != "":  # None without git, a folder in another repository
        raise NoHistoryError("this folder is not a clone of the repository")
    stamp = read_stamps(root).get(name)
    if stamp is None:
        raise ValueError(f"{STAMPS} has no stamp of {name}: run make test-{name}")
    if _git(root, "merge-base", "--is-ancestor", stamp.commit, "HEAD") is None:
        if _git(root, "rev-parse", "--is-shallow-repository") == "true":
            raise NoHistoryError("this clone is shallow")
        raise ValueError(f"{stamp.commit[:10]}, where {name} passed, is not in this history: run make test-{name}")
    count = _git(root, "rev-list", "--count", f"{stamp.commit}..HEAD", "--", *PARTS[name].folders)
    return int(count or "0")


def describe_ages(root: Path) -> str:
    """Return a line of all parts: "nightly passed 3 of at most 40 commits ago; compare ..."."""
    return "; ".join(_describe(root, name) for name in PARTS)


def _describe(root: Path, name: str) -> str:
    try:
        return f"{name} passed {age(root, name)} of at most {PARTS[name].limit} commits ago"
    except NoHistoryError as error:
        return f"{name}: {error}"
    except ValueError as error:
        return str(error)


def _git(root: Path, *arguments: str) -> str | None:
    """Return what git prints, or None if it fails or is not installed."""
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _state(root: Path) -> str | None:
    """Return the commit that is checked out, or None if a file of it is modified or there is no git."""
    if _git(root, "status", "--porcelain", "--untracked-files=no") != "":
        return None
    return _git(root, "rev-parse", "HEAD")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--stamp", choices=sorted(PARTS), help=f"run this part of the third ring and write {STAMPS}")


def pytest_configure(config: pytest.Config) -> None:
    name: str | None = config.getoption("--stamp")
    if name is None:
        config.pluginmanager.register(PlainRun())
        return
    is_part = config.option.markexpr or config.option.keyword or config.args != config.getini("testpaths")
    if is_part and not _is_worker(config):
        raise pytest.UsageError("--stamp runs a whole part of the third ring: leave out -m, -k and the names of files")
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
        self.commit = _state(self.root)
        self.notes = self.root / f"build/rings/{name}-{self.commit}.txt"
        self.passed = (
            set(self.notes.read_text("utf-8").splitlines()) if self.commit and self.notes.exists() else set[str]()
        )
        self.skipped, self.failed = set[str](), set[str]()
        self.stamp: Stamp | None = None

    def pytest_report_header(self) -> str:
        if self.commit is None:
            return f"{self.name}: the tree is modified, so this run writes no stamp"
        return f"{self.name} at {self.commit[:10]}: {len(self.passed)} tests passed in an earlier run, as {self.notes} says"

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        done = [item for item in items if item.nodeid in self.passed]
        config.hook.pytest_deselected(items=done)
        items[:] = [item for item in items if item.nodeid not in self.passed]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self.is_worker or self.commit is None:
            return
        if report.failed:
            self.failed.add(report.nodeid)
        elif report.skipped:
            self.skipped.add(report.nodeid)
        elif report.when == "teardown" and report.nodeid not in self.failed | self.skipped:
            self.passed.add(report.nodeid)
            self.notes.parent.mkdir(parents=True, exist_ok=True)
            with self.notes.open("a", encoding="utf-8") as file:
                file.write(report.nodeid + "\n")

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if self.is_worker or self.commit is None:
            return
        if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and self.passed:
            session.exitstatus = exitstatus = pytest.ExitCode.OK  # all had passed before
        if exitstatus == pytest.ExitCode.OK and _state(self.root) == self.commit:
            stamp = Stamp(self.commit, time.strftime("%Y-%m-%d", time.gmtime()), len(self.passed), len(self.skipped))
            write_stamp(self.root, self.name, stamp)
            self.stamp = stamp

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.stamp:
            terminalreporter.write_line(f"commit {STAMPS}: {self.name} passed at {self.stamp.commit[:10]}")
        elif not self.is_worker:
            terminalreporter.write_line(f"{STAMPS} was not written: a test failed, or the tree is or became modified")
