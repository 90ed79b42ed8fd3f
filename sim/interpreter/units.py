"""The units of the accelerator and the queues before them. An instruction runs as soon as it has all its inputs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import BundleError
from edgedec.hw.config import HEAD_NORM_ITEMS, ROWS, AcceleratorConfig, head_gains, row_gains
from edgedec.hw.isa.instructions import Destination, Instruction, Opcode, Sink, Source
from edgedec.hw.isa.output_layout import ROWS_OFFSET
from edgedec.hw.isa.sequences import SequenceRows
from edgedec.reference.integer_profile.head import sum_of_exponentials
from edgedec.reference.integer_profile.numbers import CODE_BITS, I64, WIDE_BITS, clamp_shift, round_shift, saturate
from edgedec.reference.integer_profile.ops.attention import QUERY_BITS
from edgedec.reference.integer_profile.ops.gated_activation import RELU2_SHIFT, SILU_SHIFT, UP_SHIFT, gate_factor
from edgedec.reference.integer_profile.ops.quantize_activation import codes_of, normed_scale
from edgedec.reference.integer_profile.ops.rms_norm import normed_heads, normed_rows, root_mean_square, sums_of_squares
from edgedec.reference.integer_profile.values import Normed, Scale
from edgedec.sim.interpreter.attention import (
    HeadConstants,
    KvMemory,
    attended,
    coded,
    rotated,
    run_order,
    visible,
)
from edgedec.sim.interpreter.matrices import WeightMemory, drained, matrix_layout
from edgedec.sim.interpreter.streams import ItemQueue, integers
from edgedec.sim.interpreter.taps import write_taps

__all__ = ["PassRegisters", "Trace", "Units"]

U8 = NDArray[np.uint8]
Trace = Callable[[str, I64], None]

_GAIN_SHIFT = 15
_NO_LOGIT = -(1 << 31)
_PARTS = (Sink.QUERIES, Sink.KEYS, Sink.VALUES)


@dataclass(frozen=True, kw_only=True)
class PassRegisters:
    """The parameters of a pass.

    Members:
        parts: the sequences whose tokens it has, and their positions in the cache before it.
        mask: bool [slots, slots]; row i has the slots that slot i sees.
        positions: position of each slot in the text.
        logits: 0 for none, 1 for the best, 2 for whole rows as well.
    """

    parts: tuple[SequenceRows, ...]
    mask: NDArray[np.bool_]
    positions: I64
    logits: int

    @property
    def slots(self) -> int:
        """Number of tokens."""
        return len(self.mask)


@dataclass(frozen=True, kw_only=True)
class _Issued:
    index: int
    fields: Instruction
    name: str

    @property
    def made(self) -> list[str]:
        """Names of the vectors that the instruction produces, in their order."""
        return self.name.split(" -> ")


def _ignore(name: str, values: I64) -> None:
    """Do nothing; used if there is no trace."""


def _fault(index: int, opcode: Opcode, reason: str) -> BundleError:
    return BundleError(f"instruction {index} {opcode.name}: {reason}; compile it again")


class Units:
    """The state of the units during one pass. Instructions and items arrive in the program's order."""

    def __init__(
        self,
        config: AcceleratorConfig,
        registers: PassRegisters,
        weights: WeightMemory,
        cache: KvMemory,
        output: U8,
        trace: Trace | None,
    ) -> None:
        self._config, self._at, self._weights, self._cache, self._output = config, registers, weights, cache, output
        self._trace = _ignore if trace is None else trace
        self._fifos = {destination: ItemQueue() for destination in Destination}
        self._queues = {
            opcode: deque[_Issued]() for opcode in (Opcode.LOAD, Opcode.VECTOR, Opcode.MATRIX, Opcode.ATTEND)
        }
        self._offered: deque[tuple[Source, I64]] = deque()
        self._vectors: deque[tuple[I64, Scale]] = deque()  # codes that no matrix has used yet
        self._now: tuple[I64, Scale] | None = None  # codes that matrices are multiplied by
        self._residual = np.zeros((registers.slots, config.hidden), np.int64)
        self._pieces: list[I64] = []  # pieces of the current vector
        self._sums: list[I64] = []  # their sums with the residual
        self._angles: U8 | None = None
        self._codes: dict[Sink, I64] = {}

    def issue(self, index: int, instruction: Instruction, name: str) -> None:
        if instruction.opcode not in self._queues:
            raise _fault(index, instruction.opcode, "a pass cannot run it")
        if instruction["wait"]:
            self._check_idle(index, instruction.opcode)
        self._queues[instruction.opcode].append(_Issued(index=index, fields=instruction, name=name))
        self._advance()

    def take(self, index: int, destination: Destination, items: U8, key: object) -> None:
        """Take items from the read stream.

        Raises:
            BundleError: weights, keys or values are not used at once; the hardware's stream would stop forever.
        """
        if destination == Destination.ANGLES:
            self._angles = items
        else:
            self._fifos[destination].put(items, key)
        self._advance()
        stuck = destination in (Destination.WEIGHTS, Destination.KEYS_VALUES) and len(self._fifos[destination])
        if stuck and not self._more_to_come(destination):
            raise _fault(index, Opcode.READ, f"{stuck} beats of {destination.name} wait for items that come after them")

    def stop(self, index: int) -> None:
        """End the pass.

        Raises:
            BundleError: an instruction, an item or a vector is left over.
        """
        self._check_idle(index, Opcode.STOP)

    def _more_to_come(self, destination: Destination) -> bool:
        """Return True if the first waiting matrix needs the items of further READ instructions."""
        queue = self._queues[Opcode.MATRIX]
        if destination != Destination.WEIGHTS or not queue:
            return False
        return len(self._fifos[destination]) < matrix_layout(queue[0].fields, self._config).beats

    def _check_idle(self, index: int, opcode: Opcode) -> None:
        for kind, queue in self._queues.items():
            # A waiting VECTOR or ATTEND has not started, because its vector does not exist yet.
            if queue and (opcode == Opcode.STOP or kind in (Opcode.LOAD, Opcode.MATRIX)):
                raise _fault(queue[0].index, kind, f"its inputs are not complete before instruction {index}")
        for destination, fifo in self._fifos.items():
            if len(fifo) and (opcode == Opcode.STOP or destination != Destination.GAINS):
                raise _fault(index, opcode, f"{len(fifo)} items of {destination.name} are left over")
        if self._vectors or self._offered or self._pieces:
            raise _fault(index, opcode, "a vector is left over")

    def _advance(self) -> None:
        while self._load() or self._quantize() or self._multiply() or self._attend():
            pass

    def _first(self, opcode: Opcode) -> _Issued | None:
        queue = self._queues[opcode]
        return queue[0] if queue else None

    def _take(self, destination: Destination, count: int) -> U8:
        return self._fifos[destination].take(count)[1]

    def _load(self) -> bool:
        job = self._first(Opcode.LOAD)
        if job is None or len(self._fifos[Destination.LOAD]) < job.fields["elements"]:
            return False
        self._queues[Opcode.LOAD].popleft()
        items = self._take(Destination.LOAD, job.fields["elements"])
        self._residual[:] = 0
        rows = self._residual[:, : len(items)]
        rows[:] = integers(items, "<i4", 0, self._at.slots).T
        self._trace(job.name, rows.copy())
        self._offered.append((Source.LOAD, rows.copy()))
        return True

    def _quantize(self) -> bool:
        """Run VECTOR: normalize the vector if requested, then quantize it to codes in blocks."""
        job = self._first(Opcode.VECTOR)
        if job is None or not self._offered:
            return False
        source, x = self._offered[0]
        if source != job.fields["source"]:
            needed = Source(job.fields["source"]).name
            raise _fault(job.index, Opcode.VECTOR, f"it needs {needed}, but {source.name} comes next")
        width, norm = x.shape[1], None
        if job.fields["normed"] and len(self._fifos[Destination.GAINS]) < width:
            return False
        self._queues[Opcode.VECTOR].popleft()
        self._offered.popleft()
        if job.fields["normed"]:
            gains = integers(self._take(Destination.GAINS, width), "<i2", 0, 1)[:, 0]
            y = round_shift(x * gains, _GAIN_SHIFT)
            small, big = sums_of_squares(x)
            root, exponent = root_mean_square(small + job.fields["eps"], big)
            self._trace(job.name, y)
            norm = Normed(y=y, root=root, exponent=exponent)
            codes, m16, e = codes_of(y)
            scale = normed_scale(m16, e, root, exponent)
        else:
            codes, m16, e = codes_of(x)
            scale = Scale(mantissa=m16, exponent=np.where(m16 > 0, e - 16, 0))
        write_taps(self._config, job.fields, self._output, x, norm)
        columns = job.fields["blocks"] * self._config.beat_bytes
        if codes[:, columns:].any():
            raise _fault(job.index, Opcode.VECTOR, f"its vector is longer than {columns} columns")
        padded = np.zeros((len(codes), columns), np.int64)
        padded[:, : codes.shape[1]] = codes[:, :columns]
        self._trace(f"{job.name}.codes", padded)
        self._trace(f"{job.name}.scale.mantissa", scale.mantissa)
        self._trace(f"{job.name}.scale.exponent", scale.exponent)
        self._vectors.append((padded, scale))
        return True

    def _multiply(self) -> bool:
        """Run MATRIX: multiply and scale a piece of a vector; send the vector to its sink when it is complete."""
        job = self._first(Opcode.MATRIX)
        if job is None or (job.fields["fresh"] and not self._vectors):
            return False
        of, layout = job.fields, matrix_layout(job.fields, self._config)
        elements = of["words"] * ROWS - of["spare"]
        rows = elements if of["rows"] else 0
        if len(self._fifos[Destination.WEIGHTS]) < layout.beats or len(self._fifos[Destination.ROWS]) < rows:
            return False
        self._queues[Opcode.MATRIX].popleft()
        if of["fresh"]:
            self._now = self._vectors.popleft()
        if self._now is None or self._now[0].shape[1] != layout.columns:
            raise _fault(job.index, Opcode.MATRIX, f"there are no codes of {layout.columns} columns")
        codes, scale = self._now
        key, beats = self._fifos[Destination.WEIGHTS].take(layout.beats)
        weights = self._weights.weights(key, layout, beats, tied=bool(of["tied"]))
        acc = (codes.astype(weights.dtype) @ weights[:elements].T).astype(np.int64)
        constants = self._take(Destination.ROWS, rows) if rows else None
        out = drained(of, acc, scale, constants, per_row=self._config.per_row)
        self._pieces.append(out)
        if of["sink"] == Sink.RESIDUAL and not of["norm_rows"]:
            self._sums.append(self._added(job, out))
        if not of["more"]:
            whole, self._pieces = np.concatenate(self._pieces, axis=1), []
            self._send(job, whole, scale)
        return True

    def _added(self, job: _Issued, out: I64) -> I64:
        """Add a piece, or a whole vector that was normed, to its words of the residual, and return their new values."""
        done = sum(one.shape[1] for one in self._sums)
        rows = self._residual[:, done:][:, : out.shape[1]]
        if rows.shape != out.shape:
            raise _fault(job.index, Opcode.MATRIX, f"it adds past the {self._config.hidden} elements of the residual")
        rows[:] = saturate(rows + out, WIDE_BITS)
        return rows.copy()

    def _send(self, job: _Issued, out: I64, scale: Scale) -> None:
        of = job.fields
        sink = Sink(of["sink"])
        self._trace(job.made[0], out)
        if sink == Sink.RESIDUAL and of["norm_rows"]:
            self._sums.append(self._added(job, self._normed_rows(job, out)))
        if sink == Sink.RESIDUAL:
            total, self._sums = np.concatenate(self._sums, axis=1), []
            self._trace(job.made[-1], total)
            if of["onward"]:
                self._offered.append((Source.RESIDUAL, total))
            return
        if sink in _PARTS:
            self._code(job, out)
        elif sink == Sink.GATE:
            self._gate(job, out)
        elif of["elements"] != out.shape[1]:
            raise _fault(job.index, Opcode.MATRIX, f"{of['elements']} elements are not the {out.shape[1]} rows")
        else:
            self._give(job, out, scale)

    def _code(self, job: _Issued, x: I64) -> None:
        """Norm and rotate queries, keys or values if requested, and quantize them for attention."""
        of, sink = job.fields, Sink(job.fields["sink"])
        if x.shape[1] % self._config.head_dim:
            raise _fault(
                job.index,
                Opcode.MATRIX,
                f"{x.shape[1]} elements are not a multiple of the head dimension {self._config.head_dim}",
            )
        if of["norm_heads"]:
            x = self._normed(job, x)
        if of["rotate"]:
            if self._angles is None or len(self._angles) != self._config.head_dim // 2:
                raise _fault(job.index, Opcode.MATRIX, f"there are no {self._config.head_dim // 2} angles")
            x = rotated(x, self._angles, self._config.head_dim)
            self._trace(job.made[-1], x)
        if len(self._fifos[Destination.CODING]) < x.shape[1]:
            raise _fault(job.index, Opcode.MATRIX, f"there are no {x.shape[1]} items of CODING")
        constants = self._take(Destination.CODING, x.shape[1])
        bits = QUERY_BITS if sink == Sink.QUERIES else CODE_BITS
        self._codes[sink] = coded(x, constants, of["shift"], bits)

    def _normed(self, job: _Issued, x: I64) -> I64:
        """Norm each head with the next items of GAINS."""
        count = head_gains(self._config.head_dim)
        if not self._config.head_norms or len(self._fifos[Destination.GAINS]) < count:
            raise _fault(job.index, Opcode.MATRIX, f"there is no unit that norms heads, or no {count} items of GAINS")
        gains, eps, shift = self._norm_items(count)
        x = normed_heads(x, gains, eps, shift)
        self._trace(job.made[min(1, len(job.made) - 1)], x)
        return x

    def _normed_rows(self, job: _Issued, x: I64) -> I64:
        """Norm the vector with the next items of GAINS."""
        count = row_gains(x.shape[1])
        if not self._config.post_norms or len(self._fifos[Destination.GAINS]) < count:
            raise _fault(job.index, Opcode.MATRIX, f"there is no unit that norms rows, or no {count} items of GAINS")
        if job.fields["elements"] != x.shape[1]:
            raise _fault(job.index, Opcode.MATRIX, f"{job.fields['elements']} elements are not the {x.shape[1]} rows")
        gains, eps, shift = self._norm_items(count)
        x = normed_rows(x, gains, eps, shift)
        self._trace(job.made[min(1, len(job.made) - 1)], x)
        return x

    def _norm_items(self, count: int) -> tuple[I64, int, int]:
        """Take the items of a norm, and return its gains, eps and shift."""
        items = self._take(Destination.GAINS, count)
        low, middle, high, shift = integers(items[:HEAD_NORM_ITEMS], "<u2", 0, 1)[:, 0].tolist()
        return integers(items[HEAD_NORM_ITEMS:], "<i2", 0, 1)[:, 0], low | middle << 16 | high << 32, shift

    def _gate(self, job: _Issued, out: I64) -> None:
        gate, up = out[:, 0::2], out[:, 1::2]
        if job.fields["relu2"]:
            z = round_shift(np.square(np.maximum(gate, 0)), RELU2_SHIFT)
        else:
            activation = "gelu_tanh" if self._config.gelu else "silu"
            z = round_shift(gate * gate_factor(gate, job.fields["gate_shift"], activation), SILU_SHIFT)
        h = round_shift(z * up, UP_SHIFT)
        self._trace(job.made[-1], h)
        self._offered.append((Source.GATE, h))

    def _attend(self) -> bool:
        job = self._first(Opcode.ATTEND)
        if job is None or len(self._codes) < len(_PARTS):
            return False
        of, config, at = job.fields, self._config, self._at
        heads, rows = of["heads"], config.cache_rows(of["ring"])
        runs = 2 * heads // config.together(of["group"], at.slots)
        needed = {
            Destination.FACTORS: heads,
            Destination.SCALES: heads * config.head_dim,
            Destination.KEYS_VALUES: runs * sum(rows.beats(part.committed) for part in at.parts),
        }
        if any(len(self._fifos[destination]) < count for destination, count in needed.items()):
            return False
        self._queues[Opcode.ATTEND].popleft()
        constants = HeadConstants(
            factors=self._take(Destination.FACTORS, heads),
            scales=self._take(Destination.SCALES, needed[Destination.SCALES]),
            cap=(of["cap_factor"], of["cap_shift"]) if config.score_cap else None,
        )
        queries, *own = (self._codes.pop(sink).reshape(at.slots, -1, config.head_dim) for sink in _PARTS)
        shared = any(part.shape[1] != of["kv_heads"] for part in own) or of["kv_heads"] * of["group"] != heads
        if queries.shape[1] != heads or shared:
            raise _fault(job.index, Opcode.ATTEND, f"its {heads} heads are not those that were coded")
        for short, codes in zip(("q12", "k8", "v8"), (queries, *own), strict=True):
            self._trace(f"{job.name}.{short}", codes)
        keys, values = self._all_rows(of, own)
        committed = [(part.slots, range(rows.first(part.committed), part.committed)) for part in at.parts]
        seen = visible(committed, at.positions, at.mask, of["window"], of["sinks"])
        out = attended(job.name, queries, keys, values, seen, constants, self._trace)
        self._trace(job.name, out)
        self._offered.append((Source.ATTENTION, out))
        self._write(of, own)
        return True

    def _all_rows(self, of: Instruction, own: list[I64]) -> tuple[I64, I64]:
        """Return the keys and the values of every query head, those of the cache first: [heads, t, head_dim]."""
        kept = self._config.cache_rows(of["ring"])
        by_run: dict[tuple[int, int], Any] = {}
        together = self._config.together(of["group"], self._at.slots)
        for head, part in run_order(of["heads"] // together):
            rows = [np.zeros((0, self._config.head_dim), np.int64)]
            for sequence in self._at.parts:
                if beats := kept.beats(sequence.committed):
                    read = sequence.committed - kept.first(sequence.committed)
                    rows.append(self._cache.rows(self._take(Destination.KEYS_VALUES, beats), read).astype(np.int64))
            by_run[head, part] = np.concatenate([*rows, own[part][:, head * together // of["group"]]])
        keys, values = (np.stack([by_run[head // together, part] for head in range(of["heads"])]) for part in (0, 1))
        return keys, values

    def _write(self, of: Instruction, own: list[I64]) -> None:
        """Write the keys and values of the pass into the cache, each after the committed positions of its sequence."""
        kept, layout = self._config.cache_rows(of["ring"]), self._config.kv_layout
        places = [kept.place(part.row(layout, slot)) for part in self._at.parts for slot in range(part.slots)]
        for part, codes in enumerate(own):
            for head in range(codes.shape[1]):
                start = of["start"] + (2 * head + part) * of["run"]
                for slot, place in enumerate(places):
                    self._cache.write(start, place, codes[slot, head])

    def _give(self, job: _Issued, logits: I64, scale: Scale) -> None:
        """Write the results: scales, sums of exponentials, the best logits, and whole rows if they are requested."""
        slots, most, k = self._config.slots, self._at.slots, self._config.top_k
        first = job.fields["first"]
        scales = self._output[: 8 * slots].view("<i2").reshape(slots, 4)
        scales[:most] = 0
        scales[:most, 0] = scale.mantissa.astype(np.uint16).view(np.int16)
        scales[:most, 1] = scale.exponent
        shift = clamp_shift(job.fields["sum_shift"] - scale.exponent)
        sums = sum_of_exponentials(logits[:, : job.fields["counted"]], scale.mantissa, shift)
        scales[:most, 2:] = sums.astype("<u4")[:, None].view("<i2")
        order = np.argsort(-logits, axis=1, kind="stable")[:, :k]
        best = np.zeros((k, most, 2), np.int64)
        best[..., 0] = _NO_LOGIT
        best[: order.shape[1], :, 0] = np.take_along_axis(logits, order, axis=1).T
        best[: order.shape[1], :, 1] = order.T + first
        self._output[8 * slots :][: 8 * slots * k].view("<i4").reshape(k, slots, 2)[:, :most] = best
        if self._at.logits == 2:
            wide = 1 << (slots - 1).bit_length()
            rows = self._output[ROWS_OFFSET:].view("<i4").reshape(-1, wide)
            rows[: logits.shape[1], :most] = logits.T  # from that of ``first`` on
