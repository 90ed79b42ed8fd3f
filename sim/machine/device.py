"""A clocked machine with a memory as a device: RTL in a library, a design under cocotb."""

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
        """32 bits."""

    def write_register(self, offset: int, value: int) -> None:
        """32 bits."""

    def run(self, max_cycles: int) -> int:
        """Until the interrupt, or so many cycles; returns how many it were."""


class MachineDevice:
    """A device of edgedec.device whose time stands still between calls.

    Args:
        machine: made for ``memory``.
        memory: uint8, what the machine's ports see from byte ``address`` on.
    """

    kind: Kind = "simulated"

    def __init__(self, name: str, machine: Machine, memory: U8, *, clock_hz: float, address: int = 0) -> None:
        self.name, self.clock_hz = name, clock_hz
        self._machine: Machine | None = machine
        self._arena = Arena(memory, address)

    @property
    def machine(self) -> Machine:
        """Raises:
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
        self.machine  # noqa: B018  a closed device says so
        return self._arena.allocate(size_bytes, alignment_bytes)

    def wait(self, timeout_s: float) -> bool:
        """Clocks the machine; Ctrl-C ends it between two slices."""
        self.machine.run(max(1, math.ceil(timeout_s * self.clock_hz)))
        status, enable = (self.read_register(REGISTER_MAP[f"interrupt_{name}"].offset) for name in ("status", "enable"))
        return bool(status & enable)

    def close(self) -> None:
        self._machine = None
