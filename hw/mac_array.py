"""The one array of multipliers: int8 linears, head, scores and weighted values."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, signed
from amaranth.lib import data, enum, stream
from amaranth.lib.wiring import Component, In, Out

from edgedec.hw.pipeline import check
from edgedec.hw.resources import Resources
from edgedec.hw.shapes import codes, rows

__all__ = [
    "OPERAND_BITS",
    "Kind",
    "MacArray",
    "column_bits",
    "estimate",
    "linear_sums",
    "linear_sums_bits",
    "linear_weights",
    "score_bits",
    "work",
]

OPERAND_BITS = 17  # signed: a probability u16, a query's code or an activation's


class Kind(enum.Enum, shape=2):  # type: ignore[call-arg]  # Amaranth's own metaclass
    """What is added up."""

    IDLE = 0
    LINEAR = 1
    SCORES = 2
    COLUMNS = 3


def work(lanes: int, slots: int) -> stream.Signature:
    """``values[lane] * operands[lane][slot]``, added up as ``kind`` says. Taken in every cycle."""
    return stream.Signature(
        data.StructLayout(
            {"values": data.ArrayLayout(signed(8), lanes), "operands": rows(OPERAND_BITS, slots, lanes), "kind": Kind}
        ),
        always_ready=True,
    )


def linear_weights(lanes: int) -> stream.Signature:
    """A beat of int8 weights, one row's; ``last``: of the rows that the held block of codes is multiplied by."""
    return stream.Signature(data.StructLayout({"values": data.ArrayLayout(signed(8), lanes), "last": 1}))


def linear_sums_bits(lanes: int) -> int:
    """Signed bits of a sum of ``lanes`` products of two int8."""
    return 16 + (lanes - 1).bit_length()


def linear_sums(lanes: int, slots: int) -> stream.Signature:
    """A row's sum over a beat's columns, of each slot; ``last`` as of its weights. Taken in every cycle."""
    sums = data.ArrayLayout(signed(linear_sums_bits(lanes)), slots)
    return stream.Signature(data.StructLayout({"sums": sums, "last": 1}), always_ready=True)


def score_bits(query_bits: int, chunk: int) -> int:
    """Signed bits of a sum of ``chunk`` products of a query's and a key's codes."""
    return query_bits + 8 + (chunk - 1).bit_length()


def column_bits(positions: int) -> int:
    """Signed bits of a sum of ``positions`` products of a probability and a value's code."""
    return 24 + (positions - 1).bit_length()


class MacArray(Component):
    """Exact sums of products of one beat of int8 with what each slot holds against it.

    A product is 8 x 17 bits: one multiplier of a DSP48E2 serves codes, queries and probabilities u16 undivided. Held codes
    and live operands, of which one is zero, are added in front of it: in the DSP's pre-adder, so the choice costs no fabric.

    Parameters:
        lanes: products per slot and cycle; a power of two, 2 to 64.
        slots: 1 to 8.
        chunk: neighbouring lanes of one score; a power of two up to ``lanes``. Columns add up ``lanes / chunk`` lanes.
        query_bits: signed bits of ``operands`` of kind SCORES, 8 to 16.

    Members:
        codes: In(codes(slots, lanes)). The activations of the next block of columns; taken when the held block is done with.
        weights: In(linear_weights(lanes)). A row's beat against the held block; ``last`` of the rows of a block
            lets the block go. Waits while there is no block, and gives way to ``work``.
        work: In(work(lanes, slots)). Attention's: kind SCORES or COLUMNS, operands above -2^16.
        sums: Out(linear_sums(lanes, slots)). LINEAR: over all lanes.
        scores: Out(stream rows(., slots, lanes / chunk)). SCORES: of each ``chunk`` neighbouring lanes.
        columns: Out(stream rows(., slots, chunk)). COLUMNS: of each ``lanes / chunk`` neighbouring lanes.
            The three outputs are always ready: nothing inside ever stops; who cannot take them sends less.

    Latency: 3 + log2(lanes) cycles to ``sums``, 3 + log2(chunk) to ``scores``, 3 + log2(lanes / chunk) to ``columns``.
    Throughput: one beat per cycle, also from one block of codes to the next.
    Source: DESIGN section 7, "One MAC array".
    """

    def __init__(self, *, lanes: int, slots: int, chunk: int, query_bits: int = 12) -> None:
        check("lanes", lanes, 2, 64)
        check("slots", slots, 1, 8)
        check("chunk", chunk, 1, lanes)
        check("query_bits", query_bits, 8, 16)
        for name, value in (("lanes", lanes), ("chunk", chunk)):
            if value & (value - 1):
                raise ValueError(f"{name} must be a power of two, not {value!r}")
        self._lanes, self._slots, self._chunk, self._query_bits = lanes, slots, chunk, query_bits
        positions = lanes // chunk
        super().__init__(
            {
                "codes": In(codes(slots, lanes)),
                "weights": In(linear_weights(lanes)),
                "work": In(work(lanes, slots)),
                "sums": Out(linear_sums(lanes, slots)),
                "scores": Out(
                    stream.Signature(rows(score_bits(query_bits, chunk), slots, positions), always_ready=True)
                ),
                "columns": Out(stream.Signature(rows(column_bits(positions), slots, chunk), always_ready=True)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        values, held, live, kind, last = self._inputs(m)
        level = [[Signal(signed(24), name=f"product_{i}_{s}") for s in range(self._slots)] for i in range(self._lanes)]
        for lane, products in enumerate(level):
            value = Signal(signed(8), name=f"value_{lane}")
            m.d.sync += value.eq(values[lane])
            for slot, product in enumerate(products):
                operand = Signal(signed(OPERAND_BITS + 1), name=f"operand_{lane}_{slot}")
                m.d.sync += [operand.eq(held[lane][slot] + live[lane][slot]), product.eq(operand * value)]
        for _ in range(2):
            kind, last = self._delay(m, kind, last)
        depth = 0
        while True:
            self._taps(m, depth, level, kind, last)
            if len(level) == 1:
                return m
            depth += 1
            level = self._halve(m, level, depth)
            kind, last = self._delay(m, kind, last)

    def _inputs(self, m: Module) -> tuple[Any, Any, Any, Any, Any]:
        """First registers: the beat, and the operands of which one kind is zero."""
        block, full = Signal(self.codes.p.codes.shape()), Signal()
        taken = Signal()
        m.d.comb += [
            self.weights.ready.eq(full & ~self.work.valid),
            taken.eq(self.weights.valid & self.weights.ready),
            self.codes.ready.eq(~full | (taken & self.weights.p.last)),
        ]
        with m.If(self.codes.ready):
            m.d.sync += [block.eq(self.codes.p.codes), full.eq(self.codes.valid)]
        values = Signal(data.ArrayLayout(signed(8), self._lanes))
        held, live = Signal.like(block), Signal(self.work.p.operands.shape())
        kind, last = Signal(Kind), Signal()
        m.d.sync += [
            values.eq(Mux(self.work.valid, self.work.p.values.as_value(), self.weights.p.values.as_value())),
            held.eq(Mux(self.work.valid, 0, block.as_value())),
            live.eq(Mux(self.work.valid, self.work.p.operands.as_value(), 0)),
            kind.as_value().eq(
                Mux(self.work.valid, self.work.p.kind.as_value(), Mux(taken, Kind.LINEAR.value, Kind.IDLE.value))  # type: ignore[attr-defined]
            ),
            last.eq(self.weights.p.last),
        ]
        return values, held, live, kind, last

    def _delay(self, m: Module, kind: Any, last: Any) -> tuple[Any, Any]:
        later, end = Signal(Kind), Signal()
        m.d.sync += [later.eq(kind), end.eq(last)]
        return later, end

    def _halve(self, m: Module, level: list[list[Any]], depth: int) -> list[list[Any]]:
        """Sums of neighbours. Beyond the columns' level no probability is added up, and the sums get narrower."""
        width = self._query_bits + 8 + depth
        if 1 << depth <= self._lanes // self._chunk:
            width = max(width, 24 + depth)
        halved = []
        for pair in range(0, len(level), 2):
            added = [Signal(signed(width), name=f"level_{depth}_{pair // 2}_{s}") for s in range(self._slots)]
            m.d.sync += [total.eq(a + b) for total, a, b in zip(added, level[pair], level[pair + 1], strict=True)]
            halved.append(added)
        return halved

    def _taps(self, m: Module, depth: int, level: list[list[Any]], kind: Any, last: Any) -> None:
        for lanes, port, wanted in (
            (self._chunk, self.scores, Kind.SCORES),
            (self._lanes // self._chunk, self.columns, Kind.COLUMNS),
        ):
            if lanes == 1 << depth:
                m.d.comb += port.valid.eq(kind == wanted)
                for lane, sums in enumerate(level):
                    m.d.comb += [port.payload[lane][slot].eq(total) for slot, total in enumerate(sums)]
        if len(level) == 1:
            m.d.comb += [
                Cat(self.sums.p.sums[slot] for slot in range(self._slots)).eq(
                    Cat(total[: 16 + depth] for total in level[0])
                ),
                self.sums.p.last.eq(last),
                self.sums.valid.eq(kind == Kind.LINEAR),
            ]


def estimate(*, lanes: int, slots: int, chunk: int, query_bits: int = 12) -> Resources:
    """Of a MacArray with these parameters."""
    positions, query, adders = lanes // chunk, query_bits + 8, 0
    for depth in range(1, lanes.bit_length()):
        width = max(query + depth, 24 + depth if 1 << depth <= positions else 0)
        adders += (lanes >> depth) * width * slots
    # The choice of an operand is 16 LUTs to yosys; a vendor's tool finds the pre-adder of the DSP.
    many = lanes * slots
    return Resources(lut=16 * many + adders + 8 * lanes + 10, ff=75 * many + adders + 16 * lanes + 14, dsp=many)
