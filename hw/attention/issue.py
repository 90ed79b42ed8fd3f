"""The order in which attention uses the multipliers."""

from typing import Any

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, signed, unsigned
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out

from edgedec.hw.attention.head_buffer import HeadBuffer
from edgedec.hw.attention.head_shape import HeadShape
from edgedec.hw.attention.score_memory import visibility
from edgedec.hw.attention.softmax import probabilities
from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.payloads import beat, rows
from edgedec.hw.blocks.pipeline import check
from edgedec.hw.blocks.resources import Resources, total
from edgedec.hw.matrix.mac_array import OPERAND_BITS, WorkKind, work

__all__ = ["AttentionIssue"]


class AttentionIssue(CostedComponent):
    """Issue runs of keys against queries and of values against probabilities, in the order K0 K1 V0 K2 V1 ... of the
    heads.

    Parameters:
        shape: shape of the heads; its ``lanes`` are the probabilities per row and cycle.
        query_bits: signed bits of a query's code, 8 to 16.

    Members:
        visibility: In(visibility(shape)). Only ``committed`` and ``own`` are used.
        heads: In(stream 1). One item per head, 1 for the last one of the pass. Taken as its run of keys begins.
        beats: In(beat(beat_bytes)). The committed positions' runs in that order, none without committed positions.
        queries: In(stream rows(query_bits, slots, chunk)). ``head_dim / chunk`` items per head, of each row. Two heads
            are taken in advance.
        keys, values: In(stream rows(8, slots, chunk)). ``head_dim / chunk`` items per head, of each own position;
            likewise.
        chances: In(probabilities(slots, lanes)). ``last`` is ignored.
        drained: In(1). High for one cycle when the last run of values has left the accumulators; the next one waits for
            it.
        work: Out(work(beat_bytes, slots)). Work for the MacArray.

    Latency: 1 cycle from a beat to ``work``.
    Throughput: one beat per cycle; one cycle between two runs; a group takes at least ``positions / lanes`` cycles.
    """

    def __init__(self, shape: HeadShape, *, query_bits: int = 12) -> None:
        check("query_bits", query_bits, 8, 16)
        layout, slots, lanes, chunk = shape.layout, shape.slots, shape.lanes, shape.chunk
        self._layout, self._slots, self._lanes = layout, slots, lanes
        self._buffers = {
            name: HeadBuffer(bits=bits, slots=slots, chunk=chunk, chunks=layout.chunks)
            for name, bits in (("queries", query_bits), ("keys", 8), ("values", 8))
        }
        self._most_groups = max(layout.groups(shape.context), layout.groups(slots))
        super().__init__(
            lambda: {
                "visibility": In(visibility(shape)),
                "heads": In(stream.Signature(unsigned(1))),
                "beats": In(beat(shape.beat_bytes)),
                "queries": In(stream.Signature(rows(query_bits, slots, chunk))),
                "keys": In(stream.Signature(rows(8, slots, chunk))),
                "values": In(stream.Signature(rows(8, slots, chunk))),
                "chances": In(probabilities(slots, lanes)),
                "drained": In(1),
                "work": Out(work(shape.beat_bytes, slots)),
            }
        )

    @property
    def resources(self) -> Resources:
        layout, slots = self._layout, self._slots
        buffers = total(buffer.resources for buffer in self._buffers.values())
        operands, group = max(layout.chunk, layout.positions) * slots, layout.positions * slots * 16
        per_bit = 2.67 if slots > layout.positions else 1.0  # LUTs: own and committed, keys and values; own groups
        lut = 16 * operands + round(8 * layout.beat_bytes * per_bit) + 74
        return buffers + Resources(lut=lut, ff=8 * layout.beat_bytes + OPERAND_BITS * operands + 2 * group + 20)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        layout = self._layout
        chunk = Signal(range(layout.chunks))
        group = Signal(range(self._most_groups))
        own = Signal()
        running = Signal()
        weighing = Signal()
        go = Signal()
        end = Signal()
        queries = self._buffer(m, "queries", chunk, go & end & ~weighing)
        keys = self._buffer(m, "keys", chunk, go & end & ~weighing)
        values = self._buffer(m, "values", chunk, go & end & weighing)
        last_chunk = chunk == layout.chunks - 1
        chances, ready = self._gather(m, go & weighing & last_chunk)
        pace = Signal(range(layout.positions // self._lanes))
        with m.If(pace != 0):
            m.d.sync += pace.eq(pace - 1)
        source = Mux(own, Mux(weighing, values.full, keys.full), self.beats.valid)
        other = Mux(weighing, ready, queries.full & ((pace == 0) | ~last_chunk))
        part_end = last_chunk & self._last_group(m, own, group)
        m.d.comb += [
            go.eq(running & source & other),
            self.beats.ready.eq(running & other & ~own),
            end.eq(own & part_end),
        ]
        with m.If(go):
            m.d.sync += chunk.eq(chunk + 1)
            with m.If(last_chunk):
                m.d.sync += [chunk.eq(0), group.eq(group + 1), pace.eq(layout.positions // self._lanes - 1)]
            with m.If(part_end):
                m.d.sync += [group.eq(0), own.eq(1)]
        selects = _Selects()
        self._order(m, running, weighing, selects, own, go & end)
        self._drive(m, go, weighing, selects, own, group, chances, (queries.data, keys.data, values.data))
        return m

    def _last_group(self, m: Module, own: Any, group: Any) -> Any:
        """Return whether ``group`` is the last one of its part: of the committed positions, or of the own ones.

        It is one cycle late if a group has several chunks, which is enough: only the last chunk of a group needs it.
        """
        config = self.visibility
        layout = self._layout
        last = Signal()
        ends = {name: Signal.like(group, name=f"last_group_of_{name}") for name in ("own", "committed")}
        for name, end in ends.items():  # visibility is steady one cycle before a run begins
            m.d.sync += end.eq(((config[name] + (layout.positions - 1)) >> (layout.positions - 1).bit_length()) - 1)
        m.d["sync" if layout.chunks > 1 else "comb"] += last.eq(group == Mux(own, ends["own"], ends["committed"]))
        return last

    def _buffer(self, m: Module, name: str, index: Any, release: Any) -> HeadBuffer:
        m.submodules[name] = buffer = self._buffers[name]
        port = getattr(self, name)
        m.d.comb += [
            buffer.input.payload.as_value().eq(port.payload.as_value()),
            buffer.input.valid.eq(port.valid),
            port.ready.eq(buffer.input.ready),
            buffer.index.eq(index),
            buffer.release.eq(release),
        ]
        return buffer

    def _gather(self, m: Module, used: Any) -> tuple[Any, Any]:
        """Return a group's probabilities [positions][slots] and their valid bit; the next group is collected meanwhile."""
        positions, words = self._layout.positions, self._layout.positions // self._lanes
        shape = data.ArrayLayout(data.ArrayLayout(unsigned(16), self._slots), positions)
        collected = Signal(shape, reset_less=True)
        group = Signal(shape, reset_less=True)
        count = Signal(range(words + 1))
        ready = Signal()
        move = Signal()
        m.d.comb += [move.eq((count == words) & (~ready | used)), self.chances.ready.eq((count != words) | move)]
        with m.If(used):
            m.d.sync += ready.eq(0)
        with m.If(move):
            m.d.sync += [group.eq(collected), ready.eq(1), count.eq(0)]
        with m.If(self.chances.valid & self.chances.ready):
            word = self.chances.p.chances.as_value()
            bits = len(word)
            m.d.sync += count.eq(Mux(move, 0, count) + 1)
            m.d.sync += collected.eq((collected.as_value() | (word << (words * bits))) >> bits)
        return group, ready

    def _order(self, m: Module, running: Any, weighing: Any, selects: "_Selects", own: Any, end: Any) -> None:
        """Choose the next run: values if the scores of two heads are complete, or those of the last head."""
        ahead = Signal(range(3))
        last = Signal()
        busy = Signal()
        with m.If(self.drained):
            m.d.sync += busy.eq(0)
        with m.If(end):
            m.d.sync += running.eq(0)
            m.d.sync += ahead.eq(Mux(weighing, ahead - 1, ahead + 1))
            with m.If(weighing & (ahead == 1)):
                m.d.sync += last.eq(0)
        with m.If(~running):
            m.d.sync += own.eq(self.visibility.committed == 0)
            with m.If((ahead == 2) | ((ahead == 1) & last)), m.If(~busy):
                m.d.sync += [running.eq(1), weighing.eq(1), busy.eq(1), *selects.set(1)]
            with m.Else():
                m.d.comb += self.heads.ready.eq(1)
                with m.If(self.heads.valid):
                    m.d.sync += [running.eq(1), weighing.eq(0), last.eq(self.heads.payload), *selects.set(0)]

    def _drive(
        self,
        m: Module,
        go: Any,
        weighing: Any,
        selects: "_Selects",
        own: Any,
        group: Any,
        chances: Any,
        codes: tuple[Any, Any, Any],
    ) -> None:
        """Drive the registers of ``work``; values are transposed so that neighbouring lanes are positions of one element."""
        layout, lanes = self._layout, self._layout.beat_bytes
        queries, keys, values = codes
        distinct = max(layout.chunk, layout.positions)
        held = Signal(data.ArrayLayout(signed(8), lanes), reset_less=True)
        operands = Signal(rows(OPERAND_BITS, self._slots, distinct), reset_less=True)
        m.d.sync += [
            self.work.valid.eq(go),
            self.work.p.kind.as_value().eq(Mux(weighing, WorkKind.COLUMNS.value, WorkKind.SCORES.value)),  # type: ignore[attr-defined]
        ]
        for lane in range(lanes):
            # Position and element of this lane: in a run of keys as they lie in a beat, in one of values transposed.
            key, value = divmod(lane, layout.chunk), divmod(lane, layout.positions)[::-1]
            own_key, own_value = self._own(keys, *key), self._own(values, *value)
            # One choice among all own bytes, and one between those and the two of the beat, take two LUTs for each bit.
            number = Cat(group[: _index_bits(len(own_key))], selects.values)
            own_byte = Array([*own_key, *own_value])[number]
            beat_bytes = [self.beats.payload[position * layout.chunk + element] for position, element in (key, value)]
            m.d.sync += held[lane].eq(Mux(own, own_byte, Mux(selects.values, *beat_bytes[::-1])))
            m.d.comb += self.work.p.values[lane].eq(held[lane])
            m.d.comb += self.work.p.operands[lane].as_value().eq(operands[lane % distinct].as_value())
        for lane in range(distinct):
            for slot in range(self._slots):
                chance, query = chances[lane % layout.positions][slot], queries[lane % layout.chunk][slot]
                m.d.sync += operands[lane][slot].eq(Mux(selects.queries[lane % 2], query, chance))

    def _own(self, codes: Any, position: int, element: int) -> list[Any]:
        """Return the own codes of an element that a position of a group has, group after group: a power of two of them.

        After the last slot its code is repeated, for positions that nothing sees.
        """
        slots = range(position, self._slots, self._layout.positions)
        number = 1 << _index_bits(-(-self._slots // self._layout.positions))
        found = [codes[element][slot] for slot in slots] or [Const(0, signed(8))]
        return [*found, *[found[-1]] * (number - len(found))]


class _Selects:
    """Registers that follow ``weighing``, each for a part of the multiplexers of ``work``, which are about 3,000.

    They differ in polarity and reset, so that synthesis does not merge them.

    Members:
        values: values are selected, not keys.
        queries: queries are selected as operands, not probabilities; of even and of odd lanes.
    """

    def __init__(self) -> None:
        self.values = Signal(name="select_values", reset_less=True)
        self.queries = [
            Signal(name="select_even_queries", init=1),
            Signal(name="select_odd_queries", init=1, reset_less=True),
        ]

    def set(self, weighing: int) -> list[Any]:
        """Return the assignments for a run of values, or of keys."""
        return [self.values.eq(weighing), *(select.eq(1 - weighing) for select in self.queries)]


def _index_bits(number: int) -> int:
    return (number - 1).bit_length()
