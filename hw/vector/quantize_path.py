"""Quantization of vectors to blocks of codes: after a norm or not, stored until their largest value is known."""

from typing import Any, Literal

from amaranth.hdl import Const, Module, Mux, Signal, Value, signed, unsigned
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out, connect, flipped

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.contract import contract
from edgedec.hw.blocks.gearbox import Gearbox
from edgedec.hw.blocks.payloads import codes, scales, words
from edgedec.hw.blocks.pipeline import carried, check, delayed
from edgedec.hw.blocks.resources import Resources
from edgedec.hw.blocks.vector_memory import VectorMemory
from edgedec.hw.logits.tap_writer import TAP_FIELDS, TapWriter
from edgedec.hw.vector.absolute_maximum import AbsoluteMaximum
from edgedec.hw.vector.requantizer import Requantizer
from edgedec.hw.vector.rms_norm import RmsNorm

__all__ = ["QuantizePath", "plan"]

_WIDE = 27  # bits of an element
_WRITES = ("other_requests", "other_data", "requests", "data")  # ports of the writer of taps


def plan(*, taps: bool = False) -> data.StructLayout:
    """Return the plan of a vector: ``normed`` sends it through the norm, ``blocks`` is its number of blocks, at least 1.

    With ``taps`` it also has what the vector writes.
    """
    return data.StructLayout({"normed": 1, "blocks": unsigned(16), **(TAP_FIELDS if taps else {})})


class QuantizePath(CostedComponent):
    """Connect norm, vector memory with largest value, requantizer and gearbox in a row.

    One vector is inside at a time: it fills the memory, and leaves it once its largest value is known.

    Parameters:
        beat_bytes: columns of a block of codes, 1 to 64.
        slots: number of slots, 1 to 8.
        depth: elements of the longest vector, 1 to 65536.
        style: kind of the vector's memory, "block" or "ultra".
        taps_port_bytes: bytes of a beat of what vectors write to the output; None: they write nothing.

    Members:
        vectors: In(stream ``plan()``). One item per vector, before it; with ``taps_port_bytes`` what it writes, too.
        input: In(words(27, slots)). A vector of at most ``depth`` elements.
        gains: In(stream of signed(16) [1]). One item per element of a normed vector.
        eps: In(stream of unsigned(48)). One item per normed vector.
        codes: Out(codes(slots, beat_bytes)). Blocks of codes.
        scales: Out(scales(slots)). One item per vector.
        other_requests, other_data, requests, data: see ``TapWriter``; only with ``taps_port_bytes``.
        taps_idle: Out(1). Nothing is written; only with ``taps_port_bytes``.

    Latency: slots + beat_bytes + 36 cycles from a vector's last element to its first block, 4 more if normed.
    Throughput: one element per cycle in; then one block in beat_bytes + 2 cycles if nothing stalls it; then the next
        vector.
    Source: docs/integer-profile.md, "RMS norm" and "Quantize".
    """

    def __init__(
        self,
        *,
        beat_bytes: int,
        slots: int,
        depth: int,
        style: Literal["block", "ultra"] = "block",
        taps_port_bytes: int | None = None,
    ) -> None:
        check("beat_bytes", beat_bytes, 1, 64)
        check("slots", slots, 1, 8)
        check("depth", depth, 1, 1 << 16)
        writes = {}
        if taps_port_bytes is not None:
            self._tapper = TapWriter(slots=slots, beat_bytes=beat_bytes, port_bytes=taps_port_bytes)
            writes = {name: self._tapper.signature.members[name] for name in _WRITES} | {"taps_idle": Out(1)}
        super().__init__(
            lambda: {
                **writes,
                "vectors": In(stream.Signature(plan(taps=taps_port_bytes is not None))),
                "input": In(words(_WIDE, slots)),
                "gains": In(stream.Signature(data.ArrayLayout(signed(16), 1))),
                "eps": In(stream.Signature(unsigned(48))),
                "codes": Out(codes(slots, beat_bytes)),
                "scales": Out(scales(slots)),
            }
        )
        self._slots, self._taps = slots, taps_port_bytes is not None
        self._norm, self._maximum = RmsNorm(slots=slots), AbsoluteMaximum(slots=slots)
        self._memory = VectorMemory(width=_WIDE, slots=slots, depth=depth, style=style)
        self._requantizer, self._gearbox = Requantizer(slots=slots), Gearbox(slots=slots, columns=beat_bytes)

    @property
    def resources_by_part(self) -> dict[str, Resources]:
        """Estimate of the cost by submodule; "glue" chooses words."""
        return {
            "norm": self._norm.resources,
            "maximum": self._maximum.resources,
            "memory": self._memory.resources,
            "requantizer": self._requantizer.resources,
            "gearbox": self._gearbox.resources,
            **({"taps": self._tapper.resources} if self._taps else {}),
            "glue": Resources(lut=_WIDE * self._slots + 42, ff=_WIDE * self._slots + 6),
        }

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.norm, m.submodules.maximum = norm, maximum = self._norm, self._maximum
        m.submodules.memory = memory = self._memory
        m.submodules.requantizer, m.submodules.gearbox = requantizer, gearbox = self._requantizer, self._gearbox
        connect(m, flipped(self.gains), norm.gains)
        connect(m, flipped(self.eps), norm.eps)
        connect(m, norm.roots, requantizer.roots)
        source, may_announce = self.input, self._tap(m, norm) if self._taps else Const(1)
        if self._taps:
            source = self._tapper.output
        connect(m, memory.output, requantizer.input)
        connect(m, requantizer.output, gearbox.input)
        connect(m, requantizer.scales, flipped(self.scales))
        connect(m, gearbox.output, flipped(self.codes))
        normed = Signal()
        is_open = Signal()  # the vector's last word has not been taken
        self._fill(m, source, (norm, maximum, memory), normed, is_open)
        m.d.comb += [
            requantizer.maxima.p.absmax.eq(maximum.output.payload),
            requantizer.maxima.p.normed.eq(normed),
            requantizer.maxima.valid.eq(maximum.output.valid),
            maximum.output.ready.eq(requantizer.maxima.ready),
        ]
        with m.FSM():
            with m.State("idle"):
                m.d.comb += [
                    gearbox.blocks.payload.eq(self.vectors.p.blocks),
                    gearbox.blocks.valid.eq(self.vectors.valid & may_announce),
                    self.vectors.ready.eq(gearbox.blocks.ready & may_announce),
                ]
                m.d.sync += normed.eq(self.vectors.p.normed)
                with m.If(self.vectors.valid & self.vectors.ready):
                    m.d.sync += is_open.eq(1)
                    m.next = "fill"
            with m.State("fill"):
                with m.If(source.valid & source.ready & source.p.last):
                    m.d.sync += is_open.eq(0)
                with m.If(memory.write.valid & memory.write.p.last):
                    m.next = "ask"
            with m.State("ask"):
                m.d.comb += [memory.reads.valid.eq(1), memory.reads.p.length.eq(memory.written)]
                with m.If(memory.reads.ready):
                    m.next = "drain"
            with m.State("drain"), m.If(memory.output.valid & memory.output.ready & memory.output.p.last):
                m.next = "idle"
        return m

    def _tap(self, m: Module, norm: Any) -> Value:
        """Connect the writer of taps, and return whether a vector may be announced."""
        m.submodules.taps = tapper = self._tapper
        connect(m, flipped(self.input), tapper.input)
        for name in _WRITES:
            connect(m, getattr(tapper, name), flipped(getattr(self, name)))
        m.d.comb += [
            *(tapper.plans.p[name].eq(self.vectors.p[name]) for name in (*TAP_FIELDS, "blocks")),
            tapper.plans.valid.eq(self.vectors.valid & self.vectors.ready),
            *(tapper.normed.payload.eq(norm.output.payload), tapper.normed.valid.eq(norm.output.valid)),
            *(tapper.roots.payload.eq(norm.roots.payload), tapper.roots.valid.eq(norm.roots.valid & norm.roots.ready)),
            self.taps_idle.eq(tapper.idle),
        ]
        ready: Value = tapper.plans.ready
        return ready

    def _fill(self, m: Module, source: Any, units: tuple[Any, Any, Any], normed: Signal, is_open: Signal) -> None:
        """Fill the memory through the norm or directly, and determine the largest value of what is stored."""
        norm, maximum, memory = units
        plain = source.valid & is_open & ~normed
        m.d.comb += [
            norm.input.payload.eq(source.payload),
            norm.input.valid.eq(source.valid & is_open & normed),
            source.ready.eq(is_open & (~normed | norm.input.ready)),
        ]
        valid = delayed(m, 1, norm.output.valid | plain)
        stored = carried(m, 1, Mux(normed, norm.output.payload.as_value(), source.payload.as_value()))
        for sink in (memory.write, maximum.input):
            m.d.comb += [sink.payload.as_value().eq(stored), sink.valid.eq(valid)]
        # Words of a vector leave the memory only after its maxima were taken, so the next vector finds it ready.
        contract(m, ~valid | maximum.input.ready, "The largest value of a vector is taken before the next one begins")
