"""A pipelined product of two integers, for operands that one multiplier of the part may be too narrow for."""

from typing import Any

from amaranth.hdl import Cat, Module, Shape, Value, signed
from amaranth.lib.wiring import In, Out

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.pipeline import carried, check
from edgedec.hw.blocks.resources import Resources

__all__ = ["STAGES", "Multiplier", "multiply"]

STAGES = 3  # registers before, inside and after a multiplier
_WIDE, _NARROW = 27, 18  # bits of the operands of a DSP48E2, both signed


class Multiplier(CostedComponent):
    """Compute ``x * y``.

    A part whose multipliers are narrower than ``x`` forms two products, of the low and of the high bits of ``x``, and adds
    them in the last stage. The platform of the elaboration says so with its ``multiplier_bits``, the bits of the wider
    signed operand of a multiplier; without it the product is a single one, as for a DSP48E2.

    Parameters:
        x_bits: bits of x, 1 to 27.
        y_bits: bits of y, 1 to 18.

    Members:
        enable: In(1). All registers load while it is high.
        x, y: In(signed(x_bits)), In(signed(y_bits)).
        product: Out(signed(x_bits + y_bits)).

    Latency: 3 cycles in which ``enable`` is high. Throughput: one product per cycle.
    Source: derived here. No register has a reset, so that all fit into multipliers that contain registers.
    """

    def __init__(self, *, x_bits: int, y_bits: int) -> None:
        check("x_bits", x_bits, 1, _WIDE)
        check("y_bits", y_bits, 1, _NARROW)
        self._x_bits, self._y_bits = x_bits, y_bits
        super().__init__(
            lambda: {
                "enable": In(1),
                "x": In(signed(x_bits)),
                "y": In(signed(y_bits)),
                "product": Out(signed(x_bits + y_bits)),
            }
        )

    @property
    def resources(self) -> Resources:
        """Estimate of the cost; the flip-flops are counted as in the fabric, where yosys leaves those of a DSP48E2."""
        return Resources(dsp=1, ff=STAGES * (self._x_bits + self._y_bits))

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        x = carried(m, self.enable, self.x)
        y = carried(m, self.enable, self.y)
        widest = getattr(platform, "multiplier_bits", _WIDE)
        if self._x_bits <= widest:
            whole = carried(m, self.enable, x * y)
        else:
            low_bits = min(widest, _NARROW) - 1  # 17, by which a DSP48 shifts the sum of another one
            low = carried(m, self.enable, x[:low_bits] * y)
            high = carried(m, self.enable, x[low_bits:].as_signed() * y)
            # The lowest bits of ``low`` are those of the product, and need no adder.
            whole = Cat(low[:low_bits], high + (low >> low_bits))[: len(self.product)].as_signed()
        m.d.comb += self.product.eq(carried(m, self.enable, whole))
        return m


def multiply(m: Module, name: str, x: Any, y: Any, *, enable: Any = 1) -> Value:
    """Return ``x * y`` after ``STAGES`` registers, computed by a Multiplier that becomes a submodule of that name.

    Args:
        x, y: signed or unsigned values, the wider one of at most 27 bits with a sign, the other of at most 18.
        enable: condition on which all registers load; by default they load in every cycle.
    """
    widths = [_signed_bits(x), _signed_bits(y)]
    if widths[0] < widths[1]:
        x, y = y, x
        widths.reverse()
    m.submodules[name] = multiplier = Multiplier(x_bits=widths[0], y_bits=widths[1])
    m.d.comb += [multiplier.enable.eq(enable), multiplier.x.eq(x), multiplier.y.eq(y)]
    product: Value = multiplier.product
    return product


def _signed_bits(x: Any) -> int:
    shape: Shape = Value.cast(x).shape()
    return int(shape.width) + (not shape.signed)
