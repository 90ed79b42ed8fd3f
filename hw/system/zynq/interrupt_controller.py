"""An interrupt controller with the registers of AMD's AXI INTC, for which drivers exist."""

from typing import Any

from amaranth.hdl import Const, Module, Mux, Signal, Value
from amaranth.lib.wiring import In, Out

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.pipeline import check
from edgedec.hw.blocks.resources import Resources
from edgedec.hw.memory.axi import Response, axi_lite

__all__ = ["ADDRESS_BITS", "InterruptController"]

ADDRESS_BITS = 16  # the address space that hand-off files give it
# Registers by byte offset: status, pending, enable, acknowledge, set and clear enables, vector, master enable.
_ISR, _IPR, _IER, _IAR, _SIE, _CIE, _IVR, _MER = range(0x00, 0x20, 4)
_MASTER, _HARDWARE = 0, 1  # bits of MER


class InterruptController(CostedComponent):
    """Collect level interrupts, and signal them while they are pending and enabled.

    An input that is high sets its bit of ISR in every cycle, once the hardware is enabled (bit 1 of MER, which stays
    set until a reset); before, software may write ISR. A bit that is acknowledged while its input is high is set
    again. IPR has the bits that are enabled; IVR is the number of the lowest of them, all ones without one. Interrupts
    are served in software by their bits; there are no vectors and levels of priority (IVAR, ILR), whose addresses read
    0 as all others.

    Parameters:
        inputs: number of inputs, 1 to 32.

    Members:
        bus: In(AXI4-Lite). Each access is answered OKAY. Writes ignore strobes, because these registers are written as
            words.
        lines: In(inputs). The interrupts, active high.
        interrupt: Out(1). Level of the interrupt to the processor.

    Latency: 2 cycles from ``lines`` to ``interrupt``; 2 from the later of AW and W to B, and from AR to R.
    Throughput: one read and one write in two cycles.
    Source: AMD PG099, "AXI Interrupt Controller (INTC)", register space, with C_KIND_OF_INTR 0.
    """

    def __init__(self, *, inputs: int = 1) -> None:
        check("inputs", inputs, 1, 32)
        self._inputs = inputs
        super().__init__(
            lambda: {"bus": In(axi_lite(address_bits=ADDRESS_BITS)), "lines": In(inputs), "interrupt": Out(1)}
        )

    @property
    def resources(self) -> Resources:
        """Estimate of the cost; not calibrated."""
        return Resources(lut=40 + 5 * self._inputs, ff=76 + 2 * self._inputs)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        status = Signal(self._inputs)
        enabled = Signal(self._inputs)
        master = Signal(2)
        pending = Signal(self._inputs)
        write, address, written = self._writes(m)
        bits = written[: self._inputs]
        at = {name: write & (address == name >> 2) for name in (_ISR, _IER, _IAR, _SIE, _CIE, _MER)}
        kept = status
        kept = Mux(at[_ISR] & ~master[_HARDWARE], bits, kept)
        kept = Mux(at[_IAR], status & ~bits, kept)
        m.d.sync += status.eq(kept | Mux(master[_HARDWARE], self.lines, 0))
        with m.If(at[_IER]):
            m.d.sync += enabled.eq(bits)
        with m.If(at[_SIE]):
            m.d.sync += enabled.eq(enabled | bits)
        with m.If(at[_CIE]):
            m.d.sync += enabled.eq(enabled & ~bits)
        with m.If(at[_MER]):
            m.d.sync += [master[_MASTER].eq(written[_MASTER]), master[_HARDWARE].eq(master[1] | written[_HARDWARE])]
        m.d.comb += pending.eq(status & enabled)
        m.d.sync += self.interrupt.eq(pending.any() & master[_MASTER])
        vector: Value = Const((1 << 32) - 1, 32)
        for number in reversed(range(self._inputs)):
            vector = Mux(pending[number], number, vector)
        self._reads(m, {_ISR: status, _IPR: pending, _IER: enabled, _IVR: vector, _MER: master})
        return m

    def _writes(self, m: Module) -> tuple[Signal, Signal, Signal]:
        """Handle AW, W and B. Return the cycle of a write, the number of its word, and its data."""
        bus = self.bus
        write = Signal()
        address = Signal(ADDRESS_BITS - 2)
        has_address = Signal()
        written = Signal(32)
        has_data = Signal()
        m.d.comb += [
            bus.awready.eq(~has_address),
            bus.wready.eq(~has_data),
            bus.bresp.eq(Response.OKAY),
            write.eq(has_address & has_data & (~bus.bvalid | bus.bready)),
        ]
        with m.If(bus.bready):
            m.d.sync += bus.bvalid.eq(0)
        with m.If(write):
            m.d.sync += [bus.bvalid.eq(1), has_address.eq(0), has_data.eq(0)]
        with m.If(bus.awvalid & bus.awready):
            m.d.sync += [has_address.eq(1), address.eq(bus.awaddr[2:])]
        with m.If(bus.wvalid & bus.wready):
            m.d.sync += [has_data.eq(1), written.eq(bus.wdata)]
        return write, address, written

    def _reads(self, m: Module, values: dict[int, Value]) -> None:
        """Handle AR and R."""
        bus = self.bus
        address = Signal(ADDRESS_BITS - 2)
        has_address = Signal()
        value = Signal(32)
        m.d.comb += [bus.arready.eq(~has_address), bus.rresp.eq(Response.OKAY)]
        with m.Switch(address):
            for offset, register in values.items():
                with m.Case(offset >> 2):
                    m.d.comb += value.eq(register)
        with m.If(bus.rready):
            m.d.sync += bus.rvalid.eq(0)
        with m.If(has_address & (~bus.rvalid | bus.rready)):
            m.d.sync += [bus.rvalid.eq(1), bus.rdata.eq(value), has_address.eq(0)]
        with m.If(bus.arvalid & bus.arready):
            m.d.sync += [has_address.eq(1), address.eq(bus.araddr[2:])]
