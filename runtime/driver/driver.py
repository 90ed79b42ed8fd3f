"""The driver of the accelerator: it runs a compiled program pass by pass, using registers and buffers only."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from edgedec.device import Device
from edgedec.device_steps import Fetch, Flush, Step
from edgedec.errors import DeviceError, UsageError
from edgedec.graph.capacity import reach
from edgedec.hw.compiler.host import ProgramHost
from edgedec.hw.compiler.program import Program
from edgedec.runtime.driver.failures import named, taken_text
from edgedec.runtime.driver.identity import Gateware, check_identity
from edgedec.runtime.driver.limits import watchdog_cycles
from edgedec.runtime.driver.outputs import BEST, NO_LOGITS, WHOLE_ROWS, Outputs
from edgedec.runtime.driver.parts import CachePart, PartRows, PlaceRegisters, divided, positions_read
from edgedec.runtime.driver.pass_steps import PassInput, prepared_pass, soft_reset
from edgedec.runtime.driver.posted import PostedPass, PostedPasses
from edgedec.runtime.driver.regions import ADDRESS_REGISTERS, OWNER_REGISTER, Region, regions, relocated
from edgedec.runtime.driver.report import PassReport
from edgedec.schemes import EmbeddingWeight, Int8Weight

__all__ = ["BEST", "NO_LOGITS", "WHOLE_ROWS", "Driver"]

_LOG = logging.getLogger(__name__)

I32 = NDArray[np.int32]


class Driver(Outputs):
    """Sequences of tokens on a device, each in a part of its cache.

    Whatever is said of one sequence concerns the one that was selected last, at first the first one. After a pass that
    failed, timed out or was interrupted, the next one starts with a soft reset; committed positions are kept.

    Members:
        parts: the parts of the cache.
        part: the selected one.
        regions: the program's buffers by their names in ``Program.sizes``; empty once the driver is closed.
        registers: the device's registers by name, for debuggers and tests.
        landed: called with the sums of the counters of posted passes that have ended, and these passes.

    Args:
        device: used by this driver only while it is open; the driver does not close it.
        program: the compiled program.
        embedding, head: the weights of ``ProgramHost``.
        max_cycles: cycles after which a pass has failed. None: many times the cycles of its beats and instructions.
        gateware: RTL that the device must have; None: any accelerator of the program's configuration is taken.
        parts: number of equal parts of the cache; None: one for each sequence of a pass.

    Raises:
        DeviceError: the device is not an edgedec accelerator; its register map, instruction set, configuration or RTLIL is
            not that of the program or of ``gateware``; or its memory is too small.
        UsageError: an instruction addresses memory outside its buffer, or has another ``fault`` of a program; or the
            embedding, or the int8 head of a rough one, has another shape; or the cache has no such parts.
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
        parts: int | None = None,
    ) -> None:
        super().__init__(device, program, ProgramHost(program, embedding, head), max_cycles)
        self.parts = divided(program.config, program.config.sequences if parts is None else parts)
        self.part = self.parts[0]
        self._submitted = (0, NO_LOGITS)  # slots and logits of the running pass
        self._running = dict[CachePart, int]()  # its slots of each part
        self._posted = PostedPasses(self._perform, self._owned, self)
        self.landed: Callable[[PassReport, Sequence[PostedPass]], object] = lambda report, passes: None
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
    def length(self) -> int:
        """Number of committed positions, also of posted passes that have not ended."""
        return self.part.length

    @length.setter
    def length(self, length: int) -> None:
        self.part.length = length

    @property
    def pending(self) -> bool:
        """True while a pass or commit was started and its end was not seen.

        ``finish`` waits for a pass; a new pass abandons it.
        """
        return bool(self._expected or self._posted.passes)

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
        self._input, self._places = self._inputs[0], PlaceRegisters(self.registers, program.config)
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
        rows = PartRows(part=self.part, ids=ids, positions=positions, visible=visible, embeds=embeds)
        self.submit_parts([rows], logits=logits)

    def submit_parts(self, work: Sequence[PartRows], *, logits: int = BEST) -> None:
        """Start a pass over rows of several sequences, whose slots follow each other in this order.

        Each row sees rows of its own sequence only. ``commit`` then keeps slots of one sequence, counted from its first one.

        Raises:
            DeviceError: see ``forward``.
            UsageError: see ``forward``; or there are more sequences than the accelerator has, or a part is full.
        """
        prepared = prepared_pass(self.host, self.registers, self._places, work, logits)
        self.land()
        self._recover()
        running = {rows.part: len(rows.ids) for rows in work}
        self._begin(running)
        self._submitted, self._running = (sum(running.values()), logits), running
        region = self._input or self._inputs[0]
        self._input, steps = None, self._written_input(region, prepared)
        self.ring("start", "done", steps)
        self._input = region
        self._places.sent()

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
        self.post_parts([PartRows(part=self.part, ids=ids, positions=positions, visible=visible, embeds=embeds)])

    def post_parts(self, work: Sequence[PartRows]) -> None:
        """Queue a pass without logits over rows of several sequences. See ``post`` and ``submit_parts``."""
        prepared = prepared_pass(self.host, self.registers, self._places, work, NO_LOGITS)
        posted, running = self._posted, {rows.part: len(rows.ids) for rows in work}
        one = PostedPass(
            rows=sum(running.values()),
            read=positions_read(self.program.config, [rows.sequence for rows in work]),
            starts={part: part.length for part in running},
        )
        if self._expected:
            self.reset()
        self._make_room(len(self._inputs) - 1)
        posted.begin()
        begins = not posted.passes
        region = self._inputs[len(posted.passes) % len(self._inputs)]
        steps = self._written_input(region, prepared)
        self._begin(running)
        self._input = None
        self._expected = "done"  # until it is known that the pass was posted
        try:
            found = self._perform([*steps, *self._starting("start", first=begins), *posted.reads()])
        except BaseException:
            self._abandon()  # at once, so that whoever goes on knows how many positions are left
            raise
        self._input, self._expected = region, ""
        self._places.sent()
        for part, slots in running.items():
            part.slots = slots
        posted.add(one, found)

    def _begin(self, parts: Iterable[CachePart]) -> None:
        """Forget the slots of the last passes of parts, and the results of the last pass."""
        for part in parts:
            part.slots = 0
        self._submitted, self._running = (0, NO_LOGITS), {}
        self._forget_results()

    def land(self) -> None:
        """Wait for the passes that were posted, and report them to ``landed``. After Ctrl-C, call it again.

        Raises:
            DeviceError: one of them has failed; the rows from its own on are not committed any more.
        """
        self._make_room(0)
        if passes := tuple(self._posted.passes):
            self.landed(self._posted.report(), passes)

    def _make_room(self, most: int) -> None:
        """Wait until at most ``most`` posted passes run or wait."""
        try:
            self._posted.wait(most)
        except DeviceError:
            if self._posted.passes:  # the device is this driver's, and the next operation begins with a reset
                self._expected = "done"
            self._abandon()
            raise

    def _abandon(self) -> None:
        """Forget posted passes that have not ended, and the rows that were committed of them."""
        starts = self._posted.starts
        self._posted.clear()
        for part, start in starts.items():
            self._truncate(part, min(start, part.length))
            part.slots = 0

    def _written_input(self, region: Region, prepared: PassInput) -> list[Step]:
        """Write the input of a pass to a region, and return the steps before its doorbell."""
        region.fill(prepared.image)
        moved = [] if region is self._input else self.registers.writes(ADDRESS_REGISTERS["input"], region.address)
        return [Flush(region.buffer), *self._owned(), *moved, *prepared.steps]

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
        for part, slots in self._running.items():
            part.slots = slots
        self._wrote(*self._submitted)
        return report

    def commit(self, nodes: I32) -> PassReport | None:
        """Commit the slots ``nodes`` of the last pass, in ascending order, and discard the others.

        Returns:
            The report of the device, or None if no slot had to be moved.

        Raises:
            DeviceError: see ``forward``. The slots of the pass are lost then, and it has to run again.
            UsageError: the last pass does not have these slots, or they are not in ascending order.
        """
        part, kept = self.part, [int(node) for node in nodes]
        if kept != sorted(set(kept)) or (kept and not 0 <= kept[0] <= kept[-1] < part.slots):
            raise UsageError(f"slots {kept} cannot be kept of a pass of {part.slots}; name them in ascending order")
        report, slots, part.slots = None, part.slots, 0
        if kept != list(range(len(kept))):
            self.land()
            registers = self.registers
            chosen = registers.writes("commit_slots", sum(1 << node for node in kept))
            parameters = registers.writes_of("pass_parameters", slots=slots, committed=part.length)
            place = self._places.of_commit(part)
            self._expected = "committed"
            report = self.answer([*self._owned(), *place, *chosen, *parameters, *self._starting("commit")])
            self._places.sent()
        part.length += len(kept)
        part.longest = max(part.longest, part.length)
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
        return self._truncate(self.part, length)

    def _truncate(self, part: CachePart, length: int) -> int:
        if length < part.length:
            part.slots = 0
            self._running.pop(part, None)
        ring = self.program.ring
        part.length = length if ring is None else reach(length, [(ring, ring.floor(part.longest))])
        if not part.length:
            part.longest = 0
        return part.length

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
        if self._expected or self._posted.passes:
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
            DeviceError: see ``reset``; or another driver uses the device.
        """
        self.land()
        self._recover()
        self._begin([self.part])
        self._places.forget()  # the loop writes these registers
        if self._input is not self._inputs[0]:
            self._input = None  # until it is known that it was written
            self._perform([*self._owned(), *self.registers.writes(ADDRESS_REGISTERS["input"], self._inputs[0].address)])
            self._input = self._inputs[0]

    def returned(self, length: int) -> None:
        """Take the device back from the compiled loop, with ``length`` committed positions."""
        self.length, self.part.longest = length, max(self.part.longest, length)

    def left(self, event: str, longest: int) -> None:
        """Note the event whose end the compiled loop has not seen ("": none), and positions that it may have committed."""
        self._expected, self.part.longest = event, max(self.part.longest, longest)
