"""The driver: a compiled model on a device, pass by pass, through registers and buffers alone."""

from __future__ import annotations

from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from edgedec.device import Device
from edgedec.errors import DeviceError, UsageError
from edgedec.hw.accelerator_registers import COUNTS, ERROR_CAUSES, REGISTER_MAP, Cause
from edgedec.hw.compiler.host import Host, Results
from edgedec.hw.compiler.program import Program
from edgedec.hw.config import ADDRESS_BITS
from edgedec.hw.instructions import Opcode
from edgedec.hw.striping import block_bytes
from edgedec.reference.integer_profile.values import Logits
from edgedec.runtime.accelerator.regions import ADDRESS_REGISTERS, regions
from edgedec.runtime.accelerator.registers import Registers
from edgedec.runtime.accelerator.report import PassReport
from edgedec.schemes import FloatWeight, Int8Weight

__all__ = ["BEST", "NO_LOGITS", "WHOLE_ROWS", "Driver", "patience_cycles"]

NO_LOGITS, BEST, WHOLE_ROWS = 0, 1, 2  # register pass_parameters, field logits
_POLL_CYCLES = 64  # between two looks at a reset
# Of a pass that is given up as lost: so many cycles for each beat that it reads, and besides for each instruction. Ten times
# what the slowest memory and the smallest configuration that were simulated take.
_PATIENCE_PER_BEAT, _PATIENCE_PER_INSTRUCTION = 64, 20_000

I32 = NDArray[np.int32]


class Driver:
    """One sequence of tokens on a device.

    After a pass that failed, timed out or was interrupted, the next one begins with a soft reset; committed positions stay.

    Members:
        length: committed positions.
        regions: the program's buffers by their names in ``Program.sizes``.
        registers: by name, for a debugger and for tests.

    Args:
        device: nobody else's as long as the driver is open. It is not closed with it.
        program: what was compiled.
        embedding: the table that it was compiled with.
        max_cycles: of a pass; then it has failed. None: many times what its beats and instructions take.

    Raises:
        DeviceError: the device is no edgedec accelerator, or one of another register map or configuration, or its memory is
            too small.
        UsageError: an instruction leaves its buffer, or the embedding is of another shape.
    """

    def __init__(
        self, device: Device, program: Program, embedding: FloatWeight | Int8Weight, *, max_cycles: int | None = None
    ) -> None:
        self.device, self.program, self.registers = device, program, Registers(device)
        self.host = Host(program, embedding)
        self.length = 0
        self.max_cycles = patience_cycles(program) if max_cycles is None else max_cycles
        self._submitted = 0  # slots of the pass that is under way
        self._slots = 0  # of the last pass; none of them is left after its commit
        self._wanted = ""  # event of what runs, or of what was given up
        stray = program.astray()
        if stray is not None:
            raise UsageError(f"instruction {self._name(stray)} leaves its buffer; compile the program again")
        self._identify()
        self.reset()  # the last user may have gone in the middle of a pass
        self.regions = regions(device, program)
        try:
            self.load()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Driver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Gives the buffers back; a second time does nothing."""
        for region in self.regions.values():
            region.close()

    def _identify(self) -> None:
        for name in ("identity", "version"):
            found, wanted = self.registers.read(name), REGISTER_MAP[name].reset
            if found != wanted:
                raise DeviceError(
                    f"register {name} reads {found:#x}, not {wanted:#x}: no accelerator of this edgedec; load its bitstream"
                )
        found = self.registers.read("configuration_hash")
        if found != self.program.config.hash:
            raise DeviceError(
                f"the accelerator was generated from configuration {found:016x}, the program is for "
                f"{self.program.config.hash:016x}; compile the model for this accelerator"
            )

    def load(self) -> None:
        """Writes program, image and addresses, again if need be; the committed positions stay."""
        program, write = self.program, self.registers.write
        self.regions["program"].put(np.frombuffer(program.code, np.uint8))
        self.regions["image"].put(program.image)
        for name, register in ADDRESS_REGISTERS.items():
            write(register, self.regions[name].address)
        write("program_bytes", len(program.code))
        self.registers.write_fields("interrupt_enable", done=1, error=1, committed=1)

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
            DeviceError: the accelerator gave up, or did not answer; names cause and instruction.
            UsageError: as ``Host.input``.
        """
        self.submit(ids, positions=positions, visible=visible, logits=logits, embeds=embeds)
        return self.finish()

    def submit(
        self,
        ids: I32,
        *,
        positions: I32 | None = None,
        visible: NDArray[np.bool_] | None = None,
        logits: int = BEST,
        embeds: NDArray[np.float32] | None = None,
    ) -> None:
        """Begins a pass, as ``forward``; the host is free until ``finish``."""
        n, config = len(ids), self.program.config
        if positions is None:
            positions = np.arange(self.length, self.length + n, dtype=np.int32)
        seen = np.tri(n, dtype=np.bool_) if visible is None else visible
        if seen.shape != (n, n):
            raise UsageError(f"visible must be {n}x{n}, not {'x'.join(map(str, seen.shape))}")
        if not seen.diagonal().all():
            raise UsageError(f"slot {int(np.argmin(seen.diagonal()))} must see itself")
        image = self.host.input(ids, positions, embeds)
        self._recover()
        self._slots, self._submitted = 0, n
        self.regions["input"].put(image)
        self.registers.write_fields("pass_parameters", slots=n, committed=self.length, logits=logits)
        for slot in range(min(n, config.slots)):
            self.registers.write("position", int(positions[slot]), slot)
            self.registers.write("mask", sum(1 << int(other) for other in np.flatnonzero(seen[slot])), slot)
        self.ring("start", "done")

    def finish(self) -> PassReport:
        """The end of what ``submit`` began. After Ctrl-C it may be called again, or another pass be begun instead.

        Raises:
            DeviceError: as ``forward``.
            UsageError: nothing was begun.
        """
        if self._wanted != "done":
            raise UsageError("no pass is under way; submit one first")
        report = self.answer()
        self._slots = self._submitted
        return report

    def commit(self, nodes: I32) -> PassReport | None:
        """Keeps these slots of the last pass, in ascending order, and drops the others; None if nothing had to be moved.

        Raises:
            DeviceError: as ``forward``; then the pass's slots are lost, and it has to be run again.
            UsageError: slots that the last pass did not have, or not ascending.
        """
        kept = [int(node) for node in nodes]
        if kept != sorted(set(kept)) or (kept and not 0 <= kept[0] <= kept[-1] < self._slots):
            raise UsageError(f"slots {kept} cannot be kept of a pass of {self._slots}; name them in ascending order")
        report, slots, self._slots = None, self._slots, 0
        if kept != list(range(len(kept))):
            self.registers.write("commit_slots", sum(1 << node for node in kept))
            self.registers.write_fields("pass_parameters", slots=slots, committed=self.length)
            self.ring("commit", "committed")
            report = self.answer()
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
        return self.host.results(self.regions["output"].fetched(), rows)

    def logits(self, rows: I32) -> Logits:
        """Whole rows of logits of these slots of the last pass, which wrote them."""
        return self.host.logits(self.regions["output"].fetched(), rows)

    def reset(self, max_cycles: int = 100_000) -> None:
        """A soft reset: gives up what runs, forgets an error. Registers and memory stay.

        Raises:
            DeviceError: the buses do not come to rest.
        """
        self.registers.write_fields("control", soft_reset=1)
        self.registers.write_fields("interrupt_status", done=1, error=1, committed=1)
        cycles = 0
        while "resetting" in self.registers.set_fields("status"):
            if cycles >= max_cycles:
                raise DeviceError(
                    f"the buses are not at rest {cycles} cycles after a soft reset; power the board off and on"
                )
            self.device.wait(_POLL_CYCLES / self.device.clock_hz)
            cycles += _POLL_CYCLES
        self.registers.write_fields("interrupt_status", done=1, error=1, committed=1)
        self._wanted = ""

    def _recover(self) -> None:
        if self._wanted:
            self.reset()

    def ring(self, doorbell: str, event: str) -> None:
        """Starts what the registers are set up for; ``event``: the interrupt that says that it has ended well."""
        self.registers.write_fields("interrupt_status", done=1, error=1, committed=1)
        self._wanted = event
        self.registers.write_fields("control", **{doorbell: 1})

    def answer(self) -> PassReport:
        """Waits for the event of ``ring``; an exception leaves it to be waited for again, or to be given up.

        Raises:
            DeviceError: it was given up, or did not come in time; names what the accelerator was doing.
        """
        self.device.wait(self.max_cycles / self.device.clock_hz)
        happened = self.registers.set_fields("interrupt_status")
        self.registers.write_fields("control", latch_counters=1)
        report = PassReport(**{name: self.registers.read(f"counter_{name}") for name in COUNTS})
        if "error" in happened:
            raise DeviceError(self._failure())
        if self._wanted not in happened:
            number = report.descriptors
            raise DeviceError(
                f"{self.device.name} gave no answer within {self.max_cycles} cycles; {number} instructions were issued, the "
                f"last one {self._name(max(number - 1, 0))}: reset the accelerator"
            )
        self._wanted = ""
        return report

    def _failure(self) -> str:
        read = self.registers.read
        cause, number = self.registers.read_field("error", "cause"), self.registers.read_field("error", "descriptor")
        where = read("error_address")
        said = ERROR_CAUSES.get(cause, f"cause {cause}")
        if cause == Cause.ADDRESS:
            found = ", ".join(f"{name} {read(name):#x}" for name in ADDRESS_REGISTERS.values())
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


def patience_cycles(program: Program) -> int:
    """Cycles after which a pass of a full cache is lost."""
    config = program.config
    run = config.kv_layout.beats(config.context)
    read = sum(one["beats"] for one in program.instructions if one.opcode == Opcode.READ)
    cached = sum(2 * one["heads"] * run for one in program.instructions if one.opcode == Opcode.CACHE)
    return _PATIENCE_PER_BEAT * (read + cached) + _PATIENCE_PER_INSTRUCTION * len(program.instructions)
