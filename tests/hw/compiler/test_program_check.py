"""Test that programs are refused which the accelerator would run with other integers than the interpreter gives."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec.errors import BundleError, DeviceError, UsageError
from edgedec.hw.compiler.program import Program, compile_model
from edgedec.hw.compiler.program_check import executed, find_fault
from edgedec.hw.compiler.program_file import load_program, save_program
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.isa.instructions import Instruction, Opcode, ProgramHeader, Sink, Source, When, pack_program
from edgedec.hw.isa.striping import block_bytes
from edgedec.runtime.driver.driver import Driver
from edgedec.runtime.driver.regions import Region
from edgedec.sim.devices.interpreter import InterpreterDevice
from edgedec.sim.interpreter import Interpreter
from edgedec.sim.verify.streams.make import interpreted, make_stream
from edgedec.sim.verify.streams.stream import PLAIN, WITH_UNITS, RandomStream
from tests.runtime.driver.support.bench_session import MODEL, embedding, ids
from tests.sim.support.make_small_top import CONFIG

RELU2 = {"relu2": 1}


def vector(source: Source) -> Instruction:
    return Instruction(Opcode.VECTOR, {"source": int(source), "blocks": 1})


def matrix(sink: Sink, *, fresh: int = 1, **fields: int) -> Instruction:
    return Instruction(Opcode.MATRIX, {"sink": int(sink), "fresh": fresh, "words": 1, "blocks": 1, **fields})


def gate(**fields: int) -> Instruction:
    return matrix(Sink.GATE, **fields)


LOADED, GATED, ADDED = vector(Source.LOAD), vector(Source.GATE), vector(Source.RESIDUAL)
ADDS = matrix(Sink.RESIDUAL)


def fault(instructions: list[Instruction], config: AcceleratorConfig = PLAIN) -> tuple[int, str] | None:
    found = find_fault(enumerate(instructions), config)
    return None if found is None else (found.number, found.reason)


@pytest.mark.parametrize(
    ("instructions", "number"),
    [
        ([LOADED, gate(), GATED, gate(**RELU2)], 3),  # codes of the gate before
        ([LOADED, gate(), GATED, gate(gate_shift=3)], 3),
        ([LOADED, gate(more=1), gate(fresh=0), GATED, gate(more=1, **RELU2), gate(fresh=0, **RELU2)], 4),
        ([gate(), gate(fresh=0, **RELU2)], 1),  # both of the first codes
        ([LOADED, gate(), gate(fresh=0, **RELU2)], 2),  # both of the same codes, of which no vector is announced
        ([LOADED, gate(), GATED, matrix(Sink.QUERIES, fresh=0), gate(**RELU2)], 4),  # the codes are older than the gate
        ([LOADED, gate(), GATED, gate(), GATED, gate(**RELU2)], 5),  # the last of several of one activation
        ([LOADED, gate(), GATED, gate(), GATED], None),
        ([LOADED, gate(), GATED, ADDS, ADDED, gate(**RELU2)], None),
        ([LOADED, gate(), GATED, matrix(Sink.LOGITS), gate(fresh=0, **RELU2)], None),
        ([LOADED, gate(), GATED, gate(more=1), gate(fresh=0, **RELU2)], None),  # a piece: another message
    ],
)
def test_a_gate_does_not_replace_the_activation_of_one_that_may_be_at_work(
    instructions: list[Instruction], number: int | None
) -> None:
    found = fault(instructions)
    if number is None:
        assert found is None or "goes on with the vector of instruction 3" in found[1]
    else:
        assert found is not None
        assert found[0] == number
        assert "replaces the activation of the gate in instruction " in found[1]


@pytest.mark.parametrize(
    ("instructions", "message"),
    [
        (
            [LOADED, gate(more=1), gate(fresh=0, **RELU2)],
            "goes on with the vector of instruction 1, and has another relu2",
        ),
        (
            [LOADED, gate(more=1), matrix(Sink.QUERIES, fresh=0)],
            "goes on with the vector of instruction 1, and has another sink",
        ),
        *(
            ([LOADED, matrix(sink, more=1, **common), matrix(sink, fresh=0, **common, **{name: 1})], f"another {name}")
            for sink, names, common in (
                (Sink.QUERIES, ("rotate", "shift", "norm_heads"), {}),
                (Sink.KEYS, ("rotate", "shift", "norm_heads"), {}),
                (Sink.VALUES, ("rotate", "shift", "norm_heads"), {}),
                (Sink.LOGITS, ("elements", "first"), {}),
                (Sink.RESIDUAL, ("norm_rows", "onward"), {}),
                (Sink.RESIDUAL, ("elements",), {"norm_rows": 1}),
            )
            for name in names
        ),
        ([LOADED, matrix(Sink.RESIDUAL, norm_rows=1, elements=13)], "adds 13 elements from 0 on, past the 12 of"),
        ([LOADED, matrix(Sink.LOGITS, tied=1)], "has tied planes, which the accelerator adds without a factor"),
        ([LOADED, matrix(Sink.RESIDUAL, start=4096)], "adds from element 4096 of the residual on, not from 0"),
        (
            [LOADED, matrix(Sink.RESIDUAL, more=1), matrix(Sink.RESIDUAL, fresh=0, start=21)],
            "from element 21 .* not from 5",
        ),
        ([LOADED, matrix(Sink.RESIDUAL, norm_rows=1, start=16)], "adds from element 16 of the residual on, not from 0"),
        ([LOADED, matrix(Sink.RESIDUAL, words=3, spare=2)], "adds 13 elements from 0 on, past the 12 of the residual"),
        ([Instruction(Opcode.ATTEND, {"sinks": 17})], "has sinks=17, and the accelerator 16 positions"),
        (
            [Instruction(Opcode.ATTEND, {"sinks": 1, "ring": 1})],
            "has sinks=1 in a ring, which keeps no first positions",
        ),
        ([LOADED, matrix(Sink.RESIDUAL, words=3, spare=3), Instruction(Opcode.ATTEND, {"sinks": 16})], None),
        ([LOADED, matrix(Sink.RESIDUAL, more=1), matrix(Sink.RESIDUAL, fresh=0, start=5)], None),
    ],
)
def test_values_that_do_not_fit_are_refused_by_name(instructions: list[Instruction], message: str | None) -> None:
    found = fault(instructions)
    if message is None:
        assert found is None
    else:
        assert found is not None
        assert re.search(message, found[1])


def test_a_pass_has_the_instructions_up_to_its_stop() -> None:
    stop = Instruction(Opcode.STOP, {})
    of_logits = Instruction(Opcode.LOAD, {"elements": 1, "when": int(When.WITH_LOGITS)})
    assert [number for number, _ in executed([of_logits, LOADED, stop, LOADED], logits=True)] == [0, 1, 2]
    assert [number for number, _ in executed([of_logits, LOADED, stop, LOADED], logits=False)] == [1, 2]


def many_sinks() -> tuple[Program, int]:
    """Return a program whose first attention has more first positions than there are, and the number of it."""
    whole = compile_model(MODEL, CONFIG)
    number = next(number for number, one in enumerate(whole.instructions) if one.opcode == Opcode.ATTEND)
    one = whole.instructions[number]
    changed = Instruction(one.opcode, {**one.fields, "window": 4, "sinks": CONFIG.context + 1})
    return replace(
        whole, instructions=(*whole.instructions[:number], changed, *whole.instructions[number + 1 :])
    ), number


def test_program_files_driver_and_interpreter_refuse_it(tmp_path: Path) -> None:
    program, number = many_sinks()
    said = rf"instruction {number} .*has sinks={CONFIG.context + 1}, and the accelerator {CONFIG.context} positions; compile"
    save_program(program, tmp_path / "program")
    with pytest.raises(BundleError, match=f"code.bin: {said}"):
        load_program(tmp_path / "program")
    with pytest.raises(UsageError, match=said):
        Driver(InterpreterDevice(CONFIG), program, embedding())
    machine = Interpreter(program)
    for logits in (0, 1):
        with pytest.raises(BundleError, match=said):
            machine.run_pass(1, 0, logits=logits)
        assert machine.at == number


def test_a_program_that_is_refused_leaves_the_one_before_as_it_was() -> None:
    """Let the device read another program, which leaves its cache, between two passes of a good one."""
    device = InterpreterDevice(CONFIG)
    with Driver(device, compile_model(MODEL, CONFIG), embedding()) as driver:
        stop, stray = Instruction(Opcode.STOP, {}), Instruction(Opcode.COPY, {"start": 1 << 30, "heads": 1})
        header = ProgramHeader(configuration=CONFIG.hash, instructions=3, commit=1)
        other = Region(device.allocate(block_bytes(CONFIG.ports), alignment_bytes=block_bytes(CONFIG.ports)), CONFIG)
        code = np.frombuffer(pack_program(header, [stop, stray, stop]), np.uint8)
        other.put(code)
        driver.forward(ids(1))
        first = driver.results(ids(0)).logits
        write = driver.registers.write
        write("program_address", other.address)
        write("program_bytes", code.size)
        with pytest.raises(DeviceError, match="read"):
            driver.forward(ids(1))
        write("program_address", driver.regions["program"].address)
        write("program_bytes", len(driver.program.code))
        driver.forward(ids(1))
        assert np.array_equal(driver.results(ids(0)).logits, first)


def test_a_commit_of_no_slots_is_refused() -> None:
    device = InterpreterDevice(CONFIG)
    with Driver(device, compile_model(MODEL, CONFIG), embedding()) as driver:
        driver.registers.write("commit_slots", 0)
        with pytest.raises(
            UsageError, match=r"a commit of no slots \(register commit_slots is 0\) has nothing to move"
        ):
            driver.registers.write_fields("control", commit=1)
        driver.registers.write("commit_slots", 1)
        driver.registers.write_fields("control", commit=1)


def with_two_gates(config: AcceleratorConfig, seed: int) -> tuple[RandomStream, int]:
    """Return a random stream in which a gate has the codes of another one, and the number of the second one.

    Args:
        seed: number of the first stream that is tried.
    """
    for trial in range(seed, seed + 1000):
        stream = make_stream(config, trial)
        gates = [
            number
            for number, one in executed(stream.program.instructions, logits=bool(stream.logits))
            if one.opcode == Opcode.MATRIX and not one["more"]
        ]
        for before, after in pairwise(gates):
            pair = (stream.program.instructions[before], stream.program.instructions[after])
            if all(one["sink"] == Sink.GATE for one in pair) and pair[1]["fresh"]:
                return stream, after
    raise AssertionError("no stream has two gates")


@pytest.mark.parametrize(("config", "seed"), [(PLAIN, 210), (WITH_UNITS, 35)])
def test_random_streams_keep_to_one_activation(config: AcceleratorConfig, seed: int) -> None:
    """Change the activation of the second of two gates, which the interpreter refuses then."""
    stream, number = with_two_gates(config, seed)
    interpreted(stream)
    instructions: list[Any] = list(stream.program.instructions)
    one = instructions[number]
    instructions[number] = Instruction(one.opcode, {**one.fields, "relu2": 1 - one["relu2"]})
    broken = replace(stream, program=replace(stream.program, instructions=tuple(instructions)))
    with pytest.raises(
        BundleError, match=rf"instruction {number} replaces the activation of the gate in instruction \d+"
    ):
        interpreted(broken)
