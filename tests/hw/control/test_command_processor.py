"""Test programs that are walked to their end."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.isa.instructions import Base, Destination, Instruction, Opcode, Sink, When
from tests.hw.support.bench_command_processor import (
    CONFIGS,
    RING,
    SHARED,
    Bench,
    Pass,
    as_commands,
    program,
    program_read,
    walk,
)

STOP = Instruction(Opcode.STOP, {})
LOAD = Instruction(Opcode.LOAD, {"elements": 3})


def random_instruction(rng: random.Random, config: AcceleratorConfig) -> Instruction:
    opcode = rng.choice([Opcode.READ] * 4 + [op for op in Opcode if op not in (Opcode.STOP, Opcode.READ)])
    limit = (1 << 39) // config.beat_bytes  # each base has that many beats on the bus after it
    start = {"start": rng.getrandbits(rng.choice([5, 36])) % limit, "run": rng.getrandbits(rng.choice([5, 24]))}
    heads = {"heads": rng.randint(1, config.heads), "group": rng.choice([1, 2, 3, 255])}
    fields: dict[Opcode, dict[str, int]] = {
        Opcode.READ: {
            "destination": rng.choice(list(Destination)[1:]),
            "base": rng.choice(list(Base)),
            "spare": rng.randrange(256),
            "start": start["start"],
            "beats": rng.randint(0, 4),
        },
        Opcode.CACHE: {**start, **heads},
        Opcode.COPY: {**start, "heads": rng.randint(1, config.kv_heads)},
        Opcode.LOAD: {"elements": rng.randint(1, config.hidden)},
        Opcode.VECTOR: {"source": rng.randrange(4), "blocks": rng.randint(1, config.depth), "eps": rng.getrandbits(48)},
        Opcode.MATRIX: {
            "int8": 0,
            "words": rng.randint(1, 0xFFFF),
            "spare": rng.randrange(5),
            "blocks": config.depth,
            "planes": rng.randint(1, 15),
            "sink": rng.choice(list(Sink)),
            "base1": rng.randint(-256, 255),
            "first": rng.getrandbits(20),
        },
        Opcode.ATTEND: {**start, **heads, "kv_heads": rng.randint(1, config.kv_heads), "window": rng.getrandbits(17)},
    }
    if config.ring is not None and "heads" in fields.get(opcode, {}):
        fields[opcode]["ring"] = rng.randrange(2)
    common = {"wait": int(rng.random() < 0.3), "when": rng.choice([When.ALWAYS, When.ALWAYS, *When])}
    return Instruction(opcode, {**fields[opcode], **common})


@pytest.mark.nightly(sample=4)
@pytest.mark.rtl
@pytest.mark.parametrize("seed", range(12))
def test_reads_and_commands_of_random_programs_equal_the_obvious_walk(seed: int) -> None:
    rng = random.Random(seed)
    config = CONFIGS[rng.choice(list(CONFIGS))]
    if seed % 4 >= 2:
        config = (SHARED, RING)[seed % 2]
    instructions = [random_instruction(rng, config) for _ in range(rng.randint(1, config.instructions - 1))] + [STOP]
    raw = program(config, instructions, commit=rng.randrange(len(instructions)))
    slots = rng.randint(1, config.slots)
    item = Pass(
        raw=raw,
        commits=bool(seed % 3 == 0),
        slots=slots,
        committed=rng.choice([0, 1, config.context - slots, *([rng.randrange(300)] * 3 if config is RING else [])]),
        accepted=rng.getrandbits(slots),
        logits=rng.randrange(2),
    )
    first = int.from_bytes(raw[20:24], "little") if item.commits else 0
    bench = Bench(config=config, stall=rng.choice([0, 0.2, 0.6]), seed=seed).run(
        lambda ctx, bench: bench.once(ctx, item)
    )
    expected_reads, commands = walk(config, instructions, item, first)
    assert bench.reads == [program_read(config, raw), *expected_reads]
    assert len(bench.ranges) == len(bench.entries)
    assert [(beats, destination, spare) for destination, beats, spare in bench.entries] == [
        read[1:] for read in bench.reads
    ]
    assert bench.commands == as_commands(commands)
    for busy, (number, command) in zip(bench.busy_at_issue, commands, strict=True):
        assert not (command["wait"] and busy), f"instruction {number} did not wait"
    end_cycles = bench.pulses["committed_set" if item.commits else "done_set"]
    assert len(end_cycles) == 1
    assert end_cycles[0] > max(bench.until, bench.written)
    assert not bench.pulses["done_set" if item.commits else "committed_set"] + bench.pulses["error_set"]
    assert bench.pulses["descriptor_done"] == [*bench.issued[1:], end_cycles[0] - 1][: len(commands)]


def cycles_of(config: AcceleratorConfig, instructions: list[Instruction], **how: Any) -> Bench:
    item = Pass(raw=program(config, [*instructions, STOP]), **how)
    return Bench(config=config, work=1, ahead=99).run(lambda ctx, bench: bench.once(ctx, item))


@pytest.mark.rtl
def test_a_range_takes_a_cycle() -> None:
    """Check CACHE and COPY, whose walk never delays the stream, for any number of beats; a READ takes four cycles."""
    config = CONFIGS[16]
    read = Instruction(Opcode.READ, {"destination": Destination.GAINS, "beats": 1})
    range_cycles = cycles_of(config, [read] * 20).taken[1:]
    assert range_cycles[-1] - range_cycles[0] == 4 * 19
    cache = Instruction(Opcode.CACHE, {"heads": 6, "group": 2})
    range_cycles = cycles_of(config, [cache] * 2, committed=4).taken[1:]
    assert range_cycles[11] - range_cycles[0] == 11
    assert range_cycles[-1] - range_cycles[0] <= 2 * 12 + 8
    copy = Instruction(Opcode.COPY, {"heads": 6})
    range_cycles = cycles_of(config, [copy], commits=True, slots=4, accepted=0b1010).taken[1:]
    assert [b - a for a, b in itertools.pairwise(range_cycles)].count(1) == 2 * 11
    assert range_cycles[-1] - range_cycles[0] <= 2 * 12 + 10


@pytest.mark.rtl
def test_commands_do_not_wait_for_each_other() -> None:
    issued = cycles_of(CONFIGS[64], [LOAD] * 20).issued
    assert issued[-1] - issued[0] == 4 * 19


@pytest.mark.rtl
def test_keys_and_values_have_the_order_of_attention() -> None:
    """Check K0 K1 V0 K2 V1 V2 for three query heads that share a key head, then for one alone."""
    config = CONFIGS[4]
    cache = [Instruction(Opcode.CACHE, {"start": 1000, "run": 100, "heads": heads, "group": 2}) for heads in (3, 1)]
    bench = cycles_of(config, cache, committed=5)
    at = 0x900000000 // 4 + 1000
    starts = [read[0] - at for read in bench.reads[1:]]
    assert starts == [0, 0, 100, 200, 100, 300, 0, 100]
    assert {read[1] for read in bench.reads[1:]} == {5 * 3}


def test_only_slots_that_move_are_read() -> None:
    config = CONFIGS[16]  # four positions in a group of three beats
    copy = Instruction(Opcode.COPY, {"start": 7, "run": 50, "heads": 2})
    bench = cycles_of(config, [copy], commits=True, slots=4, committed=3, accepted=0b1101)
    at = 0x900000000 // 16 + 7
    groups = [3, 3]  # positions 5 and 6, each in the group of positions 4 to 7
    assert [read[0] - at for read in bench.reads[1:]] == [group + run for group in groups for run in (0, 50, 100, 150)]
    assert len(bench.commands) == 1


@pytest.mark.rtl
@pytest.mark.parametrize("committed", [5, 74, 77, 158])
def test_a_ring_is_read_from_its_oldest_rows_on(committed: int) -> None:
    """Check one or two ranges for each run, beside a layer that keeps all rows, and the moves over the ring's end."""
    layers = [{"start": 7, "run": 300, "ring": 0}, {"start": 4000, "run": 60, "ring": 1}]
    passes = [Instruction(Opcode.CACHE, {**layer, "heads": 3, "group": 2}) for layer in layers]
    moves = [Instruction(Opcode.COPY, {**layer, "heads": 2}) for layer in layers]
    cases: list[tuple[list[Instruction], dict[str, Any]]] = [
        (passes, {}),
        (moves, {"commits": True, "slots": 4, "accepted": 0b1010}),
    ]
    for instructions, how in cases:
        item = Pass(raw=program(RING, [*instructions, STOP]), committed=committed, **how)
        assert ran(item, committed).reads[1:] == walk(RING, instructions, item)[0]


@pytest.mark.rtl
@pytest.mark.parametrize("slots", [1, 3, 8])
def test_heads_that_attend_together_read_their_runs_once(slots: int) -> None:
    """Check groups of powers of two, and others, for one, four and eight rows of a head."""
    groups = [(8, 1), (8, 2), (8, 4), (8, 8), (6, 3), (6, 6)]
    caches = [
        Instruction(Opcode.CACHE, {"start": 90 * n, "run": 5, "heads": heads, "group": group})
        for n, (heads, group) in enumerate(groups)
    ]
    item = Pass(raw=program(SHARED, [*caches, STOP]), slots=slots, committed=7)
    together = [SHARED.together(group, slots) for _, group in groups]
    assert together == {1: [1, 2, 4, 8, 1, 2], 3: [1, 2, 2, 2, 1, 2], 8: [1] * 6}[slots]
    reads = ran(item, slots, SHARED).reads[1:]
    assert reads == walk(SHARED, caches, item)[0]
    assert len(reads) == sum(2 * heads // times for (heads, _), times in zip(groups, together, strict=True))


def ran(item: Pass, seed: int, config: AcceleratorConfig = RING) -> Bench:
    return Bench(config=config, stall=0.3, seed=seed).run(lambda ctx, bench: bench.once(ctx, item))


@pytest.mark.rtl
def test_doorbells_of_a_running_program_wait() -> None:
    config = CONFIGS[64]
    raw = program(config, [LOAD] * 5 + [STOP])

    async def script(ctx: Any, bench: Bench) -> None:
        await bench.ring(ctx, Pass(raw=raw))
        await ctx.tick().repeat(3)
        ctx.set(bench.control.slots, 1)
        ctx.set(bench.control.program_bytes, len(raw))
        await bench.press(ctx, "start", "commit")  # a start alone
        await ctx.tick().repeat(12)
        ctx.set(bench.control.accepted, 1)
        await bench.press(ctx, "commit")
        await bench.rest(ctx)
        assert ctx.get(bench.control.done)

    bench = Bench(config=config).run(script)
    assert len(bench.commands) == 15
    assert len(bench.pulses["done_set"]) == 2
    assert len(bench.pulses["committed_set"]) == 1
    assert bench.pulses["committed_set"] > bench.pulses["done_set"][1:]


@pytest.mark.rtl
def test_programs_follow_each_other() -> None:
    """Check that a second program at the same place depends on nothing of the first."""
    config = CONFIGS[64]
    first = [LOAD, STOP, LOAD, LOAD, Instruction(Opcode.COPY, {"heads": 1}), STOP]
    second = [Instruction(Opcode.VECTOR, {"blocks": 2, "wait": 1}), STOP]
    items = [
        Pass(raw=program(config, first, commit=4)),
        Pass(raw=program(config, first, commit=4), commits=True, slots=2, accepted=2),
        Pass(raw=program(config, second), logits=1),
        Pass(raw=program(config, first)),
    ]

    async def script(ctx: Any, bench: Bench) -> None:
        for item in items:
            await bench.ring(ctx, item)
            assert ctx.get(bench.control.busy)
            assert not ctx.get(bench.control.done), "the program before has ended, and this one has not"
            await bench.rest(ctx)
            assert ctx.get(bench.control.done)
            assert not ctx.get(bench.control.error)

    bench = Bench(config=config, stall=0.3).run(script)
    assert [name for name, _ in bench.commands] == ["loads", "copies", "vectors", "loads"]
    assert len(bench.pulses["done_set"]) == 3
    assert len(bench.pulses["committed_set"]) == 1
