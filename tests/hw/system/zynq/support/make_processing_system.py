"""Provide a synthesizable stand-in for a Zynq-7000's processing system around a ZynqSystem, with an accelerator's ports.

A compiled simulation of an accelerator therefore runs the system: registers are reached over AXI3 bursts with changing
ids, memory over AXI3, and the interrupt through the controller, which the stand-in starts and serves as pynq's driver does.
"""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Array, Const, Module, Mux, Signal
from amaranth.lib.wiring import Component, In, Out

from edgedec.hw.config import ADDRESS_BITS, AcceleratorConfig
from edgedec.hw.handoff.write import FAMILIES
from edgedec.hw.memory.axi import axi4_read, axi4_write, axi_lite
from edgedec.hw.system.zynq.zynq_system import ZynqSystem

__all__ = ["ProcessingSystem"]

_FAMILY = FAMILIES["zynq-7000"]
_MER, _SIE, _IAR = 0x1C, 0x10, 0x0C  # registers of the interrupt controller


class ProcessingSystem(Component):
    """Translate the ports of a ZynqSystem to those of an accelerator.

    Before the first access it enables the interrupt controller; after each write of a register it acknowledges the
    interrupt, which stays if the accelerator still asks for it. Writes offer their data before their address, after it,
    and with it, in turn.
    """

    def __init__(self, config: AcceleratorConfig, accelerator: Any) -> None:
        self._config, self._system = config, ZynqSystem(config, accelerator)
        read = axi4_read(address_bits=ADDRESS_BITS, data_bytes=config.port_bytes)
        super().__init__(
            {
                "registers": In(axi_lite(address_bits=12)),
                **{f"read{port}": Out(read) for port in range(config.ports)},
                "write": Out(axi4_write(address_bits=ADDRESS_BITS, data_bytes=config.port_bytes)),
                "interrupt": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.system = system = self._system
        m.d.comb += self.interrupt.eq(system.interrupt)
        for port in range(self._config.ports):
            self._memory(m, getattr(system, f"memory{port}"), getattr(self, f"read{port}"), "r")
        self._memory(m, system.memory0, self.write, "w")
        self._writes(m, system.registers)
        self._reads(m, system.registers)
        return m

    def _memory(self, m: Module, port: Any, outside: Any, letter: str) -> None:
        """Connect a channel of addresses, and the channels of data and answers, of AXI3 to AXI4."""
        names = ("addr", "len", "size", "burst", "valid")
        m.d.comb += [
            *(getattr(outside, f"a{letter}{name}").eq(getattr(port, f"a{letter}{name}")) for name in names),
            getattr(port, f"a{letter}ready").eq(getattr(outside, f"a{letter}ready")),
        ]
        if letter == "r":
            m.d.comb += [
                getattr(port, name).eq(getattr(outside, name)) for name in ("rdata", "rresp", "rlast", "rvalid")
            ]
            m.d.comb += outside.rready.eq(port.rready)
            return
        m.d.comb += [
            *(getattr(outside, name).eq(getattr(port, name)) for name in ("wdata", "wstrb", "wlast", "wvalid")),
            port.wready.eq(outside.wready),
            *(getattr(port, name).eq(getattr(outside, name)) for name in ("bresp", "bvalid")),
            outside.bready.eq(port.bready),
        ]

    def _writes(self, m: Module, port: Any) -> None:
        """Make a write of the processor's, each followed by an acknowledgement; first the start of the controller."""
        outside = self.registers
        controller = _FAMILY.controller_address
        address, data, strobes, identity = Signal(32), Signal(32), Signal(4), Signal(12)
        address_left, data_left, late, turn = Signal(), Signal(), Signal(2), Signal(2)
        own, started = Signal(2), Signal()  # ``own`` counts the writes that start the controller
        starts = Array(Const(value, 32) for value in (controller + _MER, controller + _SIE))
        values = Array(Const(value, 32) for value in (3, 1))

        def begin(where: Any, value: Any, lanes: Any) -> list[Any]:
            return [
                address.eq(where),
                data.eq(value),
                strobes.eq(lanes),
                identity.eq(identity * 5 + 3),
                address_left.eq(1),
                data_left.eq(1),
                late.eq(3),
                turn.eq(Mux(turn == 2, 0, turn + 1)),
            ]

        m.d.comb += [
            port.awaddr.eq(address),
            port.awid.eq(identity),
            port.awlock.eq(0),
            port.awvalid.eq(address_left & ((turn != 0) | (late == 0))),
            port.wid.eq(identity),
            port.wdata.eq(data),
            port.wstrb.eq(strobes),
            port.wlast.eq(1),
            port.wvalid.eq(data_left & ((turn != 1) | (late == 0))),
        ]
        with m.If(late != 0):
            m.d.sync += late.eq(late - 1)
        with m.If(port.awvalid & port.awready):
            m.d.sync += address_left.eq(0)
        with m.If(port.wvalid & port.wready):
            m.d.sync += data_left.eq(0)
        with m.FSM(name="processor_writes"):
            with m.State("IDLE"):
                with m.If(~started):
                    m.d.sync += begin(starts[own[0]], values[own[0]], 15)
                    m.next = "OWN"
                with m.Elif(outside.awvalid & outside.wvalid):
                    m.d.comb += [outside.awready.eq(1), outside.wready.eq(1)]
                    m.d.sync += begin(_FAMILY.accelerator_address | outside.awaddr, outside.wdata, outside.wstrb)
                    m.next = "OUTSIDE"
            with m.State("OWN"):
                m.d.comb += port.bready.eq(1)
                with m.If(port.bvalid):
                    m.d.sync += [own.eq(own + 1), started.eq(own != 0)]
                    m.next = "IDLE"
            with m.State("OUTSIDE"):
                m.d.comb += port.bready.eq(1)
                m.d.sync += outside.bresp.eq(Mux(port.bid == identity, port.bresp, 3))
                with m.If(port.bvalid):
                    m.d.sync += begin(controller + _IAR, 1, 15)
                    m.next = "ACKNOWLEDGE"
            with m.State("ACKNOWLEDGE"):
                m.d.comb += port.bready.eq(1)
                with m.If(port.bvalid):
                    m.next = "ANSWER"
            with m.State("ANSWER"):
                m.d.comb += outside.bvalid.eq(1)
                with m.If(outside.bready):
                    m.next = "IDLE"

    def _reads(self, m: Module, port: Any) -> None:
        """Make a burst of one beat of each read."""
        outside, identity, asking = self.registers, Signal(12), Signal()
        address = Signal(32)
        m.d.comb += [port.arid.eq(identity), port.araddr.eq(address), port.arvalid.eq(asking)]
        with m.If(asking & port.arready):
            m.d.sync += asking.eq(0)
        with m.FSM(name="processor_reads"):
            with m.State("IDLE"):
                m.d.comb += outside.arready.eq(1)
                with m.If(outside.arvalid):
                    m.d.sync += [
                        asking.eq(1),
                        identity.eq(identity * 5 + 7),
                        address.eq(_FAMILY.accelerator_address | outside.araddr),
                    ]
                    m.next = "BEAT"
            with m.State("BEAT"):
                m.d.comb += [
                    port.rready.eq(outside.rready),
                    outside.rvalid.eq(port.rvalid),
                    outside.rdata.eq(port.rdata),
                    outside.rresp.eq(Mux((port.rid == identity) & port.rlast, port.rresp, 3)),
                ]
                with m.If(port.rvalid & outside.rready):
                    m.next = "IDLE"
