"""A queue of few entries in LUTs, whose input and output begin and end no long paths."""

from typing import Any

from amaranth.hdl import Cat, Module, Shape, ShapeLike, Signal, Value, unsigned
from amaranth.lib import stream
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.fifo import small_queue
from edgedec.hw.blocks.pipeline import check
from edgedec.hw.blocks.resources import Resources

__all__ = ["ShallowFifo"]


class ShallowFifo(CostedComponent):
    """A first-in, first-out queue. Registers say whether it has an entry, and room; a ``SyncFIFO`` compares its level for
    that, which it counts behind the transfers with a carry chain.

    Parameters:
        shape: shape of the payload.
        depth: entries, a power of two, 2 to 64.

    Members:
        input, output: In, Out(stream of shape). There is no combinational path between them in either direction.
        level: Out(range(depth + 1)). Number of entries inside.

    Latency: 1 cycle from the input's transfer to a valid output.
    Throughput: one entry per cycle in and out.
    Source: derived here.
    """

    def __init__(self, *, shape: ShapeLike, depth: int) -> None:
        check("depth", depth, 2, 64)
        if depth & (depth - 1):
            raise ValueError(f"depth must be a power of two, not {depth!r}")
        self._width, self._depth = Shape.cast(shape).width, depth
        super().__init__(
            lambda: {
                "input": In(stream.Signature(shape)),
                "output": Out(stream.Signature(shape)),
                "level": Out(range(depth + 1)),
            }
        )

    @property
    def resources(self) -> Resources:
        return small_queue(self._width, self._depth)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.memory = memory = Memory(shape=unsigned(self._width), depth=self._depth, init=[])
        write = memory.write_port()
        read = memory.read_port(domain="comb")
        begin, end = (Signal(range(self._depth), name=name) for name in ("begin", "end"))
        after_begin, after_end = _after(begin), _after(end)
        room = Signal(init=1)
        writes, reads = Signal(), Signal()
        m.d.comb += [
            self.input.ready.eq(room),
            writes.eq(self.input.valid & room),
            reads.eq(self.output.valid & self.output.ready),
            write.addr.eq(end),
            write.data.eq(self.input.payload),
            write.en.eq(writes),
            read.addr.eq(begin),
            Value.cast(self.output.payload).eq(read.data),
            self.level.eq(Cat((end - begin)[: len(end)], ~room)),
        ]
        with m.If(writes):
            m.d.sync += end.eq(after_end)
        with m.If(reads):
            m.d.sync += begin.eq(after_begin)
        with m.If(writes & ~reads):
            m.d.sync += [self.output.valid.eq(1), room.eq(after_end != begin)]
        with m.Elif(reads & ~writes):
            m.d.sync += [self.output.valid.eq(after_begin != end), room.eq(1)]
        return m


def _after(index: Signal) -> Value:
    """Return the next index without a carry chain, which is not merged with the logic around it."""
    return Cat(~index[0], *(index[at] ^ index[:at].all() for at in range(1, len(index))))
