"""The driver of the accelerator: it runs a compiled program pass by pass, using registers and buffers only."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from edgedec.device import Device
from edgedec.device_steps import Fetch, Flush, Step
from edgedec.errors import DeviceError, UsageError
from edgedec.graph.capacity import reach
from edgedec.hw.compiler.host import ProgramHost, Results
from edgedec.hw.compiler.program import Program, result_bytes
from edgedec.reference.integer_profile.taps import TappedRows
from edgedec.reference.integer_profile.values import Logits
from edgedec.runtime.driver.failures import named, taken_text
from edgedec.runtime.driver.identity import Gateware, check_identity
from edgedec.runtime.driver.limits import watchdog_cycles
from edgedec.runtime.driver.operations import Operations
from edgedec.runtime.driver.pass_steps import (
    check_pass,
    parameter_steps,
    soft_reset,
)
from edgedec.runtime.driver.posted import PostedPasses
from edgedec.runtime.driver.regions import ADDRESS_REGISTERS, OWNER_REGISTER, Region, regions, relocated
from edgedec.runtime.driver.report import PassReport
from edgedec.schemes import EmbeddingWeight, Int8Weight

__all__ = ["BEST", "NO_LOGITS", "WHOLE_ROWS", "Driver"]

NO_LOGITS, BEST, WHOLE_ROWS = 0, 1, 2  # values of the field logits of the register pass_parameters
_LOG = logging.getLogger(__name__)

I32 = NDArray[np.int32]


class Driver(Operations):
    """One sequence of tokens on a device.

    After a pass that failed, timed out or was interrupted, the next one starts with a soft reset; committed positions are
    kept.

    Members:
        length: number of committed positions, also of posted passes that have not ended.
        regions: the program's buffers by their names in ``Program.sizes``; empty once the driver is closed.
        registers: the device's registers by name, for debuggers and tests.
        landed: called with the sums of the counters of posted passes that have ended, and the rows of each.

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
        super().__init__(device, program, max_cycles)
        self.host = ProgramHost(program, embedding, head)
        self.length = 0
        self._longest = 0  # most committed positions since there were none; rings lack rows because of them
        self._submitted = (0, NO_LOGITS)  # slots and logits of the running pass
        self._slots = 0  # slots of the last pass that can be committed; 0 after a commit
        self._written = (0, NO_LOGITS)  # slots and logits of the pass whose results are in the output buffer
        self._result_bytes = result_bytes(program.config)
        self._posted = PostedPasses(self._perform, self._owned, self)
        self.landed: Callable[[PassReport, Sequence[int]], object] = lambda report, rows: None
        fault = program.fault()
        if fault is not None:
            raise UsageError(f"instruction {named(program, fault.number)} {fault.reason}; compile the program again")
        check_identity(self.registers, program, gateware)
        self.reset()  # the previous user may have ended in the middle of a pass
        self.regions: dict[str, Region] = dict(regions(device, program))
        self._inputs = [self.regions[name] for name in self.regions if name.partition(" ")[0] == "input"]
        self._input: Region | None = None  # the accelerator has the address of this one; None: it is not known
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
        return bool(self._expected or self._posted.rows)

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
        self.land()
        self._recover()
        image, beat_bytes = program.image_regions, program.config.beat_bytes
        names = (*image, *program.cache_regions)
        code, bases = relocated(program, {name: self._region(name).address for name in names})
        self._region("program").put(np.frombuffer(code, np.uint8))
        for name, beats in image.items():
            self._region(name).put(program.image[beats.start * beat_bytes : beats.stop * beat_bytes])
        for name, register in ADDRESS_REGISTERS.items():
            write(register, bases[name] if name in bases else self._region(name).address)
        self._input = self._inputs[0]
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
        prepared = self._prepared(ids, positions, visible, logits, embeds)
        self.land()
        self._recover()
        self._slots, self._submitted, self._written, self._fetched = 0, (len(ids), logits), (0, NO_LOGITS), False
        region = self._input or self._inputs[0]
        self._input, steps = None, self._written_input(region, prepared)
        self.ring("start", "done", steps)
        self._input = region

    def post(
        self,
        ids: I32,
        *,
        positions: I32 | None = None,
        visible: NDArray[np.bool_] | None = None,
        embeds: NDArray[np.float32] | None = None,
    ) -> None:
        """Queue a pass without logits and return; its slots can be committed at once. See ``forward`` for the arguments.

        The device runs posted passes one after another while the host prepares the next ones. ``land`` waits for them, and
        so does everything that needs results or the device for itself. If one fails, the rows from its own on are not
        committed any more.

        Raises:
            DeviceError: an earlier pass that was posted has failed; or see ``forward``.
            UsageError: see ``forward``.
        """
        prepared, posted = self._prepared(ids, positions, visible, NO_LOGITS, embeds), self._posted
        if self._expected:
            self.reset()
        self._make_room(len(self._inputs) - 1)
        posted.begin()
        begins = not posted.rows
        region = self._inputs[len(posted.rows) % len(self._inputs)]
        steps = self._written_input(region, prepared)
        self._input, self._slots, self._submitted, self._written = None, 0, (0, NO_LOGITS), (0, NO_LOGITS)
        self._expected = "done"  # until it is known that the pass was posted
        found = self._perform([*steps, *self._starting("start", first=begins), *posted.reads()])
        self._input, self._expected, self._slots = region, "", len(ids)
        posted.add(len(ids), self.length, found)

    def land(self) -> None:
        """Wait for the passes that were posted, and report them to ``landed``. After Ctrl-C, call it again.

        Raises:
            DeviceError: one of them has failed; the rows from its own on are not committed any more.
        """
        self._make_room(0)
        if rows := tuple(self._posted.rows):
            self.landed(self._posted.report(), rows)

    def _make_room(self, most: int) -> None:
        """Wait until at most ``most`` posted passes run or wait."""
        try:
            self._posted.wait(most)
        except DeviceError:
            if self._posted.rows:  # the device is this driver's, and the next operation begins with a reset
                self._expected = "done"
            self._abandon()
            raise

    def _abandon(self) -> None:
        """Forget posted passes that have not ended, and the rows that were committed of them."""
        start, posted = self._posted.start, self._posted
        posted.clear()
        if start is not None:
            self.truncate(min(start, self.length))
            self._slots = 0

    def _prepared(
        self,
        ids: I32,
        positions: I32 | None,
        visible: NDArray[np.bool_] | None,
        logits: int,
        embeds: NDArray[np.float32] | None,
    ) -> tuple[NDArray[np.uint8], list[Step]]:
        """Check a pass. Return its input in logical order, and the steps that write its parameters."""
        if positions is None:
            positions = np.arange(self.length, self.length + len(ids), dtype=np.int32)
        mask = np.tri(len(ids), dtype=np.bool_) if visible is None else visible
        check_pass(positions, mask, self.length, rings=self.program.ring is not None)
        steps = parameter_steps(
            self.registers, committed=self.length, logits=logits, positions=positions.tolist(), visible=mask
        )
        return self.host.input(ids, positions, embeds), steps

    def _written_input(self, region: Region, prepared: tuple[NDArray[np.uint8], list[Step]]) -> list[Step]:
        """Write the input of a pass to a region, and return the steps before its doorbell."""
        image, parameters = prepared
        region.fill(image)
        moved = [] if region is self._input else self.registers.writes(ADDRESS_REGISTERS["input"], region.address)
        return [Flush(region.buffer), *self._owned(), *moved, *parameters]

    def finish(self) -> PassReport:
        """Wait for the end of the submitted pass. After Ctrl-C, call it again or start another pass.

        Raises:
            DeviceError: see ``forward``.
            UsageError: no pass was submitted.
        """
        if self._expected != "done":
            raise UsageError("no pass is running; submit one first")
        results = Fetch(self._region("output").buffer, self._result_bytes)
        report = self.answer(fetch=results if self._submitted[1] == BEST else None)
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
            self.land()
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
        soft_reset(self.device, self.registers, max_cycles)
        self._expected = ""
        self._abandon()

    def _recover(self) -> None:
        """Reset the accelerator if the last operation did not finish, or posted passes run."""
        if self._expected or self._posted.rows:
            self.reset()

    def _region(self, name: str) -> Region:
        if name not in self.regions:
            raise DeviceError("the driver is closed; open another one")
        return self.regions[name]

    def _owned(self) -> list[Step]:
        """Return the steps that check that the addresses in the registers are this driver's.

        Otherwise a pass would silently read and write the buffers of another driver.
        """
        return [*self.registers.expects(OWNER_REGISTER, self._region("output").address)]

    def taken_text(self) -> str:
        """Return that the accelerator has the addresses of another driver, and what to do."""
        return taken_text(self.device.name, self.registers, self._region("output").address)

    def lend(self) -> None:
        """Make the device ready for passes of the compiled loop. The results of the last pass are lost.

        Raises:
            DeviceError: see ``reset``.
        """
        self.land()
        self._recover()
        self._slots, self._written = 0, (0, NO_LOGITS)
        if self._input is not self._inputs[0]:
            self.registers.write(ADDRESS_REGISTERS["input"], self._inputs[0].address)
            self._input = self._inputs[0]

    def returned(self, length: int) -> None:
        """Take the device back from the compiled loop, with ``length`` committed positions."""
        self.length, self._longest = length, max(self._longest, length)

    def left(self, event: str, longest: int) -> None:
        """Note the event whose end the compiled loop has not seen ("": none), and positions that it may have committed."""
        self._expected, self._longest = event, max(self._longest, longest)
