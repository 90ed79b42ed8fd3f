"""Test the fields of a window; test_lowering.py compiles models that have one, and refuses what does not fit."""

from __future__ import annotations

import pytest

from edgedec.graph.graph import KvState
from edgedec.hw.compiler.attention_fields import window_fields


@pytest.mark.parametrize(
    ("window", "sinks", "fields"),
    [
        (None, 0, (0, 0)),
        (1000, 4, (1000, 4)),
        (1000, 0, (1000, 0)),
        ((1 << 17) - 1, 4, ((1 << 17) - 1, 4)),  # the field has 17 bits
        (1 << 17, 4, (0, 0)),  # a cache has at most 2^16 positions, so that nothing is hidden
        (1000, 4096, (1000, 4096)),
        (1000, 4097, (1000, 4096)),  # all positions; another bit would be lost
    ],
)
def test_a_window_has_its_size_and_its_sinks(window: int | None, sinks: int, fields: tuple[int, int]) -> None:
    state = KvState(name="layer", kv_heads=2, head_dim=8, window=window, sinks=sinks)
    assert tuple(window_fields(state, 4096).values()) == fields
