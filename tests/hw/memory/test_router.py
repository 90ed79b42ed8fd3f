from __future__ import annotations

import random
from typing import Any

import pytest

from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.isa.instructions import Destination
from edgedec.hw.memory.router import Router, port
from tests.hw.support.bench_streams import run

CONFIG = AcceleratorConfig(beat_bytes=4, ports=1, head_dim=8)
NOBODY = 13


def dealt(entries: list[dict[str, int]]) -> tuple[list[list[int]], dict[str, list[dict[str, Any]]]]:
    """Return the beats of all entries, numbered, and what each output gets of them."""
    beats: list[list[int]] = []
    by_port: dict[str, list[dict[str, Any]]] = {port(destination): [] for destination in Destination}
    for item in entries:
        for beats_left in reversed(range(item["beats"])):
            beats.append(list(len(beats).to_bytes(4, "little")))
            if item["destination"] != NOBODY:
                spare = 0 if beats_left else item["spare"]
                beat = {"data": beats[-1], "last": int(not beats_left), "spare": spare}
                by_port[port(Destination(item["destination"]))].append(beat)
    return beats, by_port


def routed(entries: list[dict[str, int]], **how: Any) -> None:
    beats, expected = dealt(entries)
    counts = {name: len(items) for name, items in expected.items()}
    assert run(Router(CONFIG), {"entries": entries, "beats": beats}, counts, **how) == expected


@pytest.mark.rtl(sample=1)
@pytest.mark.parametrize("seed", range(6))
def test_segments_of_all_lengths_are_routed(seed: int) -> None:
    rng = random.Random(seed)
    entries = [
        {
            "destination": rng.choice([*Destination, NOBODY]),
            "beats": rng.choice([0, 1, 1, 2, 5]),
            "spare": rng.randrange(256),
        }
        for _ in range(60)
    ]
    names = ["entries", "beats"] + [port(destination) for destination in Destination]
    chances = {name: rng.choice([0, 0, 0.5, 0.8]) for name in names}
    routed(entries, idle=chances, stall=chances, seed=seed)


def test_a_beat_takes_a_cycle_across_segments() -> None:
    rng = random.Random(7)
    entries = [
        {"destination": rng.choice(list(Destination)), "beats": rng.randint(1, 3), "spare": 0} for _ in range(40)
    ]
    cycles: dict[str, list[int]] = {}
    routed(entries, cycles=cycles)
    total = sum(item["beats"] for item in entries)
    assert cycles["beats"] == list(range(cycles["beats"][0], cycles["beats"][0] + total))
    out = sorted(cycle for destination in Destination for cycle in cycles[port(destination)])
    assert out == [cycle + 1 for cycle in cycles["beats"]]


def test_empty_segments_do_not_delay_the_stream() -> None:
    lengths = [6, 0, 0, 1, 0, 3]
    cycles: dict[str, list[int]] = {}
    routed([{"destination": 3, "beats": beats, "spare": 1} for beats in lengths], cycles=cycles)
    assert cycles["beats"][-1] - cycles["beats"][0] == 9


def test_the_estimate_grows_with_the_beat() -> None:
    wide = AcceleratorConfig()
    assert Router(wide).resources.ff - Router(CONFIG).resources.ff == 2 * 8 * 60
