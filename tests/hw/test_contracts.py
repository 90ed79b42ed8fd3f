"""Break the rules that components state about their inputs: each must end the simulation with its words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

pytest.importorskip("amaranth", reason="the hardware generator is not installed")

from amaranth.hdl import Module, Signal, Value
from amaranth.sim import Simulator

from edgedec.hw.attention.head_shape import HeadShape
from edgedec.hw.attention.score_memory import ScoreMemory
from edgedec.hw.attention.weighted_values import WeightedValues
from edgedec.hw.blocks.staged_reset import StagedReset
from edgedec.hw.blocks.vector_memory import VectorMemory
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.control.dispatcher import Dispatcher
from edgedec.hw.isa.instructions import Opcode
from edgedec.hw.logits.top_k import TopK
from edgedec.hw.matrix.group_mantissas import GroupMantissas
from edgedec.hw.matrix.partial_sums import PartialSums
from edgedec.hw.matrix.row_packer import RowPacker
from edgedec.hw.vector.absolute_maximum import AbsoluteMaximum
from edgedec.hw.vector.rms_norm import RmsNorm

CYCLES = 60
SHAPE = HeadShape(beat_bytes=16, head_dim=4, chunk=4, slots=1, context=8)
LEAST = {"logit": -(1 << 31), "id": 0, "last": 0}
SWEEP = {"words": 3, "first": 1, "final": 0, "scaled": 0, "last": 0}

# component, inputs that stay the same, the rule that they break
BROKEN: Mapping[str, tuple[Any, Mapping[str, Any], str]] = {
    "the same id again": (
        lambda: TopK(slots=1, k=2),
        {"input.valid": 1, "input.payload": {"logit": 0, "id": 5, "last": 0}},
        "The ids of the logits ascend",
    ),
    "the least logit": (
        lambda: TopK(slots=1, k=2),
        {"input.valid": 1, "input.payload": LEAST},
        "above the least number",
    ),
    "a read past the end": (
        lambda: VectorMemory(width=4, slots=1, depth=10),
        {"reads.valid": 1, "reads.payload": {"start": 8, "length": 5}},
        "A read ends within the memory",
    ),
    "the least element": (
        lambda: AbsoluteMaximum(slots=1, width=8),
        {"input.valid": 1, "input.payload.values": [[-128]]},
        "The least number of the width does not occur",
    ),
    "the least gain": (lambda: RmsNorm(slots=1), {"gains.valid": 1, "gains.payload": [-(1 << 15)]}, "A gain is above"),
    "a word without room": (lambda: RowPacker(lanes=4, slots=1, width=18), {"starts": 1}, "only if there is room"),
    "sums without a start": (lambda: RowPacker(lanes=4, slots=1, width=18), {"sums.valid": 1}, "never overflows"),
    "a sweep of other words": (
        lambda: GroupMantissas(beat_bytes=16, tile_words=8),
        {
            "fills.valid": 1,
            "fills.payload": 3,
            "beats.valid": 1,
            "sweeps.valid": 1,
            "sweeps.payload": {"words": 4, "last": 0},
            "output.ready": 1,
        },
        "A sweep has the words of its group",
    ),
    "mantissas without multipliers": (
        lambda: PartialSums(width=8, slots=1, tile_words=4, queued=4, scaling=False),
        {"sweeps.valid": 1, "sweeps.payload": SWEEP | {"scaled": 1}},
        "without multipliers",
    ),
    "a sweep without words": (
        lambda: PartialSums(width=8, slots=1, tile_words=4, queued=4, scaling=False),
        {"sweeps.valid": 1, "sweeps.payload": SWEEP | {"words": 0}},
        "A sweep has words",
    ),
    "groups too near": (
        lambda: ScoreMemory(SHAPE),
        {"input.valid": 1, "visibility.committed": 8, "visibility.own": 1},
        "No group of scores ends before",
    ),
    "columns before drained": (
        lambda: WeightedValues(SHAPE, out_lanes=1),
        {"columns.valid": 1, "visibility.committed": 4, "visibility.own": 1},
        "Sums of a head begin only after drained",
    ),
}


def run(component: Any, bench: Any) -> None:
    simulator = Simulator(component)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_ends_the_simulation(name: str) -> None:
    make, inputs, message = BROKEN[name]
    component = make()

    async def bench(context: Any) -> None:
        for path, value in inputs.items():
            port = component
            for part in path.split("."):
                port = getattr(port, part)
            context.set(port, value)
        for _ in range(CYCLES):
            await context.tick()

    with pytest.raises(AssertionError, match=message):
        run(component, bench)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_third_head_waits_for_the_distances_of_the_first() -> None:
    memory = ScoreMemory(SHAPE)
    groups = 3  # groups of four positions: two committed, one own

    async def bench(context: Any) -> None:
        context.set(memory.visibility.committed, 8)
        context.set(memory.visibility.own, 1)
        for item in range(3 * groups):
            context.set(memory.input.valid, 1)
            await context.tick()
            context.set(memory.input.valid, 0)
            for _ in range(4):
                await context.tick()
            if item < 2 * groups - 1:
                assert context.get(memory.room) == 0
        pytest.fail("the third head was stored over the first one")

    with pytest.raises(AssertionError, match="A head is stored only once all distances"):
        run(memory, bench)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("offered", [False, True])
def test_the_factors_of_a_head_come_before_its_scores(offered: bool) -> None:
    memory = ScoreMemory(SHAPE, capped=True)

    async def bench(context: Any) -> None:
        context.set(memory.visibility.own, 1)
        context.set(memory.factors.valid, offered)
        context.set(memory.input.valid, 1)
        await context.tick()
        context.set(memory.input.valid, 0)
        for _ in range(CYCLES):
            await context.tick()

    if offered:
        run(memory, bench)
        return
    with pytest.raises(AssertionError, match="The factors of a head are offered before its first score"):
        run(memory, bench)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("held", [1, 2, 3])
def test_a_staged_reset_is_held_long_enough(held: int) -> None:
    m, clear = Module(), Signal()
    reset = StagedReset(m, clear, 3)
    m.d.comb += Signal(name="last").eq(Value.cast(reset.stage()))

    async def bench(context: Any) -> None:
        context.set(clear, 1)
        for _ in range(held):
            await context.tick()
        context.set(clear, 0)
        for _ in range(6):
            await context.tick()

    if held == 3:
        run(m, bench)
        return
    with pytest.raises(AssertionError, match="A staged reset is held until its last stage has seen it"):
        run(m, bench)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("late", [3, 6])
def test_a_unit_that_gets_a_command_is_not_idle_for_long(late: int) -> None:
    dispatcher = Dispatcher(AcceleratorConfig())

    async def bench(context: Any) -> None:
        context.set(dispatcher.idle, 1)
        context.set(dispatcher.vectors.ready, 1)
        context.set(dispatcher.commands.payload.bits, Opcode.VECTOR.value)
        context.set(dispatcher.commands.valid, 1)
        await context.tick()
        context.set(dispatcher.commands.valid, 0)
        await context.tick().until(dispatcher.issued)
        for _ in range(late):
            await context.tick()
        context.set(dispatcher.idle, 0)
        for _ in range(6):
            await context.tick()

    if late == 3:
        run(dispatcher, bench)
        return
    with pytest.raises(AssertionError, match="Idle becomes low within four cycles of a command"):
        run(dispatcher, bench)
