"""The largest absolute value of a vector, determined as its words pass."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value, unsigned
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.contract import contract
from edgedec.hw.blocks.payloads import words
from edgedec.hw.blocks.pipeline import carried, check, delayed, every, reduced
from edgedec.hw.blocks.resources import Resources

__all__ = ["AbsoluteMaximum"]


def _key(x: Value) -> Value:
    """Return a key ordered as |x|: for a negative x, ~x (which is |x| - 1) above a one. No element has to be negated."""
    return Cat(x[-1], Mux(x[-1], ~x, x)[: len(x) - 1])


def _larger(a: Value, b: Value) -> Value:
    return Mux(a > b, a, b)


class AbsoluteMaximum(CostedComponent):
    """Determine max |x| of each slot's vector.

    Parameters:
        slots: number of slots, 1 to 8.
        lanes: elements of a word, 1 to 64.
        width: bits of an element, 2 to 64.

    Members:
        input: In(words(width, slots, lanes)). Symmetric values: -2**(width-1) must not occur.
        output: Out(stream of unsigned(width - 1) [slots]). One item per vector.

    Latency: ceil(log2(lanes)) + 1 cycles from the last word's transfer to a valid output.
    Throughput: one word per cycle, across vectors too; stalls only if a vector ends while the previous result is not
        taken.
    Source: derived here.
    """

    def __init__(self, *, slots: int, lanes: int = 1, width: int = 27) -> None:
        check("slots", slots, 1, 8)
        check("lanes", lanes, 1, 64)
        check("width", width, 2, 64)
        result = stream.Signature(data.ArrayLayout(unsigned(width - 1), slots))
        super().__init__(lambda: {"input": In(words(width, slots, lanes)), "output": Out(result)})
        self._slots, self._lanes, self._width = slots, lanes, width

    @property
    def resources(self) -> Resources:
        slots, lanes, width = self._slots, self._lanes, self._width
        # Registers of a key: the largest value so far, the result, and one after each pair.
        registers, left = 2, lanes
        while left > 1:
            left = -(-left // 2)
            registers += left
        each = Resources(lut=(61 * lanes + 21) * width // 27, ff=registers * width)
        return each * slots + Resources(lut=6, ff=5)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        source, sink, enable = self.input, self.output, Signal()
        levels = (self._lanes - 1).bit_length()
        valid = delayed(m, enable, source.valid, levels)
        last = carried(m, enable, source.p.last, levels)
        done, fresh = Signal(), Signal(init=1)
        m.d.comb += [
            enable.eq(~(valid & last & sink.valid & ~sink.ready)),
            source.ready.eq(enable),
            done.eq(enable & valid & last),
        ]
        with m.If(sink.ready):
            m.d.sync += sink.valid.eq(0)
        with m.If(done):
            m.d.sync += sink.valid.eq(1)
        with m.If(enable & valid):
            m.d.sync += fresh.eq(last)
        least = -(1 << (self._width - 1))
        elements = [source.p["values"][lane][slot] for lane in range(self._lanes) for slot in range(self._slots)]
        contract(
            m, ~source.valid | every([x != least for x in elements]), "The least number of the width does not occur"
        )
        for slot in range(self._slots):
            keys = [_key(source.p["values"][lane][slot]) for lane in range(self._lanes)]
            key, _ = reduced(m, enable, keys, _larger)
            most, result = Signal(self._width), Signal(self._width)
            now = _larger(Mux(fresh, 0, most), key)
            with m.If(enable & valid):
                m.d.sync += most.eq(now)
            with m.If(done):
                m.d.sync += result.eq(now)
            m.d.comb += sink.payload[slot].eq(result[1:] + result[0])
        return m
