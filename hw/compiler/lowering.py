"""Lowering of the integer profile's graph and constants to instructions: one function per kind of operation.

An instruction stands before the reads that feed it, and the ``VECTOR`` that takes a vector before the instructions that
make the vector. An operation that makes a vector therefore emits the ``VECTOR`` of its reader; norms, quantizers,
rotations and additions emit nothing themselves and are only recorded as covered.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import BundleError, UnsupportedError
from edgedec.graph.graph import KvState
from edgedec.graph.ops import (
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
from edgedec.hw.compiler.attention_fields import cap_fields, check_heads, coding_of, window_fields
from edgedec.hw.compiler.constants import coding_items, factor_items, gain_items, head_norm_items, scale_items
from edgedec.hw.compiler.emitter import ProgramEmitter
from edgedec.hw.compiler.matrix import Matrix, unsupported
from edgedec.hw.compiler.memory_image import REGION_BYTES
from edgedec.hw.compiler.rough_head import rough_norm
from edgedec.hw.compiler.routes import PARTS, RouteJob, Routes
from edgedec.hw.compiler.taps import Taps
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.isa.instructions import FIELDS, Destination, Opcode, Sink, Source, When
from edgedec.reference.integer_profile.model import IntegerModel
from edgedec.reference.integer_profile.ops.attention import AttentionConstants
from edgedec.reference.integer_profile.ops.rms_norm import HeadNormConstants, NormConstants, OutputNormConstants
from edgedec.reference.integer_profile.tables import OCTAVE_FRACTION_BITS

__all__ = ["Lowering"]

I64 = NDArray[np.int64]
U8 = NDArray[np.uint8]

_MOST_ELEMENTS = (1 << 20) - 1  # rows of logits, limited by an instruction's field
_MOST_TABLES = 2  # tables of angles in the input buffer
# Sinks whose last row the next step, or the host, waits for.
_URGENT = (Sink.RESIDUAL, Sink.VALUES, Sink.GATE, Sink.LOGITS)


class Lowering:
    """The lowering of one model.

    Members:
        out: emitted instructions and image.
        pass_ends: index of the first instruction of a commit.
        tables: inverse frequencies and magnitude of each table of angles in the input buffer, in its order; at most two.
        embedding_scale: factor of the embedding's rows.
        logit_exponent: exponent of the logits; a logit's real value is logit * A * 2^(ea + logit_exponent).
        logits_cap: soft-cap of the logits, which the host applies; None without one.
        cache_beats: beats of all layers' keys and values.
        taps: places of the values that the program writes to memory.

    Args:
        ids: number of the tokenizer's ids, those of the sums of exponentials; None: all of the vocabulary.
        taps: names of these values.
        region_bytes: most bytes of a region of the image.
    """

    def __init__(
        self,
        model: IntegerModel,
        config: AcceleratorConfig,
        *,
        ids: int | None = None,
        taps: Sequence[str] = (),
        region_bytes: int = REGION_BYTES,
    ) -> None:
        self.graph, self.constants, self.config, self.vocab = model.graph, model.constants, config, model.vocab
        self.region_bytes, self._ids = region_bytes, self.vocab if ids is None else min(ids, self.vocab)
        self.out = ProgramEmitter(config, region_bytes)
        self.pass_ends = 0
        self.taps = Taps(config, self.vocab, (*taps, *rough_norm(model, config)))
        self.tables: dict[tuple[tuple[float, ...], float], int] = {}  # first beats of the tables in the input buffer
        self._turning: tuple[tuple[float, ...], float] | None = None  # the table that the accelerator has
        self.embedding_scale = 1.0
        self.logit_exponent: int | None = None
        self.logits_cap: float | None = None
        self._routes = Routes(model.graph)
        self._rings = {name: int(_is_ring(state, config)) for name, state in self.graph.states.items()}
        runs = {name: config.cache_rows(ring).run for name, ring in self._rings.items()}
        sizes = (2 * state.kv_heads * runs[name] for name, state in self.graph.states.items())
        *starts, self.cache_beats = accumulate(sizes, initial=0)
        self._places = {
            name: {"start": start, "run": runs[name], "ring": self._rings[name]}
            for name, start in zip(self.graph.states, starts, strict=True)
        }
        self._last_attention = max(
            (i for i, op in enumerate(self.graph.operations) if isinstance(op, Attention)), default=-1
        )
        self._at = 0
        self._covered: set[str] = set()
        self._vectors: deque[str] = deque()  # codes for which there is a VECTOR and no MATRIX yet
        self._current = ""  # codes of the last MATRIX
        self._residual = ""  # value that the residual holds
        self._gains: tuple[str, U8] | None = None  # gains of an announced vector whose READ follows its matrix
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
        self.taps.check()
        if self.logit_exponent is None:
            raise UnsupportedError("the accelerator cannot run a graph whose output is no linear's: give it a head")
        self.out.when = When.ALWAYS
        self.out.emit(Opcode.STOP, "pass")
        self.pass_ends = len(self.out.instructions)
        for name, state in self.graph.states.items():
            self.out.emit(Opcode.COPY, name, **self._places[name], heads=state.kv_heads)
        self.out.emit(Opcode.STOP, "commit")

    # Shared parts of the lowering.

    def cover(self, *operations: Operation) -> None:
        self._covered.update(op.name for op in operations)

    def width(self, name: str) -> int:
        width = self.graph.values[name].shape[1]
        assert isinstance(width, int)
        return width

    def vector(self, value: str, source: Source, *, later: bool = False) -> bool:
        """Emit the VECTOR of the quantizer of ``value``. Return False if there is no quantizer, and thus no VECTOR.

        Args:
            later: whether the READ of its gains is left to ``late_gains``, because those of a norm of rows come first.
        """
        takers = [op for op in self._routes.readers(value) if not isinstance(op, Add)]
        if not takers:
            return False
        if len(takers) > 1:
            names = " and ".join(op.name for op in takers)
            raise unsupported(takers[1], f"{names} both read {value}; a vector is quantized once: norm it once")
        (op,) = takers
        if isinstance(op, SelectRows):
            self.cover(op)
            return self.vector(op.outputs[0], source, later=later)
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
        made = self._routes.maker(value)
        whole = made.inputs[0] if isinstance(made, SelectRows) else value  # all slots have rows here
        fields |= self.taps.fields(whole, norm.outputs[0] if norm else "", blocks, at=len(self.out.instructions))
        if norm is None:
            self.out.emit(Opcode.VECTOR, name, **fields)
        else:
            constants: NormConstants = self.constants[norm.name]
            self.out.emit(Opcode.VECTOR, name, **fields, normed=1, eps=constants.eps)
            self._gains = name, gain_items(constants.gain.values)
            if not later:
                self.late_gains()
        self._vectors.append(op.outputs[0])
        return True

    def late_gains(self) -> None:
        """Emit the READ of the gains of the latest VECTOR, if that is still to come."""
        if self._gains is not None:
            self.out.constants(Destination.GAINS, *self._gains)
            self._gains = None

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
        self.embedding_scale = op.scale
        self._residual = op.outputs[0]
        name = op.outputs[0]
        if not self.vector(name, Source.LOAD):
            raise unsupported(op, "nothing normalizes or quantizes its rows; it needs a layer")
        self.out.emit(Opcode.LOAD, name, elements=hidden)
        self.out.input(Destination.LOAD, name, hidden)
        ropes = [rope for rope in self.graph.operations if isinstance(rope, Rope)]
        if ropes:
            self._take_angles(ropes[0])

    def _take_angles(self, rope: Rope) -> None:
        """Emit the READ of the angles of a rotation, unless the accelerator has them.

        Raises:
            UnsupportedError: it is the third table.
        """
        table = rope.inverse_frequencies, rope.magnitude
        if table == self._turning:
            return
        if table not in self.tables and len(self.tables) == _MOST_TABLES:
            raise unsupported(rope, f"its frequencies are those of neither of {_MOST_TABLES} other rotations")
        start = self.tables.get(table)
        self.tables[table] = self.out.input(Destination.ANGLES, "angles", rope.head_dim // 2, start=start)
        self._turning = table

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
        gains: U8 | None = None,
        variants: tuple[When, ...] = (),
    ) -> None:
        """Emit all pieces of a matrix with their reads.

        Args:
            coding: mantissas and middles for the codes of attention.
            gains: items of the norm of heads or of rows.
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
            if gains is not None and index == 0:
                out.constants(Destination.GAINS, name, gains)
            if coding is not None and index == 0:
                out.constants(Destination.CODING, name, coding_items(*coding))
            if matrix.row_constants:
                out.constants(Destination.ROWS, name, matrix.constants(piece))
            out.weights(name, matrix.beats(piece, config), partial(matrix.weights, piece, config))

    def to_residual(self, op: Linear, job: RouteJob, matrix: Matrix, fresh: bool) -> None:
        add = job.reader
        assert add is not None
        (output,) = (op.outputs[index] for index in job.indices)
        norm = self._routes.row_norm(output)
        added = output if norm is None else norm.outputs[0]
        other = [name for name in add.inputs if name != added]
        if other != [self._residual]:
            raise unsupported(add, f"{added} is added to {', '.join(other) or added}, not to the residual stream")
        self.cover(add)
        gains = None if norm is None else self._row_norm(norm)
        self._residual = add.outputs[0]
        last = self.out.when == When.ALWAYS and self._at > self._last_attention
        if last:  # only the head reads the values after the last keys and values
            self.out.when = When.WITH_LOGITS
        onward = self.vector(self._residual, Source.RESIDUAL, later=norm is not None)
        name = " -> ".join([output, *([] if norm is None else norm.outputs), self._residual])
        fields = {"wide": 1, "onward": int(onward), "norm_rows": int(norm is not None)}
        if norm is not None:
            fields["elements"] = matrix.rows
        if not last:
            self._matrix(matrix, Sink.RESIDUAL, name, fresh, fields, gains=gains)
            self.late_gains()
            return
        # A pass without logits must consume the codes of its attention as well, or they would remain.
        self.out.when = When.ALWAYS
        variants = (When.WITH_LOGITS, When.WITHOUT_LOGITS)
        self._matrix(matrix, Sink.RESIDUAL, name, fresh, fields, gains=gains, variants=variants)
        self.out.when = When.WITH_LOGITS
        self.late_gains()

    def _row_norm(self, op: RmsNorm) -> U8:
        """Return the items of a norm of the rows of a matrix."""
        if not self.config.post_norms:
            raise unsupported(op, "it norms a linear's output; generate the accelerator with post_norms=True")
        self.cover(op)
        constants: OutputNormConstants = self.constants[op.name]
        return head_norm_items(constants.gain.values, constants.eps, constants.shift)

    def to_attention(self, op: Linear, job: RouteJob, matrix: Matrix, fresh: bool) -> None:
        attention, rope = job.reader, self._routes.rope(job)
        assert isinstance(attention, Attention)
        check_heads(attention, self.graph.states[attention.state], self.config)
        if rope is not None:
            self._turns(attention, rope)
        constants: AttentionConstants = self.constants[attention.name]
        coding, shift = coding_of(constants, job.sink, matrix.order)
        norm, gains = self._routes.norm(job), None
        if norm is not None:
            gains = self._head_norm(norm, job)
        made = [op.outputs[job.indices[0]], *(step.outputs[0] for step in (norm, rope) if step is not None)]
        fields = {"rotate": int(rope is not None), "shift": shift, "norm_heads": int(norm is not None)}
        self._matrix(matrix, job.sink, " -> ".join(made), fresh, fields, coding=coding, gains=gains)
        self._coded.add(attention.inputs[PARTS.index(job.sink)])

    def _head_norm(self, op: RmsNorm, job: RouteJob) -> U8:
        """Return the items of a norm of heads, whose gains follow the order of the rows."""
        if not self.config.head_norms:
            raise unsupported(op, "it norms each head; generate the accelerator with head_norms=True")
        self.cover(op)
        constants: HeadNormConstants = self.constants[op.name]
        gains, order = constants.gain.values, self._routes.order(job)
        if order is not None:
            gains = gains[order[: len(gains)]]
        return head_norm_items(gains, constants.eps, constants.shift)

    def _turns(self, op: Attention, rope: Rope) -> None:
        """Check that queries and keys are rotated alike, and read the table of angles that they need."""
        others = [self._routes.maker(name) for name in op.inputs[:2]]
        if not all(isinstance(other, Rope) and other.layout == rope.layout for other in others):
            raise unsupported(
                rope, f"queries and keys of {op.name} are not rotated alike; rotate both, with one layout"
            )
        tables = {(other.inverse_frequencies, other.magnitude) for other in others if isinstance(other, Rope)}
        if len(tables) > 1 or rope.head_dim != self.config.head_dim:
            raise unsupported(rope, f"queries and keys of {op.name} are not rotated alike; rotate both by one table")
        if rope.inputs[1] != "positions":
            raise unsupported(rope, f"it turns by {rope.inputs[1]}; only the pass's positions")
        self._take_angles(rope)
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
        place, heads = self._places[op.state], {"heads": op.heads, "group": group}
        cap, factors = cap_fields(op, constants, self.config)
        window = window_fields(state, self.config.context)
        self.out.emit(Opcode.ATTEND, name, wait=1, **place, **heads, kv_heads=state.kv_heads, **window, **cap)
        self.out.constants(Destination.FACTORS, name, factor_items(factors.values, -factors.exponent))
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
        relu2, gelu = gated.activation == "relu2", gated.activation == "gelu_tanh"
        if not relu2 and gelu != self.config.gelu:
            raise unsupported(gated, f"its activation is {gated.activation}; generate the accelerator with gelu={gelu}")
        fields = {"relu2": int(relu2), "gate_shift": 0 if relu2 else constants.index_shift}
        self._matrix(matrix, Sink.GATE, f"{gate}|{up} -> {gated.outputs[0]}", fresh, fields)

    def to_logits(self, op: Linear, job: RouteJob, matrix: Matrix, fresh: bool) -> None:
        (index,) = job.indices
        self.logit_exponent = self.constants[op.name].matrices[index].logit_exponent
        self.logits_cap = op.soft_cap
        fields = {"elements": matrix.rows}
        if op.soft_cap is None:  # the host caps the logits, and adds their exponentials
            most = 1 << (FIELDS[Opcode.MATRIX]["sum_shift"] - 1)
            shift = -(self.logit_exponent + OCTAVE_FRACTION_BITS)
            fields |= {"counted": self._ids, "sum_shift": max(-most, min(shift, most - 1))}
        self._matrix(matrix, Sink.LOGITS, op.outputs[index], fresh, fields)

    def nothing(self, op: Operation) -> None:
        """Emit nothing: the operation was covered where its input is made."""


def _is_ring(state: KvState, config: AcceleratorConfig) -> bool:
    """Return whether the accelerator keeps the rows of a layer in a ring: it then has a window, no sinks, and fits."""
    return config.ring is not None and state.window is not None and not state.sinks and state.window <= config.window


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
