"""Sums of the exponentials of logits, from which the host makes log-probabilities without a row of logits."""

from itertools import pairwise
from math import floor
from typing import Any

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value, signed, unsigned
from amaranth.lib import data, stream
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.contract import contract
from edgedec.hw.blocks.multiply import STAGES as MULTIPLY
from edgedec.hw.blocks.multiply import multiply
from edgedec.hw.blocks.pipeline import carried, check, delayed
from edgedec.hw.blocks.resources import Resources

__all__ = ["SHIFT_BITS", "SUM_CYCLES", "SUM_STAGES", "ExponentialSum", "scaled_logits"]

SHIFT_BITS = 10  # bits of the signed shift from which the exponent of a slot's scale is subtracted
SUM_STAGES = 20  # registers from a logit to the sum of its octave
SUM_CYCLES = 39  # cycles from one slot's sum to the next one's, beside a cycle for each bit that it leaves out
_LOG2E = 47274  # floor(2^15 log2(e) + 0.5)
_LOW = 17  # bits of a logit in the lower of two products
_LONGEST = 47  # largest shift
_FRACTION = 12  # fraction bits of a logit in octaves
_OCTAVE = 37  # bits of its whole part, which is signed
_PLACE = 5  # bits of the place of an octave's sum: the 32 highest octaves of a slot are kept
_TAG = _OCTAVE - _PLACE  # bits of the octave above them
_NONE = -(1 << (_TAG - 1))  # no octave of a logit: logits of 32 bits times factors of 17 reach 2^30 there
_SUM = 36  # bits of an octave's sum: 2^20 powers of 16 bits
_EXTRA = 8  # fraction bits of a slot's sum
_KEPT = 27  # bits of a slot's sum that are given
_VALUES = [floor(2.0 ** (15 + i / 256) + 0.5) for i in range(257)]
_POWERS = [value | (after - value) << 16 for value, after in pairwise(_VALUES)]  # 2^(15 + i/256), and the step, u8
_ALWAYS = Const(1)


def scaled_logits(slots: int) -> stream.Signature:
    """Return a stream of logits s32 with their slot and the scale of its codes.

    A logit whose ``counts`` is low adds nothing. ``last`` accompanies the last one of a vector.
    """
    members = {"logit": signed(32), "slot": range(slots), "mantissa": unsigned(16), "exponent": signed(8)}
    return stream.Signature(data.StructLayout({**members, "counts": 1, "last": 1}))


class ExponentialSum(CostedComponent):
    """Add the exponentials of the logits of each slot.

    A logit becomes octaves, ``rs(logit * rs(mantissa * 47274, 15), shift)``, and the power of two of their fraction is added
    to the sum of the whole octave, one of 32 that a slot keeps. A sum has the octave beside it, so that a higher one that
    takes its place begins anew; neither the order of the logits nor a largest one that comes late changes a bit. At the end
    the sums of a slot are added from the lowest octave to the highest, and each is forgotten.

    Parameters:
        slots: number of slots, 1 to 8.

    Members:
        used: In(range(slots + 1)). Slots that have sums: the first ones, at least one; steady from the last logit on.
        shift: In(signed(10)). The shift is ``shift - exponent``, clamped to 0 to 47; steady while logits come.
        logits: In(scaled_logits(slots)). The next logit of a slot comes at least three cycles after the one before.
        sums: Out(stream unsigned(32)). Sums of the used slots: 27 bits, and the 5 bits of their shift above them; 0 of a
            slot without logits.

    Latency: 20 cycles from the last logit, then 39 cycles to each sum and one more for each bit that it leaves out.
    Throughput: one logit per cycle, but none after a reset until all sums are forgotten, 32 cycles for each slot, nor from
        the last logit on until its vector's last sum was taken.
    Source: docs/integer-profile.md, "Head".
    """

    def __init__(self, *, slots: int) -> None:
        check("slots", slots, 1, 8)
        self._slots = slots
        super().__init__(
            lambda: {
                "used": In(range(slots + 1)),
                "shift": In(signed(SHIFT_BITS)),
                "logits": In(scaled_logits(slots)),
                "sums": Out(stream.Signature(unsigned(32))),
            }
        )

    @property
    def resources(self) -> Resources:
        return Resources(lut=735 + 8 * self._slots, ff=1102 + 4 * self._slots, bram18=3, dsp=3)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        rows = self._slots << _PLACE
        block, tags_shape = {"ram_style": "block"}, signed(_TAG)
        m.submodules.tags = tags = Memory(shape=tags_shape, depth=rows, init=[], attrs=block)
        m.submodules.octave_sums = sums = Memory(shape=unsigned(_SUM), depth=rows, init=[], attrs=block)
        style = {"ram_style": "distributed"}
        m.submodules.highest = highest = Memory(shape=signed(_OCTAVE), depth=self._slots, init=[], attrs=style)
        walk, source = _Walk(self._slots), self.logits
        taken = source.valid & source.ready
        starts = delayed(m, _ALWAYS, taken & source.p.last, SUM_STAGES)
        octaves = self._octaves(m)
        at = 2 * MULTIPLY + 6  # registers before ``octaves``
        valid = delayed(m, _ALWAYS, taken & source.p.counts, at)
        slot = carried(m, _ALWAYS, source.p.slot, at)
        whole = octaves[_FRACTION:].as_signed()
        self._raise(m, highest, walk, whole, slot, valid)
        row = Cat(whole[:_PLACE], slot)
        same, newer = self._tag(m, tags, walk, row, whole[_PLACE:].as_signed(), valid)
        power = self._power(m, octaves[:_FRACTION])
        row, valid = carried(m, _ALWAYS, row, 3, name="row_late"), delayed(m, _ALWAYS, valid, 3, name="valid_late")
        self._add(m, sums, walk, row, valid, (same, newer), power)
        self._walk(m, walk, starts, taken & source.p.last)
        self._check(m, taken & source.p.counts)
        return m

    def _octaves(self, m: Module) -> Value:
        """Compute a logit in octaves, s49, in 12 cycles."""
        taken = self.logits.p
        scaled = multiply(m, "factor", taken.mantissa, Const(_LOG2E, 16))
        factor = carried(m, _ALWAYS, (scaled[:32] + (1 << 14))[15:32])
        logit = carried(m, _ALWAYS, taken.logit, MULTIPLY + 1)
        low = multiply(m, "low", logit[:_LOW], factor)
        high = multiply(m, "high", logit[_LOW:].as_signed(), factor)
        product = carried(m, _ALWAYS, Cat(low[:_LOW], high + low[_LOW : 2 * _LOW])[:49])
        difference = carried(m, _ALWAYS, self.shift - taken.exponent)
        bounded = Mux(difference < 0, 0, Mux(difference > _LONGEST, _LONGEST, difference))[:6]
        shift = carried(m, _ALWAYS, bounded, 2 * MULTIPLY + 1, name="product_shift")
        # The product has a zero below it, so that the shifts keep the rounding bit.
        x = Cat(Const(0, 1), product).as_signed()
        for low_bit in (4, 2, 0):
            bits = shift[low_bit : low_bit + 2]
            x = carried(m, _ALWAYS, Array([x >> (k << low_bit) for k in range(4)])[bits])
            shift = carried(m, _ALWAYS, shift)
        octaves: Value = carried(m, _ALWAYS, (x[1:].as_signed() + x[0])[:49])
        return octaves

    def _raise(self, m: Module, highest: Any, walk: "_Walk", whole: Any, slot: Any, valid: Any) -> None:
        """Keep the highest octave of each slot. A slot's next logit is read when the one before was written."""
        read = highest.read_port(domain="comb")
        shown = highest.read_port(domain="comb")
        write = highest.write_port()
        known = Signal(self._slots)  # slots that have an octave
        held = carried(m, _ALWAYS, read.data, name="highest_held")
        was_known = carried(m, _ALWAYS, known.bit_select(slot, 1), name="was_known")
        candidate = carried(m, _ALWAYS, whole)
        place = carried(m, _ALWAYS, slot, 2)
        m.d.comb += [
            read.addr.eq(slot),
            write.addr.eq(place),
            write.data.eq(carried(m, _ALWAYS, candidate)),
            write.en.eq(
                delayed(m, _ALWAYS, valid, 2) & carried(m, _ALWAYS, ~was_known | (candidate > held), name="above")
            ),
            shown.addr.eq(walk.slot),
            walk.highest.eq(shown.data),
        ]
        with m.If(write.en):
            m.d.sync += known.bit_select(place, 1).eq(1)
        with m.If(walk.ends):
            m.d.sync += known.eq(0)

    def _tag(self, m: Module, tags: Any, walk: "_Walk", row: Any, tag: Any, valid: Any) -> tuple[Signal, Signal]:
        """Compare an octave with the one whose sum has its place: is it the same, or a newer, higher one? 15 cycles."""
        read = tags.read_port()
        write = tags.write_port()
        tags_late = [tag, *(carried(m, _ALWAYS, tag, late, name=f"tag_{late}") for late in range(1, 5))]
        newer = Signal()
        kept = Mux(self._returns(m, row, valid) & carried(m, _ALWAYS, newer, name="was_newer"), tags_late[4], read.data)
        held = carried(m, _ALWAYS, kept.as_signed(), name="tag_held")
        m.d.sync += newer.eq(held < tags_late[2])
        same = carried(m, _ALWAYS, held == tags_late[2])
        m.d.comb += [
            read.addr.eq(Mux(walk.reads, walk.row, row)),
            write.addr.eq(Mux(walk.forgets, walk.forgotten, carried(m, _ALWAYS, row, 3, name="tag_row"))),
            write.data.eq(Mux(walk.forgets, _NONE, tags_late[3])),
            write.en.eq(walk.forgets | (delayed(m, _ALWAYS, valid, 3) & newer)),
            walk.tag.eq(held),
        ]
        return same, newer

    def _returns(self, m: Module, row: Any, valid: Any) -> Value:
        """Return whether a row, in the cycle in which it leaves a memory, is that of three cycles before.

        That one is written too late to be read; those of one and two cycles before are of other slots.
        """
        same: Value = carried(m, _ALWAYS, row == carried(m, _ALWAYS, row, 3, name="row_before"), name="row_same")
        return same & delayed(m, _ALWAYS, valid, 4, name="valid_before")

    def _power(self, m: Module, fraction: Any) -> Value:
        """Compute the power of two of a fraction, u16 with 15 fraction bits, in 5 cycles."""
        m.submodules.powers = powers = Memory(shape=unsigned(24), depth=256, init=_POWERS, attrs={"ram_style": "block"})
        port = powers.read_port()
        m.d.comb += port.addr.eq(fraction[4:])
        entry = carried(m, _ALWAYS, port.data, name="power_entry")
        part = carried(m, _ALWAYS, fraction[:4], 2, name="fraction_part")
        parts = [Mux(part[bit], entry[16:], 0) << bit for bit in range(4)]
        pairs = [carried(m, _ALWAYS, a + b, name=f"part_{i}") for i, (a, b) in enumerate((parts[:2], parts[2:]))]
        step = carried(m, _ALWAYS, (pairs[0] + pairs[1] + 8)[4:12])
        value = carried(m, _ALWAYS, entry[:16], 2, name="power_value")
        power: Value = carried(m, _ALWAYS, (value + step)[:16], name="power")
        return power

    def _add(
        self, m: Module, sums: Any, walk: "_Walk", row: Any, valid: Any, kinds: tuple[Any, Any], power: Any
    ) -> None:
        """Add the power to the sum of its octave, which begins with it if the octave is a newer one."""
        read = sums.read_port()
        write = sums.write_port()
        same = carried(m, _ALWAYS, kinds[0], 2, name="same_late")
        counts = carried(m, _ALWAYS, kinds[0] | kinds[1], 3, name="counts")
        total = Signal(_SUM, name="octave_sum", reset_less=True)
        # The sum that has come to the same row three cycles before, if that one counted, is not in the memory yet.
        returns = self._returns(m, row, valid) & carried(m, _ALWAYS, counts, name="counted")
        held = carried(
            m, _ALWAYS, Mux(returns, carried(m, _ALWAYS, total, name="sum_before"), read.data), name="sum_held"
        )
        m.d.sync += total.eq(Mux(same, held, 0) + power)
        m.d.comb += [
            read.addr.eq(Mux(walk.reads, walk.row, row)),
            write.addr.eq(carried(m, _ALWAYS, row, 3)),
            write.data.eq(total),
            write.en.eq(delayed(m, _ALWAYS, valid, 3) & counts),
            walk.sum.eq(held),
        ]

    def _walk(self, m: Module, walk: "_Walk", starts: Value, closes: Value) -> None:
        """Add the sums of each slot, from its lowest octave to the highest one, give the result, and forget them."""
        closed = Signal(init=1)
        step = Signal(_PLACE + 1)
        top = Signal(signed(_OCTAVE), reset_less=True)
        place = Signal(_PLACE)
        total = Signal(_SUM + _EXTRA + 1)
        dropped = Signal(5)
        cleared = Signal(range(self._slots << _PLACE))
        clears = Signal()
        drops = Signal()
        reads = [walk.reads, *(delayed(m, _ALWAYS, walk.reads, late, name=f"reads_{late}") for late in range(1, 5))]
        # Places above that of the highest octave hold octaves of the 32 before.
        tag = top >> _PLACE
        above = carried(m, _ALWAYS, place > top[:_PLACE], name="above")
        expected = carried(m, _ALWAYS, Mux(above, carried(m, _ALWAYS, tag - 1, name="tag_below"), tag).as_signed())
        kept = carried(m, _ALWAYS, walk.tag == expected)
        found = carried(m, _ALWAYS, walk.sum)
        addend = carried(m, _ALWAYS, Mux(kept & reads[3], found, 0), name="addend")
        last = carried(m, _ALWAYS, walk.slot + 1 == self.used, name="last_slot")
        m.d.comb += [
            place.eq(top[:_PLACE] + 1 + step[:_PLACE]),
            walk.row.eq(Cat(place, walk.slot)),
            walk.forgets.eq(clears | reads[1]),
            walk.forgotten.eq(Mux(clears, cleared, carried(m, _ALWAYS, walk.row))),
            self.sums.payload.eq(Cat(total[:_KEPT], dropped)),
            self.logits.ready.eq(~closed),
        ]
        with m.If(closes):
            m.d.sync += closed.eq(1)
        with m.If(reads[4] | drops):
            m.d.sync += total.eq((total >> 1) + Cat(Const(0, _EXTRA), addend))
        with m.FSM():
            with m.State("clear"):
                m.d.comb += clears.eq(1)
                m.d.sync += cleared.eq(cleared + 1)
                with m.If(cleared == (self._slots << _PLACE) - 1):
                    m.d.sync += closed.eq(0)
                    m.next = "wait"
            with m.State("wait"):
                m.d.sync += walk.slot.eq(0)
                with m.If(starts):
                    m.next = "look"
            with m.State("look"):
                m.d.sync += [top.eq(walk.highest), step.eq(0), total.eq(0), dropped.eq(0)]
                m.next = "add"
            with m.State("add"):
                m.d.comb += walk.reads.eq(~step[_PLACE])
                m.d.sync += step.eq(step + 1)
                with m.If(step == (1 << _PLACE) + 3):
                    m.next = "drop"
            with m.State("drop"):
                with m.If(total[_KEPT:].any()):
                    m.d.comb += drops.eq(1)
                    m.d.sync += dropped.eq(dropped + 1)
                with m.Else():
                    m.next = "give"
            with m.State("give"):
                m.d.comb += self.sums.valid.eq(1)
                with m.If(self.sums.ready):
                    m.d.sync += walk.slot.eq(walk.slot + 1)
                    m.next = "look"
                    with m.If(last):
                        m.d.comb += walk.ends.eq(1)
                        m.d.sync += closed.eq(0)
                        m.next = "wait"

    def _check(self, m: Module, counts: Value) -> None:
        """Assert the rule of ``logits``."""
        slot, near = self.logits.p.slot, Const(0)
        for late in (1, 2):
            before = delayed(m, _ALWAYS, counts, late, name=f"counts_{late}")
            near |= before & (delayed(m, _ALWAYS, slot, late, name=f"slot_{late}") == slot)
        contract(m, ~(counts & near), "Three cycles lie between the logits of a slot")


class _Walk:
    """The signals between the memories and the walk over the sums of a slot."""

    def __init__(self, slots: int) -> None:
        self.slot = Signal(range(slots), name="walk_slot")
        self.reads = Signal(name="walk_reads")  # a row is read for the walk
        self.row = Signal(range(slots << _PLACE), name="walk_row")
        self.forgets = Signal(name="walk_forgets")  # the octave of a row is forgotten
        self.forgotten = Signal(range(slots << _PLACE), name="walk_forgotten")
        self.tag = Signal(signed(_TAG), name="walk_tag")  # the octave of the row, and its sum
        self.sum = Signal(_SUM, name="walk_sum")
        self.highest = Signal(signed(_OCTAVE), name="walk_highest")  # highest octave of the slot
        self.ends = Signal(name="walk_ends")  # the last sum is taken
