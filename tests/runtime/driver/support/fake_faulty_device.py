"""A device with faults on purpose that no bus has: a line that is cut, a machine that stands still, Ctrl-C in a wait."""

from __future__ import annotations

from collections.abc import Callable

from edgedec.device import Buffer, Device
from edgedec.errors import DeviceError

__all__ = ["FaultyDevice"]


class FaultyDevice:
    """``device``, as long as nothing here is set; any of it may be changed between two calls.

    Members:
        device: what is behind it.
        interrupt_is_cut: ``wait`` never sees it rise; the registers tell as always.
        frozen: time passes in ``wait``, and nothing happens.
        interrupted_waits: so many of the next ones end after a few cycles, by KeyboardInterrupt.
        failing_reads: so many of the next reads of a register end in a DeviceError.
        waits_s: what each wait was told, in seconds.
        before_read: called with every offset before it is read, to do something in between.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.name, self.kind, self.clock_hz = device.name, device.kind, device.clock_hz
        self.interrupt_is_cut = self.frozen = False
        self.interrupted_waits = self.failing_reads = 0
        self.waits_s: list[float] = []
        self.before_read: Callable[[int], None] = lambda _: None

    def read_register(self, offset: int) -> int:
        self.before_read(offset)
        if self.failing_reads:
            self.failing_reads -= 1
            raise DeviceError(f"no answer to a read of {offset:#x}")
        return self.device.read_register(offset)

    def write_register(self, offset: int, value: int) -> None:
        self.device.write_register(offset, value)

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
