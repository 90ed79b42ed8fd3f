from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from amaranth.hdl import Cat, Module, Signal
from amaranth.sim import Simulator

from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.control.instruction_check import out_of_range, over
from edgedec.hw.isa.instructions import Instruction, Opcode, pack

CONFIG = AcceleratorConfig(
    beat_bytes=8, ports=2, width=80, hidden=36, heads=6, kv_heads=2, head_dim=12, scaling=True
)  # 10 blocks
PLAIN = replace(CONFIG, scaling=False, per_row=False)
SOUND: dict[Opcode, dict[str, int]] = {
    Opcode.STOP: {},
    Opcode.READ: {"destination": 10, "base": 1},
    Opcode.CACHE: {"heads": 6, "group": 255},
    Opcode.COPY: {"heads": 2},
    Opcode.LOAD: {"elements": 36},
    Opcode.VECTOR: {"blocks": 10},
    Opcode.MATRIX: {"words": 1, "spare": 4, "blocks": 10, "planes": 1, "sink": 5},
    Opcode.ATTEND: {"heads": 6, "group": 1, "kv_heads": 2},
}


def refused(config: AcceleratorConfig, raw: list[bytes]) -> list[bool]:
    bits, is_wrong, results = Signal(256), Signal(), []
    m = Module()
    m.d.comb += is_wrong.eq(out_of_range(config, bits))

    async def look(ctx: Any) -> None:
        for item in raw:
            ctx.set(bits, int.from_bytes(item, "little"))
            results.append(bool(ctx.get(is_wrong)))

    simulator = Simulator(m)
    simulator.add_testbench(look)
    simulator.run()
    return results


def changed(opcode: Opcode, **fields: int) -> bytes:
    return pack(Instruction(opcode, {**SOUND[opcode], **fields}))


def test_valid_instructions_pass() -> None:
    raw = [changed(opcode, when=when, wait=1) for opcode in Opcode for when in range(3)]
    raw += [changed(Opcode.MATRIX, group_blocks=10), changed(Opcode.MATRIX, int8=1, planes=0, group_blocks=0xFFFF)]
    raw += [changed(Opcode.READ, beats=0, start=(1 << 36) - 1)]
    assert not any(refused(CONFIG, raw))


@pytest.mark.parametrize("opcode", Opcode)
def test_an_unknown_condition_is_refused(opcode: Opcode) -> None:
    assert refused(CONFIG, [changed(opcode, when=3)]) == [True]


def test_an_unknown_opcode_is_refused() -> None:
    assert all(refused(CONFIG, [bytes([opcode]) + bytes(31) for opcode in range(len(Opcode), 16)]))


WRONG: list[tuple[Opcode, dict[str, int]]] = [
    *((Opcode.READ, {"destination": destination}) for destination in (0, 11, 15)),
    *((Opcode.READ, {"base": base}) for base in (2, 3)),
    *((opcode, {"heads": heads}) for opcode in (Opcode.CACHE, Opcode.ATTEND) for heads in (0, 7, 255)),
    *((opcode, {"group": 0}) for opcode in (Opcode.CACHE, Opcode.ATTEND)),
    *((Opcode.ATTEND, {"kv_heads": heads}) for heads in (0, 3)),
    *((Opcode.COPY, {"heads": heads}) for heads in (0, 3)),
    *((opcode, {"ring": 1}) for opcode in (Opcode.CACHE, Opcode.COPY, Opcode.ATTEND)),
    *((Opcode.LOAD, {"elements": elements}) for elements in (0, 37, 0xFFFF)),
    *((opcode, {"blocks": blocks}) for opcode in (Opcode.VECTOR, Opcode.MATRIX) for blocks in (0, 11, 1 << 15)),
    *(
        (Opcode.MATRIX, change)
        for change in (
            {"words": 0},
            {"spare": 5},
            {"spare": 7},
            {"planes": 0},
            {"sink": 6},
            {"sink": 7},
            {"group_blocks": 11},
        )
    ),
]


@pytest.mark.rtl(sample=12)
@pytest.mark.parametrize(("opcode", "change"), WRONG)
def test_fields_out_of_range_are_refused(opcode: Opcode, change: dict[str, int]) -> None:
    assert refused(CONFIG, [changed(opcode, **change)]) == [True]


def test_missing_capabilities_of_the_configuration_are_refused() -> None:
    mantissas, int8 = changed(Opcode.MATRIX, group_blocks=1), changed(Opcode.MATRIX, int8=1)
    assert refused(PLAIN, [changed(Opcode.MATRIX), mantissas, int8]) == [False, True, True]
    assert refused(CONFIG, [mantissas, int8]) == [False, False]


def test_over_compares_with_every_number() -> None:
    count, m, mosts = Signal(4), Module(), range(18)
    found = Signal(len(mosts))
    m.d.comb += found.eq(Cat(over(count, most) for most in mosts))

    async def look(ctx: Any) -> None:
        for number in range(16):
            ctx.set(count, number)
            assert ctx.get(found) == sum((number > most) << most for most in mosts)

    simulator = Simulator(m)
    simulator.add_testbench(look)
    simulator.run()
