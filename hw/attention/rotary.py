"""Rotary position embedding: pairs are rotated by angles from the read stream."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, memory, stream
from amaranth.lib.wiring import In, Out

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.multiply import STAGES as MULTIPLY
from edgedec.hw.blocks.multiply import multiply
from edgedec.hw.blocks.payloads import rows, words
from edgedec.hw.blocks.pipeline import carried, check, delayed, pipeline, saturate
from edgedec.hw.blocks.ram_cost import distributed_luts
from edgedec.hw.blocks.resources import Resources

__all__ = ["Rotary", "angles"]

_NARROW = 18  # bits of an element
_STAGES = MULTIPLY + 3  # registers of the arithmetic
_SUM_BITS = _NARROW + 16 + 1  # bits of the sum of two products
_ROUNDING_SHIFT = 14  # fraction bits of an angle's cos and sin


def angles(slots: int, lanes: int) -> data.StructLayout:
    """Return cos and sin, s16 with 14 fraction bits, of ``lanes`` neighbouring pairs at each slot's position."""
    return data.StructLayout({"cos": rows(16, slots, lanes), "sin": rows(16, slots, lanes)})


class Rotary(CostedComponent):
    """Compute ``first = sat(rs(a * cos - b * sin, 14), 18)`` and ``second = sat(rs(b * cos + a * sin, 14), 18)``.

    In each head, a is element i, b is element i + head_dim / 2; first and second replace them. There are two
    multipliers per
    lane and slot: first halves leave as b arrives, second halves after that, while the first half of the next head
        arrives.

    Parameters:
        slots: number of slots, 1 to 8.
        head_dim: elements of a head, even, 2 to 2048.
        lanes: elements of a word; divides head_dim / 2.

    Members:
        angles: In(stream angles(slots, lanes)). The head_dim / 2 / lanes items of a pass. They serve every vector until
            the next ones, which are taken between vectors, before a vector whose first word is not offered earlier.
        input: In(words(18, slots, lanes)). Whole heads one after the other; ``last`` ends the last one. It waits for
            the first angles.
        output: Out(words(18, slots, lanes)). The same order, with ``last`` likewise.

    Latency: 6 cycles from a word of a second half to that of the first half, head_dim / 2 / lanes more to its own.
    Throughput: one word per cycle.
    Source: docs/integer-profile.md, "Rotary".
    """

    def __init__(self, *, slots: int, head_dim: int, lanes: int = 1) -> None:
        check("slots", slots, 1, 8)
        check("head_dim", head_dim, 2, 2048)
        if head_dim % 2:
            raise ValueError(f"head_dim must be even, not {head_dim!r}")
        check("lanes", lanes, 1, head_dim // 2)
        if head_dim // 2 % lanes:
            raise ValueError(f"lanes must divide {head_dim // 2}, not {lanes!r}")
        self._slots, self._lanes, self._half = slots, lanes, head_dim // 2 // lanes
        self._head_dim = head_dim
        super().__init__(
            lambda: {
                "angles": In(stream.Signature(angles(slots, lanes))),
                "input": In(words(_NARROW, slots, lanes)),
                "output": Out(words(_NARROW, slots, lanes)),
            }
        )

    @property
    def resources(self) -> Resources:
        slots, head_dim, lanes = self._slots, self._head_dim, self._lanes
        many, half = slots * lanes, head_dim // 2 // lanes
        memories = 2 * distributed_luts(_NARROW * many, half) + distributed_luts(32 * many, half)
        return Resources(lut=memories + 95 * many + 54, ff=266 * many + 35, dsp=2 * many)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        half = self._half
        second = Signal()  # half of the input
        at = Signal(range(half))  # word of the input
        # pending: second halves remain, from ``turned`` on.
        pending = Signal()
        turned = Signal(range(half))
        ends = Signal()
        inside = Signal()
        loaded = Signal()
        offered = Signal()
        last = Signal()
        enable, _ = pipeline(m, self.output, offered, _STAGES)
        loading = self._load(m, ~inside, ~pending, loaded)
        taken = Signal()
        m.d.comb += [
            self.input.ready.eq(enable & loaded & ~loading),
            taken.eq(self.input.valid & self.input.ready),
            offered.eq(pending | (second & self.input.valid & loaded)),
            last.eq(pending & ends & (turned == half - 1)),
            self.output.p.last.eq(delayed(m, enable, last, _STAGES)),
        ]
        # ``index`` is a register of its own, as it has many loads: the word that is turned now, or else the input's.
        at_next = Signal.like(at)
        turned_next = Signal.like(turned)
        pending_next = Signal()
        index = Signal.like(at)
        m.d.comb += [at_next.eq(at), turned_next.eq(turned), pending_next.eq(pending)]
        m.d.sync += [at.eq(at_next), turned.eq(turned_next), pending.eq(pending_next)]
        m.d.sync += index.eq(Mux(pending_next, turned_next, at_next))
        with m.If(pending & enable):
            m.d.comb += turned_next.eq(turned + 1)
            with m.If(turned == half - 1):
                m.d.comb += [turned_next.eq(0), pending_next.eq(0)]
        with m.If(taken):
            m.d.comb += at_next.eq(at + 1)
            m.d.sync += inside.eq(~self.input.p.last)
            with m.If(at == half - 1):
                m.d.comb += at_next.eq(0)
                m.d.sync += second.eq(~second)
                with m.If(second):
                    m.d.comb += pending_next.eq(1)
                    m.d.sync += ends.eq(self.input.p.last)
        a, b = self._kept(m, "a", taken & ~second, at, index), self._kept(m, "b", taken & second, at, turned)
        self._turn(m, enable, pending, a, b, self._table.read_port(domain="comb"), index)
        return m

    def _load(self, m: Module, between: Any, left: Any, loaded: Any) -> Any:
        """Load angles between vectors. Return whether a vector must wait for them; ``loaded`` is set once there are some."""
        at = Signal(range(self._half))
        loading = Signal()
        m.submodules.angles = self._table = memory.Memory(shape=self.angles.p.shape(), depth=self._half, init=[])
        port = self._table.write_port()
        m.d.comb += [
            self.angles.ready.eq(between & left),
            loading.eq(between & (self.angles.valid | (at != 0))),
            port.addr.eq(at),
            port.data.eq(self.angles.payload),
            port.en.eq(self.angles.valid & self.angles.ready),
        ]
        with m.If(port.en):
            m.d.sync += at.eq(at + 1)
            with m.If(at == self._half - 1):
                m.d.sync += [at.eq(0), loaded.eq(1)]
        return loading

    def _kept(self, m: Module, name: str, write: Any, at: Any, index: Any) -> Any:
        """Store half a head of inputs, and return the element at ``index`` in the same cycle."""
        m.submodules[name] = kept = memory.Memory(shape=self.input.p["values"].shape(), depth=self._half, init=[])
        port = kept.write_port()
        read = kept.read_port(domain="comb")
        m.d.comb += [port.addr.eq(at), port.data.eq(self.input.p["values"]), port.en.eq(write), read.addr.eq(index)]
        return read.data

    def _turn(self, m: Module, enable: Any, pending: Any, a: Any, b: Any, table: Any, index: Any) -> None:
        """Compute the products, then in three stages the sum, rounding, saturation."""
        m.d.comb += table.addr.eq(index)
        minus = carried(m, enable, ~pending, MULTIPLY)
        for lane in range(self._lanes):
            for slot in range(self._slots):
                x = Mux(pending, b[lane][slot], a[lane][slot])
                y = Mux(pending, a[lane][slot], self.input.p["values"][lane][slot])
                name = f"{lane}_{slot}"
                along = multiply(m, f"along_{name}", x, table.data.cos[lane][slot], enable=enable)
                across = multiply(m, f"across_{name}", y, table.data.sin[lane][slot], enable=enable)
                # One carry chain adds or subtracts: the lowest bits make the carry that completes a negation.
                signed_across = Cat(minus, (across ^ minus.replicate(len(across)))[: len(across)]).as_signed()
                total = carried(m, enable, ((Cat(1, along).as_signed() + signed_across) >> 1)[:_SUM_BITS].as_signed())
                rounded = carried(m, enable, (total + (1 << (_ROUNDING_SHIFT - 1))) >> _ROUNDING_SHIFT)
                with m.If(enable):
                    m.d.sync += self.output.p["values"][lane][slot].eq(saturate(rounded, _NARROW))
