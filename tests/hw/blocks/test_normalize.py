from __future__ import annotations

import random

import numpy as np
import pytest

from edgedec.hw.blocks.normalize import Normalize
from edgedec.reference.integer_profile.numbers import normalize16
from tests.hw.support.bench_streams import run


def expected(x: int, mantissa_bits: int) -> tuple[int, int]:
    e = x.bit_length()
    return x >> e - mantissa_bits if e >= mantissa_bits else x << mantissa_bits - e, e


@pytest.mark.rtl(sample=1)
@pytest.mark.parametrize(("bits", "mantissa_bits"), [(1, 1), (8, 3), (9, 9), (10, 1)])
def test_all_small_values_follow_the_definition(bits: int, mantissa_bits: int) -> None:
    values = range(1 << bits)
    component = Normalize(bits=bits, mantissa_bits=mantissa_bits)
    actual = run(component, {"input": [{"value": x, "tag": 0} for x in values]}, {"output": len(values)})["output"]
    assert [(y["mantissa"], y["length"]) for y in actual] == [expected(x, mantissa_bits) for x in values]


@pytest.mark.rtl(sample=3)
@pytest.mark.parametrize(("bits", "mantissa_bits", "tag_bits"), [(26, 16, 3), (49, 32, 3), (32, 16, 0)])
@pytest.mark.parametrize(("idle", "stall"), [(0.0, 0.0), (0.4, 0.4), (0.0, 0.7)])
def test_widths_of_the_profile_follow_the_definition(
    bits: int, mantissa_bits: int, tag_bits: int, idle: float, stall: float
) -> None:
    rng = random.Random(3)
    values = [0, *(1 << k for k in range(bits)), *((1 << k) - 1 for k in range(1, bits + 1))]
    values += [rng.getrandbits(rng.randrange(1, bits + 1)) for _ in range(30)]
    items = [{"value": x, "tag": i % (1 << tag_bits)} for i, x in enumerate(values)]
    cycles: dict[str, list[int]] = {}
    component = Normalize(bits=bits, mantissa_bits=mantissa_bits, tag_bits=tag_bits)
    actual = run(component, {"input": items}, {"output": len(items)}, idle=idle, stall=stall, cycles=cycles)["output"]
    assert [(y["mantissa"], y["length"]) for y in actual] == [expected(x, mantissa_bits) for x in values]
    assert [y["tag"] for y in actual] == [item["tag"] for item in items]
    if mantissa_bits == 16:
        nonzero = np.array([x for x in values if x])
        mantissas, lengths = normalize16(nonzero)
        assert [(y["mantissa"], y["length"]) for x, y in zip(values, actual, strict=True) if x] == list(
            zip(mantissas.tolist(), lengths.tolist(), strict=True)
        )
    if not idle and not stall:
        assert cycles["output"][0] - cycles["input"][0] == (bits - 1).bit_length() + 1
        assert cycles["output"][-1] - cycles["output"][0] == len(items) - 1


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"bits": 8}, "bits must be an integer from 16 to 64, not 8"),
        ({"bits": 8, "mantissa_bits": 0}, "mantissa_bits must be an integer from 1 to 64, not 0"),
        ({"bits": 26, "tag_bits": 9}, "tag_bits must be an integer from 0 to 8, not 9"),
    ],
)
def test_wrong_parameters_are_refused(parameters: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        Normalize(**parameters)


def test_defaults_are_no_tag_and_sixteen_bits() -> None:
    component = Normalize(bits=20)
    assert component.input.payload.shape()["tag"].width == 0
    assert component.output.payload.shape()["mantissa"].width == 16
