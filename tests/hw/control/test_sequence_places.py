from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from amaranth.sim import Simulator

from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.control.sequence_places import SequencePlaces
from edgedec.hw.isa.sequences import SequenceRows, sequences_of
from edgedec.sim.interpreter.attention import past_cache
from tests.hw.support.bench_streams import plain

# Groups of 1, 2, 4 and 8 positions; a context that is no whole number of them, fewer sequences than slots, both odd.
CONFIGS = {
    1: AcceleratorConfig(beat_bytes=4, ports=1, slots=2, sequences=2, context=300, head_dim=12, top_k=2),
    2: AcceleratorConfig(beat_bytes=8, ports=2, slots=5, sequences=3, context=97, head_dim=8),
    4: AcceleratorConfig(beat_bytes=64, ports=4, sequences=8, context=1024, head_dim=128),
    8: AcceleratorConfig(beat_bytes=64, ports=1, slots=8, sequences=4, context=4096, head_dim=24),
}


def drawn(config: AcceleratorConfig, rng: np.random.Generator) -> tuple[SequenceRows, ...]:
    """Return sequences of a pass, of which some have no committed positions, and some pass the cache."""
    number = int(rng.integers(1, config.sequences + 1))
    cuts = sorted(rng.choice(np.arange(1, config.slots), number - 1, replace=False).tolist())
    sizes = [
        end - first for first, end in pairwise([0, *cuts, int(rng.integers(cuts[-1] if cuts else 0, config.slots)) + 1])
    ]
    layout, share = config.kv_layout, config.context // number
    return tuple(
        SequenceRows(
            slots=slots,
            committed=int(rng.integers(0, max(share - slots, 1))) if rng.random() < 0.8 else 0,
            group=at * share // layout.positions + (layout.groups(share) if rng.random() < 0.1 else 0),
        )
        for at, slots in enumerate(sizes)
    )


def expected(parts: tuple[SequenceRows, ...], config: AcceleratorConfig) -> dict[str, Any]:
    layout = config.kv_layout
    rows, first, ends, total = list[int](), list[int](), list[int](), 0
    for part in parts:
        rows += [part.row(layout, slot) for slot in range(part.slots)]
        first += [total] * part.slots
        ends += [total + part.committed] * part.slots
        total += layout.groups(part.committed) * layout.positions
    return {
        "rows": rows,
        "first": first,
        "ends": ends,
        "total": total,
        "ranges": sum(part.committed > 0 for part in parts),
    }


@pytest.mark.parametrize("positions", CONFIGS)
def test_every_pass_has_the_places_of_the_definition(positions: int) -> None:
    config = CONFIGS[positions]
    dut, rng, beyond = SequencePlaces(config), np.random.default_rng(positions), set[bool]()
    assert config.kv_layout.positions == positions

    async def bench(ctx: Any) -> None:
        for number in range(40):
            parts = drawn(config, rng)
            slots, begins = sum(part.slots for part in parts), 0
            for at in np.cumsum([part.slots for part in parts])[:-1].tolist():
                begins |= 1 << at
            groups, later = [part.group for part in parts], [part.committed for part in parts[1:]]
            assert sequences_of(slots, parts[0].committed, begins, groups, later) == parts
            ctx.set(dut.slots, slots)
            ctx.set(dut.committed, parts[0].committed)
            ctx.set(dut.begins, begins)
            for at, group in enumerate(groups):
                ctx.set(dut.groups[at], group)
            for at, committed in enumerate(later):
                ctx.set(dut.later[at], committed)
            ctx.set(dut.begin, 1)
            await ctx.tick()
            ctx.set(dut.begin, 0)
            if number % 5 == 4:  # a soft reset, and the next doorbell
                await ctx.tick().repeat(1 + number % 7)
                continue
            cycles = 1
            while not ctx.get(dut.settled):
                await ctx.tick()
                cycles += 1
            assert cycles == 5 * config.slots + 1
            past = past_cache(parts, config)
            assert ctx.get(dut.beyond) == past
            beyond.add(past)
            if past:  # some numbers need not fit then
                continue
            found = plain(ctx.get(dut.output))
            assert {name: of[:slots] if isinstance(of, list) else of for name, of in found.items()} == expected(
                parts, config
            )
            layout = config.kv_layout
            reads = [(one.group * layout.chunks, layout.beats(one.committed)) for one in parts if one.committed]
            for at, (start, beats) in enumerate(reads):
                ctx.set(dut.number, at)
                await ctx.tick()
                assert plain(ctx.get(dut.range)) == {"start": start, "beats": beats}

    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    assert beyond == {False, True}


def test_a_commit_has_a_row_for_every_slot() -> None:
    """Check that rows go on after the last slot of the pass, because a commit counts from the first one."""
    config = CONFIGS[2]
    dut = SequencePlaces(config)

    async def bench(ctx: Any) -> None:
        for port, value in ((dut.slots, 1), (dut.committed, 7), (dut.groups[0], 5), (dut.begin, 1)):
            ctx.set(port, value)
        await ctx.tick()
        ctx.set(dut.begin, 0)
        while not ctx.get(dut.settled):
            await ctx.tick()
        assert plain(ctx.get(dut.output))["rows"] == [5 * 2 + 7 + slot for slot in range(config.slots)]

    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()


def test_the_estimate_grows_with_the_sequences() -> None:
    small, large = (SequencePlaces(AcceleratorConfig(sequences=number)).resources for number in (2, 8))
    assert small.lut < large.lut
