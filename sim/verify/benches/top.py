"""Test the whole accelerator with cocotbext-axi: its driver uses AXI4-Lite, and memories have gaps, stalls and errors.

Design: ``design("top")``. Results, rows of logits and the cache are compared byte by byte with sim/interpreter, and no other
memory may change.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import cocotb
import numpy as np

from edgedec.errors import DeviceError
from edgedec.hw.isa.instructions import INSTRUCTION_BYTES, Instruction, Opcode, ProgramHeader, pack
from edgedec.hw.isa.registers import Cause
from edgedec.runtime.driver.driver import Driver
from edgedec.sim.verify.benches.cells import unit_cell
from edgedec.sim.verify.benches.observer import firsts
from edgedec.sim.verify.benches.system import AcceleratorBench
from edgedec.sim.verify.benches.workloads import (
    COMMITTED,
    CONFIG,
    KINDS,
    NARROW,
    BenchPass,
    ReadRange,
    commit_readings,
    issued,
    readings,
)

_QUICK = os.environ.get("QUICK", "0") == "1"
_KINDS = ("thin",) if _QUICK else tuple(KINDS)
# Kinds, with committed positions, whose short ranges a memory without pauses offers while the units hold it.
_HELD = {"thin": 7} if _QUICK else {"thin": 7, **dict.fromkeys(NARROW, 0)}
_CHANCES = (0.0, 0.7)
_LATENCY = 100  # cycles before each burst of a memory that is slower than the units
_COPIES = "thin" if _QUICK else "native"


def _some(rng: random.Random, bench: AcceleratorBench, **fields: Any) -> BenchPass:
    count = fields.pop("count", CONFIG.slots)
    vocab = bench.work.program.host.vocab
    return BenchPass(ids=tuple(rng.randrange(vocab) for _ in range(count)), **fields)


def _passes(bench: AcceleratorBench) -> None:
    """Check passes with nothing committed, one slot, siblings with a commit of the second, and a full cache."""
    rng = bench.rng
    first = _some(rng, bench, committed=0, logits=0)
    bench.check(first)
    bench.commit(first, [0, 1])
    bench.check(_some(rng, bench, committed=2, count=1, logits=1))
    tree = _some(rng, bench, committed=3, mask=(1, 2), positions=(3, 3), logits=2)
    bench.check(tree)
    bench.commit(tree, [1])
    long = _some(rng, bench, committed=74, logits=1)
    bench.check(long)
    bench.commit(long, [1])
    bench.check(_some(rng, bench, committed=CONFIG.context - CONFIG.slots, logits=2))


@cocotb.test()
@cocotb.parametrize(kind=_KINDS, reads=_CHANCES, writes=_CHANCES)
async def passes(dut: Any, kind: str, reads: float, writes: float) -> None:
    bench = await AcceleratorBench.begin(dut, kind, reads=reads, writes=writes)
    await bench.drive(_passes)


def _starved_passes(bench: AcceleratorBench) -> None:
    """Check passes whose units are faster than the memory, so that no beat waits for a unit."""
    bench.reads.latency = _LATENCY
    for committed in (7, 74):
        bench.check(_some(bench.rng, bench, committed=committed, logits=1))


def _held_passes(bench: AcceleratorBench) -> None:
    """Check a pass whose short ranges reach the port while the units are busy with what came before them."""
    bench.check(_some(bench.rng, bench, committed=_HELD[bench.kind], logits=1))


@cocotb.test()
@cocotb.parametrize(kind=tuple(_HELD))
async def passes_of_busy_units(dut: Any, kind: str) -> None:
    bench = await AcceleratorBench.begin(dut, kind)
    await bench.drive(_held_passes)


@cocotb.test()
@cocotb.parametrize(kind=_KINDS)
async def passes_of_a_slow_memory(dut: Any, kind: str) -> None:
    bench = await AcceleratorBench.begin(dut, kind)
    await bench.drive(_starved_passes)


def _resets(bench: AcceleratorBench) -> None:
    """Abandon a pass within every kind of range, with and without a stalled memory; then run it again."""
    program, case = bench.work.program, _some(bench.rng, bench, committed=COMMITTED[bench.kind], logits=1)
    everything = readings(program, case.committed, case.logits)
    for reading, still in itertools.product(firsts(bench.observer, program, case), (True, False)):
        before = bench.elsewhere()
        start = sum(other.beats for other in everything[: everything.index(reading)])
        stop = start + bench.rng.randrange(reading.beats)
        reached = bench.leave(lambda: bench.forward(case), everything, stop, still=still)
        bench.go_on(case)
        assert bench.elsewhere() == before
        if still:
            assert reached == reading
            bench.observer.count_event(bench.coverage, program, case, reading, "reset")


def _commit(bench: AcceleratorBench, committed: int) -> None:
    """Commit slot 1 of two through the registers, because the driver discards a pass whose commit was interrupted."""
    bench.driver.registers.write("commit_slots", 2)
    bench.driver.registers.write_fields("pass_parameters", slots=2, committed=committed)
    bench.driver.ring("commit", "committed")
    bench.driver.answer()


def _commit_resets(bench: AcceleratorBench) -> None:
    case = _some(bench.rng, bench, committed=74, mask=(1, 2), positions=(74, 74), logits=0)
    bench.check(case)
    ranges = commit_readings(bench.work.program, case.committed, [1])
    for reading, still in itertools.product(ranges[1:], (True, False)):
        stop = sum(other.beats for other in ranges[: ranges.index(reading)]) + 1
        reached = bench.leave(lambda: _commit(bench, case.committed), ranges, stop, still=still)
        if still:
            assert reached == reading
            bench.coverage.hit("top", *bench.observer.cell(reading), "reset")
    bench.commit(case, [1])
    bench.check(_some(bench.rng, bench, committed=75, logits=1))


@cocotb.test()
@cocotb.parametrize(kind=_KINDS, busy=[0.3])
async def soft_resets_in_mid_stream(dut: Any, kind: str, busy: float) -> None:
    bench = await AcceleratorBench.begin(dut, kind, reads=busy, writes=busy)
    await bench.drive(_resets)


@cocotb.test()
async def soft_resets_of_commits(dut: Any) -> None:
    bench = await AcceleratorBench.begin(dut, _COPIES, writes=0.4)
    await bench.drive(_commit_resets)


def _bad_beat(bench: AcceleratorBench, reading: ReadRange) -> tuple[int, int]:
    """Return the address of a random beat of the range, and of its first beat."""
    start = bench.observer.places[reading.buffer][0] + reading.start * CONFIG.beat_bytes
    return start + bench.rng.randrange(reading.beats) * CONFIG.beat_bytes, start


def _read_errors(bench: AcceleratorBench) -> None:
    """Inject read errors into every kind of range; the error names instruction and start, and the pass works afterwards."""
    program, case = bench.work.program, _some(bench.rng, bench, committed=COMMITTED[bench.kind], logits=1)
    for reading in firsts(bench.observer, program, case):
        before = bench.elsewhere()
        address, start = _bad_beat(bench, reading)
        bench.reads.bad = frozenset({address})
        assert bench.failure(case) == (Cause.READ, reading.index or 0, start), f"{reading}"
        assert bench.elsewhere() == before
        bench.reads.bad = frozenset()
        bench.recover(case)
        bench.observer.count_event(bench.coverage, program, case, reading, "error")


def _copy_errors(bench: AcceleratorBench) -> None:
    """Inject errors into the reads and writes of a commit."""
    program, driver = bench.work.program, bench.driver
    case = _some(bench.rng, bench, committed=74, mask=(1, 2), positions=(74, 74), logits=0)
    bench.check(case)
    ranges = commit_readings(program, case.committed, [1])
    cases = itertools.product((ranges[1], ranges[-1]), ((bench.reads, Cause.READ), (bench.writes, Cause.WRITE)))
    for reading, (faulty, cause) in cases:
        address, start = _bad_beat(bench, reading)
        # The row moves by one place within its group, so a beat that is read is also written.
        faulty.bad = frozenset({address if cause == Cause.READ else address // 16 * 16})
        driver.registers.write("commit_slots", 2)
        answer = bench.ring("commit", slots=2, committed=case.committed)
        assert answer[0] == cause
        if cause == Cause.READ:
            assert answer[1:] == (reading.index, start)
        faulty.bad = frozenset()
        driver.reset()
        bench.coverage.hit("top", *bench.observer.cell(reading), "error" if cause == Cause.READ else "write error")
    bench.commit(case, [1])


def _write_errors(bench: AcceleratorBench) -> None:
    """Inject errors into writes of keys, values and results; the error names the last issued instruction or a later one."""
    program, case = bench.work.program, _some(bench.rng, bench, committed=COMMITTED[bench.kind], logits=2)
    plan = dict(issued(program, case.logits))
    attend = next(index for index, of in plan.items() if of.opcode == Opcode.ATTEND)
    logits = max(index for index, of in plan.items() if of.opcode == Opcode.MATRIX)
    rows = CONFIG.kv_layout
    place = case.committed // rows.positions * rows.chunks * rows.beat_bytes
    kv, output = bench.observer.places["kv"][0], bench.observer.places["output"][0]
    for address, index in ((kv + place, attend), (output, logits), (output + 4096, logits)):
        bench.writes.bad = frozenset({address // 16 * 16})
        cause, descriptor, _ = bench.failure(case)
        assert (cause, descriptor >= index) == (Cause.WRITE, True), f"{address:#x}: {descriptor}, not {index}"
        bench.writes.bad = frozenset()
        bench.recover(case)
        bench.coverage.hit("top", *unit_cell(plan[index], program, case.committed), "write error")


@cocotb.test()
@cocotb.parametrize(kind=_KINDS)
async def errors_of_reads(dut: Any, kind: str) -> None:
    bench = await AcceleratorBench.begin(dut, kind, reads=0.2)
    await bench.drive(_read_errors)


@cocotb.test()
async def errors_of_commits(dut: Any) -> None:
    bench = await AcceleratorBench.begin(dut, _COPIES, writes=0.2)
    await bench.drive(_copy_errors)


@cocotb.test()
@cocotb.parametrize(kind=_KINDS)
async def errors_of_writes(dut: Any, kind: str) -> None:
    bench = await AcceleratorBench.begin(dut, kind, writes=0.2)
    await bench.drive(_write_errors)


# --- damaged programs -------------------------------------------------------------------------------------------------


def _damaged(bench: AcceleratorBench) -> Iterator[tuple[int, bytes]]:
    """Yield (number of an instruction, bytes that replace it)."""
    program = bench.work.program
    plan = {of.opcode: (index, of) for index, of in issued(program, 1)}

    def changed(opcode: Opcode, **fields: int) -> tuple[int, bytes]:
        index, of = plan[opcode]
        return index, pack(Instruction(opcode, {**of.fields, **fields}))

    read = plan[Opcode.READ][0]
    yield read, bytes([9]) + bytes(INSTRUCTION_BYTES - 1)  # an opcode that does not exist
    yield changed(Opcode.READ, destination=11)
    yield changed(Opcode.READ, destination=0)
    yield changed(Opcode.READ, base=3)
    yield changed(Opcode.MATRIX, words=0)
    yield changed(Opcode.MATRIX, spare=5)
    yield changed(Opcode.MATRIX, blocks=CONFIG.depth + 1)
    yield changed(Opcode.MATRIX, planes=0)
    yield changed(Opcode.MATRIX, sink=7)
    yield changed(Opcode.VECTOR, blocks=0)
    yield changed(Opcode.ATTEND, heads=0)
    yield changed(Opcode.ATTEND, heads=CONFIG.heads + 1)
    yield changed(Opcode.CACHE, group=0)
    yield changed(Opcode.LOAD, elements=0)
    yield changed(Opcode.LOAD, elements=CONFIG.hidden + 1)


def _out_of_range(bench: AcceleratorBench) -> None:
    case = _some(bench.rng, bench, committed=3, logits=1)
    for index, raw in list(_damaged(bench)):
        at = bench.start("program") + INSTRUCTION_BYTES * (index + 1)
        good = bench.memory[at : at + INSTRUCTION_BYTES].copy()
        bench.memory[at : at + INSTRUCTION_BYTES] = np.frombuffer(raw, np.uint8)
        assert bench.failure(case) == (Cause.DESCRIPTOR, index, 0), f"instruction {index}: {raw.hex()}"
        bench.memory[at : at + INSTRUCTION_BYTES] = good
        bench.driver.reset()
    bench.recover(case)


def _no_program(bench: AcceleratorBench) -> None:
    """Run programs of another configuration, cut programs, programs with a wrong header, and no program at all."""
    program, driver = bench.work.program, bench.driver
    case, size, at = _some(bench.rng, bench, committed=3, logits=1), len(program.code), bench.start("program")
    header = program.header
    for other, cause in (
        (replace(header, configuration=header.configuration ^ 1), Cause.CONFIGURATION),
        (replace(header, instructions=header.instructions - 1), Cause.CUT_SHORT),
        (replace(header, instructions=header.instructions + 1), Cause.CUT_SHORT),
        (replace(header, commit=header.instructions), Cause.CUT_SHORT),
    ):
        _put_header(bench, other)
        assert bench.failure(case) == (cause, 0, 0), f"{other}"
        driver.reset()
    _put_header(bench, header)
    for length in (size - INSTRUCTION_BYTES, size + INSTRUCTION_BYTES, INSTRUCTION_BYTES, 0, size - 1, 1 << 31):
        driver.registers.write("program_bytes", length)
        assert bench.failure(case)[0] == Cause.CUT_SHORT, f"{length} bytes"
        driver.reset()
    driver.registers.write("program_bytes", size)
    noise = bench.memory[at : at + INSTRUCTION_BYTES].copy()
    bench.memory[at : at + INSTRUCTION_BYTES] = 0
    assert bench.failure(case) == (Cause.CONFIGURATION, 0, 0)
    bench.memory[at : at + INSTRUCTION_BYTES] = noise
    bench.recover(case)
    other_config = replace(program, config=replace(program.config, top_k=3))
    try:
        Driver(bench.device, other_config, bench.work.embedding)
    except DeviceError as error:
        assert "compile the model for this accelerator" in str(error)  # noqa: PT017
    else:
        raise AssertionError("a driver with another configuration's program")


def _put_header(bench: AcceleratorBench, header: ProgramHeader) -> None:
    at = bench.start("program")
    bench.memory[at : at + INSTRUCTION_BYTES] = np.frombuffer(header.pack(), np.uint8)


def _parameters_out_of_range(bench: AcceleratorBench) -> None:
    """Run passes with wrong numbers of slots and positions outside the cache, and commit slots that a pass did not have."""
    case, context = _some(bench.rng, bench, committed=3, logits=1), CONFIG.context
    for slots in (0, CONFIG.slots + 1, 15):
        assert bench.ring("start", slots=slots, committed=0, logits=1) == (Cause.SLOTS, 0, 0)
        bench.driver.reset()
    for slots, committed in ((1, context), (2, context - 1), (1, (1 << 20) - 1)):
        assert bench.ring("start", slots=slots, committed=committed, logits=1) == (Cause.POSITION, 0, 0)
        bench.driver.reset()
    bench.driver.registers.write("commit_slots", 2)
    assert bench.ring("commit", slots=1, committed=3) == (Cause.SLOTS, 0, 0)
    bench.recover(case)


def _ignored_while_in_error(bench: AcceleratorBench) -> None:
    """A doorbell after an error has no effect, and the first error stays."""
    case = _some(bench.rng, bench, committed=3, logits=1)
    assert bench.ring("start", slots=0, committed=0, logits=1) == (Cause.SLOTS, 0, 0)
    assert bench.ring("start", cycles=400, slots=1, committed=CONFIG.context, logits=1) == (Cause.SLOTS, 0, 0)
    bench.recover(case)


@cocotb.test()
async def descriptors_out_of_range(dut: Any) -> None:
    bench = await AcceleratorBench.begin(dut, "thin")
    await bench.drive(_out_of_range)


@cocotb.test()
async def no_program_of_this_accelerator(dut: Any) -> None:
    bench = await AcceleratorBench.begin(dut, "thin")
    await bench.drive(_no_program)


@cocotb.test()
async def parameters_out_of_range(dut: Any) -> None:
    bench = await AcceleratorBench.begin(dut, "thin")
    await bench.drive(_parameters_out_of_range)
    await bench.drive(_ignored_while_in_error)


# --- stalled memory ---------------------------------------------------------------------------------------------------


def _stalled(bench: AcceleratorBench, side: str) -> None:
    """The watchdog reports the stall. A soft reset waits for the buses, reports that, and works when they move again."""
    case = _some(bench.rng, bench, committed=7, logits=1)
    cycles = bench.check(case)
    bench.driver.registers.write("watchdog_limit", 2 * cycles)
    before = bench.elsewhere()
    channels = {"r": bench.reads.r_channel, "ar": bench.reads.ar_channel, "w": bench.writes.w_channel}
    channel = {**channels, "aw": bench.writes.aw_channel, "b": bench.writes.b_channel}[side]
    moves = bench.rng.randrange(cycles // 2) if side in ("r", "ar") else 0
    channel.set_pause_generator(itertools.chain(itertools.repeat(False, moves), itertools.repeat(True)))
    cause, descriptor, _ = bench.failure(case)
    assert cause == Cause.WATCHDOG
    assert descriptor < len(bench.work.program.instructions)
    try:
        bench.driver.reset(max_cycles=1000)
    except DeviceError as error:
        assert "buses are not at rest" in str(error)  # noqa: PT017
    else:
        raise AssertionError("a reset while the bus stands still")
    channel.clear_pause_generator()
    channel.pause = False
    bench.recover(case)
    assert bench.elsewhere() == before


@cocotb.test()
@cocotb.parametrize(side=["r", "ar", "w", "aw", "b"])
async def stalled_memory(dut: Any, side: str) -> None:
    bench = await AcceleratorBench.begin(dut, "thin")
    await bench.drive(_stalled, side)
