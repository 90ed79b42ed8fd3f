"""Test that the help of every command is whole on a terminal of 80 columns."""

from __future__ import annotations

import re

import pytest

from tests.edgedec.cli.conftest import Edgedec
from tests.edgedec.cli.test_other_programs import COMMANDS, ROOT

WIDTH = 80


def plain(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("name", COMMANDS)
def test_names_and_texts_of_options_are_whole(edgedec: Edgedec, name: str) -> None:
    outcome = edgedec(*name.split()[1:], "--help", env={"COLUMNS": str(WIDTH), "TERMINAL_WIDTH": str(WIDTH)})
    assert outcome.code == 0
    assert max(map(len, outcome.stdout.splitlines())) <= WIDTH
    assert "…" not in outcome.stdout
    shown = plain(outcome.stdout).replace("- ", "-")  # long words are broken at their hyphens
    for option in COMMANDS[name].params:
        if not getattr(option, "hidden", False):
            names = [*option.opts, *option.secondary_opts] if option.param_type_name == "option" else [option.metavar]
            assert all(one in shown for one in names)
            assert plain(option.help).replace("- ", "-") in shown, option.name


@pytest.mark.parametrize("group", ["", "boards"])
def test_summaries_of_commands_are_whole(edgedec: Edgedec, group: str) -> None:
    """No summary ends in dots, and each is the first sentence of its command's own help."""
    outcome = edgedec(*group.split(), "--help", env={"COLUMNS": str(WIDTH), "TERMINAL_WIDTH": str(WIDTH)})
    listed = plain(outcome.stdout[outcome.stdout.index("Commands:") :])
    commands = ROOT.commands["boards"].commands if group else ROOT.commands
    for name, command in commands.items():
        summary = plain(command.help).partition(". ")[0].rstrip(".")
        assert f"{name} {summary}" in listed


def test_a_long_help_has_its_options_in_parts(edgedec: Edgedec) -> None:
    part, parts = "", dict[str, str]()
    for line in edgedec("generate", "--help").stdout.splitlines():
        if re.fullmatch(r"[A-Z]\w+:", line):
            part = line[:-1]
        elif name := re.match(r"  (?:-\w+, )*(--[\w-]+)", line):
            parts[name[1]] = part
    assert list(dict.fromkeys(parts.values())) == [
        "Options",
        "Model",
        "Memory",
        "Sampling",
        "Speculation",
        "Accelerator",
    ]
    expected = ("--json", "--threads", "--ctx-size", "--top-k", "--spec-type", "--board")
    assert [parts[name] for name in expected] == list(dict.fromkeys(parts.values()))
    assert "Memory:" not in edgedec("inspect", "--help").stdout
