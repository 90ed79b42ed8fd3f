from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from amaranth.sim import Simulator

from edgedec.hw.isa.instructions import FIELDS, Opcode, Sink
from edgedec.hw.sink_router import SinkRouter
from tests.hw.support.bench_streams import run

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


@pytest.mark.rtl(sample=2)
@pytest.mark.parametrize("stall", [0.0, 0.5])
@pytest.mark.parametrize("idle", [0.0, 0.3])
def test_vectors_are_routed_to_their_sinks(idle: float, stall: float) -> None:
    rng, slots = np.random.default_rng(2), 2
    logits = [
        {"first": 0, "elements": 13, "counted": 12, "sum_shift": -512},
        {"first": 1 << 17, "elements": 1, "counted": 1, "sum_shift": 511},
    ]
    sequence = [
        matrix(sink=Sink.QUERIES, words=2, spare=1, rotate=1, shift=20),
        matrix(sink=Sink.KEYS, words=1, rotate=1, shift=21, more=1),
        matrix(sink=Sink.KEYS, words=2, spare=4, rotate=1, shift=21),
        matrix(sink=Sink.VALUES, words=1, spare=4, shift=3),
        matrix(sink=Sink.RESIDUAL, words=3, start=0, more=1, onward=1),
        matrix(sink=Sink.RESIDUAL, words=1, spare=2, start=15, onward=1),
        matrix(sink=Sink.GATE, words=4, gate_shift=5),
        matrix(sink=Sink.RESIDUAL, words=2, spare=3, start=0),
        matrix(sink=Sink.RESIDUAL, words=1, spare=4, start=17),
        matrix(sink=Sink.GATE, words=1, spare=3, relu2=1),
        matrix(sink=Sink.LOGITS, words=2, **logits[0], more=1),
        matrix(sink=Sink.LOGITS, words=1, spare=2, **logits[0]),
        matrix(sink=Sink.LOGITS, words=1, spare=4, **logits[1]),
    ]
    payloads: list[dict[str, Any]] = []
    expected: dict[str, list[Any]] = {name: [] for name in BITS}
    for item in sequence:
        port = PORTS[Sink(item["sink"])]
        limit = 1 << (BITS[port] - 1)
        rows = 5 * item["words"] - item.get("spare", 0)
        values = rng.integers(-limit, limit, (rows, 1, slots)).tolist()
        for i, row in enumerate(values):
            end = i == rows - 1
            payloads.append({"values": row, "last": end})
            expected[port].append({"values": row, "last": end and not item.get("more")})
    collected = run(
        SinkRouter(slots=slots, depth=18),
        {"matrices": sequence, "input": payloads},
        {**{name: len(items) for name, items in expected.items()}, "additions": 4, "parts": 3, "vectors": 2},
        idle=idle,
        stall=stall,
    )
    assert collected["additions"] == [
        {"start": 0, "elements": 15, "more": 1, "onward": 1},
        {"start": 15, "elements": 3, "more": 0, "onward": 1},
        {"start": 0, "elements": 7, "more": 0, "onward": 0},
        {"start": 17, "elements": 1, "more": 0, "onward": 0},
    ]
    assert collected["parts"] == [
        {"part": 0, "rotate": 1, "shift": 20},
        {"part": 1, "rotate": 1, "shift": 21},
        {"part": 2, "rotate": 0, "shift": 3},
    ]
    assert collected["vectors"] == logits
    assert {name: collected[name] for name in BITS} == expected


@pytest.mark.rtl(sample=1)
@pytest.mark.parametrize("stall", [0.0, 0.5])
def test_matrices_of_a_vector_that_is_normed_are_one_addition(stall: float) -> None:
    """Route one of two matrices, one that is not normed, and one of a single matrix."""
    normed = {"sink": Sink.RESIDUAL, "norm_rows": 1}
    sequence = [
        matrix(**normed, words=2, more=1, onward=1, elements=13),
        matrix(**normed, words=1, spare=2, start=10, onward=1, elements=13),
        matrix(sink=Sink.RESIDUAL, words=1, spare=1, start=4),
        matrix(**normed, words=1, elements=5),
    ]
    payloads, expected = list[dict[str, Any]](), list[dict[str, Any]]()
    for item in sequence:
        rows = 5 * item["words"] - item.get("spare", 0)
        for row in range(rows):
            payloads.append({"values": [[len(payloads)]], "last": row == rows - 1})
            expected.append({**payloads[-1], "last": row == rows - 1 and not item.get("more")})
    # The bits of the optional fields are the first ones after the others.
    items = [
        {**{k: v for k, v in one.items() if k != "norm_rows"}, "unused": one.get("norm_rows", 0) << 1}
        for one in sequence
    ]
    collected = run(
        SinkRouter(slots=1, depth=18, row_norms=True),
        {"matrices": items, "input": payloads},
        {"residual": len(expected), "additions": 3},
        stall=stall,
    )
    assert collected["residual"] == expected
    assert collected["additions"] == [
        {"start": 0, "elements": 13, "more": 0, "onward": 1, "normed": 1},
        {"start": 4, "elements": 4, "more": 0, "onward": 0, "normed": 0},
        {"start": 0, "elements": 5, "more": 0, "onward": 0, "normed": 1},
    ]


def test_idle_means_that_no_matrix_is_offered_or_in_progress() -> None:
    router = SinkRouter(slots=1, depth=18)

    async def bench(ctx: Any) -> None:
        assert ctx.get(router.idle)
        ctx.set(router.gate.ready, 1)
        ctx.set(router.matrices.payload, matrix(sink=Sink.GATE, words=1))
        ctx.set(router.matrices.valid, 1)
        assert not ctx.get(router.idle)  # before it is taken
        await ctx.tick().until(router.matrices.ready)
        ctx.set(router.matrices.valid, 0)
        for row in range(5):
            assert not ctx.get(router.idle)
            ctx.set(router.input.payload, {"values": [[row]], "last": row == 4})
            ctx.set(router.input.valid, 1)
            await ctx.tick().until(router.input.ready)
            ctx.set(router.input.valid, 0)
        assert ctx.get(router.idle)

    simulator = Simulator(router)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
