"""Transfer of AXI4 channels from one clock domain to another. Both domains must be reset together."""

from collections.abc import Sequence
from typing import Any

from amaranth.hdl import Cat, DomainRenamer, Module, Mux, Signal, Value, unsigned
from amaranth.lib import stream
from amaranth.lib.cdc import FFSynchronizer
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import Component, In, Out, connect, flipped

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.register_slice import RegisterSlice
from edgedec.hw.blocks.resources import Resources
from edgedec.hw.memory.axi import axi4_read, axi4_write, beats_log2

__all__ = ["AxiReadCrossing", "AxiWriteCrossing"]

_REQUESTS, _BEATS = 8, 16  # places of a queue of addresses or responses, and of a queue of beats
_LATE = 3  # items that may arrive before the registered level shows them, plus one
_AR, _R = ("araddr", "arlen"), ("rdata", "rresp", "rlast")
_AW, _W, _B = ("awaddr", "awlen"), ("wdata", "wstrb", "wlast"), ("bresp",)


def _carry(
    m: Module, channel: str, source: Any, sink: Any, names: Sequence[str], depth: int, domains: tuple[str, str]
) -> None:
    """Connect one channel through a queue; ``domains`` are those of ``source`` and ``sink``."""
    source_fields, sink_fields = (Cat(Value.cast(getattr(side, name)) for name in names) for side in (source, sink))
    queue = _Crossing(width=len(source_fields), depth=depth, source=domains[0], sink=domains[1])
    m.submodules[channel] = queue
    m.d.comb += [
        queue.input.payload.eq(source_fields),
        queue.input.valid.eq(getattr(source, f"{channel}valid")),
        getattr(source, f"{channel}ready").eq(queue.input.ready),
        sink_fields.eq(queue.output.payload),
        getattr(sink, f"{channel}valid").eq(queue.output.valid),
        queue.output.ready.eq(getattr(sink, f"{channel}ready")),
    ]


class _Crossing(Component):
    """A queue between two clocks in which all outputs and decisions are registered.

    ``amaranth.lib.fifo.AsyncFIFO`` compares, counts and reads in one cycle, which is slower. Each side sends its count
    to the other side in Gray code.

    Parameters:
        width: bits of an item.
        depth: places, a power of two; at least all but two of them are usable.
        source, sink: names of the clock domains.

    Members:
        input, output: In, Out(stream of width), each in its domain.

    Latency: 2 cycles of the source and 5 of the sink.
    Throughput: one item per cycle of the slower clock, with 16 places and similar clocks.
    Source: Cummings, "Simulation and Synthesis Techniques for Asynchronous FIFO Design", SNUG 2002.
    """

    def __init__(self, *, width: int, depth: int, source: str, sink: str) -> None:
        self._width, self._depth, self._domains = width, depth, (source, sink)
        super().__init__(
            {"input": In(stream.Signature(unsigned(width))), "output": Out(stream.Signature(unsigned(width)))}
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        (source, sink), bits = self._domains, beats_log2(self._depth) + 1
        m.submodules.storage = storage = Memory(shape=unsigned(self._width), depth=self._depth, init=[])
        write = storage.write_port(domain=source)
        read = storage.read_port(domain="comb")
        m.submodules.behind = output_slice = DomainRenamer(sink)(RegisterSlice(shape=unsigned(self._width)))
        put = Signal(bits)
        taken = Signal(bits)
        # The source's side: the level is some cycles old, so room is kept for the items that arrived since.
        left = self._other(m, "taken", taken, sink, source)
        level = Signal(bits)
        room = Signal()
        m.d.comb += [
            self.input.ready.eq(room),
            write.addr.eq(put[:-1]),
            write.data.eq(self.input.payload),
            write.en.eq(self.input.valid & room),
        ]
        m.d[source] += [level.eq(put - left), room.eq(level <= self._depth - _LATE)]
        with m.If(write.en):
            m.d[source] += put.eq(put + 1)
        # The sink's side: whether another item is there is decided for this item and, in advance, for the next one.
        arrived = self._other(m, "put", put, source, sink)
        some = Signal()
        following = Signal(bits, init=1)
        taking = Signal()
        m.d.comb += [
            read.addr.eq(taken[:-1]),
            output_slice.input.payload.eq(read.data),
            output_slice.input.valid.eq(some),
            taking.eq(some & output_slice.input.ready),
        ]
        m.d[sink] += some.eq(Mux(taking, following != arrived, taken != arrived))
        with m.If(taking):
            m.d[sink] += [taken.eq(following), following.eq(following + 1)]
        connect(m, output_slice.output, flipped(self.output))
        return m

    def _other(self, m: Module, name: str, count: Signal, source: str, sink: str) -> Signal:
        """Return ``count`` as the other side knows it."""
        gray, crossed, decoded = (Signal(len(count), name=f"{name}_{part}") for part in ("gray", "crossed", "there"))
        m.d[source] += gray.eq(count ^ (count >> 1))
        m.submodules[f"{name}_crossing"] = FFSynchronizer(gray, crossed, o_domain=sink, reset_less=False)
        m.d[sink] += decoded.eq(Cat(crossed[bit:].xor() for bit in range(len(count))))
        return decoded


class AxiReadCrossing(CostedComponent):
    """Carry AXI4 read channels to another clock domain.

    Parameters:
        address_bits, data_bytes: widths of the bus.
        manager, subordinate: names of the clock domains.

    Members:
        manager: In(AXI4 read channels); subordinate: Out(AXI4 read channels). The fields that edgedec's masters leave
            constant are constant here too: whole beats, ascending addresses, id 0.

    Latency: 2 cycles of the domain that drives a channel and 5 of the other one.
    Throughput: one beat per cycle of the slower clock.
    Source: derived here.
    """

    def __init__(
        self, *, address_bits: int, data_bytes: int, manager: str = "sync", subordinate: str = "memory"
    ) -> None:
        self._there, self._back = (manager, subordinate), (subordinate, manager)
        self._address_bits, self._data_bytes = address_bits, data_bytes
        bus = axi4_read(address_bits=address_bits, data_bytes=data_bytes)
        super().__init__(lambda: {"manager": In(bus), "subordinate": Out(bus)})

    @property
    def resources(self) -> Resources:
        """Estimate of the cost; not calibrated."""
        bits = self._address_bits + 8 + 8 * self._data_bytes
        return Resources(lut=2 * bits + 48, ff=2 * bits + 80)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        _carry(m, "ar", self.manager, self.subordinate, _AR, _REQUESTS, self._there)
        _carry(m, "r", self.subordinate, self.manager, _R, _BEATS, self._back)
        return m


class AxiWriteCrossing(CostedComponent):
    """Carry AXI4 write channels to another clock domain, in the same way as ``AxiReadCrossing``."""

    def __init__(
        self, *, address_bits: int, data_bytes: int, manager: str = "sync", subordinate: str = "memory"
    ) -> None:
        self._there, self._back = (manager, subordinate), (subordinate, manager)
        self._address_bits, self._data_bytes = address_bits, data_bytes
        bus = axi4_write(address_bits=address_bits, data_bytes=data_bytes)
        super().__init__(lambda: {"manager": In(bus), "subordinate": Out(bus)})

    @property
    def resources(self) -> Resources:
        """Estimate of the cost; not calibrated."""
        bits = self._address_bits + 8 + 9 * self._data_bytes + 8
        return Resources(lut=2 * bits + 72, ff=2 * bits + 120)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        _carry(m, "aw", self.manager, self.subordinate, _AW, _REQUESTS, self._there)
        _carry(m, "w", self.manager, self.subordinate, _W, _BEATS, self._there)
        _carry(m, "b", self.subordinate, self.manager, _B, _REQUESTS, self._back)
        return m
