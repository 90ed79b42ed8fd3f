"""A deep queue in block RAM or UltraRAM with registered outputs; ``amaranth.lib.fifo`` provides the shallow ones."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Shape, ShapeLike, Signal, Value, unsigned
from amaranth.lib import stream
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from edgedec.hw.blocks.collisions import collision_free
from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.pipeline import check
from edgedec.hw.blocks.ram_cost import block_rams, distributed_luts, ultra_rams
from edgedec.hw.blocks.resources import Resources

__all__ = ["Fifo", "small_queue"]

_STYLES = ("auto", "block", "ultra", "distributed")  # values of Vivado's ram_style


class Fifo(CostedComponent):
    """A first-in, first-out queue.

    Parameters:
        shape: shape of the payload.
        depth: entries of the memory, 2 to 65536; two more fit into the registers at its output.
        style: kind of memory, as in Vivado's ram_style: "auto", "block", "ultra" or "distributed".

    Members:
        input, output: In, Out(stream of shape). There is no combinational path between them in either direction.
        level: Out(range(depth + 3)). Number of entries inside, 0 .. depth + 2.
        empty: Out(1). Nothing is inside: ``level == 0``, known earlier in a cycle.

    Latency: 3 cycles from the input's transfer to a valid output.
    Throughput: one entry per cycle in and out.
    Source: derived here.
    """

    def __init__(self, *, shape: ShapeLike, depth: int, style: str = "auto") -> None:
        check("depth", depth, 2, 1 << 16)
        if style not in _STYLES:
            raise ValueError(f"style must be one of {', '.join(_STYLES)}, not {style!r}")
        self._width, self._depth, self._style = Shape.cast(shape).width, depth, style
        super().__init__(
            lambda: {
                "input": In(stream.Signature(shape)),
                "output": Out(stream.Signature(shape)),
                "level": Out(range(depth + 3)),
                "empty": Out(1),
            }
        )

    @property
    def resources(self) -> Resources:
        """Estimate of the cost; a memory of style "auto" is taken as distributed up to 64 entries, else as block RAM."""
        width, depth, style = self._width, self._depth, self._style
        address = (depth - 1).bit_length()
        wraps = 2 * address if depth & (depth - 1) else 0  # LUTs: addresses that start again before their bits do
        control = Resources(lut=3 * address + wraps + 5, ff=width + 2 * address + depth.bit_length() + 2)
        if style == "distributed" or (style == "auto" and depth <= 64):
            return control + Resources(lut=distributed_luts(width, depth), ff=width)
        if style == "ultra":
            return control + Resources(uram=ultra_rams(width, depth))
        return control + Resources(bram18=block_rams(width, depth))

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        depth = self._depth
        attributes = {} if self._style == "auto" else {"ram_style": self._style}
        m.submodules.memory = memory = Memory(shape=unsigned(self._width), depth=depth, init=[], attrs=attributes)
        write = memory.write_port()
        read = memory.read_port()
        write_index = Signal(range(depth))
        read_index = Signal(range(depth))
        level = Signal(range(depth + 1))
        loaded = Signal()
        do_write = Signal()
        do_read = Signal()
        do_move = Signal()
        stored = Signal(self._width, reset_less=True)
        # Comparisons of ``level`` with 0 and ``depth``, registered to shorten paths.
        nonempty = Signal()
        room = Signal(init=1)
        m.d.comb += [
            self.input.ready.eq(room),
            do_write.eq(self.input.valid & self.input.ready),
            do_move.eq(~self.output.valid | self.output.ready),  # from the memory's own register to the output's
            do_read.eq(nonempty & (~loaded | do_move)),
            write.addr.eq(write_index),
            write.data.eq(self.input.payload),
            write.en.eq(do_write),
            read.addr.eq(read_index),
            read.en.eq(do_read),
            self.level.eq(level + loaded + self.output.valid),
            self.empty.eq(~nonempty & ~loaded & ~self.output.valid),
        ]
        collision_free(m, memory, write, read, used=do_read, name="queue")
        with m.If(do_write ^ do_read):  # ``do_read`` comes late, so it enables the register and is no operand
            m.d.sync += level.eq(level + Cat(1, (~do_write).replicate(len(level) - 1)))  # one more, or one less
        with m.If(do_write & ~do_read):
            m.d.sync += [nonempty.eq(1), room.eq(level != depth - 1)]
        with m.Elif(do_read & ~do_write):
            m.d.sync += [nonempty.eq(level != 1), room.eq(1)]
        with m.If(do_write):
            m.d.sync += write_index.eq(_after(write_index, depth))
        with m.If(do_read):
            m.d.sync += [read_index.eq(_after(read_index, depth)), loaded.eq(1)]
        with m.Elif(do_move):
            m.d.sync += loaded.eq(0)
        with m.If(do_move):
            m.d.sync += [self.output.valid.eq(loaded), stored.eq(read.data)]
        m.d.comb += Value.cast(self.output.payload).eq(stored)
        return m


def _after(index: Signal, depth: int) -> Value:
    return index + 1 if depth & (depth - 1) == 0 else Mux(index == depth - 1, 0, index + 1)


def small_queue(width: int, depth: int) -> Resources:
    """Resource estimate of an ``amaranth.lib.fifo.SyncFIFO``."""
    pointers = 2 * (depth - 1).bit_length() + depth.bit_length()
    return Resources(lut=distributed_luts(width, depth) + 8, ff=pointers)
