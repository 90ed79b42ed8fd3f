"""Distribution of the rows of drained matrices to the units that consume them."""

from typing import Any

from amaranth.hdl import Module, Signal
from amaranth.lib import stream
from amaranth.lib.wiring import In, Out

from edgedec.hw.attention.parts import part
from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.instruction_layouts import layout, optional
from edgedec.hw.blocks.payloads import words
from edgedec.hw.blocks.pipeline import check
from edgedec.hw.blocks.resources import Resources
from edgedec.hw.isa.instructions import Opcode, Sink
from edgedec.hw.logits.logits_path import vocabulary
from edgedec.hw.vector.gated_activation import activation
from edgedec.hw.vector.residual_path import addition

__all__ = ["SinkRouter"]

_DRAINED, _WIDE, _NARROW = 32, 27, 18  # bits of an element: drained, in the residual, in attention and the gate


class SinkRouter(CostedComponent):
    """Send the rows of one matrix after the other to its sink, and the sink's parameters before the vector's first row.

    Parameters:
        slots: number of slots, 1 to 8.
        depth: elements of the residual, 1 to 65536.
        norms: whether the attention path has a norm of heads.
        row_norms: whether the residual has a norm of summands.

    Members:
        matrices: In(stream of layout(Opcode.MATRIX)). Matrices in the order of their rows.
        input: In(words(32, slots)). ``last`` ends each matrix.
        additions: Out(stream addition(depth, norms=row_norms)). One item per matrix for the residual, or per vector that
            is normed.
        residual: Out(words(27, slots)). Rows for the residual.
        parts: Out(stream edgedec.hw.attention.parts.part(norms=norms)). One item per vector of attention.
        attention: Out(words(18, slots)). Rows of queries, keys and values.
        activation: Out(activation()). Parameters of the gate, steady from the first row of a vector on.
        gate: Out(words(18, slots)). Rows for the gated activation.
        vectors: Out(stream edgedec.hw.logits.logits_path.vocabulary()). One item per vector of logits.
        logits: Out(words(32, slots)). ``last`` ends a vector, that is, a matrix without ``more``; likewise at other
            sinks.
        idle: Out(1). No matrix is queued or in progress.

    Latency: none from ``input`` to a sink; 1 cycle from a matrix to its item, 2 to its first row.
    Throughput: one row per cycle; two cycles between matrices.
    """

    def __init__(self, *, slots: int, depth: int, norms: bool = False, row_norms: bool = False) -> None:
        check("slots", slots, 1, 8)
        check("depth", depth, 1, 1 << 16)
        self._slots, self._depth, self._norms, self._row_norms = slots, depth, norms, row_norms
        super().__init__(
            lambda: {
                "matrices": In(stream.Signature(layout(Opcode.MATRIX))),
                "input": In(words(_DRAINED, slots)),
                "additions": Out(stream.Signature(addition(depth, norms=row_norms))),
                "residual": Out(words(_WIDE, slots)),
                "parts": Out(stream.Signature(part(norms=norms))),
                "attention": Out(words(_NARROW, slots)),
                "activation": Out(activation()),
                "gate": Out(words(_NARROW, slots)),
                "vectors": Out(stream.Signature(vocabulary())),
                "logits": Out(words(_DRAINED, slots)),
                "idle": Out(1),
            }
        )

    @property
    def resources(self) -> Resources:
        """Estimate of the cost: wires, the parameters of a matrix, and its number of rows."""
        depth = self._depth
        bits = depth.bit_length()
        return Resources(lut=3 * bits + 31, ff=3 * bits + 90)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        matrix, source = self.matrices.p, self.input
        now = Signal(layout(Opcode.MATRIX))
        continued = Signal()  # an earlier matrix began the vector
        told = Signal()
        elements = Signal(self.additions.p.elements.shape())
        attending = (now.sink == Sink.QUERIES) | (now.sink == Sink.KEYS) | (now.sink == Sink.VALUES)
        m.d.comb += [
            self.additions.p.start.eq(now.start),
            self.additions.p.elements.eq(elements),
            self.additions.p.more.eq(now.more),
            self.additions.p.onward.eq(now.onward),
            self.parts.p.part.eq(now.sink - Sink.QUERIES),
            self.parts.p.rotate.eq(now.rotate),
            self.parts.p.shift.eq(now.shift),
            self.vectors.p.first.eq(now.first),
            self.vectors.p.elements.eq(now.elements),
            self.vectors.p.counted.eq(now.counted),
            self.vectors.p.sum_shift.eq(now.sum_shift),
        ]
        if self._norms:
            m.d.comb += self.parts.p.normed.eq(optional(Opcode.MATRIX, now, "norm_heads"))
        with m.FSM() as machine:
            with m.State("idle"):
                m.d.comb += self.matrices.ready.eq(1)
                m.d.sync += [
                    now.eq(matrix),
                    elements.eq((matrix.words << 2) + matrix.words - matrix.spare),  # ROWS is 5
                ]
                with m.If(self.matrices.valid):
                    m.next = "tell"
            with m.State("tell"):
                with m.If(now.sink == Sink.RESIDUAL):
                    m.d.comb += self._add(m, now, continued, told)
                with m.Elif(continued):
                    m.d.comb += told.eq(1)
                with m.Elif(attending):
                    m.d.comb += [self.parts.valid.eq(1), told.eq(self.parts.ready)]
                with m.Elif(now.sink == Sink.LOGITS):
                    m.d.comb += [self.vectors.valid.eq(1), told.eq(self.vectors.ready)]
                with m.Else():
                    m.d.comb += told.eq(1)
                    m.d.sync += [self.activation.relu2.eq(now.relu2), self.activation.shift.eq(now.gate_shift)]
                with m.If(told):
                    m.next = "route"
            with m.State("route"):
                for sink, chosen in (
                    (self.residual, now.sink == Sink.RESIDUAL),
                    (self.attention, attending),
                    (self.gate, now.sink == Sink.GATE),
                    (self.logits, now.sink == Sink.LOGITS),
                ):
                    with m.If(chosen):
                        m.d.comb += [sink.valid.eq(source.valid), source.ready.eq(sink.ready)]
                with m.If(source.valid & source.ready & source.p.last):
                    m.d.sync += continued.eq(now.more)
                    m.next = "idle"
        m.d.comb += self.idle.eq(machine.ongoing("idle") & ~self.matrices.valid)
        for sink in (self.residual, self.attention, self.gate, self.logits):
            m.d.comb += sink.p.last.eq(source.p.last & ~now.more)
            for narrow, value in zip(_elements(sink), _elements(source), strict=True):
                m.d.comb += narrow.eq(value[: len(narrow)].as_signed())
        return m

    def _add(self, m: Module, now: Any, continued: Signal, told: Signal) -> list[Any]:
        """Return the assignments that describe an addition; a vector that is normed is one addition of all its matrices."""
        addition_ = self.additions
        if not self._row_norms:
            return [addition_.valid.eq(1), told.eq(addition_.ready)]
        normed = optional(Opcode.MATRIX, now, "norm_rows")
        again = normed & continued
        with m.If(normed):
            m.d.comb += [addition_.p.elements.eq(now.elements), addition_.p.more.eq(0)]
        return [addition_.p.normed.eq(normed), addition_.valid.eq(~again), told.eq(addition_.ready | again)]


def _elements(port: Any) -> list[Any]:
    return [value for lane in port.p["values"] for value in lane]
