"""A module is read in one go, and a function of the runtime at one glance: no one is longer than its limit.

A table, which is looked up and not read, may be longer.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.statements import statements

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("benchmarks", "boards", "edgedec", "hw", "quantize", "runtime", "sim")
MODULE, FUNCTION = 450, 90  # lines at most
# Modules that are tables, each with what it holds.
TABLES: Mapping[str, str] = {
    "quantize/demo_pair/words.py": "the words, phrases and facts of which the embedded model's text is made",
}


def too_long(lengths: Mapping[str, int], tables: Mapping[str, str]) -> list[str]:
    """Return a sentence for each module that is too long, and for each exception that is not needed.

    Args:
        lengths: lines of each module.
        tables: modules of any length.
    """
    sentences = [
        f"{path} has {lines} lines, and may have {MODULE}; divide it where a part has a purpose of its own"
        for path, lines in lengths.items()
        if path not in tables and lines > MODULE
    ]
    return sentences + [
        f"{path} needs no exception; take it off the list" for path in tables if lengths.get(path, 0) <= MODULE
    ]


def long_functions(source: str) -> list[str]:
    """Return the functions of a module that have more lines than they may, each with its lines, inner functions included."""
    return [
        f"{node.name} has {lines} lines"
        for node in statements(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := (node.end_lineno or 0) - node.lineno + 1) > FUNCTION
    ]


@functools.cache
def sources() -> dict[str, str]:
    """Return the source of each module of the project, by its path."""
    files = [file for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*.py"))]
    return {file.relative_to(ROOT).as_posix(): file.read_text("utf-8") for file in files}


def test_no_module_is_too_long() -> None:
    lengths = {path: len(source.splitlines()) for path, source in sources().items()}
    assert len(lengths) > 700
    assert too_long(lengths, TABLES) == []


def test_no_function_of_the_runtime_is_too_long() -> None:
    runtime = {path: source for path, source in sources().items() if path.startswith("runtime/")}
    assert len(runtime) > 200
    assert {path: found for path, source in runtime.items() if (found := long_functions(source))} == {}


@pytest.mark.parametrize(
    ("lengths", "tables", "sentences"),
    [
        ({"a.py": MODULE}, {}, []),
        ({"a.py": MODULE + 1}, {}, ["a.py has 451 lines, and may have 450"]),
        ({"a.py": 9000}, {"a.py": "words"}, []),
        ({"a.py": MODULE}, {"a.py": "words"}, ["a.py needs no exception"]),
        ({"b.py": 10}, {"a.py": "words"}, ["a.py needs no exception"]),
    ],
)
def test_planted_modules_are_measured(
    lengths: Mapping[str, int], tables: Mapping[str, str], sentences: list[str]
) -> None:
    found = too_long(lengths, tables)
    assert [sentence.partition(";")[0] for sentence in found] == sentences


@pytest.mark.parametrize(
    "head",
    [
        "def f():\n    ",
        "async def f():\n    ",
        "class A:\n    def f(self):\n        ",
        "def g():\n    def f():\n        ",
    ],
)
def test_planted_functions_are_measured(head: str) -> None:
    line = "pass\n" + head.rpartition("\n")[2]
    assert not [one for one in long_functions(head + line * (FUNCTION - 2) + "pass\n") if one.startswith("f ")]
    assert f"f has {FUNCTION + 1} lines" in long_functions(head + line * (FUNCTION - 1) + "pass\n")
