"""Check the documentation: every page is in the index, every link resolves, and nothing outside is cited."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
PROSE = [*PAGES, *sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("examples/*.md"))]
FOLDERS = (".ci", "benchmarks", "boards", "docs", "edgedec", "examples", "hw", "quantize", "runtime", "sim", "tests")
SUFFIXES = frozenset([".cpp", ".hpp", ".md", ".py", ".sh", ".tcl", ".toml", ".txt", ".v", ""])
SOURCES = [
    path
    for path in (*ROOT.iterdir(), *(file for folder in FOLDERS for file in (ROOT / folder).rglob("*")))
    if path.is_file() and path.suffix in SUFFIXES and not path.name.startswith(".") and path != Path(__file__).resolve()
]

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
# patterns of documents beside the repository, and of numbers of issues, which a reader of the repository cannot look up
DOCUMENT = re.compile(r"\b(?:DESIGN|FACTS|FACTS-2|HOUSE|SPINE|STYLE)\b")
ISSUE = re.compile(r"\b[Ii]ssues? #?\d+\b")
SECTION = re.compile(r'(docs/[a-z][a-z\d/-]*\.md), +("[^"]+"(?:(?:,| and|, and) +"[^"]+")*)')
BOLD = re.compile(r"^\*\*([^*\n]+?)\.?\*\*", re.M)
HEADING = re.compile(r"^#{1,6} +(.+)$", re.M)
DIARY = re.compile(r"\b(?:[Mm]easured|[Mm]easurements|[Bb]enchmarks|[Rr]esults)\b")
PROGRAM = re.compile(r"python -m (?:benchmarks|tests)\.|\b(?:benchmarks|tests)/[\w/]+\.py\b|benchmarks\.\w+\.\w+")
PAGE = re.compile(r"(?<![\w/])docs/(?:[a-z][a-z\d/-]*|README)\.(?:md|svg|png)\b")


def without_code(text: str) -> str:
    """Return a page's text without its blocks and spans of code, in which brackets are no links."""
    lines, fenced = [], False
    for line in text.splitlines():
        fenced ^= line.lstrip().startswith("```")
        if not fenced and not line.startswith("    "):
            lines.append(re.sub(r"`[^`]*`", "", line))
    return "\n".join(lines)


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, made as GitHub makes them."""
    names: set[str] = set()
    for line in page.read_text("utf-8").splitlines():
        if heading := re.fullmatch(r"#{1,6} +(.*?)", line):
            words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1])
            name = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
            names.add(
                name if name not in names else next(f"{name}-{n}" for n in range(1, 99) if f"{name}-{n}" not in names)
            )
    return names


def links(page: Path) -> list[str]:
    """Return the targets of the links of a page, but for those that lead out of the repository."""
    targets = (match[1] for match in LINK.finditer(without_code(page.read_text("utf-8"))))
    return [target for target in targets if not re.match(r"[a-z]+:", target)]


def broken(page: Path) -> list[str]:
    """Return the links of a page that lead to no file, or to no heading of one."""
    faults = []
    for target in links(page):
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            faults.append(target)
    return faults


def not_once(index: Path, pages: list[Path]) -> list[str]:
    """Return the pages that an index does not link exactly once, however the pages of the index are anchored."""
    targets = [(index.parent / target.partition("#")[0]).resolve() for target in links(index)]
    return [page.name for page in pages if targets.count(page.resolve()) != 1]


def lost_sections(text: str, root: Path) -> list[str]:
    """Return the titles that a text cites of a page, as in ``docs/devices.md, "pynq"``, and that the page does not have.

    A title is a heading, or the words in bold at the beginning of a paragraph.
    """
    faults = []
    for page, titles in SECTION.findall(re.sub(r"\n *(?:#|//)?[ *]*", " ", text)):
        path = root / page
        there = path.read_text("utf-8") if path.is_file() else ""
        headings = [*HEADING.findall(there), *BOLD.findall(there)]
        faults += [f"{page}: {title}" for title in re.findall(r'"([^"]+)"', titles) if title not in headings]
    return faults


def prose(path: Path, text: str) -> str:
    """Return what a reader reads of a file: the comments and docstrings of Python, all of another file."""
    if path.suffix != ".py":
        return text
    comments = [
        token.string for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.type == tokenize.COMMENT
    ]
    nodes = (
        node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
    )
    return "\n".join([*comments, *(ast.get_docstring(node) or "" for node in nodes)])


def citations(path: Path, text: str) -> Iterator[str]:
    """Yield each citation of a document or an issue that is not in the repository, and each page that does not exist."""
    yield from (match[0] for match in ISSUE.finditer(text))
    if DOCUMENT.search(text):
        without_identifiers = re.sub(r"`[^`]*`", "", prose(path, text))
        yield from (match[0] for match in DOCUMENT.finditer(without_identifiers))
    yield from (match[0] for match in PAGE.finditer(text) if not (ROOT / match[0]).is_file())


def orphans(docs: Path) -> list[str]:
    """Return the reports to which no page but the index leads, or that name no program which measures."""
    pages = [page for page in docs.glob("*.md") if page.name != "README.md"]
    linked = {(page.parent / target.partition("#")[0]).resolve() for page in pages for target in links(page)}
    reports = sorted((docs / "reports").glob("*.md"))
    faults = [f"{report.name}: no page leads to it" for report in reports if report.resolve() not in linked]
    return faults + [
        f"{report.name}: names no program" for report in reports if not PROGRAM.search(report.read_text("utf-8"))
    ]


def diaries(docs: Path) -> list[str]:
    """Return the sections of the reference that are meant for a report: their headings say that they are measurements."""
    pages = sorted(docs.glob("*.md"))  # reports lie a folder deeper
    headings = ((page.name, heading) for page in pages for heading in HEADING.findall(page.read_text("utf-8")))
    return [f"{page}: {heading}" for page, heading in headings if DIARY.search(heading)]


@pytest.mark.parametrize("page", PROSE, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_resolve(page: Path) -> None:
    assert broken(page) == []


def test_the_index_links_every_page_once() -> None:
    index = DOCS / "README.md"
    assert len(PAGES) > 20
    assert not_once(index, [page for page in PAGES if page != index]) == []


def test_reports_are_led_to_and_name_their_program() -> None:
    assert len(list((DOCS / "reports").glob("*.md"))) > 10
    assert orphans(DOCS) == []


def test_the_reference_has_no_section_of_measurements() -> None:
    assert diaries(DOCS) == []


def test_nothing_outside_the_repository_is_cited() -> None:
    assert len(SOURCES) > 500
    cited = {}
    for path in SOURCES:
        if names := list(citations(path, path.read_text("utf-8", errors="replace"))):
            cited[path.relative_to(ROOT).as_posix()] = names
    assert cited == {}


def test_cited_sections_exist() -> None:
    lost = {}
    for path in SOURCES:
        text = path.read_text("utf-8", errors="replace")
        if "docs/" in text and (titles := lost_sections(text, ROOT)):
            lost[path.relative_to(ROOT).as_posix()] = titles
    assert lost == {}


# The checks see what they are for.

PLANTED = [
    ("a.py", '"""Charged is what DESIGN 1.3 says."""\n', ["DESIGN"]),
    ("a.py", 'def cut() -> None:\n    """Cut it (FACTS section 7)."""\n', ["FACTS"]),
    ("a.py", "LIMIT = 4  # HOUSE.md has the reason\n", ["HOUSE"]),
    ("a.py", 'SOURCE = "issue 7"\n', ["issue 7"]),
    ("a.py", "# docs/no-such-page.md says more\n", ["docs/no-such-page.md"]),
    ("a.cpp", "// see SPINE, and Issue #12\n", ["Issue #12", "SPINE"]),
    ("a.md", "DESIGN has it as the baseline.\n", ["DESIGN"]),
    ("a.py", 'FACTS = "facts.json"\nSTYLE = DESIGN = "-O1"  # docs/README.md\n', []),
    ("a.md", "The list `FACTS` is read, issue by issue.\n", []),
]


@pytest.mark.parametrize(("name", "text", "expected"), PLANTED)
def test_planted_citations_are_found(name: str, text: str, expected: list[str]) -> None:
    assert list(citations(Path(name), text)) == expected


def test_planted_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "b.md").write_text("# The `b` page: [all](a.md)\n\n## Twice\n\n## Twice\n\n## A_b-c, d/e\n")
    page = tmp_path / "a.md"
    page.write_text(
        "# A\n[1](b.md) [2](b.md#the-b-page-all) [3](b.md#twice-1) [4](b.md#a_b-c-de) [5](#a) [6](https://example.org/x)\n"
        "[7](no.md) [8](b.md#three) [9](#b) `[10](no.md)`\n\n    [11](no.md)\n\n```\n[12](no.md)\n```\n"
    )
    assert broken(page) == ["no.md", "b.md#three", "#b"]
    assert not_once(page, [tmp_path / "b.md", page]) == ["b.md", "a.md"]
    page.write_text("[1](b.md#twice)\n")
    assert not_once(page, [tmp_path / "b.md"]) == []


def test_planted_diaries_and_orphans_are_found(tmp_path: Path) -> None:
    (tmp_path / "reports").mkdir()
    (tmp_path / "README.md").write_text("[a](reports/a.md) [b](reports/b.md)\n")
    (tmp_path / "a.md").write_text(
        "# A\n[1](reports/a.md#x)\n\n## Speed\n\nIt was measured.\n\n### Measured with AVX2\n"
    )
    (tmp_path / "reports" / "a.md").write_text("# X\n\n    python -m benchmarks.cpu.decode\n\n## Measured\n")
    (tmp_path / "reports" / "b.md").write_text("# B\n\nIt took 3 s.\n")
    assert diaries(tmp_path) == ["a.md: Measured with AVX2"]
    assert orphans(tmp_path) == ["b.md: no page leads to it", "b.md: names no program"]


def test_planted_sections_are_found(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text("# A page\n\n## The part\n\n**Bits, bytes.** They.\n")
    text = 'See docs/a.md, "The part" and "Bits, bytes".\n    # It is in docs/a.md, "The\n    # part" and "No part".\n'
    assert lost_sections(text, tmp_path) == ["docs/a.md: No part"]
    assert lost_sections('// docs/b.md, "The part"; docs/a.md ("bits")', tmp_path) == ["docs/b.md: The part"]
