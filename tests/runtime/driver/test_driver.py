"""Test a driver on registers with scripted values: its refusals, and its messages about an accelerator that gave up."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from edgedec.errors import DeviceError, UsageError
from edgedec.graph.ops import Embed
from edgedec.hw.compiler.choose import config_for
from edgedec.hw.compiler.program import Program, compile_model, laid_out
from edgedec.hw.config import RING_SLACK
from edgedec.hw.isa.instructions import Instruction, Opcode
from edgedec.hw.isa.registers import ERROR_CAUSES, REGISTER_MAP, Cause
from edgedec.hw.isa.striping import block_bytes
from edgedec.runtime.driver.driver import Driver
from edgedec.runtime.driver.report import issued
from edgedec.sim.machine.arena import ArenaBuffer
from edgedec.sim.machine.device import MachineDevice
from edgedec.sim.verify.benches.workloads import issued as benched
from tests.edgedec.reference.integer_profile.support.make_models import prepared, tiny

MODEL = tiny("native")[2]


@cache
def program() -> Program:
    return compile_model(MODEL, config_for(MODEL, beat_bytes=16, ports=2, slots=2, context=32))


def embedding() -> Any:
    (embed,) = (op for op in MODEL.graph.operations if isinstance(op, Embed))
    constants: Any = MODEL.constants[embed.name]
    return constants.weight


@cache
def ringed() -> Program:
    graph, weights, _ = tiny("native")
    states = {name: replace(state, window=9) for name, state in graph.states.items()}
    model = prepared(replace(graph, states=states), weights)
    return compile_model(model, config_for(model, beat_bytes=16, ports=2, slots=2, context=256))


def size(of: Program) -> int:
    return laid_out(of.sizes, of.config.ports)[1]


class Registers:
    """Model an accelerator that gives up at every doorbell.

    Members:
        values: contents of the registers by offset, 32 bits each.
    """

    def __init__(self, cause: int, descriptor: int, configuration: int | None = None) -> None:
        self._error = cause | descriptor << 8
        self._event = next(lsb for field, lsb in REGISTER_MAP["interrupt_status"].positions() if field.name == "error")
        self.values: dict[int, int] = {}
        for name in ("identity", "version", "isa_version"):
            self.values[REGISTER_MAP[name].offset] = REGISTER_MAP[name].reset
        for word in range(2):
            self.values[REGISTER_MAP["configuration_hash"].offset + 4 * word] = (
                program().config.hash if configuration is None else configuration
            ) >> 32 * word & 0xFFFFFFFF

    def read_register(self, offset: int) -> int:
        return self.values.get(offset, 0)

    def write_register(self, offset: int, value: int) -> None:
        self.values[offset] = value

    def run(self, max_cycles: int) -> int:
        self.values[REGISTER_MAP["interrupt_status"].offset] = 1 << self._event
        self.values[REGISTER_MAP["error"].offset] = self._error
        return 1


def opened(
    *, cause: int = 0, descriptor: int = 0, address: int = 0, of: Program | None = None, missing: int = 0
) -> Driver:
    of = of or program()
    memory = np.zeros(size(of) - missing, np.uint8)
    device = MachineDevice("fake", Registers(cause, descriptor, of.config.hash), memory, clock_hz=1e8, address=address)
    return Driver(device, of, embedding())


def said(driver: Driver) -> str:
    with pytest.raises(DeviceError) as caught:
        driver.forward(np.array([1], np.int32))
    return str(caught.value)


def test_every_cause_is_named() -> None:
    for cause in list(Cause)[1:]:
        assert ERROR_CAUSES[cause] in said(opened(cause=cause, descriptor=2))


def test_a_damaged_weight_names_the_last_instruction_and_the_next_step() -> None:
    number = next(n for n, instruction in enumerate(program().instructions) if instruction.opcode == Opcode.MATRIX)
    assert said(opened(cause=Cause.WEIGHT, descriptor=number)) == (
        f"the accelerator gave up in instruction {number} (MATRIX {program().names[number]}): a byte of ternary weights "
        "does not encode five trits; reset it, and load the program again"
    )


@pytest.mark.parametrize(("name", "expected"), [("identity", "0x63656465"), ("version", "0x4")])
def test_another_device_on_the_bus_is_refused(name: str, expected: str) -> None:
    registers = Registers(0, 0)
    registers.values[REGISTER_MAP[name].offset] = 0xDEADBEEF
    device = MachineDevice("fake", registers, np.zeros(size(program()), np.uint8), clock_hz=1e8)
    with pytest.raises(
        DeviceError,
        match=rf"^register {name} reads 0xdeadbeef, not {expected}: no accelerator of this edgedec; load its bitstream$",
    ):
        Driver(device, program(), embedding())
    assert REGISTER_MAP["control"].offset not in registers.values, "something was written to what is not known"


def test_the_driver_counts_the_same_instructions_as_the_benches() -> None:
    """Compare with the benches, which observe the hardware."""
    units = [Opcode.LOAD, Opcode.VECTOR, Opcode.MATRIX, Opcode.ATTEND]
    for logits in (False, True):
        executed = [entry for _, entry in benched(program(), int(logits)) if entry.opcode in units]
        assert [program().instructions[n] for n in issued(program(), commits=False, logits=logits)] == executed
    copied = [program().instructions[n] for n in issued(program(), commits=True, logits=False)]
    assert copied == [entry for entry in program().instructions if entry.opcode == Opcode.COPY]


def test_a_reset_that_does_not_end_is_an_error() -> None:
    driver = opened()
    registers: Any = driver.device.machine  # type: ignore[attr-defined]
    (resetting,) = (lsb for field, lsb in REGISTER_MAP["status"].positions() if field.name == "resetting")
    registers.values[REGISTER_MAP["status"].offset] = 1 << resetting
    with pytest.raises(
        DeviceError, match="the buses are not at rest 128 cycles after a soft reset; power the board off"
    ):
        driver.reset(128)


def test_an_impossible_address_is_shown() -> None:
    driver = opened(cause=Cause.ADDRESS)
    driver.registers.write("kv_address", 0x12345)
    message = said(driver)
    assert "did not begin" in message
    assert "kv_address 0x12345" in message
    assert f"the block is {block_bytes(2)} bytes, the bus ends at 0x10000000000" in message


def test_memory_past_the_end_of_the_bus_is_refused() -> None:
    opened(address=(1 << 40) - size(program()))
    with pytest.raises(DeviceError, match=r"^the output buffer, .* ends after .*bus, 0xffffffffff: use a smaller"):
        opened(address=(1 << 40) - size(program()) + 8192)


def test_memory_that_is_too_small_is_refused() -> None:
    with pytest.raises(DeviceError, match=r"^a buffer of \d+ bytes does not fit .* bytes are free; give it more"):
        opened(missing=1)


def test_a_device_that_ignores_the_alignment_is_refused() -> None:
    class Careless(MachineDevice):
        def allocate(self, size_bytes: int, *, alignment_bytes: int = 4096) -> ArenaBuffer:
            return super().allocate(size_bytes, alignment_bytes=1)

    device = Careless("fake", Registers(0, 0), np.zeros(1 << 20, np.uint8), clock_hz=1e8, address=4096)
    with pytest.raises(DeviceError, match=r"program buffer must begin at a multiple of 8192 bytes, not at 0x1000$"):
        Driver(device, program(), embedding())
    assert device.allocate(1 << 20).array.size == 1 << 20, "what was allocated was not given back"


@pytest.mark.parametrize("opcode", [Opcode.READ, Opcode.CACHE, Opcode.COPY, Opcode.ATTEND])
def test_an_instruction_past_its_buffer_is_refused(opcode: Opcode) -> None:
    """Check that the last possible address is accepted, and one beat further refused."""
    whole = program()
    assert whole.astray() is None
    number = max(n for n, original in enumerate(whole.instructions) if original.opcode == opcode)
    original = whole.instructions[number]

    def moved(beats: int) -> Program:
        moved_instruction = Instruction(opcode, {**original.fields, "start": original["start"] + beats})
        return replace(
            whole, instructions=(*whole.instructions[:number], moved_instruction, *whole.instructions[number + 1 :])
        )

    beats = (
        whole.image.size // whole.config.beat_bytes - original["start"] - original["beats"]
        if opcode == Opcode.READ
        else 0
    )
    assert moved(beats).astray() is None
    assert moved(beats + 1).astray() == number
    with pytest.raises(UsageError, match=rf"^instruction {number} \({opcode.name} .*leaves its buffer"):
        opened(of=moved(beats + 1))


def test_an_instruction_with_an_invalid_base_is_refused() -> None:
    whole = program()
    stray = Instruction(Opcode.READ, {"base": 3})
    assert replace(whole, instructions=(stray, *whole.instructions[1:])).astray() == 0


def test_a_ring_keeps_the_rows_of_a_short_way_back() -> None:
    """Go back by what the slack allows, in one step and in two; further back, none of the rows is of use."""
    with opened(of=ringed()) as driver:
        driver.length = 200
        driver.part.longest = 200
        assert driver.truncate(200) == driver.length == 200
        assert driver.truncate(180) == 180
        assert driver.truncate(200 - RING_SLACK) == 200 - RING_SLACK
        assert driver.truncate(200 - RING_SLACK - 4) == driver.length == 0
        driver.length = driver.part.longest = 40  # the first row that the ring lacks is 1
        assert driver.truncate(8) == 8


def test_a_position_before_those_of_a_ring_is_refused() -> None:
    with opened(of=ringed()) as driver:
        driver.length = 100
        with pytest.raises(
            UsageError, match=r"^position 99 lies before the 100 committed ones, of which rings keep only"
        ):
            driver.submit(np.array([1, 2], np.int32), positions=np.array([100, 99], np.int32))
