"""A device of edgedec.device made of a clocked machine and its memory: RTL in a library, or a design in cocotb."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edgedec.device import Kind
from edgedec.errors import DeviceError
from edgedec.hw.isa.registers import REGISTER_MAP
from edgedec.sim.machine.arena import Arena, ArenaBuffer

__all__ = ["Machine", "MachineDevice"]

U8 = NDArray[np.uint8]


class Machine(Protocol):
    """An accelerator and the memory that its ports see."""

    def read_register(self, offset: int) -> int:
        """Return the 32-bit register at byte ``offset``."""

    def write_register(self, offset: int, value: int) -> None:
        """Write the 32-bit register at byte ``offset``."""

    def run(self, max_cycles: int) -> int:
        """Run until the interrupt, but at most ``max_cycles`` cycles, and return the number of cycles."""


class MachineDevice:
    """A device of edgedec.device. Its clock runs only in ``wait``.

    Args:
        machine: machine that was made for ``memory``.
        memory: uint8, the bytes that the machine's ports see from ``address`` on.
    """

    kind: Kind = "simulated"

    def __init__(self, name: str, machine: Machine, memory: U8, *, clock_hz: float, address: int = 0) -> None:
        self.name, self.clock_hz = name, clock_hz
        self._machine: Machine | None = machine
        self._arena = Arena(memory, address)

    @property
    def machine(self) -> Machine:
        """The machine.

        Raises:
            DeviceError: the device is closed.
        """
        if self._machine is None:
            raise DeviceError(f"device {self.name} is closed; open it again")
        return self._machine

    def read_register(self, offset: int) -> int:
        return self.machine.read_register(offset)

    def write_register(self, offset: int, value: int) -> None:
        self.machine.write_register(offset, value)

    def allocate(self, size_bytes: int, *, alignment_bytes: int = 4096) -> ArenaBuffer:
        self.machine  # noqa: B018  raises if the device is closed
        return self._arena.allocate(size_bytes, alignment_bytes)

    def wait(self, timeout_s: float) -> bool:
        """Run the machine. Ctrl-C ends the wait between two slices."""
        self.machine.run(max(1, math.ceil(timeout_s * self.clock_hz)))
        status, enable = (self.read_register(REGISTER_MAP[f"interrupt_{name}"].offset) for name in ("status", "enable"))
        return bool(status & enable)

    def close(self) -> None:
        self._machine = None
