"""Provide an accelerator's ports and registers with almost nothing between them: it copies memory."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib.wiring import Component, In, Out, connect, flipped

from edgedec.hw.config import ADDRESS_BITS, AcceleratorConfig
from edgedec.hw.control.register_block import RegisterBlock
from edgedec.hw.isa.registers import REGISTER_MAP
from edgedec.hw.memory.axi import axi4_read, axi4_write, axi_lite
from edgedec.hw.memory.read_master import ReadMaster
from edgedec.hw.memory.write_master import WriteMaster

__all__ = ["Copier"]


class Copier(Component):
    """Copy program_bytes from program_address to output_address after ``start``; ``done`` follows the last write
    response.
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        self._config = config
        size = {"address_bits": ADDRESS_BITS, "data_bytes": config.port_bytes}
        super().__init__(
            {
                "registers": In(axi_lite(address_bits=12)),
                "read0": Out(axi4_read(**size)),
                "write": Out(axi4_write(**size)),
                "interrupt": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        size = {
            "address_bits": ADDRESS_BITS,
            "data_bytes": self._config.port_bytes,
            "max_burst": self._config.burst_beats,
        }
        m.submodules.registers = registers = RegisterBlock(register_map=REGISTER_MAP)
        m.submodules.reader, m.submodules.writer = reader, writer = ReadMaster(**size), WriteMaster(**size)
        connect(m, flipped(self.registers), registers.bus)
        connect(m, reader.bus, flipped(self.read0))
        connect(m, writer.bus, flipped(self.write))
        connect(m, reader.beats, writer.data)
        requests_sent, busy, cycles = Signal(2), Signal(), Signal(64)
        for bit, master, address in (
            (0, reader, registers.program_address),
            (1, writer, registers.output_address),
        ):
            m.d.comb += [
                master.requests.valid.eq(requests_sent[bit]),
                master.requests.p.address.eq(address),
                master.requests.p.bytes.eq(registers.program_bytes),
            ]
            with m.If(master.requests.ready):
                m.d.sync += requests_sent[bit].eq(0)
        with m.If(registers.control_start):
            m.d.sync += [requests_sent.eq(0b11), busy.eq(1), cycles.eq(0)]
        with m.If(writer.done.valid):
            m.d.sync += busy.eq(0)
        m.d.sync += cycles.eq(Mux(busy, cycles + 1, cycles))
        m.d.comb += [
            self.interrupt.eq(registers.interrupt),
            registers.configuration_hash.eq(self._config.hash),
            registers.interrupt_status_done_set.eq(writer.done.valid),
            registers.interrupt_status_error_set.eq(reader.error.valid | writer.error.valid),
            registers.status_busy.eq(busy),
            registers.counter_cycles.eq(cycles),
        ]
        return m
