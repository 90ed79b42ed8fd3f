"""A writer of memory ranges over an AXI4 write port, which takes their data as one stream of beats."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data
from amaranth.lib.fifo import SyncFIFO, SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.fifo import small_queue
from edgedec.hw.blocks.payloads import beat
from edgedec.hw.blocks.pipeline import check
from edgedec.hw.blocks.resources import Resources
from edgedec.hw.memory.axi import NUMBER_BITS, Response, axi4_write, beats_log2, completions, failures, requests
from edgedec.hw.memory.bursts import Bursts

__all__ = ["WriteMaster"]


class WriteMaster(CostedComponent):
    """Issue INCR bursts that never cross 4 KiB and are as long as the request allows.

    Short writes between reads cost a memory most.

    Parameters:
        address_bits: bits of an address, 12 to 64.
        data_bytes: bytes of the port, a power of two.
        length_bits: bits of a request's length in bytes.
        max_burst: longest burst in beats, a power of two up to 256.
        outstanding: largest number of bursts that wait for an answer, 1 to 64.

    Members:
        requests: In(stream {address, bytes}). A request of 0 bytes has neither data nor a completion.
        data: In(stream of beats). The beats of each request that hold its bytes: byte b of memory is in lane b modulo
            data_bytes. Lanes before the first byte and after the last are not written.
        done: Out(stream of request numbers, always ready). All bursts of the request were answered, with or without
            error; one cycle late.
        error: Out(stream {request, response}, always ready). BRESP was not OKAY; one cycle late, no later than
            ``done``.
        bus: Out(AXI4 write channels). WVALID and its payload come from registers. Addresses and data do not wait for each
            other: data of a burst is offered once its address is offered, taken or not.
        flush: In(1). Take neither requests nor data, and begin no further burst; bursts in progress are completed with
            beats without strobes. Hold it until ``idle``: AXI cannot cancel a burst.
        idle: Out(1). No burst is in progress: all are written and answered.

    Latency: 2 cycles from a request to AWVALID; 1 from ``data`` to WVALID, from the second cycle after AWVALID on.
    Throughput: one beat per cycle.
    Source: AXI4 (ARM IHI 0022), section A3.3.1: a subordinate may wait for WVALID before it takes the address.
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
                "data": In(beat(data_bytes)),
                "done": Out(completions()),
                "error": Out(failures()),
                "bus": Out(axi4_write(address_bits=address_bits, data_bytes=data_bytes)),
                "flush": In(1),
                "idle": Out(1),
            }
        )

    @property
    def resources(self) -> Resources:
        data_bytes, outstanding = self._data_bytes, self._outstanding
        queues = small_queue(10 + 2 * beats_log2(data_bytes), outstanding) + small_queue(NUMBER_BITS + 1, outstanding)
        data_path = Resources(lut=22 + 5 * data_bytes // 2, ff=9 * data_bytes + 2 + 8 + 1)
        return self._bursts.resources + queues + data_path + Resources(ff=NUMBER_BITS + 4)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        size = beats_log2(self._data_bytes)
        to_send = data.StructLayout({"len": 8, "first": 1, "final": 1, "head": size, "tail": size})
        to_answer = data.StructLayout({"request": NUMBER_BITS, "final": 1})
        m.submodules.bursts = cutter = self._bursts
        # The buffer's register may be empty for a cycle while its memory is full, hence one more.
        m.submodules.sending = sending = SyncFIFOBuffered(width=to_send.size, depth=self._outstanding + 1)
        m.submodules.waiting = waiting = SyncFIFO(width=to_answer.size, depth=self._outstanding)
        bus, cut = self.bus, cutter.bursts
        sent, answered = data.View(to_send, sending.w_data), data.View(to_answer, waiting.w_data)
        announced = Signal()  # the offered burst is in ``sending`` already
        m.d.sync += announced.eq(bus.awvalid & ~bus.awready)
        m.d.comb += [
            cutter.requests.payload.eq(self.requests.payload),
            cutter.requests.valid.eq(self.requests.valid),
            self.requests.ready.eq(cutter.requests.ready),
            cutter.flush.eq(self.flush),
            bus.awaddr.eq(cut.p.address),
            bus.awlen.eq(cut.p.len),
            # Only a transfer here takes room from ``waiting``, so AWVALID holds until AWREADY. All bursts in ``sending``
            # but the offered one are in ``waiting`` too, so ``sending`` has room for a new one if ``waiting`` has.
            bus.awvalid.eq(cut.valid & waiting.w_rdy),
            cut.ready.eq(bus.awready & waiting.w_rdy),
            sending.w_en.eq(bus.awvalid & ~announced),
            waiting.w_en.eq(cut.valid & cut.ready),
            *(sent[name].eq(cut.p[name]) for name in ("len", "first", "final", "head", "tail")),
            *(answered[name].eq(cut.p[name]) for name in ("request", "final")),
            self.idle.eq(~cutter.busy & ~waiting.r_rdy),
        ]
        self._send(m, sending, data.View(to_send, sending.r_data))
        self._answer(m, waiting, data.View(to_answer, waiting.r_data))
        return m

    def _send(self, m: Module, sending: SyncFIFOBuffered, burst: Any) -> None:
        """Drive W: the data of one burst after the other, with strobes."""
        bus, lanes = self.bus, self._data_bytes
        room = Signal()
        index = Signal(8)
        last = Signal()
        at_head = Signal()
        at_tail = Signal()
        strobes = Signal(lanes)
        m.d.comb += [
            room.eq(~bus.wvalid | bus.wready),
            last.eq(index == burst.len),
            at_head.eq(burst.first & (index == 0)),
            at_tail.eq(burst.final & last),
            strobes.eq(Cat((~at_head | (n >= burst.head)) & (~at_tail | (n <= burst.tail)) for n in range(lanes))),
            self.data.ready.eq(sending.r_rdy & room & ~self.flush),
            sending.r_en.eq(room & last & (self.data.valid | self.flush)),
        ]
        with m.If(bus.wready):
            m.d.sync += bus.wvalid.eq(0)
        with m.If(sending.r_rdy & room & (self.data.valid | self.flush)):
            m.d.sync += [
                bus.wvalid.eq(1),
                bus.wdata.eq(self.data.payload),
                bus.wstrb.eq(Mux(self.flush, 0, strobes)),
                bus.wlast.eq(last),
                index.eq(Mux(last, 0, index + 1)),
            ]

    def _answer(self, m: Module, waiting: SyncFIFO, burst: Any) -> None:
        """Take responses on B, which is always ready."""
        bus = self.bus
        m.d.comb += [bus.bready.eq(1), waiting.r_en.eq(bus.bvalid)]
        m.d.sync += [
            self.done.valid.eq(bus.bvalid & burst.final & ~self.flush),
            self.done.payload.eq(burst.request),
            self.error.valid.eq(bus.bvalid & (bus.bresp != Response.OKAY) & ~self.flush),
            self.error.p.request.eq(burst.request),
            self.error.p.response.eq(bus.bresp),
        ]
