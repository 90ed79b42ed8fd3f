"""The soft-cap of scores: the tanh of each, before the largest score is found."""

from typing import Any

from amaranth.hdl import Array, Cat, Const, Module, Mux, Value, signed, unsigned
from amaranth.lib import data, memory
from amaranth.lib.wiring import In, Out

from edgedec.hw.attention.parts import head_factor
from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.multiply import STAGES as MULTIPLY
from edgedec.hw.blocks.multiply import Multiplier, multiply
from edgedec.hw.blocks.pipeline import carried, check
from edgedec.hw.blocks.resources import Resources
from edgedec.hw.blocks.roms import CAP_STEP, CAP_VALUE

__all__ = ["CAPPED_BITS", "CAP_STAGES", "ScoreCap", "cap_factors"]

CAPPED_BITS = 18  # signed bits of a capped score
CAP_STAGES = (
    1 + MULTIPLY + 3 + 2 + 1 + MULTIPLY + 2
)  # registers: magnitude, product, shifts, clamp, table, product, sum
_SIZE_BITS = 26  # bits of the magnitude of a score, which saturates
_ARGUMENT_BITS, _FRACTION = 18, 10  # bits of the argument, and those of them between two entries of the table
_ENTRY = data.StructLayout({"value": unsigned(17), "step": unsigned(12)})
_ALWAYS = Const(1)


def cap_factors(slots: int) -> data.StructLayout:
    """Return the factors u16 [slots] of scores to the argument of tanh, and the shift that they share."""
    return data.StructLayout({"factors": data.ArrayLayout(unsigned(16), slots), "shift": head_factor()["shift"].shape})


class ScoreCap(CostedComponent):
    """Compute ``sign(s) * tanh(min(rs(min(|s|, 2^26 - 1) * factor, shift), 2^18 - 1))``, with a table of tanh.

    Parameters:
        slots: number of slots, 1 to 8.
        lanes: scores of a slot per cycle, 1 to 8.
        bits: signed bits of a score, 2 to 40.

    Members:
        factors: In(cap_factors(slots)). Those of the scores that enter in this cycle.
        input: In(signed(bits) [lanes, slots]). Symmetric scores.
        output: Out(signed(18) [lanes, slots]). Capped scores, with 17 fraction bits.

    Latency: ``CAP_STAGES`` cycles. Throughput: ``lanes * slots`` scores per cycle. It never stalls.
    Source: docs/integer-profile.md, "Attention". A multiplication of 27 x 17 and one of 13 x 11 bits for each score.
    """

    def __init__(self, *, slots: int, lanes: int, bits: int) -> None:
        check("slots", slots, 1, 8)
        check("lanes", lanes, 1, 8)
        check("bits", bits, 2, 40)
        self._slots, self._lanes, self._bits = slots, lanes, bits
        super().__init__(
            lambda: {
                "factors": In(cap_factors(slots)),
                "input": In(data.ArrayLayout(data.ArrayLayout(signed(bits), slots), lanes)),
                "output": Out(data.ArrayLayout(data.ArrayLayout(signed(CAPPED_BITS), slots), lanes)),
            }
        )

    @property
    def resources(self) -> Resources:
        size = min(self._bits - 1, _SIZE_BITS)
        products = (
            Multiplier(x_bits=max(size + 1, 17), y_bits=min(size + 1, 17)).resources
            + Multiplier(x_bits=13, y_bits=_FRACTION + 1).resources
        )
        each = Resources(lut=6 * size + 107, ff=6 * size + 68, bram18=1)
        return (products + each) * (self._slots * self._lanes)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        init = [{"value": v, "step": s} for v, s in zip(CAP_VALUE, CAP_STEP, strict=True)]
        for slot in range(self._slots):
            shifts = [carried(m, _ALWAYS, self.factors.shift, 1 + MULTIPLY)]
            shifts += [carried(m, _ALWAYS, shifts[0]), carried(m, _ALWAYS, shifts[0], 2)]
            factor = carried(m, _ALWAYS, self.factors.factors[slot])
            for lane in range(self._lanes):
                name = f"{lane}_{slot}"
                table = memory.Memory(shape=_ENTRY, depth=len(init), init=init, attrs={"ram_style": "block"})
                m.submodules[f"table_{name}"] = table
                score = self.input[lane][slot]
                negative = carried(m, _ALWAYS, score < 0, CAP_STAGES - 1)
                at = self._argument(m, name, score, factor, shifts)
                positive = self._tanh(m, name, table.read_port(), at)
                capped = carried(m, _ALWAYS, Mux(negative, -positive, positive)[:CAPPED_BITS].as_signed())
                m.d.comb += self.output[lane][slot].eq(capped)
        return m

    def _argument(self, m: Module, name: str, score: Value, factor: Value, shifts: list[Any]) -> Value:
        """Return the argument u18 after the registers up to the clamp."""
        magnitude = Mux(score < 0, -score, score)[: self._bits - 1]
        most = (1 << _SIZE_BITS) - 1
        if self._bits - 1 > _SIZE_BITS:
            magnitude = Mux(magnitude[_SIZE_BITS:].any(), most, magnitude[:_SIZE_BITS])
        product = multiply(m, f"product_{name}", carried(m, _ALWAYS, magnitude, name="magnitude"), factor)
        x: Value = Cat(Const(0, 1), product[:-1])  # the lowest bit is the one that was shifted out last
        for step, shift in ((16, shifts[0][4:6]), (4, shifts[1][2:4]), (1, shifts[2][:2])):
            x = carried(m, _ALWAYS, Array([x >> (step * k) for k in range(4)])[shift], name="shifted")
        rounded = carried(m, _ALWAYS, x[1 : _ARGUMENT_BITS + 1] + x[0])
        large = carried(m, _ALWAYS, x[_ARGUMENT_BITS + 1 :].any())
        last = (1 << _ARGUMENT_BITS) - 1
        return carried(m, _ALWAYS, Mux(large | rounded[_ARGUMENT_BITS], last, rounded[:_ARGUMENT_BITS]), name="at")

    def _tanh(self, m: Module, name: str, port: Any, at: Value) -> Value:
        """Return the interpolated entry u17 after the registers of the table, the product and the sum."""
        m.d.comb += port.addr.eq(at[_FRACTION:])
        steps = multiply(m, f"steps_{name}", port.data.step, carried(m, _ALWAYS, at[:_FRACTION], name="between"))
        value = carried(m, _ALWAYS, port.data.value, MULTIPLY)
        return carried(m, _ALWAYS, (value + steps[_FRACTION : _FRACTION + 12] + steps[_FRACTION - 1])[:17], name="tanh")
