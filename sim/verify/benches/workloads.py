"""The workloads of the benches: programs of tiny models for a small accelerator, and the ranges that a pass reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.families import build_graph
from edgedec.graph.graph import Graph
from edgedec.graph.ops import Embed, Linear
from edgedec.graph.passes import assign_schemes, fuse_linears, quantize_activations
from edgedec.hw.compiler.host import ProgramHost
from edgedec.hw.compiler.program import Program, compile_model
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.isa.instructions import Base, Destination, Instruction, Opcode, When
from edgedec.hw.isa.sequences import SequenceRows
from edgedec.reference.integer_profile.calibrate import calibrate_graph
from edgedec.reference.integer_profile.model import prepare_graph
from edgedec.reference.integer_profile.numbers import I64
from edgedec.schemes import EmbeddingWeight, FloatScheme, Int8Scheme, Scheme, TernaryScheme, Weight
from edgedec.sim.interpreter import Interpreter
from edgedec.sim.interpreter.attention import run_ranges

__all__ = [
    "COMMITTED",
    "CONFIG",
    "KINDS",
    "NARROW",
    "BenchPass",
    "InterpretedPass",
    "ReadRange",
    "Workload",
    "commit_readings",
    "issued",
    "readings",
    "workload",
]

U8 = NDArray[np.uint8]

# One layer, so that an address in the cache or the output identifies the instruction that writes there; cache above 4 KiB.
CONFIG = AcceleratorConfig(
    beat_bytes=8,
    ports=1,
    slots=2,
    tile_rows=40,
    context=112,
    width=72,
    hidden=36,
    heads=4,
    kv_heads=2,
    head_dim=10,
    top_k=2,
    prefetch_beats=32,
    burst_beats=16,  # half of the queue: a longer one waits in it, whatever memory and units do
    instructions=96,
    scaling=True,
)
_MODEL: Mapping[str, Any] = {
    "model_type": "llama",
    "hidden_size": 36,
    "intermediate_size": 70,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "vocab_size": 41,
    "rms_norm_eps": 1e-5,
}
_THIN = {
    "hidden_size": 7,
    "intermediate_size": 5,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "vocab_size": 3,
}
KINDS: Mapping[str, tuple[Scheme, Mapping[str, Any]]] = {
    "native": (TernaryScheme(), {"tie_word_embeddings": True}),
    "planes": (
        TernaryScheme(planes=2, group_size=64),
        {"attention_bias": True, "vocab_size": 42},
    ),  # ROWS cross a page
    "int8": (
        Int8Scheme(),
        {"mlp_bias": True, "attention_bias": True, "vocab_size": 40},
    ),  # the logits are exactly one tile
    "thin": (TernaryScheme(), _THIN),
    "vocabulary": (TernaryScheme(), {**_THIN, "vocab_size": 530}),
}
# Committed positions before the disturbed passes. With two heads, keys and values cross a page from 73 positions on.
COMMITTED = {"native": 74, "planes": 0, "int8": 7, "thin": 7, "vocabulary": 20}
# Models whose short constants, or first matrix after attention, are so close behind other reads that they reach the port
# while those fill the read stream's queue.
NARROW: Mapping[str, tuple[Scheme, Mapping[str, Any]]] = {
    "biased": (
        TernaryScheme(),
        {"attention_bias": True, "num_key_value_heads": 1, "tie_word_embeddings": True},
    ),
    "grouped": (TernaryScheme(planes=2, group_size=64), {"attention_bias": True, "num_key_value_heads": 1}),
    "small": (Int8Scheme(), {"hidden_size": 30}),
}


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A program and the embedding that it was compiled with."""

    program: Program
    embedding: EmbeddingWeight

    @property
    def host(self) -> ProgramHost:
        return ProgramHost(self.program, self.embedding)


@cache
def workload(kind: str) -> Workload:
    """Return the workload of a name of ``KINDS`` or ``NARROW``; it is deterministic."""
    scheme, changes = {**KINDS, **NARROW}[kind]
    plain = build_graph({**_MODEL, **changes})
    schemes = _schemes(plain, scheme)
    graph = fuse_linears(quantize_activations(assign_schemes(plain, schemes)))
    rng = np.random.default_rng(0)
    weights = {name: _random_weight(rng, schemes[name], name, spec.shape) for name, spec in plain.weights.items()}
    (embed,) = (op for op in graph.operations if isinstance(op, Embed))
    vocab = graph.weights[embed.weight].shape[0]
    windows = [rng.integers(0, vocab, 24).astype(np.int32) for _ in range(4)]
    calibration = calibrate_graph(graph, weights.__getitem__, windows, context=CONFIG.context)
    model = prepare_graph(graph, weights.__getitem__, calibration)
    return Workload(program=compile_model(model, CONFIG), embedding=model.constants[embed.name].weight)


def _schemes(graph: Graph, scheme: Scheme) -> dict[str, Scheme]:
    """Return the schemes of all weights: ``scheme`` for linears, int8 for a tied embedding, float otherwise."""
    linear = {name for op in graph.operations if isinstance(op, Linear) for name in op.weights}
    schemes: dict[str, Scheme] = {name: scheme if name in linear else FloatScheme() for name in graph.weights}
    if "lm_head.weight" not in schemes:
        schemes["model.embed_tokens.weight"] = Int8Scheme(rows=True)
    return schemes


def _random_weight(rng: np.random.Generator, scheme: Scheme, name: str, shape: tuple[int, ...]) -> Weight:
    spread = np.float32(shape[-1] ** -0.5)
    if isinstance(scheme, FloatScheme):
        values = 1 + 0.2 * rng.standard_normal(shape) if len(shape) == 1 else 1.5 * spread * rng.standard_normal(shape)
        return scheme.open(name, shape, {"values": values.astype(scheme.parts(shape)["values"].dtype)})
    scales = scheme.parts(shape)["scale"].shape
    if isinstance(scheme, TernaryScheme):
        codes: Any = scheme.pack(rng.integers(-1, 2, (scheme.planes, *shape), np.int8))
        scale = rng.uniform(0.5, 2, scales)
    else:
        codes = rng.integers(-127, 128, scheme.parts(shape)["codes"].shape, np.int8)
        scale = rng.uniform(0.01, 0.03, scales)
    return scheme.open(name, shape, {"codes": codes, "scale": scale.astype(np.float32) * spread})


@dataclass(frozen=True, kw_only=True)
class BenchPass:
    """A pass over ``ids`` after ``committed`` positions.

    Members:
        mask: for each slot, a bit for each slot that it sees; None is causal.
        positions: position of each slot in the text; None continues the committed ones.
        logits: value of the field in the register pass_parameters.
    """

    ids: tuple[int, ...]
    committed: int
    mask: tuple[int, ...] | None = None
    positions: tuple[int, ...] | None = None
    logits: int = 1

    @property
    def masks(self) -> list[int]:
        return [(2 << slot) - 1 for slot in range(len(self.ids))] if self.mask is None else list(self.mask)

    @property
    def places(self) -> list[int]:
        return list(self.positions or range(self.committed, self.committed + len(self.ids)))


@dataclass(frozen=True, kw_only=True)
class InterpretedPass:
    """A pass that the interpreter has run.

    Members:
        made: vectors [slots, n] by name.
        cache: cache before the pass.
        input: input buffer of the pass.
    """

    of: BenchPass
    made: Mapping[str, I64]
    cache: U8
    input: U8

    @staticmethod
    def through(machine: Interpreter, work: Workload, case: BenchPass) -> InterpretedPass:
        """Run a pass. The cache of ``machine`` must hold the committed rows; the new ones are added."""
        made: dict[str, I64] = {}
        before = machine.cache.copy()
        machine.input[:] = work.host.input(np.array(case.ids, np.int32), np.array(case.places, np.int32))
        machine.run_pass(len(case.ids), case.committed, case.masks, case.places, case.logits, trace=made.__setitem__)
        return InterpretedPass(of=case, made=made, cache=before, input=machine.input.copy())


@dataclass(frozen=True, kw_only=True)
class ReadRange:
    """A range of the read stream.

    Members:
        index: number of its instruction; None for the program itself.
        destination: unit or queue that takes the beats.
        buffer: buffer that contains the range: program, image, input or kv.
        start, beats: first beat, counted from the start of the buffer, and number of beats.
        spare: number of unused items at the end.
        serves: number of the unit's instruction that uses the beats; None for a program and a copy.
    """

    index: int | None
    destination: Destination
    buffer: str
    start: int
    beats: int
    spare: int = 0
    serves: int | None = None

    def bytes_of(self, interpreted: InterpretedPass, program: Program) -> U8:
        """Return the bytes of the range, uint8 [beats, beat_bytes]."""
        memory = {"image": program.image, "input": interpreted.input, "kv": interpreted.cache}[self.buffer]
        return memory.reshape(-1, program.config.beat_bytes)[self.start : self.start + self.beats]


_SERVED = {
    Destination.LOAD: Opcode.LOAD,
    Destination.GAINS: Opcode.VECTOR,
    Destination.FACTORS: Opcode.ATTEND,
    Destination.SCALES: Opcode.ATTEND,
    Destination.ANGLES: Opcode.LOAD,
}


def _program(program: Program) -> ReadRange:
    beats = -(-len(program.code) // program.config.beat_bytes)
    return ReadRange(index=None, destination=Destination.PROGRAM, buffer="program", start=0, beats=beats)


def issued(program: Program, logits: int) -> Iterator[tuple[int, Instruction]]:
    """Yield (number, instruction) of the instructions that a pass executes."""
    skipped = When.WITHOUT_LOGITS if logits else When.WITH_LOGITS
    for index, instruction in enumerate(program.instructions[: program.commit]):
        if instruction["when"] != skipped:
            yield index, instruction


def readings(program: Program, committed: int, logits: int, *, slots: int = 1) -> list[ReadRange]:
    """Return all ranges that a pass reads, in order; the ranges of an instruction follow it.

    Args:
        slots: tokens of the pass; it matters only if query heads may attend together.
    """
    ranges, last = [_program(program)], dict[Opcode, int]()
    for index, of in issued(program, logits):
        if of.opcode == Opcode.READ:
            destination = Destination(of["destination"])
            ranges.append(
                ReadRange(
                    index=index,
                    destination=destination,
                    buffer="image" if of["base"] == Base.IMAGE else "input",
                    start=of["start"],
                    beats=of["beats"],
                    spare=of["spare"],
                    serves=last[_SERVED.get(destination, Opcode.MATRIX)],
                )
            )
        elif of.opcode == Opcode.CACHE and committed:
            where: dict[str, Any] = {"buffer": "kv", "serves": last[Opcode.ATTEND]}
            for start, beats in run_ranges(of, program.config, [SequenceRows(slots=slots, committed=committed)]):
                where |= {"start": start, "beats": beats}
                ranges.append(ReadRange(index=index, destination=Destination.KEYS_VALUES, **where))
        else:
            last[of.opcode] = index
    return ranges


def commit_readings(program: Program, committed: int, accepted: Sequence[int]) -> list[ReadRange]:
    """Return all ranges that a commit of these slots reads, in order."""
    config, ranges = program.config, [_program(program)]
    layout = config.kv_layout
    for index, of in enumerate(program.instructions[program.commit :], program.commit):
        if of.opcode != Opcode.COPY:
            continue
        for rank, slot in enumerate(accepted):
            for run in range(2 * of["heads"] if rank != slot else 0):
                place = config.cache_rows(of["ring"]).place(committed + slot)
                start = of["start"] + run * of["run"] + place // layout.positions * layout.chunks
                where: dict[str, Any] = {"buffer": "kv", "start": start, "beats": layout.chunks}
                ranges.append(ReadRange(index=index, destination=Destination.COPY, **where))
    return ranges
