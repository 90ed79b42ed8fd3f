from __future__ import annotations

import random
from typing import Any

import pytest
from amaranth.hdl import Module, unsigned
from amaranth.lib import stream
from amaranth.lib.wiring import Component, In, Out, connect, flipped

from edgedec.hw.blocks.credit_queue import QUEUED, CreditQueue
from edgedec.hw.blocks.pipeline import carried
from tests.hw.support.bench_streams import run
from tests.hw.support.make_vectors import PATTERNS


class Delayed(Component):
    """A pipeline of ``stages`` registers whose results wait in a CreditQueue."""

    def __init__(self, *, stages: int, bits: int = 8) -> None:
        shape = stream.Signature(unsigned(bits))
        super().__init__({"input": In(shape), "output": Out(shape)})
        self.queue, self._stages = CreditQueue(shape=unsigned(bits), stages=stages), stages

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.queue = queue = self.queue
        m.d.comb += [
            self.input.ready.eq(queue.room),
            queue.enter.eq(self.input.valid & queue.room),
            queue.result.eq(carried(m, 1, self.input.payload, self._stages)),
        ]
        connect(m, queue.output, flipped(self.output))
        return m


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("stages", [1, 4, 12, 13, 40])
@pytest.mark.parametrize(("idle", "stall"), [*PATTERNS, (0.0, 0.95)])
def test_results_leave_in_order(stages: int, idle: float, stall: float) -> None:
    rng = random.Random(stages)
    items = [rng.getrandbits(8) for _ in range(200)]
    cycles: dict[str, list[int]] = {}
    actual = run(Delayed(stages=stages), {"input": items}, {"output": 200}, idle=idle, stall=stall, cycles=cycles)
    assert actual["output"] == items
    if not idle and not stall:
        assert cycles["input"] == list(range(cycles["input"][0], cycles["input"][0] + 200))
        assert {b - a for a, b in zip(cycles["input"], cycles["output"], strict=True)} == {stages + QUEUED}


def test_a_stalled_output_fills_the_queue_and_no_more() -> None:
    cycles: dict[str, list[int]] = {}
    run(Delayed(stages=3), {"input": list(range(100))}, {"output": 100}, stall=0.95, cycles=cycles)
    inside = [
        number + 1 - sum(left < entered for left in cycles["output"]) for number, entered in enumerate(cycles["input"])
    ]
    assert max(inside) == 3 + 4


def test_wrong_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^stages must be an integer from 1 to 56, not 57$"):
        CreditQueue(shape=unsigned(8), stages=57)
