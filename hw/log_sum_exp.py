"""What sampling needs besides the logits: the sum of their exponentials."""

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, signed, unsigned
from amaranth.lib import data, stream
from amaranth.lib.wiring import Component, In, Out

from edgedec.hw import softmax
from edgedec.hw.pipeline import check, delayed, pipeline, reduced
from edgedec.hw.resources import Resources
from edgedec.hw.shapes import words
from edgedec.hw.softmax import DISTANCE_BITS, Softmax

__all__ = ["LOG2E", "SUM_BITS", "LogSumExp", "estimate", "row_scales"]

LOG2E = 47274  # floor(2^15 * log2(e) + 0.5)
SUM_BITS = 33
_MOST_IDS = 1 << 17
_DISTANCE_SHIFT = 6
_LONGEST_SHIFT = 47


def row_scales(slots: int) -> data.StructLayout:
    """What turns a row's logits into real ones.

    ``largest``: s32, of each slot. ``mantissas``, ``exponents``: A u16 and ea s8 of each slot. ``offset``: s10, we + ps + 26
    of the head's matrix. ``ids``: how many logits a row has, 1 to 2^17.
    """
    return data.StructLayout(
        {
            "largest": data.ArrayLayout(signed(32), slots),
            "mantissas": data.ArrayLayout(unsigned(16), slots),
            "exponents": data.ArrayLayout(signed(8), slots),
            "offset": signed(10),
            "ids": range(_MOST_IDS + 1),
        }
    )


class LogSumExp(Component):
    """``sum p`` of each row, p of ``d = min((largest - logit) >> 6, 2^26 - 1)``: exact, of logits that are streamed again.

    The largest must be known, and a vocabulary of logits does not fit the chip: the head writes them out while it finds the
    largest, and this reads them back.

    Parameters:
        slots: 1 to 8.
        lanes: logits per slot and cycle, 1 to 8. ``slots * lanes`` exponentials per cycle.

    Members:
        scales: In(stream row_scales(slots)). One item before each vocabulary of logits.
        input: In(words(32, slots, lanes)). The logits of all ids in turn, none above ``largest``; lanes from ``ids`` on do
            not count.
        output: Out(stream u33 [slots]). One item per vocabulary; ln of the sum of real exponentials is real(largest) +
            ln(sum / 65535).

    Latency: slots + 2 cycles from the scales to the first logit, 16 + log2(lanes) rounded up from the last to the sums.
    Throughput: one word per cycle; a vocabulary follows another when the sums have left.
    Source: docs/integer-profile.md, "Sum of exponentials".
    """

    def __init__(self, *, slots: int, lanes: int = 1) -> None:
        check("slots", slots, 1, 8)
        check("lanes", lanes, 1, 8)
        self._slots, self._lanes = slots, lanes
        super().__init__(
            {
                "scales": In(stream.Signature(row_scales(slots))),
                "input": In(words(32, slots, lanes)),
                "output": Out(stream.Signature(data.ArrayLayout(unsigned(SUM_BITS), slots))),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.softmax = softmax = Softmax(slots=self._slots, lanes=self._lanes)
        busy, open_, done = Signal(), Signal(), Signal()  # open_: logits of this vocabulary may come
        largest, left = Signal(self.scales.p.largest.shape()), Signal(range(_MOST_IDS + 1))
        begins = self.scales.valid & self.scales.ready
        m.d.comb += self.scales.ready.eq(~busy)
        with m.If(begins):
            m.d.sync += [busy.eq(1), largest.eq(self.scales.p.largest), left.eq(self.scales.p.ids)]
        factors, shifts, ready = self._factors(m, begins)
        with m.If(ready):
            m.d.sync += open_.eq(1)
        enable, _ = pipeline(m, softmax.input, self.input.valid & open_, 2)
        m.d.comb += self.input.ready.eq(enable & open_)
        with m.If(self.input.valid & self.input.ready):
            m.d.sync += left.eq(Mux(left > self._lanes, left - self._lanes, 0))
            with m.If(self.input.p.last):
                m.d.sync += open_.eq(0)
        m.d.comb += [
            softmax.input.p.factors.eq(factors),
            softmax.input.p.shifts.eq(shifts),
            softmax.input.p.last.eq(delayed(m, enable, self.input.p.last, 2)),
        ]
        for lane in range(self._lanes):
            counts = delayed(m, enable, left > lane, 2)
            for slot in range(self._slots):
                below = delayed(m, enable, (largest[slot] - self.input.p["values"][lane][slot])[_DISTANCE_SHIFT:33])
                far = below[DISTANCE_BITS:].any()
                m.d.comb += [
                    softmax.input.p.distances[lane][slot].eq(
                        delayed(m, enable, Mux(far, (1 << DISTANCE_BITS) - 1, below))
                    ),
                    softmax.input.p.visible[lane][slot].eq(counts),
                ]
        self._add(m, softmax, done)
        with m.If(done):
            m.d.sync += busy.eq(0)
        return m

    def _factors(self, m: Module, begins: Any) -> tuple[Any, Any, Any]:
        """``rs(A * LOG2E, 16)`` and the shift of each slot, one slot after the other; and when all are there."""
        slots = self._slots
        moving, offset = (
            Signal(data.ArrayLayout(data.StructLayout({"a": 16, "e": signed(8)}), slots)),
            Signal(signed(10)),
        )
        factors = Signal(data.ArrayLayout(unsigned(16), slots))
        shifts = Signal(data.ArrayLayout(unsigned(6), slots))
        left, product, shift, valid = Signal(range(slots + 1)), Signal(32), Signal(signed(12)), Signal()
        m.d.sync += [
            product.eq(moving[0].a * Const(LOG2E, 16)),
            shift.eq(-(moving[0].e + offset)),
            valid.eq(left != 0),
            moving.eq(moving.as_value() >> 24),
        ]
        with m.If(left != 0):
            m.d.sync += left.eq(left - 1)
        with m.If(begins):
            m.d.sync += [left.eq(slots), offset.eq(self.scales.p.offset)]
            m.d.sync += [
                line.eq(value)
                for slot in range(slots)
                for line, value in (
                    (moving[slot].a, self.scales.p.mantissas[slot]),
                    (moving[slot].e, self.scales.p.exponents[slot]),
                )
            ]
        clamped = Mux(shift < 0, 0, Mux(shift > _LONGEST_SHIFT, _LONGEST_SHIFT, shift))
        factor = ((product >> 16) + product[15])[:16]
        with m.If(valid):  # they move down: after ``slots`` of them the first is in its place
            m.d.sync += [
                factors.eq(Cat(factors.as_value()[16:], factor)),
                shifts.eq(Cat(shifts.as_value()[6:], clamped[:6])),
            ]
        return factors, shifts, valid & (left == 0)

    def _add(self, m: Module, softmax: Softmax, done: Any) -> None:
        """Sums of a vocabulary's probabilities; ``done``: the sums leave."""
        given, total = softmax.output, Signal(data.ArrayLayout(unsigned(SUM_BITS), self._slots))
        levels = 0
        sums = []
        for slot in range(self._slots):
            found, levels = reduced(
                m, Const(1), [given.p.chances[lane][slot] for lane in range(self._lanes)], lambda a, b: a + b
            )
            sums.append(found)
        m.d.comb += [given.ready.eq(1), done.eq(self.output.valid & self.output.ready), self.output.payload.eq(total)]
        state = Cat(given.valid, given.valid & given.p.last)
        state = delayed(m, Const(1), state, levels) if levels else state
        with m.If(state[0]):
            m.d.sync += [total[slot].eq(total[slot] + sums[slot]) for slot in range(self._slots)]
        with m.If(state[1]):
            m.d.sync += self.output.valid.eq(1)
        with m.If(done):
            m.d.sync += [self.output.valid.eq(0), total.eq(0)]


def estimate(*, slots: int, lanes: int = 1) -> Resources:
    """Of a LogSumExp with these parameters."""
    many = slots * lanes
    rest = Resources(lut=60 * many + 33 * slots + 17, ff=53 * many + 111 * slots + 17 * (lanes - 1) * slots + 33, dsp=1)
    return softmax.estimate(slots=slots, lanes=lanes) + rest
