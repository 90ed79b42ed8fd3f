"""A simulated board with a serial line: its gateware in CXXRTL, its SDRAM chip if it has one, and a pseudo-terminal.

``open_device("uart", config, port=terminal.path)`` opens it in the same way as the board.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import select
import threading
import tty
from collections.abc import Iterator
from ctypes import POINTER, c_char_p, c_double, c_int, c_int64, c_uint8, c_uint16, c_void_p
from pathlib import Path
from types import TracebackType
from typing import Any

from edgedec.board import Board
from edgedec.errors import UnsupportedError, UsageError
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.isa.link_protocol import END, MOST_FRAME, LinkCommand, opened
from edgedec.hw.isa.registers import NOMINAL_PHASE
from edgedec.hw.system.sdram.chip import IS42S16160G, SdramChip
from edgedec.progress import Progress, silent
from edgedec.sim.boards.uart_library import board_library, build, on_chip_library
from edgedec.sim.sdram.model import PhaseWindow, SdramCounts, parameters

__all__ = ["BoardTerminal", "UartBoard", "build", "check_board", "fastest_baud", "simulated_board"]

# Module of the top of each board with an SDRAM chip that can be simulated; it holds the chip's clock.
_TOPS = {"ulx3s-85f": "edgedec.boards.flows.ecp5.ulx3s_top"}
_CHIP = IS42S16160G
_GOOD = range(NOMINAL_PHASE, 2 * NOMINAL_PHASE)  # phases at which the chip of a board without delays is captured
_LEAST_CYCLES = 4  # fewest cycles of a bit that the gateware supports

_SLICE = 4000  # cycles between two polls of the terminal
_QUIET = 1_000_000  # cycles without a byte before time stops; a pass without a waiting host runs that long
_CHUNK = 1024  # bytes read from the terminal at once
_ROOM = 4096  # most bytes that the board sends in a slice

_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "edgedec_board_open": (c_void_p, (POINTER(c_int64), c_double, c_double, c_double, c_int64, c_int64, c_int64)),
    "edgedec_board_close": (None, (c_void_p,)),
    "edgedec_board_run": (c_int64, (c_void_p, c_int64, c_char_p, c_int64, POINTER(c_uint8), c_int64)),
    "edgedec_board_sending": (c_int, (c_void_p,)),
    "edgedec_board_violation": (c_char_p, (c_void_p,)),
    "edgedec_board_cycles": (c_int64, (c_void_p,)),
    "edgedec_board_words": (POINTER(c_uint16), (c_void_p,)),
    "edgedec_board_counts": (None, (c_void_p, POINTER(c_int64))),
}


class UartBoard:
    """A board in its state after power-up.

    Args:
        library: result of ``build`` for a system of ``config``, ``chip``, ``memory_hz`` and ``baud``; ``chip`` is None if
            the memory is part of the system.
        registers: number of registers at the memory's pins, for outputs and inputs together, as the system has them.
        good: phases at which the memory's words are captured whole, see ``edgedec.sim.sdram.model.PhaseWindow``.
    """

    def __init__(
        self,
        library: Path,
        config: AcceleratorConfig,
        *,
        baud: int,
        chip: SdramChip | None = None,
        memory_hz: float = 0.0,
        registers: int = 0,
        good: range = _GOOD,
    ) -> None:
        PhaseWindow(good)
        self._library = ctypes.CDLL(str(library))
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(self._library, name)
            function.restype, function.argtypes = result, arguments
        values = [] if chip is None else parameters(chip, chip.times(memory_hz))
        self._handle = self._library.edgedec_board_open(
            (c_int64 * len(values))(*values) if values else None,
            config.clock_hz,
            memory_hz,
            float(baud),
            registers,
            good.start - NOMINAL_PHASE,
            len(good),
        )

    def run(self, cycles: int, data: bytes = b"") -> bytes:
        """Run ``cycles`` cycles, send ``data`` at the speed of the line, and return the bytes that arrived.

        Raises:
            AssertionError: a rule of the memory was broken.
        """
        received = (c_uint8 * _ROOM)()
        count = self._library.edgedec_board_run(self._handle, cycles, data, len(data), received, _ROOM)
        violation = self._library.edgedec_board_violation(self._handle)
        if violation:
            raise AssertionError(violation.decode())
        return bytes(received[:count])

    @property
    def sending(self) -> bool:
        """True while some of the data of ``run`` has not been sent."""
        return bool(self._library.edgedec_board_sending(self._handle))

    @property
    def cycles(self) -> int:
        return int(self._library.edgedec_board_cycles(self._handle))

    def counts(self) -> SdramCounts:
        """Return the counts of the memory chip."""
        values = (c_int64 * 7)()
        self._library.edgedec_board_counts(self._handle, values)
        names = ("cycles", "reads", "writes", "refreshes", "activates", "busy")
        return SdramCounts(**dict(zip(names, values[:6], strict=True)), ready=bool(values[6]))

    def close(self) -> None:
        """End the simulation. A second call does nothing."""
        if self._handle:
            self._library.edgedec_board_close(self._handle)
            self._handle = None


def check_board(board: Board) -> None:
    """Check that a board can be simulated with its serial line.

    Raises:
        UsageError: the board has no serial line.
        UnsupportedError: the board cannot be simulated.
    """
    if board.link != "uart":
        raise UsageError(
            f"{board.name} has no serial line, so it has no terminal; name a board that has one, such as ulx3s-85f or "
            "orangecrab-85f, or take --device sim"
        )
    if board.name not in _TOPS and board.memory_bram36 is None:
        raise UnsupportedError(
            f"{board.name} cannot be simulated with its memory; {', '.join(_TOPS)} can, and so can boards whose memory is "
            "block RAM"
        )


def fastest_baud(config: AcceleratorConfig) -> int:
    """Return the highest baud rate of the gateware at the configuration's clock."""
    return int(config.clock_hz) // _LEAST_CYCLES


def simulated_board(
    board: Board, config: AcceleratorConfig, *, baud: int, cache: Path | None = None, progress: Progress = silent
) -> UartBoard:
    """Return the system that ``edgedec build-bitstream`` builds for a board, with another speed of the line.

    Raises:
        UsageError, UnsupportedError: ``check_board`` raises them, or the gateware does not support the baud rate.
        ToolError: yosys or the compiler is missing or fails.
    """
    check_board(board)
    if not 0 < baud <= fastest_baud(config):
        raise UsageError(
            f"--baud must be from 1 to {fastest_baud(config)}, a quarter of the accelerator's clock, not {baud}"
        )
    if board.memory_bram36 is not None:
        library = on_chip_library(config, memory_bytes=board.memory_bytes, baud=baud, cache=cache, progress=progress)
        return UartBoard(library, config, baud=baud)
    top = importlib.import_module(_TOPS[board.name])
    memory_hz = top.MEMORY_HZ
    library = board_library(
        config, chip=_CHIP, memory_hz=memory_hz, baud=baud, registers=top.PIN_REGISTERS, cache=cache, progress=progress
    )
    return UartBoard(library, config, chip=_CHIP, memory_hz=memory_hz, baud=baud, registers=top.PIN_REGISTERS)


class _PendingCommands:
    """The commands on the line that were not answered yet.

    Members:
        commands: (code, sequence) of each command.
    """

    def __init__(self) -> None:
        self.commands: set[tuple[int, int]] = set()
        self._sent, self._received = bytearray(), bytearray()

    def add_requests(self, data: bytes) -> None:
        for code, sequence in _heads(self._sent, data):
            if code == LinkCommand.IDENTIFY:  # both sides start again
                self.commands.clear()
            self.commands.add((code, sequence))

    def remove_answered(self, data: bytes) -> None:
        for code, sequence in _heads(self._received, data):
            self.commands.discard((code & 0x7F, sequence))


def _heads(received: bytearray, data: bytes) -> Iterator[tuple[int, int]]:
    """Yield (code, sequence) of each frame that is complete with these bytes; ``received`` keeps the rest."""
    received += data
    while (end := received.find(END)) >= 0:
        content = opened(bytes(received[:end])) if end else None
        del received[: end + 1]
        if content is not None:
            yield content[0], content[1]
    del received[: -2 * MOST_FRAME]  # noise without an end of frame


class BoardTerminal:
    """A board's serial line as a pseudo-terminal.

    The simulation runs as fast as it can. It stops while no command is pending and the line has been silent for a while: a
    host cannot notice this, and the processor is free for other work.

    Members:
        path: path of the terminal, for ``uart:PATH``.
        failure: exception of the simulation, or None.
        stands: True while the simulation's time is stopped.
    """

    def __init__(self, board: UartBoard) -> None:
        self.board = board
        self.failure: Exception | None = None
        self.stands = False
        self._ours, self._theirs = os.openpty()
        tty.setraw(self._theirs)
        os.set_blocking(self._ours, False)
        self.path = Path(os.ttyname(self._theirs))
        self._pending = _PendingCommands()
        self._stop, self._wake = os.pipe()
        self._thread = threading.Thread(target=self._serve, name=f"board {self.path}", daemon=True)
        self._thread.start()

    def __enter__(self) -> BoardTerminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def running(self) -> bool:
        """True while the simulation runs; ``failure`` has the reason if it ended by itself."""
        return self._thread.is_alive()

    def close(self) -> None:
        """End the simulation. A second call does nothing."""
        if self._ours < 0:
            return
        os.write(self._wake, b".")
        self._thread.join()
        for file in (self._ours, self._theirs, self._stop, self._wake):
            os.close(file)
        self._ours = -1
        self.board.close()

    def _serve(self) -> None:
        quiet = 0  # cycles since the last byte
        try:
            while True:
                self.stands = quiet >= _QUIET and not self._pending.commands
                ready, _, _ = select.select([self._ours, self._stop], [], [], None if self.stands else 0)
                if self._stop in ready:
                    return
                request = os.read(self._ours, _CHUNK) if ready else b""
                self._pending.add_requests(request)
                answer = self.board.run(_SLICE, request)
                self._pending.remove_answered(answer)
                quiet = 0 if request or answer or self.board.sending else quiet + _SLICE
                if not self._send(answer):
                    return
        except (AssertionError, OSError) as error:
            self.failure = error

    def _send(self, data: bytes) -> bool:
        """Send data to the host; return False if the simulation has to end."""
        while data:
            stop, room, _ = select.select([self._stop], [self._ours], [])
            if stop:
                return False
            if room:
                data = data[os.write(self._ours, data) :]
        return True
