"""Quantization of vectors to blocks of codes: after a norm or not, stored until their largest value is known."""

from typing import Any, Literal

from amaranth.hdl import Module, Mux, Signal, signed, unsigned
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out, connect, flipped

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.gearbox import Gearbox
from edgedec.hw.blocks.payloads import codes, scales, word, words
from edgedec.hw.blocks.pipeline import check, fork
from edgedec.hw.blocks.register_slice import RegisterSlice, sliced
from edgedec.hw.blocks.resources import Resources
from edgedec.hw.blocks.vector_memory import VectorMemory
from edgedec.hw.vector.requantizer import Requantizer
from edgedec.hw.vector.rms_norm import RmsNorm
from edgedec.hw.vector.row_statistics import RowStatistics

__all__ = ["QuantizePath", "plan"]

_WIDE = 27  # bits of an element


def plan() -> data.StructLayout:
    """Return the plan of a vector: ``normed`` sends it through the norm, ``blocks`` is its number of blocks, at least 1."""
    return data.StructLayout({"normed": 1, "blocks": unsigned(16)})


class QuantizePath(CostedComponent):
    """Connect norm, vector memory with statistics, requantizer and gearbox in a row.

    One vector is inside at a time: it fills the memory, and leaves it once its largest value is known.

    Parameters:
        beat_bytes: columns of a block of codes, 1 to 64.
        slots: number of slots, 1 to 8.
        depth: elements of the longest vector, 1 to 65536.
        style: kind of the vector's memory, "block" or "ultra".

    Members:
        vectors: In(stream ``plan()``). One item per vector, before it.
        input: In(words(27, slots)). A vector of at most ``depth`` elements.
        gains: In(stream of signed(16) [1]). One item per element of a normed vector.
        eps: In(stream of unsigned(48)). One item per normed vector.
        codes: Out(codes(slots, beat_bytes)). Blocks of codes.
        scales: Out(scales(slots)). One item per vector.

    Latency: slots + beat_bytes + 32 cycles from a vector's last element to its first block, 3 more if normed.
    Throughput: one element per cycle in; then one block in beat_bytes + 2 cycles if nothing stalls it; then the next
        vector.
    Source: docs/integer-profile.md, "RMS norm" and "Quantize".
    """

    def __init__(self, *, beat_bytes: int, slots: int, depth: int, style: Literal["block", "ultra"] = "block") -> None:
        check("beat_bytes", beat_bytes, 1, 64)
        check("slots", slots, 1, 8)
        check("depth", depth, 1, 1 << 16)
        super().__init__(
            lambda: {
                "vectors": In(stream.Signature(plan())),
                "input": In(words(_WIDE, slots)),
                "gains": In(stream.Signature(data.ArrayLayout(signed(16), 1))),
                "eps": In(stream.Signature(unsigned(48))),
                "codes": Out(codes(slots, beat_bytes)),
                "scales": Out(scales(slots)),
            }
        )
        self._slots = slots
        self._norm, self._statistics = RmsNorm(slots=slots), RowStatistics(slots=slots, squares=False)
        self._memory = VectorMemory(width=_WIDE, slots=slots, depth=depth, style=style)
        self._requantizer, self._gearbox = Requantizer(slots=slots), Gearbox(slots=slots, columns=beat_bytes)
        self._requantized = RegisterSlice(shape=word(8, slots))

    @property
    def resources_by_part(self) -> dict[str, Resources]:
        """Estimate of the cost by submodule; "glue" chooses words and maxima, and holds the fork."""
        return {
            "norm": self._norm.resources,
            "statistics": self._statistics.resources,
            "memory": self._memory.resources,
            "requantizer": self._requantizer.resources,
            "gearbox": self._gearbox.resources,
            "glue": self._requantized.resources + Resources(lut=_WIDE * self._slots * 2 + 42, ff=5),
        }

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.norm, m.submodules.statistics = norm, statistics = self._norm, self._statistics
        m.submodules.memory = memory = self._memory
        m.submodules.requantizer, m.submodules.gearbox = requantizer, gearbox = self._requantizer, self._gearbox
        connect(m, flipped(self.gains), norm.gains)
        connect(m, flipped(self.eps), norm.eps)
        connect(m, norm.roots, requantizer.roots)
        connect(m, memory.output, requantizer.input)
        connect(m, sliced(m, "requantized", requantizer.output, self._requantized), gearbox.input)
        connect(m, requantizer.scales, flipped(self.scales))
        connect(m, gearbox.output, flipped(self.codes))
        normed, filling, ended = Signal(), Signal(), Signal()
        self._fill(m, norm, statistics, memory, normed, filling, ended)
        self._choose_maxima(m, norm, statistics, requantizer, normed)
        with m.FSM():
            with m.State("idle"):
                m.d.comb += [
                    gearbox.blocks.payload.eq(self.vectors.p.blocks),
                    gearbox.blocks.valid.eq(self.vectors.valid),
                    self.vectors.ready.eq(gearbox.blocks.ready),
                ]
                m.d.sync += normed.eq(self.vectors.p.normed)
                with m.If(self.vectors.valid & self.vectors.ready):
                    m.next = "fill"
            with m.State("fill"):
                m.d.comb += filling.eq(1)
                with m.If(memory.write.valid & memory.write.p.last):
                    m.next = "ask"
            with m.State("ask"):
                m.d.comb += [memory.reads.valid.eq(1), memory.reads.p.length.eq(memory.written)]
                with m.If(memory.reads.ready):
                    m.next = "drain"
            with m.State("drain"), m.If(memory.output.valid & memory.output.ready & memory.output.p.last):
                m.next = "idle"
        # After a vector's last word the norm still holds words of it, which the next vector must not follow directly.
        with m.If(~filling):
            m.d.sync += ended.eq(0)
        with m.Elif(self.input.valid & self.input.ready & self.input.p.last):
            m.d.sync += ended.eq(1)
        return m

    def _fill(
        self, m: Module, norm: Any, statistics: Any, memory: Any, normed: Signal, filling: Signal, ended: Signal
    ) -> None:
        """Fill the memory through the norm, or directly with the statistics that the norm would have computed."""
        source, open_ = self.input, Signal()
        plain = words(_WIDE, self._slots).create()
        direct = words(_WIDE, self._slots).create()
        fork(m, plain, [direct, statistics.input])
        m.d.comb += [
            open_.eq(filling & ~ended),
            norm.input.payload.eq(source.payload),
            norm.input.valid.eq(source.valid & open_ & normed),
            plain.payload.eq(source.payload),
            plain.valid.eq(source.valid & open_ & ~normed),
            source.ready.eq(open_ & Mux(normed, norm.input.ready, plain.ready)),
            memory.write.payload.eq(Mux(normed, norm.output.payload.as_value(), direct.payload.as_value())),
            memory.write.valid.eq(Mux(normed, norm.output.valid, direct.valid)),
            norm.output.ready.eq(1),
            direct.ready.eq(1),
        ]

    def _choose_maxima(self, m: Module, norm: Any, statistics: Any, requantizer: Any, normed: Signal) -> None:
        """Select the maxima of the vector inside; the next one enters only after its words, hence its maxima, are taken."""
        plain_maxima = statistics.output
        m.d.comb += [
            requantizer.maxima.p.absmax.eq(
                Mux(normed, norm.maxima.p.absmax.as_value(), plain_maxima.p.absmax.as_value())
            ),
            requantizer.maxima.p.normed.eq(normed),
            requantizer.maxima.valid.eq(Mux(normed, norm.maxima.valid, plain_maxima.valid)),
            norm.maxima.ready.eq(requantizer.maxima.ready & normed),
            plain_maxima.ready.eq(requantizer.maxima.ready & ~normed),
        ]
