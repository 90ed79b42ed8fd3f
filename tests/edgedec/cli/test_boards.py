"""Test ``edgedec boards``: its list, and the kind and the source of every figure."""

from __future__ import annotations

import io
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from edgedec.board import Board
from edgedec.boards import board_names, find_board
from edgedec.cli import boards as command
from tests.boards.test_board_files import GOOD
from tests.edgedec.cli.conftest import Edgedec


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.thorough
def test_list_names_every_board(edgedec: Edgedec) -> None:
    outcome = edgedec("boards", "list")
    assert outcome.code == 0
    header, *lines = outcome.stdout.splitlines()
    assert header.split()[:2] == ["board", "part"]
    assert header.endswith("for the embedded model, estimated")
    assert [line.split()[0] for line in lines] == board_names()
    kv260, ulx3s = (next(line for line in lines if line.startswith(name)) for name in ("kv260", "ulx3s-85f"))
    assert "15.97 GB/s measured  250 MHz assumed  axi   64 bytes a cycle, 8 slots" in kv260
    assert "0.2 GB/s peak" in ulx3s
    assert "uart" in ulx3s
    assert "docs/boards.md" in outcome.stderr


def test_list_as_json(edgedec: Edgedec) -> None:
    outcome = edgedec("boards", "list", "--json")
    assert list(outcome.json) == ["boards"]
    rows: Any = outcome.json["boards"]
    assert [board["name"] for board in rows] == board_names()
    for board in rows:
        real = find_board(board["name"])
        assert (board["bandwidth_bytes_s"], board["bandwidth_kind"]) == (real.bandwidth_bytes_s, real.bandwidth_kind)
        assert (board["has"], board["memory_bytes"]) == (dict(real.has), real.memory_bytes)
        assert board["accelerator"]["fits"] is (not real.memory_bram36)  # the embedded model is larger than block RAM
        if real.memory_bram36:
            continue
        assert board["accelerator"]["kind"] == "estimated"
        assert board["accelerator"]["shares"]["lut"] <= 0.75
    assert outcome.stderr == ""


@pytest.mark.thorough(sample=2)
@pytest.mark.parametrize("name", board_names())
def test_show_has_every_figure_with_its_source(edgedec: Edgedec, name: str) -> None:
    outcome = edgedec("boards", "show", name)
    assert outcome.code == 0
    board, lines = find_board(name), outcome.stdout.splitlines()
    assert lines[0].split() == [name, "source"]
    for member in fields(Board):
        if member.name in ("name", "sources") or getattr(board, member.name) in (None, ()):
            continue
        (line,) = (line for line in lines if line.split()[0] == member.name)
        assert line.endswith(board.sources[member.name])
    titles = {line.split()[0]: line for line in lines}
    assert " assumed " in titles["clock_hz"]
    assert " peak " in titles["memory_peak_bytes_s"]
    assert ("memory_measured_bytes_s" in titles) == (name == "kv260")
    assert " estimated " in lines[-1]


def test_show_as_json(edgedec: Edgedec) -> None:
    details = edgedec("boards", "show", "kv260", "--json").json
    board = find_board("kv260")
    assert {key: details[key] for key in board.members()} == board.members() | {"power_sensors": ["ina260_u14"]}
    assert (details["bandwidth_bytes_s"], details["bandwidth_kind"]) == (15.97e9, "measured")
    kinds: Any = details["kinds"]
    assert set(kinds.values()) == {"assumed", "goal", "peak", "measured"}
    assert set(kinds) <= set(board.members())


@pytest.mark.thorough
def test_a_board_file_of_the_user_is_shown(edgedec: Edgedec) -> None:
    Path("mine.toml").write_text(GOOD.replace("My board", "[red]mine[/red]").replace("lut = 17600", "lut = 26600"))
    outcome = edgedec("boards", "show", "./mine.toml")
    assert outcome.code == 0
    assert "[red]mine[/red]" in outcome.stdout
    assert "  mine.toml\n" in outcome.stdout
    small = edgedec("boards", "show", "./mine.toml", "--json").json["accelerator"]
    assert small["fits"]  # type: ignore[index]
    Path("mine.toml").write_text(GOOD.replace("lut = 17600", "lut = 1760"))
    outcome = edgedec("boards", "show", "mine.toml")
    assert outcome.code == 0
    assert "does not fit: the model does not fit my-board" in outcome.stdout


def test_without_the_generator_there_is_no_estimate(edgedec: Edgedec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    assert "estimated" not in edgedec("boards", "show", "kv260").stdout
    assert "embedded" not in edgedec("boards", "list").stdout
    assert edgedec("boards", "show", "kv260", "--json").json["accelerator"] is None


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("boards show kv261", 2, "edgedec: no board 'kv261'; there are arty-z7-20, kv260, "),
        ("boards show ./kv261.toml", 2, "edgedec: board file kv261.toml: there is no such file"),
        ("boards show", 2, "Missing argument 'BOARD'"),
        ("boards shwo", 2, "edgedec boards has no command 'shwo'; did you mean 'show'?"),
    ],
)
def test_mistakes_have_a_code_and_a_message(edgedec: Edgedec, words: str, code: int, message: str) -> None:
    outcome = edgedec(*words.split())
    assert outcome.code == code
    assert message in outcome.stderr
    assert outcome.stdout == ""


def test_tables_wrap_on_a_terminal(edgedec: Edgedec, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check also that text in brackets is not taken for markup."""
    monkeypatch.setenv("COLUMNS", "100")
    rows = [["", "mine", "source"], ["title", "[red]mine[/red]", "a source that is long " * 10]]
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    command._print(rows)
    lines = terminal.getvalue().splitlines()
    assert len(lines) > 3
    assert any("[red]mine[/red]" in line for line in lines)
