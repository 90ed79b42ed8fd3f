"""An on-chip buffer of the rows of one head, which attention reads repeatedly."""

from typing import Any

from amaranth.hdl import Module, Signal
from amaranth.lib import memory, stream
from amaranth.lib.wiring import In, Out

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.payloads import rows
from edgedec.hw.blocks.pipeline import check
from edgedec.hw.blocks.ram_cost import distributed_luts
from edgedec.hw.blocks.resources import Resources

__all__ = ["HeadBuffer"]


class HeadBuffer(CostedComponent):
    """Hold two heads: one that is read in any order, and one that is written meanwhile.

    Parameters:
        bits: bits of an element, 1 to 18.
        slots: number of slots, 1 to 8.
        chunk: elements of an item, 1 to 64.
        chunks: items of a head, 1 to 2048.

    Members:
        input: In(stream rows(bits, slots, chunk)). ``chunks`` items per head.
        full: Out(1). A head can be read.
        index: In. Number of the item to read.
        data: Out(rows(bits, slots, chunk)). That item, in the same cycle; undefined while not ``full``.
        release: In(1). The head is finished; only while ``full``.

    Latency: 1 cycle from a head's last item to ``full``. Throughput: one item per cycle.
    """

    def __init__(self, *, bits: int, slots: int, chunk: int, chunks: int) -> None:
        check("bits", bits, 1, 18)
        check("slots", slots, 1, 8)
        check("chunk", chunk, 1, 64)
        check("chunks", chunks, 1, 2048)
        self._chunks = chunks
        shape = rows(bits, slots, chunk)
        self._bits, self._slots, self._chunk = bits, slots, chunk
        super().__init__(
            lambda: {
                "input": In(stream.Signature(shape)),
                "full": Out(1),
                "index": In(range(chunks)),
                "data": Out(shape),
                "release": In(1),
            }
        )

    @property
    def resources(self) -> Resources:
        bits, slots, chunk, chunks = self._bits, self._slots, self._chunk, self._chunks
        return Resources(lut=distributed_luts(bits * slots * chunk, 2 * chunks) + 12, ff=2 * chunks.bit_length() + 4)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.rows = rows_ = memory.Memory(shape=self.data.shape(), depth=2 * self._chunks, init=[])
        write = rows_.write_port()
        read = rows_.read_port(domain="comb")
        written = Signal(range(self._chunks))
        heads = Signal(range(3))
        filling = Signal()
        reading = Signal()
        do_write = self.input.valid & self.input.ready
        complete = Signal()
        m.d.comb += [
            self.input.ready.eq(heads != 2),
            self.full.eq(heads != 0),
            complete.eq(do_write & (written == self._chunks - 1)),
            write.addr.eq(written + filling * self._chunks),
            write.data.eq(self.input.payload),
            write.en.eq(do_write),
            read.addr.eq(self.index + reading * self._chunks),
            self.data.eq(read.data),
        ]
        m.d.sync += [heads.eq(heads + complete - self.release), reading.eq(reading ^ self.release)]
        with m.If(do_write):
            m.d.sync += written.eq(written + 1)
        with m.If(complete):
            m.d.sync += [written.eq(0), filling.eq(~filling)]
        return m
