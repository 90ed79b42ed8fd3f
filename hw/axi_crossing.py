"""AXI4 channels from one clock to another."""

from collections.abc import Sequence
from typing import Any

from amaranth.hdl import Cat, Module, Value
from amaranth.lib.fifo import AsyncFIFO
from amaranth.lib.wiring import Component, In, Out

from edgedec.hw.axi import axi4_read, axi4_write
from edgedec.hw.resources import Resources

__all__ = ["AxiReadCrossing", "AxiWriteCrossing", "estimate"]

_REQUESTS, _BEATS = 4, 16  # that may be on the way
_AR, _R = ("araddr", "arlen"), ("rdata", "rresp", "rlast")
_AW, _W, _B = ("awaddr", "awlen"), ("wdata", "wstrb", "wlast"), ("bresp",)


def _carry(
    m: Module, channel: str, source: Any, sink: Any, names: Sequence[str], depth: int, domains: tuple[str, str]
) -> None:
    """One channel through a queue; ``domains``: of the side that gives and of the one that takes."""
    given, taken = (Cat(Value.cast(getattr(side, name)) for name in names) for side in (source, sink))
    queue = AsyncFIFO(width=len(given), depth=depth, w_domain=domains[0], r_domain=domains[1])
    m.submodules[channel] = queue
    m.d.comb += [
        queue.w_data.eq(given),
        queue.w_en.eq(getattr(source, f"{channel}valid")),
        getattr(source, f"{channel}ready").eq(queue.w_rdy),
        taken.eq(queue.r_data),
        getattr(sink, f"{channel}valid").eq(queue.r_rdy),
        queue.r_en.eq(getattr(sink, f"{channel}ready")),
    ]


class AxiReadCrossing(Component):
    """Parameters:
        address_bits, data_bytes: of the bus.
        manager, subordinate: clock domains.

    Members:
        manager: In(AXI4 read channels); subordinate: Out(AXI4 read channels). What edgedec's masters leave alone is
            constant: whole beats, ascending, id 0.

    Latency: two to three cycles of the domain that a channel goes to.
    Throughput: a beat in a cycle of the slower clock.
    Source: derived here.
    """

    def __init__(
        self, *, address_bits: int, data_bytes: int, manager: str = "sync", subordinate: str = "memory"
    ) -> None:
        self._there, self._back = (manager, subordinate), (subordinate, manager)
        bus = axi4_read(address_bits=address_bits, data_bytes=data_bytes)
        super().__init__({"manager": In(bus), "subordinate": Out(bus)})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        _carry(m, "ar", self.manager, self.subordinate, _AR, _REQUESTS, self._there)
        _carry(m, "r", self.subordinate, self.manager, _R, _BEATS, self._back)
        return m


class AxiWriteCrossing(Component):
    """As ``AxiReadCrossing``, for AXI4 write channels."""

    def __init__(
        self, *, address_bits: int, data_bytes: int, manager: str = "sync", subordinate: str = "memory"
    ) -> None:
        self._there, self._back = (manager, subordinate), (subordinate, manager)
        bus = axi4_write(address_bits=address_bits, data_bytes=data_bytes)
        super().__init__({"manager": In(bus), "subordinate": Out(bus)})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        _carry(m, "aw", self.manager, self.subordinate, _AW, _REQUESTS, self._there)
        _carry(m, "w", self.manager, self.subordinate, _W, _BEATS, self._there)
        _carry(m, "b", self.subordinate, self.manager, _B, _REQUESTS, self._back)
        return m


def estimate(*, address_bits: int, data_bytes: int) -> Resources:
    """Of an AxiReadCrossing and an AxiWriteCrossing; not calibrated yet."""
    wide = 2 * (address_bits + 8) + 8 * data_bytes * 2 + data_bytes + 8
    return Resources(lut=wide + 120, ff=wide + 150)
