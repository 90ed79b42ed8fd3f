"""Compare the end of a norm with plain integers: reciprocals of roots, products, shifts that round, and saturation."""

from __future__ import annotations

import random
from typing import Any

import pytest

pytest.importorskip("amaranth", reason="the hardware generator is not installed")

from amaranth.sim import Simulator

from edgedec.hw.vector.root_scaler import SCALE_STAGES, RootScaler

Vector = tuple[
    list[tuple[int, int]], int, list[list[int]]
]  # (mantissa, exponent) of each slot, base, elements [n][slots]


def scaled(y: int, mantissa: int, exponent: int, base: int, bits: int) -> int:
    shift = min(max(base + exponent, 0), 47)
    product = y * (((1 << 32) - 1) // mantissa)
    rounded = (product + (1 << shift >> 1)) >> shift
    limit = (1 << (bits - 1)) - 1
    return min(max(rounded, -limit), limit)


def some_vector(rng: random.Random, slots: int, count: int) -> Vector:
    """Draw roots at both ends of their range, sums below 0 and above 47, and elements of all sizes."""
    mantissas = [rng.choice([1 << 15, (1 << 16) - 1, rng.randrange(1 << 15, 1 << 16)]) for _ in range(slots)]
    exponents = [rng.randrange(-40, 42) for _ in range(slots)]
    most = (1 << 26) - 1
    values = [[rng.choice([most, -most, rng.randint(-most, most) >> rng.randrange(27)]) for _ in range(slots)]]
    values += [[rng.randint(-most, most) >> rng.randrange(27) for _ in range(slots)] for _ in range(count - 1)]
    return list(zip(mantissas, exponents, strict=True)), rng.choice([0, 6, 15, 30, 47, 63]), values


def run(slots: int, bits: int, vectors: list[Vector], *, pause: int = 0) -> tuple[list[list[int]], list[int]]:
    """Return the scaled elements of all vectors, and the cycles from each transfer of roots to ``known``.

    Args:
        pause: cycles between the last element of a vector and ``done``.
    """
    dut, out, waits = RootScaler(slots=slots, bits=bits), list[list[int]](), list[int]()

    async def bench(ctx: Any) -> None:
        for roots, base, values in vectors:
            ctx.set(dut.base, base)
            ctx.set(dut.roots.payload, [{"mantissa": mantissa, "exponent": exponent} for mantissa, exponent in roots])
            ctx.set(dut.roots.valid, 1)
            await ctx.tick().until(dut.roots.ready)
            ctx.set(dut.roots.valid, 0)
            waits.append(1)
            while not ctx.get(dut.known):
                await ctx.tick()
                waits[-1] += 1
            for at in range(len(values) + SCALE_STAGES):
                if at < len(values):
                    ctx.set(dut.values, [values[at]])
                if at >= SCALE_STAGES:
                    out.append([int(ctx.get(dut.scaled[0][slot])) for slot in range(slots)])
                ended = at == len(values) - 1 + pause  # the vector is read, and its last elements are in the registers
                ctx.set(dut.done, ended)
                await ctx.tick()

    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    return out, waits


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize(("slots", "bits", "pause"), [(1, 2, 0), (3, 27, 5), (2, 27, 0), (4, 18, 3)])
def test_elements_equal_plain_integers_after_the_documented_cycles(slots: int, bits: int, pause: int) -> None:
    rng = random.Random(f"{slots} {bits}")
    vectors = [some_vector(rng, slots, count) for count in (6, 1, 9)]
    out, waits = run(slots, bits, vectors, pause=pause)
    expected = [
        [scaled(y, *root, base, bits) for y, root in zip(line, roots, strict=True)]
        for roots, base, values in vectors
        for line in values
    ]
    assert out == expected
    assert waits == [19 * slots + 1] * len(vectors)


def test_a_shift_ends_at_0_and_at_47() -> None:
    """Add bases and exponents whose sums are just inside and outside the range."""
    y, root = (1 << 26) - 1, 1 << 15
    places = [(0, -1), (0, 0), (1, -1), (6, -40), (46, 0), (47, 0), (47, 1), (40, 20), (63, 41)]
    out, _ = run(1, 27, [([(root, exponent)], base, [[y], [-y], [1], [-1]]) for base, exponent in places])
    assert out == [[scaled(one, root, exponent, base, 27)] for base, exponent in places for one in (y, -y, 1, -1)]


def test_done_without_a_vector_breaks_the_contract() -> None:
    dut = RootScaler(slots=1, bits=18)

    async def bench(ctx: Any) -> None:
        ctx.set(dut.done, 1)
        await ctx.tick()
        await ctx.tick()

    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    with pytest.raises(AssertionError, match="A vector is done after its factors are known"):
        simulator.run()
