"""A division of an AXI4-Lite bus of registers by the address."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.resources import Resources
from edgedec.hw.memory.axi import axi_lite

__all__ = ["RegisterSplit"]

_ADDRESS_BITS = 12  # bits of a byte address of a register


class RegisterSplit(CostedComponent):
    """Pass accesses below an offset to one bus and the others to another.

    The manager makes one access at a time and keeps its address until it is answered, as ``CommandExecutor`` does.

    Parameters:
        offset: first byte offset of ``above``, half of the addresses.

    Members:
        manager: In(AXI4-Lite).
        below, above: Out(AXI4-Lite).

    Latency: none.
    """

    def __init__(self, *, offset: int) -> None:
        if offset != 1 << (_ADDRESS_BITS - 1):
            raise ValueError(f"offset must be {1 << (_ADDRESS_BITS - 1):#x}, half of the addresses, not {offset!r}")
        self._bit = exact_log2(offset)
        bus = axi_lite(address_bits=_ADDRESS_BITS)
        super().__init__(lambda: {"manager": In(bus), "below": Out(bus), "above": Out(bus)})

    @property
    def resources(self) -> Resources:
        """Estimate of the cost; not calibrated."""
        return Resources(lut=45, ff=0)

    def elaborate(self, platform: Any) -> Module:
        m, manager = Module(), self.manager
        for kind in ("ar", "aw"):
            chosen = Signal(name=f"{kind}_above")
            m.d.comb += chosen.eq(getattr(manager, f"{kind}addr")[self._bit])
            for bus, selected in ((self.below, ~chosen), (self.above, chosen)):
                valids = ("arvalid",) if kind == "ar" else ("awvalid", "wvalid")
                m.d.comb += [getattr(bus, name).eq(getattr(manager, name) & selected) for name in valids]
                m.d.comb += getattr(bus, f"{kind}addr").eq(getattr(manager, f"{kind}addr"))
            answers = (
                ("arready", "rdata", "rresp", "rvalid") if kind == "ar" else ("awready", "wready", "bresp", "bvalid")
            )
            m.d.comb += [
                getattr(manager, name).eq(Mux(chosen, getattr(self.above, name), getattr(self.below, name)))
                for name in answers
            ]
        for bus in (self.below, self.above):
            m.d.comb += [
                getattr(bus, name).eq(getattr(manager, name))
                for name in ("wdata", "wstrb", "awprot", "arprot", "rready", "bready")
            ]
        return m
