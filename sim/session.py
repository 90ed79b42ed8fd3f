"""A compiled model on an accelerator reached through its registers and its memory: pass by pass, as a driver does it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import DeviceError, UsageError
from edgedec.hw.accelerator_registers import ERROR_CAUSES, REGISTER_MAP
from edgedec.hw.command_processor import Cause
from edgedec.hw.compiler.host import Host, Results
from edgedec.hw.compiler.program import Program, laid_out
from edgedec.hw.config import ADDRESS_BITS
from edgedec.hw.counters import COUNTS
from edgedec.hw.register_map import Access, Register
from edgedec.hw.striping import block_bytes, stripe
from edgedec.reference.integer_profile.values import Logits
from edgedec.schemes import FloatWeight, Int8Weight

__all__ = ["BEST", "NO_LOGITS", "WHOLE_ROWS", "Machine", "MemoryMap", "PassReport", "Session"]

NO_LOGITS, BEST, WHOLE_ROWS = 0, 1, 2  # register pass_parameters, field logits
_ADDRESSES = tuple(f"{name}_address" for name in ("program", "image", "kv", "input", "output"))
_SLICE_CYCLES = 1 << 40  # of a run without a limit

I32 = NDArray[np.int32]
U8 = NDArray[np.uint8]


class Machine(Protocol):
    """An accelerator and the memory that its ports see."""

    def read_register(self, offset: int) -> int:
        """32 bits."""

    def write_register(self, offset: int, value: int) -> None:
        """32 bits."""

    def run(self, max_cycles: int) -> int:
        """Until the interrupt, or so many cycles; returns how many it were."""


@dataclass(frozen=True, kw_only=True)
class MemoryMap:
    """Byte offsets of the buffers, each a whole block of the striping.

    Members:
        program, image, cache, input, output: starts.
        size: of all.
    """

    program: int
    image: int
    cache: int
    input: int
    output: int
    size: int

    @staticmethod
    def of(program: Program) -> MemoryMap:
        """The buffers behind each other."""
        starts, size = laid_out(program.sizes, program.config.ports)
        return MemoryMap(**starts, size=size)


@dataclass(frozen=True, kw_only=True)
class PassReport:
    """What the counters say of a pass, or of a commit.

    Members:
        cycles: from the doorbell's answer to the last write's.
        beats: of the read stream that were taken.
        starved: cycles in which the next beat had not come.
        blocked: in which a result waited for the write port.
        dependency: in which a beat waited for an earlier result.
        descriptors: instructions that were issued.
    """

    cycles: int
    beats: int
    starved: int
    blocked: int
    dependency: int
    descriptors: int


class Session:
    """One sequence of tokens.

    Args:
        program: what was compiled.
        embedding: the table that it was compiled with.
        machine: made for ``memory``.
        memory: uint8 [MemoryMap.of(program).size], what the machine's ports see from byte ``address`` on.
        max_cycles: of a pass; then it has failed.

    Raises:
        DeviceError: the machine is no edgedec accelerator, of another register map, or of another configuration.
        UsageError: the memory is too small, begins within a block of the striping, or ends behind the bus's last byte; or
            the program leaves its buffers.
    """

    def __init__(
        self,
        program: Program,
        embedding: FloatWeight | Int8Weight,
        machine: Machine,
        memory: U8,
        *,
        address: int = 0,
        max_cycles: int = _SLICE_CYCLES,
    ) -> None:
        self.program, self.machine, self.memory = program, machine, memory
        self.host, self.map = Host(program, embedding), MemoryMap.of(program)
        self.length = 0  # committed positions
        self.max_cycles = max_cycles
        self._address, self._slots = address, 0
        if memory.dtype != np.uint8 or memory.size < self.map.size:
            raise UsageError(f"the program needs {self.map.size} bytes of memory, not {memory.size}")
        self._check_addresses()
        self._identify()
        self._put(self.map.program, np.frombuffer(program.code, np.uint8))
        self._put(self.map.image, program.image)
        for name, start in (("program", self.map.program), ("image", self.map.image), ("kv", self.map.cache)):
            self.write(f"{name}_address", address + start)
        for name, start in (("input", self.map.input), ("output", self.map.output)):
            self.write(f"{name}_address", address + start)
        self.write("program_bytes", len(program.code))
        self.write_fields("interrupt_enable", done=1, error=1, committed=1)

    def _check_addresses(self) -> None:
        block, address, end = block_bytes(self.program.config.ports), self._address, self._address + self.map.size
        if address < 0 or address % block:
            raise UsageError(f"the memory must begin at a multiple of {block} bytes, not at {address:#x}")
        if end > 1 << ADDRESS_BITS:
            raise UsageError(
                f"{self.map.size} bytes from {address:#x} on end at {end:#x}; the accelerator's bus ends at "
                f"{1 << ADDRESS_BITS:#x}: use a smaller context, or memory at a lower address"
            )
        stray = self.program.astray()
        if stray is not None:
            raise UsageError(f"instruction {self._name(stray)} leaves its buffer; compile the program again")

    def _identify(self) -> None:
        for name in ("identity", "version"):
            found, wanted = self.read(name), REGISTER_MAP[name].reset
            if found != wanted:
                raise DeviceError(
                    f"register {name} reads {found:#x}, not {wanted:#x}: no accelerator of this edgedec; load its bitstream"
                )
        found = self.read("configuration_hash")
        if found != self.program.config.hash:
            raise DeviceError(
                f"the accelerator was generated from configuration {found:016x}, the program is for "
                f"{self.program.config.hash:016x}; compile the model for this accelerator"
            )

    def _put(self, start: int, image: U8) -> None:
        """Bytes in logical order to where the read ports look for them."""
        laid = stripe(image, ports=self.program.config.ports, port_bytes=self.program.config.port_bytes)
        self.memory[start : start + laid.size] = laid

    def read(self, name: str, index: int = 0) -> int:
        """A whole register."""
        register = REGISTER_MAP[name]
        offset = register.offset + index * register.bytes
        words = range(register.bytes // 4)
        return sum(self.machine.read_register(offset + 4 * word) << (32 * word) for word in words)

    def read_field(self, name: str, field: str) -> int:
        value = self.read(name)
        for found, lsb in REGISTER_MAP[name].positions():
            if found.name == field:
                return value >> lsb & ((1 << found.bits) - 1)
        raise UsageError(f"register {name} has no field {field!r}")

    def write(self, name: str, value: int, index: int = 0) -> None:
        """A whole register."""
        register = REGISTER_MAP[name]
        offset = register.offset + index * register.bytes
        for word in range(register.bytes // 4):
            self.machine.write_register(offset + 4 * word, value >> (32 * word) & 0xFFFFFFFF)

    def write_fields(self, name: str, **fields: int) -> None:
        """A register of these fields; the others become 0."""
        self.write(name, _composed(REGISTER_MAP[name], fields))

    def forward(
        self,
        ids: I32,
        *,
        positions: I32 | None = None,
        visible: NDArray[np.bool_] | None = None,
        logits: int = BEST,
        embeds: NDArray[np.float32] | None = None,
    ) -> PassReport:
        """One pass of 1 to ``slots`` ids over the committed positions; ``commit`` keeps what it is told to.

        Args:
            ids: int32 [n].
            positions: int32 [n], in the text; None goes on behind the committed ones.
            visible: bool [n, n]: row i sees row j of this pass; None is causal.
            logits: NO_LOGITS, BEST or WHOLE_ROWS.

        Raises:
            DeviceError: the accelerator gave up; names cause and instruction. ``reset`` makes it usable again.
            UsageError: as ``Host.input``.
        """
        n, config = len(ids), self.program.config
        if positions is None:
            positions = np.arange(self.length, self.length + n, dtype=np.int32)
        seen = np.tri(n, dtype=np.bool_) if visible is None else visible
        self._put(self.map.input, self.host.input(ids, positions, embeds))
        self.write_fields("pass_parameters", slots=n, committed=self.length, logits=logits)
        for slot in range(min(n, config.slots)):
            self.write("position", int(positions[slot]), slot)
            self.write("mask", sum(1 << int(other) for other in np.flatnonzero(seen[slot])), slot)
        self._slots = n
        return self._run("start", "done")

    def commit(self, nodes: I32) -> PassReport | None:
        """Keeps these slots of the last pass, in ascending order; None if nothing had to be moved.

        Raises:
            UsageError: slots that the last pass did not have, or not ascending.
        """
        kept = [int(node) for node in nodes]
        if kept != sorted(set(kept)) or (kept and not 0 <= kept[0] <= kept[-1] < self._slots):
            raise UsageError(f"slots {kept} cannot be kept of a pass of {self._slots}; name them in ascending order")
        report = None
        if kept != list(range(len(kept))):
            self.write("commit_slots", sum(1 << node for node in kept))
            self.write_fields("pass_parameters", slots=self._slots, committed=self.length)
            report = self._run("commit", "committed")
        self.length += len(kept)
        return report

    def truncate(self, length: int) -> None:
        """Forgets what lies behind the first ``length`` positions.

        Raises:
            UsageError: there are not so many.
        """
        if not 0 <= length <= self.length:
            raise UsageError(f"cannot go back to {length} positions, there are {self.length}")
        self.length = length

    def results(self, rows: I32) -> Results:
        """The likeliest tokens of these slots of the last pass."""
        return self.host.results(self.memory[self.map.output :], rows)

    def logits(self, rows: I32) -> Logits:
        """Whole rows of logits of these slots of the last pass, which wrote them."""
        return self.host.logits(self.memory[self.map.output :], rows)

    def reset(self, max_cycles: int = 100_000) -> None:
        """A soft reset: gives up what runs, forgets an error.

        Raises:
            DeviceError: the buses do not come to rest.
        """
        self.write_fields("control", soft_reset=1)
        self.machine.run(min(64, max_cycles))
        cycles = 64
        while self.read_field("status", "resetting"):
            if cycles >= max_cycles:
                raise DeviceError(
                    f"the buses are not at rest {cycles} cycles after a soft reset; power the board off and on"
                )
            cycles += self.machine.run(64) or 64
        self.write_fields("interrupt_status", done=1, error=1, committed=1)

    def _run(self, doorbell: str, event: str) -> PassReport:
        self.write_fields("interrupt_status", done=1, error=1, committed=1)
        self.write_fields("control", **{doorbell: 1})
        self.machine.run(self.max_cycles)
        happened = self.read("interrupt_status")
        names = [field.name for field, lsb in REGISTER_MAP["interrupt_status"].positions() if happened >> lsb & 1]
        self.write_fields("control", latch_counters=1)
        report = PassReport(**{name: self.read(f"counter_{name}") for name in COUNTS})
        if "error" in names:
            raise DeviceError(self._failure())
        if event not in names:
            number = report.descriptors
            raise DeviceError(
                f"no answer within {self.max_cycles} cycles; {number} instructions were issued, the last one "
                f"{self._name(max(number - 1, 0))}: reset the accelerator"
            )
        return report

    def _failure(self) -> str:
        cause, number = self.read_field("error", "cause"), self.read_field("error", "descriptor")
        where = self.read("error_address")
        said = ERROR_CAUSES.get(cause, f"cause {cause}")
        if cause == Cause.ADDRESS:
            found = ", ".join(f"{name} {self.read(name):#x}" for name in _ADDRESSES)
            block = block_bytes(self.program.config.ports)
            return (
                f"the accelerator did not begin: {said} ({found}; the block is {block} bytes, the bus ends at "
                f"{1 << ADDRESS_BITS:#x}); reset it"
            )
        at = f" at {where:#x}" if where else ""
        next_ = "reset it, and load the program again" if cause == Cause.WEIGHT else "reset it"
        return f"the accelerator gave up in instruction {self._name(number)}: {said}{at}; {next_}"

    def _name(self, number: int) -> str:
        if not 0 <= number < len(self.program.instructions):
            return str(number)
        return f"{number} ({self.program.instructions[number].opcode.name} {self.program.names[number]})"


def _composed(register: Register, fields: dict[str, Any]) -> int:
    known = {field.name: (field.bits, lsb) for field, lsb in register.positions()}
    value = 0
    for name, given in fields.items():
        if name not in known or register.access in (Access.CONSTANT, Access.READ_ONLY):
            raise UsageError(f"register {register.name} has no field {name!r} to write")
        bits, lsb = known[name]
        if not 0 <= int(given) < 1 << bits:
            raise UsageError(f"{name} of register {register.name} must be 0 to {(1 << bits) - 1}, not {given}")
        value |= int(given) << lsb
    return value
