"""Attention between the linears before and after it: rotation, codes, memories, heads."""

from typing import Any

from amaranth.hdl import Array, Module, Mux, Signal, Value, unsigned
from amaranth.lib import data, stream
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out, connect, flipped

from edgedec.hw.attention.coder import Coder, constants
from edgedec.hw.attention.coder import settings as coder_settings
from edgedec.hw.attention.head_feeder import HeadFeeder, attend
from edgedec.hw.attention.head_norm import HeadNorm
from edgedec.hw.attention.head_shape import HeadShape
from edgedec.hw.attention.heads import AttentionHeads
from edgedec.hw.attention.parts import KEYS, QUERIES, VALUES, head_factor, part
from edgedec.hw.attention.rotary import Rotary, angles
from edgedec.hw.attention.score_memory import visibility
from edgedec.hw.attention.shared_heads import HeadSplitter, SharedQueries
from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.contract import contract
from edgedec.hw.blocks.fifo import small_queue
from edgedec.hw.blocks.payloads import beat, rows, word, words
from edgedec.hw.blocks.pipeline import check, every
from edgedec.hw.blocks.register_slice import RegisterSlice, sliced
from edgedec.hw.blocks.resources import Resources, total
from edgedec.hw.blocks.shared_heads import LOG_BITS
from edgedec.hw.matrix.mac_array import column_bits, score_bits, work

__all__ = ["AttentionPath"]

_NARROW = 18  # bits of an element
_QUERY_BITS, _CODE_BITS = 12, 8  # bits of a query's code, of a key's or a value's
_PARTS = 4  # parts that may be in progress
_FOLLOWED = data.StructLayout({"settings": coder_settings(), "rotate": 1})  # settings that follow a part to the coder


class AttentionPath(CostedComponent):
    """Convert queries, keys and values of a pass to codes, store them, and let all heads attend.

    A pass here is one layer's attention: its parts, one ``attends``, its output. Parts and ``attends`` are ordered only
    by this
    rule: offer ``attends`` once its parts are ``coded``, and the next part once ``attends`` was taken. That part waits
    until all items of the heads are taken and their output has left. The multipliers are a MacArray of ``beat_bytes``
    lanes and of the same ``slots`` and ``chunk``, with queries of 12 bits.

    Parameters:
        shape: shape of the heads; its ``head_dim`` is even, its ``slots`` are the tokens of a pass.
        query_columns: elements of the longest queries, head_dim to 65536.
        key_columns: elements of the longest keys and values, head_dim to 65536.
        ultra: whether the scores of two heads are stored in UltraRAM.
        shared: whether heads that share keys and values may attend together.
        norms: whether heads of queries and keys may be normed. Without it the port ``gains`` does not exist.
        capped: whether scores have a soft-cap. Without it the port ``cap`` does not exist.

    Members:
        parts: In(stream part(norms=norms)). One item per vector. A second vector of a kind overwrites the first.
        input: In(words(18, slots)). These vectors, each taken after its part.
        gains: In(stream of signed(16) [1]). As in HeadNorm.
        coding: In(stream edgedec.hw.constants()). One item per element of these vectors.
        angles: In(stream angles(slots, 1)). head_dim / 2 items for all rotated vectors until the next ones: those must
            be offered before the first element of the vector that needs them, and after the vector before it.
        attends: In(stream attend()). Numbers of heads.
        factors: In(stream head_factor()). One item per query head; taken in advance.
        cap: In(head_factor()). As in AttentionHeads.
        scales, beats, visibility: In. As in Attention: stream u16 [1], beat(beat_bytes), visibility(shape).
            The beats of a run that several query heads share are repeated for each of them, or for those that attend
            together.
        output: Out(words(27, slots)). All heads; ``last`` ends them.
        new_keys, new_values: Out(stream rows(8, slots, chunk)). Codes of the pass's own positions: the head_dim / chunk
            items of each key-value head once, in order.
        work: Out(work(beat_bytes, slots)). Work for the MacArray.
        scores, columns: In. Sums from the MacArray.
        coded: Out(1). No part is offered, or on its way to its memory.
        idle: Out(1). ``coded``, no heads are in progress, and all outputs are taken.

    Latency: 9 cycles from the last element's transfer to ``coded``, head_dim / 2 + 7 more if it is rotated, and those of
        HeadNorm if it is normed; head_dim + 6 cycles from the transfer of ``attends`` to the first ``work`` if the beats
        are there.
    Throughput: one element of each slot per cycle into the memories, and out of them for queries, keys and values at
        once: a head takes at least head_dim cycles.
    Source: docs/integer-profile.md, "Rotary" and "Attention".
    """

    def __init__(
        self,
        shape: HeadShape,
        *,
        query_columns: int,
        key_columns: int,
        ultra: bool = False,
        shared: bool = False,
        norms: bool = False,
        capped: bool = False,
    ) -> None:
        slots, head_dim, chunk = shape.slots, shape.head_dim, shape.chunk
        self._attention = AttentionHeads(shape, query_bits=_QUERY_BITS, ultra=ultra, capped=capped)
        self._rotary, self._coder = Rotary(slots=slots, head_dim=head_dim), Coder(slots=slots)
        self._norm = HeadNorm(slots=slots, head_dim=head_dim) if norms else None
        self._turned = RegisterSlice(shape=word(_NARROW, slots))
        check("query_columns", query_columns, head_dim, 1 << 16)
        check("key_columns", key_columns, head_dim, 1 << 16)
        heads = {"slots": slots, "head_dim": head_dim, "chunk": chunk}
        queries = SharedQueries if shared else HeadFeeder
        self._head_dim, self._capped, self._several = head_dim, capped, shape.several
        self._position_bits = shape.context.bit_length()
        self._splitter = HeadSplitter(slots=slots, head_dim=head_dim) if shared else None
        self._feeders = {
            QUERIES: queries(width=_QUERY_BITS, depth=query_columns, **heads),
            KEYS: HeadFeeder(width=_CODE_BITS, depth=key_columns, **heads),
            VALUES: HeadFeeder(width=_CODE_BITS, depth=key_columns, **heads),
        }
        self._slots = slots
        positions = shape.layout.positions
        new = rows(_CODE_BITS, slots, chunk)
        # The cache takes keys in turn with values and copies, which is known too late in a cycle to move the feeders.
        self._leaving = {place: RegisterSlice(shape=new) for place in (KEYS, VALUES)}
        partial = rows(score_bits(_QUERY_BITS, chunk), slots, positions)
        sums = rows(column_bits(positions), slots, chunk)
        super().__init__(
            lambda: {
                "parts": In(stream.Signature(part(norms=norms))),
                **({"gains": In(self._norm.gains.signature.flip())} if self._norm else {}),
                "input": In(words(_NARROW, slots)),
                "coding": In(stream.Signature(constants())),
                "angles": In(stream.Signature(angles(slots, 1))),
                "attends": In(stream.Signature(attend())),
                "factors": In(stream.Signature(head_factor())),
                **({"cap": In(head_factor())} if capped else {}),
                "scales": In(stream.Signature(data.ArrayLayout(unsigned(16), 1))),
                "beats": In(beat(shape.beat_bytes)),
                "visibility": In(visibility(shape)),
                "output": Out(words(27, slots)),
                "new_keys": Out(stream.Signature(new)),
                "new_values": Out(stream.Signature(new)),
                "work": Out(work(shape.beat_bytes, slots)),
                "scores": In(stream.Signature(partial, always_ready=True)),
                "columns": In(stream.Signature(sums, always_ready=True)),
                "coded": Out(1),
                "idle": Out(1),
            }
        )

    @property
    def resources_by_part(self) -> dict[str, Resources]:
        """Estimate of the cost by submodule, without the MacArray."""
        queues = small_queue(1, _PARTS) + small_queue(_FOLLOWED.size, _PARTS) + small_queue(2, _PARTS)
        slices = total(cut.resources for cut in (self._turned, *self._leaving.values()))
        glue = queues + slices + Resources(lut=_NARROW * self._slots + 58, ff=13)
        return {
            **({"norm": self._norm.resources} if self._norm else {}),
            "rotary": self._rotary.resources,
            "coder": self._coder.resources,
            "queries": self._feeders[QUERIES].resources,
            "keys": self._feeders[KEYS].resources,
            "values": self._feeders[VALUES].resources,
            "heads": self._attention.resources,
            **({"splitter": self._splitter.resources} if self._splitter else {}),
            "glue": glue + (self._together if self._splitter else Resources()),
        }

    @property
    def _together(self) -> Resources:
        """Estimate of what heads that attend together need: their factors, and what their rows see."""
        ends = self._position_bits * self._slots if self._several else 0
        return Resources(lut=300 + ends, ff=16 * self._slots + 60 + ends)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        pending = Signal(range(_PARTS + 1))
        ready = Signal()
        attending = Signal()
        self._code(m, pending, attending)
        begin = self._begin(m, pending, attending, ready)
        self._attend(m, begin, attending)
        m.d.comb += [
            self.coded.eq((pending == 0) & ~self.parts.valid),
            self.idle.eq(self.coded & ready & ~self.attends.valid & ~self.new_keys.valid & ~self.new_values.valid),
        ]
        return m

    def _code(self, m: Module, pending: Signal, attending: Signal) -> None:
        """Pass parts through rotary and coder into the memories; three queues carry their settings along."""
        m.submodules.coder, m.submodules.rotary = codes, turn = self._coder, self._rotary
        connect(m, flipped(self.angles), turn.angles)
        connect(m, flipped(self.coding), codes.constants)
        request = self.parts
        sourced = Signal()
        do_take = Signal()
        done = Signal()
        source = self._normed(m, sourced, do_take)
        # sourced: the vector of the part that was taken last is not complete.
        settings = Signal(_FOLLOWED)
        m.d.comb += [
            request.ready.eq((pending != _PARTS) & ~attending & ~sourced),
            do_take.eq(request.valid & request.ready),
            settings.settings.narrow.eq(request.p.part != QUERIES),
            settings.settings.shift.eq(request.p.shift),
            settings.rotate.eq(request.p.rotate),
            done.eq(codes.output.valid & codes.output.p.last),
        ]
        m.d.sync += pending.eq(pending + do_take - done)
        divided = source.valid & source.ready & source.p.last
        with m.If(do_take):
            m.d.sync += sourced.eq(1)
        with m.Elif(divided):
            m.d.sync += sourced.eq(0)
        routes = self._followed(m, "routes", request.p.rotate, do_take, divided)
        coded = self._followed(
            m, "coded_with", settings.as_value(), do_take, codes.settings.valid & codes.settings.ready
        )
        places = self._followed(m, "places", request.p.part, do_take, done)
        now = data.View(_FOLLOWED, coded.r_data)
        m.d.comb += [
            codes.settings.payload.eq(now.settings),
            codes.settings.valid.eq(coded.r_rdy),
        ]
        self._route(m, source, sourced, turn, codes.input, routes.r_data[0], now.rotate)
        for place, feeder in self._feeders.items():
            for lane in range(self._slots):
                m.d.comb += feeder.write.p["values"][0][lane].eq(codes.output.p["values"][0][lane])
            m.d.comb += feeder.write.p.last.eq(codes.output.p.last)
            m.d.comb += feeder.write.valid.eq(codes.output.valid & (places.r_data == place))

    def _followed(self, m: Module, name: str, entry: Value, put: Value, take: Value) -> SyncFIFO:
        """Add a queue with an entry for each part in progress: it is never full at ``put``, nor empty when it is needed."""
        m.submodules[name] = queue = SyncFIFO(width=len(entry), depth=_PARTS)
        m.d.comb += [queue.w_data.eq(entry), queue.w_en.eq(put), queue.r_en.eq(take)]
        contract(m, ~put | queue.w_rdy, "A queue of parts in progress is never full at put")
        contract(m, ~take | queue.r_rdy, "A queue of parts in progress is never empty when it is needed")
        return queue

    def _normed(self, m: Module, sourced: Signal, do_take: Signal) -> Any:
        """Return the stream of the vectors after their norm, if there is one."""
        source, norm = self.input, self._norm
        if norm is None:
            return source
        m.submodules.norm = norm
        normed = Signal()
        with m.If(do_take):
            m.d.sync += normed.eq(self.parts.p.normed)
        connect(m, flipped(self.gains), norm.gains)
        m.d.comb += [
            norm.normed.eq(normed),
            norm.input.payload.eq(source.payload),
            norm.input.valid.eq(source.valid & sourced),
            source.ready.eq(norm.input.ready & sourced),
        ]
        return norm.output

    def _route(
        self, m: Module, source: Any, sourced: Value, turn: Rotary, sink: Any, turning: Value, turned: Value
    ) -> None:
        """Route vectors that are not rotated past the rotary, once all earlier ones have left it.

        ``turning``: the vector at ``source`` is rotated. ``turned``: the vector at the coder is. If neither is set, they
            are one.
        """
        past = Signal()
        ahead = sliced(m, "turned", turn.output, self._turned)
        m.d.comb += [
            past.eq(~turning & ~turned),
            turn.input.payload.eq(source.payload),
            turn.input.valid.eq(source.valid & sourced & turning),
            source.ready.eq(Mux(turning, turn.input.ready, past & sink.ready) & sourced),
            sink.payload.eq(Mux(turned, ahead.payload.as_value(), source.payload.as_value())),
            sink.valid.eq(Mux(turned, ahead.valid, past & source.valid & sourced)),
            ahead.ready.eq(turned & sink.ready),
        ]

    def _begin(self, m: Module, pending: Signal, attending: Signal, ready: Signal) -> Signal:
        """Start the feeders; ``ready`` says that they and the output are finished."""
        feeders = self._feeders
        request = self.attends
        begin = Signal()
        giving = Signal()
        m.submodules.queries, m.submodules.keys, m.submodules.values = feeders.values()
        m.d.comb += [
            ready.eq(every([feeder.idle for feeder in feeders.values()]) & ~giving),
            attending.eq(~ready),
            request.ready.eq(ready & (pending == 0)),
            begin.eq(request.valid & request.ready),
        ]
        for place, feeder in feeders.items():
            m.d.comb += feeder.attends.valid.eq(begin)
            if place == QUERIES:
                m.d.comb += [feeder.attends.payload.eq(request.payload), feeder.attends.p.group.eq(1)]
            else:
                m.d.comb += [
                    feeder.attends.p.heads.eq(self._fewer(request.p.heads)),
                    feeder.attends.p.group.eq(self._fewer(request.p.group)),
                ]
        with m.If(self.output.valid & self.output.ready & self.output.p.last):
            m.d.sync += giving.eq(0)
        with m.If(begin):
            m.d.sync += giving.eq(1)
        return begin

    def _fewer(self, number: Value) -> Value:
        """Return the number of heads, or of those of a group, where each stands for all that attend together."""
        return number >> self.attends.p.together if self._splitter else number

    def _attend(self, m: Module, begin: Signal, attending: Signal) -> None:
        m.submodules.attention = inner = self._attention
        queries, keys, values = self._feeders.values()
        for feeder, sink in ((queries, inner.queries), (keys, inner.keys), (values, inner.values)):
            connect(m, feeder.items, sink)
        connect(m, sliced(m, "leaving_keys", keys.once, self._leaving[KEYS]), flipped(self.new_keys))
        connect(m, sliced(m, "leaving_values", values.once, self._leaving[VALUES]), flipped(self.new_values))
        for name in ("beats", "scores", "columns"):
            connect(m, flipped(getattr(self, name)), getattr(inner, name))
        connect(m, inner.work, flipped(self.work))
        if self._capped:
            m.d.comb += inner.cap.eq(self.cap)
        if self._splitter is None:
            m.d.comb += queries.once.ready.eq(1)
            self._attend_alone(m, begin)
        else:
            self._attend_together(m, begin, self._splitter)

    def _attend_alone(self, m: Module, begin: Signal) -> None:
        """Connect what belongs to a head for heads that attend one after the other."""
        inner = self._attention
        m.d.comb += Value.cast(inner.visibility).eq(Value.cast(self.visibility))
        connect(m, flipped(self.scales), inner.scales)
        connect(m, inner.output, flipped(self.output))
        left = Signal(8)
        heads = inner.heads
        m.d.comb += [
            heads.valid.eq(self.factors.valid & (left != 0)),
            self.factors.ready.eq(heads.ready & (left != 0)),
            *(heads.p.factors[slot].eq(self.factors.p.factor) for slot in range(self._slots)),
            heads.p.shift.eq(self.factors.p.shift),
            heads.p.last.eq(left == 1),
        ]
        with m.If(heads.valid & heads.ready):
            m.d.sync += left.eq(left - 1)
        with m.If(begin):
            m.d.sync += left.eq(self.attends.p.heads)

    def _attend_together(self, m: Module, begin: Signal, splitter: HeadSplitter) -> None:
        """Connect what belongs to a head for heads of which several may attend together."""
        m.submodules.splitter = splitter
        stride = Signal(LOG_BITS)
        together = Signal(LOG_BITS)
        last = Signal(3)  # number of the last head of those that attend together
        request = self.attends.p
        with m.If(begin):
            m.d.sync += [stride.eq(request.stride), together.eq(request.together), last.eq((1 << request.together) - 1)]
        connect(m, self._attention.output, splitter.input)
        connect(m, splitter.output, flipped(self.output))
        m.d.comb += [splitter.together.eq(together), splitter.stride.eq(stride)]
        self._see(m, stride)
        self._scale(m, last)
        self._gather(m, begin, last, stride)

    def _see(self, m: Module, stride: Signal) -> None:
        """Let the rows of each head see what those of the first one do; visibility is steady well before it is used."""
        source, sink = self.visibility, self._attention.visibility
        of_rows = ("first", "ends") if self._several else ("first",)
        whole = ("committed", "own") if self._several else ("committed", "own", "sinks")
        m.d.comb += [getattr(sink, name).eq(getattr(source, name)) for name in whole]
        for row in range(self._slots):
            tokens = [row % (1 << log) for log in range(1 << LOG_BITS)]
            for name in (*of_rows, "mask"):
                of_token = getattr(source, name)
                m.d.sync += getattr(sink, name)[row].eq(Array(of_token[token] for token in tokens)[stride])

    def _scale(self, m: Module, last: Signal) -> None:
        """Pass the scales of the first of the heads that attend together, and drop those of the others, which are equal."""
        source, sink = self.scales, self._attention.scales
        head = Signal(3)
        column = Signal(range(self._head_dim))
        m.d.comb += [
            sink.payload.eq(source.payload),
            sink.valid.eq(source.valid & (head == 0)),
            source.ready.eq(sink.ready | (head != 0)),
        ]
        with m.If(source.valid & source.ready):
            m.d.sync += column.eq(column + 1)
            with m.If(column == self._head_dim - 1):
                m.d.sync += [column.eq(0), head.eq(Mux(head == last, 0, head + 1))]

    def _gather(self, m: Module, begin: Signal, last: Signal, stride: Signal) -> None:
        """Collect the factors of the heads that attend together, each for the rows of its head."""
        source, sink = self.factors, self._attention.heads
        left = Signal(8)
        head = Signal(3)
        complete = Signal()
        factors = Signal(sink.p.factors.shape())
        shift = Signal(6)
        m.d.comb += [
            source.ready.eq((left != 0) & ~complete),
            sink.valid.eq(complete),
            sink.p.factors.eq(factors),
            sink.p.shift.eq(shift),
            sink.p.last.eq(left == 1),
        ]
        with m.If(source.valid & source.ready):
            m.d.sync += [shift.eq(source.p.shift), head.eq(head + 1)]
            for row in range(self._slots):
                with m.If(Array(row >> log for log in range(1 << LOG_BITS))[stride] == head):
                    m.d.sync += factors[row].eq(source.p.factor)
            with m.If(head == last):
                m.d.sync += [complete.eq(1), head.eq(0)]
        with m.If(sink.valid & sink.ready):
            m.d.sync += [complete.eq(0), left.eq(left - 1)]
        with m.If(begin):
            m.d.sync += left.eq(self._fewer(self.attends.p.heads))
