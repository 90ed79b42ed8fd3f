"""Provide a simulated board for pynq, with a bitstream file, its hand-off file, and the device on it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from edgedec.device import Device
from edgedec.device import open_device as open_any
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.handoff.write import write_hwh

ARCHES = {"zynq-ultrascale+": "aarch64", "zynq-7000": "armv7l"}
MEMINFO = "MemTotal: 4000000 kB\nCmaTotal: 1048576 kB\nCmaFree: 65536 kB\n"


def bitstream(config: AcceleratorConfig, folder: Path, *, family: str = "zynq-ultrascale+", **options: Any) -> Path:
    """Write an empty .bit, and a .hwh next to it."""
    path = folder / "edgedec.bit"
    path.write_bytes(b"what the fabric is made of")
    write_hwh(config, path.with_suffix(".hwh"), family=family, **options)
    return path


def simulated_board(
    config: AcceleratorConfig, name: str = "interpreter", *, arch: str = "aarch64", **options: Any
) -> Any:
    """Return a board around a simulated device of that name. It needs pynq, which is imported only here."""
    from edgedec.sim.boards.pynq_board import SimulatedBoard

    return SimulatedBoard(open_any(name, config, **options), arch=arch)


def open_on(board: Any, config: AcceleratorConfig, folder: Path, *, path: Path | None = None) -> Device:
    """Open device pynq on that board."""
    meminfo = folder / "meminfo"
    meminfo.write_text(MEMINFO)
    return open_any(
        "pynq",
        config,
        bitstream=bitstream(config, folder) if path is None else path,
        board=board,
        clock=board.clock,
        lock_folder=folder,
        meminfo=meminfo,
    )


def opener(config: AcceleratorConfig, folder: Path) -> Callable[[], Device]:
    """Return a function that opens a device on a new board each time."""
    return lambda: open_on(simulated_board(config), config, folder)
