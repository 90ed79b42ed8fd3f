"""Query heads that share keys and values and attend together: their rows side by side, and apart again afterwards."""

from typing import Any

from amaranth.hdl import Array, Module, Mux, Signal, Value
from amaranth.lib import stream
from amaranth.lib.wiring import In, Out, connect, flipped

from edgedec.hw.attention.head_feeder import attend, check_heads
from edgedec.hw.blocks.collector import Collector
from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.payloads import rows, words
from edgedec.hw.blocks.resources import Resources
from edgedec.hw.blocks.shared_heads import LOG_BITS
from edgedec.hw.blocks.vector_memory import VectorMemory

__all__ = ["HeadSplitter", "SharedQueries"]

_OUTPUT_BITS = 27  # bits of an element of the output


class SharedQueries(CostedComponent):
    """Store the queries of all heads in block RAM, and deliver those of neighbouring heads together.

    Of ``2 ** together`` heads, row ``(j << stride) + t`` of an item is row t of head j; the other rows are zero.

    Parameters:
        width: bits of a code, 1 to 18.
        slots: number of slots, 1 to 8.
        depth: elements of the longest vector, 1 to 65536.
        head_dim: elements of a head, 1 to 2048.
        chunk: elements of an item, 1 to 64; divides ``head_dim``.

    Members:
        write: In(words(width, slots, 1)). Always ready; not to be used while heads are delivered.
        attends: In(stream attend()). Deliver all heads of the latest vector. Taken when ``idle``.
        items: Out(stream rows(width, slots, chunk)). ``head_dim / chunk`` items for the heads that attend together.
        idle: Out(1). All items are taken.

    Throughput: one element of each slot of a head per cycle.
    """

    def __init__(self, *, width: int, slots: int, depth: int, head_dim: int, chunk: int) -> None:
        check_heads(width=width, slots=slots, depth=depth, head_dim=head_dim, chunk=chunk)
        self._memory = VectorMemory(width=width, slots=slots, depth=depth, lanes=1)
        self._collector = Collector(width=width, slots=slots, lanes=chunk)
        self._depth, self._head_dim, self._chunk, self._slots = depth, head_dim, chunk, slots
        self._bits = width * slots * chunk
        super().__init__(
            lambda: {
                "write": In(words(width, slots, 1)),
                "attends": In(stream.Signature(attend())),
                "items": Out(stream.Signature(rows(width, slots, chunk))),
                "idle": Out(1),
            }
        )

    @property
    def resources(self) -> Resources:
        address = self._depth.bit_length()
        merged = Resources(lut=2 * self._bits, ff=self._bits)
        return (
            self._memory.resources
            + self._collector.resources
            + merged
            + Resources(lut=6 * address + 60, ff=3 * address)
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.memory, m.submodules.collector = memory, collector = self._memory, self._collector
        connect(m, flipped(self.write), memory.write)
        connect(m, memory.output, collector.input)
        begin = Signal()
        stride = Signal(LOG_BITS)
        last = Signal(3)  # number of the last head of those that attend together
        m.d.comb += [self.attends.ready.eq(self.idle), begin.eq(self.attends.valid & self.idle)]
        with m.If(begin):
            m.d.sync += [stride.eq(self.attends.p.stride), last.eq((1 << self.attends.p.together) - 1)]
        self._read(m, memory.reads, begin, last)
        self._give(m, collector.output, begin, last, stride)
        return m

    def _read(self, m: Module, reads: Any, begin: Signal, last: Signal) -> None:
        """Read a chunk of each head, from the last head to the first, and then the next chunk."""
        chunks = self._head_dim // self._chunk
        left = Signal(8)
        index = Signal(range(chunks))
        head = Signal(3)
        base = Signal(range(self._depth))  # place of the chunk in the first head
        at = Signal(range(self._depth))
        far = Signal(range(7 * self._head_dim + 1))  # elements from the first head to the last one
        begun = Signal()
        # From ``base`` to the first head's next chunk, and to the last head's: registers, so that a place is one addition.
        # The next chunk after a head's last one is that of the next heads, ``far`` elements further.
        onward, beyond = Signal(range(8 * self._head_dim + 1)), Signal(range(15 * self._head_dim + 1))
        ends = Signal()  # the chunk is a head's last one
        following = Signal()  # the next chunk will be
        m.d.comb += [
            reads.valid.eq((left != 0) & begun),
            reads.p.start.eq(at),
            reads.p.length.eq(self._chunk),
            following.eq(index == chunks - 2 if chunks > 1 else 1),
        ]
        with m.If(begin):
            steps = Array([0, 1, 3, 7])[self.attends.p.together]
            m.d.sync += [
                *(left.eq(self.attends.p.heads >> self.attends.p.together), index.eq(0), base.eq(0), begun.eq(0)),
                ends.eq(chunks == 1),
                far.eq(steps * self._head_dim),
            ]
        with m.Elif(~begun):
            m.d.sync += [begun.eq(1), at.eq(far), head.eq(last)]
            m.d.sync += [onward.eq(self._chunk + far), beyond.eq(self._chunk + (far << 1))]
            if chunks > 1:
                m.d.sync += [onward.eq(self._chunk), beyond.eq(self._chunk + far)]
        with m.Elif(reads.valid & reads.ready):
            m.d.sync += [at.eq(at - self._head_dim), head.eq(head - 1)]
            with m.If(head == 0):
                m.d.sync += [base.eq(base + onward), at.eq(base + beyond), head.eq(last)]
                m.d.sync += [
                    onward.eq(self._chunk + Mux(following, far, 0)),
                    beyond.eq(self._chunk + far + Mux(following, far, 0)),
                ]
                m.d.sync += [index.eq(Mux(ends, 0, index + 1)), left.eq(left - ends), ends.eq(following)]

    def _give(self, m: Module, source: Any, begin: Signal, last: Signal, stride: Signal) -> None:
        """Put the rows of a head before those of the heads after it, which have arrived already."""
        sink = self.items
        chunks = self._head_dim // self._chunk
        left = Signal(8)
        index = Signal(range(chunks))
        closes = Signal()  # the chunk is a head's last one
        head = Signal(3)
        merged = Signal(self.items.payload.shape(), reset_less=True)
        final = head == 0
        m.d.comb += [
            self.idle.eq(left == 0),
            sink.valid.eq(source.valid & final),
            source.ready.eq(sink.ready | ~final),
        ]
        for element in range(self._chunk):
            for row in range(self._slots):
                before = [merged[element][row - step] if row >= step else 0 for step in (1, 2, 4, 8)]
                own = Mux(row < (1 << stride), source.p["values"][element][row], 0)
                m.d.comb += sink.payload[element][row].eq(Mux(row < (1 << stride), own, Array(before)[stride]))
        with m.If(source.valid & source.ready):
            m.d.sync += [merged.eq(sink.payload), head.eq(head - 1)]
            with m.If(final):
                m.d.sync += [merged.eq(0), head.eq(last), index.eq(index + 1)]
                m.d.sync += closes.eq(index == chunks - 2 if chunks > 1 else 1)
                with m.If(closes):
                    m.d.sync += [index.eq(0), left.eq(left - 1)]
        with m.If(begin):
            m.d.sync += [
                *(left.eq(self.attends.p.heads >> self.attends.p.together), index.eq(0), merged.eq(0)),
                *(head.eq((1 << self.attends.p.together) - 1), closes.eq(chunks == 1)),
            ]


class HeadSplitter(CostedComponent):
    """Give the outputs of heads that attended together one after the other.

    Parameters:
        slots: number of rows, 1 to 8.
        head_dim: elements of a head, 2 to 2048.

    Members:
        together, stride: In(2). Logarithms of the heads, and of the rows of a head; steady while words are in progress.
        input: In(words(27, slots)). ``head_dim`` words for the heads that attended together.
        output: Out(words(27, slots)). ``head_dim`` words for each of them; rows from ``2 ** stride`` on are zero.

    Latency: none for the first head; 4 cycles from its last word to the next head's first.
    Throughput: one word per cycle.
    """

    def __init__(self, *, slots: int, head_dim: int) -> None:
        self._slots, self._head_dim = slots, head_dim
        self._memory = VectorMemory(width=_OUTPUT_BITS, slots=slots, depth=head_dim, lanes=1)
        super().__init__(
            lambda: {
                "together": In(LOG_BITS),
                "stride": In(LOG_BITS),
                "input": In(words(_OUTPUT_BITS, slots)),
                "output": Out(words(_OUTPUT_BITS, slots)),
            }
        )

    @property
    def resources(self) -> Resources:
        return self._memory.resources + Resources(lut=3 * _OUTPUT_BITS * self._slots + 40, ff=30)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.memory = memory = self._memory
        source, sink, stored = self.input, self.output, memory.output
        last = Signal(3)  # number of the last head
        head = Signal(3)  # number of the head whose words leave; 0: they come from the input
        unread = Signal(3)
        column = Signal(range(self._head_dim))
        final = Signal()
        ends = Signal()
        m.d.sync += last.eq((1 << self.together) - 1)
        m.d.comb += [
            ends.eq(column == self._head_dim - 1),
            memory.write.valid.eq(source.valid & source.ready),
            memory.write.p["values"].eq(source.p["values"]),
            memory.write.p.last.eq(ends),
            memory.reads.valid.eq(unread != 0),
            memory.reads.p.start.eq(0),
            memory.reads.p.length.eq(self._head_dim),
            sink.valid.eq(Mux(head == 0, source.valid, stored.valid)),
            source.ready.eq((head == 0) & sink.ready),
            stored.ready.eq((head != 0) & sink.ready),
            sink.p.last.eq(Mux(head == 0, source.p.last & (last == 0), final & stored.p.last & (head == last))),
        ]
        for row in range(self._slots):
            kept: Value = row < (1 << self.stride)
            moved = Array(stored.p["values"][0])[((head << self.stride) + row)[:3]]
            m.d.comb += sink.p["values"][0][row].eq(Mux(kept, Mux(head == 0, source.p["values"][0][row], moved), 0))
        with m.If(memory.reads.valid & memory.reads.ready):
            m.d.sync += unread.eq(unread - 1)
        with m.If(source.valid & source.ready):
            m.d.sync += column.eq(Mux(ends, 0, column + 1))
            with m.If(ends & (last != 0)):
                m.d.sync += [head.eq(1), unread.eq(last), final.eq(source.p.last)]
        with m.If(stored.valid & stored.ready & stored.p.last):
            m.d.sync += head.eq(Mux(head == last, 0, head + 1))
        return m
