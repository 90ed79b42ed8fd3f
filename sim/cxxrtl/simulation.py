"""A compiled accelerator top with a memory: it accesses registers, runs until the interrupt and injects faults."""

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

__all__ = ["BusCounts", "ScrambledBits", "Simulation"]

_SLICE = 10_000  # cycles between two checks for Ctrl-C; half a second for the slowest designs
_FOREVER = (1 << 63) - 1  # cycles
_LATENCY_CYCLES = {"flat": 43, "ideal": 4}  # 43: latency of an idle read in the KV260 model at 250 MHz
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
    "edgedec_top_contracts": (c_int64, (c_void_p,)),
    "edgedec_top_idle": (c_int, (c_void_p,)),
    "edgedec_top_counts": (None, (c_void_p, POINTER(c_int64))),
    "edgedec_top_settle_first": (None, (c_void_p,)),
    "edgedec_top_scramble": (None, (c_void_p, c_uint64, c_char_p, POINTER(c_int64))),
    "edgedec_top_inject_error": (None, (c_void_p, c_uint64, c_uint64, c_int, c_int, c_int)),
    "edgedec_top_inject_stall": (None, (c_void_p, c_int, c_int64, c_int64)),
    "edgedec_top_save": (c_int64, (c_void_p, c_void_p)),
    "edgedec_top_restore": (c_int, (c_void_p, c_char_p, c_uint64)),
    "edgedec_top_wave": (c_int, (c_void_p, c_char_p, c_int64, c_int64, c_int64, c_char_p)),
    "edgedec_top_end_wave": (c_int64, (c_void_p,)),
    "edgedec_top_peek": (c_int64, (c_void_p, c_char_p, POINTER(c_uint32), c_int64)),
    "edgedec_top_signals": (c_char_p, (c_void_p,)),
    "edgedec_top_record": (c_int64, (c_void_p, c_char_p)),
    "edgedec_top_recorded": (c_int64, (c_void_p, c_int64, POINTER(c_uint32))),
}


@dataclass(frozen=True, kw_only=True)
class BusCounts:
    """Counts of the transfers on the ports since the start; ``write_bytes`` counts bytes with a strobe."""

    read_beats: tuple[int, ...]  # by port
    read_bursts: tuple[int, ...]
    read_bytes: int
    write_beats: int
    write_bursts: int
    write_bytes: int


@dataclass(frozen=True, kw_only=True)
class ScrambledBits:
    """The bits of all state of a design but the registers of its assertions.

    Members:
        registers, memories: bits that got random values.
        kept: bits of registers that kept theirs.
        constant: bits of read-only memories.
    """

    registers: int
    memories: int
    kept: int
    constant: int


class Simulation:
    """An instance of a design in its state after power-up. The contents of its memory are a NumPy array.

    The clock runs only during calls, each as long as it needs.
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
        """Load the library and switch the design on.

        Args:
            library: result of ``edgedec.sim.cxxrtl.library.build``.
            contents: the bytes from ``address`` on, which are read and written in place; an access outside answers DECERR.
            memory: ``ddr`` is the model of edgedec.sim.ddr; ``flat`` moves ``bytes_per_second`` over all ports and both
                directions; ``ideal`` has no limit. Read port i is port i, and ``write`` uses port 0's write channels.
            latency_cycles: cycles of flat and ideal from an address to its first beat, and from the last written beat to B.
            parameters: parameters of the DDR model; its first ports are used, with the design's width and clock.
            clock_hz: frequency of the design and its ports.

        Raises:
            UsageError: a value is out of range.
            ToolError: the library cannot be loaded.
        """
        self._handle = None
        self._library = _load(library)
        self._contents, self.clock_hz = contents, clock_hz
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
        message: bytes = self._library.edgedec_top_error()
        return message.decode()

    def reset(self) -> None:
        """Switch the design off and on. This clears all state, counts, cycles and injected faults, but not the contents."""
        self._library.edgedec_top_close(self._handle)
        self._handle = None
        self._open()
        self.record(list(self._recorded))

    def scramble(self, seed: int, kept: Sequence[str] = ()) -> ScrambledBits:
        """Give all registers and memories random values, and hold the reset of the clock's domain for 64 cycles.

        The memory at the ports does not see these cycles, which are not counted. It should follow ``reset``.

        Args:
            seed: number that the values follow from, 0 to 2^32 - 1.
            kept: beginnings of the names of parts whose registers keep their values, like those of ``signals``.
        """
        bits = (c_int64 * 4)()
        names = "\n".join(name.replace(".", " ") for name in kept)
        self._library.edgedec_top_scramble(self._handle, seed, names.encode(), bits)
        return ScrambledBits(registers=bits[0], memories=bits[1], kept=bits[2], constant=bits[3])

    def read_register(self, offset: int) -> int:
        """Return the 32-bit register at byte ``offset``.

        Raises:
            DeviceError: the design gives no answer or an error response.
        """
        value = c_uint32()
        if self._library.edgedec_top_read(self._handle, _checked_offset(offset), ctypes.byref(value)):
            raise self._failure()
        return value.value

    def write_register(self, offset: int, value: int) -> None:
        """Write the 32-bit register at byte ``offset``. The errors are those of ``read_register``."""
        if not 0 <= value < 1 << 32:
            raise UsageError(f"a register holds 32 bits, not {value:#x}; write 64 bits as two words")
        if self._library.edgedec_top_write(self._handle, _checked_offset(offset), value):
            raise self._failure()

    def run(self, max_cycles: int) -> int:
        """Run until the cycle in which the interrupt is high, but at most ``max_cycles`` cycles.

        Returns:
            The number of cycles, including the one with the interrupt. After Ctrl-C, a later call continues the run.

        Raises:
            DeviceError: the design broke a rule of AXI, or an assertion of its own (``edgedec.hw.blocks.contract``), which
                is found after at most 10,000 cycles.
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
        """Level of the interrupt in the last cycle."""
        return bool(self._library.edgedec_top_interrupt(self._handle))

    @property
    def cycles(self) -> int:
        """Number of cycles since the start, including those of register accesses."""
        return int(self._library.edgedec_top_cycles(self._handle))

    @property
    def contracts(self) -> int:
        """Number of assertions in the design, which are active in every run."""
        return int(self._library.edgedec_top_contracts(self._handle))

    @property
    def idle(self) -> bool:
        """True if the memory has no pending transfer."""
        return bool(self._library.edgedec_top_idle(self._handle))

    @property
    def counts(self) -> BusCounts:
        values = (c_int64 * self._numbers)()
        self._library.edgedec_top_counts(self._handle, values)
        write_beats, write_bytes, write_bursts, *reads = values
        beats, bursts = tuple(reads[: self.ports]), tuple(reads[self.ports :])
        return BusCounts(
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
        """Answer each beat of a read in the range, and each burst that writes into it, with ``response`` from now on."""
        if response not in (SLVERR, DECERR) or address < 0 or size_bytes < 1:
            raise UsageError(f"no error to inject: response {response}, {size_bytes} bytes at {address}")
        end = address + size_bytes
        self._library.edgedec_top_inject_error(self._handle, address, end, response, reads, writes)

    def inject_stall(self, port: int, *, first_cycle: int = 0, cycles: int | None = None) -> None:
        """Stall a port for ``cycles`` (None: forever) from ``first_cycle`` on; port 0 includes the writes."""
        if not 0 <= port < self.ports or first_cycle < 0 or (cycles is not None and cycles < 1):
            raise UsageError(f"no stall to inject: port {port}, cycle {first_cycle}, {cycles} cycles")
        self._library.edgedec_top_inject_stall(self._handle, port, first_cycle, _FOREVER if cycles is None else cycles)

    def record(self, ports: Sequence[str]) -> None:
        """Record these outputs in each cycle in which their lowest bit is high, from now on and after ``reset``.

        Raises:
            UsageError: the design has no such port.
        """
        for port in ports:
            words = self._library.edgedec_top_record(self._handle, port.encode())
            if words < 0:
                raise UsageError(f"cannot record {port!r}: {self._error()}")
            self._recorded[port] = words

    def recorded(self, port: str) -> NDArray[np.uint32]:
        """Return the values of a recorded port since the last call: uint32 [items, words], lowest word first."""
        number, words = list(self._recorded).index(port), self._recorded[port]
        count = self._library.edgedec_top_recorded(self._handle, number, None)
        kept = np.empty(count, np.uint32)
        self._library.edgedec_top_recorded(self._handle, number, kept.ctypes.data_as(POINTER(c_uint32)))
        return kept.reshape(-1, words)

    def save(self) -> bytes:
        """Return the state of the design and of its memory's controller, for ``restore``.

        The contents, the injected faults and what was recorded are not in it.
        """
        size = self._library.edgedec_top_save(self._handle, None)
        state = ctypes.create_string_buffer(size)
        self._library.edgedec_top_save(self._handle, state)
        return state.raw

    def restore(self, state: bytes) -> None:
        """Go on from a state that ``save`` gave, of the same library and memory, with the contents of that time.

        Raises:
            DeviceError: the state is of another design or memory, or is damaged; the simulation cannot be used any more.
        """
        if self._library.edgedec_top_restore(self._handle, state, len(state)):
            raise DeviceError(f"a state cannot be restored: {self._error()}")

    def write_wave(self, path: Path, *, first_cycle: int, cycles: int, scopes: Sequence[str] = ("",)) -> None:
        """Write the signals of ``cycles`` cycles into a VCD file from now on, until ``end_wave``. Memories are left out.

        Args:
            first_cycle: the first one, as ``cycles`` counts them.
            scopes: signals whose names begin with one of these, in the form of ``signals``.

        Raises:
            ToolError: the file cannot be written.
            UsageError: a number is out of range.
        """
        if first_cycle < 0 or cycles < 1:
            raise UsageError(f"a waveform has at least one cycle, from 0 on, not {cycles} from {first_cycle}")
        period_ps = round(1e12 / self.clock_hz)
        names = "\n".join(scope.replace(".", " ") for scope in scopes).encode()
        last = first_cycle + cycles
        if self._library.edgedec_top_wave(self._handle, str(path).encode(), first_cycle, last, period_ps, names):
            raise ToolError(f"{path}: {self._error()}; name a file in a folder that can be written")

    def end_wave(self) -> int:
        """Complete the file of ``write_wave``, and return the number of cycles in it.

        Raises:
            ToolError: the file could not be written.
        """
        count = int(self._library.edgedec_top_end_wave(self._handle))
        if count < 0:
            raise ToolError("the waveform could not be written; free some space and run again")
        return count

    def signals(self) -> tuple[str, ...]:
        """Return the names that ``peek`` accepts: ports, registers and other signals that were not optimized away."""
        names: bytes = self._library.edgedec_top_signals(self._handle)
        return tuple(name.replace(" ", ".") for name in names.decode().splitlines())

    def peek(self, name: str) -> int:
        """Return the value of a signal, ``submodule.signal``, for debugging.

        A register has its present value, and any other signal its value in the last cycle.

        Raises:
            UsageError: the design has no signal of this name, or it was optimized away.
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
    """Return the parameters with the number, width and clock of a design's ports."""
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
