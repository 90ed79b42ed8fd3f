"""The tables of options in docs/command-line.md are those that `.ci/command_line_page.py` writes from the options."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import pytest
import typer

from tests.edgedec.cli.test_other_programs import COMMANDS, ROOT

WRITE = ".venv/bin/python .ci/command_line_page.py"


@pytest.fixture(scope="module")
def writer(project_root: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("command_line_page", project_root / ".ci" / "command_line_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_has_the_tables_of_the_options(writer: ModuleType) -> None:
    page = writer.PAGE.read_text("utf-8")
    assert page == writer.written(page, writer.tables(ROOT)), f"run {WRITE}"


def test_every_option_is_in_a_table_with_its_help(writer: ModuleType) -> None:
    """Look for each option without the code that writes the tables: in its command's block, or in one of a group."""
    page = writer.PAGE.read_text("utf-8")
    shared = [block(page, name) for name in writer.SHARED]
    for name, command in COMMANDS.items():
        own = block(page, name.removeprefix("edgedec "))
        for option in command.params:
            if option.param_type_name == "option" and not option.hidden:
                help = option.help.replace("<", "&lt;").replace("|", "\\|")
                rows = [line for table in (own, *shared) for line in table.splitlines() if f" | {help} |" in line]
                assert any(f"`{option.opts[0]}" in row for row in rows), f"{name} {option.opts}: run {WRITE}"


def block(page: str, name: str) -> str:
    """Return a block of the page, empty if there is none."""
    return page.partition(f"<!-- options: {name} -->\n")[2].partition("<!-- end of options -->")[0]


# The check sees what it is for.


def group(*commands: Any) -> Any:
    app = typer.Typer()
    for command in commands:
        app.command()(command)
    return typer.main.get_command(app)


Count = Annotated[int, typer.Option("-c", "--count", metavar="N|all", help="Number of <s>.")]
Flag = Annotated[bool, typer.Option("--flag/--no-flag", help="Switch.")]


def one(count: Count = 3, flag: Flag = True) -> None: ...


def two(
    count: Count = 3, text: Annotated[str, typer.Option("--text", metavar="TEXT", help="A text.")] = "a"
) -> None: ...


def three(count: Annotated[int, typer.Option("--count", metavar="N", help="Another.")]) -> None: ...


PLANTED = "<!-- options: {} -->\nold\n<!-- end of options -->\n"


def test_tables_of_planted_options(writer: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "SHARED", {"of several": ("count",)})
    tables = {name: text.splitlines()[-1] for name, text in writer.tables(group(one, two, three)).items()}
    assert tables["of several"] == "| `-c`, `--count N\\|all` | 3 | Number of &lt;s>. |  |"
    assert tables["one"] == "| `--flag`, `--no-flag` | on | Switch. |"
    assert tables["two"] == "| `--text TEXT` | `a` | A text. |"
    assert "| `--count N` | required | Another. |" in writer.tables(group(one, two, three))["three"]


def test_a_page_that_lacks_a_block_or_an_option_is_named(writer: ModuleType) -> None:
    tables = {"one": "| 1 |\n", "two": "| 2 |\n"}
    page = "# A\n\n" + "".join(map(PLANTED.format, tables)) + "text\n"
    assert writer.written(page, tables) == page.replace("old", "| 1 |", 1).replace("old", "| 2 |", 1)
    for wrong in (page.replace("two", "one"), page + PLANTED.format("three"), page.replace("options: two", "two")):
        with pytest.raises(ValueError, match="the page must have each block of options once; look at "):
            writer.written(wrong, tables)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["a", "b"], ""),
        (["a", "b", "c"], "also `c`"),
        (["a"], "not `b`"),
        (["a", "c"], "`a`, `c`"),
        (["a", "b", "c", "d", "e"], "all but `f`, `g`, `h`"),
    ],
)
def test_which_commands_have_an_option(writer: ModuleType, names: list[str], text: str) -> None:
    assert writer.which(names, ["a", "b"], "abcdefgh") == text
