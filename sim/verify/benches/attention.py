"""Test attention and its multipliers with the layers of whole programs: gaps x back-pressure x committed positions.

Design: ``design("attention")``. Inputs and expected outputs come from the interpreter. The bench keeps the order that
AttentionPath requires: a pass's parts, ``attends`` after they are coded, and the next pass when the path is idle.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import cocotb
import numpy as np
from cocotb.triggers import RisingEdge
from numpy.typing import NDArray

from edgedec.hw.attention import coder
from edgedec.hw.attention.head_feeder import attend
from edgedec.hw.attention.head_shape import HeadShape
from edgedec.hw.attention.parts import head_factor, part
from edgedec.hw.attention.rotary import angles
from edgedec.hw.attention.score_memory import visibility
from edgedec.hw.isa.instructions import Destination, Instruction, Opcode, Sink
from edgedec.reference.integer_profile.numbers import I64
from edgedec.sim.interpreter import Interpreter
from edgedec.sim.verify.benches.cells import committed_size
from edgedec.sim.verify.benches.common import start, stream_answer, stream_sink, stream_source, wait_until
from edgedec.sim.verify.benches.workloads import (
    CONFIG,
    BenchPass,
    InterpretedPass,
    Workload,
    issued,
    readings,
    workload,
)
from edgedec.sim.verify.coverage import Coverage

_QUICK = os.environ.get("QUICK", "0") == "1"
_KINDS = ("thin",) if _QUICK else ("native", "thin")
_FREE = ("input", "coding", "factors", "scales", "beats")  # streams that are independent of each other
_SLOTS, _OUT_BITS, _IN_BITS = CONFIG.slots, 27, 18
_PARTS = {Sink.QUERIES: 0, Sink.KEYS: 1, Sink.VALUES: 2}


@dataclass
class _Stimuli:
    """The stimuli of one layer in one pass.

    Members:
        angles, parts, attends: payloads in the order in which they are offered.
        seen: value of ``visibility``.
    """

    angles: list[int] = field(default_factory=list)
    parts: list[int] = field(default_factory=list)
    attends: list[int] = field(default_factory=list)
    free: dict[str, list[int]] = field(default_factory=lambda: {name: [] for name in _FREE})
    seen: int = 0
    output: I64 = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    keys: I64 = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    values: I64 = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    committed: int = 0

    @property
    def counts(self) -> dict[str, int]:
        """Number of items of every output."""
        rows = self.keys.shape[1] // CONFIG.chunk
        return {"output": self.output.shape[1], "new_keys": rows, "new_values": rows}


def _bits(layout: Any, value: Any) -> int:
    return int(layout.const(value).as_bits())


def _stimuli(work: Workload, case: BenchPass) -> _Stimuli:
    machine, program = Interpreter(work.program), work.program
    noise = np.random.default_rng(case.committed)
    machine.cache[:] = noise.integers(0, 256, machine.cache.size)
    interpreted = InterpretedPass.through(machine, work, case)
    stimuli = _Stimuli(committed=case.committed)
    for index, of in issued(program, case.logits):
        if of.opcode == Opcode.MATRIX and Sink(of["sink"]) in _PARTS:
            _add_part(stimuli, interpreted, of, program.names[index])
        elif of.opcode == Opcode.ATTEND:
            name = program.names[index]
            stimuli.attends.append(_bits(attend(), {"heads": of["heads"], "group": of["group"]}))
            stimuli.output = interpreted.made[name]
            own = len(case.ids)
            stimuli.keys, stimuli.values = (
                interpreted.made[f"{name}.{each}"].reshape(own, -1) for each in ("k8", "v8")
            )
            stimuli.seen = _seen(case, of)
    for reading in readings(program, case.committed, case.logits):
        if reading.buffer != "program":
            _add_items(stimuli, reading.destination, reading.bytes_of(interpreted, program), reading.spare)
    return stimuli


def _add_part(stimuli: _Stimuli, interpreted: InterpretedPass, of: Instruction, name: str) -> None:
    if of["more"]:
        return  # the trace has the whole vector with its last piece
    fields = {"part": _PARTS[Sink(of["sink"])], "rotate": of["rotate"], "shift": of["shift"]}
    stimuli.parts.append(_bits(part(), fields))
    made = interpreted.made[name.split(" -> ")[0]]
    vector = np.zeros((_SLOTS, made.shape[1]), np.int64)
    vector[: len(interpreted.of.ids)] = made
    for number, element in enumerate(vector.T):
        bits = sum((int(x) & ((1 << _IN_BITS) - 1)) << _IN_BITS * slot for slot, x in enumerate(element))
        stimuli.free["input"].append(bits | (number == made.shape[1] - 1) << _IN_BITS * _SLOTS)


def _add_items(stimuli: _Stimuli, destination: Destination, beats: NDArray[np.uint8], spare: int) -> None:
    """Add items of the read stream, in the form in which the datapath's unpackers send them."""

    def items(size: int) -> NDArray[np.uint8]:
        whole = beats.reshape(-1, size)
        return whole[: len(whole) - spare]

    if destination == Destination.ANGLES:
        turns = items(4 * _SLOTS).view("<i2").reshape(-1, _SLOTS, 2).tolist()
        for turn in turns:
            value = {"cos": [[slot[0] for slot in turn]], "sin": [[slot[1] for slot in turn]]}
            stimuli.angles.append(_bits(angles(_SLOTS, 1), value))
    elif destination == Destination.CODING:
        for item in items(8):
            mantissa, middle = int(item.view("<u2")[0]), int(item.view("<i4")[1])
            stimuli.free["coding"].append(_bits(coder.constants(), {"mantissa": mantissa, "middle": middle}))
    elif destination == Destination.FACTORS:
        for item in items(4):
            fields = {"factor": int(item.view("<u2")[0]), "shift": int(item[2])}
            stimuli.free["factors"].append(_bits(head_factor(), fields))
    elif destination == Destination.SCALES:
        stimuli.free["scales"] += [int.from_bytes(item.tobytes(), "little") for item in items(2)]
    elif destination == Destination.KEYS_VALUES:
        stimuli.free["beats"] += [int.from_bytes(beat.tobytes(), "little") for beat in beats]


def _seen(case: BenchPass, of: Instruction) -> int:
    """Return the payload of ``visibility``, which has the slots and positions that each slot sees."""
    window = of["window"]
    first = [max(0, place + 1 - window) if window else 0 for place in case.places]
    fields = {
        "committed": case.committed,
        "own": len(case.ids),
        "first": first + [0] * (_SLOTS - len(first)),
        "sinks": of["sinks"],
        "mask": [[mask >> slot & 1 for slot in range(_SLOTS)] for mask in case.masks]
        + [[0] * _SLOTS] * (_SLOTS - len(case.ids)),
    }
    return _bits(visibility(HeadShape.of(CONFIG)), fields)


def _signed(bits: int, width: int) -> int:
    return bits - (bits >> (width - 1) << width)


def _rows(items: list[int], width: int, lanes: int) -> I64:
    """Return items [lanes][slots] as int64 [slots, elements]."""
    mask = (1 << width) - 1
    rows = [[_signed(item >> width * at & mask, width) for at in range(lanes * _SLOTS)] for item in items]
    return np.array(rows, np.int64).reshape(-1, lanes, _SLOTS).transpose(2, 0, 1).reshape(_SLOTS, -1)


class _Watch:
    """The stalls of the current pass."""

    def __init__(self, dut: Any) -> None:
        self._dut, self.stalls = dut, set[str]()

    async def run(self) -> None:
        dut = self._dut
        names = ("beats", "output", "new_keys", "new_values")
        signals = [(getattr(dut, f"{name}__valid"), getattr(dut, f"{name}__ready")) for name in names]
        while True:
            await RisingEdge(dut.clk)
            if int(dut.idle.value):
                continue
            beats, output, keys, values = ((int(valid.value), int(ready.value)) for valid, ready in signals)
            self.stalls |= {"held"} if beats == (1, 0) else {"late"} if beats == (0, 1) else set()
            self.stalls |= {"output"} if output == (1, 0) else set()
            self.stalls |= {"rows"} if (1, 0) in (keys, values) else set()


async def _begin(dut: Any) -> None:
    inputs = [f"{name}__valid" for name in (*_FREE, "angles", "parts", "attends")]
    await start(
        dut, idle_inputs=[*inputs, "visibility", *(f"{name}__ready" for name in ("output", "new_keys", "new_values"))]
    )


async def _feed(dut: Any, stimuli: _Stimuli, rng: random.Random, idle: float | None, tasks: list[Any]) -> None:
    """Start to send all inputs of a pass; ``tasks`` grows by the tasks that may still run.

    Args:
        idle: chance of an idle cycle; None: beats arrive when they are taken, and everything else at once.
    """
    dut.visibility.value = stimuli.seen
    if idle is None:
        tasks.append(cocotb.start_soon(stream_answer(dut, "beats", stimuli.free["beats"])))
    for name in _FREE:
        if name != "input" and (idle is not None or name != "beats"):
            source = stream_source(dut, name, stimuli.free[name], random.Random(rng.random()), idle or 0.0)
            tasks.append(cocotb.start_soon(source))
    idle = idle or 0.0
    await stream_source(dut, "angles", stimuli.angles, rng, idle)
    tasks.append(cocotb.start_soon(stream_source(dut, "input", stimuli.free["input"], random.Random(7), idle)))
    tasks.append(cocotb.start_soon(_in_order(dut, stimuli, rng, idle)))


async def _in_order(dut: Any, stimuli: _Stimuli, rng: random.Random, idle: float) -> None:
    await stream_source(dut, "parts", stimuli.parts, rng, idle)
    await RisingEdge(dut.clk)
    await wait_until(dut, lambda: int(dut.coded.value))
    await stream_source(dut, "attends", stimuli.attends, rng, idle)


async def _passes(
    dut: Any, passes: list[_Stimuli], rng: random.Random, idle: float | None, stalls: dict[str, float]
) -> None:
    """Run passes one after the other, compare their outputs, and count their stalls."""
    coverage, watch = Coverage(), _Watch(dut)
    received: dict[str, list[int]] = {name: [] for name in ("output", "new_keys", "new_values")}
    tasks = [
        cocotb.start_soon(stream_sink(dut, name, items, random.Random(name), stalls.get(name, 0.0)))
        for name, items in received.items()
    ]
    tasks.append(cocotb.start_soon(watch.run()))
    for stimuli in passes:
        watch.stalls.clear()
        sources: list[Any] = []
        await _feed(dut, stimuli, rng, idle, sources)
        await wait_until(dut, partial(_is_complete, received, stimuli.counts), limit=60_000)
        for source in sources:
            await source
        await wait_until(dut, lambda: int(dut.idle.value))
        _compare(received, stimuli)
        kind = "ATTEND" if stimuli.committed else "ATTEND alone"
        for each in watch.stalls or {"none"}:
            coverage.hit("attention", kind, committed_size(stimuli.committed), each)
        for items in received.values():
            items.clear()
    for task in tasks:
        task.cancel()
    coverage.save()


def _is_complete(received: dict[str, list[int]], counts: dict[str, int]) -> bool:
    return all(len(items) >= counts[name] for name, items in received.items())


def _compare(received: dict[str, list[int]], stimuli: _Stimuli) -> None:
    assert {name: len(items) for name, items in received.items()} == stimuli.counts
    own, columns = stimuli.output.shape
    output = _rows(received["output"], _OUT_BITS, 1)
    assert [row >> _OUT_BITS * _SLOTS for row in received["output"]] == [0] * (columns - 1) + [1]
    assert np.array_equal(output[:own], stimuli.output), "the output"
    for name, expected in (("new_keys", stimuli.keys), ("new_values", stimuli.values)):
        assert np.array_equal(_rows(received[name], 8, CONFIG.chunk)[:own], expected), name


def _some(kind: str, rng: random.Random) -> list[_Stimuli]:
    """Return passes with nothing committed, with few positions, with one slot after many, and with siblings."""
    vocab = workload(kind).program.host.vocab

    def ids(count: int) -> tuple[int, ...]:
        return tuple(rng.randrange(vocab) for _ in range(count))

    passes = [
        BenchPass(ids=ids(2), committed=0),
        BenchPass(ids=ids(2), committed=rng.randrange(1, 15), mask=(1, 2), positions=(20, 20)),
        BenchPass(ids=ids(1), committed=rng.randrange(16, 40)),
        BenchPass(ids=ids(2), committed=0, mask=(1, 2), positions=(0, 0)),
    ]
    return [_stimuli(workload(kind), case) for case in passes]


@cocotb.test()
@cocotb.parametrize(kind=_KINDS, idle=[0.0, 0.5, 0.9], output=[0.0, 0.8], rows=[0.0, 0.9])
async def layers_of_passes(dut: Any, kind: str, idle: float, output: float, rows: float) -> None:
    rng = random.Random(f"{kind} {idle} {output} {rows}")
    await _begin(dut)
    await _passes(dut, _some(kind, rng), rng, idle, {"output": output, "new_keys": rows, "new_values": rows})


@cocotb.test()
@cocotb.parametrize(kind=_KINDS)
async def layers_without_a_stall(dut: Any, kind: str) -> None:
    """Run at the path's own pace. The path would stall beats that are always valid until the scores begin."""
    rng = random.Random(kind)
    await _begin(dut)
    await _passes(dut, _some(kind, rng), rng, None, {})


@cocotb.test()
@cocotb.parametrize(after=[3, 30, 120, 400])
async def reset_in_mid_stream(dut: Any, after: int) -> None:
    rng = random.Random(after)
    passes = _some("thin", rng)
    await _begin(dut)
    dut.output__ready.value = 1
    sources: list[Any] = []
    sources.append(cocotb.start_soon(_feed(dut, passes[2], rng, 0.1, sources)))
    for _ in range(after):
        await RisingEdge(dut.clk)
    for source in sources:
        source.cancel()
    for name in (*_FREE, "angles", "parts", "attends"):
        getattr(dut, f"{name}__valid").value = 0
    dut.rst.value = 1
    for _ in range(3):
        await RisingEdge(dut.clk)
    dut.rst.value = 0
    await RisingEdge(dut.clk)
    await _passes(dut, passes, rng, 0.2, {"output": 0.2})
