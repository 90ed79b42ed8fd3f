"""Write figures into the pages between marks, so that a command writes them and a test compares them.

A block of a page begins with a line ``<!-- figures: NAME -->`` and ends with a line ``<!-- end -->``. The first word of the
name is its owner, the benchmark that writes it: ``OWNERS`` names the command. A block may stand in several pages.

    tables = {"accelerator kv260": markdown_table(header, rows), ...}
    write_blocks(tables)                     # replace the contents of all blocks of these names
    assert not outdated_blocks(tables)       # in a test
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from edgedec.errors import UsageError

__all__ = [
    "OWNERS",
    "block_names",
    "blocks",
    "markdown_table",
    "outdated_blocks",
    "pages",
    "run_tables",
    "write_blocks",
]

# First word of a block's name, and the command that writes the owner's blocks.
OWNERS: Mapping[str, str] = {
    "accelerator": "-m benchmarks.accelerator.speed --write-docs",
    "mutation": "-m tests.mutation.campaign --plan --write-docs",
    "estimate": "-m benchmarks.accelerator.resources --write-docs",
    "timing": "-m benchmarks.accelerator.timing --write-docs",
    "coverage": "-m benchmarks.accelerator.coverage --write-docs",
    "speculation": "-m benchmarks.accelerator.speculation --write-docs",
    "memory": "-m benchmarks.accelerator.memory_model --write-docs",
    "options": "-m benchmarks.accelerator.options --write-docs",
    "users": "-m benchmarks.accelerator.device_users --write-docs",
    "law": "-m benchmarks.speculation.draft_law --write-docs",
    "sizes": "-m benchmarks.memory.sizes --write-docs",
    "builds": "-m benchmarks.accelerator.builds --write-docs",
    "drafters": "-m benchmarks.speculation.estimates --write-docs",
    "ternary-head": "-m benchmarks.quality.ternary_head --write-docs",
    "kv": "-m benchmarks.quality.kv_rows --write-docs",
}

_ROOT = Path(__file__).resolve().parents[2]
_BLOCK = re.compile(
    r"(?P<begin>^<!-- figures: (?P<name>[^>\n]+?) -->\n)(?P<body>.*?)(?P<end>^<!-- end -->$)", re.M | re.S
)
_MARK = re.compile(r"^<!-- (?:figures: .*|end) -->$", re.M)


def pages(root: Path = _ROOT) -> list[Path]:
    """Return the pages that may have blocks: README.md, and all of docs/."""
    return [root / "README.md", *sorted((root / "docs").rglob("*.md"))]


def blocks(text: str) -> dict[str, str]:
    """Return the contents of a page's blocks by name, without the last line break.

    Raises:
        UsageError: a mark has no partner, or two blocks of the page have the same name.
    """
    found = [(match["name"], match["body"].removesuffix("\n")) for match in _BLOCK.finditer(text)]
    if 2 * len(found) != len(_MARK.findall(text)):
        raise UsageError("each <!-- figures: NAME --> must be followed by its own <!-- end -->")
    if len(dict(found)) < len(found):
        raise UsageError(f"a page has a block twice: {sorted(name for name, _ in found)}")
    return dict(found)


def block_names(root: Path = _ROOT) -> dict[str, list[Path]]:
    """Return the pages of each block by its name."""
    names: dict[str, list[Path]] = {}
    for path, name, _ in _all_blocks(root):
        names.setdefault(name, []).append(path)
    return names


def write_blocks(contents: Mapping[str, str], root: Path = _ROOT) -> list[Path]:
    """Replace the contents of all blocks with these names. Return the pages that changed.

    Raises:
        UsageError: no page has a block of one of the names.
    """
    if missing := sorted(contents.keys() - block_names(root).keys()):
        raise UsageError(f"no page has a block for {', '.join(missing)}")
    changed = []
    for path in pages(root):
        before = path.read_text("utf-8")
        after = _BLOCK.sub(lambda match: _replaced(match, contents), before)
        if after != before:
            path.write_text(after, "utf-8")
            changed.append(path)
    return changed


def run_tables(tables: Mapping[str, Callable[[], str]], description: str | None) -> None:
    """Run the command line of a benchmark that computes tables: print them, and write them with --write-docs.

    Args:
        tables: name of each block -> function of its table.
        description: the docstring of the benchmark.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write-docs", action="store_true", help="write the tables into the pages that have them")
    options = parser.parse_args()
    contents = {name: table() for name, table in tables.items()}
    if options.write_docs:
        write_blocks(contents)
    print("\n\n".join(contents.values()))


def outdated_blocks(contents: Mapping[str, str], root: Path = _ROOT) -> list[str]:
    """Return "PAGE: NAME" for each block whose contents differ from these, and each of these names without a block."""
    found = list(_all_blocks(root))
    missing = contents.keys() - {name for _, name, _ in found}
    return [
        *(
            f"{path.relative_to(root)}: {name}"
            for path, name, body in found
            if name in contents and body != contents[name].strip("\n")
        ),
        *(f"no page: {name}" for name in sorted(missing)),
    ]


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of Markdown. All rows have as many cells as the header."""
    lines = (f"| {' | '.join(cells)} |".replace("|  |", "| |").replace("|  |", "| |") for cells in (header, *rows))
    first, *others = lines
    return "\n".join((first, "|---" * len(header) + "|", *others))


def _replaced(match: re.Match[str], contents: Mapping[str, str]) -> str:
    if match["name"] not in contents:
        return match[0]
    return f"{match['begin']}{contents[match['name']].strip(chr(10))}\n{match['end']}"


def _all_blocks(root: Path) -> Iterator[tuple[Path, str, str]]:
    """Yield page, name and contents of every block."""
    for path in pages(root):
        for name, body in blocks(path.read_text("utf-8")).items():
            yield path, name, body
