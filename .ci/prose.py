"""Check that docstrings and comments do not open with a word that makes a sentence a fragment.

Usage: ``.ci/prose.py [PATH ...]``. Each path is a Python file or a folder; without paths, the folders in ``CLEAN`` are
checked, which is what ``make lint`` does. Each finding is printed as ``file:line: kind: text``, and the exit status is 1
if there is any. Four kinds are reported:

- ``docstring``: the docstring of a module, class or function opens with a word of ``OPENERS``;
- ``entry``: so does the description of a parameter or member, ``name: description``, within a docstring;
- ``constant``: so does the comment of a constant of a module, on its line or above it, or it opens with a preposition;
- ``comment``: so does any other comment. Neighbouring lines of comment are one comment.

Write "Return the beats of a burst" for "Of a burst, the beats", and ``LIMIT = 4  # bytes of a beat`` for
``LIMIT = 4  # of a beat, in bytes``. To add a folder to the check, clear its findings and add its name to ``CLEAN``.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Files and folders, relative to the root, that have no findings and must stay so; one per line, in alphabetical order.
CLEAN = (
    ".ci",
    "benchmarks",
    "boards",
    "edgedec",
    "examples",
    "hw",
    "quantize",
    "runtime",
    "sim",
    "tests",
    "tests/attacks",
    "tests/boards",
    "tests/conformance",
    "tests/edgedec",
    "tests/hw",
    "tests/quantize",
    "tests/runtime",
    "tests/sim",
    "tests/test_prose.py",
)
OPENERS = frozenset(["what", "of", "whether", "where", "who", "whose", "that", "those", "which", "how", "as"])
# Openers of the comment of a constant, which is a noun phrase with a unit.
PREPOSITIONS = frozenset(
    ["at", "behind", "between", "beyond", "by", "for", "from", "in", "into", "on", "than", "to", "up", "with"]
)
# The description of a flag may open with "whether".
ENTRY_OPENERS = OPENERS - {"whether"}

_SECTION = re.compile(r"(Args|Attributes|Fields|Members|Parameters|Returns|Yields):$")
_ENTRY = re.compile(
    r"`*[\w*][\w*.`]*(?: ?(?:,|/|and|\.\.) [\w*.`]+)*(?: \([^)]*\))?: +(?:(?:In|Out)\([^)]*\)[.,]? +)?(.*)"
)
_WORD = re.compile(r"\(*([A-Za-z]+)(?![\w`-])")
_CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]*")
# Comments for tools, and lines without words.
_DIRECTIVE = re.compile(r"!|\s*(noqa|type:|mypy:|ruff:|fmt:|pragma)|\W*$")

Finding = tuple[int, str, str]  # line, kind, text


def main() -> int:
    """Print the findings of the files named on the command line and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path, metavar="PATH", help="Python file or folder; default: CLEAN")
    paths = parser.parse_args().paths or [ROOT / name for name in CLEAN]
    missing = [str(path) for path in paths if not path.exists()]
    if missing:
        parser.error(f"no such file or folder: {', '.join(missing)}")
    count = 0
    for path in _files(paths):
        for line, kind, text in findings(path.read_text(encoding="utf-8")):
            print(f"{_shown(path)}:{line}: {kind}: {_sentence(text)}")
            count += 1
    if count:
        print(f"{count} openings to write anew; see .ci/prose.py --help", file=sys.stderr)
    return 1 if count else 0


def findings(source: str) -> list[Finding]:
    """Return the openings that break the rules in ``source``, the text of a Python file, ordered by line."""
    tree = ast.parse(source)
    return sorted([*_docstrings(tree), *_comments(source, _constants(tree))])


def _docstrings(tree: ast.Module) -> Iterator[Finding]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        text = ast.get_docstring(node)
        if not text:
            continue
        first = node.body[0].lineno
        if _opener(text) in OPENERS:
            yield first, "docstring", text
        in_section = False
        for offset, line in enumerate(text.splitlines()):
            in_section = _SECTION.match(line.strip()) is not None or (in_section and line.strip() != "")
            match = _ENTRY.match(line.strip())
            if in_section and match and _opener(match[1]) in ENTRY_OPENERS:
                yield first + offset, "entry", line.strip()


def _constants(tree: ast.Module) -> set[int]:
    """Return the lines on which constants of the module are assigned."""
    lines: set[int] = set()
    for node in tree.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        names = [name for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
        if names and all(_CONSTANT.fullmatch(name.id) for name in names):
            lines |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return lines


def _comments(source: str, constants: set[int]) -> Iterator[Finding]:
    lines = source.splitlines()
    previous = -1  # line of the preceding comment, if it stands alone on its line
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        line, text = token.start[0], token.string[1:].strip()
        alone = not token.line[: token.start[1]].strip()
        continues = alone and line == previous + 1
        previous = line if alone else -1
        if continues or _DIRECTIVE.match(token.string[1:]):
            continue
        end = line  # last line of the block of comment
        while alone and end < len(lines) and lines[end].lstrip().startswith("#"):
            end += 1
        of_constant = (end + 1 if alone else line) in constants
        if _opener(text) in (OPENERS | PREPOSITIONS if of_constant else OPENERS):
            yield line, "constant" if of_constant else "comment", text


def _opener(text: str) -> str:
    match = _WORD.match(text)
    return match[1].lower() if match else ""


def _sentence(text: str) -> str:
    sentence = re.split(r"(?<=[.])\s", " ".join(text.split()), maxsplit=1)[0]
    return sentence if len(sentence) <= 120 else sentence[:117] + "..."


def _files(paths: list[Path]) -> Iterator[Path]:
    for path in paths:
        yield from sorted(path.rglob("*.py")) if path.is_dir() else [path]


def _shown(path: Path) -> str:
    full = path.resolve()
    return str(full.relative_to(ROOT) if full.is_relative_to(ROOT) else path)


if __name__ == "__main__":
    sys.exit(main())
