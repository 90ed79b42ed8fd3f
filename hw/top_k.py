"""The largest of a row of logits, and whose they are."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal, signed, unsigned
from amaranth.lib import data, stream
from amaranth.lib.wiring import Component, In, Out

from edgedec.hw.pipeline import check
from edgedec.hw.resources import Resources

__all__ = ["ID_BITS", "TopK", "best", "estimate", "logits"]

ID_BITS = 20
_LEAST = -(1 << 31)  # below every logit, whose range is symmetric


def logits(slots: int) -> stream.Signature:
    """s32 of each slot, of the token ``id``; never -2^31. ``last`` of the vocabulary."""
    return stream.Signature(
        data.StructLayout({"logits": data.ArrayLayout(signed(32), slots), "id": unsigned(ID_BITS), "last": 1})
    )


def best(slots: int) -> stream.Signature:
    """A logit s32 of each slot and its id; ``last`` of the k."""
    return stream.Signature(
        data.StructLayout(
            {
                "logits": data.ArrayLayout(signed(32), slots),
                "ids": data.ArrayLayout(unsigned(ID_BITS), slots),
                "last": 1,
            }
        )
    )


class TopK(Component):
    """Keeps the k largest in order: the larger first, of equal ones the smaller id.

    Parameters:
        slots: 1 to 8.
        k: 1 to 64.

    Members:
        input: In(logits(slots)). Ids must grow from item to item; they need not be neighbours.
        output: Out(best(slots)). k items per vocabulary; where it has fewer ids, the rest are logits of -2^31 with id 0.

    Latency: 2 cycles from the last logit to the first item.
    Throughput: one logit per slot and cycle; then k + 1 cycles in which it takes none.
    Source: insertion into a sorted row of registers, all compared at once; derived here.
    """

    def __init__(self, *, slots: int, k: int) -> None:
        check("slots", slots, 1, 8)
        check("k", k, 1, 64)
        self._slots, self._k = slots, k
        super().__init__({"input": In(logits(slots)), "output": Out(best(slots))})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        taken, left, giving = Signal(self.input.p.shape()), Signal(range(self._k)), Signal()
        valid, closed = Signal(), Signal()  # closed: from the last logit's arrival to the last item's leaving
        arrives, leaves = self.input.valid & self.input.ready, self.output.valid & self.output.ready
        m.d.comb += [
            self.input.ready.eq(~closed),
            self.output.valid.eq(giving),
            self.output.p.last.eq(left == 0),
        ]
        m.d.sync += [taken.eq(self.input.payload), valid.eq(arrives)]
        with m.If(arrives & self.input.p.last):
            m.d.sync += closed.eq(1)
        with m.If(valid & taken.last):
            m.d.sync += [giving.eq(1), left.eq(self._k - 1)]
        with m.If(leaves):
            m.d.sync += left.eq(left - 1)
            with m.If(left == 0):
                m.d.sync += [giving.eq(0), closed.eq(0), left.eq(0)]
        for slot in range(self._slots):
            first = self._sorted(m, valid, leaves, taken.logits[slot], taken.id)
            m.d.comb += [self.output.p.logits[slot].eq(first[0]), self.output.p.ids[slot].eq(first[1])]
        return m

    def _sorted(self, m: Module, insert: Any, drop: Any, logit: Any, name: Any) -> tuple[Any, Any]:
        """A slot's row of registers; returns the first. Behind what is dropped the least moves up."""
        kept = [Signal(signed(32), init=_LEAST, name=f"logit_{i}") for i in range(self._k)]
        names = [Signal(ID_BITS, name=f"id_{i}") for i in range(self._k)]
        larger = [logit > other for other in kept]
        for i in range(self._k):
            with m.If(drop):
                m.d.sync += kept[i].eq(kept[i + 1] if i + 1 < self._k else _LEAST)
                m.d.sync += names[i].eq(names[i + 1] if i + 1 < self._k else 0)
            with m.Elif(insert & larger[i]):
                if i:
                    m.d.sync += kept[i].eq(Mux(larger[i - 1], kept[i - 1], logit))
                    m.d.sync += names[i].eq(Mux(larger[i - 1], names[i - 1], name))
                else:
                    m.d.sync += [kept[i].eq(logit), names[i].eq(name)]
        return kept[0], names[0]


def estimate(*, slots: int, k: int) -> Resources:
    """Of a TopK with these parameters."""
    return Resources(lut=75 * slots * k, ff=(32 + ID_BITS) * slots * k + 32 * slots + 27)
