"""The place of a pass in the rings of the cache, computed once at its start."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, signed, unsigned
from amaranth.lib import data
from amaranth.lib.wiring import In, Out

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.constant_product import product
from edgedec.hw.blocks.resources import Resources
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.isa.kv_layout import CacheRows
from edgedec.hw.memory.axi import beats_log2

__all__ = ["RingPlace", "ring_place"]

_POSITION_BITS = 20  # bits of a position
_RUN_BITS = 24  # bits of a run's length in beats
_STEPS = 5  # registers from the rest of the division to the last output


def ring_place(config: AcceleratorConfig) -> data.StructLayout:
    """Return the place of a pass in a ring; ``CacheRows`` of edgedec.hw.isa.kv_layout defines it.

    Members:
        place: row of the first uncommitted position.
        first: first committed position that is read.
        start: beats from the beginning of a run to those that are read first.
        before, after: beats that are read from there, and then from the run's beginning.
    """
    assert config.ring is not None
    beats = dict.fromkeys(("start", "before", "after"), unsigned(_RUN_BITS))
    return data.StructLayout({"place": range(config.ring.rows), "first": unsigned(_POSITION_BITS), **beats})


class RingPlace(CostedComponent):
    """Compute the place of a pass in the rings of all layers, which have the same rows.

    The number of the group of the first uncommitted position is divided by the groups of a ring, one bit per cycle.

    Parameters:
        config: configuration of the accelerator, which has rings.

    Members:
        begin: In(1). ``committed`` is new, and steady from this cycle on.
        committed: In(20). Number of committed positions, at most those of the context.
        output: Out(ring_place(config)). Valid while ``settled`` is high.
        settled: Out(1). Low from the cycle after ``begin`` until the output is valid.

    Latency: the bits of a group's number and 6 cycles from ``begin`` to ``settled``.
    Source: derived here.
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        assert config.ring is not None
        self._rows: CacheRows = config.ring
        self._bits = (config.context // self._rows.layout.positions).bit_length()
        self._shape = ring_place(config)
        super().__init__(
            lambda: {
                "begin": In(1),
                "committed": In(_POSITION_BITS),
                "output": Out(self._shape),
                "settled": Out(1),
            }
        )

    @property
    def _groups(self) -> int:
        """Groups of a ring."""
        return self._rows.rows // self._rows.layout.positions

    @property
    def resources(self) -> Resources:
        bits, ring, adders = self._bits, self._groups.bit_length(), self._rows.layout.chunks.bit_count() - 1
        run = self._rows.run.bit_length()  # bits that a number of beats can have
        products = Resources(lut=3 * adders * run, ff=3 * run)
        division = Resources(lut=bits + 2 * ring + 8, ff=bits + ring + bits.bit_length() + 3)
        return products + division + Resources(lut=_POSITION_BITS + 6 * bits + 4 * ring, ff=5 * bits + 4 * ring + 20)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        positions, chunks, groups, bits = (
            self._rows.layout.positions,
            self._rows.layout.chunks,
            self._groups,
            self._bits,
        )
        wide = beats_log2(positions)
        rest = self._divided(m, self.committed[wide:][:bits])
        # Registers follow the steady number of positions, and then the rest: the span is the distance in groups from
        # the oldest position that is seen to the first uncommitted one.
        seen = Signal(signed(_POSITION_BITS + 2))
        oldest = Signal(bits)
        begun = Signal(bits + 1)
        span = Signal(bits)
        count = Signal(bits + 1)
        m.d.sync += [
            seen.eq(self.committed + 1 - self._rows.window),
            oldest.eq(Mux(seen[-1], 0, seen[wide:])),
            begun.eq((self.committed + (positions - 1)) >> wide),
            span.eq(self.committed[wide:] - oldest),
            count.eq(begun - oldest),
        ]
        difference = Signal(signed(bits + 2))
        start = Signal(range(groups))
        room = Signal(range(groups + 1))
        before = Signal(bits + 1)
        after = Signal(bits + 1)
        m.d.sync += [
            difference.eq(rest - span),
            start.eq(Mux(difference[-1], difference + groups, difference)),
            room.eq(groups - start),
            before.eq(Mux(count > room, room, count)),
            after.eq(Mux(count > room, count - room, 0)),
        ]
        m.d.sync += [
            self.output.start.eq(product(start, chunks)),
            self.output.before.eq(product(before, chunks)),
            self.output.after.eq(product(after, chunks)),
        ]
        m.d.comb += [
            self.output.place.eq(Cat(self.committed[:wide], rest)),
            self.output.first.eq(oldest << wide),
        ]
        return m

    def _divided(self, m: Module, group: Any) -> Signal:
        """Return the rest of a group's number, and drive ``settled``."""
        rest = Signal(range(self._groups))
        dividend = Signal(self._bits)
        left = Signal(range(self._bits + 1))
        steps = Signal(_STEPS)
        trial = Signal(range(2 * self._groups))
        m.d.comb += [trial.eq(Cat(dividend[-1], rest)), self.settled.eq(steps[-1])]
        with m.If(self.begin):
            m.d.sync += [dividend.eq(group), rest.eq(0), left.eq(self._bits), steps.eq(0)]
        with m.Elif(left != 0):
            m.d.sync += [
                dividend.eq(dividend << 1),
                rest.eq(Mux(trial >= self._groups, trial - self._groups, trial)),
                left.eq(left - 1),
            ]
        with m.Else():
            m.d.sync += steps.eq(Cat(1, steps))
        return rest
