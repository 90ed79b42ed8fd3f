"""The check of docstrings, comments and pages, `.ci/prose.py`, sees each planted violation and passes good prose."""

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
    ("# It is full.\n# Of a beat one\n# byte is left.\nx = 1\n", (1, "sentence", "Of a beat one byte is left.")),
    ("x = 1  # Of a beat one byte is left. It waits.\n", (1, "comment", "Of a beat one byte is left. It waits.")),
    ('"""Cut it.\n\nCharged is what\nit adds.\n"""\n', (1, "sentence", "Charged is what it adds.")),
    ('text = """it is # one\'s"""  # of two\n', (1, "comment", "of two")),
    (
        "try:\n    pass\nexcept OSError:\n    match 1:\n        case 1:\n            def cut() -> None:\n"
        '                """What is cut."""\n',
        (7, "docstring", "What is cut."),
    ),
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
    "x = r'\\'# of a string'\n",
    "x = f'{y}\\\n# of a string'\n",
    'x = """\n# of a string\n"""\n',
    "import os  # noqa: F401\n",
    "# -----\n#!what\n",
]

PLANTED_COMMENTS = [
    ("int64_t beats = 4;  // of a burst\n", (1, "comment", "of a burst")),
    (
        "// What a bank waits for,\n// in clocks.\nstruct Wait {};\n",
        (1, "comment", "What a bank waits for, in clocks."),
    ),
    ("constexpr int kBeats = 4;  // in a burst\n", (1, "constant", "in a burst")),
    ("    static constexpr int64_t kMost = 1'024;  // of one's beats\n", (1, "constant", "of one's beats")),
    ("// By columns: a strip.\nconstexpr int kStrip = 4;\n", (1, "constant", "By columns: a strip.")),
    ("export const MOST_BYTES = 4; // for a file\n", (1, "constant", "for a file")),
    ('x = "// of it"; // that is left\n', (1, "comment", "that is left")),
    ("y = '// of it' + `// of that`;\n// How it is left.\n", (2, "comment", "How it is left.")),
    ("x; // one\n// of two\n", (2, "comment", "of two")),
    ("// It is full. Refused are the others.\n", (1, "sentence", "Refused are the others.")),
    ("#each_row let total_ROW = 0.0;\nlet all = 0.0;  // of each row\n", (2, "comment", "of each row")),
]
GOOD_COMMENTS = [
    "int64_t beats = 4;  // beats of a burst\n// The bank waits,\n// of which there are two.\n",
    "const place = (at) => at; // in the text\nfor (;;) {  // in bytes\n}\n",
    'x = "a // of it";\ny = "https://of.example";  // address\n',
    "constexpr int kBeats = 4;  // beats of a burst\n#if X  // true on Arm\n",
    "#each_row let at_ROW = first;  // place of a row\n",
]
PLANTED_PAGES = [
    "Charged is what the model adds.",
    "They are read. Not supported are experts.",
    "**Refused are** all others, by name.",
    "Of a bundle only the head runs.",
    "Others are not part of it. What others in the group use is.",
    "The wide ones are ONNX Runtime's and have not.",
    "Who comes from Ollama finds the options.",
    "How tokens are chosen. A value may be wrong.",
    "Whether it fits, and if not, why.",
]
GOOD_PAGES = [
    "Of ten guesses, nine are right. Of a hundred, ninety are. Of the two, the first wins.",
    "What it costs depends on where it is. What a file says is used. What is that?",
    "Speed is measured. It was refused as others are.",
    "The others do not, and llama.cpp does not. How is it done? It is how it is done.",
    "A page:\n\n    Charged is what the model adds.\n\n```\nCharged is what the model adds.\n```\n\n# How it is done.\n",
    "| `Charged is` | how many there are | whether it fits |\n|---|---|---|\n",
    '"How about a pizza?" she said.',
    "[Which models run where](families.md) lists them. That is all, as is said.",
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


@pytest.mark.parametrize(("source", "expected"), PLANTED_COMMENTS)
def test_planted_comments_of_other_languages_are_reported(
    prose: ModuleType, source: str, expected: tuple[int, str, str]
) -> None:
    for suffix in (".cpp", ".hpp", ".js", ".wgsl"):
        assert prose.findings(source, suffix) == [expected]


@pytest.mark.parametrize("source", GOOD_COMMENTS)
def test_good_comments_of_other_languages_pass(prose: ModuleType, source: str) -> None:
    assert prose.findings(source, ".cpp") == prose.findings(source, ".js") == prose.findings(source, ".wgsl") == []


@pytest.mark.parametrize("text", PLANTED_PAGES)
def test_planted_sentences_of_pages_are_reported(prose: ModuleType, text: str) -> None:
    page = f"# A page\n\nIt is good.\n\n{text}\n\n1. {text.replace('. ', '.' + chr(10) + '   ')}\n\n| a | {text} |\n"
    assert [(line, kind) for line, kind, _ in prose.findings(page, ".md")] == [
        (line, "sentence") for line in (5, 7, 9 + text.count(". "))
    ]


@pytest.mark.parametrize("text", GOOD_PAGES)
def test_good_pages_pass(prose: ModuleType, text: str) -> None:
    assert prose.findings(text, ".md") == []


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
    (folder / "bad.md").write_text("# A queue\n\nCharged is a beat. It is small.\n")
    (folder / "bad.hpp").write_text("int x;  // of a beat\n")
    (folder / "vendor").mkdir()
    (folder / "vendor" / "theirs.hpp").write_text("int x;  // of a beat\n")
    run = _run(folder)
    assert run.returncode == 1
    assert run.stdout.splitlines() == [
        f"{folder / 'bad.hpp'}:1: comment: of a beat",
        f"{folder / 'bad.md'}:3: sentence: Charged is a beat.",
        f"{folder / 'bad.py'}:3: constant: of a beat.",
    ]


def test_a_path_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    run = _run(tmp_path / "absent")
    assert run.returncode == 2
    assert f"no such file or folder: {tmp_path / 'absent'}" in run.stderr
