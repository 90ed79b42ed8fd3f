"""Provide a device with faults that no simulated bus has: a cut line, a machine that stands still, Ctrl-C in a wait."""

from __future__ import annotations

from collections.abc import Callable

from edgedec.device import Buffer, Device
from edgedec.errors import DeviceError

__all__ = ["FaultyDevice"]


class FaultyDevice:
    """Act as ``device`` until one of these members is set; each may change between two calls.

    Members:
        device: the device that does the work.
        interrupt_is_cut: ``wait`` never sees it rise; the registers work.
        frozen: time passes in ``wait``, and nothing happens.
        interrupted_waits: number of next waits that end after a few cycles, by KeyboardInterrupt.
        failing_reads: number of next reads of a register that raise a DeviceError.
        waits_s: timeout of each wait, in seconds.
        before_read: function called with every offset before it is read.
        before_write: function called with every offset and value before it is written; it returns the value to write.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.name, self.kind, self.clock_hz = device.name, device.kind, device.clock_hz
        self.interrupt_is_cut = self.frozen = False
        self.interrupted_waits = self.failing_reads = 0
        self.waits_s: list[float] = []
        self.before_read: Callable[[int], None] = lambda _: None
        self.before_write: Callable[[int, int], int] = lambda _, value: value

    def read_register(self, offset: int) -> int:
        self.before_read(offset)
        if self.failing_reads:
            self.failing_reads -= 1
            raise DeviceError(f"no answer to a read of {offset:#x}")
        return self.device.read_register(offset)

    def write_register(self, offset: int, value: int) -> None:
        self.device.write_register(offset, self.before_write(offset, value))

    def allocate(self, size_bytes: int, *, alignment_bytes: int = 4096) -> Buffer:
        return self.device.allocate(size_bytes, alignment_bytes=alignment_bytes)

    def wait(self, timeout_s: float) -> bool:
        self.waits_s.append(timeout_s)
        if self.interrupted_waits:
            self.interrupted_waits -= 1
            self.device.wait(20 / self.clock_hz)
            raise KeyboardInterrupt
        risen = not self.frozen and self.device.wait(timeout_s)
        return risen and not self.interrupt_is_cut

    def close(self) -> None:
        self.device.close()
