"""Test that the longest program is stored and handed out, and that one too short or too long by an instruction is seen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.control.program_memory import ProgramMemory
from edgedec.hw.isa.instructions import Instruction, Opcode, ProgramHeader, pack, pack_program
from tests.hw.support.bench_streams import checked_simulator, plain

MOST = 16  # instructions, the least that a configuration may have
CONFIG = replace(AcceleratorConfig(), beat_bytes=16, instructions=MOST)


def stored(count: int, *, words: int, commit: int = 0) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Load a program of ``count`` instructions, whose length is said to be ``words`` words, and walk through it.

    Nothing takes instructions before the walk, so that one which was offered then would still be.
    """
    memory, flags = ProgramMemory(CONFIG), dict[str, int]()
    instructions = [Instruction(Opcode.READ, {"beats": n + 1, "start": 7 * n}) for n in range(count)]
    header = ProgramHeader(configuration=CONFIG.hash, instructions=count, commit=commit)
    code = pack_program(header, instructions)
    beats = [list(code[at : at + 16]) for at in range(0, 32 * words, 16)]

    items = list[dict[str, Any]]()

    async def load(ctx: Any) -> None:
        ctx.set(memory.words, words)
        await ctx.tick().repeat(4)
        ctx.set(memory.beats.valid, 1)
        for at, data in enumerate(beats):
            ctx.set(memory.beats.payload, {"data": data, "last": at == len(beats) - 1, "spare": 0})
            await ctx.tick().until(memory.beats.ready)
        ctx.set(memory.beats.valid, 0)
        await ctx.tick().until(memory.loaded)
        assert not ctx.get(memory.instructions.valid), "an instruction is offered before the walk"
        flags.update({name: int(ctx.get(getattr(memory, name))) for name in ("foreign", "cut", "commit")})
        ctx.set(memory.walk, 1)
        await ctx.tick()
        ctx.set(memory.walk, 0)
        ctx.set(memory.instructions.ready, 1)
        while len(items) < words:
            (payload,) = await ctx.tick().sample(memory.instructions.payload).until(memory.instructions.valid)
            items.append(plain(payload))

    simulator = checked_simulator(memory)
    simulator.add_clock(1e-6)
    simulator.add_testbench(load)
    simulator.run_until(1e-3)
    assert len(items) == words
    return items, flags


@pytest.mark.rtl(sample=1)
@pytest.mark.parametrize("count", [1, MOST - 1, MOST])
def test_programs_of_any_length_are_handed_out(count: int) -> None:
    items, flags = stored(count, words=count + 1, commit=count - 1)
    assert flags == {"foreign": 0, "cut": 0, "commit": count - 1}
    assert [item["index"] for item in items] == list(range(count + 1))
    assert [item["beyond"] for item in items] == [0] * count + [1]
    expected = [Instruction(Opcode.READ, {"beats": n + 1, "start": 7 * n}) for n in range(count)]
    assert [item["bits"] for item in items[:count]] == [int.from_bytes(pack(one), "little") for one in expected]


@pytest.mark.parametrize(("count", "words", "commit"), [(5, 5, 0), (5, 6, 5), (MOST, MOST, 0)])
def test_a_program_of_another_length_is_cut(count: int, words: int, commit: int) -> None:
    """Use a length that is an instruction too short, and a commit that begins after the last one."""
    assert stored(count, words=words, commit=commit)[1]["cut"] == 1
