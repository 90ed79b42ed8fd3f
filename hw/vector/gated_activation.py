"""The gated activation activation(gate) * up of rows that arrive in pairs.

The component has the name of the operation in ``edgedec/ops.py`` that it computes.
"""

from typing import Any

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, signed, unsigned
from amaranth.lib import data, memory
from amaranth.lib.wiring import In, Out

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.payloads import words
from edgedec.hw.blocks.pipeline import carried, check, delayed, pipeline
from edgedec.hw.blocks.resources import Resources
from edgedec.hw.blocks.roms import SIGMOID_STEP, SIGMOID_VALUE

__all__ = ["GatedActivation", "activation"]

_NARROW, _WIDE = 18, 27  # bits of an input, of an output
_STAGES = 15  # registers of the arithmetic; one more assembles words


def activation() -> data.StructLayout:
    """Return the parameters of the activation.

    ``relu2`` selects squared ReLU instead of SiLU; ``shift`` is the fraction bits of a SiLU's gate less 6, 0 to 10.
    """
    return data.StructLayout({"relu2": 1, "shift": unsigned(4)})


class GatedActivation(CostedComponent):
    """Compute ``z = rs(gate * sigmoid(gate), 7)`` or ``z = rs(max(gate, 0)^2, 8)``, then ``h = rs(z * up, 17)``.

    Parameters:
        slots: number of slots, 1 to 8.
        lanes: elements of a word, 1 to 64; if odd, a pair may begin in one word and end in the next.

    Members:
        activation: In(activation()). Steady while a vector is in progress.
        input: In(words(18, slots, lanes)). Whole pairs: gate 0, up 0, gate 1, up 1, ...
        output: Out(words(27, slots, lanes)). h 0, h 1, ...: half as many words, rounded up.

    Latency: 16 cycles from the word that completes an output word. Throughput: one input word per cycle.
    Source: docs/integer-profile.md, "Gated activation". Two 27 x 18 multiplications per pair, ceil(lanes / 2) pairs per
        cycle.
    """

    def __init__(self, *, slots: int, lanes: int = 1) -> None:
        check("slots", slots, 1, 8)
        check("lanes", lanes, 1, 64)
        self._slots, self._lanes = slots, lanes
        super().__init__(
            lambda: {
                "activation": In(activation()),
                "input": In(words(_NARROW, slots, lanes)),
                "output": Out(words(_WIDE, slots, lanes)),
            }
        )

    @property
    def resources(self) -> Resources:
        slots, lanes = self._slots, self._lanes
        pairs, odd = (lanes + 1) // 2, lanes % 2
        return Resources(
            lut=slots * (_WIDE * lanes + 299 * pairs + 90 * odd),
            ff=slots * (_WIDE * (lanes + lanes // 2) + _NARROW * odd + 385 * pairs) + 37,
            dsp=3 * pairs * slots,  # the third is the 8 x 11 bits between two entries of the table
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        lanes, elements = self._lanes, self.input.p["values"]
        odd = Signal()  # the word is the second of two
        enable = Signal()
        taken = self.input.valid & enable
        m.d.comb += self.input.ready.eq(enable)
        with m.If(taken):
            m.d.sync += odd.eq(~odd & ~self.input.p.last)
        held = Signal(data.ArrayLayout(signed(_NARROW), self._slots))
        with m.If(taken):
            m.d.sync += held.eq(elements[lanes - 1])
        results = []
        for pair in range((lanes + 1) // 2):
            line = []
            for slot in range(self._slots):
                even = [elements[2 * pair + k][slot] if 2 * pair + k < lanes else 0 for k in range(2)]
                later = even
                if lanes % 2:
                    later = [held[slot] if pair == 0 else elements[2 * pair - 1][slot], elements[2 * pair][slot]]
                line.append(self._pair(m, enable, *(Mux(odd, b, a) for a, b in zip(even, later, strict=True))))
            results.append(line)
        flags = Cat(taken, odd, self.input.p.last & taken)
        state = flags
        for _ in range(_STAGES):
            state = delayed(m, enable, state)
        self._assemble(m, enable, state[0], state[1], state[2], results)
        return m

    def _assemble(self, m: Module, enable: Any, valid: Any, odd: Any, last: Any, results: list[list[Any]]) -> None:
        """Assemble words from floor(lanes / 2) results of a first word and the others of the second."""
        early = self._lanes // 2
        kept = Signal(data.ArrayLayout(data.ArrayLayout(signed(_WIDE), self._slots), max(early, 1)))
        moves, _ = pipeline(m, self.output, valid & (odd | last), 1)
        m.d.comb += enable.eq(moves)
        with m.If(enable):
            m.d.sync += self.output.p.last.eq(last)
        for lane in range(self._lanes):
            for slot in range(self._slots):
                with m.If(enable):
                    if lane < early:
                        m.d.sync += self.output.p["values"][lane][slot].eq(
                            Mux(odd, kept[lane][slot], results[lane][slot])
                        )
                    else:
                        m.d.sync += self.output.p["values"][lane][slot].eq(Mux(odd, results[lane - early][slot], 0))
        for lane in range(early):
            with m.If(enable & valid):
                m.d.sync += [kept[lane][slot].eq(results[lane][slot]) for slot in range(self._slots)]

    def _pair(self, m: Module, enable: Any, gate: Any, up: Any) -> Any:
        """Return h s27 after 15 registers, 9 of which belong to the sigmoid."""
        x = Signal(signed(_NARROW), reset_less=True)
        with m.If(enable):
            m.d.sync += x.eq(gate)
        sigmoid = self._sigmoid(m, enable, x)
        gate_9 = carried(m, enable, x, 9)
        relu2 = self.activation.relu2
        left = carried(m, enable, Mux(relu2 & (gate_9 < 0), 0, gate_9))
        # A gate above zero, or a sigmoid: u17.
        right = carried(m, enable, Mux(relu2, Mux(gate_9 < 0, 0, gate_9), sigmoid))
        product = carried(m, enable, left * right)
        z = carried(m, enable, Mux(relu2, _rounded(product, 8), _rounded(product, 7))[:_WIDE].as_signed())
        weighted = carried(m, enable, z * carried(m, enable, up, 13))
        return carried(m, enable, _rounded(weighted, 17)[:_WIDE].as_signed())

    def _sigmoid(self, m: Module, enable: Any, gate: Any) -> Any:
        """Return the sigmoid u16 of a gate s18 after nine registers."""
        size = carried(m, enable, Mux(gate < 0, -gate, gate)[: _NARROW - 1])
        wide = Cat(Const(0, 7), size)  # 6 more fraction bits, and one below them for rounding
        shift = self.activation.shift
        coarse = carried(m, enable, Array([wide >> (4 * k) for k in range(3)])[shift[2:]])
        fine = carried(m, enable, Array([coarse >> k for k in range(4)])[shift[:2]])
        total = (fine >> 1) + fine[0]
        at = carried(m, enable, Mux(total[16:].any(), 0xFFFF, total[:16]))
        entries = data.StructLayout({"value": unsigned(16), "step": unsigned(11)})
        init = [{"value": v, "step": s} for v, s in zip(SIGMOID_VALUE, SIGMOID_STEP, strict=True)]
        table = memory.Memory(shape=entries, depth=256, init=init)
        m.submodules += table
        port = table.read_port()
        m.d.comb += [port.addr.eq(at[8:]), port.en.eq(enable)]
        between = carried(m, enable, at[:8], 2)
        entry = carried(m, enable, port.data)  # separates the slow block RAM from the slow multiplier
        value = carried(m, enable, entry.value)
        steps = carried(m, enable, entry.step * between)
        positive = carried(m, enable, (value + (steps >> 8) + steps[7])[:16])
        negative = carried(m, enable, gate < 0, 8)
        return carried(m, enable, Mux(negative, (1 << 16) - positive, positive)[:16])


def _rounded(x: Any, shift: int) -> Any:
    return (x + (1 << (shift - 1))) >> shift
