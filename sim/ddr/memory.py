"""A board's memory, cycle by cycle at its AXI ports. Its contents are a NumPy array."""

from __future__ import annotations

import ctypes
import enum
from ctypes import c_int64, c_uint8, c_uint32, c_uint64
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import DeviceError, UsageError
from edgedec.sim.ddr.library import load
from edgedec.sim.ddr.parameters import KV260, DdrParameters

__all__ = ["DECERR", "OKAY", "SLVERR", "DdrCommand", "DdrCounts", "DdrMemory", "PortIn", "PortOut"]

OKAY, SLVERR, DECERR = 0, 2, 3  # AXI responses
_MOST_PORT_BYTES = 64
_FOREVER = (1 << 63) - 1  # cycles


class DdrCommand(enum.IntEnum):
    """A command of the controller to the DRAM."""

    READ = 0
    WRITE = 1
    ACTIVATE = 2
    PRECHARGE = 3
    REFRESH = 4


class PortIn(ctypes.Structure):
    """Signals that a master drives on one port. Beats are ``port_bytes`` wide; ``w_strobe`` has a bit for each byte."""

    _fields_ = [  # the order of the struct in memory.hpp
        *((name, c_uint64) for name in ("ar_address", "aw_address", "w_strobe")),
        *((name, c_uint32) for name in ("ar_beats", "aw_beats")),
        *((name, c_uint8) for name in ("ar_valid", "aw_valid", "w_valid", "w_last", "r_ready", "b_ready")),
        ("padding", c_uint8 * 2),
        ("w_data", c_uint8 * _MOST_PORT_BYTES),
    ]


class PortOut(ctypes.Structure):
    """Signals that the memory drives on one port in the next cycle."""

    _fields_ = [
        *((name, c_uint8) for name in ("ar_ready", "aw_ready", "w_ready", "r_valid", "r_last", "r_response")),
        *((name, c_uint8) for name in ("b_valid", "b_response")),
        ("r_data", c_uint8 * _MOST_PORT_BYTES),
    ]


@dataclass(frozen=True, kw_only=True)
class DdrCounts:
    """Lines of 64 bytes that were read and written, and the commands of the DRAM for them."""

    reads: int
    writes: int
    activates: int
    turnarounds: int
    refreshes: int
    row_conflicts: int


class DdrMemory:
    """A memory with several AXI ports on one clock. Each port answers in order.

    Reads and writes of one port do not wait for each other, as AXI allows: a write is visible to every read that is
    issued after the write's response.

    Args:
        contents: the bytes from ``address`` on, which are read and written in place; an access outside answers DECERR.
            Without contents, all addresses read as zeros.

    Raises:
        UsageError: the contents are not contiguous writable bytes, or the address is not a multiple of 4096.
        ToolError: the model cannot be compiled.
    """

    def __init__(
        self, parameters: DdrParameters = KV260, contents: NDArray[np.uint8] | None = None, *, address: int = 0
    ) -> None:
        self._handle = None
        self._library = load()
        self.parameters = parameters
        values = parameters.values()
        self._handle = self._library.edgedec_ddr_open((c_int64 * len(values))(*values))
        self._in = (PortIn * parameters.ports)()
        self._out = (PortOut * parameters.ports)()
        self._contents = contents
        if contents is not None:
            if contents.dtype != np.uint8 or not contents.flags.c_contiguous or not contents.flags.writeable:
                raise UsageError(f"contents must be contiguous writable uint8, not {contents.dtype} {contents.shape}")
            if address < 0 or address % 4096:
                raise UsageError(f"address must be a multiple of 4096, not {address}")
            self._library.edgedec_ddr_attach(self._handle, contents.ctypes.data, address, contents.size)
        self._library.edgedec_ddr_out(self._handle, parameters.ports, self._out)

    def __del__(self) -> None:
        if self._handle:
            self._library.edgedec_ddr_close(self._handle)

    @property
    def inputs(self) -> Any:
        """PortIn of each port: the signals that the master drives in this cycle."""
        return self._in

    @property
    def outputs(self) -> Any:
        """PortOut of each port: the signals that the memory drives in this cycle."""
        return self._out

    def cycle(self) -> None:
        """End the cycle with a rising edge, which transfers every beat that is valid and ready.

        Raises:
            DeviceError: a master broke a rule of AXI: a burst over 4 KiB or 256 beats, or ``w_last`` at the wrong beat.
        """
        if self._library.edgedec_ddr_cycle(self._handle, self.parameters.ports, self._in, self._out) < 0:
            raise self._failure()

    def _failure(self) -> DeviceError:
        return DeviceError(f"memory model: {self._library.edgedec_ddr_error().decode()}")

    def inject_error(
        self, address: int, size_bytes: int, *, response: int = SLVERR, reads: bool = True, writes: bool = True
    ) -> None:
        """Answer each beat of a read in the range, and each burst that writes into it, with ``response`` from now on."""
        if response not in (SLVERR, DECERR) or address < 0 or size_bytes < 1:
            raise UsageError(f"no error to inject: response {response}, {size_bytes} bytes at {address}")
        self._library.edgedec_ddr_inject_error(self._handle, address, address + size_bytes, response, reads, writes)

    def inject_stall(self, port: int, *, first_cycle: int = 0, cycles: int | None = None) -> None:
        """Stall a port for ``cycles`` cycles from ``first_cycle`` on; None: forever."""
        if not 0 <= port < self.parameters.ports or first_cycle < 0 or (cycles is not None and cycles < 1):
            raise UsageError(f"no stall to inject: port {port}, cycle {first_cycle}, {cycles} cycles")
        self._library.edgedec_ddr_inject_stall(self._handle, port, first_cycle, _FOREVER if cycles is None else cycles)

    @property
    def cycles(self) -> int:
        """Number of the ports' cycles so far."""
        return int(self._library.edgedec_ddr_cycles(self._handle))

    @property
    def idle(self) -> bool:
        """True if no transfer is pending on any port."""
        return bool(self._library.edgedec_ddr_idle(self._handle))

    @property
    def counts(self) -> DdrCounts:
        values = (c_int64 * 6)()
        self._library.edgedec_ddr_counts(self._handle, values)
        names = ("reads", "writes", "activates", "turnarounds", "refreshes", "row_conflicts")
        return DdrCounts(**dict(zip(names, values, strict=True)))

    def record_commands(self) -> None:
        """Record the commands to the DRAM from now on, 32 bytes each, for tests."""
        self._library.edgedec_ddr_record(self._handle)

    def commands(self) -> NDArray[np.int64]:
        """Return int64 [n, 4]: controller clock, ``DdrCommand``, bank (group * banks + bank of the group), row."""
        count = self._library.edgedec_ddr_commands(self._handle, None, 0)
        out = np.empty((count, 4), np.int64)
        self._library.edgedec_ddr_commands(self._handle, out.ctypes.data, count)
        return out

    def run_streams(self, streams: Any, count: int, limit_cycles: int) -> int:
        """Run the streams of ``edgedec.sim.ddr.traffic.run``, and return the number of cycles."""
        p = self.parameters
        cycles = self._library.edgedec_ddr_run(self._handle, p.ports, p.port_bytes, streams, count, limit_cycles)
        if cycles < 0:
            raise self._failure()
        return int(cycles)

    def run_reader(
        self, reader: Any, ranges: NDArray[np.int64], writes: NDArray[np.int64], other: Any, limit_cycles: int
    ) -> int:
        """Run the reader of ``edgedec.sim.ddr.reader.read``, beside another master if ``other`` is not None.

        Return the number of cycles.
        """
        cycles = self._library.edgedec_ddr_read(
            self._handle,
            ctypes.byref(reader),
            ranges.ctypes.data,
            len(ranges),
            writes.ctypes.data,
            len(writes),
            None if other is None else ctypes.byref(other),
            self.parameters.port_hz,
            limit_cycles,
        )
        if cycles < 0:
            raise self._failure()
        return int(cycles)
