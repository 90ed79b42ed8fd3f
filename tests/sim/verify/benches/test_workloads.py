"""Compare the reads that the benches expect of a pass with those of the interpreter."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

from edgedec.hw.compiler.program import laid_out
from edgedec.hw.isa.instructions import Destination, Opcode, Sink
from edgedec.sim.interpreter import Interpreter
from edgedec.sim.interpreter.matrices import matrix_layout
from edgedec.sim.verify.benches.cells import unit_cell
from edgedec.sim.verify.benches.held import may_be_held
from edgedec.sim.verify.benches.workloads import (
    COMMITTED,
    CONFIG,
    KINDS,
    NARROW,
    BenchPass,
    InterpretedPass,
    commit_readings,
    issued,
    readings,
    workload,
)
from edgedec.sim.verify.coverage import CELLS, Coverage

pytest.importorskip("cocotb")
from edgedec.sim.verify.benches.observer import Observer, firsts


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("logits", [0, 1])
def test_every_range_serves_its_instruction(kind: str, logits: int) -> None:
    program = workload(kind).program
    plan, beats = dict(issued(program, logits)), dict[int, int]()
    expected_reads = readings(program, 9, logits)
    assert [expected_reads[0].destination, expected_reads[0].beats] == [
        Destination.PROGRAM,
        4 * (len(program.instructions) + 1),
    ]
    for reading in expected_reads[1:]:
        assert reading.serves in plan
        assert reading.index is not None
        assert reading.serves < reading.index
        if reading.destination != Destination.ANGLES:
            served = program.names[reading.serves].removesuffix(".attn") + ".kv"
            assert program.names[reading.index] in (program.names[reading.serves], served)
        if reading.destination == Destination.WEIGHTS:
            beats[reading.serves] = beats.get(reading.serves, 0) + reading.beats
    matrices = {index: of for index, of in plan.items() if of.opcode == Opcode.MATRIX}
    assert beats == {index: matrix_layout(of, CONFIG).beats for index, of in matrices.items()}
    rows = CONFIG.kv_layout.beats(9)
    keys_values = [each for each in expected_reads if each.destination == Destination.KEYS_VALUES]
    heads = next(of["heads"] for of in plan.values() if of.opcode == Opcode.ATTEND)
    assert [each.beats for each in keys_values] == [rows] * 2 * heads
    assert not [each for each in readings(program, 0, logits) if each.destination == Destination.KEYS_VALUES]


@pytest.mark.parametrize("kind", KINDS)
def test_every_instruction_has_its_cell(kind: str) -> None:
    program = workload(kind).program
    for _, of in issued(program, 1):
        if of.opcode in (Opcode.LOAD, Opcode.VECTOR, Opcode.MATRIX, Opcode.ATTEND):
            for committed in (0, 1, 99):
                name, size = unit_cell(of, program, committed)
                assert size in CELLS["top"][name][0]


def test_every_cell_of_the_coverage_can_be_met() -> None:
    """Check that every size of a kind in the coverage occurs in some model at some length, and no other."""
    observer, sizes_by_kind = Observer(None), defaultdict[str, set[str]](set)
    for kind in (*KINDS, *NARROW):
        program = workload(kind).program
        starts = laid_out(program.sizes, CONFIG.ports)[0]
        observer.places = {"kv" if name == "cache" else name: (start, 1) for name, start in starts.items()}
        for committed in (0, 2, 7, 20, 74, CONFIG.context - CONFIG.slots):
            all_reads = readings(program, committed, 1) + commit_readings(program, committed, [1])
            cells = [observer.cell(reading) for reading in all_reads]
            units = (Opcode.LOAD, Opcode.VECTOR, Opcode.MATRIX, Opcode.ATTEND)
            cells += [unit_cell(of, program, committed) for _, of in issued(program, 1) if of.opcode in units]
            for name, size in cells:
                sizes_by_kind[name].add(size)
    assert sizes_by_kind == {name: set(sizes) for name, (sizes, _) in CELLS["top"].items()}


class Anything(Coverage):
    """Coverage without a list of cells."""

    def hit(self, bench: str, kind: str, size: str, stall: str) -> None:
        self.hits[bench, kind, size, stall] += 1


def test_the_coverage_has_the_reads_that_may_be_held() -> None:
    """Hold every range that may be held, in all models at several lengths, and see what the observer counts as held."""
    observer, coverage = Observer(None), Anything()
    for kind in (*KINDS, *NARROW):
        program = workload(kind).program
        starts = laid_out(program.sizes, CONFIG.ports)[0]
        observer.places = {"kv" if name == "cache" else name: (start, 1) for name, start in starts.items()}
        for committed in (0, 2, 7, 20, 74, CONFIG.context - CONFIG.slots):
            case = BenchPass(ids=(0, 0), committed=committed, logits=1)
            for ranges, of in (
                (readings(program, committed, case.logits), case),
                (commit_readings(program, committed, [1]), None),
            ):
                observer.begin(ranges)
                observer._stalls = [{"held"} if may else set() for may in may_be_held(ranges, CONFIG)]
                observer.got = observer._asked = len(observer.owners)
                observer.end(coverage, program, of)
    held = {(kind, size) for _, kind, size, stall in coverage.hits if stall == "held"}
    expected = {(kind, size) for kind, (sizes, stalls) in CELLS["top"].items() if "held" in stalls for size in sizes}
    assert held == expected


def test_every_read_and_unit_can_meet_an_error() -> None:
    """Count an error in each range that the bench disturbs: every cell of errors is hit."""
    observer, coverage = Observer(None), Anything()
    for kind in KINDS:
        program = workload(kind).program
        starts = laid_out(program.sizes, CONFIG.ports)[0]
        observer.places = {"kv" if name == "cache" else name: (start, 1) for name, start in starts.items()}
        case = BenchPass(ids=(0, 0), committed=COMMITTED[kind], logits=1)
        for reading in firsts(observer, program, case) + commit_readings(program, 74, [1]):
            observer.count_event(coverage, program, case, reading, "error")
    hit = {(kind, size) for _, kind, size, _ in coverage.hits}
    assert hit == {(kind, size) for kind, (sizes, _) in CELLS["top"].items() for size in sizes}


def test_logits_of_every_size_are_written() -> None:
    """Check that in some model the matrix whose results leave, the last of the logits, has each size of the coverage."""
    sizes = set()
    for kind in KINDS:
        program = workload(kind).program
        logits = [of for _, of in issued(program, 2) if of.opcode == Opcode.MATRIX and of["sink"] == Sink.LOGITS]
        sizes |= {unit_cell(of, program, 0)[1] for of in logits if not of["more"]}
    assert sizes == set(CELLS["top"]["MATRIX logits"][0])


def test_a_commit_reads_the_rows_that_move() -> None:
    program, layout = workload("native").program, CONFIG.kv_layout
    assert len(commit_readings(program, 6, [0, 1])) == 1
    reads_of_commit = commit_readings(program, 7, [1])[1:]
    assert len(reads_of_commit) == 2 * CONFIG.kv_heads
    run = layout.beats(CONFIG.context)
    assert [each.start for each in reads_of_commit] == [
        n * run + 8 // layout.positions * layout.chunks for n in range(len(reads_of_commit))
    ]
    assert {each.beats for each in reads_of_commit} == {layout.chunks}


@pytest.mark.thorough(sample=4)
@pytest.mark.parametrize("kind", KINDS)
def test_the_interpreter_runs_the_workloads(kind: str) -> None:
    """Check that their numbers are neither all zero nor all saturated."""
    work = workload(kind)
    machine = Interpreter(work.program)
    machine.cache[:] = np.random.default_rng(0).integers(0, 256, machine.cache.size)
    result = InterpretedPass.through(machine, work, BenchPass(ids=(1, 2), committed=30, logits=2))
    vectors = [name for name in result.made if name.endswith(".codes")]
    assert vectors
    assert all(np.abs(result.made[name]).max() == 127 for name in vectors)
    sinks = {Sink(of["sink"]) for _, of in issued(work.program, 1) if of.opcode == Opcode.MATRIX}
    assert sinks == set(Sink)
    assert not np.array_equal(result.cache, machine.cache)
