"""The end of a pipeline that never stalls: an item enters only if there is room for its result."""

from typing import Any

from amaranth.hdl import Module, Shape, ShapeLike, Signal, Value, unsigned
from amaranth.lib import stream
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.pipeline import check
from edgedec.hw.blocks.ram_cost import distributed_luts
from edgedec.hw.blocks.resources import Resources

__all__ = ["QUEUED", "CreditQueue"]

QUEUED = 2  # cycles from a result to its valid output
_RETURN = 4  # cycles from a result to the entry of an item in its place


class CreditQueue(CostedComponent):
    """A queue after a pipeline, with as many credits as entries: an item takes one when it enters the pipeline, and
    returns it when its result leaves the queue.

    A pipeline that stalls as one needs a signal that reaches all its registers in the cycle in which the output is not
    ready. With credits its registers load in every cycle, and only the entry waits, for a register.

    Parameters:
        shape: shape of a result.
        stages: registers of the pipeline between the entry and ``result``, 1 to 56.

    Members:
        room: Out(1). An item may enter. It comes from a register.
        enter: In(1). An item enters the pipeline; only while ``room`` is high.
        result: In(shape). The result of the item that entered ``stages`` cycles ago; ignored if none did.
        output: Out(stream of shape). The results in order.

    Latency: stages + 2 cycles from ``enter`` to a valid output. Throughput: one item per cycle.
    Source: derived here.
    """

    def __init__(self, *, shape: ShapeLike, stages: int) -> None:
        check("stages", stages, 1, 64 - 2 * _RETURN)
        self._width, self._stages, self._entries = Shape.cast(shape).width, stages, stages + _RETURN
        super().__init__(
            lambda: {
                "room": Out(1, init=1),
                "enter": In(1),
                "result": In(shape),
                "output": Out(stream.Signature(shape)),
            }
        )

    @property
    def resources(self) -> Resources:
        """Estimate of the cost, that of the pipeline excluded."""
        index = (self._entries - 1).bit_length()
        memory = Resources(lut=distributed_luts(self._width, 1 << index), ff=self._width)
        return memory + Resources(lut=4 * index + 11, ff=4 * index + self._stages + 6)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        index = (self._entries - 1).bit_length()
        m.submodules.memory = memory = Memory(
            shape=unsigned(self._width), depth=1 << index, init=[], attrs={"ram_style": "distributed"}
        )
        write = memory.write_port()
        read = memory.read_port(domain="comb")
        arrives = self.enter
        for stage in range(self._stages):
            arrives_next = Signal(name=f"valid_{stage}")
            m.d.sync += arrives_next.eq(arrives)
            arrives = arrives_next
        write_index = Signal(index)
        read_index = Signal(index)
        stored = Signal(range(self._entries + 1))  # results in the memory
        nonempty = Signal()  # high with results in the memory
        free = Signal(range(self._entries + 1), init=self._entries)
        returns = Signal()
        item = Signal(self._width, reset_less=True)
        do_read = Signal()
        m.d.comb += [
            write.addr.eq(write_index),
            write.data.eq(self.result),
            write.en.eq(arrives),
            read.addr.eq(read_index),
            do_read.eq(nonempty & (~self.output.valid | self.output.ready)),
            Value.cast(self.output.payload).eq(item),
        ]
        m.d.sync += returns.eq(self.output.valid & self.output.ready)
        with m.If(arrives):
            m.d.sync += write_index.eq(write_index + 1)
        with m.If(do_read):
            m.d.sync += [read_index.eq(read_index + 1), item.eq(read.data), self.output.valid.eq(1)]
        with m.Elif(self.output.ready):
            m.d.sync += self.output.valid.eq(0)
        # The comparisons of ``stored`` and ``free`` with 0 are registers, which shortens the paths from them.
        with m.If(arrives & ~do_read):
            m.d.sync += [stored.eq(stored + 1), nonempty.eq(1)]
        with m.Elif(do_read & ~arrives):
            m.d.sync += [stored.eq(stored - 1), nonempty.eq(stored != 1)]
        with m.If(self.enter & ~returns):
            m.d.sync += [free.eq(free - 1), self.room.eq(free != 1)]
        with m.Elif(returns & ~self.enter):
            m.d.sync += [free.eq(free + 1), self.room.eq(1)]
        return m
