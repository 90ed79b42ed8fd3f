"""Test programs that end with an error, and how the accelerator continues afterwards."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.control.command_processor import CLEARED, CommandProcessor
from edgedec.hw.isa.instructions import Base, Destination, Instruction, Opcode, When, pack
from edgedec.hw.isa.registers import ERROR_CAUSES, Cause
from edgedec.hw.isa.striping import block_bytes
from tests.hw.support.bench_command_processor import BASES, CONFIGS, Bench, Pass, program

CONFIG = CONFIGS[64]
STOP = Instruction(Opcode.STOP, {})
LOAD = Instruction(Opcode.LOAD, {"elements": 3})
READ = Instruction(Opcode.READ, {"destination": Destination.GAINS, "beats": 2, "start": 5})
GOOD = program(CONFIG, [LOAD, READ, LOAD, STOP], commit=3)


def error(ctx: Any, bench: Bench) -> tuple[int, int, int]:
    """Return cause, descriptor and address of an accelerator that has given up."""
    control = bench.control
    assert ctx.get(control.error)
    assert not ctx.get(control.done | control.busy | control.resetting)
    return ctx.get(control.cause), ctx.get(control.descriptor), ctx.get(control.error_address)


def given_up(item: Pass, expected: tuple[Cause, int, int], config: AcceleratorConfig = CONFIG, **how: Any) -> Bench:
    """Run one pass into an error; check that doorbells are ignored; then a soft reset, and a clean pass."""

    async def script(ctx: Any, bench: Bench) -> None:
        await bench.once(ctx, item)
        assert error(ctx, bench) == expected
        before = len(bench.commands), len(bench.ranges)
        await bench.press(ctx, "start")
        await ctx.tick().repeat(16)
        await bench.press(ctx, "commit")
        await ctx.tick().repeat(16)
        assert error(ctx, bench) == expected
        assert (len(bench.commands), len(bench.ranges)) == before, "something was issued after the error"
        bench.broken_range, bench.stuck = None, ()
        await clean(ctx, bench, program(config, [LOAD, READ, LOAD, STOP]))

    bench = Bench(config=config, **how).run(script)
    assert len(bench.pulses["error_set"]) == 1
    assert len(bench.pulses["done_set"]) == 1
    return bench


async def clean(ctx: Any, bench: Bench, raw: bytes) -> None:
    """Reset softly, then run a pass that depends on nothing before it."""
    control = bench.control
    await bench.press(ctx, "soft_reset")
    assert ctx.get(control.resetting)
    assert ctx.get(control.flush)
    assert not ctx.get(control.busy)
    await bench.press(ctx, "start")  # ignored during the reset
    await bench.rest(ctx)
    assert len(bench.pulses["clear"]) == CLEARED
    assert not ctx.get(control.error | control.done | control.flush | control.clear)
    assert [ctx.get(value) for value in (control.cause, control.descriptor, control.error_address)] == [0, 0, 0]
    commands, ranges = len(bench.commands), len(bench.ranges)
    await bench.once(ctx, Pass(raw=raw))
    assert ctx.get(control.done)
    assert not ctx.get(control.error)
    assert len(bench.commands) - commands == 2
    program_start = BASES["program_address"] // bench.config.beat_bytes
    read_start = BASES["image_address"] // bench.config.beat_bytes + 5
    assert [start for start, _ in bench.ranges[ranges:]] == [program_start, read_start]


def test_causes_equal_those_of_the_registers() -> None:
    assert [cause.value for cause in Cause] == list(ERROR_CAUSES)


@pytest.mark.rtl(sample=1)
@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"slots": 0}, Cause.SLOTS),
        ({"slots": CONFIG.slots + 1}, Cause.SLOTS),
        ({"slots": 2, "accepted": 0b100, "commits": True}, Cause.SLOTS),
        ({"slots": 7, "accepted": 0x80, "commits": True}, Cause.SLOTS),
        ({"slots": 3, "committed": CONFIG.context - 2}, Cause.POSITION),
        ({"committed": (1 << 20) - 1}, Cause.POSITION),
        ({"program_bytes": 0}, Cause.CUT_SHORT),
        ({"program_bytes": 31}, Cause.CUT_SHORT),
    ],
)
def test_invalid_parameters_are_refused_before_anything_is_read(change: dict[str, Any], cause: Cause) -> None:
    bench = given_up(Pass(raw=GOOD, **change), (cause, 0, 0))
    assert len(bench.ranges) == 2  # ranges of the clean pass


def addressed(config: AcceleratorConfig, name: str, address: int) -> Bench:
    """Run a program that reads nothing, with one address changed; after an error a clean one with the old address."""

    async def script(ctx: Any, bench: Bench) -> None:
        register = getattr(bench.control, f"{name}_address")
        ctx.set(register, address)
        await bench.once(ctx, Pass(raw=program(config, [LOAD, STOP])))
        if bench.pulses["error_set"]:
            assert error(ctx, bench) == (Cause.ADDRESS, 0, 0)
            ctx.set(register, BASES[f"{name}_address"])
            await clean(ctx, bench, program(config, [LOAD, READ, LOAD, STOP]))

    return Bench(config=config).run(script)


NAMES = ("program", "image", "input", "kv", "output")


@pytest.mark.nightly(sample=3)
@pytest.mark.rtl
@pytest.mark.parametrize("config", CONFIGS.values(), ids=map(str, CONFIGS))
@pytest.mark.parametrize("name", NAMES)
def test_an_address_outside_of_the_blocks_of_the_bus_is_refused(config: AcceleratorConfig, name: str) -> None:
    """Change one bit too low or too high, in a register that the program does not use as well."""
    block = block_bytes(config.ports)
    for address in (1, block + (block >> 1), (1 << 40) + block, 1 << 63):
        bench = addressed(config, name, address)
        assert len(bench.pulses["error_set"]) == 1, hex(address)
        assert len(bench.ranges) == 2  # ranges of the clean pass


@pytest.mark.rtl
@pytest.mark.parametrize("name", NAMES[1:])  # the program's address is fixed
def test_the_first_and_the_last_block_of_the_bus_are_accepted(name: str) -> None:
    for address in (0, (1 << 40) - block_bytes(CONFIG.ports)):
        bench = addressed(CONFIG, name, address)
        assert (len(bench.pulses["done_set"]), len(bench.pulses["error_set"])) == (1, 0), hex(address)


@pytest.mark.rtl
def test_addresses_are_checked_for_a_commit_too() -> None:
    async def script(ctx: Any, bench: Bench) -> None:
        ctx.set(bench.control.kv_address, BASES["kv_address"] + 64)
        await bench.once(ctx, Pass(raw=GOOD, commits=True, accepted=1))
        assert error(ctx, bench) == (Cause.ADDRESS, 0, 0)

    assert not Bench(config=CONFIG).run(script).ranges


@pytest.mark.thorough
def test_the_last_position_and_the_last_slot_can_be_used() -> None:
    item = Pass(raw=GOOD, slots=CONFIG.slots, committed=CONFIG.context - CONFIG.slots, accepted=255)

    async def script(ctx: Any, bench: Bench) -> None:
        for commits in (False, True):
            await bench.once(ctx, replace(item, commits=commits))
            assert ctx.get(bench.control.done)

    Bench(config=CONFIG).run(script)


@pytest.mark.nightly(sample=6)
@pytest.mark.rtl
@pytest.mark.parametrize("config", [CONFIGS[4], CONFIGS[64]], ids=["4", "64"])
@pytest.mark.parametrize(
    ("raw", "program_bytes", "cause"),
    [
        (b"x" + GOOD[1:], None, Cause.CONFIGURATION),
        (program(CONFIG, [STOP], configuration=1), None, Cause.CONFIGURATION),
        (
            program(CONFIG, [STOP] * 50, configuration=1),
            None,
            Cause.CONFIGURATION,
        ),  # its length is not checked first
        ([STOP] * 41, None, Cause.CUT_SHORT),
        ([STOP] * 3, 96, Cause.CUT_SHORT),
        ([STOP] * 3, 160, Cause.CUT_SHORT),
        ([STOP] * 3, 127, Cause.CUT_SHORT),
        ([STOP] * 3, 32, Cause.CUT_SHORT),
        ([STOP] * 3, 0xFFFFFFE0, Cause.CUT_SHORT),
        ([], None, Cause.CUT_SHORT),
    ],
)
def test_invalid_programs_are_not_walked(
    config: AcceleratorConfig, raw: bytes | list[Instruction], program_bytes: int | None, cause: Cause
) -> None:
    raw = raw if isinstance(raw, bytes) else program(config, raw)
    bench = given_up(Pass(raw=raw, program_bytes=program_bytes), (cause, 0, 0), config)
    assert len(bench.commands) == 2
    assert all(beats * config.beat_bytes <= 32 * config.instructions + 64 for _, beats in bench.ranges)


@pytest.mark.thorough
def test_a_commit_past_the_program_is_refused() -> None:
    given_up(Pass(raw=program(CONFIG, [STOP] * 3, commit=3)), (Cause.CUT_SHORT, 0, 0))


@pytest.mark.rtl
def test_the_largest_program_runs() -> None:
    item = Pass(raw=program(CONFIG, [READ] * (CONFIG.instructions - 1) + [STOP], commit=CONFIG.instructions - 1))

    async def script(ctx: Any, bench: Bench) -> None:
        for commits in (True, False):
            await bench.once(ctx, replace(item, commits=commits))
            assert ctx.get(bench.control.done)

    assert len(Bench(config=CONFIG).run(script).ranges) == 1 + CONFIG.instructions


WRONG = [
    Instruction(Opcode.LOAD, {}),
    bytes([15]) + bytes(31),
    Instruction(Opcode.READ, {"destination": Destination.PROGRAM, "beats": 1}),
    Instruction(Opcode.CACHE, {"heads": CONFIG.heads + 1, "group": 1}),
]


async def _once(item: Pass, ctx: Any, bench: Bench) -> None:
    await bench.once(ctx, item)


PLACED = {
    "image": Instruction(Opcode.READ, {"destination": Destination.GAINS, "beats": 1}),
    "input": Instruction(Opcode.READ, {"destination": Destination.GAINS, "beats": 1, "base": Base.INPUT}),
    "cache": Instruction(Opcode.CACHE, {"heads": 1, "group": 1}),
    "copy": Instruction(Opcode.COPY, {"heads": 1}),
    "attend": Instruction(Opcode.ATTEND, {"heads": 1, "group": 1, "kv_heads": 1}),
}


@pytest.mark.nightly(sample=1)
@pytest.mark.rtl
@pytest.mark.parametrize("kind", PLACED)
def test_an_instruction_past_the_address_space_is_refused(kind: str) -> None:
    """Check that the last beat of the bus is accepted, and that an instruction of another kind of pass is ignored."""
    base = BASES["kv_address" if kind in ("cache", "copy", "attend") else f"{kind}_address"]
    last = ((1 << 40) - base) // CONFIG.beat_bytes - 1
    original = PLACED[kind]

    def placed(start: int, **fields: int) -> Pass:
        instruction = Instruction(original.opcode, {**original.fields, **fields, "start": start})
        return Pass(raw=program(CONFIG, [LOAD, instruction, STOP]), committed=4)

    for item in (placed(last), placed(last + 1, when=When.WITH_LOGITS)):
        bench = Bench(config=CONFIG).run(partial(_once, item))
        assert (len(bench.pulses["done_set"]), len(bench.pulses["error_set"])) == (1, 0)
    for start in (last + 1, (1 << 36) - 1):
        given_up(placed(start), (Cause.DESCRIPTOR, 1, 0))


def test_only_an_instruction_with_a_place_must_be_on_the_bus() -> None:
    """Set all bits of a VECTOR that are those of another instruction's start."""
    vector = Instruction(Opcode.VECTOR, {"blocks": 1, "eps": (1 << 48) - 1})
    bench = Bench(config=CONFIG).run(partial(_once, Pass(raw=program(CONFIG, [vector, STOP]))))
    assert [name for name, _ in bench.commands] == ["vectors"]
    assert (len(bench.pulses["done_set"]), len(bench.pulses["error_set"])) == (1, 0)


@pytest.mark.rtl
@pytest.mark.parametrize("wrong", WRONG)
def test_an_invalid_instruction_is_refused(wrong: Instruction | bytes) -> None:
    raw = program(CONFIG, [LOAD, READ, wrong, LOAD, STOP])
    bench = given_up(Pass(raw=raw, committed=4), (Cause.DESCRIPTOR, 2, 0))
    assert len(bench.commands) <= 1 + 2


@pytest.mark.rtl
def test_a_skipped_instruction_is_not_checked() -> None:
    left_out = Instruction(Opcode.LOAD, {"when": When.WITH_LOGITS})
    item = Pass(raw=program(CONFIG, [left_out, STOP]))
    Bench(config=CONFIG).run(lambda ctx, bench: bench.once(ctx, item))
    given_up(replace(item, logits=1), (Cause.DESCRIPTOR, 0, 0))


@pytest.mark.rtl
def test_a_program_without_stop_is_refused() -> None:
    given_up(Pass(raw=program(CONFIG, [LOAD, LOAD])), (Cause.DESCRIPTOR, 2, 0))
    given_up(Pass(raw=program(CONFIG, [LOAD] * CONFIG.instructions)), (Cause.DESCRIPTOR, CONFIG.instructions, 0))


@pytest.mark.rtl
@pytest.mark.parametrize(("broken", "descriptor"), [(1, 1), (4, 3), (37, 37)])
def test_a_read_error_names_its_instruction(broken: int, descriptor: int) -> None:
    """Fail a later range of an instruction too, and one past the 32 that are remembered."""
    cache = Instruction(Opcode.CACHE, {"heads": 2, "group": 1, "run": 10})
    instructions = [LOAD, READ, LOAD, cache, STOP] if broken < 10 else [LOAD, *[READ] * 37, STOP]
    start = BASES["kv_address"] + 10 * 64 if broken == 4 else BASES["image_address"] + 5 * 64
    item = Pass(raw=program(CONFIG, instructions), committed=4)
    given_up(item, (Cause.READ, descriptor, start), broken_range=broken, work=300)


@pytest.mark.rtl
def test_a_read_error_of_the_program_is_reported() -> None:
    given_up(Pass(raw=GOOD), (Cause.READ, 0, BASES["program_address"]), broken_range=0)


@pytest.mark.rtl
def test_read_errors_are_counted_from_the_last_soft_reset_not_from_the_doorbell() -> None:
    async def script(ctx: Any, bench: Bench) -> None:
        await bench.once(ctx, Pass(raw=GOOD))  # ranges 0 and 1
        bench.broken_range = 3
        await bench.once(ctx, Pass(raw=program(CONFIG, [LOAD, LOAD, READ, STOP])))
        assert error(ctx, bench) == (Cause.READ, 2, BASES["image_address"] + 5 * 64)
        await bench.press(ctx, "soft_reset")
        await bench.rest(ctx)
        bench.broken_range = 1
        await bench.once(ctx, Pass(raw=GOOD))
        assert error(ctx, bench) == (Cause.READ, 1, BASES["image_address"] + 5 * 64)

    Bench(config=CONFIG, work=100).run(script)


@pytest.mark.thorough
def test_a_write_error_names_the_last_command() -> None:
    wait = Instruction(Opcode.LOAD, {"elements": 1, "wait": 1})
    item = Pass(raw=program(CONFIG, [LOAD, READ, wait, wait, wait, STOP]))

    async def script(ctx: Any, bench: Bench) -> None:
        await bench.ring(ctx, item)
        while len(bench.commands) < 3:
            await ctx.tick()
        bench.write_error_at = bench.now + 2
        await bench.rest(ctx)
        assert error(ctx, bench) == (Cause.WRITE, 3, 0)

    assert len(Bench(config=CONFIG, work=40).run(script).commands) == 3


def damaged(instructions: list[Instruction], commands: int, **how: Any) -> tuple[Bench, tuple[int, int, int]]:
    """Damage a weight after that many commands, then run a clean pass; return the error."""
    errors = []

    async def script(ctx: Any, bench: Bench) -> None:
        await bench.ring(ctx, Pass(raw=program(CONFIG, instructions)))
        while len(bench.commands) < commands:
            await ctx.tick()
        bench.damaged_at = bench.now + 2
        await bench.rest(ctx)
        errors.append(error(ctx, bench))
        assert len(bench.commands) == commands, "a command was issued after the error"
        await clean(ctx, bench, GOOD)

    bench = Bench(config=CONFIG, work=40, **how).run(script)
    assert (len(bench.pulses["error_set"]), len(bench.pulses["done_set"])) == (1, 1)
    return bench, errors[0]


@pytest.mark.rtl
def test_a_damaged_weight_names_the_last_command() -> None:
    wait = Instruction(Opcode.LOAD, {"elements": 1, "wait": 1})
    _, result = damaged([LOAD, READ, wait, wait, wait, STOP], 3)
    assert result == (Cause.WEIGHT, 3, 0)
    matrix = Instruction(Opcode.MATRIX, {"words": 1, "blocks": 1, "planes": 1, "wait": 1})
    _, result = damaged([LOAD, READ, matrix, matrix, STOP], 2, stuck=["copies"])
    assert result == (Cause.WEIGHT, 2, 0)


@pytest.mark.rtl
def test_a_damaged_weight_before_the_first_command() -> None:
    _, result = damaged([Instruction(Opcode.LOAD, {"elements": 1, "wait": 1}), STOP], 0)
    assert result == (Cause.WEIGHT, 0, 0)


@pytest.mark.rtl
def test_a_damaged_weight_while_idle_is_no_error() -> None:
    async def script(ctx: Any, bench: Bench) -> None:
        bench.damaged_at = bench.now + 2
        await ctx.tick().repeat(8)
        await bench.once(ctx, Pass(raw=GOOD))
        assert ctx.get(bench.control.done)
        bench.damaged_at = bench.now + 2
        await ctx.tick().repeat(8)
        assert ctx.get(bench.control.done)
        assert not ctx.get(bench.control.error)

    assert not Bench(config=CONFIG).run(script).pulses["error_set"]


def test_the_write_error_wins_over_another_in_the_same_cycle() -> None:
    async def script(ctx: Any, bench: Bench) -> None:
        await bench.ring(ctx, Pass(raw=program(CONFIG, [LOAD, LOAD, STOP])))
        while not bench.commands:
            await ctx.tick()
        bench.damaged_at = bench.write_error_at = bench.now + 2
        await bench.rest(ctx)
        assert error(ctx, bench)[0] == Cause.WRITE

    Bench(config=CONFIG, work=40).run(script)


@pytest.mark.rtl
def test_the_watchdog_ends_a_stalled_pass() -> None:
    """Count from the last command; a limit of 0 turns it off."""
    attend = Instruction(Opcode.ATTEND, {"heads": 1, "group": 1, "kv_heads": 1})
    raw = program(CONFIG, [LOAD, READ, LOAD, attend, LOAD, STOP])
    bench = given_up(Pass(raw=raw, watchdog_limit=100), (Cause.WATCHDOG, 2, 0), stuck=["attends"])
    assert 100 < bench.pulses["error_set"][0] - bench.issued[1] < 106
    given_up(Pass(raw=raw, watchdog_limit=10), (Cause.WATCHDOG, 0, 0))  # while the program is read

    async def script(ctx: Any, bench: Bench) -> None:
        await bench.ring(ctx, Pass(raw=raw))
        await ctx.tick().repeat(300)
        assert ctx.get(bench.control.busy)

    Bench(config=CONFIG, stuck=["attends"]).run(script)


@pytest.mark.rtl
def test_a_slow_pass_within_the_limit_of_the_watchdog_succeeds() -> None:
    wait = Instruction(Opcode.LOAD, {"elements": 1, "wait": 1})
    item = Pass(raw=program(CONFIG, [wait] * 8 + [STOP]), watchdog_limit=60)
    bench = Bench(config=CONFIG, work=40).run(lambda ctx, bench: bench.once(ctx, item))
    assert len(bench.commands) == 8
    assert bench.pulses["done_set"]
    assert bench.pulses["done_set"][0] - bench.issued[0] > 60


@pytest.mark.nightly(sample=2)
@pytest.mark.rtl
@pytest.mark.parametrize("after", [1, 2, 4, 9, 17, 33, 50])
def test_a_soft_reset_is_possible_at_any_time(after: int) -> None:
    """Reset during the checks, while the program is read, and in its walk."""
    cache = Instruction(Opcode.CACHE, {"heads": 8, "group": 2, "run": 10})
    raw = program(CONFIG, [LOAD, READ, LOAD, cache, *[READ] * 9, LOAD, STOP])

    async def script(ctx: Any, bench: Bench) -> None:
        await bench.ring(ctx, Pass(raw=raw, committed=50))
        await ctx.tick().repeat(after)
        await clean(ctx, bench, GOOD)

    bench = Bench(config=CONFIG, stall=0.2, seed=after, work=99).run(script)
    assert len(bench.pulses["done_set"]) == 1
    assert not bench.pulses["error_set"]


@pytest.mark.thorough
def test_a_soft_reset_while_idle_changes_nothing() -> None:
    Bench(config=CONFIG).run(lambda ctx, bench: clean(ctx, bench, GOOD))


@pytest.mark.rtl
def test_the_invalid_instructions_are_invalid_for_one_reason() -> None:
    """Check that valid ones of the same kinds pass."""
    valid = [
        LOAD,
        Instruction(Opcode.READ, {"destination": Destination.COPY, "beats": 1}),
        Instruction(Opcode.CACHE, {"heads": CONFIG.heads, "group": 1}),
    ]
    item = Pass(raw=program(CONFIG, [*(pack(item) for item in valid), STOP]), committed=4)
    assert Bench(config=CONFIG).run(lambda ctx, bench: bench.once(ctx, item)).pulses["done_set"]


def test_wrong_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^address_bits must be an integer from 16 to 64, not 8$"):
        CommandProcessor(CONFIG, address_bits=8)


@pytest.mark.parametrize(("ultra", "rams"), [(False, (24, 0)), (True, (0, 4))])
def test_the_estimate_is_mostly_program_memory(ultra: bool, rams: tuple[int, int]) -> None:
    configs = (AcceleratorConfig(instructions=count, ultra=ultra) for count in (512, 1536))
    small, large = (CommandProcessor(config).resources for config in configs)
    assert (small.bram18, small.dsp, small.uram) == (8, 0, 0)
    assert (large.bram18, large.uram) == rams
    assert abs(large.lut - small.lut) < 60
