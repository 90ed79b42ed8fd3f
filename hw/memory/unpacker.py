"""Division of the beats of the read stream into items."""

from collections.abc import Sequence
from typing import Any

from amaranth.hdl import Array, Cat, Module, Mux, Signal, unsigned
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.pipeline import check
from edgedec.hw.blocks.resources import Resources
from edgedec.hw.memory.router import segment

__all__ = ["MixedUnpacker", "Unpacker", "mixed_segment"]


def mixed_segment(beat_bytes: int, kinds: int) -> data.StructLayout:
    """Return the layout of a beat of a segment of one of ``kinds`` kinds of items."""
    return data.StructLayout({"segment": segment(beat_bytes), "kind": range(kinds)})


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
        cut = bits - 8 * item_bytes if item_bytes < beat_bytes else 0
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
        held = Signal(8 * self._beat_bytes, reset_less=True)
        left = Signal(range(count + 1))
        m.d.comb += [
            sink.payload.eq(held),
            sink.valid.eq(left != 0),
            source.ready.eq((left == 0) | ((left == 1) & sink.ready)),
        ]
        with m.If(sink.valid & sink.ready):
            m.d.sync += [_shifted(held, self._item_bytes), left.eq(left - 1)]
        with m.If(source.valid & source.ready):
            m.d.sync += [held.eq(Cat(*source.p.data)), left.eq(count - Mux(source.p.last, source.p.spare, 0))]

    def _join(self, m: Module) -> None:
        """Keep one item in a register; beats enter at its top, so that the first one ends at its bottom."""
        count, source, sink = self._item_bytes // self._beat_bytes, self.beats, self.items
        item = Signal(8 * self._item_bytes, reset_less=True)
        index = Signal(range(count))
        whole = Signal()
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


class MixedUnpacker(CostedComponent):
    """Extract items of several sizes from one stream of segments, with one register for all of them.

    A register of a beat with its multiplexers is by far the largest part of an Unpacker, and items that come from one
    queue need only one.

    Parameters:
        beat_bytes: bytes of a beat of the stream, a power of two, 1 to 64.
        item_bytes: bytes of an item of each kind, powers of two up to ``beat_bytes``.

    Members:
        beats: In(stream ``mixed_segment(beat_bytes, len(item_bytes))``). ``spare`` as in Unpacker; it is ignored if an
            item is as large as a beat.
        items: Out(stream {item, kind}). ``item`` is as wide as the largest one; bits above a smaller one are arbitrary.

    Latency: 1 cycle from a beat to its first item.
    Throughput: one item per cycle, from beat to beat too.
    Source: derived here.
    """

    def __init__(self, *, beat_bytes: int, item_bytes: Sequence[int]) -> None:
        check("beat_bytes", beat_bytes, 1, 64)
        for value in (beat_bytes, *item_bytes):
            check("item_bytes", value, 1, beat_bytes)
            if value & (value - 1):
                raise ValueError(f"beat_bytes and item_bytes must be powers of two, not {value!r}")
        self._beat_bytes, self._item_bytes = beat_bytes, tuple(item_bytes)
        kinds, width = range(len(item_bytes)), 8 * max(item_bytes)
        super().__init__(
            lambda: {
                "beats": In(stream.Signature(mixed_segment(beat_bytes, len(item_bytes)))),
                "items": Out(stream.Signature(data.StructLayout({"item": unsigned(width), "kind": kinds}))),
            }
        )

    @property
    def resources(self) -> Resources:
        """Estimate of the cost: a bit is loaded, or moved by one of up to three sizes, in one LUT6."""
        count = self._beat_bytes // min(self._item_bytes)
        bits = 8 * (self._beat_bytes - min(self._item_bytes))
        return Resources(lut=bits + 5 * count.bit_length() + 14, ff=8 * self._beat_bytes + count.bit_length() + 6)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        source, sink, sizes = self.beats, self.items, sorted(set(self._item_bytes))
        counts = [self._beat_bytes // size for size in self._item_bytes]
        held = Signal(8 * self._beat_bytes, reset_less=True)
        left = Signal(range(max(counts) + 1))
        size = Signal(range(len(sizes)))
        kind = Signal.like(sink.p.kind)
        busy = Signal()
        final = Signal()
        spare = Signal.like(left)
        none = Signal()
        one = Signal()
        with m.If(source.p.segment.last):
            m.d.comb += spare.eq(source.p.segment.spare)
        # Comparisons of the number of items with 0 and 1 that need no difference.
        with m.Switch(source.p.kind):
            for number, count in enumerate(counts):
                with m.Case(number):
                    m.d.comb += [none.eq((spare == count) & (count > 1)), one.eq((spare == count - 1) | (count == 1))]
        m.d.comb += [
            sink.p.item.eq(held),
            sink.p.kind.eq(kind),
            sink.valid.eq(busy),
            source.ready.eq(~busy | (final & sink.ready)),
        ]
        with m.If(source.ready):
            m.d.sync += [
                left.eq(Array(counts)[source.p.kind] - spare),
                busy.eq(source.valid & ~none),
                final.eq(one),
                kind.eq(source.p.kind),
                size.eq(Array(sizes.index(one) for one in self._item_bytes)[source.p.kind]),
            ]
        with m.Elif(sink.ready):
            m.d.sync += [left.eq(left - 1), final.eq(left == 2)]
        # The choice is a signal that synthesis keeps, so that a bit takes one LUT6 for up to three sizes.
        select = Signal(range(len(sizes) + 1), attrs={"keep": "true"})
        m.d.comb += select.eq(Mux(source.ready, 0, size + 1))
        with m.If(source.ready | sink.ready), m.Switch(select):
            with m.Case(0):
                m.d.sync += held.eq(Cat(*source.p.segment.data))
            for number, item_bytes in enumerate(sizes, 1):
                with m.Case(number):
                    m.d.sync += _shifted(held, item_bytes)
        return m


def _shifted(held: Signal, item_bytes: int) -> Any:
    """Return the assignment that moves the next item to the bottom; the highest item stays, to need no multiplexer."""
    return held[: len(held) - 8 * item_bytes].eq(held[8 * item_bytes :])
