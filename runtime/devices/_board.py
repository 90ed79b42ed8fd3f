"""Mapped registers, and resources that are released in order: the parts that devices on boards share."""

from __future__ import annotations

import logging
import weakref
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edgedec.device import BufferCache, Kind, LoopAccess
from edgedec.errors import DeviceError, UsageError
from edgedec.hw.handoff.read import Handoff
from edgedec.hw.isa.registers import REGISTER_MAP
from edgedec.runtime.devices._waiting import WaitClock, Waiter
from edgedec.runtime.driver.identity import Gateware
from edgedec.runtime.driver.lock import DeviceLock

__all__ = ["FABRIC", "BoardDevice", "BoardParts", "MappedRegisters", "Words", "check_loaded"]

_LOG = logging.getLogger(__name__)
_SETTLE_S, _SETTLE_STEP_S = 0.1, 10e-6  # maximum duration of a soft reset, and time between two reads of the status
# Seconds for which the compiled loop sleeps between two looks at mapped registers, which is what a pass may end later.
_POLL_S = 20e-6
_OFFSETS = REGISTER_MAP.offsets()
FABRIC = "fabric"  # name of the lock of this machine's fabric, which its devices share

# Buffers of accelerators that did not come to rest and may still write to them. They stay allocated while this process runs.
_UNSAFE: list[Any] = []


class Words(Protocol):
    """Mapped 32-bit words, as pynq.MMIO."""

    def read(self, offset: int) -> int:
        """Return the word at a byte offset."""

    def write(self, offset: int, value: int) -> None:
        """Write the word at a byte offset."""


class MappedRegisters:
    """The accelerator's registers in mapped words.

    Parameters:
        words: the mapped words.
        size_bytes: bytes of the address space; what lies beyond reads 0.
    """

    def __init__(self, words: Words, size_bytes: int) -> None:
        self._words, self._size = words, size_bytes

    def read(self, offset: int) -> int:
        if offset % 4 or offset < 0:
            raise UsageError(f"a register's offset is a multiple of 4, not {offset}")
        return int(self._words.read(offset)) if offset < self._size else 0

    def write(self, offset: int, value: int) -> None:
        if offset % 4 or offset < 0:
            raise UsageError(f"a register's offset is a multiple of 4, not {offset}")
        if not 0 <= value < 1 << 32:
            raise UsageError(f"a register holds 32 bits, not {value:#x}; write 64 bits as two words")
        if offset < self._size:
            self._words.write(offset, int(value))

    @property
    def mapped(self) -> NDArray[np.uint32] | None:
        """The words as an array, uint32 [n], if they are mapped memory, as those of pynq.MMIO on a board."""
        array = getattr(self._words, "array", None)
        return array if isinstance(array, np.ndarray) and array.dtype == np.uint32 else None

    def is_high(self) -> bool:
        """Return whether the interrupt is high, from the registers that determine it."""
        return bool(self.read(_OFFSETS["interrupt_status"]) & self.read(_OFFSETS["interrupt_enable"]))

    def is_accelerator(self, *, of_any_version: bool = False) -> bool:
        """Return whether the registers are those of an accelerator of this version, or of any."""
        names = ("identity",) if of_any_version else ("identity", "version")
        return all(self.read(_OFFSETS[name]) == REGISTER_MAP[name].reset for name in names)

    def settle(self, clock: WaitClock) -> None:
        """Abandon a running pass. Afterwards the accelerator does not access memory.

        Raises:
            DeviceError: the buses are still busy after ``_SETTLE_S``.
        """
        self.write(_OFFSETS["control"], _bit("control", "soft_reset"))
        end = clock.now() + _SETTLE_S
        while self.read(_OFFSETS["status"]) & _bit("status", "resetting"):
            if clock.now() > end:
                raise DeviceError(
                    f"the buses are not at rest {_SETTLE_S} s after a soft reset; switch the board off and on"
                )
            clock.sleep(_SETTLE_STEP_S)


class BoardParts:
    """The resources of a device, which are released in order, even if the process ends without closing the device."""

    def __init__(self, registers: MappedRegisters, lock: DeviceLock, clock: WaitClock) -> None:
        self.registers, self.lock, self.clock = registers, lock, clock
        self.buffers: list[Any] = []

    def release(self) -> None:
        """Stop the accelerator, free the buffers and release the lock."""
        try:
            self.registers.settle(self.clock)
        except Exception as error:
            _LOG.warning("the accelerator is not at rest, so its memory stays allocated: %s", str(error))
            _UNSAFE.extend(self.buffers)
        else:
            for buffer in list(self.buffers):
                buffer.close()
        self.lock.release()


class BoardDevice:
    """A device of ``edgedec.device`` on a board. Subclasses allocate its memory.

    Parameters:
        parts: the resources, which ``close`` releases.
        waiter: waits for the interrupt.
        clock_hz: clock of the accelerator in Hz.
        kind: kind of the figures.
    """

    name = ""

    def __init__(self, parts: BoardParts, waiter: Waiter, clock_hz: float, kind: Kind) -> None:
        self.clock_hz, self.kind = clock_hz, kind
        self._parts, self._waiter = parts, waiter
        self._release = weakref.finalize(self, parts.release)  # it also runs at the end of the process

    def read_register(self, offset: int) -> int:
        """Read a register."""
        self._check_open()
        return self._parts.registers.read(offset)

    def write_register(self, offset: int, value: int) -> None:
        """Write a register."""
        self._check_open()
        self._parts.registers.write(offset, value)

    def wait(self, timeout_s: float) -> bool:
        """Wait for the interrupt, for at most ``timeout_s`` seconds, and return whether it is high."""
        self._check_open()
        return self._waiter.wait(timeout_s)

    @property
    def loop_access(self) -> LoopAccess:
        """The way in which the compiled loop reaches the accelerator."""
        return LoopAccess(registers=self._parts.registers.mapped, poll_s=_POLL_S, cache=self._cache_settings)

    def _cache_settings(self, buffer: Any) -> BufferCache:
        """Return how the host's cache of a buffer is written back and discarded without Python; None: by Python."""
        return None

    def close(self) -> None:
        """Stop the accelerator, free the buffers and release the board. A second call does nothing."""
        self._release()

    def _check_room(self, size_bytes: int, alignment_bytes: int) -> None:
        """Check what is to be allocated, and that the device is open."""
        self._check_open()
        if size_bytes < 1 or alignment_bytes < 1 or alignment_bytes & (alignment_bytes - 1):
            raise UsageError(f"no buffer to allocate: {size_bytes} bytes at a multiple of {alignment_bytes}")

    def _check_open(self) -> None:
        if not self._release.alive:
            raise DeviceError(f"device {self.name} is closed; open it again")


def check_loaded(registers: MappedRegisters, bitstream: Path, handoff: Handoff) -> None:
    """Compare the registers with the hand-off file of ``bitstream``.

    Raises:
        DeviceError: they are not those of an accelerator, or those of another build.
    """
    if not registers.is_accelerator():
        identity, version = registers.read(_OFFSETS["identity"]), registers.read(_OFFSETS["version"])
        raise DeviceError(
            f"after loading {bitstream}, its registers read {identity:#x} and {version:#x}: no accelerator of this "
            "edgedec; build the bitstream with this version"
        )
    version = registers.read(_OFFSETS["isa_version"])
    if version != handoff.isa_version:
        raise _two_builds(bitstream, handoff, f"isa_version {version}", f"{handoff.isa_version}")
    configuration, rtlil = (
        registers.read(_OFFSETS[name]) | registers.read(_OFFSETS[name] + 4) << 32
        for name in ("configuration_hash", "rtlil_hash")
    )
    if configuration != handoff.configuration_hash:
        found = f"configuration_hash {configuration:016x}"
        raise _two_builds(bitstream, handoff, found, f"{handoff.configuration_hash:016x}")
    Gateware(rtlil_hash=handoff.rtlil_hash, file=handoff.path, bitstream=bitstream).check(rtlil)


def _two_builds(bitstream: Path, handoff: Handoff, found: str, expected: str) -> DeviceError:
    return DeviceError(
        f"{bitstream} holds {found}, {handoff.path} says {expected}: they are of two builds; copy both again, from one"
    )


def _bit(register: str, field: str) -> int:
    return next(1 << lsb for item, lsb in REGISTER_MAP[register].positions() if item.name == field)
