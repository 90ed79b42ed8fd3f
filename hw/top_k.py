"""The largest of a row of logits, and whose they are."""

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed, unsigned
from amaranth.lib import data, stream
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from edgedec.hw.component import CostedComponent
from edgedec.hw.pipeline import check
from edgedec.hw.ram import distributed_luts
from edgedec.hw.resources import Resources

__all__ = ["ID_BITS", "TopK", "candidates"]

ID_BITS = 20
_LEAST = -(1 << 31)  # below every logit, whose range is symmetric
_ENTRY = data.StructLayout({"logit": signed(32), "id": unsigned(ID_BITS)})
_ENTRY_BITS = 32 + ID_BITS


def candidates() -> stream.Signature:
    """A logit s32 of one slot and its token's id; the slots in turn, from the first on."""
    return stream.Signature(data.StructLayout({"logit": signed(32), "id": unsigned(ID_BITS), "last": 1}))


class TopK(CostedComponent):
    """Keeps the k largest of each slot in order: the larger first, of equal ones the smaller id.

    The slots share one search: a slot's k entries are a row of a memory in LUTs, read in one cycle, compared in the next and
    written in the one after it. A slot's next turn waits for that, so with one or two slots nothing is read in some cycles.
    Nothing clears the memory: how many of a row's entries count is kept beside it.

    Parameters:
        slots: 1 to 8.
        k: 1 to 64.

    Members:
        input: In(candidates()). Of each id the logits of all slots, never -2^31. Ids must grow from one to the next of a
            slot; they need not be neighbours. ``last`` with the last slot's logit of the last id.
        output: Out(candidates()). Of each rank the entries of all slots, k ranks per vocabulary; where it has fewer ids, the
            rest are logits of -2^31 with id 0. ``last`` with the last slot's of the last rank.

    Latency: 2 cycles from the last logit to the first entry; 3 with two slots, 4 with one.
    Throughput: a logit per cycle, or an entry; with two slots two in three cycles, with one slot one in three. None is taken
        from the last logit until the last entry has left.
    Source: insertion into a sorted row, all of it compared at once; derived here.
    """

    def __init__(self, *, slots: int, k: int) -> None:
        check("slots", slots, 1, 8)
        check("k", k, 1, 64)
        self._slots, self._k = slots, k
        super().__init__(lambda: {"input": In(candidates()), "output": Out(candidates())})

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
        read, write = memory.read_port(domain="comb"), memory.write_port()
        # The row that was read, and what is done with it: a logit put in, or the first entry given away.
        held, taken = Signal(row, reset_less=True), Signal(_ENTRY, reset_less=True)
        putting, giving, place, final = Signal(), Signal(), Signal(range(slots)), Signal()
        # The same a cycle later, to be written, with what the comparisons have found.
        old, new, behind, gives = Signal.like(held), Signal.like(taken), Signal(self._k), Signal()
        writing, there = Signal(), Signal.like(place)
        filled = Signal(self._k)  # entries that the rows hold; what lies behind them is of vocabularies before
        slot, rank, closed = Signal(range(slots)), Signal(range(self._k)), Signal()  # closed: the last logit was taken
        arrives, leaves, looks, ended, waits = Signal(), Signal(), Signal(), Signal(), Signal()
        # Of more slots none comes again before it is written, but where an entry waits to be taken.
        waits_put, waits_give = Const(0), giving & ~sink.ready
        if slots <= 2:
            again = (putting & (place == slot)) | (writing & (there == slot))
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
            sink.p.logit.eq(Mux(filled[0], held[0].logit, _LEAST)),
            sink.p.id.eq(Mux(filled[0], held[0].id, 0)),
            sink.p.last.eq(final),
            write.addr.eq(there),
            write.en.eq(writing),
        ]
        # Entries that the logit goes before; where one is, so are all after it.
        m.d.sync += [
            *(old.eq(held), new.eq(taken), there.eq(place)),
            behind.eq(Cat(~filled[i] | (taken.logit > held[i].logit) for i in range(self._k))),
            gives.eq(giving),
            writing.eq(putting | leaves),
        ]
        m.d.sync += putting.eq(arrives)
        with m.If(sink.ready):
            m.d.sync += giving.eq(0)
        with m.If(arrives | looks):
            m.d.sync += [
                held.eq(read.data),
                taken.logit.eq(source.p.logit),
                taken.id.eq(source.p.id),
                place.eq(slot),
                slot.eq(Mux(slot == slots - 1, 0, slot + 1)),
            ]
        with m.If(arrives & source.p.last):
            m.d.sync += closed.eq(1)
        with m.If(looks):
            m.d.sync += [giving.eq(1), final.eq(ended), rank.eq(rank + (slot == slots - 1))]
            with m.If(ended):
                m.d.sync += [closed.eq(0), rank.eq(0)]
        with m.If(place == slots - 1):
            with m.If(putting):
                m.d.sync += filled.eq(Cat(1, filled))
            with m.If(leaves):
                m.d.sync += filled.eq(filled >> 1)
        m.d.comb += Value.cast(write.data).eq(Cat(self._changed(old, new, behind, gives)))
        return m

    def _changed(self, held: Any, taken: Any, behind: Signal, giving: Signal) -> list[Value]:
        """The row with ``taken`` put in, or without its first entry: each is one of four, chosen by two bits."""
        found = []
        for i in range(self._k):
            before, after = held[max(i - 1, 0)].as_value(), held[min(i + 1, self._k - 1)].as_value()
            moves = giving | behind[i - 1] if i else giving
            comes = behind[i] & ~giving
            stays = Mux(comes, taken.as_value(), held[i].as_value())
            found.append(Mux(moves, Mux(comes, before, after), stays))
        return found
