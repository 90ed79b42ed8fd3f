"""Accumulators of a tile of rows over its blocks of columns."""

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed, unsigned
from amaranth.lib import data, stream
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.contract import contract
from edgedec.hw.blocks.payloads import rows, word
from edgedec.hw.blocks.pipeline import check, countdown
from edgedec.hw.blocks.ram_cost import block_rams, ultra_rams
from edgedec.hw.blocks.resources import Resources
from edgedec.hw.config import ACCUMULATOR_BITS, ROWS

__all__ = ["MANTISSA_BITS", "PartialSums", "sweep"]

MANTISSA_BITS = 8  # bits of a group's mantissa
_STAGES = 3  # registers from an item to its sum
_APART = _STAGES + 1  # least cycles between two items of the same word
_STYLES = ("block", "ultra")  # values of ram_style


def sweep(tile_words: int, *, tied: bool = False) -> stream.Signature:
    """Return a stream of sweeps over the words 0 .. ``words - 1`` of a tile, one incoming item each; ``words`` is at
    least 1.

    ``first``: the sums start here, and the stored value is ignored. ``final``: the sums end here; they are sent to the
        output.
    ``scaled``: each item is multiplied by its rows' mantissas. ``last``: the final word ends the vector.
    ``tripled``: each item counts three times, unless it is ``scaled``; only with ``tied``.
    """
    flags = dict.fromkeys(("first", "final", "scaled", "last", *(("tripled",) if tied else ())), 1)
    return stream.Signature(data.StructLayout({"words": range(tile_words + 1), **flags}))


class PartialSums(CostedComponent):
    """Add the sweeps over a matrix's blocks of columns, planes and groups into the 32-bit sums of a tile's rows.

    Nothing saturates and nothing is checked: the compiler proves that no row's sum exceeds 32 bits (``bound`` of the
    integer profile). A group's mantissa multiplies every item of the group, which equals multiplying their sum.

    Parameters:
        width: signed bits of an incoming sum, 2 to 24.
        slots: number of slots, 1 to 8.
        tile_words: words of five rows that are stored, 1 to 65536.
        queued: words that the queue after ``output`` holds, 2 to 65536.
        scaling: whether there are multipliers for group mantissas. Without them ``scaled`` must not be set.
        tied: whether sweeps may be ``tripled``, as those of the first of two tied planes.
        style: kind of memory, "block" or "ultra".

    Members:
        sweeps: In(sweep(tile_words, tied=tied)).
        sums: In(stream rows(width, slots, 5)). One item for each word of a sweep.
        mantissas: In(stream unsigned(8) [5]). One item for each word of a scaled sweep, one mantissa per row; only with
            ``scaling``.
        output: Out(words(32, slots, 5), always ready). The final sums. The pipeline never stalls: an item is taken only if
            the queue after it has room for its word.
        released: In(1). A word has left that queue.

    Latency: 3 cycles from the final item to its word; 1 from a sweep to its first item.
    Throughput: one item per cycle, in and out; but 4 cycles must pass between two items of the same word, so a sweep of
        fewer than 4 words is followed by a pause. (The tables of a new block take 15 cycles, so this costs nothing
        there.)
    Source: docs/integer-profile.md, "Linear".
    """

    def __init__(
        self,
        *,
        width: int,
        slots: int,
        tile_words: int,
        queued: int,
        scaling: bool = True,
        tied: bool = False,
        style: str = "block",
    ) -> None:
        check("width", width, 2, 24)
        check("slots", slots, 1, 8)
        check("tile_words", tile_words, 1, 1 << 16)
        check("queued", queued, 2, 1 << 16)
        if not isinstance(scaling, bool):
            raise ValueError(f"scaling must be a bool, not {scaling!r}")
        if style not in _STYLES:
            raise ValueError(f"style must be one of {', '.join(_STYLES)}, not {style!r}")
        self._width, self._slots, self._tile_words = width, slots, tile_words
        self._scaling, self._style, self._queued, self._tied = scaling, style, queued, tied
        super().__init__(self._members)

    @property
    def resources(self) -> Resources:
        width, tile_words, scaling = self._width, self._tile_words, self._scaling
        lanes, bits = ROWS * self._slots, ROWS * self._slots * ACCUMULATOR_BITS
        product = self._product_bits
        mantissas = MANTISSA_BITS * ROWS if scaling else 0
        block, tripled = self._style == "block", self._tied and not scaling
        return Resources(
            lut=bits + (75 if scaling else 45) + (lanes * (width + 1) if tripled else 0),
            ff=lanes * (width + product) + 2 * bits + mantissas + 6 * tile_words.bit_length() + 30 + ROWS * tripled,
            bram18=block_rams(bits, tile_words) if block else 0,
            uram=0 if block else ultra_rams(bits, tile_words),
            dsp=lanes if scaling else 0,
        )

    def _members(self) -> dict[str, Any]:
        members = {
            "sweeps": In(sweep(self._tile_words, tied=self._tied)),
            "sums": In(stream.Signature(rows(self._width, self._slots, ROWS))),
            "output": Out(stream.Signature(word(ACCUMULATOR_BITS, self._slots, ROWS), always_ready=True)),
            "released": In(1),
        }
        if self._scaling:
            members["mantissas"] = In(stream.Signature(data.ArrayLayout(unsigned(MANTISSA_BITS), ROWS)))
        return members

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        address, scaled, stages = self._take(m)
        middle, end = stages[0], stages[-1]
        shape = rows(ACCUMULATOR_BITS, self._slots, ROWS)
        m.submodules.memory = memory = Memory(
            shape=shape, depth=self._tile_words, init=[], attrs={"ram_style": self._style}
        )
        read = memory.read_port()
        write = memory.write_port()
        kept = Signal(shape, reset_less=True)
        added = Signal(shape, reset_less=True)
        m.d.comb += [
            read.addr.eq(address),
            read.en.eq(1),
            write.addr.eq(end.word),
            write.data.eq(added),
            write.en.eq(end.taken),  # final sums are written too, and never read
            self.output.p.values.eq(added),
            self.output.p.last.eq(end.last),
            self.output.valid.eq(end.taken & end.final),
        ]
        products = self._products(m, *scaled)
        m.d.sync += kept.eq(read.data)
        with m.If(middle.first):
            m.d.sync += kept.eq(0)
        for row in range(ROWS):
            for slot in range(self._slots):
                m.d.sync += added[row][slot].eq(kept[row][slot] + products[row][slot])
        return m

    def _take(self, m: Module) -> tuple[Signal, tuple[Value, Value], list[Any]]:
        """Accept an item.

        Returns:
            its word's address, whether it is scaled and whether it counts three times, and what accompanies it through the
            registers.
        """
        layout = data.StructLayout({"taken": 1, "word": range(self._tile_words), "first": 1, "final": 1, "last": 1})
        entering = Signal(layout)
        stages = [Signal(layout, name=f"stage_{i}") for i in range(_STAGES)]
        if not self._scaling:
            contract(
                m, ~self.sweeps.valid | ~self.sweeps.p.scaled, "No sweep has mantissas without multipliers for them"
            )
        contract(m, ~self.sweeps.valid | (self.sweeps.p.words != 0), "A sweep has words")
        now = Signal(self.sweeps.p.shape())
        busy = Signal()
        pause = Signal(range(_APART))
        address = Signal(range(self._tile_words))
        open_ = Signal()
        fits = Signal()
        ends = Signal()
        load = Signal()
        taken = entering.taken
        end = countdown(m, "item", load=load, count=self.sweeps.p.words, step=taken)
        room = self._room(m, taken & now.final)
        m.d.comb += [
            open_.eq(busy & (pause == 0) & (room | ~now.final)),
            fits.eq(self.mantissas.valid | ~now.scaled if self._scaling else 1),
            taken.eq(self.sums.valid & open_ & fits),
            entering.word.eq(address),
            entering.first.eq(now.first),
            entering.final.eq(now.final),
            entering.last.eq(now.last & end),
            self.sums.ready.eq(open_ & fits),
            ends.eq(taken & end),
            self.sweeps.ready.eq(~busy | ends),
            load.eq(self.sweeps.valid & self.sweeps.ready),
        ]
        if self._scaling:
            m.d.comb += self.mantissas.ready.eq(self.sums.valid & open_ & now.scaled)
        m.d.sync += Cat(stages).eq(Cat(entering, stages[:-1]))
        with m.If(self.sweeps.ready):
            m.d.sync += [busy.eq(self.sweeps.valid), now.eq(self.sweeps.payload), address.eq(0)]
        with m.Elif(taken):
            m.d.sync += address.eq(address + 1)
        # The words of a short sweep are still in the pipeline when it ends.
        with m.If(ends & (now.words < _APART)):
            m.d.sync += pause.eq(_APART - now.words)
        with m.Elif(pause != 0):
            m.d.sync += pause.eq(pause - 1)
        return address, (now.scaled, now.tripled if self._tied else Const(0)), stages

    def _room(self, m: Module, enters: Value) -> Signal:
        """Return whether the queue has room for another word, one place being kept for the delay of the decision."""
        places = Signal(range(self._queued + 1), init=self._queued)
        room = Signal(init=1)
        m.d.sync += [places.eq(places - enters + self.released), room.eq(places > 1)]
        return room

    @property
    def _product_bits(self) -> int:
        """Bits of a product, or of an item that may count three times."""
        return self._width + (MANTISSA_BITS if self._scaling else 2 if self._tied else 0)

    def _products(self, m: Module, scaled: Value, tripled: Value) -> list[list[Signal]]:
        """Return the products after two registers, one of operands and one of products."""
        width = self._product_bits
        products = [
            [Signal(signed(width), name=f"product_{r}_{s}", reset_less=True) for s in range(self._slots)]
            for r in range(ROWS)
        ]
        operand = Signal(self.sums.payload.shape(), reset_less=True)
        m.d.sync += operand.eq(self.sums.payload)
        for row, offered in enumerate(products):
            factor = Signal(MANTISSA_BITS, name=f"mantissa_{row}", reset_less=True)
            if self._scaling:
                m.d.sync += factor.eq(Mux(scaled, self.mantissas.payload[row], Mux(tripled, 3, 1) if self._tied else 1))
            triple = Const(0)
            if self._tied and not self._scaling:  # a register for each row, because all items are too many loads
                triple = Signal(name=f"triple_{row}", reset_less=True)
                m.d.sync += triple.eq(tripled)
            for slot, product in enumerate(offered):
                item = operand[row][slot]
                if self._scaling:
                    m.d.sync += product.eq(item * factor)
                else:
                    m.d.sync += product.eq(item + Mux(triple, item << 1, 0) if self._tied else item)
        return products
