"""Test distances so large that their exponential is 0, up to the largest; random ones are near the exponent's range."""

from __future__ import annotations

from typing import Any

import pytest

from edgedec.hw.attention.softmax import Softmax
from tests.hw.support.bench_streams import run
from tests.hw.support.reference_exponentials import chance


@pytest.mark.parametrize("shift", [0, 1, 4, 15, 24])
def test_distances_beyond_the_last_exponent_have_no_chance(shift: int) -> None:
    """Set one bit of the quotient after the other, of which the highest is far above the exponent's."""
    items: list[dict[str, Any]] = []
    for bit in range(11, 41 - shift):
        quotient = (1 << bit) + 3
        factor = 1 if quotient << shift < 1 << 26 else 1 << 15
        distance = (quotient << shift) // factor
        items.append({"distances": [[distance]], "visible": [[1]], "factors": [factor], "shifts": [shift], "last": 0})
    outputs = run(Softmax(slots=1), {"input": items}, {"output": len(items)})["output"]
    chances = [chance(one["distances"][0][0], one["factors"][0], shift) for one in items]
    assert [one["chances"][0][0] for one in outputs] == chances
    assert chances[0] > 0
    assert not any(chances[2:])
