"""Division of AXI bursts into segments within a row of the chip."""

from typing import Any

from amaranth.hdl import Const, Module, Mux, Signal, signed
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.pipeline import check
from edgedec.hw.blocks.resources import Resources
from edgedec.hw.memory.axi import beats_log2, check_data_bytes

__all__ = ["Segments", "segment_layout"]

_MOST_BEATS = 256  # beats of a burst


def segment_layout(memory_bytes: int, data_bytes: int) -> data.StructLayout:
    """Return the layout of a segment.

    Members:
        address: address of the first beat, in beats.
        beats: number of beats, 1 to 256.
        bad: the address is outside of the memory.
        final: the segment is the last one of its burst.
    """
    bits = beats_log2(memory_bytes // data_bytes)
    return data.StructLayout({"address": bits, "beats": beats_log2(_MOST_BEATS) + 1, "bad": 1, "final": 1})


class Segments(CostedComponent):
    """Cut bursts at the multiples of a chunk.

    Parameters:
        memory_bytes: size of the chip, a power of two; addresses beyond are ``bad``.
        data_bytes: bytes of a beat.
        chunk: beats, a power of two up to 256; segments end at its multiples.
        address_bits: bits of an address on the bus.

    Members:
        bursts: In(stream {address, len}). AxADDR and AxLEN of bursts of whole beats at ascending addresses.
        segments: Out(stream of ``segment_layout``).

    Latency: 4 cycles.
    Throughput: one burst of n segments in 3 n + 1 cycles.
    Source: derived here.
    """

    def __init__(self, *, memory_bytes: int, data_bytes: int, chunk: int, address_bits: int) -> None:
        check_data_bytes(data_bytes)
        check("address_bits", address_bits, beats_log2(memory_bytes), 64)
        if chunk not in (1, 2, 4, 8, 16, 32, 64, 128, 256):
            raise ValueError(f"chunk must be a power of two, 1 to 256, not {chunk!r}")
        self._layout, self._chunk = segment_layout(memory_bytes, data_bytes), chunk
        self._size, self._top = beats_log2(data_bytes), beats_log2(memory_bytes)
        super().__init__(
            lambda: {
                "bursts": In(stream.Signature(data.StructLayout({"address": address_bits, "len": 8}))),
                "segments": Out(stream.Signature(self._layout)),
            }
        )

    @property
    def resources(self) -> Resources:
        bits = self._top - self._size  # bits of a beat's address
        return Resources(lut=bits + 44, ff=2 * bits + 52)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        burst, offered = self.bursts, self.segments
        # ``more``: beats left after the first one. The sums of a step are registers for the next one.
        address = Signal(self._layout["address"].shape)
        more = Signal(8)
        left = Signal(9)
        bad = Signal()
        rest = Signal(9)  # beats left in the chunk
        after = Signal(signed(10))  # beats left after it, less one
        inside = beats_log2(self._chunk)
        low, high = address[:inside], address[inside:]
        with m.FSM():
            with m.State("taking"):
                m.d.comb += burst.ready.eq(1)
                m.d.sync += [
                    address.eq(burst.p.address[self._size : self._top]),
                    bad.eq(burst.p.address[self._top :].any()),
                    more.eq(burst.p.len),
                ]
                with m.If(burst.valid):
                    m.next = "measuring"
            with m.State("measuring"):
                m.d.sync += [left.eq(more + 1), rest.eq(self._chunk - (low if inside else Const(0)))]
                m.next = "comparing"
            with m.State("comparing"):
                m.d.sync += after.eq(more - rest)
                m.next = "cutting"
            with m.State("cutting"), m.If(~offered.valid):
                final = after[-1]
                m.d.sync += [
                    offered.valid.eq(1),
                    offered.p.address.eq(address),
                    offered.p.beats.eq(Mux(final, left, rest)),
                    offered.p.bad.eq(bad),
                    offered.p.final.eq(final),
                    more.eq(after),
                    low.eq(0),
                    high.eq(high + 1),
                ]
                with m.If(final):
                    m.next = "taking"
                with m.Else():
                    m.next = "measuring"
        with m.If(offered.valid & offered.ready):
            m.d.sync += offered.valid.eq(0)
        return m
