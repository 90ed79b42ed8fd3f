"""Selection of the largest logits of a row, with their tokens."""

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed, unsigned
from amaranth.lib import data, stream
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.contract import contract
from edgedec.hw.blocks.pipeline import check
from edgedec.hw.blocks.ram_cost import distributed_luts
from edgedec.hw.blocks.resources import Resources

__all__ = ["ID_BITS", "TopK", "candidates"]

ID_BITS = 20  # bits of a token's id
_LEAST = -(1 << 31)  # below every logit, because the range of logits is symmetric
_ENTRY = data.StructLayout({"logit": signed(32), "id": unsigned(ID_BITS)})
_ENTRY_BITS = 32 + ID_BITS  # bits of an entry


def candidates() -> stream.Signature:
    """Return a stream of logits s32 with their tokens' ids, slot by slot from the first one on."""
    return stream.Signature(data.StructLayout({"logit": signed(32), "id": unsigned(ID_BITS), "last": 1}))


class TopK(CostedComponent):
    """Keep the k largest logits of each slot in order: larger ones first, smaller ids first among equal ones.

    The slots share one search: the k entries of a slot are a row of a memory in LUTs, which is read in one cycle,
    compared in the next and written in the one after it. The next logit of a slot waits for that, so with one or two
    slots some cycles are idle. The memory is never cleared: the number of valid entries of the rows is stored beside
    it.

    Parameters:
        slots: number of slots, 1 to 8.
        k: entries per slot, 1 to 64.

    Members:
        last: In(range(slots)). The last slot that has logits, the third one or a later one unless there are fewer; steady
            from a vocabulary's first logit to its last entry.
        input: In(candidates()). For each id the logits of the slots up to ``last``, never -2^31. The ids of a slot ascend,
            not necessarily by one. ``last`` accompanies the last slot's logit of the last id.
        output: Out(candidates()). For each rank the entries of all slots, k ranks per vocabulary; if there are fewer
            ids, or a slot has no logits, the others are logits of -2^31 with id 0. ``last`` accompanies the last slot's
            entry of the last rank.

    Latency: 2 cycles from the last logit to the first entry; 3 with two slots, 4 with one.
    Throughput: one logit or one entry per cycle; with two slots two in three cycles, with one slot one in three. No
        logit is taken from the last one until the last entry has left.
    Source: insertion into a sorted row, with all comparisons in parallel; derived here.
    """

    def __init__(self, *, slots: int, k: int) -> None:
        check("slots", slots, 1, 8)
        check("k", k, 1, 64)
        self._slots, self._k = slots, k
        super().__init__(lambda: {"last": In(range(slots)), "input": In(candidates()), "output": Out(candidates())})

    @property
    def resources(self) -> Resources:
        slots, k = self._slots, self._k
        bits = _ENTRY_BITS * k
        chosen = bits + 25 * k + 65  # an entry of four, and its comparison; control
        return Resources(lut=distributed_luts(bits, slots) + chosen, ff=2 * bits + 2 * _ENTRY_BITS + 2 * k + 18)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        source, sink, slots = self.input, self.output, self._slots
        row = data.ArrayLayout(_ENTRY, self._k)
        m.submodules.memory = memory = Memory(shape=row, depth=slots, init=[], attrs={"ram_style": "distributed"})
        read = memory.read_port(domain="comb")
        write = memory.write_port()
        # The row that was read, and its operation: insertion of a logit, or removal of the first entry.
        held = Signal(row, reset_less=True)
        candidate = Signal(_ENTRY, reset_less=True)
        putting = Signal()
        giving = Signal()
        place = Signal(range(slots))
        final = Signal()
        # The same one cycle later, to be written, with the results of the comparisons.
        old = Signal.like(held)
        new = Signal.like(candidate)
        behind = Signal(self._k)
        gives = Signal()
        writing = Signal()
        write_place = Signal.like(place)
        filled = Signal(self._k)  # valid entries of the rows; the others are left from earlier vocabularies
        slot = Signal(range(slots))
        rank = Signal(range(self._k))
        closed = Signal()  # the last logit was taken
        arrives = Signal()
        leaves = Signal()
        looks = Signal()
        ended = Signal()
        found = Signal()
        waits = Signal()
        # With more than two slots, a slot returns only after it was written, unless an entry waits to be taken.
        waits_put, waits_give = Const(0), giving & ~sink.ready
        if slots <= 2:
            again = (putting & (place == slot)) | (writing & (write_place == slot))
            waits_put, waits_give = again, again | waits_give | (giving & (place == slot))
        m.d.comb += [
            waits.eq(waits_put | giving),
            source.ready.eq(~closed & ~waits),
            arrives.eq(source.valid & source.ready),
            leaves.eq(giving & sink.ready),
            looks.eq(closed & ~waits_give),
            ended.eq((rank == self._k - 1) & (slot == slots - 1)),
            read.addr.eq(slot),
            sink.valid.eq(giving),
            found.eq(filled[0] & (place <= self.last)),
            sink.p.logit.eq(Mux(found, held[0].logit, _LEAST)),
            sink.p.id.eq(Mux(found, held[0].id, 0)),
            sink.p.last.eq(final),
            write.addr.eq(write_place),
            write.en.eq(writing),
        ]
        # Entries that the logit precedes; all entries after such an entry are preceded as well.
        m.d.sync += [
            *(old.eq(held), new.eq(candidate), write_place.eq(place)),
            behind.eq(Cat(~filled[i] | (candidate.logit > held[i].logit) for i in range(self._k))),
            gives.eq(giving),
            writing.eq(putting | leaves),
        ]
        m.d.sync += putting.eq(arrives)
        with m.If(sink.ready):
            m.d.sync += giving.eq(0)
        # The arrival of a logit is known late. It enables none of these registers, which matter only if one arrived.
        with m.If(~giving | sink.ready):
            m.d.sync += [
                held.eq(read.data),
                candidate.logit.eq(source.p.logit),
                candidate.id.eq(source.p.id),
                place.eq(slot),
            ]
        with m.If(arrives | looks):
            m.d.sync += slot.eq(Mux(slot == Mux(closed, slots - 1, self.last), 0, slot + 1))
        with m.If(arrives & source.p.last):
            m.d.sync += closed.eq(1)
        with m.If(looks):
            m.d.sync += [giving.eq(1), final.eq(ended), rank.eq(rank + (slot == slots - 1))]
            with m.If(ended):
                m.d.sync += [closed.eq(0), rank.eq(0)]
        with m.If(putting & (place == self.last)):
            m.d.sync += filled.eq(Cat(1, filled))
        with m.If(leaves & (place == slots - 1)):
            m.d.sync += filled.eq(filled >> 1)
        m.d.comb += Value.cast(write.data).eq(Cat(self._changed(old, new, behind, gives)))
        self._check(m, arrives, slot)
        return m

    def _check(self, m: Module, arrives: Signal, slot: Signal) -> None:
        """Assert the rules of ``input``."""
        source = self.input.p
        fresh = Signal(init=1)
        earlier = Signal(ID_BITS)
        with m.If(arrives):
            m.d.sync += [fresh.eq(source.last), earlier.eq(source.id)]
            contract(m, source.logit != _LEAST, "A logit is above the least number of 32 bits")
            ordered = Mux(slot == 0, fresh | (source.id > earlier), source.id == earlier)
            contract(m, ordered, "The ids of the logits ascend and all slots of an id come together")

    def _changed(self, held: Any, taken: Any, behind: Signal, giving: Signal) -> list[Value]:
        """Return the row with ``taken`` inserted, or without its first entry; two bits choose among four sources of each."""
        entries = []
        for i in range(self._k):
            before, after = held[max(i - 1, 0)].as_value(), held[min(i + 1, self._k - 1)].as_value()
            moves = giving | behind[i - 1] if i else giving
            comes = behind[i] & ~giving
            stays = Mux(comes, taken.as_value(), held[i].as_value())
            entries.append(Mux(moves, Mux(comes, before, after), stays))
        return entries
