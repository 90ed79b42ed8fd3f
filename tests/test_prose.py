"""The check of docstrings and comments, `.ci/prose.py`, sees each kind of planted violation and passes good prose."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / ".ci" / "prose.py"

PLANTED = [
    ('"""What a module holds."""\n', (1, "docstring", "What a module holds.")),
    ('x = 1\n\n\nclass Queue:\n    """That which waits."""\n', (5, "docstring", "That which waits.")),
    ('def size() -> int:\n    """Of a queue."""\n    return 1\n', (2, "docstring", "Of a queue.")),
    (
        'async def size() -> int:\n    """\n    How many wait.\n    """\n    return 1\n',
        (2, "docstring", "How many wait."),
    ),
    (
        'class A:\n    def size(self) -> int:\n        """Whether it is full."""\n',
        (3, "docstring", "Whether it is full."),
    ),
    (
        'def cut(size: int) -> None:\n    """Cut it.\n\n    Args:\n        size: of a beat.\n    """\n',
        (5, "entry", "size: of a beat."),
    ),
    (
        'class A:\n    """Cut it.\n\n    Members:\n        a: Out(1). A.\n        b, c: Out(2). What is cut.\n    """\n',
        (6, "entry", "b, c: Out(2). What is cut."),
    ),
    ("LIMIT = 4  # of a beat, in bytes\n", (1, "constant", "of a beat, in bytes")),
    ("_LIMIT: int = 4  # from here to there\n", (1, "constant", "from here to there")),
    ("# That a burst must not cross,\n# in bytes.\nLIMIT = 4\n", (1, "constant", "That a burst must not cross,")),
    ("LIMITS = (\n    1,  # what is sent\n    2,\n)\n", (2, "constant", "what is sent")),
    ("x = 4  # which is enough\n", (1, "comment", "which is enough")),
    (
        "def cut() -> None:\n    # As it is full, nobody may enter.\n    pass\n",
        (2, "comment", "As it is full, nobody may enter."),
    ),
    ("x = 1  # (of a beat)\n", (1, "comment", "(of a beat)")),
]
GOOD = [
    '"""A queue, of which there are two."""\n',
    '"""``as`` is a word of the language."""\n',
    '"""Whatever is pushed comes out in order."""\n',
    'def cut(size: int, deep: bool) -> None:\n    """Cut it.\n\n    Args:\n        size: bytes of a beat.\n'
    "        deep: whether the cut is deep.\n\n    Returns:\n        the rest, of which\n        that is cut: of no use.\n"
    '    """\n',
    '"""Note this: of two, one wins.\n\nThe rule: of two, one wins.\n"""\n',
    "LIMIT = 4  # bytes of a beat\n",
    "# Bytes that no burst may cross,\n# that is, a page.\nLIMIT = 4\n",
    "limit = 4  # in bytes\n",
    'x = "# of a string"\n',
    "import os  # noqa: F401\n",
    "# -----\n#!what\n",
]


@pytest.fixture(scope="module")
def prose() -> ModuleType:
    spec = importlib.util.spec_from_file_location("prose", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("source", "expected"), PLANTED)
def test_planted_violations_are_reported(prose: ModuleType, source: str, expected: tuple[int, str, str]) -> None:
    assert prose.findings(source) == [expected]


@pytest.mark.parametrize("source", GOOD)
def test_good_prose_passes(prose: ModuleType, source: str) -> None:
    assert prose.findings(source) == []


def test_each_banned_opener_is_reported(prose: ModuleType) -> None:
    for word in ("What", "Of", "Whether", "Where", "Who", "Whose", "That", "Those", "Which", "How", "As"):
        assert [kind for _, kind, _ in prose.findings(f'"""{word} it is."""\n# {word} it is.\n')] == [
            "docstring",
            "comment",
        ]


def _run(*paths: Path | str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, SCRIPT, *paths], capture_output=True, text=True, check=False)


def test_a_planted_file_fails_the_command(tmp_path: Path) -> None:
    folder = tmp_path / "queues"
    folder.mkdir()
    (folder / "good.py").write_text('"""A queue."""\n')
    assert _run(folder).returncode == 0
    (folder / "bad.py").write_text('"""A queue."""\n\nLIMIT = 4  # of a beat. It is small.\n')
    run = _run(folder)
    assert run.returncode == 1
    assert run.stdout == f"{folder / 'bad.py'}:3: constant: of a beat.\n"


def test_a_path_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    run = _run(tmp_path / "absent")
    assert run.returncode == 2
    assert f"no such file or folder: {tmp_path / 'absent'}" in run.stderr


@pytest.mark.thorough
def test_the_folders_declared_clean_are_clean() -> None:
    run = _run()
    assert (run.returncode, run.stdout) == (0, "")
