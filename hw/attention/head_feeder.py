"""An on-chip memory of the codes of all heads, which attention receives head by head."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal, unsigned
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out, connect, flipped

from edgedec.hw.blocks.collector import Collector
from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.payloads import rows, words
from edgedec.hw.blocks.pipeline import check, fork
from edgedec.hw.blocks.resources import Resources
from edgedec.hw.blocks.vector_memory import VectorMemory

__all__ = ["HeadFeeder", "attend", "check_heads"]


def attend() -> data.StructLayout:
    """Return the numbers of heads.

    Members:
        heads: query heads, at least 1.
        group: number of neighbours that share a head of keys.
        together, stride: logarithms to the base 2 of the neighbours that attend together, and of the rows that each of
            them takes; without effect unless heads may attend together.
    """
    return data.StructLayout(
        {"heads": unsigned(8), "group": unsigned(8), "together": unsigned(2), "stride": unsigned(2)}
    )


def check_heads(*, width: int, slots: int, depth: int, head_dim: int, chunk: int) -> None:
    """Check the parameters of a memory of heads.

    Raises:
        ValueError: one is out of the range that HeadFeeder states.
    """
    check("width", width, 1, 18)
    check("slots", slots, 1, 8)
    check("head_dim", head_dim, 1, 2048)
    check("depth", depth, head_dim, 1 << 16)
    check("chunk", chunk, 1, 64)
    if head_dim % chunk:
        raise ValueError(f"chunk must divide {head_dim}, not {chunk!r}")


class HeadFeeder(CostedComponent):
    """Store a vector of heads in block RAM, and deliver every head once for each query head that shares it.

    Parameters:
        width: bits of a code, 1 to 18.
        slots: number of slots, 1 to 8.
        depth: elements of the longest vector, 1 to 65536.
        head_dim: elements of a head, 1 to 2048.
        chunk: elements of an item, 1 to 64; divides ``head_dim``.

    Members:
        write: In(words(width, slots, 1)). Always ready; not to be used while heads are delivered.
        attends: In(stream attend()). Deliver ``heads`` heads of the latest vector, each one ``group`` times. Taken when
            ``idle``; ``group`` divides ``heads``.
        items: Out(stream rows(width, slots, chunk)). ``head_dim / chunk`` items per delivered head.
        once: Out(stream rows(width, slots, chunk)). The items of each head's first delivery.
        idle: Out(1). All items are taken, from both outputs.

    Latency: chunk + 4 cycles from an attend's transfer to the first item.
    Throughput: one element of each slot per cycle.
    """

    def __init__(self, *, width: int, slots: int, depth: int, head_dim: int, chunk: int) -> None:
        check_heads(width=width, slots=slots, depth=depth, head_dim=head_dim, chunk=chunk)
        self._memory = VectorMemory(width=width, slots=slots, depth=depth, lanes=1)
        self._collector = Collector(width=width, slots=slots, lanes=chunk)
        self._depth, self._head_dim, self._chunks = depth, head_dim, head_dim // chunk
        self._item = stream.Signature(rows(width, slots, chunk))
        super().__init__(
            lambda: {
                "write": In(words(width, slots, 1)),
                "attends": In(stream.Signature(attend())),
                "items": Out(self._item),
                "once": Out(self._item),
                "idle": Out(1),
            }
        )

    @property
    def resources(self) -> Resources:
        address, index = self._depth.bit_length(), self._chunks.bit_length()
        counters = Resources(lut=2 * address + 2 * index + 57, ff=address + index + 25)  # not calibrated
        return self._memory.resources + self._collector.resources + counters

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.memory, m.submodules.collector = memory, collector_ = self._memory, self._collector
        connect(m, flipped(self.write), memory.write)
        connect(m, memory.output, collector_.input)
        begin = Signal()
        group = Signal(8)
        m.d.comb += [self.attends.ready.eq(self.idle), begin.eq(self.attends.valid & self.idle)]
        with m.If(begin):
            m.d.sync += group.eq(self.attends.p.group)
        self._read(m, memory.reads, begin, group)
        self._give(m, collector_.output, begin, group)
        return m

    def _read(self, m: Module, reads: Any, begin: Signal, group: Signal) -> None:
        """Read the heads: ``left`` reads remain, ``times`` of them of the head at ``start``."""
        left = Signal(8)
        times = Signal(8)
        start = Signal(range(self._depth))
        m.d.comb += [reads.valid.eq(left != 0), reads.p.start.eq(start), reads.p.length.eq(self._head_dim)]
        with m.If(reads.valid & reads.ready):
            m.d.sync += [left.eq(left - 1), times.eq(times - 1)]
            with m.If(times == 1):
                m.d.sync += [times.eq(group), start.eq(start + self._head_dim)]
        with m.If(begin):
            m.d.sync += [left.eq(self.attends.p.heads), times.eq(self.attends.p.group), start.eq(0)]

    def _give(self, m: Module, source: Any, begin: Signal, group: Signal) -> None:
        left = Signal(8)
        times = Signal(8)
        first = Signal()
        index = Signal(range(self._chunks))
        items = self._item.create()
        copies = self._item.create()
        m.d.comb += [
            self.idle.eq(left == 0),
            items.payload.eq(source.p["values"]),
            items.valid.eq(source.valid),
            source.ready.eq(items.ready),
            self.once.payload.eq(copies.payload),
            self.once.valid.eq(copies.valid & first),
            copies.ready.eq(self.once.ready | ~first),
        ]
        fork(m, items, [self.items, copies])
        with m.If(items.valid & items.ready):
            m.d.sync += index.eq(index + 1)
            with m.If(index == self._chunks - 1):
                m.d.sync += [index.eq(0), left.eq(left - 1), times.eq(Mux(times == 1, group, times - 1))]
                m.d.sync += first.eq(times == 1)
        with m.If(begin):
            m.d.sync += [left.eq(self.attends.p.heads), times.eq(self.attends.p.group), first.eq(1)]
