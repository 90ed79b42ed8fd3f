"""The device ``interpreter``: it has the accelerator's registers, and runs a program in NumPy without a clock.

It reads program, image and buffers at the addresses in its registers, as the hardware does. Its memory is not coherent:
a driver that forgets to flush or to invalidate a buffer gets other results.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgedec.device import Kind, LoopAccess
from edgedec.errors import DeviceError, UsageError
from edgedec.hw.config import PASSES_AHEAD, AcceleratorConfig
from edgedec.hw.isa.register_map import SLOTS
from edgedec.hw.isa.registers import COUNTS, REGISTER_MAP, Cause, registers_of
from edgedec.hw.isa.sequences import sequences_of
from edgedec.sim.interpreter.device_run import DeviceBuffer, PassOutcome, PassRequest, Runner
from edgedec.sim.machine.register_file import RegisterFile

__all__ = ["TAPS", "InterpreterBuffer", "InterpreterDevice", "open_device"]

TAPS = True  # it writes tapped vectors

U8 = NDArray[np.uint8]

_FIRST_ADDRESS = (
    0x1_0000_1000  # above 32 bits and aligned to a page only, so that a caller must request any larger alignment
)
_PASS_FIELDS = ("slots", "committed", "logits")


class InterpreterBuffer:
    """A buffer of edgedec.device.

    Members:
        array: the host's bytes.
        memory: the device's bytes.
    """

    def __init__(self, memory: DeviceBuffer, release: list[DeviceBuffer]) -> None:
        self.memory, self._release = memory, release
        self.array, self.address = memory.bytes.copy(), memory.address

    def flush(self) -> None:
        self.memory.bytes[:] = self.array
        self.memory.version += 1

    def invalidate(self, start: int = 0, size_bytes: int | None = None) -> None:
        end = None if size_bytes is None else start + size_bytes
        self.array[start:end] = self.memory.bytes[start:end]

    def close(self) -> None:
        if self.memory in self._release:
            self._release.remove(self.memory)


class InterpreterDevice:
    """A device of edgedec.device. A pass runs within ``wait``, and takes one cycle for each beat that it reads.

    Members:
        stalled: while it is True, memory does not answer, so that a pass never ends but by its watchdog or a reset.
    """

    name = "interpreter"
    kind: Kind = "simulated"
    loop_access = LoopAccess()

    def __init__(self, config: AcceleratorConfig, rtlil_hash: int = 0) -> None:
        self.clock_hz = config.clock_hz
        self.stalled = False
        self._memories: list[DeviceBuffer] = []
        self._free = _FIRST_ADDRESS
        self._runner = Runner(config, self._memories)
        self._registers = RegisterFile(registers_of(config.sequences), self._pulsed)
        self._registers["configuration_hash"] = config.hash
        self._registers["rtlil_hash"] = rtlil_hash
        self._requests = deque[PassRequest]()  # the running pass or commit, and those that wait
        self._cycles = 0  # cycles that the running one has had in ``wait``
        self._counted = dict.fromkeys(COUNTS, 0)
        self._closed = False

    def read_register(self, offset: int) -> int:
        self._check_open()
        return self._registers.read(offset)

    def write_register(self, offset: int, value: int) -> None:
        self._check_open()
        self._registers.write(offset, value)

    def allocate(self, size_bytes: int, *, alignment_bytes: int = 4096) -> InterpreterBuffer:
        self._check_open()
        if size_bytes < 1 or alignment_bytes < 1 or alignment_bytes & (alignment_bytes - 1):
            raise UsageError(f"no buffer to allocate: {size_bytes} bytes at a multiple of {alignment_bytes}")
        address = self._free + -self._free % alignment_bytes
        self._free = address + size_bytes
        memory = DeviceBuffer(address=address, bytes=np.zeros(size_bytes, np.uint8))
        self._memories.append(memory)
        return InterpreterBuffer(memory, self._memories)

    def wait(self, timeout_s: float) -> bool:
        self._check_open()
        if self._requests and not self._interrupt:
            self._cycles += math.ceil(timeout_s * self.clock_hz)
        while self._requests and not self._interrupt:
            request = self._requests[0]
            outcome = self._watched() if self.stalled else self._runner.outcome(request, self._cycles)
            if outcome is None:
                break
            self._end(request, outcome)
        return self._interrupt

    def _watched(self) -> PassOutcome | None:
        """Return what the watchdog makes of a pass whose memory does not answer."""
        limit = self._registers["watchdog_limit"]
        return PassOutcome(cause=Cause.WATCHDOG) if 0 < limit < self._cycles else None

    def close(self) -> None:
        self._closed = True
        self._memories.clear()

    def _check_open(self) -> None:
        if self._closed:
            raise DeviceError(f"device {self.name} is closed; open it again")

    @property
    def _interrupt(self) -> bool:
        return bool(self._registers["interrupt_status"] & self._registers["interrupt_enable"])

    def _pulsed(self, doorbells: Sequence[str]) -> None:
        registers = self._registers
        if "start" in doorbells or "commit" in doorbells:
            self._ring(commits="start" not in doorbells)
        if "soft_reset" in doorbells:
            self._requests.clear()
            for name in ("status", "error", "error_address", "queue"):
                registers[name] = 0
        if "latch_counters" in doorbells:
            for name, value in self._counted.items():
                registers[f"counter_{name}"] = value
        if "clear_counters" in doorbells:
            self._counted = dict.fromkeys(COUNTS, 0)

    def _ring(self, *, commits: bool) -> None:
        """Queue an operation with all parameters as the registers have them.

        Raises:
            UsageError: a commit keeps no slots. The RTL moves nothing then, which its simulation takes for a fault.
        """
        registers = self._registers
        if registers["status"] & _bit("status", "error"):
            return
        if commits and not registers["commit_slots"]:
            raise UsageError("a commit of no slots (register commit_slots is 0) has nothing to move; leave it out")
        if not self._requests:
            self._cycles = 0
        slots, committed, logits = (registers.field(REGISTER_MAP["pass_parameters"], name) for name in _PASS_FIELDS)
        begins = 0 if commits else registers["sequence_begins"]
        # An accelerator with one sequence does not have these registers.
        places = (registers.values.get(name, [0] * SLOTS) for name in ("sequence_group", "later_committed"))
        request = PassRequest(
            commits=commits,
            addresses={name: registers[f"{name}_address"] for name in ("program", "image", "kv", "input", "output")},
            program_bytes=registers["program_bytes"],
            accepted=registers["commit_slots"],
            positions=tuple(registers.values["position"]),
            masks=tuple(registers.values["mask"]),
            slots=slots,
            logits=logits,
            sequences=sequences_of(slots, committed, begins, *places),
        )
        self._requests.append(request)
        if len(self._requests) > 1 + PASSES_AHEAD:
            self._end(request, PassOutcome(cause=Cause.OVERRUN))
        else:
            self._show(ended=0)

    def _show(self, *, ended: int) -> None:
        """Set status and queue: ``ended`` more operations have ended, and those of ``_requests`` have not."""
        registers = self._registers
        registers["status"] = _bit("status", "busy") if self._requests else _bit("status", "done")
        number = registers["queue"] + ended & 0xFF
        registers["queue"] = number | max(len(self._requests) - 1, 0) << 8

    def _end(self, request: PassRequest, outcome: PassOutcome) -> None:
        registers = self._registers
        self._counted["beats"] += outcome.beats
        self._counted["descriptors"] += outcome.descriptors
        if outcome.cause == Cause.NONE:
            self._requests.popleft()
            self._cycles -= outcome.beats
            self._show(ended=1)
            registers["interrupt_status"] |= _bit("interrupt_status", "committed" if request.commits else "done")
            return
        self._requests.clear()
        registers["status"], registers["queue"] = _bit("status", "error"), registers["queue"] & 0xFF
        registers["error"] = outcome.cause | outcome.descriptor << 8
        registers["error_address"] = outcome.address
        registers["interrupt_status"] |= _bit("interrupt_status", "error")


def _bit(register: str, field: str) -> int:
    return next(1 << lsb for member, lsb in REGISTER_MAP[register].positions() if member.name == field)


def open_device(config: AcceleratorConfig, *, rtlil_hash: int = 0) -> InterpreterDevice:
    """Return an accelerator of ``config`` in its state after power-up.

    Args:
        rtlil_hash: value of the register of this name, for an interpreter in the place of a board; 0: it has no RTL.
    """
    return InterpreterDevice(config, rtlil_hash)
