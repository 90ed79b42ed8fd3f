from __future__ import annotations

import random
import re
from dataclasses import fields, replace
from typing import Any

import pytest
from amaranth.hdl import Fragment

from edgedec.errors import BundleError, UsageError
from edgedec.hw.accelerator import Accelerator
from edgedec.hw.compiler.program import result_bytes
from edgedec.hw.config import RING_SLACK, AcceleratorConfig, constant_queues
from edgedec.hw.isa.output_layout import ROWS_OFFSET
from edgedec.hw.plan.estimate import estimate

SMALL = AcceleratorConfig(
    beat_bytes=4,
    ports=1,
    slots=1,
    tile_rows=5,
    context=1,
    width=1,
    hidden=1,
    heads=1,
    kv_heads=1,
    head_dim=2,
    top_k=1,
    prefetch_beats=16,
    instructions=16,
    ultra=False,
)


def test_sizes_follow_from_the_members() -> None:
    config = AcceleratorConfig(beat_bytes=16, tile_rows=40)
    assert (config.groups, config.tile_words) == (6, 8)  # five groups of three columns, and one of one column
    assert AcceleratorConfig().groups == 22


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"beat_bytes": 12}, "beat_bytes must be 4, 8, 16, 32 or 64, not 12"),
        ({"ports": 3}, "ports must be 1, 2 or 4 with at least 4 bytes each, not 3"),
        ({"beat_bytes": 8}, "ports must be 1, 2 or 4 with at least 4 bytes each, not 4"),
        ({"slots": 0}, "slots must be 1 to 8, not 0"),
        ({"slots": 9}, "slots must be 1 to 8, not 9"),
        ({"tile_rows": 12}, "tile_rows must be a multiple of 5, not 12"),
        ({"tile_rows": 0}, "tile_rows must be 5 to 65535, not 0"),
        ({"tile_rows": 1 << 16}, "tile_rows must be 5 to 65535, not 65536"),
        ({"burst_beats": 24}, "burst_beats must be a power of two, not 24"),
        ({"burst_beats": 512}, "burst_beats must be 1 to 256, not 512"),
        ({"context": 0}, "context must be 1 to 65536, not 0"),
        ({"window": -1}, "window must be 0 to 65536, not -1"),
        ({"window": 1}, "window must be 0, or 2 at least, not 1"),
        ({"hidden": (1 << 14) + 1}, "hidden must be 1 to 16384, not 16385"),
        ({"kv_heads": 256}, "kv_heads must be 1 to 255, not 256"),
        ({"head_dim": 4096}, "head_dim must be 2 to 2048, not 4096"),
        ({"clock_hz": 0.0}, "clock_hz must be positive and finite, not 0.0"),
        ({"clock_hz": float("inf")}, "clock_hz must be positive and finite, not inf"),
        ({"clock_hz": float("nan")}, "clock_hz must be positive and finite, not nan"),
        ({"heads": 64, "head_dim": 1026}, r"heads \* head_dim must be at most 65536, not 64 \* 1026; take fewer heads"),
        (
            {"beat_bytes": 4, "ports": 1, "context": 1 << 16, "head_dim": 2046, "heads": 16},
            "a head's keys must be at most 16777215 beats, not 33521664: lower context 65536, or raise beat_bytes 4",
        ),
        (
            {"slots": 8, "top_k": 64},
            "top_k must be at most 63 with slots 8, not 64: results end before byte 4096; lower top_k or slots",
        ),
    ],
)
def test_members_out_of_range_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=f"^{message}$"):
        AcceleratorConfig(**changes)


def test_the_widest_members_are_accepted() -> None:
    config = AcceleratorConfig(hidden=1 << 14, width=1 << 14, heads=255, kv_heads=255, head_dim=2)
    assert (config.hidden, config.width, config.heads, config.kv_heads) == (16384, 16384, 255, 255)


@pytest.mark.parametrize("member", [field.name for field in fields(AcceleratorConfig)])
def test_members_of_another_type_are_refused(member: str) -> None:
    """Check also values that equal a valid number, which a file of another program may hold."""
    default = getattr(AcceleratorConfig(), member)
    wrong_values: list[Any] = ["x", None, [default], int(default) if isinstance(default, bool) else bool(default)]
    if isinstance(default, int):
        wrong_values.append(float(default))
    for value in wrong_values:
        with pytest.raises(
            UsageError, match=f"^{member} must be of type {type(default).__name__}, not {re.escape(repr(value))}$"
        ):
            AcceleratorConfig(**{member: value})


@pytest.mark.parametrize("burst_beats", [1, 16, 256])
def test_no_program_depends_on_the_bursts(burst_beats: int) -> None:
    assert AcceleratorConfig(burst_beats=burst_beats).hash == AcceleratorConfig().hash


def test_the_largest_results_end_where_the_rows_begin() -> None:
    """Check that the config's own limit equals that of the head, for every number of slots."""
    for slots in range(1, 9):
        best = next(k for k in range(64, 0, -1) if slots * (k + 1) <= 512)
        config = AcceleratorConfig(slots=slots, top_k=best)
        assert result_bytes(config) <= ROWS_OFFSET < 8 * slots * (best + 2) or best == 64
        if best < 64:
            with pytest.raises(UsageError, match=f"top_k must be at most {best} with slots {slots}"):
                replace(config, top_k=best + 1)


def random_members(rng: random.Random) -> dict[str, Any]:
    """Draw members, often at a limit, otherwise mostly of a usual size."""

    def number(minimum: int, maximum: int, usual: int) -> int:
        return rng.choice(
            [minimum, maximum, *[rng.randint(minimum, min(usual, maximum))] * 4, rng.randint(minimum, maximum)]
        )

    beat_bytes = rng.choice((4, 4, 8, 8, 16, 32, 64))
    kv_heads = number(1, 255, 8)
    return {
        "beat_bytes": beat_bytes,
        "ports": rng.choice([ports for ports in (1, 2, 4) if beat_bytes // ports >= 4]),
        "slots": rng.choice((1, 1, 2, 3, 4, 8)),
        "tile_rows": 5 * number(1, 13107, 300),
        "context": number(1, 1 << 16, 2000),
        "width": number(1, 1 << 14, 3000),
        "hidden": number(1, 1 << 14, 3000),
        "heads": kv_heads * rng.randint(1, 255 // kv_heads),
        "kv_heads": kv_heads,
        "head_dim": 2 * number(1, 1024, 64),
        "softmax_lanes": rng.choice((1, 1, 2, 4, 8)),
        "scaling": rng.random() < 0.5,
        "per_row": rng.random() < 0.5,
        "top_k": number(1, 64, 16),
        "prefetch_beats": number(16, 1 << 16, 4096),
        "burst_beats": 1 << rng.randrange(9),
        "instructions": number(16, 1 << 16, 2000),
        "ultra": rng.random() < 0.5,
    }


@pytest.mark.rtl
@pytest.mark.parametrize("seed", range(5))
def test_accepted_configurations_can_be_built_and_estimated(seed: int) -> None:
    rng, count = random.Random(seed), 0
    while count < 8:
        members = random_members(rng)
        try:
            config = AcceleratorConfig(**members)
        except UsageError:
            continue
        Accelerator(config)
        assert estimate(config).total.lut > 0, members
        count += 1


LARGEST: list[dict[str, Any]] = [
    {"tile_rows": 65535},
    {"tile_rows": 65535, "per_row": False},
    {"context": 1 << 16},
    {"width": 1 << 14},
    {"hidden": 1 << 14},
    {"heads": 255, "kv_heads": 255, "head_dim": 256},
    {"heads": 255},
    {"head_dim": 2048},
    {"head_dim": 2046},
    {"top_k": 64, "slots": 7},
    {"beat_bytes": 8, "scaling": True, "softmax_lanes": 4},
    {"beat_bytes": 16, "ports": 4, "slots": 3},
    {"prefetch_beats": 1 << 16},
    {"burst_beats": 256},
    {"burst_beats": 1},
    {"instructions": 1 << 16},
]


@pytest.mark.rtl
def test_the_smallest_configuration_can_be_elaborated() -> None:
    Fragment.get(Accelerator(SMALL), None)


@pytest.mark.nightly
@pytest.mark.parametrize("change", LARGEST, ids=str)
@pytest.mark.parametrize("ultra", [False, True])
def test_configurations_at_a_limit_can_be_elaborated(change: dict[str, Any], ultra: bool) -> None:
    """Set one member to its limit and all others as small as possible; elaboration calls the constructors of parts."""
    Fragment.get(Accelerator(replace(SMALL, ultra=ultra, **change)), None)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(6))
def test_random_configurations_can_be_elaborated(seed: int) -> None:
    rng, count = random.Random(100 + seed), 0
    while count < 2:
        members = random_members(rng)
        if members["beat_bytes"] * members["slots"] > 32 or members["context"] > 4096:
            continue
        try:
            config = AcceleratorConfig(**members)
        except UsageError:
            continue
        Fragment.get(Accelerator(config), None)
        count += 1


def test_a_ring_has_the_rows_of_its_window_and_those_of_two_passes() -> None:
    config = AcceleratorConfig(window=100)  # groups of four positions
    assert config.ring is not None
    assert config.ring.rows == 168 == -(-(100 - 1 + 2 * RING_SLACK + 3) // 4) * 4
    assert config.cache_rows(1) == config.ring
    assert config.cache_rows(0).rows == config.context
    assert AcceleratorConfig(window=1000).ring is None, "it would not be shorter than the context"


def test_an_instruction_for_a_ring_needs_one() -> None:
    with pytest.raises(BundleError, match="needs a ring; this accelerator has none: compile"):
        AcceleratorConfig().cache_rows(1)


def test_a_window_makes_another_accelerator_and_none_makes_the_earlier_one() -> None:
    """Keep the hash of the default configuration, which stands in programs that were compiled before there were rings."""
    assert f"{AcceleratorConfig().hash:016x}" == "d5b98a456fa5ff87"
    assert AcceleratorConfig(window=64).hash != AcceleratorConfig().hash


@pytest.mark.parametrize("member", ["head_norms", "post_norms", "score_cap", "gelu", "taps"])
def test_a_later_unit_makes_another_accelerator(member: str) -> None:
    config = AcceleratorConfig(**{member: True})
    assert config.hash != AcceleratorConfig().hash
    narrow = replace(config, width=64, hidden=64)  # the gains of queries and of keys may wait for their rows
    gains = {"head_norms": 2 * (4 + narrow.head_dim), "post_norms": 4 + narrow.hidden}
    assert constant_queues(narrow)["gains"] == gains.get(member, 64)


@pytest.mark.parametrize(
    ("slots", "expected"),
    [(8, {1: [1] * 4, 2: [2, 2, 2, 1], 4: [4, 4, 2, 1], 6: [2, 2, 2, 1], 8: [8, 4, 2, 1]}), (5, {4: [4, 2, 1, 1]})],
)
def test_as_many_heads_attend_together_as_the_slots_hold(slots: int, expected: dict[int, list[int]]) -> None:
    config = AcceleratorConfig(slots=slots, shared=True)
    for group, together in expected.items():
        assert [config.together(group, used) for used in (1, 2, 3, min(5, slots))] == together
    assert AcceleratorConfig(slots=slots).together(4, 1) == 1
    assert config.hash != AcceleratorConfig(slots=slots).hash
