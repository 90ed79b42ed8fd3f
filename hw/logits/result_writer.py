"""The single write port of the accelerator."""

from typing import Any

from amaranth.hdl import Module, Mux, ResetInserter, Signal
from amaranth.lib.wiring import In, Out, connect, flipped

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.fifo import Fifo
from edgedec.hw.blocks.payloads import beat
from edgedec.hw.blocks.pipeline import check
from edgedec.hw.blocks.resources import Resources
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.logits.logits_path import PIECE_BEATS, output_requests
from edgedec.hw.memory.axi import axi4_write, beats_log2, failures, requests
from edgedec.hw.memory.write_master import WriteMaster

__all__ = ["ResultWriter"]

_LENGTH_BITS = 12  # bits of a request's length; 32 beats of 64 bytes are 2 KiB
_REQUESTS, _BEATS = 256, 512  # requests and beats that may wait
_OUTSTANDING = 32  # bursts without an answer; most have one beat, so their answers must not limit them


class ResultWriter(CostedComponent):
    """Collect requests until many can be issued at once: short writes between the reads of a stream would turn the
    memory's bus around each time.

    A request is taken with all its data, and issued only when the data is complete, so no burst stalls for lack of
    data.

    Parameters:
        config: configuration of the accelerator.
        address_bits: bits of an address on the bus, 16 to 64.
        batch: number of requests that are issued together, 1 to 128.

    Members:
        output_address: In(64). Base address of ``result_requests``, a multiple of a beat; steady while not idle.
        cache_requests: In(stream {address, bytes}). Requests of at most 32 beats, taken before those of results.
        cache_data: In(beat(port_bytes)). The beats of each request.
        result_requests: In(output_requests()). Requests of at most 32 beats; the offset is a multiple of a beat.
        result_data: In(beat(port_bytes)). The beats of each request.
        drain: In(1). Issue waiting requests at once.
        bus: Out(AXI4 write channels).
        error: Out(stream {request, response}, always ready). Errors, see ``WriteMaster``.
        flush: In(1). Forget waiting requests and take none; hold it until ``idle``, see ``WriteMaster``.
        idle: Out(1). No request waits and all are answered; offered ones do not count. It may stay low without
            ``drain``.

    Latency: 6 cycles from a request's last beat to AWVALID, once it is issued.
    Throughput: one request of n beats in n + 1 cycles.
    Source: derived here.
    """

    def __init__(self, config: AcceleratorConfig, *, address_bits: int = 40, batch: int = 64) -> None:
        check("address_bits", address_bits, 16, 64)
        check("batch", batch, 1, _REQUESTS // 2)
        self._batch, self._port_bytes, self._address_bits = batch, config.port_bytes, address_bits
        self._asked = requests(address_bits, _LENGTH_BITS)
        self._requests = Fifo(shape=address_bits + _LENGTH_BITS, depth=_REQUESTS, style="block")
        self._beats = Fifo(shape=8 * config.port_bytes, depth=_BEATS, style="block")
        self._master = WriteMaster(
            address_bits=address_bits,
            data_bytes=config.port_bytes,
            length_bits=_LENGTH_BITS,
            max_burst=config.burst_beats,
            outstanding=_OUTSTANDING,
        )
        super().__init__(
            lambda: {
                "output_address": In(64),
                "cache_requests": In(requests(address_bits, 32)),
                "cache_data": In(beat(config.port_bytes)),
                "result_requests": In(output_requests()),
                "result_data": In(beat(config.port_bytes)),
                "drain": In(1),
                "bus": Out(axi4_write(address_bits=address_bits, data_bytes=config.port_bytes)),
                "error": Out(failures()),
                "flush": In(1),
                "idle": Out(1),
            }
        )

    @property
    def resources(self) -> Resources:
        arbiter = Resources(lut=8 * self._port_bytes // 2 + 2 * self._address_bits + _LENGTH_BITS + 70, ff=18)
        return self._master.resources + self._requests.resources + self._beats.resources + arbiter

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        request_queue, beats = self._requests, self._beats
        m.submodules.requests = ResetInserter(self.flush)(request_queue)
        m.submodules.beats = ResetInserter(self.flush)(beats)
        m.submodules.master = master = self._master
        connect(m, master.bus, flipped(self.bus))
        connect(m, master.error, flipped(self.error))
        complete = self._take(m, request_queue, beats)
        self._give(m, request_queue, beats, master, complete)
        m.d.comb += [
            master.flush.eq(self.flush),
            self.idle.eq(master.idle & request_queue.empty & beats.empty),
        ]
        return m

    def _take(self, m: Module, request_queue: Fifo, beats: Fifo) -> Signal:
        """Take a request with its beats from one of the two sources into the queues. Return a pulse at its last beat."""
        cache = self.cache_requests
        results = self.result_requests
        sink = self._asked.create()
        busy = Signal()
        from_results = Signal()
        left = Signal(range(PIECE_BEATS))
        complete = Signal()
        address = (self.output_address + results.p.offset)[: self._address_bits]
        source = beat(self._port_bytes).create()
        with m.If(cache.valid):
            m.d.comb += [sink.p.address.eq(cache.p.address), sink.p.bytes.eq(cache.p.bytes)]
        with m.Else():
            m.d.comb += [sink.p.address.eq(address), sink.p.bytes.eq(results.p.bytes)]
        open_ = Signal()
        do_take = Signal()
        m.d.comb += [
            open_.eq(~busy & ~self.flush),
            request_queue.input.payload.eq(sink.payload.as_value()),
            request_queue.input.valid.eq(open_ & (cache.valid | results.valid)),
            cache.ready.eq(open_ & request_queue.input.ready),
            results.ready.eq(open_ & request_queue.input.ready & ~cache.valid),
            do_take.eq(request_queue.input.valid & request_queue.input.ready),
            source.payload.eq(
                Mux(from_results, self.result_data.payload.as_value(), self.cache_data.payload.as_value())
            ),
            source.valid.eq(busy & Mux(from_results, self.result_data.valid, self.cache_data.valid)),
            source.ready.eq(beats.input.ready & busy & ~self.flush),
            self.result_data.ready.eq(source.ready & from_results),
            self.cache_data.ready.eq(source.ready & ~from_results),
            beats.input.payload.eq(source.payload.as_value()),
            beats.input.valid.eq(source.valid),
            complete.eq(source.valid & source.ready & (left == 0)),
        ]
        with m.If(do_take):
            last = (sink.p.bytes - 1)[:_LENGTH_BITS] >> beats_log2(self._port_bytes)
            m.d.sync += [busy.eq(1), from_results.eq(~cache.valid), left.eq(last)]
        with m.If(source.valid & source.ready):
            m.d.sync += left.eq(left - 1)
        with m.If(complete | self.flush):
            m.d.sync += busy.eq(0)
        return complete

    def _give(self, m: Module, request_queue: Fifo, beats: Fifo, master: WriteMaster, complete: Signal) -> None:
        """Issue requests whose data is complete, once there are enough of them."""
        whole = Signal(range(_REQUESTS + 4))
        going = Signal()
        left = Signal()
        m.d.comb += [
            master.requests.payload.as_value().eq(request_queue.output.payload),
            master.requests.valid.eq(request_queue.output.valid & going & (whole != 0)),
            request_queue.output.ready.eq(master.requests.ready & going & (whole != 0)),
            left.eq(master.requests.valid & master.requests.ready),
            master.data.payload.as_value().eq(beats.output.payload),
            master.data.valid.eq(beats.output.valid),
            beats.output.ready.eq(master.data.ready),
        ]
        m.d.sync += whole.eq(whole + complete - left)
        with m.If(self.drain | (whole >= self._batch) | ~beats.input.ready):
            m.d.sync += going.eq(1)
        with m.Elif(whole == 0):
            m.d.sync += going.eq(0)
        with m.If(self.flush):
            m.d.sync += [whole.eq(0), going.eq(0)]
