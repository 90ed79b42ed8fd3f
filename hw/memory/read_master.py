"""A reader of memory ranges over an AXI4 read port, which delivers them as one stream of beats."""

from typing import Any

from amaranth.hdl import Module, Signal
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.fifo import small_queue
from edgedec.hw.blocks.payloads import beat
from edgedec.hw.blocks.pipeline import check
from edgedec.hw.blocks.resources import Resources
from edgedec.hw.memory.axi import NUMBER_BITS, Response, axi4_read, beats_log2, failures, requests
from edgedec.hw.memory.bursts import Bursts

__all__ = ["ReadMaster"]


class ReadMaster(CostedComponent):
    """Issue INCR bursts that never cross 4 KiB, several at once and all with the same id, so that they return in order.

    Parameters:
        address_bits: bits of an address, 12 to 64.
        data_bytes: bytes of the port, a power of two.
        length_bits: bits of a request's length in bytes.
        max_burst: longest burst in beats, a power of two up to 256.
        outstanding: largest number of bursts that wait for an answer, 1 to 64.

    Members:
        requests: In(stream {address, bytes}). Read the beats that hold bytes address .. address + bytes - 1: the
            address is rounded down to a beat, the end is rounded up. A request of 0 bytes has no beat.
        beats: Out(stream of beats). The beats of all requests in order, those whose response was an error included.
        error: Out(stream {request, response}, always ready). One item, one cycle late, for each beat whose RRESP was
            not OKAY.
        bus: Out(AXI4 read channels). ARVALID and its payload come from registers.
        flush: In(1). Take no request, begin no further burst, drop the beats that still arrive. Hold it until ``idle``:
            AXI cannot cancel a burst, and resetting this component alone in the middle of a burst would leave its
            remaining beats to the next request.
        idle: Out(1). No request or burst is in progress.

    Latency: 2 cycles from a request to ARVALID; none from R to ``beats``.
    Throughput: one beat per cycle; one burst per cycle.
    Source: AXI4 (ARM IHI 0022).
    """

    def __init__(
        self, *, address_bits: int, data_bytes: int, length_bits: int = 32, max_burst: int = 256, outstanding: int = 8
    ) -> None:
        check("outstanding", outstanding, 1, 64)
        self._bursts = Bursts(
            address_bits=address_bits, data_bytes=data_bytes, length_bits=length_bits, max_burst=max_burst
        )
        self._data_bytes, self._outstanding = data_bytes, outstanding
        super().__init__(
            lambda: {
                "requests": In(requests(address_bits, length_bits)),
                "beats": Out(beat(data_bytes)),
                "error": Out(failures()),
                "bus": Out(axi4_read(address_bits=address_bits, data_bytes=data_bytes)),
                "flush": In(1),
                "idle": Out(1),
            }
        )

    @property
    def resources(self) -> Resources:
        unused = 4 * beats_log2(self._data_bytes) + 3  # bits of a burst that only a write master uses
        errors = NUMBER_BITS + 3
        waiting = small_queue(NUMBER_BITS, self._outstanding)
        return self._bursts.resources + waiting + Resources(lut=6, ff=errors - unused)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.bursts = cutter = self._bursts
        m.submodules.waiting = waiting = SyncFIFO(width=NUMBER_BITS, depth=self._outstanding)
        bus, cut = self.bus, cutter.bursts
        do_read = Signal()
        m.d.comb += [
            cutter.requests.payload.eq(self.requests.payload),
            cutter.requests.valid.eq(self.requests.valid),
            self.requests.ready.eq(cutter.requests.ready),
            cutter.flush.eq(self.flush),
            bus.araddr.eq(cut.p.address),
            bus.arlen.eq(cut.p.len),
            # Only a transfer here takes room from the queue, so ARVALID holds until ARREADY.
            bus.arvalid.eq(cut.valid & waiting.w_rdy),
            cut.ready.eq(bus.arready & waiting.w_rdy),
            waiting.w_en.eq(cut.valid & cut.ready),
            waiting.w_data.eq(cut.p.request),
            self.beats.payload.eq(bus.rdata),
            self.beats.valid.eq(bus.rvalid & ~self.flush),
            bus.rready.eq(self.beats.ready | self.flush),
            do_read.eq(bus.rvalid & bus.rready),
            waiting.r_en.eq(do_read & bus.rlast),
            self.idle.eq(~cutter.busy & ~waiting.r_rdy),
        ]
        m.d.sync += [
            self.error.valid.eq(do_read & ~self.flush & (bus.rresp != Response.OKAY)),
            self.error.p.request.eq(waiting.r_data),
            self.error.p.response.eq(bus.rresp),
        ]
        return m
