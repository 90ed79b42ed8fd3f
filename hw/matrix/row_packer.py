"""Packing of the sums of single rows, as the multipliers deliver them, into words of five rows."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import stream
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.contract import contract
from edgedec.hw.blocks.fifo import small_queue
from edgedec.hw.blocks.payloads import rows
from edgedec.hw.blocks.pipeline import check
from edgedec.hw.blocks.resources import Resources
from edgedec.hw.config import ROWS
from edgedec.hw.matrix.mac_array import linear_sums, linear_sums_bits

__all__ = ["RowPacker"]

_QUEUE = 8  # words of five cycles each: a word's way through the multipliers and back takes less than 20 cycles


class RowPacker(CostedComponent):
    """Pack five sums into a word for a queue that never overflows, because the sender of the beats asks for room first.

    Parameters:
        lanes: lanes of the MacArray.
        slots: number of slots, 1 to 8.
        width: signed bits of a sum in ``output``, at least those of the MacArray.

    Members:
        room: Out(1). The queue has a place that is not reserved; a register, which follows ``starts`` after 2 cycles.
        starts: In(1). High for one cycle to reserve a place when the first of a word's five rows is sent; only with
            ``room``, and at most once in five cycles.
        sums: In(stream linear_sums(lanes, slots)), always ready. Row after row; ``last`` is ignored.
        output: Out(stream rows(width, slots, 5)).

    Latency: 2 cycles from a word's last sum to the word. Throughput: one sum per cycle.
    Source: derived here.
    """

    def __init__(self, *, lanes: int, slots: int, width: int) -> None:
        check("lanes", lanes, 2, 64)
        check("slots", slots, 1, 8)
        check("width", width, linear_sums_bits(lanes), 64)
        self._slots, self._bits, self._width = slots, linear_sums_bits(lanes), width
        self._lanes = lanes
        super().__init__(
            lambda: {
                "room": Out(1, init=1),
                "starts": In(1),
                "sums": In(linear_sums(lanes, slots)),
                "output": Out(stream.Signature(rows(width, slots, ROWS))),
            }
        )

    @property
    def resources(self) -> Resources:
        """Estimate of the cost, which does not depend on ``width`` because that only repeats signs."""
        lanes, slots = self._lanes, self._slots
        bits = ROWS * slots * linear_sums_bits(lanes)
        return small_queue(bits, _QUEUE) + Resources(lut=10, ff=bits + 8)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        row = Signal(range(ROWS))
        complete = Signal()
        do_pop = Signal()
        narrow = rows(self._bits, self._slots, ROWS)
        word = Signal(narrow, reset_less=True)
        room = Signal(range(_QUEUE + 1), init=_QUEUE)
        m.submodules.queue = queue = SyncFIFO(width=narrow.size, depth=_QUEUE)
        m.d.sync += complete.eq(self.sums.valid & (row == ROWS - 1))
        with m.If(self.sums.valid):
            sums = self.sums.p.sums.as_value()
            m.d.sync += [
                row.eq(Mux(row == ROWS - 1, 0, row + 1)),
                word.eq(Cat(word.as_value()[len(sums) :], sums)),  # the first of five moves to the lowest place
            ]
        m.d.sync += self.room.eq(room != 0)
        m.d.comb += [
            queue.w_data.eq(word),
            queue.w_en.eq(complete),
            self.output.valid.eq(queue.r_rdy),
            queue.r_en.eq(self.output.ready),
            do_pop.eq(queue.r_rdy & self.output.ready),
        ]
        m.d.sync += room.eq(room - self.starts + do_pop)
        contract(m, ~self.starts | self.room, "A word begins only if there is room")
        contract(m, ~complete | queue.w_rdy, "The queue of words never overflows")
        for lane in range(ROWS):
            for slot in range(self._slots):
                at = (lane * self._slots + slot) * self._bits
                m.d.comb += self.output.payload[lane][slot].eq(queue.r_data[at : at + self._bits].as_signed())
        return m
