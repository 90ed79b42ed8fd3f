"""AXI4 channels from one clock to another. Both clocks' domains are reset together."""

from collections.abc import Sequence
from typing import Any

from amaranth.hdl import Cat, DomainRenamer, Module, Mux, Signal, Value, unsigned
from amaranth.lib import stream
from amaranth.lib.cdc import FFSynchronizer
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import Component, In, Out, connect, flipped

from edgedec.hw.axi import axi4_read, axi4_write, beats_log2
from edgedec.hw.component import CostedComponent
from edgedec.hw.register_slice import RegisterSlice
from edgedec.hw.resources import Resources

__all__ = ["AxiReadCrossing", "AxiWriteCrossing"]

_REQUESTS, _BEATS = 8, 16  # places for what is on the way
_LATE = 3  # what may come between two looks at the room that is left
_AR, _R = ("araddr", "arlen"), ("rdata", "rresp", "rlast")
_AW, _W, _B = ("awaddr", "awlen"), ("wdata", "wstrb", "wlast"), ("bresp",)


def _carry(
    m: Module, channel: str, source: Any, sink: Any, names: Sequence[str], depth: int, domains: tuple[str, str]
) -> None:
    """One channel through a queue; ``domains``: of the side that gives and of the one that takes."""
    given, taken = (Cat(Value.cast(getattr(side, name)) for name in names) for side in (source, sink))
    queue = _Crossing(width=len(given), depth=depth, source=domains[0], sink=domains[1])
    m.submodules[channel] = queue
    m.d.comb += [
        queue.input.payload.eq(given),
        queue.input.valid.eq(getattr(source, f"{channel}valid")),
        getattr(source, f"{channel}ready").eq(queue.input.ready),
        taken.eq(queue.output.payload),
        getattr(sink, f"{channel}valid").eq(queue.output.valid),
        queue.output.ready.eq(getattr(sink, f"{channel}ready")),
    ]


class _Crossing(Component):
    """A queue between two clocks, all of whose outputs and decisions are registers: ``amaranth.lib.fifo.AsyncFIFO``
    compares, counts and reads in one cycle. What each side has counted goes to the other one in Gray code.

    Parameters:
        width: bits.
        depth: places, a power of two; all but two of them are used at least.
        source, sink: clock domains.

    Members:
        input, output: In, Out(stream of width), in their domains.

    Latency: 2 cycles of the source and 5 of the sink.
    Throughput: an item in a cycle of the slower clock, with 16 places and clocks that are alike.
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
        write, look = storage.write_port(domain=source), storage.read_port(domain="comb")
        m.submodules.behind = behind = DomainRenamer(sink)(RegisterSlice(shape=unsigned(self._width)))
        put, taken = Signal(bits), Signal(bits)
        # The source's side: room as it was some cycles ago, less what may have come since.
        left, level, room = self._other(m, "taken", taken, sink, source), Signal(bits), Signal()
        m.d.comb += [
            self.input.ready.eq(room),
            write.addr.eq(put[:-1]),
            write.data.eq(self.input.payload),
            write.en.eq(self.input.valid & room),
        ]
        m.d[source] += [level.eq(put - left), room.eq(level <= self._depth - _LATE)]
        with m.If(write.en):
            m.d[source] += put.eq(put + 1)
        # The sink's side: whether there is something, for this item and for the next one.
        came, some, following, taking = (
            self._other(m, "put", put, source, sink),
            Signal(),
            Signal(bits, init=1),
            Signal(),
        )
        m.d.comb += [
            look.addr.eq(taken[:-1]),
            behind.input.payload.eq(look.data),
            behind.input.valid.eq(some),
            taking.eq(some & behind.input.ready),
        ]
        m.d[sink] += some.eq(Mux(taking, following != came, taken != came))
        with m.If(taking):
            m.d[sink] += [taken.eq(following), following.eq(following + 1)]
        connect(m, behind.output, flipped(self.output))
        return m

    def _other(self, m: Module, name: str, count: Signal, source: str, sink: str) -> Signal:
        """``count`` as the other side knows it."""
        gray, crossed, found = (Signal(len(count), name=f"{name}_{part}") for part in ("gray", "crossed", "there"))
        m.d[source] += gray.eq(count ^ (count >> 1))
        m.submodules[f"{name}_crossing"] = FFSynchronizer(gray, crossed, o_domain=sink, reset_less=False)
        m.d[sink] += found.eq(Cat(crossed[bit:].xor() for bit in range(len(count))))
        return found


class AxiReadCrossing(CostedComponent):
    """Parameters:
        address_bits, data_bytes: of the bus.
        manager, subordinate: clock domains.

    Members:
        manager: In(AXI4 read channels); subordinate: Out(AXI4 read channels). What edgedec's masters leave alone is
            constant: whole beats, ascending, id 0.

    Latency: 2 cycles of the domain that a channel comes from and 5 of the one that it goes to.
    Throughput: a beat in a cycle of the slower clock.
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
    """As ``AxiReadCrossing``, for AXI4 write channels."""

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
