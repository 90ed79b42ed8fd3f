"""The command processor, which runs programs: doorbells, checks, loading of the program, errors, soft reset."""

from enum import IntEnum
from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, ResetInserter, Signal, Value
from amaranth.lib import stream
from amaranth.lib.wiring import In, Out, connect, flipped

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.constant_product import product
from edgedec.hw.blocks.instruction_layouts import layout
from edgedec.hw.blocks.resources import Resources, total
from edgedec.hw.config import PASSES_AHEAD, AcceleratorConfig
from edgedec.hw.control.dispatcher import UNITS, Dispatcher
from edgedec.hw.control.front_end import FrontEnd
from edgedec.hw.control.instruction_check import over
from edgedec.hw.control.pass_queue import ADDRESSES, PassQueue, of_several, operation, registers_in
from edgedec.hw.control.program_memory import ProgramMemory
from edgedec.hw.control.read_issue import ReadIssue, ranges, read_errors
from edgedec.hw.control.ring_place import RingPlace, ring_place
from edgedec.hw.control.sequence_places import SequencePlaces, places_shape
from edgedec.hw.isa.instructions import INSTRUCTION_BYTES, Destination
from edgedec.hw.isa.register_map import SLOTS
from edgedec.hw.isa.registers import Cause
from edgedec.hw.memory.axi import beats_log2
from edgedec.hw.memory.router import entry, segment

__all__ = ["CLEARED", "CommandProcessor"]

CLEARED = 16  # cycles of a reset of the units
# Registers that the queue takes as they are.
_TAKEN = (*(f"{name}_address" for name in ADDRESSES), "program_bytes", "slots", "committed", "logits", "accepted")
_FLUSHED = 4  # cycles of flush before the masters' idle is valid


class _State(IntEnum):
    """States; the highest bit means busy."""

    IDLE = 0
    CHECK = 8
    READ = 9  # requests the program
    LOAD = 10  # waits for the program
    WALK = 11
    VERDICT = 12  # follows CHECK and precedes READ


class CommandProcessor(CostedComponent):
    """Control PassQueue, ProgramMemory, FrontEnd, Dispatcher and ReadIssue. The Router is not part of it.

    A doorbell samples all parameters; it is ignored in error or while resetting, and ``start`` wins over ``commit``. Its
    operation waits for those before it. An error and a soft reset forget what waits.

    The first of several errors is reported; within one cycle, errors rank in the order read, write, weight, instruction,
    watchdog. After an error nothing is issued, and offered items are withdrawn. The cycles of an instruction are those
    from its transfer to its unit until the transfer of the next one, or until the end; READ, CACHE and STOP have none.

    If the length of a program is impossible, only the header is read, so that a program of another configuration is still
    reported as such. Causes 1, 2, 4, 5, 10 and 11 name descriptor 0, and so do errors before the first instruction. Errors
    of a write, of a weight and of the watchdog name the last command that was issued; an earlier one may be at fault.

    Buffers begin with blocks of the striping: an address that is not a multiple of ``block_bytes(ports)``, or that has
    bits beyond the bus, is cause 10, whether the program uses it or not.

    Parameters:
        config: configuration of the accelerator.
        address_bits: bits of an address on the bus, 16 to 64.

    Members:
        start, commit, soft_reset: In(1). Doorbells, high for one cycle each.
        program_address, image_address, input_address, kv_address, output_address, program_bytes, slots, committed,
            logits, accepted, position, mask, sequence_begins, sequence_group, later_committed: registers of the next
            operation, see ``PassQueue``.
        watchdog_limit: In(32). Cycles allowed since the last issued command or the start, 0 for no limit; not sampled.
        idle, writes_idle: In(1). See ``Dispatcher``.
        masters_idle: In(1). The read and write masters are idle; valid from the fourth cycle of ``flush`` on.
        write_error: In(1). A write failed; high for one cycle each time.
        damaged: In(1). A byte of weights does not encode five trits; high for one cycle each time.
        ranges: Out(stream ``ranges(config, address_bits)``). Ranges for the Prefetcher.
        entries: Out(stream ``entry()``). Segments for the Router.
        program: In(stream ``segment(beat_bytes)``). Beats of the program.
        read_error: In(read_errors()). Failed reads.
        loads, vectors, matrices, attends, copies: Out(streams layout(Opcode)). One item per instruction.
        now: Out(``operation(config, address_bits)``). Parameters of the operation that runs or has run last, steady from
            the cycle after it is taken.
        waiting: Out. Number of operations that wait; not that which runs.
        ended: Out(8). Operations that have ended without an error since a soft reset, modulo 256.
        busy: Out(1). An operation runs or waits.
        done, error, resetting: Out(1). Levels; ``done`` lasts until the next doorbell that is obeyed, or a soft reset.
        done_set, error_set, committed_set: Out(1). High for one cycle; a commit sets ``committed_set``, not
            ``done_set``.
        cause: Out(8). Cause of the error; held until a soft reset.
        descriptor: Out(24). Number of the instruction at fault; held likewise.
        error_address: Out(64). Address of a read error; held likewise.
        flush: Out(1). Asks the masters to become idle; high during ``resetting``.
        clear: Out(1). High for ``CLEARED`` cycles to reset the units and the Router, which may see it up to as many
            cycles later.
        ring: Out(``ring_place(config)``). Place of the pass in the rings, steady while instructions are issued; only if
            the configuration has rings.
        places: Out(``places_shape(config)``). Places of the sequences, steady likewise; only if it has several.
        descriptor_done: Out(1). The last cycle of an instruction.
        running: Out(1). An operation runs.

    Latency: 5 cycles from ``start`` to the program's range; 12 from its last beat to the first range and 13 to the
        first command, one more if that beat holds two words. With rings, at least those of RingPlace after ``start``;
        with several sequences, those of SequencePlaces before the program's range.
    Throughput: that of FrontEnd and Dispatcher.
    Source: docs/accelerator.md.
    """

    def __init__(self, config: AcceleratorConfig, *, address_bits: int = 40) -> None:
        self._config, self._address_bits = config, address_bits
        self._memory, self._units = ProgramMemory(config), Dispatcher(config)
        self._reads = ReadIssue(config, address_bits=address_bits)
        self._walk = FrontEnd(config, address_bits=address_bits)
        self._ring = RingPlace(config) if config.ring else None
        self._sequences = SequencePlaces(config) if config.sequences > 1 else None
        self._queue = PassQueue(config, address_bits=address_bits)
        super().__init__(
            lambda: {
                **dict.fromkeys(("start", "commit", "soft_reset"), In(1)),
                **registers_in(config),
                "watchdog_limit": In(32),
                **dict.fromkeys(("idle", "writes_idle", "masters_idle", "write_error", "damaged"), In(1)),
                "ranges": Out(stream.Signature(ranges(config, address_bits))),
                "entries": Out(stream.Signature(entry())),
                "program": In(stream.Signature(segment(config.beat_bytes))),
                "read_error": In(read_errors()),
                **{name: Out(stream.Signature(layout(opcode))) for name, opcode in UNITS.items()},
                "now": Out(operation(config, address_bits)),
                "waiting": Out(range(PASSES_AHEAD + 1)),
                "ended": Out(8),
                **dict.fromkeys(("busy", "done", "error", "resetting"), Out(1)),
                **dict.fromkeys(("done_set", "error_set", "committed_set"), Out(1)),
                "cause": Out(8),
                "descriptor": Out(24),
                "error_address": Out(64),
                **({"ring": Out(ring_place(config))} if config.ring else {}),
                **({"places": Out(places_shape(config))} if config.sequences > 1 else {}),
                **dict.fromkeys(("flush", "clear", "descriptor_done", "running"), Out(1)),
            }
        )

    @property
    def resources(self) -> Resources:
        """Estimate of the cost: the parts, the watchdog, the checks and what is known of an error."""
        own = Resources(lut=64 + 60 + 420, ff=24 + 33 + 33 + 8 + 24 + 64 + 130)
        optional = [part for part in (self._ring, self._sequences) if part is not None]
        parts = (self._queue, self._memory, self._walk, self._units, self._reads, *optional)
        return total(part.resources for part in parts) + own

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        memory, reads, units, walk = self._memory, self._reads, self._units, self._walk
        m.submodules.queue = queue = self._queue
        for name, part in {"memory": memory, "reads": reads, "units": units, "walk": walk}.items():
            m.submodules[name] = ResetInserter(self.clear)(part)
        connect(m, flipped(self.program), memory.beats)
        connect(m, memory.instructions, walk.instructions)
        connect(m, walk.commands, units.commands)
        connect(m, reads.ranges, flipped(self.ranges))
        connect(m, reads.entries, flipped(self.entries))
        connect(m, flipped(self.read_error), reads.errors)
        for name in UNITS:
            connect(m, getattr(units, name), flipped(getattr(self, name)))
        state = Signal(_State)
        issued = Signal()  # the program has issued a command
        self._finished = Signal(name="finished")  # the last operation has ended without an error
        placed = self._place(m, state, walk)
        m.d.comb += [
            *(getattr(queue, name).eq(getattr(self, name)) for name in ("start", "commit", *_TAKEN)),
            *(queue.position[slot].eq(self.position[slot]) for slot in range(SLOTS)),
            *(queue.mask[slot].eq(self.mask[slot]) for slot in range(SLOTS)),
            queue.sequence_begins.eq(self.sequence_begins),
            *(
                getattr(queue, name)[at].eq(getattr(self, name)[at])
                for name, count in of_several(self._config).items()
                for at in range(count)
            ),
            queue.clear.eq(self.error | self.resetting),
            self.now.eq(queue.now),
            self.waiting.eq(queue.waiting),
            self.running.eq(Value.cast(state)[-1]),
            self.done.eq(self._finished & ~self.busy),
            self.busy.eq(self.running | (queue.waiting != 0)),
            reads.stopped.eq(~self.running),
            units.stopped.eq(~self.running),
            units.idle.eq(self.idle),
            units.writes_idle.eq(self.writes_idle & ~reads.waiting),
            walk.quiet.eq(units.quiet),
            walk.restart.eq(state == _State.CHECK),
            memory.begin.eq(state == _State.CHECK),
            self.descriptor_done.eq(self.running & issued & (units.issued | units.ended)),
        ]
        with m.If(units.issued):
            m.d.sync += issued.eq(1)
        found, beyond = self._find(m, walk)
        wrong = self._begin(m, state, issued, walk.parameters, beyond)
        wrong |= self._load(m, state, found, memory.loaded & placed)
        self._end(m, state, units.ended)
        expired = self._expired(m, units.issued)
        with m.If(self.running):
            self._fail(m, state, wrong, walk, Mux(issued, units.index, 0), expired)
        self._reset(m, state)
        return m

    def _begin(
        self, m: Module, state: Signal, issued: Signal, parameters: Any, beyond: Value | None
    ) -> dict[Cause, Value]:
        """Take an operation and check its parameters. Return the causes of errors with their conditions.

        ``beyond``: whether it passes the cache, if that is known already.
        """
        queue, layout_ = self._queue, self._config.kv_layout
        now, several = queue.now, self._config.sequences > 1
        begins = now.begins
        groups = Signal(20)
        cached = Signal(24)
        most = Signal(range(-15, self._config.context + 1))  # positions that leave room for the pass
        foreign = Signal()  # a slot is accepted, or begins a sequence, that the pass did not have
        m.d.comb += [
            *(parameters[name].eq(now[name]) for name in ("image", "input", "kv", "accepted")),
            parameters.logits.eq(now.logits != 0),
            *([] if several else [parameters.committed.eq(now.committed), parameters.cached.eq(cached)]),
            *([parameters.slots.eq(now.slots)] if self._config.shared else []),
            foreign.eq(
                Cat(
                    (now.commits & now.accepted[slot] | begins[slot]) & (now.slots <= slot) for slot in range(SLOTS)
                ).any()
            ),
            queue.output.ready.eq((state == _State.IDLE) & ~self.error & ~self.resetting),
        ]
        m.d.sync += [
            groups.eq((now.committed + layout_.positions - 1) >> beats_log2(layout_.positions)),
            cached.eq(product(groups, layout_.chunks)),
        ]
        with m.If(queue.output.valid & queue.output.ready):
            m.d.sync += [
                state.eq(_State.CHECK),
                issued.eq(0),
                self._finished.eq(0),
                most.eq(self._config.context - queue.output.p.slots),
            ]
        verdict = state == _State.VERDICT
        wrong_slots = Signal()
        too_far = Signal()
        more = begins.any()
        if several:  # the search for the places takes long enough for a register more
            more = Signal(name="more")
            m.d.sync += more.eq(begins[0] | (sum(begins[1:]) >= self._config.sequences))
        m.d.sync += [
            wrong_slots.eq((now.slots == 0) | (now.slots > self._config.slots) | foreign | more),
            too_far.eq(now.committed > most if beyond is None else beyond),
        ]
        return {
            Cause.ADDRESS: verdict & now.misplaced.any(),
            Cause.SLOTS: verdict & wrong_slots,
            Cause.POSITION: verdict & too_far,
            Cause.OVERRUN: queue.overrun,
        }

    def _place(self, m: Module, state: Signal, walk: Any) -> Value:
        """Compute the place of the pass in the rings. Return whether it is known."""
        if self._ring is None:
            return Const(1)
        m.submodules.ring = ring = self._ring
        m.d.comb += [
            ring.begin.eq(state == _State.CHECK),
            ring.committed.eq(walk.parameters.committed),
            walk.ring.eq(ring.output),
            self.ring.eq(ring.output),
        ]
        settled: Value = ring.settled
        return settled

    def _find(self, m: Module, walk: Any) -> tuple[Value, Value | None]:
        """Compute the places of several sequences. Return whether they are known, and whether one is past the cache."""
        if self._sequences is None:
            return Const(1), None
        now, queue = self._queue.now, self._queue.output
        m.submodules.sequences = places = self._sequences
        begin = Signal()
        m.d.sync += begin.eq(queue.valid & queue.ready)
        m.d.comb += [
            places.begin.eq(begin),
            *(getattr(places, name).eq(now[name]) for name in ("slots", "committed", "begins")),
            *(Value.cast(getattr(places, name)).eq(Value.cast(now[name])) for name in ("groups", "later")),
            places.number.eq(walk.number),
            walk.range.eq(places.range),
            walk.rows.eq(places.output.rows),
            walk.parameters.committed.eq(places.output.total),
            walk.parameters.ranges.eq(places.output.ranges),
            self.places.eq(places.output),
        ]
        return places.settled & ~begin, places.beyond

    def _load(self, m: Module, state: Signal, found: Value, loaded: Value) -> dict[Cause, Value]:
        """Read the program once the sequences are ``found``, and walk it once it is ``loaded``.

        Return the causes of errors with their conditions.
        """
        beat_bytes, reads, memory, walk = self._config.beat_bytes, self._reads.reads, self._memory, self._walk
        now = self._queue.now
        length = now.bytes
        words = Signal.like(memory.words)
        impossible = Signal()
        per_beat = max(1, beat_bytes // INSTRUCTION_BYTES)
        word_count = length >> beats_log2(INSTRUCTION_BYTES)
        arrived = (state == _State.LOAD) & loaded
        too_short = Signal()
        uneven = Signal()
        too_long = Signal()
        m.d.sync += [
            too_short.eq(length < INSTRUCTION_BYTES),
            uneven.eq(length[: beats_log2(INSTRUCTION_BYTES)].any() | (word_count < 2)),
            too_long.eq(over(word_count, self._config.instructions + 1)),
        ]
        m.d.comb += [
            memory.words.eq(words),
            memory.first.eq(Mux(now.commits, memory.commit, 0)),
            memory.walk.eq(arrived),
            Value.cast(reads.payload).eq(Value.cast(walk.reads.payload)),
            reads.valid.eq(walk.reads.valid),
            walk.reads.ready.eq(reads.ready),
        ]
        with m.Switch(state):
            with m.Case(_State.CHECK):
                m.d.sync += words.eq(word_count)
                with m.If(found):
                    m.d.sync += state.eq(_State.VERDICT)
            with m.Case(_State.VERDICT):
                m.d.sync += [state.eq(_State.READ), impossible.eq(uneven | too_long)]
                with m.If(uneven | too_long):
                    m.d.sync += words.eq(1)
            with m.Case(_State.READ):
                m.d.comb += [
                    reads.p.eq(0),
                    reads.p.start.eq(now.program),
                    reads.p.beats.eq((words * INSTRUCTION_BYTES + beat_bytes - 1) >> beats_log2(beat_bytes)),
                    reads.p.destination.eq(Destination.PROGRAM),
                    reads.p.spare.eq((-words)[: beats_log2(per_beat)]),
                    reads.valid.eq(1),
                ]
                with m.If(reads.ready):
                    m.d.sync += state.eq(_State.LOAD)
            with m.Case(_State.LOAD), m.If(loaded):
                m.d.sync += state.eq(_State.WALK)
        return {
            Cause.CONFIGURATION: arrived & memory.foreign,
            Cause.CUT_SHORT: (arrived & (impossible | memory.cut)) | ((state == _State.VERDICT) & too_short),
        }

    def _expired(self, m: Module, issued: Value) -> Signal:
        """Return a signal that is high once the watchdog has expired."""
        waited = Signal(33)  # a limit never reaches the top bit, so counting stops there
        expired = Signal()
        m.d.sync += [
            waited.eq(Mux(issued | ~self.running, 0, waited + ~waited[-1])),
            expired.eq(self.running & (self.watchdog_limit != 0) & (waited > self.watchdog_limit)),
        ]
        return expired

    def _end(self, m: Module, state: Signal, ended: Value) -> None:
        now = self._queue.now
        events = [self.done_set.eq(ended & ~now.commits), self.committed_set.eq(ended & now.commits)]
        m.d.sync += [*events, self.error_set.eq(0)]
        with m.If(ended):
            m.d.sync += [state.eq(_State.IDLE), self._finished.eq(1), self.ended.eq(self.ended + 1)]

    def _fail(
        self, m: Module, state: Signal, wrong: dict[Cause, Value], walk: Any, last: Value, expired: Value
    ) -> None:
        """Report the first error of a program; ``last`` is the number of the command that was issued last."""
        reads = self._reads
        result = Signal(8)
        with m.If(reads.failed):
            m.d.comb += result.eq(Cause.READ)
            m.d.sync += [self.descriptor.eq(reads.index), self.error_address.eq(reads.address)]
        with m.Elif(self.write_error):
            m.d.comb += result.eq(Cause.WRITE)
            m.d.sync += self.descriptor.eq(last)
        with m.Elif(self.damaged):
            m.d.comb += result.eq(Cause.WEIGHT)
            m.d.sync += self.descriptor.eq(last)
        with m.Elif(walk.broken):
            m.d.comb += result.eq(Cause.DESCRIPTOR)
            m.d.sync += self.descriptor.eq(walk.index)
        with m.Elif(expired):
            m.d.comb += result.eq(Cause.WATCHDOG)
            m.d.sync += self.descriptor.eq(last)
        for cause, condition in wrong.items():
            with m.Elif(condition):
                m.d.comb += result.eq(cause)
        with m.If(result != Cause.NONE):
            m.d.sync += [
                self.error_set.eq(1),
                self.error.eq(1),
                self.cause.eq(result),
                state.eq(_State.IDLE),
                self._finished.eq(0),
                self.done_set.eq(0),
                self.committed_set.eq(0),
            ]

    def _reset(self, m: Module, state: Signal) -> None:
        """Flush until the masters are idle, hold ``clear`` for CLEARED cycles, and wait as long for all parts to see it."""
        flushed = Signal(range(_FLUSHED + 1))
        cleared = Signal(range(2 * CLEARED))
        m.d.comb += self.flush.eq(self.resetting)
        with m.If(self.resetting & (flushed != _FLUSHED)):
            m.d.sync += flushed.eq(flushed + 1)
        with m.If(cleared != 0):
            m.d.sync += [cleared.eq(cleared - 1), self.clear.eq(cleared > CLEARED)]
            with m.If(cleared == 1):
                m.d.sync += self.resetting.eq(0)
        with m.Elif(self.resetting & (flushed == _FLUSHED) & self.masters_idle):
            m.d.sync += [cleared.eq(2 * CLEARED - 1), self.clear.eq(1)]
        with m.If(self.soft_reset & ~self.resetting):
            forgotten = (self._finished, self.error, self.done_set, self.error_set, self.committed_set, self.ended)
            m.d.sync += [
                *(signal.eq(0) for signal in (*forgotten, self.cause, self.descriptor, self.error_address)),
                state.eq(_State.IDLE),
                self.resetting.eq(1),
                flushed.eq(0),
            ]
