"""The driver of the accelerator: it runs a compiled program pass by pass, using registers and buffers only."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from edgedec.device import Device
from edgedec.device_steps import Fetch, Flush, Performer, Step, UnexpectedRegisterError, Wait, perform
from edgedec.errors import DeviceError, UsageError
from edgedec.graph.capacity import reach
from edgedec.hw.compiler.host import ProgramHost, Results
from edgedec.hw.compiler.program import Program, result_bytes
from edgedec.hw.isa.registers import COUNTS
from edgedec.reference.integer_profile.taps import TappedRows
from edgedec.reference.integer_profile.values import Logits
from edgedec.runtime.driver.failures import error_text, last_issued, named
from edgedec.runtime.driver.identity import Gateware, check_identity
from edgedec.runtime.driver.limits import patience_cycles, watchdog_cycles
from edgedec.runtime.driver.pass_steps import ending_of, ending_steps, parameter_steps
from edgedec.runtime.driver.regions import ADDRESS_REGISTERS, Region, regions, relocated
from edgedec.runtime.driver.registers import Registers
from edgedec.runtime.driver.report import PassReport
from edgedec.schemes import EmbeddingWeight, Int8Weight

__all__ = ["BEST", "NO_LOGITS", "WHOLE_ROWS", "Driver"]

NO_LOGITS, BEST, WHOLE_ROWS = 0, 1, 2  # values of the field logits of the register pass_parameters
_LOG = logging.getLogger(__name__)

_POLL_CYCLES = 64  # cycles between two reads of the status during a reset
# Device time between two reads of the registers while the driver waits for the interrupt: the first and the longest, in
# seconds. Each is twice the previous one, so that a lost interrupt costs at most the duration of the pass, and one second.
_FIRST_SLICE_S, _LONGEST_SLICE_S = 0.01, 1.0

I32 = NDArray[np.int32]


class Driver:
    """One sequence of tokens on a device.

    After a pass that failed, timed out or was interrupted, the next one starts with a soft reset; committed positions are
    kept.

    Members:
        length: number of committed positions.
        regions: the program's buffers by their names in ``Program.sizes``; empty once the driver is closed.
        registers: the device's registers by name, for debuggers and tests.

    Args:
        device: used by this driver only while it is open; the driver does not close it.
        program: the compiled program.
        embedding, head: the weights of ``ProgramHost``.
        max_cycles: cycles after which a pass has failed. None: many times the cycles of its beats and instructions.
        gateware: RTL that the device must have; None: any accelerator of the program's configuration is taken.

    Raises:
        DeviceError: the device is not an edgedec accelerator; its register map, instruction set, configuration or RTLIL is
            not that of the program or of ``gateware``; or its memory is too small.
        UsageError: an instruction addresses memory outside its buffer, or has another ``fault`` of a program; or the
            embedding, or the int8 head of a rough one, has another shape.
    """

    def __init__(
        self,
        device: Device,
        program: Program,
        embedding: EmbeddingWeight,
        head: Int8Weight | None = None,
        *,
        max_cycles: int | None = None,
        gateware: Gateware | None = None,
    ) -> None:
        self.device, self.program, self.registers = device, program, Registers(device)
        self.host = ProgramHost(program, embedding, head)
        self.length = 0
        self._longest = 0  # most committed positions since there were none; rings lack rows because of them
        self.max_cycles = patience_cycles(program) if max_cycles is None else max_cycles
        self._submitted = (0, NO_LOGITS)  # slots and logits of the running pass
        self._slots = 0  # slots of the last pass that can be committed; 0 after a commit
        self._written = (0, NO_LOGITS)  # slots and logits of the pass whose results are in the output buffer
        self._fetched = False  # True if the likeliest tokens of the pass have come with its end
        self._result_bytes = result_bytes(program.config)
        self._expected = ""  # event that ends the running or abandoned operation; empty: none runs
        self._interrupts = True  # False once an interrupt was missing
        fault = program.fault()
        if fault is not None:
            raise UsageError(f"instruction {named(program, fault.number)} {fault.reason}; compile the program again")
        check_identity(self.registers, program, gateware)
        self.reset()  # the previous user may have ended in the middle of a pass
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
        """True while a pass or commit was started and its end was not seen.

        ``finish`` waits for a pass; a new pass abandons it.
        """
        return bool(self._expected)

    def close(self) -> None:
        """Abandon a running pass and free the buffers. A second call does nothing."""
        try:
            self._recover()
        except DeviceError as error:
            # The device may still write to its buffers, so their memory must not be reused before the device is closed.
            _LOG.warning("%s: the buffers stay allocated until the device is closed: %s", self.device.name, error)
            self.regions.clear()
        while self.regions:
            self.regions.popitem()[1].close()

    def load(self) -> None:
        """Write program, image, addresses and the watchdog's limit. It may be called again; committed positions are kept."""
        program, write = self.program, self.registers.write
        self._recover()
        image, beat_bytes = program.image_regions, program.config.beat_bytes
        names = (*image, *program.cache_regions)
        code, bases = relocated(program, {name: self._region(name).address for name in names})
        self._region("program").put(np.frombuffer(code, np.uint8))
        for name, beats in image.items():
            self._region(name).put(program.image[beats.start * beat_bytes : beats.stop * beat_bytes])
        for name, register in ADDRESS_REGISTERS.items():
            write(register, bases[name] if name in bases else self._region(name).address)
        write("program_bytes", len(program.code))
        write("watchdog_limit", watchdog_cycles(program))
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
        """Run one pass over the committed positions and wait for its end. ``commit`` then keeps slots of it.

        Args:
            ids: int32 [n], with n from 1 to the accelerator's number of slots; -k selects row k - 1 of ``embeds``.
            positions: int32 [n], positions in the text; None: those after the committed positions.
            visible: bool [n, n]: row i attends to row j of this pass; None: j <= i.
            logits: NO_LOGITS, BEST (the likeliest tokens) or WHOLE_ROWS.
            embeds: float32 [m, hidden], embeddings of the rows without a token id.

        Raises:
            DeviceError: the accelerator stopped with an error or did not answer, and the message names cause and
                instruction; or another driver uses the device.
            UsageError: ``visible`` has another shape or a row that does not see itself, or ``ProgramHost.input`` raised it.
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
        """Start a pass as ``forward`` does, but return at once. The host is free until it calls ``finish``."""
        n = len(ids)
        if positions is None:
            positions = np.arange(self.length, self.length + n, dtype=np.int32)
        mask = np.tri(n, dtype=np.bool_) if visible is None else visible
        if mask.shape != (n, n):
            raise UsageError(f"visible must be {n}x{n}, not {'x'.join(map(str, mask.shape))}")
        if not mask.diagonal().all():
            raise UsageError(f"slot {int(np.argmin(mask.diagonal()))} must see itself")
        if self.program.ring is not None and int(positions.min(initial=self.length)) < self.length:
            raise UsageError(
                f"position {positions.min()} lies before the {self.length} committed ones, of which rings keep only those "
                "that later positions see; go back first"
            )
        image = self.host.input(ids, positions, embeds)
        self._recover()
        self._slots, self._submitted, self._written, self._fetched = 0, (n, logits), (0, NO_LOGITS), False
        region = self._region("input")
        region.fill(image)
        parameters = parameter_steps(
            self.registers, committed=self.length, logits=logits, positions=positions.tolist(), visible=mask
        )
        self.ring("start", "done", [Flush(region.buffer), *self._owned(), *parameters])

    def finish(self) -> PassReport:
        """Wait for the end of the submitted pass. After Ctrl-C, call it again or start another pass.

        Raises:
            DeviceError: see ``forward``.
            UsageError: no pass was submitted.
        """
        if self._expected != "done":
            raise UsageError("no pass is running; submit one first")
        report = self.answer()
        self._slots, self._written = self._submitted[0], self._submitted
        return report

    def commit(self, nodes: I32) -> PassReport | None:
        """Commit the slots ``nodes`` of the last pass, in ascending order, and discard the others.

        Returns:
            The report of the device, or None if no slot had to be moved.

        Raises:
            DeviceError: see ``forward``. The slots of the pass are lost then, and it has to run again.
            UsageError: the last pass does not have these slots, or they are not in ascending order.
        """
        kept = [int(node) for node in nodes]
        if kept != sorted(set(kept)) or (kept and not 0 <= kept[0] <= kept[-1] < self._slots):
            raise UsageError(f"slots {kept} cannot be kept of a pass of {self._slots}; name them in ascending order")
        report, slots, self._slots = None, self._slots, 0
        if kept != list(range(len(kept))):
            registers = self.registers
            chosen = registers.writes("commit_slots", sum(1 << node for node in kept))
            parameters = registers.writes_of("pass_parameters", slots=slots, committed=self.length)
            self._expected = "committed"
            report = self.answer([*self._owned(), *chosen, *parameters, *self._starting("commit")])
        self.length += len(kept)
        self._longest = max(self._longest, self.length)
        return report

    def truncate(self, length: int) -> int:
        """Keep the first ``length`` committed positions. If positions are discarded, so are the slots of the last pass.

        Returns:
            The number of positions that are kept: ``length``, or 0 if a ring does not have their rows any more. A way
            back of at most RING_SLACK positions (edgedec.hw.config) finds them.

        Raises:
            UsageError: there are fewer committed positions.
        """
        if not 0 <= length <= self.length:
            raise UsageError(f"cannot go back to {length} positions, there are {self.length}")
        if length < self.length:
            self._slots, self._submitted = 0, (0, NO_LOGITS)
        ring = self.program.ring
        self.length = length if ring is None else reach(length, [(ring, ring.floor(self._longest))])
        if not self.length:
            self._longest = 0
        return self.length

    def results(self, rows: I32) -> Results:
        """Return the likeliest tokens of the slots ``rows`` of the last pass.

        Raises:
            UsageError: the pass did not finish, does not have these slots, or wrote no logits.
        """
        self._check_written(rows, BEST)
        region = self._region("output")
        return self.host.results(region.fetched(0 if self._fetched else self._result_bytes, self.host.beside), rows)

    def logits(self, rows: I32) -> Logits:
        """Return whole rows of logits of the slots ``rows`` of the last pass.

        Raises:
            UsageError: see ``results``, or the pass did not write whole rows.
        """
        self._check_written(rows, WHOLE_ROWS)
        return self.host.logits(self._region("output").fetched(self.program.output_bytes), rows)

    def tapped(self, name: str, rows: I32) -> TappedRows:
        """Return a tapped value of the slots ``rows`` of the last pass.

        Raises:
            UsageError: see ``results``; the value needs a pass with logits, or the program does not write it.
        """
        self._check_written(rows, BEST if self.host.needs_logits(name) else NO_LOGITS)
        return self.host.tapped(self._region("output").fetched(self.program.output_bytes), name, rows)

    def _check_written(self, rows: I32, least: int) -> None:
        slots, logits = self._written
        if logits < least or (len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < slots):
            expected = "whole rows of logits" if least == WHOLE_ROWS else "results"
            kind = ("none", "the best", "whole rows")[logits]
            raise UsageError(
                f"there are no {expected} of slots {rows.tolist()}: the last finished pass wrote {kind}, of {slots} slots; "
                "finish a pass that writes them first"
            )

    def reset(self, max_cycles: int = 100_000) -> None:
        """Do a soft reset, which abandons a running pass and clears an error. Registers and memory keep their contents.

        Raises:
            DeviceError: the buses are still busy after ``max_cycles``.
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
        self._expected = ""

    def _recover(self) -> None:
        """Reset the accelerator if the last operation did not finish."""
        if self._expected:
            self.reset()

    def _region(self, name: str) -> Region:
        if name not in self.regions:
            raise DeviceError("the driver is closed; open another one")
        return self.regions[name]

    def _owned(self) -> list[Step]:
        """Return the steps that check that the addresses in the registers are this driver's.

        Otherwise a pass would silently read and write the buffers of another driver.
        """
        return [*self.registers.expects(ADDRESS_REGISTERS["input"], self._region("input").address)]

    def _starting(self, doorbell: str) -> list[Step]:
        """Return the steps that start the operation that the registers describe."""
        registers = self.registers
        clear = registers.writes_of("interrupt_status", done=1, error=1, committed=1)
        return [*clear, *registers.writes_of("control", **{doorbell: 1})]

    def ring(self, doorbell: str, event: str, before: Sequence[Step] = ()) -> None:
        """Start the operation that the registers describe. ``event`` is the interrupt that reports its success.

        Args:
            before: steps that are carried out first, in the same request.
        """
        self._expected = event
        self._perform([*before, *self._starting(doorbell)])

    def _perform(self, steps: Sequence[Step]) -> list[int]:
        """Carry out steps, among which may be those of ``_owned``."""
        try:
            return perform(self.device, steps)
        except UnexpectedRegisterError as error:
            self._expected = ""  # nothing was started
            raise DeviceError(self.taken_text()) from error

    def answer(self, first: Sequence[Step] = ()) -> PassReport:
        """Wait for the event of ``ring``. After an exception, call it again or start another operation.

        Args:
            first: steps that are carried out first, in the same request.

        Raises:
            DeviceError: the accelerator stopped with an error or did not answer in time; the message names the instruction.
        """
        events, idle, counts = self._wait_for_event(first)
        report = PassReport(**dict(zip(COUNTS, counts, strict=True)))
        if "error" in events:
            raise DeviceError(self.error_text())
        if self._expected not in events:
            raise DeviceError(self.timeout_text(report.descriptors, idle))
        self._expected = ""
        return report

    def _wait_for_event(self, first: Sequence[Step]) -> tuple[set[str], bool, list[int]]:
        """Carry out steps, then wait until there is an event, nothing runs, or the time is over.

        Returns:
            The events of ``interrupt_status``, whether the accelerator is idle, and the counters in the order of COUNTS.
        """
        after = ending_steps(self.registers)
        if self._expected == "done" and self._submitted[1] == BEST:
            after.append(Fetch(self._region("output").buffer, self._result_bytes))
        far = isinstance(self.device, Performer)  # a look at the registers is a round trip then
        left, part = self.max_cycles / self.device.clock_hz, _LONGEST_SLICE_S if far else _FIRST_SLICE_S
        while True:
            part = min(part, left)
            interrupted, *found = self._perform([*first, Wait(part), *after])
            first, end = (), ending_of(self.registers, found)
            left, part = left - part, min(2 * part, _LONGEST_SLICE_S)
            if end.events:
                self._fetched = isinstance(after[-1], Fetch)
                if not interrupted:
                    self.missed_interrupt()
            if end.events or end.idle or left <= 0:
                return end.events, end.idle, end.counts

    def missed_interrupt(self) -> None:
        """Warn once that an operation ended without an interrupt, because ends are then seen at the next read only."""
        if self._interrupts and not self.device.wait(_POLL_CYCLES / self.device.clock_hz):
            self._interrupts = False
            _LOG.warning(
                "%s: a pass ended without an interrupt, so the ends of passes will be noticed late. Check that the "
                "accelerator's interrupt is connected",
                self.device.name,
            )

    def taken_text(self) -> str:
        """Return that the accelerator has the addresses of another driver, and what to do."""
        expected, address = self._region("input").address, self.registers.read(ADDRESS_REGISTERS["input"])
        return (
            f"{self.device.name} does not work for this driver any more: its input_address is {address:#x}, not "
            f"{expected:#x}. Another driver was opened on it, or it was switched off; open one driver at a time, and a "
            "new one now"
        )

    def error_text(self) -> str:
        """Return why the accelerator has given up, and what to do."""
        return error_text(self.registers, self.program)

    def timeout_text(self, number: int, idle: bool) -> str:
        """Return that there was no answer, after ``number`` instructions, and whether nothing runs any more."""
        if idle:
            return (
                f"{self.device.name} gave no answer, and nothing runs on it: another program has reset it; start again"
            )
        written = self.registers.read_field("pass_parameters", "logits") != NO_LOGITS
        last = last_issued(self.program, number, commits=self._expected == "committed", logits=written)
        return (
            f"{self.device.name} gave no answer within {self.max_cycles} cycles; {number} instructions were issued{last}: "
            "reset the accelerator"
        )

    def lend(self) -> None:
        """Make the device ready for passes of the compiled loop. The results of the last pass are lost.

        Raises:
            DeviceError: see ``reset``.
        """
        self._recover()
        self._slots, self._written = 0, (0, NO_LOGITS)

    def returned(self, length: int) -> None:
        """Take the device back from the compiled loop, with ``length`` committed positions."""
        self.length, self._longest = length, max(self._longest, length)

    def left(self, event: str, longest: int) -> None:
        """Note the event whose end the compiled loop has not seen ("": none), and positions that it may have committed."""
        self._expected, self._longest = event, max(self._longest, longest)
