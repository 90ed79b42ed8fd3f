"""Compare the float arithmetic of the shaders with exact arithmetic on random and adversarial operands."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray

from edgedec.runtime.gpu.kernels.head import HeadLayout
from edgedec.runtime.gpu.kernels.kernel import Count, Groups
from edgedec.runtime.gpu.kernels.source import ShaderBuffer, ShaderOptions, assemble
from tests.runtime.gpu.kernels.support.bench import Bench

F32 = NDArray[np.float32]
U32 = NDArray[np.uint32]
LAYOUT = HeadLayout(rows=1, results=1, blocks=1)
OPTIONS = ShaderOptions(head=LAYOUT)

_EACH = """
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) place: vec3<u32>) {
    start();
    let i = place.x + place.y * 65535u * 64u;
    if (i >= COUNT) { return; }
    let x = a[i];
    let y = b[i];
    let z = c[i];
    out[i] = EXPRESSION;
}
"""


def compute(
    bench: Bench, expression: str, *operands: F32 | U32 | NDArray[np.int32], parts: tuple[str, ...] = ()
) -> U32:
    """Return the bits of an expression of x, y and z for each element of the operands, which are read as uint32."""
    count = len(operands[0])
    words = [operand.view(np.uint32) for operand in operands] + [np.zeros(count, np.uint32)] * (3 - len(operands))
    kernel = assemble(
        "each",
        OPTIONS,
        buffers=(
            *(ShaderBuffer(name=name, element="u32") for name in "abc"),
            ShaderBuffer(name="out", element="u32", access="read_write"),
        ),
        parts=(*parts, _EACH.replace("EXPRESSION", expression)),
        constants={"COUNT": count},
        groups=Groups(x=Count(constant=min(-(-count // 64), 65535)), y=Count(constant=-(-count // 64), divisor=65535)),
    )
    buffers = dict(zip("abc", words, strict=True)) | {"head": LAYOUT.new(), "out": np.zeros(count, np.uint32)}
    return bench.run(kernel, buffers)["out"][:count]


def as_float(name: str) -> str:
    return f"bitcast<f32>({name})"


def numbers(seed: int, count: int, *, subnormal: bool = False, wide: bool = True) -> F32:
    """Return numbers of all magnitudes, some with few bits, and some special ones."""
    rng = np.random.default_rng(seed)
    low = 0 if subnormal else 1
    exponents = rng.integers(low, 255, count) if wide else rng.integers(100, 150, count)
    fractions = rng.integers(0, 1 << 23, count)
    kinds = rng.integers(0, 4, count)
    fractions[kinds == 0] &= -1 << 20  # few bits
    fractions[kinds == 1] |= (1 << 20) - 1  # many ones
    bits = rng.integers(0, 2, count) << 31 | exponents << 23 | fractions
    return bits.astype(np.uint32).view(np.float32)


def same(made: U32, right: F32, operands: tuple[F32, ...] = ()) -> None:
    """Check bits; every NaN is equal."""
    both_nan = np.isnan(made.view(np.float32)) & np.isnan(right)
    wrong = np.flatnonzero((made != right.view(np.uint32)) & ~both_nan)
    if len(wrong):
        i = int(wrong[0])
        raise AssertionError(
            f"{len(wrong)} of {len(made)} differ, first {[hex(o.view(np.uint32)[i]) for o in operands]}: "
            f"{made[i]:#x}, not {right.view(np.uint32)[i]:#x}"
        )


SPECIAL = np.array(
    [
        *(0, 0x80000000, 1, 0x80000001, 0x7FFFFF, 0x800000, 0x3F800000, 0xBF800000, 0x7F7FFFFF, 0x7F800000, 0xFF800000),
        *(0x7FC00000, 0x3F7FFFFF, 0x3F800001, 0x4B000000, 0x4B7FFFFF, 0x33800000, 0x00FFFFFF),
    ],
    np.uint32,
).view(np.float32)


FEW, MANY = 1 << 15, 1 << 20
# The first ring has few numbers on one adapter, the second ring many on each.
counts = pytest.mark.parametrize("count", [FEW, pytest.param(MANY, marks=pytest.mark.thorough)], ids=["few", "many"])


def pairs(count: int) -> tuple[F32, F32]:
    x, y = np.meshgrid(SPECIAL, SPECIAL)
    return (
        np.concatenate([numbers(1, count, subnormal=True), x.reshape(-1)]),
        np.concatenate([numbers(2, count, subnormal=True), y.reshape(-1)]),
    )


@pytest.mark.thorough(sample=1)
@counts
def test_quotients_are_exact(gpu_device: Bench, count: int) -> None:
    x, y = pairs(count)
    with np.errstate(all="ignore"):
        right = x / y
    same(compute(gpu_device, f"bitcast<u32>(div({as_float('x')}, {as_float('y')}))", x, y), right, (x, y))


@pytest.mark.thorough(sample=1)
@counts
def test_roots_are_exact(gpu_device: Bench, count: int) -> None:
    x = np.concatenate([np.abs(numbers(3, count, subnormal=True)), SPECIAL])
    # Squares and their neighbours, whose roots are halfway between two floats or just beside.
    half = (np.arange(count >> 4, dtype=np.float64) * 2 + 2**24 + 1) / 2**24
    x = np.concatenate([x, np.float32(half**2), np.nextafter(np.float32(half**2), np.float32(9))])
    with np.errstate(all="ignore"):
        right = np.sqrt(x)
    same(compute(gpu_device, f"bitcast<u32>(root({as_float('x')}))", x), right, (x,))


@pytest.mark.thorough(sample=1)
@counts
def test_conversions_of_integers_are_exact(gpu_device: Bench, count: int) -> None:
    rng = np.random.default_rng(4)
    values = rng.integers(-(2**31), 2**31, count, dtype=np.int64).astype(np.int32)
    values >>= rng.integers(0, 31, values.size).astype(np.int32)
    values[:6] = 0, -1, 2**31 - 1, -(2**31), (1 << 24) + 1, -(1 << 24) - 3
    same(compute(gpu_device, "bitcast<u32>(float_of(bitcast<i32>(x)))", values), values.astype(np.float32))


def exact_fma(x: F32, y: F32, z: F32) -> F32:
    """Return x * y + z with one rounding.

    In float64 the product is exact. Its sum with z is rounded to odd, which makes the second rounding right.
    """
    with np.errstate(all="ignore"):
        product = x.astype(np.float64) * y.astype(np.float64)
        wide = z.astype(np.float64)
        total = product + wide
        second = total - product
        error = (product - (total - second)) + (wide - second)
        bits = total.view(np.int64)
        odd = (bits & 1) == 1
        inexact = np.isfinite(total) & (error != 0) & ~odd
        toward = np.where((error > 0) == (total > 0), 1, -1)
        bits = np.where(inexact, np.where(toward > 0, bits + 1, bits - 1), bits)
        # After a step down in magnitude an even significand becomes odd, as it must.
        return bits.view(np.float64).astype(np.float32)


def test_the_judge_of_fma_is_exact() -> None:
    x, y, z = (numbers(seed, 2000) for seed in (5, 6, 7))
    with np.errstate(over="ignore"):
        z[::2] = (-(x.astype(np.float64) * y)).astype(np.float32)[::2]
    made = exact_fma(x, y, z)
    for i in range(len(x)):
        if np.isfinite(made[i]) and np.isfinite([x[i], y[i], z[i]]).all():
            exact = Fraction(float(x[i])) * Fraction(float(y[i])) + Fraction(float(z[i]))
            below, above = (
                (Fraction(float(np.nextafter(made[i], np.float32(s * np.inf)))) for s in (-1, 1))
                if abs(made[i]) < 3e38
                else (exact, exact)
            )
            middle = Fraction(float(made[i]))
            assert abs(exact - middle) <= min(abs(exact - below), abs(exact - above)) or below == above


def ties(count: int, least: int, most: int) -> tuple[F32, F32, F32]:
    """Return factors and addends between 2^least and 2^most whose sums are just beside the middle of two floats.

    With k in the product, (1 + k / 2^23) * (1 - (2 k - 1) / 2^24) = 1 + 1 / 2^24 - a little, which rounds to 1.
    """
    rng = np.random.default_rng(20)
    k = rng.integers(1, 1000, count)
    exponents = rng.integers(least, most, count)
    z = rng.choice([-1, 1], count) * (2**23 + rng.integers(0, 2**23, count)) * np.exp2(exponents - 23.0)
    x = rng.choice([-1, 1], count) * (1 + k * 2.0**-23)
    y = (1 - (2 * k - 1) * 2.0**-24) * np.exp2(exponents - 24.0)
    return x.astype(np.float32), y.astype(np.float32), z.astype(np.float32)


def triples(count: int, *, subnormal: bool) -> tuple[F32, F32, F32]:
    x, y = numbers(8, count, subnormal=subnormal), numbers(9, count, subnormal=subnormal)
    z = numbers(10, count, subnormal=subnormal)
    with np.errstate(all="ignore"):
        product = (x.astype(np.float64) * y).astype(np.float32)
    rng = np.random.default_rng(11)
    near = rng.integers(0, 4, count)
    close = (-product).view(np.uint32) + rng.integers(-2, 3, count).astype(np.uint32)
    z = np.where(near == 0, close.view(np.float32), z)  # cancels the product
    scale = np.exp2(rng.integers(-30, 30, count).astype(np.float32)).astype(np.float32)
    with np.errstate(all="ignore"):
        z = np.where(near == 1, product * scale, z).astype(np.float32)
    special = [part.reshape(-1) for part in np.meshgrid(SPECIAL, SPECIAL, SPECIAL)]
    a, b, c = (np.concatenate(parts) for parts in zip((x, y, z), special, ties(count >> 4, -100, 120), strict=True))
    return a, b, c


@pytest.mark.thorough(sample=1)
@counts
def test_fused_products_are_exact(gpu_device: Bench, count: int) -> None:
    x, y, z = triples(count, subnormal=True)
    expression = f"bitcast<u32>(fused({as_float('x')}, {as_float('y')}, {as_float('z')}))"
    same(compute(gpu_device, expression, x, y, z, parts=("fma_exact",)), exact_fma(x, y, z), (x, y, z))


@pytest.mark.thorough(sample=1)
@counts
def test_fused_products_of_usual_numbers_are_exact(gpu_device: Bench, count: int) -> None:
    """Cover what exp needs: factors up to 128, and an addend that is not small, or a product beside it that is tiny."""
    rng = np.random.default_rng(18)
    x, y = numbers(19, count, wide=False), rng.uniform(-1, 1, count).astype(np.float32)
    x = np.where(np.abs(x) < 128, x, y).astype(np.float32)
    z = rng.choice([-1, 1], count) * np.exp2(rng.uniform(-20, 24, count))
    near = rng.integers(0, 3, count)
    z = np.where(near == 0, -(x.astype(np.float64) * y) * (1 + rng.integers(-2, 3, count) * 2.0**-23), z)
    z = np.where(near == 1, np.rint(z), z).astype(np.float32)
    z[:9], x[9:18] = 0, 0
    x, y, z = (np.concatenate(parts) for parts in zip((x, y, z), ties(count >> 4, -20, 24), strict=True))
    expression = f"bitcast<u32>(fused_usual({as_float('x')}, {as_float('y')}, {as_float('z')}))"
    same(compute(gpu_device, expression, x, y, z, parts=("fma_exact",)), exact_fma(x, y, z), (x, y, z))


@pytest.mark.thorough(sample=1)
def test_an_adapters_own_fma_is_near(gpu_device: Bench) -> None:
    x, y, z = (numbers(seed, 1 << 12, wide=False) for seed in (15, 16, 17))
    expression = f"bitcast<u32>(fused({as_float('x')}, {as_float('y')}, {as_float('z')}))"
    made = compute(gpu_device, expression, x, y, z, parts=("fma_native",)).view(np.float32)
    size = np.abs(x.astype(np.float64) * y) + np.abs(z)
    assert (np.abs(made - exact_fma(x, y, z).astype(np.float64)) <= size * 2**-23).all()


@pytest.mark.thorough(sample=1)
@counts
def test_halves_are_exact(gpu_device: Bench, count: int) -> None:
    x = np.concatenate([numbers(12, count, wide=False), numbers(13, count >> 2), SPECIAL])
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    finite = every[np.isfinite(every)]
    middles = (np.sort(finite)[:-1] + np.sort(finite)[1:]) / np.float32(2)
    x = np.concatenate([x, every, middles, np.nextafter(middles, np.float32(np.inf))]).astype(np.float32)
    limit = np.float32(65504)
    right = np.where(np.isnan(x), x, np.clip(x, -limit, limit)).astype(np.float16)
    made = compute(gpu_device, f"to_half({as_float('x')})", x, parts=("half",)).astype(np.uint16).view(np.float16)
    same(made.astype(np.float32).view(np.uint32), right.astype(np.float32), (x,))
    halves = np.arange(1 << 16, dtype=np.uint32)
    back = compute(gpu_device, "bitcast<u32>(from_half(x))", halves, parts=("half",))
    same(back, every)


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("operation", ["dot_packed", "dot_shifts"])
def test_products_of_bytes_are_exact(gpu_device: Bench, operation: str) -> None:
    x, y = np.random.default_rng(14).integers(0, 2**32, (2, 1 << 18), dtype=np.uint64).astype(np.uint32)
    x[0] = y[0] = 0x80808080
    made = compute(gpu_device, "bitcast<u32>(dot4(x, y))", x, y, parts=(operation,)).view(np.int32)
    a, b = (v[:, None].copy().view(np.int8).astype(np.int32) for v in (x, y))
    assert np.array_equal(made, (a * b).sum(axis=1))
