"""The gated activation activation(gate) * up of rows that arrive in pairs.

The component has the name of the operation in ``edgedec/graph/ops.py`` that it computes.
"""

from typing import Any

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value, signed, unsigned
from amaranth.lib import data, memory
from amaranth.lib.wiring import In, Out, connect, flipped

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.credit_queue import CreditQueue
from edgedec.hw.blocks.multiply import STAGES, Multiplier, multiply
from edgedec.hw.blocks.payloads import word, words
from edgedec.hw.blocks.pipeline import carried, check
from edgedec.hw.blocks.resources import Resources, total
from edgedec.hw.blocks.roms import GELU_STEP, GELU_VALUE, SIGMOID_STEP, SIGMOID_VALUE

__all__ = ["GatedActivation", "activation"]

_NARROW, _WIDE = 18, 27  # bits of an input, of an output
_ENTRY = data.StructLayout({"value": unsigned(16), "step": unsigned(11)})  # an entry of the sigmoid's table
_FRACTION = 8  # bits between two entries
_SIGMOID = 5 + 1 + STAGES + 2  # registers before a sigmoid: address, table, product, sum and sign
_PRODUCT = 1 + _SIGMOID + STAGES  # registers before the product of gate and sigmoid, the one of the gate included
_STAGES = _PRODUCT + STAGES + 1  # registers of the arithmetic


def activation() -> data.StructLayout:
    """Return the parameters of the activation.

    ``relu2`` selects squared ReLU instead of SiLU; ``shift`` is the fraction bits of a SiLU's gate less 6, or of a GELU's
    less 7, 0 to 10.
    """
    return data.StructLayout({"relu2": 1, "shift": unsigned(4)})


class GatedActivation(CostedComponent):
    """Compute ``z = rs(gate * sigmoid(gate), 7)`` or ``z = rs(max(gate, 0)^2, 8)``, then ``h = rs(z * up, 17)``.

    Parameters:
        slots: number of slots, 1 to 8.
        gelu: whether the table is that of GELU (gelu_tanh) in place of the sigmoid, that of SiLU.

    Members:
        activation: In(activation()). Steady while a vector is in progress.
        input: In(words(18, slots)). Whole pairs: gate 0, up 0, gate 1, up 1, ...
        output: Out(words(27, slots)). h 0, h 1, ...: half as many words.

    Latency: 21 cycles from a pair's second word to its output. Throughput: one input word per cycle.
    Source: docs/integer-profile.md, "Gated activation". Two multiplications of up to 27 x 18 bits per pair and slot, and one
        of 11 x 8 between two entries of the table. The pipeline never stalls.
    """

    def __init__(self, *, slots: int, gelu: bool = False) -> None:
        check("slots", slots, 1, 8)
        self._slots = slots
        self._table = (GELU_VALUE, GELU_STEP) if gelu else (SIGMOID_VALUE, SIGMOID_STEP)
        self._queue = CreditQueue(shape=word(_WIDE, slots), stages=_STAGES)
        super().__init__(
            lambda: {
                "activation": In(activation()),
                "input": In(words(_NARROW, slots)),
                "output": Out(words(_WIDE, slots)),
            }
        )

    @property
    def resources(self) -> Resources:
        products = (
            Multiplier(x_bits=_NARROW, y_bits=_NARROW),
            Multiplier(x_bits=_WIDE, y_bits=_NARROW),
            Multiplier(x_bits=12, y_bits=9),
        )
        each = Resources(lut=352, ff=142)
        return total([*(product.resources for product in products), each]) * self._slots + self._queue.resources

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        source, elements, shape = self.input, self.input.p["values"][0], word(_WIDE, self._slots)
        m.submodules.results = queue = self._queue
        is_up = Signal()  # the word is the second of a pair
        taken = Signal()
        result = Signal(shape)
        m.d.comb += [
            source.ready.eq(queue.room),
            taken.eq(source.valid & queue.room),
            queue.enter.eq(taken & is_up),
            queue.result.eq(result),
            result.last.eq(carried(m, 1, source.p.last, _STAGES)),
        ]
        connect(m, queue.output, flipped(self.output))
        gates = Signal(data.ArrayLayout(signed(_NARROW), self._slots), reset_less=True)
        with m.If(taken):
            m.d.sync += [is_up.eq(~is_up), gates.eq(elements)]
        for slot in range(self._slots):
            m.d.comb += result["values"][0][slot].eq(self._pair(m, slot, gates[slot], elements[slot]))
        return m

    def _pair(self, m: Module, slot: int, gate: Value, up: Value) -> Value:
        """Return h s27 of one pair after ``_STAGES`` registers."""
        relu2 = self.activation.relu2
        x = carried(m, 1, gate)
        sigmoid = self._sigmoid(m, slot, x)
        x_late = carried(m, 1, x, _SIGMOID)
        positive = Mux(x_late < 0, 0, x_late)[: _NARROW - 1]
        left = Mux(relu2 & (x_late < 0), 0, x_late).as_signed()
        product = multiply(m, f"product_{slot}", left, Mux(relu2, positive, sigmoid))
        # Rounding half up adds the highest bit that is shifted out.
        z = (Mux(relu2, product[8:], product[7:])[:_WIDE] + Mux(relu2, product[7], product[6]))[:_WIDE].as_signed()
        weighted = multiply(m, f"weighted_{slot}", z, carried(m, 1, up, _PRODUCT, name="up"))
        return carried(m, 1, (weighted[17:] + weighted[16])[:_WIDE], name="gated")

    def _sigmoid(self, m: Module, slot: int, gate: Value) -> Value:
        """Return the sigmoid u16 of a gate s18 after ``_SIGMOID`` registers."""
        size = carried(m, 1, Mux(gate < 0, -gate, gate)[: _NARROW - 1])
        wide = Cat(Const(0, 7), size)  # 6 more fraction bits, and one below them for rounding
        shift = self.activation.shift
        coarse = carried(m, 1, Array([wide >> (4 * k) for k in range(3)])[shift[2:]])
        fine = carried(m, 1, Array([coarse >> k for k in range(4)])[shift[:2]])
        rounded = carried(m, 1, (fine >> 1) + fine[0])
        at = carried(m, 1, Mux(rounded[16:].any(), 0xFFFF, rounded[:16]))
        init = [{"value": v, "step": s} for v, s in zip(*self._table, strict=True)]
        table = memory.Memory(shape=_ENTRY, depth=1 << _FRACTION, init=init)
        m.submodules[f"sigmoid_{slot}"] = table
        port = table.read_port()
        m.d.comb += port.addr.eq(at[_FRACTION:])
        # The product's first register separates the slow block RAM from the slow multiplier.
        steps = multiply(m, f"steps_{slot}", port.data.step, carried(m, 1, at[:_FRACTION]))
        value = carried(m, 1, port.data.value, STAGES)
        positive = carried(m, 1, (value + steps[_FRACTION : _FRACTION + 11].as_unsigned() + steps[_FRACTION - 1])[:16])
        negative = carried(m, 1, gate < 0, _SIGMOID - 1)
        return carried(m, 1, Mux(negative, (1 << 16) - positive, positive)[:16], name="sigmoid")
