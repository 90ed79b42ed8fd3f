"""Test the blocks of figures in the pages: writing them, comparing them, and that each has an owner."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.support import docs_tables as docs
from edgedec.errors import UsageError

PAGE = "# Title\n\n<!-- figures: speed one -->\nold\n<!-- end -->\n\ntext\n<!-- figures: area two -->\n<!-- end -->\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("<!-- figures: speed one -->\n<!-- end -->\n")
    (tmp_path / "docs" / "page.md").write_text(PAGE)
    return tmp_path


def test_blocks_are_replaced_in_every_page(root: Path) -> None:
    contents = {"speed one": docs.markdown_table(["", "a"], [["b", "1 | 2".replace("|", "to")]])}
    assert docs.outdated_blocks(contents, root) == ["README.md: speed one", f"{Path('docs', 'page.md')}: speed one"]
    assert docs.write_blocks(contents, root) == [root / "README.md", root / "docs" / "page.md"]
    assert docs.outdated_blocks(contents, root) == []
    assert docs.write_blocks(contents, root) == []
    text = (root / "docs" / "page.md").read_text()
    assert docs.blocks(text) == {"speed one": "| | a |\n|---|---|\n| b | 1 to 2 |", "area two": ""}
    assert text.startswith("# Title\n\n<!-- figures: speed one -->\n| | a |")
    assert text.endswith("<!-- end -->\n")
    assert docs.block_names(root)["area two"] == [root / "docs" / "page.md"]


def test_empty_cells_are_written_alike() -> None:
    assert docs.markdown_table(["a", "", "", ""], [["", "", "", "b"]]) == "| a | | | |\n|---|---|---|---|\n| | | | b |"


def test_figures_without_a_block_are_reported(root: Path) -> None:
    assert docs.outdated_blocks({"speed three": "1"}, root) == ["no page: speed three"]
    with pytest.raises(UsageError, match="no page has a block for speed three"):
        docs.write_blocks({"speed three": "1"}, root)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<!-- figures: a -->\n", "must be followed by its own"),
        ("<!-- end -->\n", "must be followed by its own"),
        ("<!-- figures: a -->\n<!-- figures: b -->\n<!-- end -->\n", "must be followed by its own"),
        ("<!-- figures: a -->\n<!-- end -->\n<!-- figures: a -->\n<!-- end -->\n", "a block twice"),
    ],
)
def test_wrong_marks_are_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        docs.blocks(text)


def test_each_block_of_the_pages_has_an_owner() -> None:
    owners = {name.split(" ")[0] for name in docs.block_names()}
    assert owners <= docs.OWNERS.keys()
    for command in docs.OWNERS.values():
        script, *rest = command.split(" ")
        path = f"{rest[0].replace('.', '/')}.py" if script == "-m" else script
        assert (Path(__file__).parents[2] / path).is_file()
