from __future__ import annotations

import random
from typing import Any

import pytest

from edgedec.hw.memory.unpacker import MixedUnpacker, Unpacker
from tests.hw.support.bench_streams import run


def segments(
    rng: random.Random, beat_bytes: int, item_bytes: int, count: int
) -> tuple[list[dict[str, Any]], list[int]]:
    """Return beats of ``count`` segments of a few items each, and the items."""
    beats, items = [], []
    for _ in range(count):
        numbers = [
            rng.getrandbits(8 * item_bytes) for _ in range(rng.randint(1, 2 * max(1, beat_bytes // item_bytes) + 1))
        ]
        raw = b"".join(number.to_bytes(item_bytes, "little") for number in numbers)
        padding = -len(raw) % beat_bytes
        raw += rng.randbytes(padding)
        for at in range(0, len(raw), beat_bytes):
            last = at + beat_bytes == len(raw)
            # An item at least as large as a beat has no spare, nor has any beat but the last.
            spare = padding // item_bytes if last and item_bytes < beat_bytes else rng.randrange(8)
            beats.append({"data": list(raw[at : at + beat_bytes]), "last": last, "spare": spare})
        items += numbers
    return beats, items


@pytest.mark.rtl(sample=10)
@pytest.mark.parametrize(("idle", "stall"), [(0, 0), (0.6, 0), (0, 0.6), (0.3, 0.3)])
@pytest.mark.parametrize(
    ("beat_bytes", "item_bytes"), [(4, 1), (8, 4), (8, 2), (16, 16), (8, 32), (4, 8), (1, 4), (64, 16)]
)
def test_items_of_segments_are_unpacked(beat_bytes: int, item_bytes: int, idle: float, stall: float) -> None:
    beats, items = segments(random.Random(beat_bytes + item_bytes), beat_bytes, item_bytes, 12)
    component = Unpacker(beat_bytes=beat_bytes, item_bytes=item_bytes)
    assert run(component, {"beats": beats}, {"items": len(items)}, idle=idle, stall=stall)["items"] == items


@pytest.mark.parametrize(("beat_bytes", "item_bytes"), [(16, 4), (8, 8), (4, 16)])
def test_an_item_or_a_beat_takes_a_cycle(beat_bytes: int, item_bytes: int) -> None:
    beats, items = segments(random.Random(1), beat_bytes, item_bytes, 9)
    cycles: dict[str, list[int]] = {}
    run(Unpacker(beat_bytes=beat_bytes, item_bytes=item_bytes), {"beats": beats}, {"items": len(items)}, cycles=cycles)
    busiest = max(len(beats), len(items))
    assert cycles["items"][-1] - cycles["items"][0] <= busiest - 1
    assert cycles["beats"][-1] - cycles["beats"][0] <= busiest - 1


def test_a_last_beat_may_hold_no_item() -> None:
    beats = [{"data": [n] * 4, "last": n != 1, "spare": 4 * (n == 2)} for n in (1, 2, 3)]
    items = run(Unpacker(beat_bytes=4, item_bytes=1), {"beats": beats}, {"items": 8}, stall=0.3)["items"]
    assert items == [1] * 4 + [3] * 4


def test_an_incomplete_item_is_dropped() -> None:
    beats = [{"data": [n, 0], "last": last, "spare": 0} for n, last in ((1, 0), (2, 1), (3, 1), (4, 0), (5, 1))]
    assert run(Unpacker(beat_bytes=2, item_bytes=4), {"beats": beats}, {"items": 2})["items"] == [0x20001, 0x50004]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"beat_bytes": 12}, "beat_bytes must be a power of two, not 12"),
        ({"item_bytes": 20}, "item_bytes must be a power of two, not 20"),
        ({"item_bytes": 512}, "item_bytes must be an integer from 1 to 256, not 512"),
    ],
)
def test_wrong_parameters_are_refused(parameters: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        Unpacker(**{"beat_bytes": 8, "item_bytes": 4, **parameters})


def test_the_estimate_has_its_register() -> None:
    assert Unpacker(beat_bytes=64, item_bytes=4).resources.ff == 512 + 6
    assert Unpacker(beat_bytes=8, item_bytes=256).resources.ff == 2048 + 7


@pytest.mark.rtl(sample=4)
@pytest.mark.parametrize(("idle", "stall"), [(0, 0), (0.6, 0), (0, 0.6), (0.3, 0.3)])
@pytest.mark.parametrize(
    ("beat_bytes", "item_bytes"), [(4, (2, 4, 2)), (8, (2, 8, 8, 4, 2)), (64, (2, 8, 4)), (4, (4,))]
)
def test_items_of_several_sizes_share_a_register(
    beat_bytes: int, item_bytes: tuple[int, ...], idle: float, stall: float
) -> None:
    rng, beats, expected = random.Random(beat_bytes), [], []
    for _ in range(15):
        kind = rng.randrange(len(item_bytes))
        some, items = segments(rng, beat_bytes, item_bytes[kind], 1)
        beats += [{"segment": one, "kind": kind} for one in some]
        expected += [(kind, item) for item in items]
    cycles: dict[str, list[int]] = {}
    component = MixedUnpacker(beat_bytes=beat_bytes, item_bytes=item_bytes)
    outputs = run(component, {"beats": beats}, {"items": len(expected)}, idle=idle, stall=stall, cycles=cycles)["items"]
    assert [(one["kind"], one["item"] % (1 << 8 * item_bytes[one["kind"]])) for one in outputs] == expected
    if not idle and not stall:
        start = cycles["items"][0]
        assert cycles["items"] == list(range(start, start + len(expected)))
        assert start == cycles["beats"][0] + 1


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"beat_bytes": 8, "item_bytes": (16,)}, "item_bytes must be an integer from 1 to 8, not 16"),
        ({"beat_bytes": 8, "item_bytes": (3,)}, "beat_bytes and item_bytes must be powers of two, not 3"),
    ],
)
def test_wrong_sizes_are_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MixedUnpacker(**parameters)
