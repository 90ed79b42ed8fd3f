"""Sums of weighted values, divided by the sums of their weights."""

from typing import Any

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, unsigned
from amaranth.lib import data, memory, stream
from amaranth.lib.wiring import In, Out, connect, flipped

from edgedec.hw.attention.head_shape import HeadShape
from edgedec.hw.attention.score_memory import visibility
from edgedec.hw.attention.softmax import probabilities
from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.contract import contract
from edgedec.hw.blocks.credit_queue import CreditQueue
from edgedec.hw.blocks.divider import Divider
from edgedec.hw.blocks.multiply import STAGES as MULTIPLY
from edgedec.hw.blocks.multiply import multiply
from edgedec.hw.blocks.normalize import Normalize
from edgedec.hw.blocks.payloads import rows, word, words
from edgedec.hw.blocks.pipeline import carried, check, delayed, every, reduced
from edgedec.hw.blocks.ram_cost import distributed_luts
from edgedec.hw.blocks.resources import Resources
from edgedec.hw.matrix.mac_array import column_bits

__all__ = ["WeightedValues"]

_SHARES = 4  # parts of the slots whose sums have an address of their own
_DRAIN_STAGES = 4 + MULTIPLY + 1  # registers from the sums to the queue of outputs
_SHIFTED = 3  # registers until a word needs its head's reciprocals and shifts no more
_LARGEST = 65535 * 127  # magnitude of a product of a probability and a value's code
_OUT_SHIFT = 13  # last rounding shift


class WeightedValues(CostedComponent):
    """Compute ``N = sum p * v``, ``L = sum p``, and ``rs(rs(N, e - 16) * rs(r * V, 16), 13)`` of them, head by head.

    Parameters:
        shape: shape of the heads; its ``lanes`` are the probabilities per row and cycle.
        out_lanes: elements of the output per cycle; divides ``chunk``.

    Members:
        visibility: In(visibility(shape)). Only ``committed`` and ``own`` are used.
        chances: In(probabilities(slots, lanes)). ``last`` ends a head.
        columns: In(stream rows(., slots, chunk), always ready). Sums of the head's groups, chunk after chunk. Those of
            the next head begin only after ``drained``.
        ends: In(stream 1). One item per head, 1 if it ends the vector.
        scales: In(stream u16 [out_lanes]). V of the columns of each word of the output, the same for all slots.
        drained: Out(1). High for one cycle when the sums of the head have left.
        output: Out(words(27, slots, out_lanes)). Heads one after the other, with ``last`` as in ``ends``. A row that
            sees no position produces zeros.

    Latency: slots + 37 cycles, or a few more with lanes, from a head's last probability to its first output; 13 from its
        last column if that is later.
    Throughput: out_lanes * slots elements per cycle; a head's sums leave while the next head's scores are computed.
    Source: docs/integer-profile.md, "Attention".
    """

    def __init__(self, shape: HeadShape, *, out_lanes: int) -> None:
        layout, slots, lanes, context, chunk = shape.layout, shape.slots, shape.lanes, shape.context, shape.chunk
        check("out_lanes", out_lanes, 1, chunk)
        if chunk % out_lanes:
            raise ValueError(f"out_lanes must divide {chunk}, not {out_lanes!r}")
        self._layout, self._slots, self._lanes, self._out_lanes = layout, slots, lanes, out_lanes
        growth = (context + slots).bit_length()
        self._total_bits = 16 + growth
        self._sum_bits = ((context + slots) * _LARGEST).bit_length() + 1
        self._outputs = CreditQueue(shape=word(27, slots, out_lanes), stages=_DRAIN_STAGES)
        super().__init__(
            lambda: {
                "visibility": In(visibility(shape)),
                "chances": In(probabilities(slots, lanes)),
                "columns": In(stream.Signature(rows(column_bits(layout.positions), slots, chunk), always_ready=True)),
                "ends": In(stream.Signature(unsigned(1))),
                "scales": In(stream.Signature(data.ArrayLayout(unsigned(16), out_lanes))),
                "drained": Out(1),
                "output": Out(words(27, slots, out_lanes)),
            }
        )

    @property
    def resources(self) -> Resources:
        slots, lanes, out_lanes = self._slots, self._lanes, self._out_lanes
        sums, divided = self._layout.chunk * slots * self._sum_bits, out_lanes * slots  # bits, elements a cycle
        choice = self._sum_bits * -(-self._layout.chunk // out_lanes // 4)  # LUTs: a word of a chunk
        memory = distributed_luts(sums, self._layout.chunks)
        added = (
            self._layout.chunk * slots * (self._sum_bits + column_bits(self._layout.positions))
        )  # before the addition
        flip_flops = divided * 304 + 56 * slots + 2 * slots * self._total_bits + 20 * slots * (lanes - 1)
        return self._outputs.resources + Resources(
            lut=memory + sums + divided * (115 + choice) + 62 * slots + 20 * slots * lanes + 105,
            ff=flip_flops + added + 16 * out_lanes + 180,
            dsp=2 * divided,
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        advance = Signal()
        mixed, complete, chunk = self._accumulate(m, advance)
        totals, full, taken = self._total(m)
        divided = self._divide(m, totals, full, taken)
        ready = Signal()
        with m.If(self.drained):
            m.d.sync += ready.eq(0)
        with m.If(complete):
            m.d.sync += ready.eq(1)
        self._drain(m, chunk, advance, mixed, divided, ready)
        contract(m, ~self.columns.valid | ~(ready | complete), "Sums of a head begin only after drained")
        return m

    def _accumulate(self, m: Module, advance: Any) -> tuple[Any, Any, Any]:
        """Return the sums [chunk][slot] of the current chunk, a pulse at the end of a head, and the chunk's number.

        At the end of a head the number is 0 again, and then counts the chunks that are drained, by ``advance``.
        """
        layout, config = self._layout, self.visibility
        # The sums of a share of the slots have a memory and a counter of their own: all together have 2,200 address pins.
        shares = [range(share, self._slots, _SHARES) for share in range(min(_SHARES, self._slots))]
        chunks = [
            Signal(range(layout.chunks), name=f"chunk_{share}", attrs={"keep": "true"}) for share in range(len(shares))
        ]
        chunk = chunks[0]
        committed, own = (_groups(positions, layout.positions) for positions in (config.committed, config.own))
        count = (committed + own).shape()
        # The number of the last group, in two steps: visibility is steady long before a pass begins.
        committed_groups = Signal(count)
        last_own = Signal(count)
        least = Signal(count)
        group = Signal(count)
        m.d.sync += [committed_groups.eq(committed), last_own.eq(own - 1), least.eq(committed_groups + last_own)]
        valid = self.columns.valid
        last_chunk = chunk == layout.chunks - 1
        last_group = Signal()
        complete = Signal()
        first_groups = [
            Signal(name=f"first_group_{share}", init=1, attrs={"keep": "true"}) for share in range(len(shares))
        ]
        # One cycle late, which is enough because the group has been the same for at least one cycle when this is used.
        m.d["sync" if layout.chunks > 1 else "comb"] += last_group.eq(group == least)
        mixed = Signal(rows(self._sum_bits, self._slots, layout.chunk))
        for share, (slots, its_chunk, first_group) in enumerate(zip(shares, chunks, first_groups, strict=True)):
            shape = rows(self._sum_bits, len(slots), layout.chunk)
            m.submodules[f"sums_{share}"] = sums = memory.Memory(shape=shape, depth=layout.chunks, init=[])
            write = sums.write_port()
            port = sums.read_port(domain="comb")
            m.d.sync += [write.en.eq(valid), write.addr.eq(its_chunk)]
            m.d.comb += port.addr.eq(its_chunk)
            # A register separates the stored sums from the addition. A chunk returns only after its sums were written,
            # unless it is the only one.
            for element in range(layout.chunk):
                for place, slot in enumerate(slots):
                    kept, added = port.data[element][place], self.columns.payload[element][slot]
                    m.d.comb += mixed[element][slot].eq(kept)
                    if layout.chunks == 1:
                        kept = Mux(write.en, write.data[element][place], kept)
                    before = Signal.like(kept, name=f"before_{element}_{slot}", reset_less=True)
                    column = Signal.like(added, name=f"column_{element}_{slot}", reset_less=True)
                    m.d.sync += [before.eq(Mux(first_group, 0, kept)), column.eq(added)]
                    m.d.comb += write.data[element][place].eq(before + column)
            ends = its_chunk == layout.chunks - 1
            with m.If(valid | advance):
                m.d.sync += its_chunk.eq(Mux(ends, 0, its_chunk + 1))
            with m.If(valid & ends):
                m.d.sync += first_group.eq(last_group)
        m.d.sync += complete.eq(valid & last_chunk & last_group)
        with m.If(valid & last_chunk):
            m.d.sync += group.eq(Mux(last_group, 0, group + 1))
        return mixed, complete, chunk

    def _total(self, m: Module) -> tuple[Any, Any, Any]:
        """Return L of each slot, whether it is final, and the wire that takes it."""
        totals = Signal(data.ArrayLayout(unsigned(self._total_bits), self._slots))
        taken = Signal()
        accepted = Signal()
        closed = Signal()  # the last probability was added, and L is not taken
        m.d.comb += [self.chances.ready.eq(~closed), accepted.eq(self.chances.valid & ~closed)]
        with m.If(accepted & self.chances.p.last):
            m.d.sync += closed.eq(1)
        sums, levels = [], 0
        for slot in range(self._slots):
            chances = [self.chances.p.chances[lane][slot] for lane in range(self._lanes)]
            total, levels = reduced(m, Const(1), chances, lambda a, b: a + b)
            sums.append(total)
        state = delayed(m, Const(1), Cat(accepted, accepted & self.chances.p.last), levels)
        full = Signal()
        with m.If(state[0]):
            m.d.sync += [totals[s].eq(totals[s] + sums[s]) for s in range(self._slots)]
            m.d.sync += full.eq(state[1])
        with m.If(taken):
            m.d.sync += [totals.eq(0), full.eq(0), closed.eq(0)]
        return totals, full, taken

    def _divide(self, m: Module, totals: Any, full: Any, taken: Any) -> tuple[Any, Any, Any, Any, Any]:
        """Return r and e - 16 of each slot, the head's ``last``, whether they are valid, and the wire that releases them."""
        slots = self._slots
        release = Signal()
        m.submodules.normalize = normalize = Normalize(bits=self._total_bits, mantissa_bits=16, tag_bits=3)
        moving = Signal(totals.shape())
        busy = Signal()
        fed = Signal(range(slots + 1), init=slots)
        last = Signal()
        m.d.comb += [
            taken.eq(full & self.ends.valid & ~busy),
            self.ends.ready.eq(taken),
            normalize.input.valid.eq(fed != slots),
            normalize.input.p.value.eq(moving[0]),
            normalize.input.p.tag.eq(fed),
            normalize.output.ready.eq(1),
        ]
        with m.If(normalize.input.valid & normalize.input.ready):
            m.d.sync += [fed.eq(fed + 1), moving.eq(moving.as_value() >> self._total_bits)]
        with m.If(release):
            m.d.sync += busy.eq(0)
        with m.If(taken):
            m.d.sync += [busy.eq(1), moving.eq(totals), fed.eq(0), last.eq(self.ends.payload)]
        shifts = Signal(data.ArrayLayout(range(self._total_bits - 15), slots))
        reciprocals = Signal(data.ArrayLayout(17, slots))
        normal = normalize.output
        done = []
        for slot in range(slots):
            m.submodules[f"divider_{slot}"] = divider = Divider(
                numerator_bits=32, denominator_bits=16, quotient_bits=17
            )
            m.d.comb += [
                divider.input.valid.eq(normal.valid & (normal.p.tag == slot)),
                divider.input.p.numerator.eq((1 << 32) - 1),
                divider.input.p.denominator.eq(normal.p.mantissa),
                divider.output.ready.eq(release),  # the divider holds its quotient until then
                reciprocals[slot].eq(divider.output.payload),
            ]
            done.append(divider.output.valid)
            with m.If(divider.input.valid):
                m.d.sync += shifts[slot].eq(Mux(normal.p.length > 16, normal.p.length - 16, 0))
        return reciprocals, shifts, last, every(done), release

    def _drain(
        self, m: Module, chunk: Any, advance: Any, mixed: Any, divided: tuple[Any, Any, Any, Any, Any], ready: Any
    ) -> None:
        reciprocals, shifts, last, quotients_valid, release = divided
        parts = self._layout.chunk // self._out_lanes
        part = Signal(range(parts))
        end = Signal()
        all_sent = Signal()  # all of the head's words are in the pipeline, and the last ones may need its shifts
        m.submodules.outputs = queue = self._outputs
        connect(m, queue.output, flipped(self.output))
        always = Const(1)
        m.d.comb += [
            advance.eq(queue.enter & (part == parts - 1)),
            end.eq((part == parts - 1) & (chunk == self._layout.chunks - 1)),
            self.scales.ready.eq(quotients_valid & ready & ~all_sent & queue.room),
            queue.enter.eq(self.scales.ready & self.scales.valid),
            self.drained.eq(queue.enter & end),
        ]
        with m.If(release):
            m.d.sync += all_sent.eq(0)
        with m.If(self.drained):
            m.d.sync += all_sent.eq(1)
        with m.If(queue.enter):
            m.d.sync += part.eq(Mux(advance, 0, part + 1))
        m.d.comb += [
            release.eq(delayed(m, always, self.drained, _SHIFTED)),
            queue.result.last.eq(delayed(m, always, self.drained & last, _DRAIN_STAGES, name="last_out")),
        ]
        for lane in range(self._out_lanes):
            for slot in range(self._slots):
                choices = [mixed[first + lane][slot] for first in range(0, self._layout.chunk, self._out_lanes)]
                x = carried(m, always, Cat(Const(0, 1), Array(choices)[part]).as_signed())
                for low, step in ((shifts[slot][2:], 4), (shifts[slot][:2], 1)):
                    x = carried(m, always, Array([x >> (step * k) for k in range(1 << len(low))])[low])
                short = carried(m, always, ((x >> 1) + x[0])[:24].as_signed())
                scaled = multiply(m, f"scaled_{lane}_{slot}", reciprocals[slot], self.scales.payload[lane])
                factor = carried(m, always, ((scaled >> 16) + scaled[15])[:17].as_unsigned())
                product = multiply(m, f"product_{lane}_{slot}", short, factor)
                rounded = (product + (1 << (_OUT_SHIFT - 1))) >> _OUT_SHIFT
                m.d.comb += queue.result["values"][lane][slot].eq(carried(m, always, rounded, name="value"))


def _groups(positions: Any, of: int) -> Any:
    """Return the number of groups that ``positions`` positions begin."""
    return (positions + (of - 1)) >> (of - 1).bit_length()
