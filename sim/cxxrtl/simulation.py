"""A compiled accelerator top beside a memory: registers, runs until its interrupt, faults on purpose."""

from __future__ import annotations

import ctypes
import difflib
from collections.abc import Sequence
from ctypes import POINTER, c_char_p, c_int, c_int64, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import DeviceError, ToolError, UsageError
from edgedec.sim.ddr.memory import DECERR, SLVERR
from edgedec.sim.ddr.parameters import KV260, DdrParameters

__all__ = ["Counts", "Simulation"]

_SLICE = 10_000  # cycles between two looks for Ctrl-C: half a second of the slowest designs
_FOR_EVER = (1 << 63) - 1
_LATENCY_CYCLES = {"flat": 43, "ideal": 4}  # 43: what the KV260 model's idle read takes at 250 MHz
_MEMORIES = ("ddr", *_LATENCY_CYCLES)

_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "edgedec_top_error": (c_char_p, ()),
    "edgedec_top_shape": (None, (POINTER(c_int64),)),
    "edgedec_top_open": (c_void_p, (POINTER(c_int64), c_int64, c_int64, c_int64, c_void_p, c_uint64, c_uint64)),
    "edgedec_top_close": (None, (c_void_p,)),
    "edgedec_top_run": (c_int64, (c_void_p, c_int64)),
    "edgedec_top_write": (c_int, (c_void_p, c_uint32, c_uint32)),
    "edgedec_top_read": (c_int, (c_void_p, c_uint32, POINTER(c_uint32))),
    "edgedec_top_cycles": (c_int64, (c_void_p,)),
    "edgedec_top_interrupt": (c_int, (c_void_p,)),
    "edgedec_top_idle": (c_int, (c_void_p,)),
    "edgedec_top_counts": (None, (c_void_p, POINTER(c_int64))),
    "edgedec_top_settle_first": (None, (c_void_p,)),
    "edgedec_top_inject_error": (None, (c_void_p, c_uint64, c_uint64, c_int, c_int, c_int)),
    "edgedec_top_inject_stall": (None, (c_void_p, c_int, c_int64, c_int64)),
    "edgedec_top_peek": (c_int64, (c_void_p, c_char_p, POINTER(c_uint32), c_int64)),
    "edgedec_top_signals": (c_char_p, (c_void_p,)),
    "edgedec_top_record": (c_int64, (c_void_p, c_char_p)),
    "edgedec_top_recorded": (c_int64, (c_void_p, c_int64, POINTER(c_uint32))),
}


@dataclass(frozen=True, kw_only=True)
class Counts:
    """What has gone through the ports since the start; ``write_bytes`` counts those with a strobe."""

    read_beats: tuple[int, ...]  # of each port
    read_bursts: tuple[int, ...]
    read_bytes: int
    write_beats: int
    write_bursts: int
    write_bytes: int


class Simulation:
    """One instance of a design, just switched on; its memory's contents are a NumPy array.

    Every call clocks the design as long as it takes; between calls the time stands still.
    """

    def __init__(
        self,
        library: Path,
        contents: NDArray[np.uint8],
        *,
        memory: str = "ddr",
        bytes_per_second: int = 13_300_000_000,
        latency_cycles: int | None = None,
        parameters: DdrParameters = KV260,
        clock_hz: int = 250_000_000,
        address: int = 0,
    ) -> None:
        """Switches it on.

        Args:
            library: made by ``edgedec.sim.cxxrtl.library.build``.
            contents: the bytes from ``address`` on, read and written in place; an access outside answers DECERR.
            memory: ``ddr`` is the model of edgedec.sim.ddr; ``flat`` moves ``bytes_per_second`` over all ports and both
                directions; ``ideal`` has no such limit. Read port i is port i, and ``write`` has port 0's write channels.
            latency_cycles: of flat and ideal, from an address to its first beat and from the last written beat to B.
            parameters: of the DDR model; its first ports are taken, with the design's width and clock.
            clock_hz: of the design and its ports.

        Raises:
            UsageError: a value makes no sense.
            ToolError: the library cannot be loaded.
        """
        self._handle = None
        self._library = _load(library)
        self._contents = contents
        self._recorded: dict[str, int] = {}  # port -> 32-bit words
        shape = (c_int64 * 4)()
        self._library.edgedec_top_shape(shape)
        self.ports, self.port_bytes, self._numbers, ddr_values = shape
        if contents.dtype != np.uint8 or not contents.flags.c_contiguous or not contents.flags.writeable:
            raise UsageError(f"contents must be contiguous writable uint8, not {contents.dtype} {contents.shape}")
        if address < 0 or address % 4096:
            raise UsageError(f"address must be a multiple of 4096, not {address}")
        if memory not in _MEMORIES:
            raise UsageError(f"memory must be one of {', '.join(_MEMORIES)}, not {memory!r}")
        latency = _LATENCY_CYCLES.get(memory, 1) if latency_cycles is None else latency_cycles
        for name, value in (
            ("clock_hz", clock_hz),
            ("bytes_per_second", bytes_per_second),
            ("latency_cycles", latency),
        ):
            if not isinstance(value, int) or not 1 <= value <= 1 << 40:
                raise UsageError(f"{name} must be a whole number from 1, not {value!r}")
        values = None
        if memory == "ddr":
            fitted = _fitted(parameters, self.ports, self.port_bytes, clock_hz).values()
            if len(fitted) != ddr_values:
                raise ToolError(f"{library} was built with another memory model; delete it and build it again")
            values = (c_int64 * len(fitted))(*fitted)
        rate = bytes_per_second if memory == "flat" else 0
        self._settings = (values, clock_hz, rate, latency, contents.ctypes.data, address, contents.size)
        self._open()

    def _open(self) -> None:
        self._handle = self._library.edgedec_top_open(*self._settings)
        if not self._handle:
            raise self._failure()

    def __del__(self) -> None:
        if self._handle:
            self._library.edgedec_top_close(self._handle)

    def _failure(self) -> DeviceError:
        return DeviceError(f"simulation, cycle {self.cycles if self._handle else 0}: {self._error()}")

    def _error(self) -> str:
        said: bytes = self._library.edgedec_top_error()
        return said.decode()

    def reset(self) -> None:
        """Switch off and on: registers, everything under way, counts, cycles and injected faults; not the contents."""
        self._library.edgedec_top_close(self._handle)
        self._handle = None
        self._open()
        self.record(list(self._recorded))

    def read_register(self, offset: int) -> int:
        """32 bits at a byte offset.

        Raises:
            DeviceError: no answer, or an error response.
        """
        value = c_uint32()
        if self._library.edgedec_top_read(self._handle, _checked_offset(offset), ctypes.byref(value)):
            raise self._failure()
        return value.value

    def write_register(self, offset: int, value: int) -> None:
        """As ``read_register``."""
        if not 0 <= value < 1 << 32:
            raise UsageError(f"a register holds 32 bits, not {value:#x}; write 64 bits as two words")
        if self._library.edgedec_top_write(self._handle, _checked_offset(offset), value):
            raise self._failure()

    def run(self, max_cycles: int) -> int:
        """Until the cycle in which the interrupt is high, or ``max_cycles``.

        Returns:
            Cycles, the one with the interrupt included. Ctrl-C stops in between, and a later call goes on.

        Raises:
            DeviceError: the design broke a rule of AXI.
        """
        if max_cycles < 0:
            raise UsageError(f"max_cycles must not be negative: {max_cycles}")
        done = 0
        while done < max_cycles:
            cycles = self._library.edgedec_top_run(self._handle, min(_SLICE, max_cycles - done))
            if cycles < 0:
                raise self._failure()
            done += cycles
            if self.interrupt:
                break
        return done

    @property
    def interrupt(self) -> bool:
        """Its level in the last cycle."""
        return bool(self._library.edgedec_top_interrupt(self._handle))

    @property
    def cycles(self) -> int:
        """Since the start, those of register accesses included."""
        return int(self._library.edgedec_top_cycles(self._handle))

    @property
    def idle(self) -> bool:
        """Whether the memory has nothing under way."""
        return bool(self._library.edgedec_top_idle(self._handle))

    @property
    def counts(self) -> Counts:
        values = (c_int64 * self._numbers)()
        self._library.edgedec_top_counts(self._handle, values)
        write_beats, write_bytes, write_bursts, *reads = values
        beats, bursts = tuple(reads[: self.ports]), tuple(reads[self.ports :])
        return Counts(
            read_beats=beats,
            read_bursts=bursts,
            read_bytes=sum(beats) * self.port_bytes,
            write_beats=write_beats,
            write_bursts=write_bursts,
            write_bytes=write_bytes,
        )

    def inject_error(
        self, address: int, size_bytes: int, *, response: int = SLVERR, reads: bool = True, writes: bool = True
    ) -> None:
        """From now on, each beat of a read in that range, and each burst that writes into it, answers ``response``."""
        if response not in (SLVERR, DECERR) or address < 0 or size_bytes < 1:
            raise UsageError(f"no error to inject: response {response}, {size_bytes} bytes at {address}")
        end = address + size_bytes
        self._library.edgedec_top_inject_error(self._handle, address, end, response, reads, writes)

    def inject_stall(self, port: int, *, first_cycle: int = 0, cycles: int | None = None) -> None:
        """A port, 0's writes included, takes and gives nothing new for ``cycles`` (None: ever) from ``first_cycle`` on."""
        if not 0 <= port < self.ports or first_cycle < 0 or (cycles is not None and cycles < 1):
            raise UsageError(f"no stall to inject: port {port}, cycle {first_cycle}, {cycles} cycles")
        self._library.edgedec_top_inject_stall(self._handle, port, first_cycle, _FOR_EVER if cycles is None else cycles)

    def record(self, ports: Sequence[str]) -> None:
        """Keep, from now on and after a ``reset`` too, what is on these outputs whenever their lowest bit is high.

        Raises:
            UsageError: the design has no such port.
        """
        for port in ports:
            words = self._library.edgedec_top_record(self._handle, port.encode())
            if words < 0:
                raise UsageError(f"cannot record {port!r}: {self._error()}")
            self._recorded[port] = words

    def recorded(self, port: str) -> NDArray[np.uint32]:
        """uint32 [items, words] that a recorded port has given since the last call; bit 0 is the lowest."""
        number, words = list(self._recorded).index(port), self._recorded[port]
        count = self._library.edgedec_top_recorded(self._handle, number, None)
        kept = np.empty(count, np.uint32)
        self._library.edgedec_top_recorded(self._handle, number, kept.ctypes.data_as(POINTER(c_uint32)))
        return kept.reshape(-1, words)

    def signals(self) -> tuple[str, ...]:
        """Names that ``peek`` knows: ports, registers, and what else was not optimized away."""
        names: bytes = self._library.edgedec_top_signals(self._handle)
        return tuple(name.replace(" ", ".") for name in names.decode().splitlines())

    def peek(self, name: str) -> int:
        """A signal, ``submodule.signal``, for debugging: a register as it is now, others as they were in the last cycle.

        Raises:
            UsageError: there is none of that name, or not any more.
        """
        words = (c_uint32 * 1024)()
        bits = self._library.edgedec_top_peek(self._handle, name.replace(".", " ").encode(), words, len(words))
        if bits < 0 or bits > 32 * len(words):
            near = difflib.get_close_matches(name, self.signals())
            hint = f"; perhaps {', '.join(near)}" if near else ""
            raise UsageError(f"cannot peek at {name!r}: {self._error() if bits < 0 else f'{bits} bits'}{hint}")
        return sum(word << 32 * i for i, word in enumerate(words[: -(-bits // 32)]))


def _checked_offset(offset: int) -> int:
    if offset < 0 or offset % 4 or offset >= 1 << 32:
        raise UsageError(f"a register's offset must be a multiple of 4, not {offset:#x}")
    return offset


def _fitted(parameters: DdrParameters, ports: int, port_bytes: int, clock_hz: int) -> DdrParameters:
    """The memory as a design of such ports sees it."""
    if ports > parameters.ports:
        raise UsageError(f"the design has {ports} ports, and the memory {parameters.ports}; give it more parameters")
    return replace(
        parameters, controller_port=parameters.controller_port[:ports], port_bytes=port_bytes, port_hz=clock_hz
    )


def _load(path: Path) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(path))
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise ToolError(f"{path} cannot be loaded: {error}; delete it and build it again") from error
    return library
