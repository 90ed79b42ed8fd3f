from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgedec.hw.residual_path import ResidualPath, load_item_bytes
from tests.hw.streams import run

MOST = (1 << 26) - 1


def as_items(x: np.ndarray[Any, Any]) -> list[int]:
    """[words, 5, slots] -> what lies in memory."""
    return [sum((int(v) & 0xFFFFFFFF) << (32 * i) for i, v in enumerate(word.reshape(-1))) for word in x]


def as_words(x: np.ndarray[Any, Any], last: int | None = -1) -> list[dict[str, Any]]:
    end = len(x) - 1 if last == -1 else last
    return [{"values": word.tolist(), "last": i == end} for i, word in enumerate(x)]


def test_item_sizes() -> None:
    assert [load_item_bytes(slots) for slots in (1, 2, 3, 4, 8)] == [32, 64, 64, 128, 256]


@pytest.mark.parametrize("idle", [0.0, 0.4])
@pytest.mark.parametrize("stall", [0.0, 0.5])
@pytest.mark.parametrize("slots", [1, 3])
def test_loads_and_adds(slots: int, idle: float, stall: float) -> None:
    rng, words = np.random.default_rng(1), 7
    x, a, b, c = (rng.integers(-MOST, MOST + 1, (words, 5, slots)) for _ in range(4))
    first = np.clip(x + a, -MOST, MOST)  # not onward
    second = np.clip(first + b, -MOST, MOST)  # in two additions
    third = np.clip(second + c, -MOST, MOST)
    found = run(
        ResidualPath(slots=slots, depth=words),
        {
            "loads": [words],
            "items": as_items(x),
            "additions": [
                {"start": 0, "words": words, "more": 0, "onward": 0},
                {"start": 0, "words": 4, "more": 1, "onward": 1},
                {"start": 4, "words": 3, "more": 0, "onward": 1},
                {"start": 0, "words": words, "more": 0, "onward": 1},
            ],
            "input": as_words(a, None) + as_words(b, None) + as_words(c, 2),
        },
        {"output": 3 * words},
        idle={"input": idle, "items": idle, "additions": idle},
        stall=stall,
    )
    assert found["output"] == as_words(x) + as_words(second) + as_words(third)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"slots": 9}, "slots must be an integer from 1 to 8, not 9"),
        ({"depth": 0}, "depth must be an integer from 1 to 65536, not 0"),
    ],
)
def test_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ResidualPath(**{"slots": 1, "depth": 4, **changed})
