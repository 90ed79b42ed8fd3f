"""Division of requests of any length into AXI bursts."""

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.pipeline import check
from edgedec.hw.blocks.resources import Resources
from edgedec.hw.memory.axi import NUMBER_BITS, beats_log2, burst_beats, check_data_bytes, requests

__all__ = ["Bursts", "burst_layout"]


def burst_layout(address_bits: int, data_bytes: int) -> data.StructLayout:
    """Return the layout of a burst.

    Members:
        address: byte address of the first beat, a multiple of data_bytes.
        len: beats - 1, as in AxLEN.
        request: number of the request.
        first, final: the burst is the first one, or the last one, of its request.
        head: lane of the request's first byte within its first beat.
        tail: lane of the request's last byte within its last beat.
    """
    size = beats_log2(data_bytes)
    return data.StructLayout(
        {
            "address": address_bits,
            "len": 8,
            "request": NUMBER_BITS,
            "first": 1,
            "final": 1,
            "head": size,
            "tail": size,
        }
    )


class Bursts(CostedComponent):
    """Cut requests at the multiples of a chunk: ``max_burst`` beats or 4 KiB, whichever is less.

    No burst crosses 4 KiB, and all bursts of a long request but the first and the last are aligned.

    Parameters:
        address_bits: bits of an address, 12 to 64.
        data_bytes: bytes of the data bus, a power of two.
        length_bits: bits of a request's length in bytes, 1 to 40.
        max_burst: longest burst in beats, a power of two up to 256.

    Members:
        requests: In(stream {address, bytes}). Bursts cover the beats that hold bytes address .. address + bytes - 1; a
            request of 0 bytes has none. The range must not pass the end of the address space.
        bursts: Out(stream of ``burst_layout``).
        flush: In(1). Forget all that is not yet offered at ``bursts``, take no request, and count from 0 again. An
            offered burst stays.
        busy: Out(1). A request is not fully divided, or a burst is offered.

    Latency: 2 cycles from a request's transfer to its first burst.
    Throughput: one burst per cycle; one idle cycle between requests.
    Source: AXI4 (ARM IHI 0022), section A3.4.1.
    """

    def __init__(self, *, address_bits: int, data_bytes: int, length_bits: int, max_burst: int = 256) -> None:
        check("address_bits", address_bits, 12, 64)
        check("length_bits", length_bits, 1, 40)
        check_data_bytes(data_bytes)
        self._size = beats_log2(data_bytes)
        self._beats = burst_beats(data_bytes=data_bytes, max_burst=max_burst)
        self._chunk_bits = beats_log2(self._beats * data_bytes)
        self._address_bits, self._length_bits = address_bits, length_bits
        super().__init__(
            lambda: {
                "requests": In(requests(address_bits, length_bits)),
                "bursts": Out(stream.Signature(burst_layout(address_bits, data_bytes))),
                "flush": In(1),
                "busy": Out(1),
            }
        )

    @property
    def resources(self) -> Resources:
        address_bits, size, chunk = self._address_bits, self._size, self._chunk_bits
        offset = beats_log2(self._beats)
        length = max(self._length_bits, chunk)
        state = (length + 1 - size) + (address_bits - chunk) + offset + 2 * size + NUMBER_BITS + 2
        offered = 1 + (address_bits - size) + offset + NUMBER_BITS + 2 + 2 * size
        return Resources(lut=5 * length + address_bits - 2 * chunk + 19, ff=state + offered)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        size, chunk_bits, beats = self._size, self._chunk_bits, self._beats
        request, burst = self.requests.p, self.bursts.p
        # Position of the request's last byte, relative to the start of the chunk that holds the next burst.
        last_byte = Signal(max(len(request.bytes), chunk_bits) + 1)
        chunk = Signal(len(request.address) - chunk_bits)
        offset = Signal(range(max(beats, 2)))  # position of the next burst's start in its chunk, in beats
        head = Signal(size)
        tail = Signal(size)
        number = Signal(NUMBER_BITS)
        active = Signal()
        first = Signal()
        final = Signal()
        end, chunks_left = last_byte[size:chunk_bits], last_byte[chunk_bits:]
        first_byte = request.address[:chunk_bits]
        m.d.comb += [
            self.requests.ready.eq(~active & ~self.flush),
            final.eq(chunks_left == 0),
            self.busy.eq(active | self.bursts.valid),
        ]
        with m.If(self.bursts.ready):
            m.d.sync += self.bursts.valid.eq(0)
        with m.If(active & (~self.bursts.valid | self.bursts.ready)):
            m.d.sync += [
                self.bursts.valid.eq(1),
                burst.address.eq(Cat(Const(0, size), offset[: chunk_bits - size], chunk)),
                burst.len.eq(Mux(final, end, beats - 1) - offset),
                burst.request.eq(number),
                burst.first.eq(first),
                burst.final.eq(final),
                burst.head.eq(head),
                burst.tail.eq(tail),
                chunk.eq(chunk + 1),
                chunks_left.eq(chunks_left - 1),
                offset.eq(0),
                first.eq(0),
                active.eq(~final),
            ]
            with m.If(final):
                m.d.sync += number.eq(number + 1)
        with m.If(self.requests.valid & self.requests.ready):
            m.d.sync += [
                active.eq(request.bytes != 0),
                first.eq(1),
                last_byte.eq(first_byte + request.bytes - 1),
                tail.eq((first_byte + request.bytes - 1)[:size]),
                head.eq(first_byte[:size]),
                offset.eq(first_byte[size:]),
                chunk.eq(request.address[chunk_bits:]),
            ]
            with m.If(request.bytes == 0):
                m.d.sync += number.eq(number + 1)
        with m.If(self.flush):
            m.d.sync += [active.eq(0), number.eq(0)]
            with m.If(~self.bursts.valid | self.bursts.ready):
                m.d.sync += self.bursts.valid.eq(0)
        return m
