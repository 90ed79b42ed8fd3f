"""Registers across a stream in both directions, which cut a long combinational chain of ``ready``."""

from typing import Any

from amaranth.hdl import Module, Mux, Shape, ShapeLike, Signal, Value
from amaranth.lib import stream
from amaranth.lib.wiring import In, Out, connect

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.resources import Resources

__all__ = ["RegisterSlice", "sliced"]


class RegisterSlice(CostedComponent):
    """A queue of two items.

    A pipeline that stalls as one takes its ``enable`` from that of the next one, and so on to the last: a slice between
    two pipelines divides that path.

    Parameters:
        shape: shape of the payload.

    Members:
        input, output: In, Out(stream of shape). Every output to one side comes from a register that the other side
            sets.

    Latency: 1 cycle.
    Throughput: one item per cycle.
    Source: the circuit known as a skid buffer.
    """

    def __init__(self, *, shape: ShapeLike) -> None:
        self._width = Shape.cast(shape).width
        super().__init__(lambda: {"input": In(stream.Signature(shape)), "output": Out(stream.Signature(shape))})

    @property
    def resources(self) -> Resources:
        return Resources(lut=self._width + 3, ff=2 * self._width + 2)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        source, sink = Value.cast(self.input.payload), Value.cast(self.output.payload)
        kept = Signal()
        spare = Signal(len(source), reset_less=True)
        m.d.comb += self.input.ready.eq(~kept)
        with m.If(~kept):  # a narrower condition would make the register depend on ``output.ready``
            m.d.sync += spare.eq(source)
        item = Signal(len(source), reset_less=True)
        m.d.comb += sink.eq(item)
        with m.If(~self.output.valid | self.output.ready):
            m.d.sync += [self.output.valid.eq(kept | self.input.valid), kept.eq(0), item.eq(Mux(kept, spare, source))]
        with m.Elif(self.input.valid):
            m.d.sync += kept.eq(1)
        return m


def sliced(m: Module, name: str, source: Any, cut: RegisterSlice) -> Any:
    """Return the output of ``cut``, which becomes a submodule of that name with the stream ``source`` as its input.

    The slice is kept even if ready is constant.
    """
    m.submodules[name] = cut
    connect(m, source, cut.input)
    return cut.output
