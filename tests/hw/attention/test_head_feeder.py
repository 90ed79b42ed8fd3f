from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgedec.hw.attention.head_feeder import HeadFeeder
from tests.hw.support.bench_streams import run
from tests.hw.support.make_vectors import to_words


@pytest.mark.rtl(sample=1)
@pytest.mark.parametrize("stall", [0.0, {"items": 0.8}, {"once": 0.9}, 0.5])
@pytest.mark.parametrize(
    ("slots", "head_dim", "chunk", "heads", "group"),
    [(1, 4, 4, 3, 1), (3, 6, 2, 6, 3), (2, 3, 1, 4, 4), (1, 16, 16, 2, 2), (2, 8, 4, 1, 1)],
)
def test_heads_are_repeated_as_often_as_they_are_shared(
    slots: int, head_dim: int, chunk: int, heads: int, group: int, stall: Any
) -> None:
    rng = np.random.default_rng(heads)
    x = rng.integers(-128, 128, (slots, heads // group * head_dim))
    items = x.T.reshape(heads // group, head_dim // chunk, chunk, slots)
    cycles: dict[str, list[int]] = {}
    component = HeadFeeder(width=8, slots=slots, depth=x.shape[1], head_dim=head_dim, chunk=chunk)
    # The driver writes an element per cycle from the start: each one is there before it is read.
    collected = run(
        component,
        {"write": to_words(x, 1), "attends": [{"heads": heads, "group": group}] * 2},
        {"items": 2 * heads * len(items[0]), "once": 2 * len(items) * len(items[0])},
        stall=stall,
        cycles=cycles,
    )
    again = items[np.arange(heads) // group].reshape(-1, chunk, slots).tolist()
    assert collected["items"] == again * 2
    assert collected["once"] == items.reshape(-1, chunk, slots).tolist() * 2
    if not stall:
        assert cycles["items"][0] - cycles["attends"][0] == chunk + 4
        assert cycles["items"][heads * len(items[0]) - 1] - cycles["items"][0] == heads * head_dim - chunk


@pytest.mark.rtl
def test_as_many_heads_as_an_instruction_can_name() -> None:
    """Read 255 heads of one element twice; 51 share one of the vector."""
    elements = [[3], [-4], [5], [-6], [7]]
    component = HeadFeeder(width=8, slots=1, depth=5, head_dim=1, chunk=1)
    inputs = {"write": to_words(np.array(elements).T, 1), "attends": [{"heads": 255, "group": 51}] * 2}
    collected = run(component, inputs, {"items": 2 * 255, "once": 2 * 5})
    assert collected["once"] == [[element] for element in elements] * 2
    assert collected["items"] == [[element] for element in elements for _ in range(51)] * 2


def test_estimate_holds_the_vector() -> None:
    assert HeadFeeder(width=12, slots=4, depth=960, head_dim=96, chunk=16).resources.bram18 == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"chunk": 3}, "chunk must divide 8, not 3"),
        ({"depth": 7}, "depth must be an integer from 8 to 65536, not 7"),
        ({"width": 19}, "width must be an integer from 1 to 18, not 19"),
    ],
)
def test_wrong_parameters_are_refused(changes: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        HeadFeeder(**{"width": 8, "slots": 1, "depth": 16, "head_dim": 8, "chunk": 4, **changes})
