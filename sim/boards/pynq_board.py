"""A simulated board for pynq. Its own overlay, registers, buffers and interrupts run on a device of edgedec.

The simulation contains the accelerator, which is any edgedec.device.Device; its interrupt, which passes the interrupt
controller and a user-space interrupt file; and the registers of the processing system that pynq reads and writes (clocks,
widths of the ports to memory). It does not load a bitstream, but reads its hand-off file. Its time advances only while the
driver waits, so that a test is the same in every run.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pynq
from pynq.buffer import PynqBuffer
from pynq.interrupt import _InterruptController
from pynq.pl_server.embedded_device import EmbeddedDevice
from pynq.uio import UioController
from pynqmetadata.frontends import Metadata
from pynqmetadata.views.runtime import RuntimeMetadataParser

from edgedec.device import Device, Kind
from edgedec.errors import DeviceError
from edgedec.hw.isa.ip_core import REGISTER_BYTES, VLNV
from edgedec.hw.isa.registers import REGISTER_MAP
from edgedec.sim.boards.axi_interrupt_controller import AxiInterruptController

__all__ = ["SimulatedBoard", "SimulatedInterruptFile", "SimulatedTime"]

_NUMBERS = itertools.count()
_CONTROLLER_VLNV = "xilinx.com:ip:axi_intc:"
_CONTROLLER_BYTES = 0x10000
# Blocks of registers of the processing system that pynq accesses, as (address, bytes), and their values after boot.
_SYSTEM = {
    # Zynq UltraScale+: APLL.., IOPLL at 33.333 MHz * 90 / 2, and dividers from it to the PL clocks.
    "aarch64": ((0xFD1A_0000, 0x100), (0xFF5E_0000, 0x100), (0xFD36_0000, 0x6_0000), (0xFF9B_0000, 0x100)),
    # Zynq-7000: system level control registers, and the ports to memory.
    "armv7l": ((0xF800_0000, 0x200), (0xF800_8000, 0x4000)),
}
_STARTED = {
    "aarch64": {0xFF5E_0020: 1 << 16 | 90 << 8, **{0xFF5E_00C0 + 4 * n: 1 << 24 | 1 << 16 | 15 << 8 for n in range(4)}},
    "armv7l": {0xF800_0108: 20 << 12, **{0xF800_0170 + 16 * n: 1 << 20 | 10 << 8 for n in range(4)}},
}


class SimulatedInterruptFile(UioController):
    """A /dev/uio file as made by uio_pdrv_genirq of Linux.

    Four bytes can be read after an interrupt; the next interrupt is delivered only after four bytes were written. Reading,
    writing and the part of the event loop are pynq's own.

    Members:
        delivered: number of delivered interrupts.
        deaf: interrupts are lost while this is True.
        late: number of calls of ``drive`` by which an interrupt is delayed.
    """

    def __init__(self) -> None:
        self._mine, theirs = socket.socketpair()
        self._mine.setblocking(False)
        self.uio = theirs.makefile("rwb", buffering=0)
        theirs.close()
        self.wait_events: list[Any] = []
        self.delivered, self.late, self.deaf = 0, 0, False
        self._armed, self._waited = False, 0
        self._loop = asyncio.get_event_loop()
        self._loop.add_reader(self.uio, self._uio_callback)

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        if not self.uio.closed:
            if not self._loop.is_closed():
                self._loop.remove_reader(self.uio)
            self.uio.close()
            self._mine.close()

    def drive(self, high: bool) -> None:
        """Set the level of the processor's interrupt line."""
        with contextlib.suppress(BlockingIOError):
            self._armed = bool(self._mine.recv(4096)) or self._armed
        if not (high and self._armed) or self.deaf:
            return
        if self._waited < self.late:
            self._waited += 1
        else:
            self._armed, self._waited = False, 0
            self.delivered += 1
            self._mine.send(bytes(4))


class SimulatedTime:
    """The simulation's clock for edgedec.runtime.devices._waiting. It advances by the time that is waited."""

    def __init__(self, board: SimulatedBoard) -> None:
        self._board, self._now = board, 0.0

    def now(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self._now += seconds
        self._board.accelerator.wait(seconds)
        self._board.drive()

    async def pause(self, seconds: float) -> None:
        self.sleep(seconds)
        for _ in range(3):  # the file becomes readable, pynq reads it, and its event wakes the waiting task
            await asyncio.sleep(0)


class SimulatedBoard(pynq.Device):
    """A device of pynq with a simulated accelerator.

    Args:
        accelerator: the accelerator that is in the fabric after an overlay was loaded.
        arch: architecture of the processor: aarch64 is Zynq UltraScale+, armv7l is Zynq-7000.
        cma_bytes: total size in bytes of all buffers.

    Members:
        clock: clock of the board, for the driver.
        interrupt_file: interrupt file, which exists after an overlay with interrupts was loaded.
        downloads: number of overlays that were loaded.
        accesses: (address, value) of each word that was written outside the accelerator and its interrupt controller.
    """

    _probe_priority_ = 7_201_337
    kind: Kind = "simulated"

    @classmethod
    def _probe_(cls) -> list[Any]:
        return []  # pynq must never select this board by itself

    def __init__(self, accelerator: Device, *, arch: str = "aarch64", cma_bytes: int = 1 << 30) -> None:
        number = next(_NUMBERS)
        super().__init__(f"simulated{number}-{os.getpid()}")
        self.name, self.arch, self.timestamp, self.bitfile_name = f"simulated{number}", arch, "", None
        self.capabilities = {"REGISTER_RW": True}
        pynq.ps.CPU_ARCH = arch  # by which pynq 3.0 selects the registers of the clocks; 3.1 asks the device
        self.accelerator, self.clock = accelerator, SimulatedTime(self)
        self.interrupt_file: SimulatedInterruptFile | None = None
        self.downloads, self.accesses = 0, list[tuple[int, int]]()
        self._controller = AxiInterruptController()
        self._system = dict(_STARTED[arch])
        self._blocks: dict[
            str, int
        ] = {}  # address of the accelerator and of the controller, after an overlay was loaded
        self._free = cma_bytes

    # The methods that pynq.Device requires.

    def get_bitfile_metadata(self, bitfile_name: str, partial: bool = False) -> Any:
        return RuntimeMetadataParser(Metadata(input=str(Path(bitfile_name).with_suffix(".hwh"))))

    def download(self, bitstream: Any, parser: Any = None) -> None:
        """Place the accelerator at the address in the hand-off file."""
        offset = REGISTER_MAP["control"].offset
        self.accelerator.write_register(offset, 4)  # soft_reset: nothing runs in a fabric after it was loaded
        addresses = {entry["type"]: entry["phys_addr"] for entry in parser.ip_dict.values() if "phys_addr" in entry}
        self._blocks = {"accelerator": addresses[VLNV]}
        self._controller = AxiInterruptController()
        for name, entry in parser.interrupt_controllers.items():
            self._blocks["controller"] = parser.ip_dict[name]["phys_addr"]
            self.interrupt_file = _InterruptController._uio_devices[entry["raw_irq"]] = SimulatedInterruptFile()
        EmbeddedDevice.set_axi_port_width(self, parser)
        self.downloads += 1
        super().post_download(bitstream, parser, self.name)

    def read_registers(self, address: int, length: int) -> bytes:
        words = (self._read(address + offset) for offset in range(0, length, 4))
        return b"".join(word.to_bytes(4, "little") for word in words)

    def write_registers(self, address: int, data: Any) -> None:
        content = bytes(data)
        for offset in range(0, len(content), 4):
            self._write(address + offset, int.from_bytes(content[offset : offset + 4], "little"))

    def allocate(self, shape: Any, dtype: Any, **kwargs: Any) -> Any:
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        if size > self._free:
            raise RuntimeError("BO allocation failed: Cannot allocate memory")
        try:
            memory = self.accelerator.allocate(size, alignment_bytes=4096)
        except DeviceError as error:
            raise RuntimeError(f"BO allocation failed: {error}") from error
        self._free -= size
        buffer = PynqBuffer(
            shape,
            dtype,
            buffer=memory.array,
            device=self,
            device_address=memory.address,
            bo=memory,
            coherent=False,
        )
        weakref.finalize(buffer, self._give_back, memory, size).atexit = False
        return buffer

    def _give_back(self, memory: Any, size: int) -> None:
        self._free += size
        memory.close()

    def flush(self, bo: Any, offset: int, ptr: int, size: int) -> None:
        bo.flush()

    def invalidate(self, bo: Any, offset: int, ptr: int, size: int) -> None:
        bo.invalidate(offset, size)

    # The blocks at the addresses.

    @property
    def free_bytes(self) -> int:
        """Free bytes of contiguous memory."""
        return self._free

    def drive(self) -> None:
        """Update the interrupt lines from the accelerator's registers."""
        if "controller" in self._blocks and self.interrupt_file is not None:
            status, enable = (
                self.accelerator.read_register(REGISTER_MAP[f"interrupt_{name}"].offset)
                for name in ("status", "enable")
            )
            self._controller.drive(int(bool(status & enable)))
            self.interrupt_file.drive(self._controller.output)

    def _read(self, address: int) -> int:
        block, offset = self._place(address)
        if block == "accelerator":
            return self.accelerator.read_register(offset)
        if block == "controller":
            return self._controller.read(offset)
        return self._system.get(address, 0)

    def _write(self, address: int, value: int) -> None:
        block, offset = self._place(address)
        if block == "accelerator":
            self.accelerator.write_register(offset, value)
        elif block == "controller":
            self._controller.write(offset, value)
            self.drive()
        else:
            self._system[address] = value
            self.accesses.append((address, value))

    def _place(self, address: int) -> tuple[str, int]:
        for block, size in (("accelerator", REGISTER_BYTES), ("controller", _CONTROLLER_BYTES)):
            base = self._blocks.get(block, -1)
            if 0 <= base <= address < base + size:
                return block, address - base
        for base, size in _SYSTEM[self.arch]:
            if base <= address < base + size:
                return "system", address - base
        raise DeviceError(f"nothing is at address {address:#x}: a board would hang here")
