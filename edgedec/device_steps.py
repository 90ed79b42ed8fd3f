"""Steps of a device that belong together, such as those that start a pass, in one request.

A device that is far away has ``perform(steps)`` and carries all of them out in one round trip; on any other device
``perform`` below carries out one after another, with the same results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

from edgedec.device import Buffer, Device
from edgedec.errors import DeviceError

__all__ = [
    "ExpectRegister",
    "Fetch",
    "Flush",
    "Performer",
    "ReadRegister",
    "Step",
    "UnexpectedRegisterError",
    "Wait",
    "WriteRegister",
    "one_by_one",
    "perform",
]


@dataclass(frozen=True)
class Flush:
    """Flush a buffer."""

    buffer: Buffer


@dataclass(frozen=True)
class Fetch:
    """Invalidate the first ``size_bytes`` of a buffer, so that its array has what the device wrote."""

    buffer: Buffer
    size_bytes: int


@dataclass(frozen=True)
class ExpectRegister:
    """Read the 32-bit register at a byte offset; without this value, no later step is carried out."""

    offset: int
    value: int


@dataclass(frozen=True)
class WriteRegister:
    """Write the 32-bit register at a byte offset."""

    offset: int
    value: int


@dataclass(frozen=True)
class ReadRegister:
    """Read the 32-bit register at a byte offset."""

    offset: int


@dataclass(frozen=True)
class Wait:
    """Wait for the interrupt as ``Device.wait`` does."""

    timeout_s: float


Step: TypeAlias = Flush | Fetch | ExpectRegister | WriteRegister | ReadRegister | Wait


class UnexpectedRegisterError(DeviceError):
    """A register has another value than a step expected.

    Members:
        expect: the step.
        value: value of the register.
    """

    def __init__(self, expect: ExpectRegister, value: int) -> None:
        super().__init__(f"the register at {expect.offset:#x} reads {value:#x}, not {expect.value:#x}")
        self.expect, self.value = expect, value


@runtime_checkable
class Performer(Protocol):
    """A device with a way of its own to carry out steps."""

    def perform(self, steps: Sequence[Step]) -> list[int]:
        """Carry out steps, as the function ``perform`` does.

        There is at most one Wait. Steps after it may be carried out more than once, so they must give the same when they
        are repeated. The order of the kinds is Flush, ExpectRegister, WriteRegister, Wait, WriteRegister, ReadRegister,
        Fetch; each may be absent.
        """


def perform(device: Device, steps: Sequence[Step]) -> list[int]:
    """Carry out steps in their order.

    Args:
        steps: in the order that ``Performer.perform`` names.

    Returns:
        The value of each ReadRegister, and 1 or 0 for a Wait with or without the interrupt, in the order of the steps.

    Raises:
        UnexpectedRegisterError: a register has another value than expected.
        DeviceError: the device does not answer.
    """
    own = getattr(device, "perform", None)  # to ask whether it is a Performer takes longer
    return one_by_one(device, steps) if own is None else list(own(steps))


def one_by_one(device: Device, steps: Sequence[Step]) -> list[int]:
    """Carry out steps as ``perform`` does, with a call of the device for each."""
    found = list[int]()
    for step in steps:
        if isinstance(step, WriteRegister):  # most steps are
            device.write_register(step.offset, step.value)
        elif isinstance(step, ReadRegister):
            found.append(device.read_register(step.offset))
        elif isinstance(step, ExpectRegister):
            value = device.read_register(step.offset)
            if value != step.value:
                raise UnexpectedRegisterError(step, value)
        elif isinstance(step, Flush):
            step.buffer.flush()
        elif isinstance(step, Fetch):
            step.buffer.invalidate(0, step.size_bytes)
        else:
            found.append(int(device.wait(step.timeout_s)))
    return found
