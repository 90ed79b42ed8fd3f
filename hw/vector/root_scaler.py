"""Division by the roots of vectors, and the scaling of their elements: the end of a root mean square normalization."""

from typing import Any

from amaranth.hdl import C, Cat, Module, Mux, Signal, Value, unsigned
from amaranth.lib import data
from amaranth.lib.wiring import In, Out

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.contract import contract
from edgedec.hw.blocks.divider import Divider
from edgedec.hw.blocks.multiply import STAGES as MULTIPLY
from edgedec.hw.blocks.multiply import multiply
from edgedec.hw.blocks.payloads import roots, rows, scale
from edgedec.hw.blocks.pipeline import carried, check, clamped, saturate
from edgedec.hw.blocks.resources import Resources

__all__ = ["SCALE_STAGES", "SHIFT_BITS", "RootScaler"]

SCALE_STAGES = 1 + MULTIPLY + 5  # registers from an element to the scaled one
SHIFT_BITS = 6  # bits of a shift
_WIDE = 27  # bits of an element
_RECIPROCAL_BITS, _FACTOR_BITS = 32, 17  # a factor is (2^32 - 1) // root
_LONGEST_SHIFT = 47


class RootScaler(CostedComponent):
    """Compute sat(rs(y * R, sh), bits) for the elements y of a vector; R = (2^32 - 1) // root, sh = base + exponent.

    root * 2^exponent is what RmsNorm gives for each slot; sh is clamped to 0 .. 47. The elements wait elsewhere until the
    factors are known.

    Parameters:
        slots: number of slots, 1 to 8.
        bits: bits of a scaled element, 2 to 27.

    Members:
        roots: In(roots(slots)). One item per vector.
        base: In(6). Shift of the vectors, steady from the transfer of their roots until they are ``known``.
        known: Out(1). The factors of the vector are known; high until ``done``.
        done: In(1). The roots of the next vector may be taken; only while ``known``. The factors stay for 19 cycles after
            those are taken, which is longer than an element is in the registers.
        values: In(rows(27, slots, 1)). Elements, in any cycles from ``known`` on in which the factors are theirs.
        scaled: Out(rows(bits, slots, 1)). The scaled elements.

    Latency: 19 * slots + 1 cycles from the transfer of the roots to ``known``; ``SCALE_STAGES`` cycles from ``values`` to
        ``scaled``.
    Throughput: one element of each slot per cycle.
    Source: docs/integer-profile.md, "RMS norm". One multiplication per slot, and one divider.
    """

    def __init__(self, *, slots: int, bits: int) -> None:
        check("slots", slots, 1, 8)
        check("bits", bits, 2, _WIDE)
        self._slots, self._bits = slots, bits
        self._divider = Divider(numerator_bits=_RECIPROCAL_BITS, denominator_bits=16, quotient_bits=_FACTOR_BITS)
        super().__init__(
            lambda: {
                "roots": In(roots(slots)),
                "base": In(SHIFT_BITS),
                "known": Out(1),
                "done": In(1),
                "values": In(rows(_WIDE, slots, 1)),
                "scaled": Out(rows(bits, slots, 1)),
            }
        )

    @property
    def resources(self) -> Resources:
        """Estimate of the cost, fitted to elements of 18 and of 27 bits."""
        each = Resources(lut=220 + 10 * self._bits // 3, ff=267 + 41 * self._bits // 9, dsp=1)
        return self._divider.resources + each * self._slots

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.divider = divider = self._divider
        kept = Signal(data.ArrayLayout(scale, self._slots), reset_less=True)
        factors = Signal(data.ArrayLayout(unsigned(_FACTOR_BITS), self._slots), reset_less=True)
        shifts = Signal(data.ArrayLayout(unsigned(SHIFT_BITS), self._slots), reset_less=True)
        sent = Signal()
        slot = Signal(range(self._slots))
        # Steady for long before a division ends.
        total = carried(m, 1, self.base + kept[0].exponent)
        shift = carried(m, 1, Mux(total < 0, 0, Mux(total > _LONGEST_SHIFT, _LONGEST_SHIFT, total))[:SHIFT_BITS])
        m.d.comb += [
            divider.input.p.numerator.eq((1 << _RECIPROCAL_BITS) - 1),
            divider.input.p.denominator.eq(kept[0].mantissa),
            divider.output.ready.eq(1),
        ]
        contract(m, ~self.done | self.known, "A vector is done after its factors are known")
        with m.FSM():
            with m.State("root"):
                m.d.comb += self.roots.ready.eq(1)
                m.d.sync += kept.eq(self.roots.payload)
                with m.If(self.roots.valid):
                    m.next = "divide"
            with m.State("divide"):
                m.d.comb += divider.input.valid.eq(~sent)
                with m.If(divider.input.valid & divider.input.ready):
                    m.d.sync += sent.eq(1)
                with m.If(divider.output.valid):
                    m.d.sync += [
                        sent.eq(0),
                        slot.eq(Mux(slot == self._slots - 1, 0, slot + 1)),
                        _shifted_in(kept, kept[0].as_value()),
                        _shifted_in(factors, divider.output.payload),
                        _shifted_in(shifts, shift),
                    ]
                    with m.If(slot == self._slots - 1):
                        m.next = "known"
            with m.State("known"):
                m.d.comb += self.known.eq(1)
                with m.If(self.done):
                    m.next = "root"
        self._scale(m, factors, shifts)
        return m

    def _scale(self, m: Module, factors: Any, shifts: Any) -> None:
        """Scale an element of each slot. No factor changes before the last one of a vector has left these registers."""
        values = carried(m, 1, self.values)
        for slot in range(self._slots):
            shift = shifts[slot]
            product = multiply(m, f"product_{slot}", values[0][slot], factors[slot])
            # From here on the lowest bit is the one that was shifted out last.
            shifted = carried(m, 1, Cat(0, product).as_signed() >> Cat(C(0, 3), shift[3:]))
            y = carried(m, 1, clamped(carried(m, 1, shifted >> shift[:3], name="unclamped"), self._bits))
            rounded = carried(m, 1, (y[1:].as_signed() + y[0]).as_signed())
            m.d.comb += self.scaled[0][slot].eq(carried(m, 1, saturate(rounded, self._bits), name="normed"))


def _shifted_in(items: Any, item: Value) -> Any:
    """Return the assignment that drops the first of some items, and appends one."""
    everything = items.as_value()
    return everything.eq(Cat(everything[len(item) :], item))
