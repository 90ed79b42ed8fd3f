"""Lowering of the integer profile's graph and constants to instructions: one function per kind of operation.

An instruction stands before the reads that feed it, and the ``VECTOR`` that takes a vector before the instructions that
make the vector. An operation that makes a vector therefore emits the ``VECTOR`` of its reader; norms, quantizers,
rotations and additions emit nothing themselves and are only recorded as covered.
"""

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import BundleError, UnsupportedError
from edgedec.hw.compiler.constants import coding_items, factor_items, gain_items, scale_items
from edgedec.hw.compiler.emitter import ProgramEmitter
from edgedec.hw.compiler.matrix import Matrix, unsupported
from edgedec.hw.compiler.routes import PARTS, RouteJob, Routes
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.isa.instructions import Destination, Opcode, Sink, Source, When
from edgedec.ops import (
    Add,
    Attention,
    Embed,
    GatedActivation,
    Linear,
    Operation,
    QuantizeActivation,
    RmsNorm,
    Rope,
    SelectRows,
)
from edgedec.reference.integer_profile.model import IntegerModel
from edgedec.reference.integer_profile.numbers import Mantissas
from edgedec.reference.integer_profile.ops.attention import AttentionConstants
from edgedec.reference.integer_profile.ops.rms_norm import NormConstants

__all__ = ["Lowering"]

I64 = NDArray[np.int64]

_MOST_ELEMENTS = (1 << 20) - 1  # rows of logits, limited by an instruction's field
_WINDOW_BITS = 17  # bits of a window in an instruction
# Sinks whose last row the next step, or the host, waits for.
_URGENT = (Sink.RESIDUAL, Sink.VALUES, Sink.GATE, Sink.LOGITS)


class Lowering:
    """The lowering of one model.

    Members:
        out: emitted instructions and image.
        pass_ends: index of the first instruction of a commit.
        angles: inverse frequencies of the rotations; empty without any.
        logit_exponent: exponent of the logits; a logit's real value is logit * A * 2^(ea + logit_exponent).
        cache_beats: beats of all layers' keys and values.
    """

    def __init__(self, model: IntegerModel, config: AcceleratorConfig) -> None:
        self.graph, self.constants, self.config, self.vocab = model.graph, model.constants, config, model.vocab
        self.out = ProgramEmitter(config)
        self.pass_ends = 0
        self.angles: tuple[float, ...] = ()
        self.logit_exponent: int | None = None
        self._routes = Routes(model.graph)
        self._run = config.kv_layout.beats(config.context)
        runs = accumulate((2 * state.kv_heads for state in self.graph.states.values()), initial=0)
        self._runs_before = dict(zip(self.graph.states, runs, strict=False))
        self.cache_beats = self._run * sum(2 * state.kv_heads for state in self.graph.states.values())
        self._last_attention = max(
            (i for i, op in enumerate(self.graph.operations) if isinstance(op, Attention)), default=-1
        )
        self._at = 0
        self._covered: set[str] = set()
        self._vectors: deque[str] = deque()  # codes for which there is a VECTOR and no MATRIX yet
        self._current = ""  # codes of the last MATRIX
        self._residual = ""  # value that the residual holds
        self._coded: set[str] = set()  # names of the queries, keys and values that were passed to attention

    def run(self) -> None:
        """Lower the model.

        Raises:
            UnsupportedError: an operation cannot be lowered; the message names it, its layer, the reason, and a remedy.
        """
        for at, op in enumerate(self.graph.operations):
            self._at = at
            lower = _LOWER.get(op.kind)
            if lower is None:
                raise unsupported(op, f"it has no such operation; it has {', '.join(sorted(_LOWER))}")
            try:
                lower(self, op)
            except BundleError as error:  # a field of an instruction
                raise unsupported(op, f"{error}; use a smaller model or accelerator") from error
        missing = [op for op in self.graph.operations if op.name not in self._covered]
        if missing:
            raise unsupported(missing[0], "nothing that it runs leads there; its order is that of a Llama's block")
        if self.logit_exponent is None:
            raise UnsupportedError("the accelerator cannot run a graph whose output is no linear's: give it a head")
        self.out.when = When.ALWAYS
        self.out.emit(Opcode.STOP, "pass")
        self.pass_ends = len(self.out.instructions)
        for name, state in self.graph.states.items():
            fields = self._place(name)
            self.out.emit(Opcode.COPY, name, **fields, heads=state.kv_heads)
        self.out.emit(Opcode.STOP, "commit")

    # Shared parts of the lowering.

    def cover(self, *operations: Operation) -> None:
        self._covered.update(op.name for op in operations)

    def width(self, name: str) -> int:
        width = self.graph.values[name].shape[1]
        assert isinstance(width, int)
        return width

    def _place(self, state: str) -> dict[str, int]:
        """Return a layer's first beat in the cache, and the beats of a run."""
        return {"start": self._runs_before[state] * self._run, "run": self._run}

    def vector(self, value: str, source: Source) -> bool:
        """Emit the VECTOR of the quantizer of ``value``. Return False if there is no quantizer, and thus no VECTOR."""
        takers = [op for op in self._routes.readers(value) if not isinstance(op, Add)]
        if not takers:
            return False
        if len(takers) > 1:
            names = " and ".join(op.name for op in takers)
            raise unsupported(takers[1], f"{names} both read {value}; a vector is quantized once: norm it once")
        (op,) = takers
        if isinstance(op, SelectRows):
            self.cover(op)
            return self.vector(op.outputs[0], source)
        norm = None
        if isinstance(op, RmsNorm):
            norm = op
            op = self._routes.only_reader(op)
        if not isinstance(op, QuantizeActivation):
            raise unsupported(op, f"it reads {op.inputs[0]}, which only a norm or a quantizer of a linear's input can")
        width = self.width(value)
        if width > self.config.width:
            raise unsupported(op, f"it is {width} wide; this accelerator has width={self.config.width}, raise it")
        self.cover(op, *([norm] if norm else []))
        blocks = -(-width // self.config.beat_bytes)
        name, fields = op.inputs[0], {"source": int(source), "blocks": blocks}
        if norm is None:
            self.out.emit(Opcode.VECTOR, name, **fields)
        else:
            constants: NormConstants = self.constants[norm.name]
            self.out.emit(Opcode.VECTOR, name, **fields, normed=1, eps=constants.eps)
            self.out.constants(Destination.GAINS, name, gain_items(constants.gain.values))
        self._vectors.append(op.outputs[0])
        return True

    def fresh(self, op: Linear) -> bool:
        """Return whether the codes of a linear are a new vector; if so, they become the current one."""
        codes = op.inputs[0]
        if codes == self._current:
            return False
        if not self._vectors or self._vectors.popleft() != codes:
            raise unsupported(op, f"{codes} are not the codes that come next; put linears in the order of their inputs")
        self._current = codes
        return True

    # Operations.

    def embed(self, op: Embed) -> None:
        hidden = self.width(op.outputs[0])
        if hidden > self.config.hidden:
            raise unsupported(op, f"it is {hidden} wide; this accelerator has hidden={self.config.hidden}, raise it")
        self.cover(op)
        self._residual = op.outputs[0]
        name = op.outputs[0]
        if not self.vector(name, Source.LOAD):
            raise unsupported(op, "nothing normalizes or quantizes its rows; it needs a layer")
        self.out.emit(Opcode.LOAD, name, elements=hidden)
        self.out.input(Destination.LOAD, name, hidden)
        ropes = [rope for rope in self.graph.operations if isinstance(rope, Rope)]
        if ropes:
            self.angles = ropes[0].inverse_frequencies
            self.out.input(Destination.ANGLES, "angles", len(self.angles))

    def linear(self, op: Linear) -> None:
        self.cover(op)
        jobs = self._routes.jobs(op)
        fresh = self.fresh(op)
        for job in jobs:
            constants = self.constants[op.name].matrices
            order = self._routes.order(job) if job.sink in PARTS[:2] else None
            matrix = Matrix.of(op, job.indices, constants, order)
            matrix.check(self.config)
            if job.sink == Sink.LOGITS and matrix.rows > _MOST_ELEMENTS:
                raise unsupported(op, f"it has {matrix.rows} rows; an instruction holds at most {_MOST_ELEMENTS}")
            _SINKS[job.sink](self, op, job, matrix, fresh)
            fresh = False

    def _matrix(
        self,
        matrix: Matrix,
        sink: Sink,
        name: str,
        fresh: bool,
        fields: Mapping[str, int],
        *,
        coding: tuple[I64, I64] | None = None,
        variants: tuple[When, ...] = (),
    ) -> None:
        """Emit all pieces of a matrix with their reads.

        Args:
            coding: mantissas and middles for the codes of attention.
            variants: conditions under which the instruction is emitted, with shared reads; without logits nothing goes
                ``onward``.
        """
        out, config = self.out, self.config
        pieces = matrix.pieces(config.tile_words, urgent=sink in _URGENT)
        for index, piece in enumerate(pieces):
            members = {
                **fields,
                **matrix.fields(piece, config),
                "sink": int(sink),
                "fresh": int(fresh and index == 0),
                "more": int(index < len(pieces) - 1),
            }
            if sink == Sink.RESIDUAL:
                members["start"] = piece.start
            for when in variants or (out.when,):
                dropped = {"onward": 0} if when == When.WITHOUT_LOGITS else {}
                out.emit(Opcode.MATRIX, name, when=when, **(members | dropped))
            if coding is not None and index == 0:
                out.constants(Destination.CODING, name, coding_items(*coding))
            if matrix.row_constants:
                out.constants(Destination.ROWS, name, matrix.constants(piece))
            out.weights(name, matrix.beats(piece, config), partial(matrix.weights, piece, config))

    def to_residual(self, op: Linear, job: RouteJob, matrix: Matrix, fresh: bool) -> None:
        add = job.reader
        assert add is not None
        (output,) = (op.outputs[index] for index in job.indices)
        other = [name for name in add.inputs if name != output]
        if other != [self._residual]:
            raise unsupported(add, f"{output} is added to {', '.join(other) or output}, not to the residual stream")
        self.cover(add)
        self._residual = add.outputs[0]
        last = self.out.when == When.ALWAYS and self._at > self._last_attention
        if last:  # only the head reads the values after the last keys and values
            self.out.when = When.WITH_LOGITS
        onward = self.vector(self._residual, Source.RESIDUAL)
        name, fields = f"{output} -> {self._residual}", {"wide": 1, "onward": int(onward)}
        if not last:
            self._matrix(matrix, Sink.RESIDUAL, name, fresh, fields)
            return
        # A pass without logits must consume the codes of its attention as well, or they would remain.
        self.out.when = When.ALWAYS
        variants = (When.WITH_LOGITS, When.WITHOUT_LOGITS)
        self._matrix(matrix, Sink.RESIDUAL, name, fresh, fields, variants=variants)
        self.out.when = When.WITH_LOGITS

    def to_attention(self, op: Linear, job: RouteJob, matrix: Matrix, fresh: bool) -> None:
        attention, rope = job.reader, self._routes.rope(job)
        assert isinstance(attention, Attention)
        self._fits(attention)
        if rope is not None:
            self._turns(attention, rope)
        constants: AttentionConstants = self.constants[attention.name]
        factor: Mantissas = (constants.q, constants.k, constants.v)[PARTS.index(job.sink)]
        mantissas = factor.values.reshape(-1)
        middles = constants.k_middle.reshape(-1) if job.sink == Sink.KEYS else np.zeros(len(mantissas), np.int64)
        if matrix.order is not None:
            mantissas, middles = mantissas[matrix.order], middles[matrix.order]
        output = op.outputs[job.indices[0]]
        name = output if rope is None else f"{output} -> {rope.outputs[0]}"
        fields = {"rotate": int(rope is not None), "shift": -factor.exponent}
        self._matrix(matrix, job.sink, name, fresh, fields, coding=(mantissas, middles))
        self._coded.add(attention.inputs[PARTS.index(job.sink)])

    def _fits(self, op: Attention) -> None:
        config, state = self.config, self.graph.states[op.state]
        for what, number, most in (("heads", op.heads, config.heads), ("kv_heads", state.kv_heads, config.kv_heads)):
            if number > most:
                raise unsupported(op, f"it has {what}={number}; this accelerator has {what}={most}, raise it")
        if state.head_dim != config.head_dim:
            raise unsupported(
                op,
                f"its heads are {state.head_dim} wide; this accelerator has head_dim={config.head_dim}: make it equal",
            )
        if state.window is not None and state.window < 1:
            raise unsupported(op, f"its window is {state.window}; at least 1, or none")

    def _turns(self, op: Attention, rope: Rope) -> None:
        """Check that queries and keys are rotated alike, by the only table of angles."""
        others = [self._routes.maker(name) for name in op.inputs[:2]]
        if not all(isinstance(other, Rope) and other.layout == rope.layout for other in others):
            raise unsupported(
                rope, f"queries and keys of {op.name} are not rotated alike; rotate both, with one layout"
            )
        if rope.inverse_frequencies != self.angles or rope.head_dim != self.config.head_dim:
            raise unsupported(rope, "its frequencies are not the first layer's; there is one table of angles")
        if rope.inputs[1] != "positions":
            raise unsupported(rope, f"it turns by {rope.inputs[1]}; only the pass's positions")
        self.cover(rope)

    def attention(self, op: Attention) -> None:
        missing = [name for name in op.inputs if name not in self._coded]
        if missing:
            raise unsupported(op, f"{', '.join(missing)} come from no linear before it")
        self.cover(op)
        constants: AttentionConstants = self.constants[op.name]
        state, name = self.graph.states[op.state], op.outputs[0]
        if not self.vector(name, Source.ATTENTION):
            raise unsupported(op, f"nothing quantizes {name}; it needs a linear behind it")
        group = op.heads // state.kv_heads
        place, heads = self._place(op.state), {"heads": op.heads, "group": group}
        most = (1 << _WINDOW_BITS) - 1
        # A window as long as the cache hides nothing.
        window = 0 if state.window is None or state.window > most else state.window
        sinks = min(state.sinks, most) if window else 0
        self.out.emit(
            Opcode.ATTEND, name, wait=1, **place, **heads, kv_heads=state.kv_heads, window=window, sinks=sinks
        )
        self.out.constants(Destination.FACTORS, name, factor_items(constants.score.values, -constants.score.exponent))
        scales = np.repeat(constants.output.values, group, axis=0)
        self.out.constants(Destination.SCALES, name, scale_items(scales))
        self.out.emit(Opcode.CACHE, op.state, **place, **heads)

    def to_gate(self, op: Linear, job: RouteJob, matrix: Matrix, fresh: bool) -> None:
        gated = job.reader
        assert isinstance(gated, GatedActivation)
        self.cover(gated)
        if not self.vector(gated.outputs[0], Source.GATE):
            raise unsupported(gated, "nothing quantizes its output; it needs a linear behind it")
        constants = self.constants[gated.name]
        gate, up = (op.outputs[index] for index in job.indices)
        relu2 = gated.activation == "relu2"
        fields = {"relu2": int(relu2), "gate_shift": 0 if relu2 else constants.index_shift}
        self._matrix(matrix, Sink.GATE, f"{gate}|{up} -> {gated.outputs[0]}", fresh, fields)

    def to_logits(self, op: Linear, job: RouteJob, matrix: Matrix, fresh: bool) -> None:
        (index,) = job.indices
        self.logit_exponent = self.constants[op.name].matrices[index].logit_exponent
        self._matrix(matrix, Sink.LOGITS, op.outputs[index], fresh, {"elements": matrix.rows})

    def nothing(self, op: Operation) -> None:
        """Emit nothing: the operation was covered where its input is made."""


_LOWER: Mapping[str, Callable[[Lowering, Any], None]] = {
    Embed.kind: Lowering.embed,
    Linear.kind: Lowering.linear,
    Attention.kind: Lowering.attention,
    **{op.kind: Lowering.nothing for op in (Add, GatedActivation, QuantizeActivation, RmsNorm, Rope, SelectRows)},
}
_SINKS: Mapping[Sink, Callable[[Lowering, Linear, RouteJob, Matrix, bool], None]] = {
    Sink.RESIDUAL: Lowering.to_residual,
    Sink.QUERIES: Lowering.to_attention,
    Sink.KEYS: Lowering.to_attention,
    Sink.VALUES: Lowering.to_attention,
    Sink.GATE: Lowering.to_gate,
    Sink.LOGITS: Lowering.to_logits,
}
