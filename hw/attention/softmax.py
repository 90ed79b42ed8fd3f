"""Exponentials of distances below the largest score: the numerators of a softmax."""

from typing import Any

from amaranth.hdl import Array, Cat, Const, Module, Mux, unsigned
from amaranth.lib import data, memory, stream
from amaranth.lib.wiring import In, Out

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.multiply import STAGES as MULTIPLY
from edgedec.hw.blocks.multiply import multiply
from edgedec.hw.blocks.payloads import payload
from edgedec.hw.blocks.pipeline import carried, check, delayed
from edgedec.hw.blocks.resources import Resources
from edgedec.hw.blocks.roms import EXP2, LAST_EXPONENT

__all__ = ["DISTANCE_BITS", "SOFTMAX_STAGES", "Softmax", "distances", "probabilities"]

DISTANCE_BITS = 26  # bits of a distance
SOFTMAX_STAGES = 13  # registers from input to output
_ALWAYS = Const(1)


def distances(slots: int, lanes: int) -> stream.Signature:
    """Return a stream of distances u26 [lanes, slots]; ``factor * 2**-shift`` of a slot converts one to octaves / 256.

    It is always ready.
    """
    return stream.Signature(
        data.StructLayout(
            {
                "distances": data.ArrayLayout(data.ArrayLayout(unsigned(DISTANCE_BITS), slots), lanes),
                "visible": data.ArrayLayout(data.ArrayLayout(unsigned(1), slots), lanes),
                "factors": data.ArrayLayout(unsigned(16), slots),
                "shifts": data.ArrayLayout(unsigned(6), slots),
                "last": 1,
            }
        ),
        always_ready=True,
    )


def probabilities(slots: int, lanes: int) -> stream.Signature:
    """Return a stream of u16 [lanes, slots], 65535 for the largest score; ``last`` is that of the distances."""
    chances = data.ArrayLayout(data.ArrayLayout(unsigned(16), slots), lanes)
    return stream.Signature(data.StructLayout({"chances": chances, "last": 1}))


class Softmax(CostedComponent):
    """Compute ``u = min(rs(d * factor, shift), 4607)``, ``p = rs(EXP2[u mod 256], u >> 8)``, or 0 where not visible.

    Sums and divisions are done elsewhere.

    Parameters:
        slots: number of slots, 1 to 8.
        lanes: distances per slot and cycle, 1 to 8. ``slots * lanes`` exponentials are computed per cycle.

    Members:
        input: In(distances(slots, lanes)). ``shifts`` are 0 to 47.
        output: Out(probabilities(slots, lanes), always ready). Exponentials.

    Latency: 13 cycles. Throughput: one item per cycle. It never stalls.
    Source: docs/integer-profile.md, "Attention". The shift rounds by the last bit that it drops.
    """

    def __init__(self, *, slots: int, lanes: int = 1) -> None:
        check("slots", slots, 1, 8)
        check("lanes", lanes, 1, 8)
        self._slots, self._lanes = slots, lanes
        item = payload(probabilities(slots, lanes))
        super().__init__(
            lambda: {
                "input": In(distances(slots, lanes)),
                "output": Out(stream.Signature(item, always_ready=True)),
            }
        )

    @property
    def resources(self) -> Resources:
        slots, lanes = self._slots, self._lanes
        many = slots * lanes
        return Resources(lut=230 * many + 12, ff=330 * many + 24 * slots + 14, bram18=-(-many // 2), dsp=many)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        taken = self.input.p
        lasts = carried(m, _ALWAYS, self.input.p.last, SOFTMAX_STAGES)
        m.d.comb += [
            self.output.valid.eq(delayed(m, _ALWAYS, self.input.valid, SOFTMAX_STAGES)),
            self.output.p.last.eq(lasts),
        ]
        wholes = []  # octaves of each exponential, slot after slot
        for slot in range(self._slots):
            shifts = [carried(m, _ALWAYS, taken.shifts[slot], MULTIPLY)]
            shifts += [carried(m, _ALWAYS, shifts[0]), carried(m, _ALWAYS, shifts[0], 2)]
            for lane in range(self._lanes):
                product = multiply(m, f"product_{lane}_{slot}", taken.distances[lane][slot], taken.factors[slot])
                wholes.append(self._octaves(m, product, shifts))
        chances = self._powers(m, wholes)
        for slot in range(self._slots):
            for lane in range(self._lanes):
                chance = chances[slot * self._lanes + lane]
                visible = carried(m, _ALWAYS, taken.visible[lane][slot], SOFTMAX_STAGES - 1)
                m.d.sync += self.output.p.chances[lane][slot].eq(Mux(visible, (chance >> 1) + chance[0], 0))
        return m

    def _octaves(self, m: Module, product: Any, shifts: list[Any]) -> Any:
        """Compute stages 4 to 8: u13. The product has a zero below it, so that the shifts keep the rounding bit."""
        x = Cat(Const(0, 1), product[: DISTANCE_BITS + 16])
        for step, shift in ((16, shifts[0][4:6]), (4, shifts[1][2:4]), (1, shifts[2][:2])):
            x = carried(m, _ALWAYS, Array([x >> (step * k) for k in range(4)])[shift])
        rounded = carried(m, _ALWAYS, x[1:14] + x[0])
        large = carried(m, _ALWAYS, x[14:].any())
        return carried(m, _ALWAYS, Mux(large | (rounded > LAST_EXPONENT), LAST_EXPONENT, rounded)[:13], name="exponent")

    def _powers(self, m: Module, octaves: list[Any]) -> list[Any]:
        """Compute stages 9 to 12: the shifted table entries, with the rounding bit below them. Two share a block RAM."""
        results = []
        for first in range(0, len(octaves), 2):
            table = memory.Memory(shape=unsigned(16), depth=256, init=EXP2, attrs={"ram_style": "block"})
            m.submodules[f"table_{first // 2}"] = table
            for power in octaves[first : first + 2]:
                port = table.read_port()
                m.d.comb += port.addr.eq(power[:8])
                entry = carried(m, _ALWAYS, Cat(Const(0, 1), port.data))
                whole = carried(m, _ALWAYS, power[8:], 2)
                coarse = carried(m, _ALWAYS, Array([entry >> (4 * k) for k in range(5)])[whole[2:]])
                fine = carried(m, _ALWAYS, whole[:2])
                results.append(carried(m, _ALWAYS, Array([coarse >> k for k in range(4)])[fine], name="chance"))
        return results
