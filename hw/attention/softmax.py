"""Exponentials of distances below the largest score: the numerators of a softmax."""

from typing import Any

from amaranth.hdl import Array, Cat, Const, Module, Mux, unsigned
from amaranth.lib import data, memory, stream
from amaranth.lib.wiring import In, Out

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.pipeline import carried, check, pipeline
from edgedec.hw.blocks.resources import Resources
from edgedec.hw.blocks.roms import EXP2, LAST_EXPONENT

__all__ = ["DISTANCE_BITS", "Softmax", "distances", "probabilities"]

DISTANCE_BITS = 26  # bits of a distance
_LATENCY = 13  # registers from input to output


def distances(slots: int, lanes: int) -> stream.Signature:
    """Return a stream of distances u26 [lanes, slots]; ``factor * 2**-shift`` of a slot converts one to octaves / 256."""
    return stream.Signature(
        data.StructLayout(
            {
                "distances": data.ArrayLayout(data.ArrayLayout(unsigned(DISTANCE_BITS), slots), lanes),
                "visible": data.ArrayLayout(data.ArrayLayout(unsigned(1), slots), lanes),
                "factors": data.ArrayLayout(unsigned(16), slots),
                "shifts": data.ArrayLayout(unsigned(6), slots),
                "last": 1,
            }
        )
    )


def probabilities(slots: int, lanes: int) -> stream.Signature:
    """Return a stream of u16 [lanes, slots], 65535 for the largest score; ``last`` is that of the distances."""
    chances = data.ArrayLayout(data.ArrayLayout(unsigned(16), slots), lanes)
    return stream.Signature(data.StructLayout({"chances": chances, "last": 1}))


class Softmax(CostedComponent):
    """Compute ``u = min(rs(d * factor, shift), 4607)``, ``p = rs(EXP2[u mod 256], u >> 8)``, or 0 where not visible.

    Attention and the head's sum of exponentials both use it; sums and divisions are done elsewhere.

    Parameters:
        slots: number of slots, 1 to 8.
        lanes: distances per slot and cycle, 1 to 8. ``slots * lanes`` exponentials are computed per cycle.

    Members:
        input: In(distances(slots, lanes)). ``shifts`` are 0 to 47.
        output: Out(probabilities(slots, lanes)). Exponentials.

    Latency: 13 cycles. Throughput: one item per cycle.
    Source: docs/integer-profile.md, "Attention". The shift rounds by the last bit that it drops.
    """

    def __init__(self, *, slots: int, lanes: int = 1) -> None:
        check("slots", slots, 1, 8)
        check("lanes", lanes, 1, 8)
        self._slots, self._lanes = slots, lanes
        super().__init__(lambda: {"input": In(distances(slots, lanes)), "output": Out(probabilities(slots, lanes))})

    @property
    def resources(self) -> Resources:
        slots, lanes = self._slots, self._lanes
        many = slots * lanes
        return Resources(lut=308 * many, ff=371 * many + 64 * slots + 3, dsp=many)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        taken = self.input.p
        enable, _ = pipeline(m, self.output, self.input.valid, _LATENCY)
        m.d.comb += self.input.ready.eq(enable)
        m.d.comb += self.output.p.last.eq(carried(m, enable, taken.last, _LATENCY))
        for slot in range(self._slots):
            factor = carried(m, enable, taken.factors[slot])
            shifts = [carried(m, enable, taken.shifts[slot], 3)]
            shifts += [carried(m, enable, shifts[0]), carried(m, enable, shifts[0], 2)]
            for lane in range(self._lanes):
                distance = carried(m, enable, taken.distances[lane][slot])
                visible = carried(m, enable, taken.visible[lane][slot], _LATENCY - 1)
                octaves = self._octaves(m, enable, distance, factor, shifts)
                chance = self._power(m, enable, octaves)
                with m.If(enable):
                    m.d.sync += self.output.p.chances[lane][slot].eq(Mux(visible, (chance >> 1) + chance[0], 0))
        return m

    def _octaves(self, m: Module, enable: Any, distance: Any, factor: Any, shifts: list[Any]) -> Any:
        """Compute stages 2 to 8: u13. The product has a zero below it, so that the shifts keep the rounding bit."""
        x = Cat(Const(0, 1), carried(m, enable, distance * factor, 2))
        for step, shift in ((16, shifts[0][4:6]), (4, shifts[1][2:4]), (1, shifts[2][:2])):
            x = carried(m, enable, Array([x >> (step * k) for k in range(4)])[shift])
        rounded, large = carried(m, enable, x[1:14] + x[0]), carried(m, enable, x[14:].any())
        return carried(m, enable, Mux(large | (rounded > LAST_EXPONENT), LAST_EXPONENT, rounded)[:13])

    def _power(self, m: Module, enable: Any, octaves: Any) -> Any:
        """Compute stages 9 to 12: the shifted table entry, with the rounding bit below it."""
        table = memory.Memory(shape=unsigned(16), depth=256, init=EXP2)
        m.submodules += table
        port = table.read_port()
        m.d.comb += [port.addr.eq(octaves[:8]), port.en.eq(enable)]
        entry, whole = carried(m, enable, Cat(Const(0, 1), port.data)), carried(m, enable, octaves[8:], 2)
        coarse = carried(m, enable, Array([entry >> (4 * k) for k in range(5)])[whole[2:]])
        return carried(m, enable, Array([coarse >> k for k in range(4)])[carried(m, enable, whole[:2])])
