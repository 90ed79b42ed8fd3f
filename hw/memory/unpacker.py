"""Division of the beats of the read stream into items."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, unsigned
from amaranth.lib import stream
from amaranth.lib.wiring import In, Out

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.pipeline import check
from edgedec.hw.blocks.resources import Resources
from edgedec.hw.memory.router import segment

__all__ = ["Unpacker"]


class Unpacker(CostedComponent):
    """Extract items that follow each other in memory, little endian; each segment begins with a new item.

    Parameters:
        beat_bytes: bytes of a beat of the stream, a power of two, 1 to 64.
        item_bytes: bytes of an item, a power of two, 1 to 256, smaller or larger than a beat.

    Members:
        beats: In(stream ``segment(beat_bytes)``). ``spare`` is the number of unused items at the end of the last beat,
            at most all of that beat; it is ignored if an item is at least as large as a beat. In that case, an
            incomplete item at the end of a segment is dropped.
        items: Out(stream of unsigned(8 * item_bytes)).

    Latency: 1 cycle from the beat that completes an item.
    Throughput: one item per cycle if a beat has several, else one beat per cycle.
    Source: derived here.
    """

    def __init__(self, *, beat_bytes: int, item_bytes: int) -> None:
        for name, value, most in (("beat_bytes", beat_bytes, 64), ("item_bytes", item_bytes, 256)):
            check(name, value, 1, most)
            if value & (value - 1):
                raise ValueError(f"{name} must be a power of two, not {value!r}")
        self._beat_bytes, self._item_bytes = beat_bytes, item_bytes
        super().__init__(
            lambda: {
                "beats": In(stream.Signature(segment(beat_bytes))),
                "items": Out(stream.Signature(unsigned(8 * item_bytes))),
            }
        )

    @property
    def resources(self) -> Resources:
        """Estimate of the cost: only a beat that is divided needs multiplexers, between the loaded and the shifted value."""
        beat_bytes, item_bytes = self._beat_bytes, self._item_bytes
        bits = 8 * max(beat_bytes, item_bytes)
        count = max(beat_bytes, item_bytes) // min(beat_bytes, item_bytes)
        cut = bits if item_bytes < beat_bytes else 0
        return Resources(lut=cut + 3 * count.bit_length(), ff=bits + count.bit_length() + 1)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        if self._item_bytes < self._beat_bytes:
            self._cut(m)
        else:
            self._join(m)
        return m

    def _cut(self, m: Module) -> None:
        """Keep one beat in a register, whose lowest item is offered and shifted out."""
        count, source, sink = self._beat_bytes // self._item_bytes, self.beats, self.items
        held, left = Signal(8 * self._beat_bytes, reset_less=True), Signal(range(count + 1))
        m.d.comb += [
            sink.payload.eq(held),
            sink.valid.eq(left != 0),
            source.ready.eq((left == 0) | ((left == 1) & sink.ready)),
        ]
        with m.If(sink.valid & sink.ready):
            m.d.sync += [held.eq(held >> 8 * self._item_bytes), left.eq(left - 1)]
        with m.If(source.valid & source.ready):
            m.d.sync += [held.eq(Cat(*source.p.data)), left.eq(count - Mux(source.p.last, source.p.spare, 0))]

    def _join(self, m: Module) -> None:
        """Keep one item in a register; beats enter at its top, so that the first one ends at its bottom."""
        count, source, sink = self._item_bytes // self._beat_bytes, self.beats, self.items
        item, index, whole = Signal(8 * self._item_bytes, reset_less=True), Signal(range(count)), Signal()
        m.d.comb += [
            sink.payload.eq(item),
            source.ready.eq(~sink.valid | sink.ready),
            whole.eq(index == count - 1),
        ]
        with m.If(sink.ready):
            m.d.sync += sink.valid.eq(0)
        with m.If(source.valid & source.ready):
            m.d.sync += [
                item.eq(Cat(item[8 * self._beat_bytes :], *source.p.data)),
                index.eq(Mux(whole | source.p.last, 0, index + 1)),
                sink.valid.eq(whole),
            ]
