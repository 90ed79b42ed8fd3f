"""The driver: a compiled model on a device, pass by pass, through registers and buffers alone."""

from __future__ import annotations

import logging
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from edgedec.device import Device
from edgedec.errors import DeviceError, UsageError
from edgedec.hw.compiler.host import ProgramHost, Results
from edgedec.hw.compiler.program import Program, result_bytes
from edgedec.hw.config import ADDRESS_BITS
from edgedec.hw.isa.instructions import Opcode
from edgedec.hw.isa.registers import COUNTS, ERROR_CAUSES, REGISTER_MAP, Cause
from edgedec.hw.isa.striping import block_bytes
from edgedec.reference.integer_profile.values import Logits
from edgedec.runtime.driver.regions import ADDRESS_REGISTERS, Region, regions
from edgedec.runtime.driver.registers import Registers
from edgedec.runtime.driver.report import PassReport, issued
from edgedec.schemes import FloatWeight, Int8Weight

__all__ = ["BEST", "NO_LOGITS", "WHOLE_ROWS", "Driver", "patience_cycles"]

NO_LOGITS, BEST, WHOLE_ROWS = 0, 1, 2  # register pass_parameters, field logits
_LOG = logging.getLogger(__name__)

_POLL_CYCLES = 64  # between two looks at a reset
# Of the device's time between two looks at the registers while the interrupt is waited for: the first, and the longest. Each
# is twice the one before, so that an interrupt that is lost costs no more than the pass itself, and a second at most.
_FIRST_SLICE_S, _LONGEST_SLICE_S = 0.01, 1.0
# Of a pass that is given up as lost: so many cycles for each beat that it reads, and besides for each instruction. Ten times
# what the slowest memory and the smallest configuration that were simulated take.
_PATIENCE_PER_BEAT, _PATIENCE_PER_INSTRUCTION = 64, 20_000

I32 = NDArray[np.int32]


class Driver:
    """One sequence of tokens on a device.

    After a pass that failed, timed out or was interrupted, the next one begins with a soft reset; committed positions stay.

    Members:
        length: committed positions.
        regions: the program's buffers by their names in ``Program.sizes``; none of them once it is closed.
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
        self.host = ProgramHost(program, embedding)
        self.length = 0
        self.max_cycles = patience_cycles(program) if max_cycles is None else max_cycles
        self._submitted = (0, NO_LOGITS)  # slots and logits of the pass that is under way
        self._slots = 0  # of the last pass; none of them is left after its commit
        self._written = (0, NO_LOGITS)  # slots and logits of the pass whose results are in the output buffer
        self._wanted = ""  # event of what runs, or of what was given up
        self._interrupts = True  # none was lost yet
        stray = program.astray()
        if stray is not None:
            raise UsageError(f"instruction {self._name(stray)} leaves its buffer; compile the program again")
        self._identify()
        self.reset()  # the last user may have gone in the middle of a pass
        self.regions: dict[str, Region] = dict(regions(device, program))
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

    @property
    def pending(self) -> bool:
        """Whether something was begun of which the end was not seen: ``finish`` waits for a pass, and the next pass gives
        up what is left of it.
        """
        return bool(self._wanted)

    def close(self) -> None:
        """Gives up what runs and gives the buffers back; a second time does nothing."""
        try:
            self._recover()
        except DeviceError as error:
            # It may still write there: memory that it was given must not become another's before the device is closed.
            _LOG.warning("%s: the buffers stay allocated until the device is closed: %s", self.device.name, error)
            self.regions.clear()
        while self.regions:
            self.regions.popitem()[1].close()

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
        self._recover()
        self._region("program").put(np.frombuffer(program.code, np.uint8))
        self._region("image").put(program.image)
        for name, register in ADDRESS_REGISTERS.items():
            write(register, self._region(name).address)
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
            DeviceError: the accelerator gave up, or did not answer; names cause and instruction. Or it works for another
                driver.
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
        n = len(ids)
        if positions is None:
            positions = np.arange(self.length, self.length + n, dtype=np.int32)
        seen = np.tri(n, dtype=np.bool_) if visible is None else visible
        if seen.shape != (n, n):
            raise UsageError(f"visible must be {n}x{n}, not {'x'.join(map(str, seen.shape))}")
        if not seen.diagonal().all():
            raise UsageError(f"slot {int(np.argmin(seen.diagonal()))} must see itself")
        image = self.host.input(ids, positions, embeds)
        self._recover()
        self._check_owner()
        self._slots, self._submitted, self._written = 0, (n, logits), (0, NO_LOGITS)
        self._region("input").put(image)
        self.registers.write_fields("pass_parameters", slots=n, committed=self.length, logits=logits)
        masks = seen.astype(np.int64) @ (1 << np.arange(n, dtype=np.int64))
        for slot, (position, mask) in enumerate(zip(positions.tolist(), masks.tolist(), strict=True)):
            self.registers.write("position", position, slot)
            self.registers.write("mask", mask, slot)
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
        self._slots, self._written = self._submitted[0], self._submitted
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
            self._check_owner()
            self.registers.write("commit_slots", sum(1 << node for node in kept))
            self.registers.write_fields("pass_parameters", slots=slots, committed=self.length)
            self.ring("commit", "committed")
            report = self.answer()
        self.length += len(kept)
        return report

    def truncate(self, length: int) -> None:
        """Forgets what lies behind the first ``length`` positions; slots of a pass that stood behind more are lost.

        Raises:
            UsageError: there are not so many.
        """
        if not 0 <= length <= self.length:
            raise UsageError(f"cannot go back to {length} positions, there are {self.length}")
        if length < self.length:
            self._slots, self._submitted = 0, (0, NO_LOGITS)
        self.length = length

    def results(self, rows: I32) -> Results:
        """The likeliest tokens of these slots of the last pass.

        Raises:
            UsageError: it has not ended well, did not have these slots, or wrote no logits.
        """
        self._check_written(rows, BEST)
        return self.host.results(self._region("output").fetched(result_bytes(self.program.config)), rows)

    def logits(self, rows: I32) -> Logits:
        """Whole rows of logits of these slots of the last pass.

        Raises:
            UsageError: as ``results``, or it did not write whole rows.
        """
        self._check_written(rows, WHOLE_ROWS)
        return self.host.logits(self._region("output").fetched(self.program.output_bytes), rows)

    def _check_written(self, rows: I32, least: int) -> None:
        slots, logits = self._written
        if logits < least or (len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < slots):
            wanted = "whole rows of logits" if least == WHOLE_ROWS else "results"
            kind = ("none", "the best", "whole rows")[logits]
            raise UsageError(
                f"there are no {wanted} of slots {rows.tolist()}: the last pass that has ended left {kind}, of {slots} "
                "slots; end a pass that writes them first"
            )

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

    def _region(self, name: str) -> Region:
        if name not in self.regions:
            raise DeviceError("the driver is closed; open another one")
        return self.regions[name]

    def _check_owner(self) -> None:
        """What another driver has set up would be read and written, and nothing would tell of it."""
        mine, found = self._region("input").address, self.registers.read(ADDRESS_REGISTERS["input"])
        if found != mine:
            raise DeviceError(
                f"{self.device.name} does not work for this driver any more: its input_address is {found:#x}, not "
                f"{mine:#x}. Another driver was opened on it, or it was switched off; open one driver at a time, and a new "
                "one now"
            )

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
        happened, idle = self._event()
        self.registers.write_fields("control", latch_counters=1)
        report = PassReport(**{name: self.registers.read(f"counter_{name}") for name in COUNTS})
        if "error" in happened:
            raise DeviceError(self._failure())
        if self._wanted not in happened:
            raise DeviceError(self._silence(report.descriptors, idle))
        self._wanted = ""
        return report

    def _event(self) -> tuple[set[str], bool]:
        """What ``interrupt_status`` says once something has happened, the time is over, or nothing runs; and whether it is
        the last of these.
        """
        left, part = self.max_cycles / self.device.clock_hz, _FIRST_SLICE_S
        while True:
            part = min(part, left)
            risen = self.device.wait(part)
            # The status before the events: what ends between the two looks is seen.
            idle = not self.registers.set_fields("status") & {"busy", "error"}
            happened = self.registers.set_fields("interrupt_status")
            left, part = left - part, min(2 * part, _LONGEST_SLICE_S)
            if happened:
                self._note(risen)
            if happened or idle or left <= 0:
                return happened, idle

    def _note(self, risen: bool) -> None:
        """Says once that an interrupt is missing, on which all would wait for the next look instead."""
        if not risen and self._interrupts and not self.device.wait(_POLL_CYCLES / self.device.clock_hz):
            self._interrupts = False
            _LOG.warning(
                "%s: a pass has ended and no interrupt has come; each will be noticed late. Check that the accelerator's "
                "interrupt is connected",
                self.device.name,
            )

    def _silence(self, number: int, idle: bool) -> str:
        name = self.device.name
        if idle:
            return f"{name} gave no answer, and nothing runs on it: somebody else has reset it; begin again"
        units = issued(
            self.program,
            commits=self._wanted == "committed",
            logits=self.registers.read_field("pass_parameters", "logits") != NO_LOGITS,
        )
        last = f", the last one {self._name(units[number - 1])}" if 0 < number <= len(units) else ""
        return (
            f"{name} gave no answer within {self.max_cycles} cycles; {number} instructions were issued{last}: reset the "
            "accelerator"
        )

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
