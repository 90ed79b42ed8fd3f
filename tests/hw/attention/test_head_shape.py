"""Test the ranges of a shape of heads, by its own members and by those of its layout."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest

pytest.importorskip("amaranth", reason="the hardware generator is not installed")

from edgedec.hw.attention.head_shape import HeadShape
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.isa.kv_layout import KvLayout

SHAPE = HeadShape(beat_bytes=64, head_dim=96, chunk=4, slots=2, context=100)  # groups of 16 positions


def test_it_has_the_layout_of_its_members_and_one_lane() -> None:
    assert SHAPE.layout == KvLayout(beat_bytes=64, head_dim=96, chunk=4)
    assert SHAPE.lanes == 1
    with pytest.raises(FrozenInstanceError):
        SHAPE.slots = 3  # type: ignore[misc]


def test_the_context_of_several_sequences_is_counted_in_groups() -> None:
    small: dict[str, Any] = {"beat_bytes": 16, "ports": 1, "slots": 3, "head_dim": 4, "context": 62}
    one, several = (HeadShape.of(AcceleratorConfig(**small, sequences=number)) for number in (1, 2))
    assert (one.several, one.context) == (False, 62)
    assert (several.several, several.context) == (True, 64)


@pytest.mark.parametrize(("name", "least", "most"), [("slots", 1, 8), ("context", 1, 1 << 16), ("lanes", 1, 8)])
def test_the_ends_of_a_range_are_accepted_and_the_next_values_refused(name: str, least: int, most: int) -> None:
    for value in (least, most):
        members: dict[str, Any] = {name: value}
        assert getattr(replace(SHAPE, **members), name) == value
    for value in (least - 1, most + 1):
        members = {name: value}
        with pytest.raises(ValueError, match=f"^{name} must be an integer from {least} to {most}, not {value}$"):
            replace(SHAPE, **members)


def test_lanes_divide_the_positions_of_a_group() -> None:
    assert replace(SHAPE, chunk=16, lanes=4).lanes == 4
    for chunk, lanes in ((16, 8), (4, 3), (32, 4)):
        with pytest.raises(ValueError, match=f"^lanes must be a power of two that divides {64 // chunk}, not {lanes}$"):
            replace(SHAPE, chunk=chunk, lanes=lanes)


def test_the_layout_is_checked_too() -> None:
    with pytest.raises(ValueError, match=r"^chunk must be a power of two that divides 96, not 64$"):
        replace(SHAPE, chunk=64)
