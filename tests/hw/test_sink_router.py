from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgedec.hw.instructions import FIELDS, Opcode, Sink
from edgedec.hw.sink_router import SinkRouter
from tests.hw.streams import run

PORTS = {
    Sink.RESIDUAL: "residual",
    Sink.QUERIES: "attention",
    Sink.KEYS: "attention",
    Sink.VALUES: "attention",
    Sink.GATE: "gate",
    Sink.LOGITS: "logits",
}
BITS = {"residual": 27, "attention": 18, "gate": 18, "logits": 32}


def matrix(**fields: int) -> dict[str, int]:
    assert set(fields) <= set(FIELDS[Opcode.MATRIX])
    return {"opcode": Opcode.MATRIX, **fields}


@pytest.mark.parametrize("stall", [0.0, 0.5])
@pytest.mark.parametrize("idle", [0.0, 0.3])
def test_routes(idle: float, stall: float) -> None:
    rng, slots = np.random.default_rng(2), 2
    sequence = [
        matrix(sink=Sink.QUERIES, words=2, elements=9, rotate=1, shift=20),
        matrix(sink=Sink.KEYS, words=1, elements=3, rotate=1, shift=21, more=1),
        matrix(sink=Sink.KEYS, words=2, elements=3, rotate=1, shift=21),
        matrix(sink=Sink.VALUES, words=3, elements=12, shift=3),
        matrix(sink=Sink.RESIDUAL, words=3, start=0, more=1, onward=1),
        matrix(sink=Sink.RESIDUAL, words=1, start=3, onward=1),
        matrix(sink=Sink.GATE, words=4, elements=20, gate_shift=5),
        matrix(sink=Sink.RESIDUAL, words=2, start=0),
        matrix(sink=Sink.LOGITS, words=2, first=0, elements=15, more=1),
        matrix(sink=Sink.LOGITS, words=1, first=0, elements=15),
    ]
    given: list[dict[str, Any]] = []
    expected: dict[str, list[Any]] = {name: [] for name in BITS}
    for item in sequence:
        port = PORTS[Sink(item["sink"])]
        most = 1 << (BITS[port] - 1)
        values = rng.integers(-most, most, (item["words"], 5, slots)).tolist()
        for i, word in enumerate(values):
            end = i == item["words"] - 1
            given.append({"values": word, "last": end})
            expected[port].append({"values": word, "last": end and not item.get("more")})
    found = run(
        SinkRouter(slots=slots, depth=8),
        {"matrices": sequence, "input": given},
        {**{name: len(items) for name, items in expected.items()}, "additions": 3, "parts": 3, "vectors": 1},
        idle=idle,
        stall=stall,
    )
    assert found["additions"] == [
        {"start": 0, "words": 3, "more": 1, "onward": 1},
        {"start": 3, "words": 1, "more": 0, "onward": 1},
        {"start": 0, "words": 2, "more": 0, "onward": 0},
    ]
    assert found["parts"] == [
        {"part": 0, "rotate": 1, "shift": 20, "elements": 9},
        {"part": 1, "rotate": 1, "shift": 21, "elements": 3},
        {"part": 2, "rotate": 0, "shift": 3, "elements": 12},
    ]
    assert found["vectors"] == [{"first": 0, "elements": 15}]
    assert {name: found[name] for name in BITS} == expected
