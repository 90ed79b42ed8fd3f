"""Test the rounding of differences that end at the half of a unit, which random values hardly ever do."""

from __future__ import annotations

import numpy as np
import pytest

from edgedec.hw.attention.rotary import Rotary
from tests.hw.attention.test_rotary import items, turned
from tests.hw.support.bench_streams import run
from tests.hw.support.make_vectors import from_words, to_words


@pytest.mark.parametrize("sign", [1, -1])
def test_a_difference_of_half_a_unit_is_rounded_up(sign: int) -> None:
    """Rotate pairs (1, 0) and (3, 1) by angles whose products are halves of 2^14 and their neighbours."""
    half = 1 << 13
    cos = np.array([[sign * half, sign * half - 1, sign * half + 1, half]])
    sin = np.array([[0, half, -half, sign]])
    x = np.array([[1, 1, 1, 3, 0, 0, 0, sign * half]])
    words = to_words(x, 1)
    collected = run(
        Rotary(slots=1, head_dim=8),
        {
            "angles": [{"cos": c, "sin": s} for c, s in zip(items(cos, 1), items(sin, 1), strict=True)],
            "input": words,
        },
        {"output": len(words)},
    )["output"]
    assert from_words(collected, [8])[0].tolist() == turned(x, cos, sin).tolist()
