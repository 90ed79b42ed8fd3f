"""Attention over streamed keys and values, with the exact largest score first, exact sums, and one division."""

from typing import Any

from amaranth.hdl import Cat, Module, Value, unsigned
from amaranth.lib import data, fifo, stream
from amaranth.lib.wiring import In, Out, connect, flipped

from edgedec.hw.attention.head_shape import HeadShape
from edgedec.hw.attention.issue import AttentionIssue
from edgedec.hw.attention.parts import head_factor
from edgedec.hw.attention.score_memory import READ_STAGES, ScoreMemory, visibility
from edgedec.hw.attention.softmax import SOFTMAX_STAGES, Softmax, probabilities
from edgedec.hw.attention.weighted_values import WeightedValues
from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.contract import contract
from edgedec.hw.blocks.credit_queue import CreditQueue
from edgedec.hw.blocks.payloads import beat, payload, rows, words
from edgedec.hw.blocks.pipeline import fork
from edgedec.hw.blocks.ram_cost import distributed_luts
from edgedec.hw.blocks.resources import Resources, total
from edgedec.hw.matrix.mac_array import column_bits, score_bits, work

__all__ = ["AttentionHeads", "head_constants"]

_HEADS_AHEAD = 4  # heads whose constants may be taken in advance


def head_constants(slots: int) -> data.StructLayout:
    """Return c (of each row) and sc of docs/integer-profile.md for a head; ``last`` ends the pass."""
    return data.StructLayout(
        {
            "factors": data.ArrayLayout(unsigned(16), slots),
            "shift": unsigned(6),
            "last": 1,
        }
    )


class AttentionHeads(CostedComponent):
    """Let up to ``slots`` rows of queries attend, head by head, the committed positions and the pass's own.

    A *row* is one query: a token and one of its heads. Rows of a run share a key-value head, and nothing else. If heads
    are grouped, either the heads stream the shared runs one after the other, each for all tokens; or rows are pairs of
    token and head, as many as there are slots, and the runs stream once. ``mask`` is [row][token]; ``factors`` are per
    row.

    Multiplications are done by a MacArray of ``beat_bytes`` lanes and of the same ``slots``, ``chunk`` and
    ``query_bits``, which returns ``scores`` and ``columns``.

    Parameters:
        shape: shape of the heads. The softmax has ``lanes * slots`` exponentials per cycle; beats are taken at full rate
            if ``lanes * head_dim >= beat_bytes``.
        out_lanes: elements of the output per row and cycle; divides ``chunk``.
        query_bits: signed bits of a query's code, 8 to 16; codes are symmetric.
        ultra: whether the scores are stored in UltraRAM.
        capped: whether scores have a soft-cap: the factors of a head are then those of its scores to the argument of
            tanh. Without it the port ``cap`` does not exist.

    Members:
        visibility: In(visibility(shape)). Steady from a pass's first item to its last output.
        cap: In(head_factor()). c and sc of capped scores, steady like ``visibility``.
        heads: In(stream head_constants(slots)). One item per head.
        beats: In(beat(beat_bytes)). The committed positions' runs in the order K0 K1 V0 K2 V1 ... V(n-1); none without
            committed positions.
        queries: In(stream rows(query_bits, slots, chunk)). Codes of each row, ``head_dim / chunk`` items per head.
        keys, values: In(stream rows(8, slots, chunk)). Codes of each own position, likewise.
        scales: In(stream u16 [out_lanes]). V of the columns of each word of ``output``, the same for all rows; taken as
            that word is formed.
        output: Out(words(27, slots, out_lanes)). The head_dim elements of each head in turn; ``last`` ends the pass.
            Rows that see no position produce zeros.
        work: Out(work(beat_bytes, slots)). Work for the MacArray.
        scores, columns: In. Sums from the MacArray.

    Latency: at most slots + 40 cycles from a pass's last beat to the last head's first output. With slots = 8 and no
        committed position, 88 to 91 from a head's queries to its first output, and head_dim + 37 from head to head.
    Throughput: one beat per cycle, because the softmax of a head overlaps with the next head's keys. With a single head
        or few positions, the latency of one head dominates.
    Source: docs/integer-profile.md, "Attention"; order of runs: docs/accelerator.md, "Programs".
    """

    def __init__(
        self,
        shape: HeadShape,
        *,
        out_lanes: int = 1,
        query_bits: int = 12,
        ultra: bool = False,
        capped: bool = False,
    ) -> None:
        slots, lanes, chunk = shape.slots, shape.lanes, shape.chunk
        self._issue = AttentionIssue(shape, query_bits=query_bits)
        self._scores = ScoreMemory(shape, query_bits=query_bits, ultra=ultra, capped=capped)
        self._capped = capped
        self._softmax = Softmax(slots=slots, lanes=lanes)
        self._mixture = WeightedValues(shape, out_lanes=out_lanes)
        self._slots = slots
        positions = shape.layout.positions
        partial = rows(score_bits(query_bits, chunk), slots, positions)
        self._chances = CreditQueue(shape=payload(probabilities(slots, lanes)), stages=READ_STAGES + SOFTMAX_STAGES)
        super().__init__(
            lambda: {
                "visibility": In(visibility(shape)),
                **({"cap": In(head_factor())} if capped else {}),
                "heads": In(stream.Signature(head_constants(slots))),
                "beats": In(beat(shape.beat_bytes)),
                "queries": In(stream.Signature(rows(query_bits, slots, chunk))),
                "keys": In(stream.Signature(rows(8, slots, chunk))),
                "values": In(stream.Signature(rows(8, slots, chunk))),
                "scales": In(stream.Signature(data.ArrayLayout(unsigned(16), out_lanes))),
                "work": Out(work(shape.beat_bytes, slots)),
                "scores": In(stream.Signature(partial, always_ready=True)),
                "columns": In(
                    stream.Signature(rows(column_bits(positions), slots, chunk), always_ready=True),
                ),
                "output": Out(words(27, slots, out_lanes)),
            }
        )

    @property
    def resources(self) -> Resources:
        """Estimate of the cost without the MacArray."""
        parts = total(
            part.resources for part in (self._issue, self._scores, self._softmax, self._mixture, self._chances)
        )
        constants = Resources(lut=distributed_luts(16 * self._slots + 6, _HEADS_AHEAD) + 38, ff=20)
        return parts + constants

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        issue, scores, mixture_ = self._issue, self._scores, self._mixture
        m.submodules.issue, m.submodules.scores, m.submodules.mixture = issue, scores, mixture_
        m.submodules.softmax, m.submodules.chances = softmax, chances = self._softmax, self._chances
        for part in (issue, scores, mixture_):
            m.d.comb += Value.cast(part.visibility).eq(Value.cast(self.visibility))
        for name in ("beats", "queries", "keys", "values"):
            connect(m, flipped(getattr(self, name)), getattr(issue, name))
        connect(m, issue.work, flipped(self.work))
        connect(m, flipped(self.scores), scores.input)
        connect(m, flipped(self.columns), mixture_.columns)
        connect(m, flipped(self.scales), mixture_.scales)
        connect(m, mixture_.output, flipped(self.output))
        m.d.comb += issue.drained.eq(mixture_.drained)
        self._constants(m)
        # Scores are read, and probabilities computed, without a stall: a word is read only if there is room for it.
        m.d.comb += [
            scores.room.eq(chances.room),
            chances.enter.eq(scores.reads),
            chances.result.eq(softmax.output.payload),
        ]
        fork(m, chances.output, [issue.chances, mixture_.chances])
        return m

    def _constants(self, m: Module) -> None:
        """Queue a head's constants until its keys begin, its distances pass and its sums are complete, respectively."""
        taken = self.heads.p
        factors = data.StructLayout({"factors": taken.factors.shape(), "shift": unsigned(6)})
        m.submodules.factors = early = fifo.SyncFIFO(width=factors.size, depth=_HEADS_AHEAD)
        m.submodules.ends = late = fifo.SyncFIFO(width=1, depth=_HEADS_AHEAD)
        begins = self._issue.heads
        free = early.w_rdy & late.w_rdy
        m.d.comb += [
            self.heads.ready.eq(begins.ready & free),
            begins.valid.eq(self.heads.valid & free),
            begins.payload.eq(taken.last),
            early.w_data.eq(Cat(taken.factors, taken.shift)),
            late.w_data.eq(taken.last),
            early.w_en.eq(self.heads.valid & self.heads.ready),
            late.w_en.eq(self.heads.valid & self.heads.ready),
        ]
        distances, sink = self._scores.output, self._softmax.input
        current = data.View(factors, early.r_data)
        m.d.comb += [
            sink.p.distances.as_value().eq(distances.p.distances.as_value()),
            sink.p.visible.as_value().eq(distances.p.visible.as_value()),
            sink.p.last.eq(distances.p.last),
            sink.p.factors.as_value().eq(
                Cat([self.cap.factor] * self._slots) if self._capped else current.factors.as_value()
            ),
            *(sink.p.shifts[slot].eq(self.cap.shift if self._capped else current.shift) for slot in range(self._slots)),
            sink.valid.eq(distances.valid),
        ]
        if self._capped:
            first = self._scores.factors
            m.d.comb += [
                first.payload.as_value().eq(early.r_data),
                first.valid.eq(early.r_rdy),
                early.r_en.eq(first.ready),
            ]
        else:
            m.d.comb += early.r_en.eq(distances.valid & distances.p.last)
            contract(m, ~distances.valid | early.r_rdy, "A head's constants are taken before its first distance")
        ends = self._mixture.ends
        m.d.comb += [ends.valid.eq(late.r_rdy), ends.payload.eq(late.r_data), late.r_en.eq(ends.ready)]
