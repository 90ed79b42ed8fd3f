"""Test the matrix path and its multipliers with the matrices of whole programs: gaps x back-pressure x lent multipliers.

Design: ``design("engine")``. Codes, scales and expected rows come from the interpreter.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import cocotb
import numpy as np
from cocotb.triggers import RisingEdge
from numpy.typing import NDArray

from edgedec.hw.config import ROWS
from edgedec.hw.isa.instructions import Destination, Instruction, Opcode, Sink
from edgedec.hw.matrix.drain import row_constants
from edgedec.hw.matrix.matrix_path import descriptor
from edgedec.reference.integer_profile.numbers import I64
from edgedec.sim.interpreter import Interpreter
from edgedec.sim.interpreter.matrices import matrix_layout
from edgedec.sim.verify.benches.cells import matrix_size, weights_kind
from edgedec.sim.verify.benches.common import start, stream_answer, stream_sink, stream_source, wait_until
from edgedec.sim.verify.benches.workloads import (
    CONFIG,
    KINDS,
    BenchPass,
    InterpretedPass,
    Workload,
    issued,
    readings,
    workload,
)
from edgedec.sim.verify.coverage import Coverage

_QUICK = os.environ.get("QUICK", "0") == "1"
_KINDS = ("thin",) if _QUICK else tuple(KINDS)
_STREAMS = ("matrices", "codes", "scales", "weights", "rows")
_ROW_BITS = 32 * CONFIG.slots


@dataclass
class _Stimuli:
    """The payloads of every stream.

    Members:
        owners: number of the matrix that each beat of weights belongs to.
    """

    payloads: dict[str, list[int]] = field(default_factory=lambda: {name: [] for name in _STREAMS})
    owners: list[int] = field(default_factory=list)
    matrices: list[Instruction] = field(default_factory=list)
    expected: list[NDArray[np.int64]] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return sum(_rows_of(of) for of in self.matrices)


def _rows_of(of: Instruction) -> int:
    return ROWS * of["words"] - of["spare"]


def _stimuli(work: Workload, case: BenchPass) -> _Stimuli:
    """Return the stimuli of all matrices of a pass, in the program's order."""
    machine, program = Interpreter(work.program), work.program
    noise = np.random.default_rng(case.committed)
    machine.cache[:] = noise.integers(0, 256, machine.cache.size)
    interpreted = InterpretedPass.through(machine, work, case)
    stimuli = _Stimuli()
    vectors, pieces = list[str](), list[int]()  # pieces: elements of the matrices that make one vector
    for index, of in issued(program, case.logits):
        if of.opcode == Opcode.VECTOR:
            vectors.append(program.names[index])
        elif of.opcode == Opcode.MATRIX:
            if of["fresh"]:
                _add_vector(stimuli, interpreted, vectors.pop(0))
            stimuli.payloads["matrices"].append(_descriptor(of))
            stimuli.matrices.append(of)
            pieces.append(_rows_of(of))
            if not of["more"]:
                whole = interpreted.made[program.names[index].split(" -> ")[0]]
                assert whole.shape[1] == sum(pieces)
                stimuli.expected += np.split(whole, np.cumsum(pieces)[:-1], axis=1)
                pieces = []
    for reading in readings(program, case.committed, case.logits):
        beats = reading.bytes_of(interpreted, program) if reading.buffer != "program" else None
        if reading.destination == Destination.WEIGHTS and beats is not None:
            stimuli.payloads["weights"] += [int.from_bytes(beat.tobytes(), "little") for beat in beats]
        elif reading.destination == Destination.ROWS and beats is not None:
            stimuli.payloads["rows"] += _rows(beats, reading.spare)
    for number, of in enumerate(stimuli.matrices):
        stimuli.owners += [number] * matrix_layout(of, CONFIG).beats
    assert len(stimuli.owners) == len(stimuli.payloads["weights"])
    return stimuli


def _add_vector(stimuli: _Stimuli, interpreted: InterpretedPass, name: str) -> None:
    """Add the codes of a vector in blocks, and its scales; unused slots are zero."""
    codes = np.zeros((CONFIG.slots, interpreted.made[f"{name}.codes"].shape[1]), np.int8)
    codes[: len(interpreted.of.ids)] = interpreted.made[f"{name}.codes"]
    blocks = codes.reshape(CONFIG.slots, -1, CONFIG.beat_bytes).transpose(1, 2, 0)
    bits = 8 * CONFIG.beat_bytes * CONFIG.slots
    for number, block in enumerate(blocks):
        last = number == len(blocks) - 1
        stimuli.payloads["codes"].append(int.from_bytes(block.tobytes(), "little") | last << bits)
    scales = 0
    for slot in range(len(interpreted.of.ids)):
        mantissa, exponent = (int(interpreted.made[f"{name}.scale.{part}"][slot]) for part in ("mantissa", "exponent"))
        scales |= (mantissa | (exponent & 0xFF) << 16) << 24 * slot
    stimuli.payloads["scales"].append(scales)


def _descriptor(of: Instruction) -> int:
    names = ("fresh", "int8", "words", "blocks", "planes", "group_blocks")
    drain: dict[str, Any] = {name: of[name] for name in ("pre_shift", "pair", "rows", "wide")}
    drain |= {"base": [of["base0"], of["base1"]], "weight": [of["weight0"], of["weight1"]]}
    fields = {
        "matrix": {name: of[name] for name in names},
        "spare": of["spare"],
        "drain": {**drain, "logits": int(of["sink"] == Sink.LOGITS)},
    }
    return int(descriptor(CONFIG.depth).const(fields).as_bits())


def _rows(beats: NDArray[np.uint8], spare: int) -> Iterator[int]:
    """Yield the payloads of ``row_constants`` without the spare items at the end."""
    items = beats.reshape(-1, 8)
    shape = row_constants().members["payload"].shape
    for item in items[: len(items) - spare]:
        packed, weight = int(item.view("<u4")[0]), int(item.view("<u2")[2])
        low = packed & ((1 << 27) - 1)
        fields = {"bias": [low - (low >> 26 << 27)], "shift": [packed >> 27], "weight": [weight]}
        yield int(shape.const(fields).as_bits())


def _vectors(rows: list[int]) -> Iterator[I64]:
    """Yield each vector [slots, elements] of the rows that the drain sent."""
    pieces: list[NDArray[np.int32]] = []
    for row in rows:
        pieces.append(np.frombuffer((row & ((1 << _ROW_BITS) - 1)).to_bytes(4 * CONFIG.slots, "little"), "<i4"))
        if row >> _ROW_BITS:
            yield np.stack(pieces, axis=1).astype(np.int64)
            pieces = []
    assert not pieces, "the last vector is incomplete"


class _Watch:
    """The stalls of each matrix. A stall belongs to the matrix of the next beat or row."""

    def __init__(self, dut: Any, stimuli: _Stimuli) -> None:
        self._dut, self._stimuli = dut, stimuli
        self.stalls: list[set[str]] = [set() for _ in stimuli.matrices]
        self._outputs = [number for number, of in enumerate(stimuli.matrices) for _ in range(_rows_of(of))]

    async def run(self) -> None:
        dut, beats, rows, begun = self._dut, 0, 0, False
        names = ("weights__valid", "weights__ready", "output__valid", "output__ready", "lent")
        signals = [getattr(dut, name) for name in names]
        while True:
            await RisingEdge(dut.clk)
            valid, ready, there, taken, lent = (int(signal.value) for signal in signals)
            if beats < len(self._stimuli.owners):
                number = self._stimuli.owners[beats]
                met = self.stalls[number]
                met |= {"held"} if valid and not ready else {"late"} if ready and not valid and begun else set()
                met |= {"lent"} if lent and self._stimuli.matrices[number]["int8"] else set()
                beats += valid & ready
                begun = beats > 0
            if rows < len(self._outputs):
                self.stalls[self._outputs[rows]] |= {"output"} if there and not taken else set()
                rows += there & taken


async def _lend(dut: Any, rng: random.Random, chance: float) -> None:
    while True:
        dut.lent.value = int(rng.random() < chance)
        await RisingEdge(dut.clk)


def _start_sources(dut: Any, stimuli: _Stimuli, rng: random.Random, idle: float | None) -> list[Any]:
    """Start the sources of all streams.

    Args:
        idle: chance of an idle cycle; None: weights arrive when they are taken, and everything else at once.
    """

    def source(name: str) -> Any:
        if idle is None and name == "weights":
            return stream_answer(dut, name, stimuli.payloads[name])
        return stream_source(dut, name, stimuli.payloads[name], random.Random(rng.random()), idle or 0.0)

    return [cocotb.start_soon(source(name)) for name in _STREAMS]


async def _begin(dut: Any) -> None:
    await start(dut, idle_inputs=[*(f"{name}__valid" for name in _STREAMS), "output__ready", "lent"])


async def _whole(
    dut: Any, stimuli: _Stimuli, rng: random.Random, idle: float | None, stall: float, lent: float
) -> None:
    """Run all matrices, compare their outputs, and count their stalls."""
    watch, rows, coverage = _Watch(dut, stimuli), list[int](), Coverage()
    tasks = [
        cocotb.start_soon(watch.run()),
        cocotb.start_soon(stream_sink(dut, "output", rows, rng, stall)),
        cocotb.start_soon(_lend(dut, rng, lent)),
        *_start_sources(dut, stimuli, rng, idle),
    ]
    await wait_until(dut, lambda: len(rows) >= stimuli.rows, limit=60_000)
    for _ in range(20):
        await RisingEdge(dut.clk)
    assert len(rows) == stimuli.rows
    assert int(dut.idle.value)
    for vector, expected in zip(_vectors(rows), stimuli.expected, strict=True):
        assert np.array_equal(vector[: len(expected)], expected)
    for task in tasks:
        task.cancel()
    for of, stalls in zip(stimuli.matrices, watch.stalls, strict=True):
        for each in stalls or {"none"}:
            coverage.hit("engine", f"MATRIX {weights_kind(of)}", matrix_size(of, CONFIG.tile_words), each)
    coverage.save()


def _pass(kind: str, rng: random.Random, count: int) -> BenchPass:
    vocab = workload(kind).program.host.vocab
    return BenchPass(ids=tuple(rng.randrange(vocab) for _ in range(count)), committed=rng.randrange(20), logits=1)


@cocotb.test()
@cocotb.parametrize(kind=_KINDS, idle=[0.0, 0.6], stall=[0.0, 0.7], lent=[0.0, 0.5])
async def matrices_of_a_pass(dut: Any, kind: str, idle: float, stall: float, lent: float) -> None:
    rng = random.Random(f"{kind} {idle} {stall} {lent}")
    await _begin(dut)
    await _whole(dut, _stimuli(workload(kind), _pass(kind, rng, 1 + (idle > 0))), rng, idle, stall, lent)


@cocotb.test()
@cocotb.parametrize(kind=_KINDS)
async def matrices_without_a_stall(dut: Any, kind: str) -> None:
    """Run at the path's own pace. The path would stall weights that are always valid, because tables take longer."""
    rng = random.Random(kind)
    await _begin(dut)
    await _whole(dut, _stimuli(workload(kind), _pass(kind, rng, CONFIG.slots)), rng, None, 0.0, 0.0)


@cocotb.test()
@cocotb.parametrize(kind=_KINDS, after=[5, 40, 200, 333])
async def reset_in_mid_stream(dut: Any, kind: str, after: int) -> None:
    """After the reset, all matrices run again from the beginning."""
    rng = random.Random(f"{kind} {after}")
    stimuli = _stimuli(workload(kind), _pass(kind, rng, 2))
    await _begin(dut)
    sources = _start_sources(dut, stimuli, rng, 0.2)
    dut.output__ready.value = 1
    for _ in range(after):
        await RisingEdge(dut.clk)
    for source in sources:
        source.cancel()
    for name in _STREAMS:
        getattr(dut, f"{name}__valid").value = 0
    dut.rst.value = 1
    for _ in range(3):
        await RisingEdge(dut.clk)
    dut.rst.value = 0
    await RisingEdge(dut.clk)
    await _whole(dut, stimuli, rng, 0.2, 0.2, 0.2)


@cocotb.test()
async def a_byte_that_is_no_trits_is_an_error(dut: Any) -> None:
    """The error is signalled for one cycle, and all vectors are still sent."""
    stimuli = _stimuli(workload("thin"), _pass("thin", random.Random(1), 2))
    stimuli.payloads["weights"][3] |= 0xFF
    rows, errors = list[int](), list[int]()
    await _begin(dut)
    cocotb.start_soon(stream_sink(dut, "output", rows, random.Random(2), 0.0))
    _start_sources(dut, stimuli, random.Random(3), 0.0)
    for _ in range(60_000):
        await RisingEdge(dut.clk)
        errors.append(int(dut.error.value))
        if len(rows) == stimuli.rows:
            break
    assert sum(errors) == 1
    assert len(rows) == stimuli.rows
