"""The array of multipliers for int8 linears, the language-model head, scores and weighted values."""

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, signed
from amaranth.lib import data, enum, stream
from amaranth.lib.wiring import In, Out

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.payloads import codes, rows
from edgedec.hw.blocks.pipeline import carried, check, copies
from edgedec.hw.blocks.resources import Resources

__all__ = [
    "OPERAND_BITS",
    "MacArray",
    "WorkKind",
    "column_bits",
    "linear_sums",
    "linear_sums_bits",
    "linear_weights",
    "score_bits",
    "work",
]

_SHARES = 4  # parts of the held block that have an enable of their own
_TOGETHER = 2  # products of a chain that are added in one cycle, by the adders of two cascaded DSPs
_CHAINED = 4  # largest number of lanes of a chain
OPERAND_BITS = 17  # signed bits of an operand: a probability u16, a query's code or an activation's code


class WorkKind(enum.Enum, shape=2):  # type: ignore[call-arg]  # Amaranth's own metaclass
    """Kinds of sums."""

    IDLE = 0
    LINEAR = 1
    SCORES = 2
    COLUMNS = 3


def work(lanes: int, slots: int) -> stream.Signature:
    """Return a stream of ``values[lane] * operands[lane][slot]``, added up according to ``kind``. It is always ready."""
    return stream.Signature(
        data.StructLayout(
            {
                "values": data.ArrayLayout(signed(8), lanes),
                "operands": rows(OPERAND_BITS, slots, lanes),
                "kind": WorkKind,
            }
        ),
        always_ready=True,
    )


def linear_weights(lanes: int) -> stream.Signature:
    """Return a stream of beats of int8 weights of one row each; ``last`` ends the rows of the held block of codes."""
    return stream.Signature(data.StructLayout({"values": data.ArrayLayout(signed(8), lanes), "last": 1}))


def linear_sums_bits(lanes: int) -> int:
    """Return the signed bits of a sum of ``lanes`` products of two int8."""
    return 16 + (lanes - 1).bit_length()


def linear_sums(lanes: int, slots: int) -> stream.Signature:
    """Return a stream of each row's sums over a beat's columns, one per slot; ``last`` is that of the weights."""
    sums = data.ArrayLayout(signed(linear_sums_bits(lanes)), slots)
    return stream.Signature(data.StructLayout({"sums": sums, "last": 1}), always_ready=True)


def score_bits(query_bits: int, chunk: int) -> int:
    """Return the signed bits of a sum of ``chunk`` products of a query's and a key's codes."""
    return query_bits + 8 + (chunk - 1).bit_length()


def column_bits(positions: int) -> int:
    """Return the signed bits of a sum of ``positions`` products of a probability and a value's code."""
    return 24 + (positions - 1).bit_length()


class MacArray(CostedComponent):
    """Compute exact sums of products of one beat of int8 with the operands of each slot.

    A product is 8 x 17 bits: one multiplier of a DSP48E2 handles codes, queries and probabilities u16 in one piece.
    Held codes and live operands, one of which is zero, are added before it, in the pre-adder of the DSP, so the
    selection costs no fabric. Products of up to four neighbouring lanes are added after it, in the adders of the DSPs,
    by the cascade from one DSP to the next: two additions per cycle, so the second two lanes multiply one cycle later.
    A tree adds the rest.

    Parameters:
        lanes: products per slot and cycle, a power of two, 2 to 64.
        slots: number of slots, 1 to 8.
        chunk: neighbouring lanes of one score, a power of two up to ``lanes``. Columns add up ``lanes / chunk`` lanes.
        query_bits: signed bits of ``operands`` of kind SCORES, 8 to 16.

    Members:
        codes: In(codes(slots, lanes)). Activations of the next block of columns; taken once the held block is finished.
        weights: In(linear_weights(lanes)). A row's beat for the held block; ``last`` of the rows releases the block. It
            waits while there is no block, and during ``work``.
        work: In(work(lanes, slots)). Work of attention: kind SCORES or COLUMNS, operands above -2^16.
        sums: Out(linear_sums(lanes, slots)). LINEAR: sums over all lanes.
        scores: Out(stream rows(., slots, lanes / chunk)). SCORES: sums of ``chunk`` neighbouring lanes.
        columns: Out(stream rows(., slots, chunk)). COLUMNS: sums of ``lanes / chunk`` neighbouring lanes. The pipeline
            never stalls: all three outputs must always be taken, so a receiver limits the input instead.

    Latency: 3 + log2(lanes) cycles to ``sums``, 3 + log2(chunk) to ``scores``, 3 + log2(lanes / chunk) to ``columns``.
    Throughput: one beat per cycle, also from one block of codes to the next.
    Source: docs/accelerator.md, "The data path".
    """

    def __init__(self, *, lanes: int, slots: int, chunk: int, query_bits: int = 12) -> None:
        check("lanes", lanes, 2, 64)
        check("slots", slots, 1, 8)
        check("chunk", chunk, 1, lanes)
        check("query_bits", query_bits, 8, 16)
        for name, value in (("lanes", lanes), ("chunk", chunk)):
            if value & (value - 1):
                raise ValueError(f"{name} must be a power of two, not {value!r}")
        self._lanes, self._slots, self._chunk = lanes, slots, chunk
        positions = lanes // chunk
        self._chained = _chained(lanes, chunk)
        self._widths = _widths(lanes, chunk, query_bits)
        super().__init__(
            lambda: {
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

    @property
    def resources(self) -> Resources:
        """Estimate of the cost besides what DSP48E2s hold of it, which is ``in_multipliers``."""
        lanes, slots, widths = self._lanes, self._slots, self._widths
        first = self._chained.bit_length()
        tree = sum((lanes >> depth) * widths[depth] * slots for depth in range(first, len(widths)))
        delayed = _late(lanes, self._chunk) * ((8 + OPERAND_BITS) * slots + 8)
        return Resources(
            lut=8 * lanes + tree + 8,
            ff=8 * lanes * slots + delayed + tree + 3 * lanes.bit_length() + 8,
            dsp=lanes * slots,
        )

    @property
    def in_multipliers(self) -> Resources:
        """Estimate of the adders and registers that DSP48E2s hold besides multipliers: fabric where those have neither."""
        lanes, widths = self._lanes, self._widths
        many, chained = lanes * self._slots, self._chained
        sums = [widths[place.bit_length()] for place in range(1, chained, _TOGETHER)]  # each a register
        extra = sum(2 * width for width in sums[1:])  # the third summand of all but the first
        chains = lanes // chained * self._slots
        return Resources(
            lut=16 * many + chains * (sum(sums) + extra),
            ff=67 * many + chains * sum(sums) + 16 * lanes,
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        factors, kind, last = self._inputs(m)
        level = [self._products(m, lane, factors[lane]) for lane in range(self._lanes)]
        for _ in range(2):
            kind, last = self._delay(m, kind, last)
        depth = 0
        self._taps(m, depth, level, kind, last)
        while len(level) > 1:
            size = max(2, self._chained) if depth == 0 else 2
            level = self._sums(m, level, size, depth)
            for _ in range(size // _TOGETHER):
                kind, last = self._delay(m, kind, last)
                depth += 1
            self._taps(m, depth, level, kind, last)
        return m

    def _inputs(self, m: Module) -> tuple[list[Any], Any, Any]:
        """Return the factors of each lane, delayed for the second two of a chain, and the registered kind and ``last``."""
        block = Signal(self.codes.p.codes.shape(), reset_less=True)
        full = Signal()
        # ``full`` for each share of the block, which it enables: the block has 4,096 bits at 64 lanes and 8 slots.
        shares = [Signal(name=f"full_{share}", attrs={"keep": "true"}) for share in range(min(_SHARES, self._lanes))]
        do_read = Signal()
        working = self.work.valid
        m.d.comb += [
            self.weights.ready.eq(full & ~working),
            do_read.eq(self.weights.valid & self.weights.ready),
            self.codes.ready.eq(~full | (do_read & self.weights.p.last)),
        ]
        with m.If(self.codes.ready):
            m.d.sync += full.eq(self.codes.valid)
        for share, its_full in enumerate(shares):
            with m.If(~its_full | (self.weights.valid & its_full & ~working & self.weights.p.last)):
                m.d.sync += its_full.eq(self.codes.valid)
                m.d.sync += [
                    block[lane].eq(self.codes.p.codes[lane]) for lane in range(share, self._lanes, len(shares))
                ]
        kind = Signal(WorkKind)
        last = Signal()
        m.d.sync += [
            kind.as_value().eq(
                Mux(working, self.work.p.kind.as_value(), Mux(do_read, WorkKind.LINEAR.value, WorkKind.IDLE.value))  # type: ignore[attr-defined]
            ),
            last.eq(self.weights.p.last),
        ]
        # One register for each lane that multiplies later, whose operands have some 200 pins at 8 slots.
        later, factors = iter(copies(m, working, _late(self._lanes, self._chunk), name="later")), []
        for lane in range(self._lanes):
            late = lane % self._chained >= _TOGETHER
            value = Mux(working, self.work.p.values[lane], self.weights.p.values[lane])
            held, live = list(block[lane]), list(self.work.p.operands[lane])
            if late:
                held, live = (
                    [carried(m, Const(1), x, name=f"{name}_before_{lane}_{slot}") for slot, x in enumerate(row)]
                    for name, row in (("held", held), ("live", live))
                )
            value = carried(m, Const(1), value, 2 if late else 1)
            factors.append((value, held, live, next(later) if late else working))
        return factors, kind, last

    def _products(self, m: Module, lane: int, factors: Any) -> list[Any]:
        """Return the products of each slot. All registers are ones that a DSP48E2 has, so only ``working`` has a reset."""
        value, held, live, working = factors
        value = carried(m, Const(1), value)
        results = []
        for slot in range(self._slots):
            code = Signal(signed(8), name=f"held_{lane}_{slot}", reset_less=True)
            number = Signal(signed(OPERAND_BITS), name=f"live_{lane}_{slot}", reset_less=True)
            operand = Signal(signed(OPERAND_BITS + 1), name=f"operand_{lane}_{slot}", reset_less=True)
            product = Signal(signed(24), name=f"product_{lane}_{slot}", reset_less=True)
            m.d.sync += [
                code.eq(Mux(working, 0, held[slot])),
                number.eq(Mux(working, live[slot], 0)),
                operand.eq(code + number),
                product.eq(operand * value),
            ]
            results.append(product)
        return results

    def _sums(self, m: Module, level: list[list[Any]], size: int, depth: int) -> list[list[Any]]:
        """Return sums of ``size`` neighbours, two more in each cycle: a product is added to the sum of the DSP beside it."""
        results = []
        for first in range(0, len(level), size):
            total: list[Any] = [0] * self._slots
            for place in range(first, first + size, _TOGETHER):
                width = self._widths[depth + (place - first + 1).bit_length()]
                added = [
                    Signal(signed(width), name=f"sum_{depth}_{place}_{s}", reset_less=True) for s in range(self._slots)
                ]
                for slot, sink in enumerate(added):
                    m.d.sync += sink.eq(total[slot] + level[place][slot] + level[place + 1][slot])
                total = added
            results.append(total)
        return results

    def _delay(self, m: Module, kind: Any, last: Any) -> tuple[Any, Any]:
        later = Signal(WorkKind)
        end = Signal()
        m.d.sync += [later.eq(kind), end.eq(last)]
        return later, end

    def _taps(self, m: Module, depth: int, level: list[list[Any]], kind: Any, last: Any) -> None:
        for lanes, port, kind_of_port in (
            (self._chunk, self.scores, WorkKind.SCORES),
            (self._lanes // self._chunk, self.columns, WorkKind.COLUMNS),
        ):
            if lanes == 1 << depth:
                m.d.comb += port.valid.eq(kind == kind_of_port)
                for lane, sums in enumerate(level):
                    m.d.comb += [port.payload[lane][slot].eq(total) for slot, total in enumerate(sums)]
        if len(level) == 1:
            m.d.comb += [
                Cat(self.sums.p.sums[slot] for slot in range(self._slots)).eq(
                    Cat(total[: 16 + depth] for total in level[0])
                ),
                self.sums.p.last.eq(last),
                self.sums.valid.eq(kind == WorkKind.LINEAR),
            ]


def _widths(lanes: int, chunk: int, query_bits: int) -> list[int]:
    """Return the signed bits of a sum of 2**depth products, as wide as the outputs of that level or above require."""
    results = []
    for depth in range(lanes.bit_length()):
        width = 16 + depth
        if 1 << depth <= chunk:
            width = query_bits + 8 + depth
        if 1 << depth <= lanes // chunk:
            width = max(width, 24 + depth)
        results.append(width)
    return results


def _chained(lanes: int, chunk: int) -> int:
    """Return the lanes of a chain: no output takes a sum from within a chain."""
    return min(_CHAINED, chunk, lanes // chunk)


def _late(lanes: int, chunk: int) -> int:
    """Return the lanes that multiply one cycle later."""
    chained = _chained(lanes, chunk)
    return lanes // chained * max(0, chained - _TOGETHER)
