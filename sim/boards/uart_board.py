"""A board with a serial line, simulated: its gateware in CXXRTL, its SDRAM chip if it has one, a pseudo-terminal.

``open_device("uart", config, port=terminal.path)`` drives it as it would drive the board.
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
from edgedec.hw.system.sdram.chip import IS42S16160G, SdramChip
from edgedec.progress import Progress, silent
from edgedec.sim.boards.uart_library import board_library, build, on_chip_library
from edgedec.sim.sdram.model import SdramCounts, parameters

__all__ = ["BoardTerminal", "UartBoard", "build", "check_board", "fastest_baud", "simulated_board"]

# What is simulated of a board that has such a top: its module, for the chip's clock.
_TOPS = {"ulx3s-85f": "edgedec.boards.flows.ecp5.ulx3s_top"}
_CHIP = IS42S16160G
_REGISTERS = 2  # at the pins of the memory, one on the way out and one back
_LEAST_CYCLES = 4  # of a bit, for the gateware

_SLICE = 4000  # cycles between two looks at the terminal
_QUIET = 1_000_000  # without a byte; a pass that the host does not wait for yet goes on for so long
_CHUNK = 1024  # bytes that are taken at once
_ROOM = 4096  # bytes that may come in one

_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "edgedec_board_open": (c_void_p, (POINTER(c_int64), c_double, c_double, c_double, c_int64)),
    "edgedec_board_close": (None, (c_void_p,)),
    "edgedec_board_run": (c_int64, (c_void_p, c_int64, c_char_p, c_int64, POINTER(c_uint8), c_int64)),
    "edgedec_board_sending": (c_int, (c_void_p,)),
    "edgedec_board_violation": (c_char_p, (c_void_p,)),
    "edgedec_board_cycles": (c_int64, (c_void_p,)),
    "edgedec_board_words": (POINTER(c_uint16), (c_void_p,)),
    "edgedec_board_counts": (None, (c_void_p, POINTER(c_int64))),
}


class UartBoard:
    """A board, just switched on.

    Args:
        library: of ``build``, for a system of ``config``, ``chip``, ``memory_hz`` and ``baud``; without a chip where the
            memory is in the system.
        registers: at the memory's pins, out and back together; the system's ``capture``.
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
    ) -> None:
        self._library = ctypes.CDLL(str(library))
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(self._library, name)
            function.restype, function.argtypes = result, arguments
        values = [] if chip is None else parameters(chip, chip.times(memory_hz))
        self._handle = self._library.edgedec_board_open(
            (c_int64 * len(values))(*values) if values else None, config.clock_hz, memory_hz, float(baud), registers
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
    def sending(self) -> bool:
        """Whether some of what was given is still on its way."""
        return bool(self._library.edgedec_board_sending(self._handle))

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


def check_board(board: Board) -> None:
    """Raises:
    UsageError: it has no serial line.
    UnsupportedError: there is no simulation of it.
    """
    if board.link != "uart":
        raise UsageError(
            f"{board.name} has no serial line, so it has no terminal; name one that has, as ulx3s-85f or orangecrab-85f, or "
            "take --device sim"
        )
    if board.name not in _TOPS and board.memory_bram36 is None:
        raise UnsupportedError(
            f"there is no simulation of {board.name} with its memory, but of {', '.join(_TOPS)}, and of boards whose memory "
            "is block RAM"
        )


def fastest_baud(config: AcceleratorConfig) -> int:
    """That the gateware of such a clock does."""
    return int(config.clock_hz) // _LEAST_CYCLES


def simulated_board(
    board: Board, config: AcceleratorConfig, *, baud: int, cache: Path | None = None, progress: Progress = silent
) -> UartBoard:
    """What ``edgedec build-bitstream`` builds for a board, but for the line's speed, just switched on.

    Raises:
        UsageError, UnsupportedError: as ``check_board``; or a baud rate that the gateware cannot do.
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
    memory_hz = importlib.import_module(_TOPS[board.name]).MEMORY_HZ
    library = board_library(
        config, chip=_CHIP, memory_hz=memory_hz, baud=baud, capture=_REGISTERS, cache=cache, progress=progress
    )
    return UartBoard(library, config, chip=_CHIP, memory_hz=memory_hz, baud=baud, registers=_REGISTERS)


class _Underway:
    """Commands that were not answered yet, by what is on the line.

    Members:
        commands: (code, sequence) of each.
    """

    def __init__(self) -> None:
        self.commands: set[tuple[int, int]] = set()
        self._there, self._back = bytearray(), bytearray()

    def asked(self, data: bytes) -> None:
        for code, sequence in _heads(self._there, data):
            if code == LinkCommand.IDENTIFY:  # both sides begin anew
                self.commands.clear()
            self.commands.add((code, sequence))

    def answered(self, data: bytes) -> None:
        for code, sequence in _heads(self._back, data):
            self.commands.discard((code & 0x7F, sequence))


def _heads(received: bytearray, data: bytes) -> Iterator[tuple[int, int]]:
    """Code and sequence of each frame that is whole with these bytes; what begins another stays in ``received``."""
    received += data
    while (end := received.find(END)) >= 0:
        content = opened(bytes(received[:end])) if end else None
        del received[: end + 1]
        if content is not None:
            yield content[0], content[1]
    del received[: -2 * MOST_FRAME]  # noise that never ends


class BoardTerminal:
    """A board's serial line as a pseudo-terminal.

    Its time goes on as fast as it can, but stands still once nobody has asked anything for a while: no command is under way
    and nothing is on the line, so that a host cannot tell, and the machine is free for others.

    Members:
        path: for ``uart:PATH``.
        failure: of the simulation, or None.
        stands: whether time stands still.
    """

    def __init__(self, board: UartBoard) -> None:
        self.board = board
        self.failure: Exception | None = None
        self.stands = False
        self._ours, self._theirs = os.openpty()
        tty.setraw(self._theirs)
        os.set_blocking(self._ours, False)
        self.path = Path(os.ttyname(self._theirs))
        self._underway = _Underway()
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
        """Whether the simulation goes on; else ``failure`` says what ended it."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Ends the simulation; a second time does nothing."""
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
                self.stands = quiet >= _QUIET and not self._underway.commands
                ready, _, _ = select.select([self._ours, self._stop], [], [], None if self.stands else 0)
                if self._stop in ready:
                    return
                came = os.read(self._ours, _CHUNK) if ready else b""
                self._underway.asked(came)
                said = self.board.run(_SLICE, came)
                self._underway.answered(said)
                quiet = 0 if came or said or self.board.sending else quiet + _SLICE
                if not self._said(said):
                    return
        except (AssertionError, OSError) as error:
            self.failure = error

    def _said(self, said: bytes) -> bool:
        """False: it is to end."""
        while said:
            stop, room, _ = select.select([self._stop], [self._ours], [])
            if stop:
                return False
            if room:
                said = said[os.write(self._ours, said) :]
        return True
