"""An on-chip memory of a vector, which is written once and can be read repeatedly."""

from typing import Any, Literal

from amaranth.hdl import Module, Signal
from amaranth.lib import data, stream
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.contract import contract
from edgedec.hw.blocks.payloads import rows, words
from edgedec.hw.blocks.pipeline import carried, check, pipeline
from edgedec.hw.blocks.ram_cost import block_rams, ultra_rams
from edgedec.hw.blocks.resources import Resources

__all__ = ["VectorMemory"]


class VectorMemory(CostedComponent):
    """The words of one vector for each slot; every vector is written from address 0 on and replaces the one before it.

    Parameters:
        width: bits of an element, 1 to 64.
        slots: number of slots, 1 to 8.
        depth: words of the memory, 1 to 65536.
        lanes: elements of a word, 1 to 64.
        style: "block" for block RAM, "ultra" for UltraRAM.

    Members:
        write: In(words(width, slots, lanes)). Always ready. A vector of more than ``depth`` words overwrites its own start.
        written: Out(range(depth + 1)). Words of the vector in the memory; the first word of the next vector sets it to
            1. A word may be read once it is counted.
        reads: In(stream {start, length}). Read words start to start + length - 1. They wrap modulo ``depth`` if that is
            a power of two, and must not exceed ``depth`` otherwise; a length of 0 produces nothing. Reads may repeat.
        output: Out(words(width, slots, lanes)). ``last`` accompanies the last word of each read.

    Latency: 3 cycles from a read's transfer to its first word.
    Throughput: one word written and one word read per cycle, across reads too.
    Source: derived here. One write port and one read port, both registered, and a register after the read port.
    """

    def __init__(
        self, *, width: int, slots: int, depth: int, lanes: int = 1, style: Literal["block", "ultra"] = "block"
    ) -> None:
        check("width", width, 1, 64)
        check("slots", slots, 1, 8)
        check("depth", depth, 1, 1 << 16)
        check("lanes", lanes, 1, 64)
        if style not in ("block", "ultra"):
            raise ValueError(f"style must be 'block' or 'ultra', not {style!r}")
        span = data.StructLayout({"start": range(depth), "length": range(depth + 1)})
        self._width, self._slots, self._lanes = width, slots, lanes
        super().__init__(
            lambda: {
                "write": In(words(width, slots, lanes)),
                "written": Out(range(depth + 1)),
                "reads": In(stream.Signature(span)),
                "output": Out(words(width, slots, lanes)),
            }
        )
        self._shape, self._depth, self._style = rows(width, slots, lanes), depth, style

    @property
    def resources(self) -> Resources:
        width, slots, depth, lanes, style = self._width, self._slots, self._depth, self._lanes, self._style
        bits, address = width * slots * lanes, depth.bit_length()
        logic = Resources(lut=5 * address + 5, ff=bits + 4 * address + 4)
        if style == "ultra":
            return logic + Resources(uram=ultra_rams(bits, depth))
        return logic + Resources(bram18=block_rams(bits, depth))

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.memory = memory = Memory(
            shape=self._shape, depth=self._depth, init=[], attrs={"ram_style": self._style}
        )
        self._write(m, memory)
        self._read(m, memory)
        return m

    def _write(self, m: Module, memory: Memory) -> None:
        port = memory.write_port()
        whole = Signal(init=1)
        m.d.comb += [self.write.ready.eq(1), port.en.eq(self.write.valid), port.data.eq(self.write.p["values"])]
        with m.If(self.write.valid):
            m.d.sync += [
                port.addr.eq(port.addr + 1),
                self.written.eq(self.written + 1),
                whole.eq(self.write.p.last),
            ]
            with m.If(whole):
                m.d.sync += self.written.eq(1)
            with m.If(self.write.p.last):
                m.d.sync += port.addr.eq(0)

    def _read(self, m: Module, memory: Memory) -> None:
        sink, span = self.output, self.reads
        port = memory.read_port(transparent_for=())
        address = Signal(range(self._depth))
        left = Signal(range(self._depth + 1))
        enable, _ = pipeline(m, sink, left != 0, 2)
        m.d.comb += [
            port.addr.eq(address),
            port.en.eq(enable),
            span.ready.eq((left == 0) | (enable & (left == 1))),
            sink.p.last.eq(carried(m, enable, left == 1, 2, name="last")),
            sink.p["values"].eq(carried(m, enable, port.data)),
        ]
        with m.If(enable & (left != 0)):
            m.d.sync += [address.eq(address + 1), left.eq(left - 1)]
        with m.If(span.valid & span.ready):
            m.d.sync += [address.eq(span.p.start), left.eq(span.p.length)]
            if self._depth & (self._depth - 1):
                contract(m, span.p.start + span.p.length <= self._depth, "A read ends within the memory")
