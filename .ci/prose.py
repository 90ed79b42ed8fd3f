"""Check that docstrings, comments and pages have no fragments and no inverted sentences, as far as openings tell.

Usage: ``.ci/prose.py [PATH ...]``. Each path is a folder, or a file in Python, in a language with ``//`` comments (C++,
JavaScript, WGSL) or in Markdown; without paths, the folders in ``CLEAN`` are checked, which is what ``make lint`` does. Each
finding is printed as ``file:line: kind: text``, and the exit status is 1 if there is any. Five kinds are reported:

- ``docstring``: the docstring of a module, class or function opens with a word of ``OPENERS``;
- ``entry``: so does the description of a parameter or member, ``name: description``, within a docstring;
- ``constant``: so does the comment of a constant of a module, on its line or above it, or it opens with a preposition;
- ``comment``: so does any other comment. Neighbouring lines of comment are one comment;
- ``sentence``: any sentence of them or of a page is inverted, has no verb of its own, leaves out what is not (the rules
  ``_SENTENCES`` have examples), or, on a page, opens with a relative word.

Write "Return the beats of a burst" for "Of a burst, the beats", and ``LIMIT = 4  # bytes of a beat`` for
``LIMIT = 4  # of a beat, in bytes``. To add a folder to the check, clear its findings and add its name to ``CLEAN``.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Files and folders, relative to the root, that have no findings and must stay so; one per line, in alphabetical order, and
# none within another, which would be read twice.
CLEAN = (
    ".ci",
    "CONTRIBUTING.md",
    "README.md",
    "benchmarks",
    "boards",
    "docs",
    "edgedec",
    "examples",
    "hw",
    "quantize",
    "runtime",
    "sim",
    "tests",
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
# Strings of Python, in which a # begins no comment, and comments.
_QUOTED_OR_COMMENT = re.compile(
    r"""('{3}|"{3})(?:\\.|[^\\])*?\1|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|#[^\n]*""", re.DOTALL
)
# Comments for tools, and lines without words.
_DIRECTIVE = re.compile(r"!|\s*(noqa|type:|mypy:|ruff:|fmt:|pragma)|\W*$")

SLASHES = frozenset([".cjs", ".cpp", ".hpp", ".js", ".wgsl"])  # names of files with // comments
SUFFIXES = SLASHES | {".md", ".py"}
VENDORS = frozenset(["node_modules", "vendor"])  # folders with the text of others
_STRING = re.compile(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|`(?:\\.|[^`\\])*`')
_SLASH = re.compile(r"(?:^|(?<=\s))//+!?")
# Constants of C++, and of a module in JavaScript.
_SLASH_CONSTANT = re.compile(r"\s*(?:(?:inline|static) )*constexpr\b|(?:export )?const [A-Z][A-Z0-9_]*\b")

_ENDS = re.compile(r"(?<=[.?!])\W*\s+(?=[\W\d]*[A-Z])")  # blanks between two sentences
_SENTENCES = (
    # "Charged is what the model adds." Words in -eed are mostly nouns.
    re.compile(r"(?:Not |Never )?(?i:(?!(?:embed|hundred|shed)\b)[a-z]+[^\We]ed) (?:is|are|was|were)\b"),
    # "Of a bundle only the head runs." A part of several may open so: "Of ten guesses, nine are right."
    re.compile(r"Of (?:a(?! (?:dozen|hundred|thousand)\b)|an|each|its|what)\b"),
    # "What others in the group use is."
    re.compile(r"What (?!.*\b(?:as|how|it|than|that|there|they|this|what|where|which|who)\b).* (?:is|are|was|were)\.$"),
    # "The others are ONNX Runtime's and have not" is how such a sentence ends.
    re.compile(r".*\b(?:and|but|or) (?:are|can|do|does|did|had|has|have|is|may|must|was|were|will) not[.;]"),
)
# Openers of a sentence on a page, unless it is a question or a heading in bold.
_RELATIVE = re.compile(r"(?:How|Whether|Who|Whose)\b.*\.$")

Finding = tuple[int, str, str]  # line, kind, text

_Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
# Members of nodes that hold statements, or what holds them.
_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")


def main() -> int:
    """Print the findings of the files named on the command line and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path, metavar="PATH", help="file or folder; default: CLEAN")
    paths = parser.parse_args().paths or [ROOT / name for name in CLEAN]
    missing = [str(path) for path in paths if not path.exists()]
    if missing:
        parser.error(f"no such file or folder: {', '.join(missing)}")
    count = 0
    for path in _files(paths):
        for line, kind, text in findings(path.read_text(encoding="utf-8"), path.suffix):
            print(f"{_shown(path)}:{line}: {kind}: {_sentence(text)}")
            count += 1
    if count:
        print(f"{count} openings to write anew; see .ci/prose.py --help", file=sys.stderr)
    return 1 if count else 0


def findings(source: str, suffix: str = ".py") -> list[Finding]:
    """Return the openings that break the rules in ``source``, the text of a file of this suffix, ordered by line."""
    if suffix == ".md":
        return sorted(_page(source))
    if suffix in SLASHES:
        return sorted(_slash_comments(source))
    tree = ast.parse(source)
    return sorted([*_docstrings(tree), *_comments(source, _constants(tree))])


def _docstrings(tree: ast.Module) -> Iterator[Finding]:
    for node in _documented(tree):
        text = ast.get_docstring(node)
        if not text:
            continue
        first = node.body[0].lineno
        paragraphs = re.split(r"\n\s*\n", text)
        if _opener(text) in OPENERS:
            yield first, "docstring", text
            paragraphs[0] = _rest(paragraphs[0])
        in_section = False
        for offset, line in enumerate(text.splitlines()):
            in_section = _SECTION.match(line.strip()) is not None or (in_section and line.strip() != "")
            match = _ENTRY.match(line.strip())
            if in_section and match and _opener(match[1]) in ENTRY_OPENERS:
                yield first + offset, "entry", line.strip()
        for paragraph in paragraphs:
            yield from ((first, "sentence", one) for one in _wrong_sentences(" ".join(paragraph.split())))


def _documented(tree: ast.Module) -> Iterator[_Documented]:
    """Yield what may have a docstring: the module, and its classes and functions in whatever block they are.

    Expressions hold none, and are most of a tree.
    """
    pending: list[ast.AST] = [tree]
    for node in pending:  # the list grows meanwhile
        if isinstance(node, _Documented):
            yield node
        for name in _BLOCKS:
            pending += getattr(node, name, ())


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
    for line, alone, comment in _comment_tokens(source):
        text = comment[1:].strip()
        continues = alone and line == previous + 1
        previous = line if alone else -1
        if continues or _DIRECTIVE.match(comment[1:]):
            continue
        end = line  # last line of the block of comment
        while alone and end < len(lines) and lines[end].lstrip().startswith("#"):
            end += 1
        of_constant = (end + 1 if alone else line) in constants
        whole = " ".join([text, *(each.strip()[1:].strip() for each in lines[line:end] if alone)])
        if _opener(text) in (OPENERS | PREPOSITIONS if of_constant else OPENERS):
            yield line, "constant" if of_constant else "comment", text
            whole = _rest(whole)
        yield from ((line, "sentence", one) for one in _wrong_sentences(whole))


def _comment_tokens(source: str) -> Iterator[tuple[int, bool, str]]:
    """Yield each comment of a Python file as its line, True if it stands alone there, and its text from the # on."""
    line, passed = 1, 0
    for token in _QUOTED_OR_COMMENT.finditer(source):
        if token[0][0] == "#":
            line, passed = line + source.count("\n", passed, token.start()), token.start()
            yield line, not source[source.rfind("\n", 0, passed) + 1 : passed].strip(), token[0]


def _slash_comments(source: str) -> Iterator[Finding]:
    comments: list[tuple[int, bool, str]] = []  # line, True if the comment is about a constant, text
    lines, previous = source.splitlines(), -1
    for line, code in enumerate(lines, start=1):
        # Strings become blanks of their length, and so do the marks that separate digits.
        plain = _STRING.sub(lambda match: "_" * len(match[0]), re.sub(r"(?<=\d)'(?=\d)", "_", code))
        if not (match := _SLASH.search(plain)):
            continue
        alone, text = not code[: match.start()].strip(), code[match.end() :].strip()
        if alone and line == previous + 1:
            first, _, before = comments.pop()
            text = f"{before} {text}"
        else:
            first = line
        subject = lines[line] if alone and line < len(lines) else code
        comments.append((first, _SLASH_CONSTANT.match(subject) is not None, text))
        previous = line if alone else -1
    for line, is_constant, text in comments:
        if _opener(text) in (OPENERS | PREPOSITIONS if is_constant else OPENERS):
            yield line, "constant" if is_constant else "comment", text
        yield from ((line, "sentence", one) for one in _wrong_sentences(text))


def _page(source: str) -> Iterator[Finding]:
    for line, text in _paragraphs(source):
        plain = text.replace("**", "")
        wrong = [one for one in _ENDS.split(plain) if _RELATIVE.match(one)]
        yield from ((line, "sentence", one) for one in [*_wrong_sentences(plain), *wrong])


def _paragraphs(source: str) -> Iterator[tuple[int, str]]:
    """Yield the paragraphs, items and cells of a page with their first lines, without headings and code."""
    fenced, first, words = False, 0, list[str]()
    for line, raw in enumerate([*source.splitlines(), ""], start=1):
        fence = raw.lstrip().startswith("```")
        fenced ^= fence
        text = "" if fence or fenced or (raw.startswith("    ") and not words) else raw.strip()
        item = re.match(r"(?:\d+\.|[-*]) +", text)
        if words and (not text or item or text[0] in "#|<"):
            yield first, " ".join(words)
            words = []
        if text.startswith("|"):
            yield from ((line, cell.strip()) for cell in re.split(r"(?<!\\)\|", text))
        elif text and text[0] not in "#<":
            first = first if words else line
            words.append(text[item.end() :] if item else text)


def _wrong_sentences(text: str) -> list[str]:
    return [one for one in _ENDS.split(text) if any(rule.match(one) for rule in _SENTENCES)]


def _rest(text: str) -> str:
    """Return a text without its first sentence."""
    return "".join(_ENDS.split(" ".join(text.split()), maxsplit=1)[1:])


def _opener(text: str) -> str:
    match = _WORD.match(text)
    return match[1].lower() if match else ""


def _sentence(text: str) -> str:
    sentence = re.split(r"(?<=[.])\s", " ".join(text.split()), maxsplit=1)[0]
    return sentence if len(sentence) <= 120 else sentence[:117] + "..."


def _files(paths: list[Path]) -> Iterator[Path]:
    for path in paths:
        inner = sorted(file for file in path.rglob("*") if file.suffix in SUFFIXES) if path.is_dir() else [path]
        yield from (file for file in inner if not VENDORS.intersection(file.parts))


def _shown(path: Path) -> str:
    full = path.resolve()
    return str(full.relative_to(ROOT) if full.is_relative_to(ROOT) else path)


if __name__ == "__main__":
    sys.exit(main())
