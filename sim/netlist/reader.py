"""Read the cells and ports of a netlist with yosys."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgedec.errors import UsageError
from edgedec.hw.emit.yosys import run_yosys
from edgedec.sim.netlist.cells import ONE, ZERO, Cell

__all__ = ["Netlist", "netlist_text", "read_netlist"]

_COMMANDS = {".il": "read_rtlil", ".v": "read_verilog"}


@dataclass(frozen=True, kw_only=True)
class Netlist:
    """The one module of a netlist.

    Members:
        nets: number of nets, constants included.
        inputs, outputs: nets of each port, lowest bit first.
    """

    nets: int
    cells: tuple[Cell, ...]
    inputs: dict[str, tuple[int, ...]]
    outputs: dict[str, tuple[int, ...]]


def netlist_text(path: Path) -> str:
    """Return the text of a netlist's file.

    Raises:
        UsageError: the file cannot be read, or its name ends neither with .il nor with .v.
    """
    if path.suffix not in _COMMANDS:
        raise UsageError(f"{path}: a netlist is a file .il (RTLIL) or .v (Verilog); name one of these")
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}; build the board's bitstream first") from error


def read_netlist(path: Path) -> Netlist:
    """Read a netlist from a file .il (RTLIL) or .v (Verilog). Pins with an undefined value (x) become 0.

    Raises:
        UsageError: the file cannot be read, or has more than one module.
        ToolError: yosys is missing or cannot read it.
    """
    text = netlist_text(path)
    with tempfile.TemporaryDirectory(prefix="edgedec-netlist-") as temporary:
        folder = Path(temporary)
        (folder / f"netlist{path.suffix}").write_text(text, "utf-8")
        run_yosys(f"{_COMMANDS[path.suffix]} netlist{path.suffix}\nopt_clean\nwrite_json netlist.json\n", folder)
        modules = json.loads((folder / "netlist.json").read_text("utf-8"))["modules"]
    modules = {name: module for name, module in modules.items() if not _is_model(module)}
    if len(modules) != 1:
        raise UsageError(
            f"{path}: a netlist must have one module, not {len(modules)}: {', '.join(sorted(modules)[:5])}"
        )
    (module,) = modules.values()
    return _read(module)


def _is_model(module: Mapping[str, Any]) -> bool:
    """Return True if a module is the model of a cell, which yosys writes too."""
    return any(name.endswith("box") for name in module["attributes"])


def _read(module: Mapping[str, Any]) -> Netlist:
    numbers: dict[int | str, int] = {"0": ZERO, "1": ONE, "x": ZERO, "z": ZERO}

    def net(bit: int | str) -> int:
        return numbers.setdefault(bit, len(numbers) - 2)

    ports: dict[str, dict[str, tuple[int, ...]]] = {"input": {}, "output": {}}
    for name, port in module["ports"].items():
        ports.get(port["direction"], {})[name] = tuple(map(net, port["bits"]))
    cells = []
    for name, cell in module["cells"].items():
        if cell["type"] == "$scopeinfo":
            continue
        pins: dict[str, int] = {}
        for pin, bits in cell["connections"].items():
            single = len(bits) == 1
            pins |= {pin if single else f"{pin}{number}": net(bit) for number, bit in enumerate(bits)}
        cells.append(Cell(name=name, kind=cell["type"], parameters=cell["parameters"], pins=pins))
    return Netlist(nets=len(numbers) - 2, cells=tuple(cells), inputs=ports["input"], outputs=ports["output"])
