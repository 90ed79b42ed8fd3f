"""AXI bursts cut where a row of the chip ends, or sooner."""

from typing import Any

from amaranth.hdl import Const, Module, Mux, Signal
from amaranth.lib import data, stream
from amaranth.lib.wiring import Component, In, Out

from edgedec.hw.axi import beats_log2, check_data_bytes
from edgedec.hw.pipeline import check
from edgedec.hw.resources import Resources

__all__ = ["Segments", "estimate", "segment_layout"]

_MOST_BEATS = 256  # of a burst


def segment_layout(memory_bytes: int, data_bytes: int) -> data.StructLayout:
    """Members:
    address: of the first beat, in beats.
    beats: 1 to 256.
    bad: the address is not one of the memory.
    final: of its burst.
    """
    bits = beats_log2(memory_bytes // data_bytes)
    return data.StructLayout({"address": bits, "beats": beats_log2(_MOST_BEATS) + 1, "bad": 1, "final": 1})


class Segments(Component):
    """Parameters:
        memory_bytes: of the chip, a power of two; what lies behind is ``bad``.
        data_bytes: of a beat.
        chunk: beats, a power of two up to 256; segments end at its multiples.
        address_bits: of the bus.

    Members:
        bursts: In(stream {address, len}), AxADDR and AxLEN of bursts of whole beats at ascending addresses.
        segments: Out(stream of ``segment_layout``).

    Latency: 2 cycles.
    Throughput: a burst of n segments in n + 1 cycles.
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
            {
                "bursts": In(stream.Signature(data.StructLayout({"address": address_bits, "len": 8}))),
                "segments": Out(stream.Signature(self._layout)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        given, offered = self.bursts, self.segments
        address, left, bad, busy = Signal(self._layout["address"].shape), Signal(9), Signal(), Signal()
        rest, beats, final = Signal(9), Signal(9), Signal()
        inside = beats_log2(self._chunk)
        m.d.comb += [
            given.ready.eq(~busy),
            rest.eq(self._chunk - (address[:inside] if inside else Const(0))),
            final.eq(left <= rest),
            beats.eq(Mux(final, left, rest)),
        ]
        with m.If(given.valid & ~busy):
            m.d.sync += [
                address.eq(given.p.address[self._size : self._top]),
                bad.eq(given.p.address[self._top :].any()),
                left.eq(given.p.len + 1),
                busy.eq(1),
            ]
        with m.If(offered.ready):
            m.d.sync += offered.valid.eq(0)
        with m.If(busy & (~offered.valid | offered.ready)):
            m.d.sync += [
                offered.valid.eq(1),
                offered.p.address.eq(address),
                offered.p.beats.eq(beats),
                offered.p.bad.eq(bad),
                offered.p.final.eq(final),
                address.eq(address + beats),
                left.eq(left - beats),
                busy.eq(~final),
            ]
        return m


def estimate(*, memory_bytes: int, data_bytes: int) -> Resources:
    """Of one Segments."""
    bits = beats_log2(memory_bytes // data_bytes)
    return Resources(lut=bits + 34, ff=2 * bits + 23)
