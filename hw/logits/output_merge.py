"""One stream of writes of results from several."""

from typing import Any

from amaranth.hdl import Array, Module, Signal
from amaranth.lib.wiring import In, Out

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.payloads import beat
from edgedec.hw.blocks.pipeline import check
from edgedec.hw.blocks.resources import Resources
from edgedec.hw.logits.logits_path import PIECE_BEATS, output_requests
from edgedec.hw.memory.axi import beats_log2

__all__ = ["OutputMerge"]


class OutputMerge(CostedComponent):
    """Pass on the requests of several sources, each with its beats, before those of another one.

    Parameters:
        sources: number of sources, 2 to 8.
        port_bytes: bytes of a beat, a power of two.

    Members:
        requests0, data0 ...: In(output_requests()), In(beat(port_bytes)). Requests of at most 32 beats, and their beats. Of
            several that wait, the one with the lowest number comes first.
        requests, data: Out(output_requests()), Out(beat(port_bytes)).

    Latency: 1 cycle from a request to that of the output.
    Throughput: one request of n beats in n + 2 cycles.
    Source: derived here.
    """

    def __init__(self, *, sources: int, port_bytes: int) -> None:
        check("sources", sources, 2, 8)
        self._sources, self._port_bytes = sources, port_bytes
        self._shift = beats_log2(port_bytes)
        one = {"requests": output_requests(), "data": beat(port_bytes)}
        inputs = {f"{name}{i}": In(signature) for name, signature in one.items() for i in range(sources)}
        super().__init__(lambda: {**inputs, **{name: Out(signature) for name, signature in one.items()}})

    @property
    def resources(self) -> Resources:
        chosen = -(-(self._sources - 1) // 3) * (8 * self._port_bytes + 64)
        return Resources(lut=chosen + 24, ff=9 + (self._sources - 1).bit_length())

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        numbers = range(self._sources)
        requests, beats = ([getattr(self, f"{name}{i}") for i in numbers] for name in ("requests", "data"))
        chosen = Signal(numbers)
        left = Signal(range(PIECE_BEATS + 1))  # whole beats that have not moved
        part = Signal()  # and a last one that is used in part
        request, data = self.requests, self.data
        m.d.comb += [
            request.payload.eq(Array(one.payload.as_value() for one in requests)[chosen]),
            data.payload.as_value().eq(Array(one.payload.as_value() for one in beats)[chosen]),
        ]
        with m.FSM():
            with m.State("choose"):
                for i in reversed(numbers):
                    with m.If(requests[i].valid):
                        m.d.sync += chosen.eq(i)
                        m.next = "ask"
            with m.State("ask"):
                m.d.comb += [
                    request.valid.eq(1),
                    Array(one.ready for one in requests)[chosen].eq(request.ready),
                ]
                # No subtraction, because the requests come late in a cycle.
                m.d.sync += [
                    left.eq(request.p.bytes >> self._shift),
                    part.eq(request.p.bytes[: self._shift].any()),
                ]
                with m.If(request.ready):
                    m.next = "move"
            with m.State("move"):
                m.d.comb += [
                    data.valid.eq(Array(one.valid for one in beats)[chosen]),
                    Array(one.ready for one in beats)[chosen].eq(data.ready),
                ]
                with m.If(data.valid & data.ready):
                    m.d.sync += left.eq(left - 1)
                    with m.If((left[1:] == 0) & (left[0] ^ part)):
                        m.next = "choose"
        return m
