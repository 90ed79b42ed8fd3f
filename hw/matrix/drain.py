"""Conversion of the exact sums of a matrix to its output: a multiplication, a rounding shift, a bias, saturation."""

from typing import Any

from amaranth.hdl import C, Cat, Module, Mux, Signal, Value, signed, unsigned
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out, connect, flipped

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.credit_queue import CreditQueue
from edgedec.hw.blocks.multiply import multiply
from edgedec.hw.blocks.payloads import scale, word, words
from edgedec.hw.blocks.pipeline import carried, check, delayed, round_bit, saturate
from edgedec.hw.blocks.resources import Resources
from edgedec.hw.config import ACCUMULATOR_BITS

__all__ = ["Drain", "matrix_settings", "row_constants", "settings"]

_WIDE, _NARROW = 27, 18  # bits of an output
_FACTOR_BITS = 17  # bits of B
_WEIGHT_SHIFT = 15  # fraction bits of W
_LONGEST_SHIFT = 47  # largest sh
_LOGIT_SHIFT = 11  # sh of a logit, less er
_ROW_SHIFT_BITS = 5  # bits of er
_SCALED_BITS = _WIDE + 2  # the range that a bias can still bring back into the output's, and the rounding bit


def matrix_settings() -> data.StructLayout:
    """Return the settings of a matrix; names of docs/integer-profile.md, "Linear", are in brackets.

    Members:
        pre_shift: [ps] 0 to 7.
        base: [base] clamped to s9, which changes no result.
        weight: [W].
        pair: two matrices whose rows alternate; even rows use base[0] and weight[0], odd ones base[1] and weight[1].
            Without it all rows use the first ones.
        rows: each word of rows has an item of ``row_constants``.
        logits: the language-model head, which has no A and no base.
        wide: the output is s27, not s18.
    """
    return data.StructLayout(
        {
            "pre_shift": unsigned(3),
            "base": data.ArrayLayout(signed(9), 2),
            "weight": data.ArrayLayout(unsigned(16), 2),
            "pair": 1,
            "rows": 1,
            "logits": 1,
            "wide": 1,
        }
    )


def settings(slots: int) -> data.StructLayout:
    """Return ``matrix_settings`` with scales: [A, ea] of each slot's codes."""
    shared = {name: field.shape for name, field in matrix_settings()}
    return data.StructLayout({**shared, "scales": data.ArrayLayout(scale, slots)})


def row_constants(lanes: int = 1) -> stream.Signature:
    """Return a stream of the constants of a word's rows.

    Members:
        bias: bias in units of the output.
        shift: [er].
        weight: [W] in place of the matrix's.
    """
    return stream.Signature(
        data.StructLayout(
            {
                "bias": data.ArrayLayout(signed(_WIDE), lanes),
                "shift": data.ArrayLayout(unsigned(_ROW_SHIFT_BITS), lanes),
                "weight": data.ArrayLayout(unsigned(16), lanes),
            }
        )
    )


class Drain(CostedComponent):
    """Compute out = sat(rs(t * B, sh) + bias); t = rs(acc, ps), B = rs(A * W, 15), sh = base - ea + er within 0..47.

    For the head: logit = rs(t * W, 11 + er), which the same multiplier computes with A = 2^15 and base - ea = 11.

    Parameters:
        slots: number of slots, 1 to 8.
        lanes: elements of a word, 1 to 64.
        per_row: whether each row may have its own W, which costs a second multiplication per lane and slot. Without it
            the W of ``rows`` is ignored: a matrix has one W, or two that alternate.
        pre_shift: whether matrices may have sums beyond s27. Without it ``settings.pre_shift`` is ignored.

    Members:
        input: In(words(32, slots, lanes)). Sums; rs(acc, ps) must fit s27.
        settings: In(stream of ``settings(slots)``). One item per vector, taken before it.
        rows: In(row_constants(lanes)). One item per word of a vector with ``rows``, the same for all slots. Without it
            bias and er are 0. Logits have no bias.
        output: Out(words(32, slots, lanes)). s18 or s27, or a logit s32, which needs no saturation. Lanes after the end
            of the vector are zero if their sums and biases are.

    Latency: 12 cycles from a word's transfer to a valid output, 13 with per_row; settings take effect 4 cycles after
        theirs.
    Throughput: one word per cycle, across vectors too if the next settings are valid. The pipeline never stalls: a word
        enters only if there is room for its result.
    Source: docs/integer-profile.md, "Linear" and "Head". One 27 x 18 multiplication per lane and slot; in addition one
        of 16 x 16 per lane and slot with per_row, two per slot without.
    """

    def __init__(self, *, slots: int, lanes: int = 1, per_row: bool = False, pre_shift: bool = True) -> None:
        check("slots", slots, 1, 8)
        check("lanes", lanes, 1, 64)
        super().__init__(
            lambda: {
                "input": In(words(ACCUMULATOR_BITS, slots, lanes)),
                "settings": In(stream.Signature(settings(slots))),
                "rows": In(row_constants(lanes)),
                "output": Out(words(ACCUMULATOR_BITS, slots, lanes)),
            }
        )
        self._slots, self._lanes, self._per_row = slots, lanes, bool(per_row)
        self._pre_shift = bool(pre_shift)
        self._stages = 11 if per_row else 10
        self._queue = CreditQueue(shape=word(ACCUMULATOR_BITS, slots, lanes), stages=self._stages)

    @property
    def resources(self) -> Resources:
        slots, lanes, per_row, pre_shift = self._slots, self._lanes, self._per_row, self._pre_shift
        shifted = 357 if pre_shift else 285  # flip-flops of an element whose shift is that of its matrix
        element = Resources(lut=460 if pre_shift else 342, ff=307 if per_row else shifted, dsp=1)
        if per_row:
            element += Resources(ff=58, dsp=1)
        per_slot = Resources(lut=91, ff=164) if per_row else Resources(lut=103, ff=220, dsp=2)
        per_lane = Resources(lut=47, ff=49) if per_row else Resources(lut=27, ff=33)
        pipeline = element * (slots * lanes) + per_slot * slots + per_lane * lanes + Resources(lut=37, ff=50)
        return pipeline + self._queue.resources

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        source, stages = self.input, self._stages
        m.submodules.results = queue = self._queue
        ended = Signal()
        now = Signal(self._layout())
        ready = Signal()
        self._prepare(m, now, ready, ended)
        offered = ready & (~now.rows | self.rows.valid)
        result = Signal(word(ACCUMULATOR_BITS, self._slots, self._lanes))
        m.d.comb += [
            source.ready.eq(queue.room & offered),
            self.rows.ready.eq(queue.room & ready & source.valid & now.rows),
            queue.enter.eq(source.valid & source.ready),
            ended.eq(queue.enter & source.p.last),
            queue.result.eq(result),
            result.last.eq(carried(m, 1, source.p.last, stages)),
        ]
        connect(m, queue.output, flipped(self.output))
        seconds = self._seconds(m, now)
        shared = [[self._picked(m, of, second) for of in now.slots] for second in seconds]
        wide = carried(m, 1, now.wide, stages - 1)
        logits = carried(m, 1, now.logits, stages - 3)
        exact = carried(m, 1, logits, 2)
        for lane in range(self._lanes):
            second, row = seconds[lane % 2], self.rows.p
            bias = carried(m, 1, Mux(now.rows & ~now.logits, row.bias[lane], 0), stages - 2)
            extra = carried(m, 1, Mux(now.rows, row.shift[lane], 0))
            whole = Mux(second, now.weight[1], now.weight[0])
            weight = carried(m, 1, Mux(now.rows, row.weight[lane], whole), name="weight") if self._per_row else None
            for slot, (kept, base) in enumerate(shared[lane % 2]):
                t = self._pre_shifted(m, source.p["values"][lane][slot], now.pre_shift)
                factor = self._factor(m, kept, weight)
                value = self._scaled(m, f"multiplier_{lane}_{slot}", t, factor, self._shift(m, base, extra), logits)
                # Adding the bit that was shifted out last to itself makes it the carry into the sum above it.
                total = carried(m, 1, (value + Cat(value[0], bias).as_signed())[1:][:ACCUMULATOR_BITS].as_signed())
                near = total[:_SCALED_BITS].as_signed()
                limited = Mux(wide, saturate(near, _WIDE), saturate(near, _NARROW))
                m.d.comb += result["values"][lane][slot].eq(carried(m, 1, Mux(exact, total, limited), name="result"))
        return m

    def _layout(self) -> data.StructLayout:
        """Return the layout of prepared settings, for even and odd rows. ``factors`` is B, or A if B is computed per row."""
        factors = data.ArrayLayout(unsigned(16), 1) if self._per_row else data.ArrayLayout(unsigned(_FACTOR_BITS), 2)
        shift = range(1 - (1 << _ROW_SHIFT_BITS), _LONGEST_SHIFT + 1)  # beyond, no er makes a difference
        slot = data.StructLayout({"factors": factors, "shifts": data.ArrayLayout(shift, 2)})
        shared = {name: field.shape for name, field in matrix_settings() if name != "base"}
        return data.StructLayout({**shared, "slots": data.ArrayLayout(slot, self._slots)})

    def _prepare(self, m: Module, now: Any, ready: Signal, ended: Signal) -> None:
        """Pass ``settings`` through three registers into ``now``, which is valid while ``ready``."""
        incoming = self.settings
        do_take = Signal()
        enable = Signal()
        valid = delayed(m, enable, incoming.valid, 3)
        m.d.comb += [
            do_take.eq(valid & (~ready | ended)),
            enable.eq(~valid | do_take),
            incoming.ready.eq(enable),
        ]
        with m.If(ended):
            m.d.sync += ready.eq(0)
        with m.If(do_take):
            m.d.sync += ready.eq(1)
        for name, _ in matrix_settings():
            if name != "base":
                kept = carried(m, enable, Value.cast(incoming.p[name]), 3)
                with m.If(do_take):
                    m.d.sync += Value.cast(now[name]).eq(kept)
        weights = [carried(m, enable, incoming.p.weight[i]) for i in range(2)]
        for slot in range(self._slots):
            of, to = incoming.p.scales[slot], now.slots[slot]
            mantissa = carried(m, enable, Mux(incoming.p.logits, 1 << _WEIGHT_SHIFT, of.mantissa))
            for i in range(2):
                unclamped = carried(
                    m, enable, Mux(incoming.p.logits, _LOGIT_SHIFT, incoming.p.base[i] - of.exponent), 2
                )
                shift = carried(m, enable, _clamped(unclamped, 1 - (1 << _ROW_SHIFT_BITS)))
                with m.If(do_take):
                    m.d.sync += to.shifts[i].eq(shift)
            for i in range(len(to.factors)):
                factor = (
                    carried(m, enable, mantissa, 2)
                    if self._per_row
                    else carried(m, enable, _rounded(carried(m, enable, mantissa * weights[i])))
                )
                with m.If(do_take):
                    m.d.sync += to.factors[i].eq(factor)

    def _seconds(self, m: Module, now: Any) -> list[Value]:
        """Return whether the even lanes, and the odd ones, of the offered word are odd rows of a pair."""
        odd = Signal()  # the first row of the word is odd
        if self._lanes % 2:
            with m.If(self.input.valid & self.input.ready):
                m.d.sync += odd.eq(~odd & ~self.input.p.last)
        return [now.pair & odd, now.pair & ~odd]

    def _picked(self, m: Module, of: Any, second: Value) -> tuple[Value, Value]:
        """Return a slot's factor and shift for the even or the odd row of a pair, one register later."""
        factor = of.factors[0] if self._per_row else Mux(second, of.factors[1], of.factors[0])
        return carried(m, 1, factor), carried(m, 1, Mux(second, of.shifts[1], of.shifts[0]), name="shift")

    def _pre_shifted(self, m: Module, acc: Value, shift: Value) -> Signal:
        """Return t, 2 registers later; 3 with per_row."""
        if not self._pre_shift:
            result: Signal = carried(m, 1, acc[:_WIDE].as_signed(), 3 if self._per_row else 2)
            return result
        floor = carried(m, 1, (acc >> shift)[:_WIDE].as_signed())
        half = carried(m, 1, round_bit(acc, shift))
        result = carried(m, 1, (floor + half)[:_WIDE].as_signed(), 2 if self._per_row else 1)
        return result

    def _factor(self, m: Module, kept: Value, weight: Value | None) -> Signal:
        """Return B: with per_row 2 registers after A (``kept``) and the row's W; without, ``kept`` is B, and is delayed."""
        product = kept if weight is None else _rounded(carried(m, 1, kept * weight, name="weighted"))
        result: Signal = carried(m, 1, product)
        return result

    def _shift(self, m: Module, base: Value, extra: Value) -> tuple[Value, Value]:
        """Return the multiple of 16 in the shift, as late as the product, and the rest of it one register later."""
        unclamped = carried(m, 1, base + extra)
        late = carried(m, 1, _clamped(unclamped, 0)[:6], self._stages - 7, name="shift")
        return Cat(C(0, 4), late[4:]), carried(m, 1, late[:4], name="fine_shift")

    def _scaled(
        self, m: Module, name: str, t: Signal, factor: Value, shifts: tuple[Value, Value], logits: Value
    ) -> Signal:
        """Return t * B >> sh above the bit that was shifted out last, clamped to what a bias can bring back; 6
        registers.

        Logits, one register before the last, are not clamped.
        """
        product = multiply(m, name, t, factor)
        coarse = carried(m, 1, Cat(0, product).as_signed() >> shifts[0])
        fine = carried(m, 1, coarse >> shifts[1])
        top = fine[_SCALED_BITS - 1 :]
        inside = top.all() | ~top.any() | logits
        limit = Mux(fine[-1], -(1 << (_SCALED_BITS - 1)), (1 << (_SCALED_BITS - 1)) - 1)
        clamped: Signal = carried(m, 1, Mux(inside, fine, limit)[: ACCUMULATOR_BITS + 1].as_signed())
        return clamped


def _clamped(shift: Value, least: int) -> Value:
    """Return ``shift`` clamped to ``least`` .. 47."""
    result: Value = Mux(shift < least, least, Mux(shift > _LONGEST_SHIFT, _LONGEST_SHIFT, shift))
    return result


def _rounded(product: Value) -> Value:
    """Return rs(product, 15)."""
    return (product[_WEIGHT_SHIFT:] + product[_WEIGHT_SHIFT - 1])[:_FACTOR_BITS]
