"""From the exact sums of a matrix to its output: one multiplication, a rounding shift, a bias, saturation."""

from typing import Any

from amaranth.hdl import C, Cat, Module, Mux, Signal, Value, signed, unsigned
from amaranth.lib import data, stream
from amaranth.lib.wiring import Component, In, Out

from edgedec.hw.pipeline import carried, check, delayed, every, pipeline, round_bit, saturate
from edgedec.hw.resources import Resources
from edgedec.hw.shapes import scale, words

__all__ = ["Drain", "estimate", "settings"]

_WIDE, _NARROW = 27, 18
_FACTOR_BITS = 17
_WEIGHT_SHIFT = 15
_LONGEST_SHIFT = 47


def settings(slots: int) -> data.StructLayout:
    """What a matrix is drained with; the names of docs/integer-profile.md, "Linear", in brackets.

    pre_shift: [ps] 0 to 7. base: [base] clamped to s9, which changes no result. weight: [W] of the whole matrix.
    wide: the output is s27, not s18. bias: a word of ``biases`` belongs to each word. per_row: ``weights`` instead of
    ``weight``; only where the component was made so. scales: [A, ea] of each slot's codes.
    """
    return data.StructLayout(
        {
            "pre_shift": unsigned(3),
            "base": signed(9),
            "weight": unsigned(16),
            "wide": 1,
            "bias": 1,
            "per_row": 1,
            "scales": data.ArrayLayout(scale, slots),
        }
    )


class Drain(Component):
    """t = rs(acc, ps), B = rs(A * W, 15), out = sat(rs(t * B, sh) + bias) with sh = base - ea within 0..47.

    Parameters:
        slots: 1 to 8.
        lanes: elements of a word, 1 to 64.
        per_row: matrices may have one W per row. Costs a second multiplication per lane and slot.
        pre_shift: matrices may have sums beyond s27. Without it ``settings.pre_shift`` is not looked at.

    Members:
        input: In(words(32, slots, lanes)). Sums; rs(acc, ps) must fit s27.
        settings: In(stream of ``settings(slots)``). One item per vector, taken ahead of it.
        biases: In(stream of signed(27) [lanes]). One item per word of a vector with a bias; the same for all slots.
        weights: In(stream of unsigned(16) [lanes]), with per_row only. One item per word of a vector with per_row.
        output: Out(words(27, slots, lanes)). Lanes behind the vector's end are zero if their sums and biases are.

    Latency: 8 cycles from a word's transfer to a valid output, 9 with per_row; settings are ready 4 cycles after theirs.
    Throughput: a word per cycle, across vectors too if the next settings are there.
    Source: docs/integer-profile.md, "Linear". One 27 x 18 multiplication per lane and slot, one more per slot.
    """

    def __init__(self, *, slots: int, lanes: int = 5, per_row: bool = False, pre_shift: bool = True) -> None:
        check("slots", slots, 1, 8)
        check("lanes", lanes, 1, 64)
        ports = {
            "input": In(words(32, slots, lanes)),
            "settings": In(stream.Signature(settings(slots))),
            "biases": In(stream.Signature(data.ArrayLayout(signed(_WIDE), lanes))),
            "output": Out(words(_WIDE, slots, lanes)),
        }
        if per_row:
            ports["weights"] = In(stream.Signature(data.ArrayLayout(unsigned(16), lanes)))
        super().__init__(ports)
        self._slots, self._lanes, self._per_row = slots, lanes, bool(per_row)
        self._pre_shift = bool(pre_shift)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        source, sink = self.input, self.output
        ended, now, ready = Signal(), Signal(self._layout()), Signal()
        self._prepare(m, now, ready, ended)
        partners = [(self.biases, now.bias)] + ([(self.weights, now.per_row)] if self._per_row else [])
        waiting = Cat(*(wanted & ~port.valid for port, wanted in partners)).any()
        offered = ready & ~waiting
        stages = 9 if self._per_row else 8
        enable, _ = pipeline(m, sink, source.valid & offered, stages)
        m.d.comb += [source.ready.eq(enable & offered), ended.eq(source.ready & source.valid & source.p.last)]
        for port, wanted in partners:
            others = [~other_wanted | other.valid for other, other_wanted in partners if other is not port]
            m.d.comb += port.ready.eq(enable & ready & source.valid & wanted & every(others))
        m.d.comb += sink.p.last.eq(carried(m, enable, source.p.last, stages))
        wide = carried(m, enable, now.wide, stages - 1)
        shifts = [self._shifts(m, enable, now.slots[slot].shift, stages - 5) for slot in range(self._slots)]
        # B of the whole matrix, or A
        factors = [carried(m, enable, now.slots[slot].factor, 1 if self._per_row else 2) for slot in range(self._slots)]
        for lane in range(self._lanes):
            bias = carried(m, enable, Mux(now.bias, self.biases.payload[lane], 0), stages - 2)
            weight = (
                carried(m, enable, Mux(now.per_row, self.weights.payload[lane], now.weight)) if self._per_row else None
            )
            for slot in range(self._slots):
                t = self._pre_shifted(m, enable, source.p["values"][lane][slot], now.pre_shift)
                factor = factors[slot] if weight is None else self._factor(m, enable, factors[slot], weight)
                value = self._scaled(m, enable, t, factor, shifts[slot])
                # The bit shifted out last is added to itself, which makes it the carry into the sum above it.
                total = carried(m, enable, (value + Cat(value[0], bias).as_signed())[1:].as_signed())
                out = Mux(wide, saturate(total, _WIDE), saturate(total, _NARROW))
                m.d.comb += sink.p["values"][lane][slot].eq(carried(m, enable, out))
        return m

    def _layout(self) -> data.StructLayout:
        """The settings as the words need them. ``factor`` is B, or A alone where B is made per row."""
        slot = data.StructLayout({"factor": unsigned(_FACTOR_BITS), "shift": range(_LONGEST_SHIFT + 1)})
        return data.StructLayout(
            {
                "pre_shift": unsigned(3),
                "wide": 1,
                "bias": 1,
                "per_row": 1,
                "weight": unsigned(16),
                "slots": data.ArrayLayout(slot, self._slots),
            }
        )

    def _prepare(self, m: Module, now: Any, ready: Signal, ended: Signal) -> None:
        """``settings`` through three registers into ``now``, which is valid while ``ready``."""
        given, taking, enable = self.settings, Signal(), Signal()
        valid = delayed(m, enable, given.valid, 3)
        m.d.comb += [
            taking.eq(valid & (~ready | ended)),
            enable.eq(~valid | taking),
            given.ready.eq(enable),
        ]
        with m.If(ended):
            m.d.sync += ready.eq(0)
        with m.If(taking):
            m.d.sync += ready.eq(1)
        for name in ("pre_shift", "wide", "bias", "per_row", "weight"):
            kept = carried(m, enable, given.p[name], 3)
            with m.If(taking):
                m.d.sync += now[name].eq(kept)
        for slot in range(self._slots):
            of = given.p.scales[slot]
            mantissa, weight = carried(m, enable, of.mantissa), carried(m, enable, given.p.weight)
            wanted = carried(m, enable, given.p.base - of.exponent, 2)
            shift = carried(m, enable, Mux(wanted < 0, 0, Mux(wanted > _LONGEST_SHIFT, _LONGEST_SHIFT, wanted)))
            if self._per_row:
                factor = carried(m, enable, mantissa, 2)
            else:
                product = carried(m, enable, mantissa * weight)
                factor = carried(m, enable, _rounded(product))
            with m.If(taking):
                m.d.sync += [now.slots[slot].factor.eq(factor), now.slots[slot].shift.eq(shift)]

    def _pre_shifted(self, m: Module, enable: Value, acc: Value, shift: Value) -> Signal:
        """t, 2 registers later; 3 with per_row."""
        if not self._pre_shift:
            found: Signal = carried(m, enable, acc[:_WIDE].as_signed(), 3 if self._per_row else 2)
            return found
        floor = carried(m, enable, (acc >> shift)[:_WIDE].as_signed())
        half = carried(m, enable, round_bit(acc, shift))
        found = carried(m, enable, (floor + half)[:_WIDE].as_signed(), 2 if self._per_row else 1)
        return found

    def _factor(self, m: Module, enable: Value, mantissa: Value, weight: Value) -> Value:
        """B of a row, 2 registers after A and W."""
        product = carried(m, enable, mantissa[:16] * weight)
        found: Value = carried(m, enable, _rounded(product))
        return found

    def _shifts(self, m: Module, enable: Value, shift: Value, stages: int) -> tuple[Value, Value]:
        """Whole sixteens of the shift, and one register later the rest of it."""
        late = carried(m, enable, shift, stages)
        return Cat(C(0, 4), late[4:]), carried(m, enable, late[:4])

    def _scaled(self, m: Module, enable: Value, t: Signal, factor: Value, shifts: tuple[Value, Value]) -> Signal:
        """t * B >> sh with the bit that is shifted out last below it, clamped to what a bias can bring back; 4 registers."""
        product = carried(m, enable, t * factor)
        coarse = carried(m, enable, Cat(0, product).as_signed() >> shifts[0])
        fine = carried(m, enable, coarse >> shifts[1])
        top = fine[_WIDE + 1 :]
        inside = top.all() | ~top.any()
        limit = Mux(fine[-1], -(1 << (_WIDE + 1)), (1 << (_WIDE + 1)) - 1)
        clamped: Signal = carried(m, enable, Mux(inside, fine, limit)[: _WIDE + 2].as_signed())
        return clamped


def _rounded(product: Value) -> Value:
    """rs(A * W, 15)."""
    return (product[_WEIGHT_SHIFT:] + product[_WEIGHT_SHIFT - 1])[:_FACTOR_BITS]


def estimate(*, slots: int, lanes: int = 5, per_row: bool = False, pre_shift: bool = True) -> Resources:
    """Of a Drain with these parameters."""
    element = Resources(lut=362 if pre_shift else 287, ff=274, dsp=1)
    if per_row:
        element += Resources(lut=17, ff=64, dsp=1)
    per_slot = Resources(lut=26, ff=134, dsp=0 if per_row else 1)
    per_lane = Resources(lut=37 if per_row else 27, ff=27)
    return element * (slots * lanes) + per_slot * slots + per_lane * lanes + Resources(lut=22, ff=33)
