"""The front end, which walks a program and separates reads from commands to the units."""

from enum import IntEnum
from typing import Any

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value, unsigned
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.constant_product import product
from edgedec.hw.blocks.instruction_layouts import layout
from edgedec.hw.blocks.resources import Resources
from edgedec.hw.blocks.shared_heads import together_log2
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.control.dispatcher import command
from edgedec.hw.control.instruction_check import violations
from edgedec.hw.control.program_memory import fetched, index_bits
from edgedec.hw.control.read_issue import read
from edgedec.hw.control.ring_place import ring_place
from edgedec.hw.control.sequence_places import places_shape, range_shape
from edgedec.hw.isa.instructions import FIELDS, Base, Destination, Opcode, When
from edgedec.hw.memory.axi import beats_log2

__all__ = ["FrontEnd", "walk_parameters"]

_DECIDED = (Opcode.READ, Opcode.CACHE, Opcode.COPY, Opcode.STOP)  # opcodes that are not only passed on
_PLACED = (Opcode.READ, Opcode.CACHE, Opcode.COPY, Opcode.ATTEND)  # opcodes with a start


def walk_parameters(config: AcceleratorConfig, address_bits: int) -> data.StructLayout:
    """Return the parameters of a pass or a commit.

    image, input, kv: address registers in beats.
    committed: committed positions.
    cached: beats of a run of these positions.
    accepted: slots of a commit.
    slots: slots of the pass; only if heads attend together.
    ranges: ranges that are read of a run, in the place of ``cached``; only with several sequences.
    logits: whether the pass computes logits.
    """
    start = address_bits - beats_log2(config.beat_bytes)
    bases = dict.fromkeys(("image", "input", "kv"), unsigned(start))
    return data.StructLayout(
        {
            **bases,
            **{"committed": unsigned(20), "accepted": config.slots, "logits": 1},
            **({"ranges": unsigned(4)} if config.sequences > 1 else {"cached": unsigned(24)}),
            **({"slots": unsigned(4)} if config.shared else {}),
        }
    )


class _State(IntEnum):
    NEXT = 0  # decides about the instruction
    CACHE = 1  # issues the reads of a CACHE
    SLOT = 2  # inspects one slot of a COPY
    PLACE = 3  # computes the position of the slot's rows
    COPY = 4  # issues the reads of these rows
    HALT = 5


class FrontEnd(CostedComponent):
    """Turn READ, CACHE and COPY into reads, and COPY and all other instructions into commands.

    A command is issued before the reads of all instructions after it.

    CACHE reads ``cached`` beats for each run, in the order K0 K1 V0 K2 V1 ... of the query heads' keys and values;
    without committed positions it reads nothing. COPY reads, for each accepted slot that has to move, in ascending
    order, and for each head, the groups of keys and of values that hold its row. The command COPY is issued in any
    case. If a layer has a ring, CACHE reads one or two ranges for each run, as ``ring`` says; with several sequences, one
    for each that has committed positions.

    Parameters:
        config: configuration of the accelerator.
        address_bits: bits of an address on the bus.

    Members:
        instructions: In(stream ``fetched(config)``).
        parameters: In(``walk_parameters(config, address_bits)``). Steady while a program is walked.
        ring: In(``ring_place(config)``). Likewise, only if the configuration has rings.
        rows, number, range: In(20), an array of the slots, Out and In(range_shape()): see ``SequencePlaces``; only if it
            has several sequences.
        quiet: In(1). No command waits and the units are idle; a READ or CACHE with ``wait`` waits for it.
        reads: Out(stream ``read(config, address_bits)``). Starts are modulo the address space: only the start of an
            instruction is checked, not the end of its last range.
        commands: Out(stream ``command(config)``).
        restart: In(1). A program begins; all state is cleared.
        broken: Out(1). The walk has reached an instruction that is out of range, that starts beyond the address space,
            or that follows the program's end. It holds.
        index: Out. Number of that instruction.

    Latency: 3 cycles from an instruction to its read or command.
    Throughput: one instruction in 4 cycles, one range of CACHE or COPY per cycle, or one of CACHE in 2 cycles with several
        sequences; each CACHE and COPY costs 2 cycles more, and each slot of a COPY that moves costs 6 more, or 8 if there
        are rings.
    Source: docs/accelerator.md.
    """

    def __init__(self, config: AcceleratorConfig, *, address_bits: int = 40) -> None:
        self._config = config
        self._start_bits = address_bits - beats_log2(config.beat_bytes)
        super().__init__(
            lambda: {
                "instructions": In(stream.Signature(fetched(config))),
                "parameters": In(walk_parameters(config, address_bits)),
                **({"ring": In(ring_place(config))} if config.ring else {}),
                **(_sequence_ports(config) if config.sequences > 1 else {}),
                "quiet": In(1),
                "reads": Out(stream.Signature(read(config, address_bits))),
                "commands": Out(stream.Signature(command(config))),
                "restart": In(1),
                "broken": Out(1),
                "index": Out(index_bits(config)),
            }
        )

    @property
    def resources(self) -> Resources:
        start = self._start_bits
        instruction = Resources(lut=76 + 3 * start, ff=fetched(self._config).size + start + 12)  # with its check
        cache = Resources(lut=2 * start + 6 * 8 + 10, ff=2 * start + 4 * 8 + 2)
        copies = Resources(lut=2 * start + 60, ff=start + 20 + 9 + 8)
        rings = Resources(lut=5 * start + 24 + 3 * 20, ff=22 + 3 * start) if self._config.ring else Resources()
        shared = Resources(lut=50, ff=16) if self._config.shared else Resources()
        if self._config.sequences > 1:
            shared += Resources(lut=2 * start + 20 * -(-self._config.slots // 4), ff=start + 24 + 4)
        return instruction + cache + copies + rings + shared + Resources(lut=2 * start + 24)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        now = Signal(fetched(self._config), reset_less=True)
        loaded = Signal()
        bad = Signal()
        skipped = Signal()
        base, start = (value.shape() for value in self._origin(now.bits))
        base = Signal(base)
        start = Signal(start)
        origin = Signal(self._start_bits)
        placed = Signal()
        # Decoding takes several registered steps: first the parts of each decision, then the decision.
        checks = violations(self._config, now.bits)
        out = Signal()
        applies = Signal(len(checks))
        wrong = [Signal(len(conditions), name=f"wrong_{number}") for number, (_, conditions) in enumerate(checks)]
        outside = Signal()
        steps = Signal(3)
        kind = Signal(len(_DECIDED))
        empty = Signal()
        state = Signal(_State)
        done = Signal()
        source = self.instructions
        m.d.comb += [
            source.ready.eq(~loaded),
            self.reads.p.index.eq(now.index),
            self.commands.p.bits.eq(now.bits),
            self.commands.p.index.eq(now.index),
            self.index.eq(now.index),
        ]
        with m.If(~loaded):
            m.d.sync += [loaded.eq(source.valid), now.eq(source.payload), steps.eq(source.valid)]
        with m.Else():
            m.d.sync += steps.eq(Cat(Const(0, 1), steps[:-1]) | steps & (1 << len(steps) - 1))
        with m.If(done):
            m.d.sync += [loaded.eq(0), steps.eq(0)]
        opcode, when = (data.View(layout(Opcode.STOP), now.bits)[name] for name in ("opcode", "when"))
        logits, place = self.parameters.logits, self._origin(now.bits)
        begins = base + start
        m.d.sync += [
            out.eq(((when == When.WITH_LOGITS) & ~logits) | ((when == When.WITHOUT_LOGITS) & logits)),
            applies.eq(Cat(one for one, _ in checks)),
            *(register.eq(Cat(conditions)) for register, (_, conditions) in zip(wrong, checks, strict=True)),
            placed.eq(Cat(opcode == number for number in _PLACED).any()),
            base.eq(place[0]),
            start.eq(place[1]),
            kind.eq(Cat(opcode == number for number in _DECIDED)),
            empty.eq(self.parameters.committed == 0),
            # One step later:
            origin.eq(begins),
            outside.eq(placed & ~out & begins[self._start_bits :].any()),
            skipped.eq(out & ~now.beyond),
            bad.eq(
                now.beyond
                | (~out & Cat(one & register.any() for one, register in zip(applies, wrong, strict=True)).any())
            ),
        ]
        cached = self._heads(m, data.View(layout(Opcode.CACHE), now.bits))
        into = Signal(self._start_bits)  # from a run of keys to the first row that is read of its values, in a ring
        if self._config.ring:
            m.d.sync += into.eq(data.View(layout(Opcode.CACHE), now.bits).run + self.ring.start)
        reading = Signal()  # the reads of a CACHE have begun, which is in its state only
        m.d.comb += self.reads.valid.eq(reading)
        with m.Switch(state):
            with m.Case(_State.NEXT), m.If(steps[-1]):
                self._decide(m, now.bits, kind, empty, bad | outside, skipped, origin, state, done)
            with m.Case(_State.CACHE):
                self._cache(m, now.bits, cached, origin, into, reading, state, done)
            with m.Case(_State.SLOT, _State.PLACE, _State.COPY):
                self._copy(m, now.bits, origin, state, done)
        with m.If(self.restart):
            m.d.sync += [loaded.eq(0), steps.eq(0), state.eq(_State.NEXT), self.broken.eq(0)]
        return m

    def _origin(self, bits: Value) -> tuple[Value, Value]:
        """Return the base and the offset of the start of an instruction of ``_PLACED``; their sum is the start."""
        opcodes, now = (Opcode.READ, Opcode.CACHE, Opcode.ATTEND), self.parameters
        plain, cached, attends = (data.View(layout(opcode), bits) for opcode in opcodes)
        reads = plain.opcode == Opcode.READ
        base = Mux(reads, Mux(plain.base == Base.IMAGE, now.image, now.input), now.kv)
        start = Mux(plain.opcode == Opcode.ATTEND, attends.start, cached.start)  # COPY's is where CACHE's is
        return base, Mux(reads, plain.start, start)

    def _decide(
        self,
        m: Module,
        bits: Value,
        kind: Value,
        empty: Value,
        bad: Value,
        skipped: Value,
        origin: Value,
        state: Signal,
        done: Value,
    ) -> None:
        """Decide about an instruction; ``kind`` has a bit for each of ``_DECIDED``, ``empty`` says that no position is
        committed.
        """
        view, reads, commands = data.View(layout(Opcode.READ), bits), self.reads, self.commands
        is_read, is_cache, is_copy, is_stop = kind
        with m.If(bad):
            m.d.sync += [self.broken.eq(1), state.eq(_State.HALT)]
        with m.Elif(skipped):
            m.d.comb += done.eq(1)
        with m.Elif(is_read):
            m.d.comb += [
                reads.valid.eq(~view.wait | self.quiet),
                done.eq(reads.valid & reads.ready),
                reads.p.start.eq(origin),
                *(reads.p[name].eq(view[name]) for name in ("destination", "beats", "spare")),
            ]
        with m.Elif(is_cache):
            with m.If(empty):
                m.d.comb += done.eq(1)
            with m.Elif(~view.wait | self.quiet):
                m.d.sync += state.eq(_State.CACHE)
        with m.Else():
            m.d.comb += commands.valid.eq(1)
            with m.If(commands.ready):
                with m.If(is_stop):
                    m.d.sync += state.eq(_State.HALT)
                with m.Elif(is_copy):
                    m.d.sync += state.eq(_State.SLOT)
                with m.Else():
                    m.d.comb += done.eq(1)

    def _cache(
        self,
        m: Module,
        bits: Value,
        cached: tuple[Value, Value],
        origin: Value,
        into: Value,
        reading: Signal,
        state: Signal,
        done: Value,
    ) -> None:
        """Issue the reads of keys and values; each has a next head, heads left, and heads left in its group."""
        view, reads = data.View(layout(Opcode.CACHE), bits), self.reads
        of_values = Signal()
        more = Signal()  # the run has another range, at its beginning
        keys, values = (_Heads(name, self._start_bits) for name in ("keys", "values"))
        heads, group = cached
        run_start = Mux(of_values, values.start, keys.start)
        m.d.comb += [
            reads.p.start.eq(run_start),
            reads.p.destination.eq(Destination.KEYS_VALUES),
        ]
        taken: Value = reads.ready
        if self._config.sequences > 1:
            taken = self._range(m, run_start, more, reading)
        else:
            m.d.comb += reads.p.beats.eq(self.parameters.cached)
        places = list[tuple[Value, Value]]()  # the place of each run in a ring, and its first value
        if self._config.ring:
            second = Signal()
            place = Signal(self._start_bits, name="keys_place")
            other = Signal(self._start_bits, name="values_place")
            places = [(place, origin + self.ring.start), (other, origin + into)]
            with m.If(view.ring & ~second):
                m.d.comb += [
                    reads.p.start.eq(Mux(of_values, other, place)),
                    reads.p.beats.eq(self.ring.before),
                    more.eq(self.ring.after != 0),
                ]
            with m.Elif(view.ring):
                m.d.comb += reads.p.beats.eq(self.ring.after)
            with m.If(reading & reads.ready):
                m.d.sync += second.eq(more)
            with m.If(self.restart):
                m.d.sync += second.eq(0)
        with m.If(~reading):
            m.d.sync += [reading.eq(1), of_values.eq(0)]
            for run, start in ((keys, origin), (values, origin + view.run)):
                m.d.sync += [run.start.eq(start), run.left.eq(heads), run.in_group.eq(group)]
            m.d.sync += [register.eq(first) for register, first in places]
        with m.Elif(taken & ~more):
            # Only K0 is followed by another key; from then on a key alternates with the value of the head before it.
            first, last = keys.left == heads, keys.left == 1
            m.d.sync += of_values.eq(Mux(of_values, keys.left == 0, ~first | last))
            for number, (run, moves) in enumerate(((keys, ~of_values), (values, of_values))):
                with m.If(moves):
                    m.d.sync += [run.left.eq(run.left - 1), run.in_group.eq(run.in_group - 1)]
                    with m.If(run.in_group == 1):
                        starts = [run.start, *(register for register, _ in places[number : number + 1])]
                        m.d.sync += [run.in_group.eq(group), *(one.eq(one + (view.run << 1)) for one in starts)]
            with m.If(of_values & (values.left == 1)):
                m.d.comb += done.eq(1)
                m.d.sync += [reading.eq(0), state.eq(_State.NEXT)]
        with m.If(self.restart):
            m.d.sync += reading.eq(0)

    def _range(self, m: Module, run_start: Value, more: Signal, reading: Signal) -> Value:
        """Offer the ranges of a run, one for each sequence with committed positions. Return whether one is taken."""
        reads = self.reads
        held = Signal()
        place = Signal(self._start_bits)
        beats = Signal.like(self.range.beats)
        last = Signal.like(self.number)  # number of the last range, which is steady
        m.d.sync += last.eq(self.parameters.ranges - 1)
        m.d.comb += [
            more.eq(self.number != last),
            reads.valid.eq(reading & held),
            reads.p.start.eq(place),
            reads.p.beats.eq(beats),
        ]
        with m.If(~held):
            m.d.sync += [held.eq(reading), place.eq(run_start + self.range.start), beats.eq(self.range.beats)]
        with m.Elif(reads.ready):
            m.d.sync += [held.eq(0), self.number.eq(Mux(more, self.number + 1, 0))]
        with m.If(self.restart):
            m.d.sync += [held.eq(0), self.number.eq(0)]
        return held & reads.ready

    def _heads(self, m: Module, view: Any) -> tuple[Value, Value]:
        """Return the heads, and those of a group, where each stands for all that attend together.

        They follow the instruction, and are used several cycles after it has come.
        """
        if not self._config.shared:
            return view.heads, view.group
        together, _ = together_log2(self._config, view.group, self.parameters.slots)
        heads = Signal.like(view.heads)
        group = Signal.like(view.group)
        m.d.sync += [heads.eq(view.heads >> together), group.eq(view.group >> together)]
        return heads, group

    def _copy(self, m: Module, bits: Value, origin: Value, state: Signal, done: Value) -> None:
        view, reads, now = data.View(layout(Opcode.COPY), bits), self.reads, self.parameters
        layout_ = self._config.kv_layout
        slot = Signal(range(self._config.slots + 1))
        rank = Signal(range(self._config.slots + 1))
        position = Signal(20)
        group = Signal(20)
        beats = Signal(20 + layout_.chunks.bit_length())
        progress = Signal(5 if self._config.ring else 3)
        start = Signal(self._start_bits)
        left = Signal(FIELDS[Opcode.COPY]["heads"] + 1)
        moves = Signal()
        with m.If(state == _State.SLOT):
            m.d.comb += moves.eq(now.accepted.bit_select(slot, 1))  # 0 after the last slot
            m.d.sync += [slot.eq(slot + 1), position.eq(self._position(view, slot)), progress.eq(0)]
            with m.If(moves):
                m.d.sync += rank.eq(rank + 1)
            with m.If(slot == self._config.slots):
                m.d.comb += done.eq(1)
                m.d.sync += [slot.eq(0), rank.eq(0), state.eq(_State.NEXT)]
            with m.Elif(moves & (rank != slot)):
                m.d.sync += state.eq(_State.PLACE)
        with m.Elif(state == _State.PLACE):
            m.d.sync += [
                progress.eq(Cat(1, progress)),
                group.eq(self._row(m, position, view.ring) >> beats_log2(layout_.positions)),
                beats.eq(product(group, layout_.chunks)),
                start.eq(origin + beats),
                left.eq(view.heads << 1),
            ]
            with m.If(progress[-1]):
                m.d.sync += state.eq(_State.COPY)
        with m.Else():
            m.d.comb += [
                reads.valid.eq(1),
                reads.p.start.eq(start),
                reads.p.beats.eq(layout_.chunks),
                reads.p.destination.eq(Destination.COPY),
            ]
            with m.If(reads.ready):
                m.d.sync += [start.eq(start + view.run), left.eq(left - 1)]
                with m.If(left == 1):
                    m.d.sync += state.eq(_State.SLOT)
        with m.If(self.restart):
            m.d.sync += [slot.eq(0), rank.eq(0)]

    def _position(self, view: Any, slot: Signal) -> Value:
        """Return the row of a slot, or in a ring that of the first slot and the slot's number."""
        now = self.parameters
        if self._config.sequences > 1:
            return Array(self.rows[one] for one in range(self._config.slots))[slot]
        return (Mux(view.ring, self.ring.place, now.committed) if self._config.ring else now.committed) + slot

    def _row(self, m: Module, position: Signal, ring: Value) -> Value:
        """Return the row of a position, which in a ring is two registers later: the ring begins anew after its end."""
        kept = self._config.ring
        if kept is None:
            return position
        passed = Signal()
        row = Signal.like(position)
        m.d.sync += [
            passed.eq(ring & (position >= kept.rows)),
            row.eq(Mux(passed, position - kept.rows, position)),
        ]
        return row


def _sequence_ports(config: AcceleratorConfig) -> dict[str, Any]:
    """Return the ports to SequencePlaces."""
    rows = places_shape(config)["rows"].shape
    return {"rows": In(rows), "number": Out(range(config.sequences)), "range": In(range_shape())}


class _Heads:
    """Progress through the heads of a CACHE.

    Members:
        start: start of the next head's run, in beats.
        left: heads left, the next one included.
        in_group: heads left that share the run, the next one included.
    """

    def __init__(self, name: str, start_bits: int) -> None:
        heads = FIELDS[Opcode.CACHE]["heads"]
        self.start = Signal(start_bits, name=f"{name}_start")
        self.left = Signal(heads, name=f"{name}_left")
        self.in_group = Signal(heads, name=f"{name}_in_group")
