"""Provide a top with an accelerator's ports that copies a range of memory: small enough to compile in seconds."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Signal
from amaranth.lib.wiring import Component, In, Out, connect, flipped

from edgedec.hw.blocks.contract import contract
from edgedec.hw.control.register_block import RegisterBlock
from edgedec.hw.isa.register_map import VALUE, Access, Field, Register, RegisterMap
from edgedec.hw.memory.axi import axi4_read, axi4_write, axi_lite
from edgedec.hw.memory.prefetcher import Prefetcher
from edgedec.hw.memory.write_master import WriteMaster

__all__ = ["IDENTITY", "MAP", "PORT_BYTES", "PROMISE", "Copier", "Faulty", "Promising"]

IDENTITY = 0xC0B1E55A
PORT_BYTES = 8
PROMISE = "No fifth start comes"
_DONE, _FAILED = (Field(name=name, bits=1, description="Event.") for name in ("done", "failed"))


def _register(name: str, offset: int, access: Access, *fields: Field, enabled_by: str = "") -> Register:
    return Register(name=name, offset=offset, access=access, fields=fields, description=name, enabled_by=enabled_by)


def _number(bits: int, reset: int = 0) -> Field:
    return Field(name=VALUE, bits=bits, description="Number.", reset=reset)


MAP = RegisterMap(
    name="copier",
    description="Copies.",
    registers=(
        _register("identity", 0x00, Access.CONSTANT, _number(32, IDENTITY)),
        _register("start", 0x04, Access.PULSE, _number(1)),
        _register("source", 0x08, Access.READ_WRITE, _number(29)),  # logical address in beats
        _register("beats", 0x0C, Access.READ_WRITE, _number(24)),
        _register("destination", 0x10, Access.READ_WRITE, _number(32)),
        _register("only_read", 0x14, Access.READ_WRITE, _number(1)),
        _register("events", 0x18, Access.WRITE_ONE_TO_CLEAR, _DONE, _FAILED, enabled_by="enables"),
        _register("enables", 0x1C, Access.READ_WRITE, _DONE, _FAILED),
    ),
)


def _ports(read_ports: int) -> dict[str, Any]:
    read = axi4_read(address_bits=32, data_bytes=PORT_BYTES)
    return {
        "registers": In(axi_lite(address_bits=12)),
        **{f"read{port}": Out(read) for port in range(read_ports)},
        "write": Out(axi4_write(address_bits=32, data_bytes=PORT_BYTES)),
        "interrupt": Out(1),
    }


class Copier(Component):  # type: ignore[misc]  # no types in amaranth
    """Read ``beats`` of ``ports`` * 8 bytes over all read ports, and write them through the write port, 8 bytes per
    cycle.
    """

    def __init__(self, *, ports: int) -> None:
        self._ports = ports
        super().__init__(_ports(ports))

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        width = self._ports * PORT_BYTES
        m.submodules.block = block = RegisterBlock(register_map=MAP)
        m.submodules.reader = reader = Prefetcher(
            beat_bytes=width, ports=self._ports, address_bits=32, depth=512, style="auto"
        )
        m.submodules.writer = writer = WriteMaster(address_bits=32, data_bytes=PORT_BYTES)
        connect(m, flipped(self.registers), block.bus)
        connect(m, writer.bus, flipped(self.write))
        for port in range(self._ports):
            connect(m, getattr(reader, f"bus{port}"), flipped(getattr(self, f"read{port}")))
        ask, tell, part, bytes_written = Signal(), Signal(), Signal(range(max(2, self._ports))), Signal(25)
        final = part == self._ports - 1
        m.d.comb += [
            self.interrupt.eq(block.interrupt),
            reader.ranges.p.start.eq(block.source),
            reader.ranges.p.beats.eq(block.beats),
            reader.ranges.valid.eq(ask),
            writer.requests.p.address.eq(block.destination),
            writer.requests.p.bytes.eq(block.beats * width),
            writer.requests.valid.eq(tell),
            writer.data.payload.as_value().eq(reader.beats.payload.as_value().word_select(part, 8 * PORT_BYTES)),
            writer.data.valid.eq(reader.beats.valid & ~block.only_read),
            reader.beats.ready.eq(block.only_read | (writer.data.ready & final)),
            block.events_failed_set.eq(reader.error.valid | writer.error.valid),
            block.events_done_set.eq(
                writer.done.valid | (block.only_read & reader.beats.valid & (bytes_written + 1 == block.beats))
            ),
        ]
        with m.If(ask & reader.ranges.ready):
            m.d.sync += ask.eq(0)
        with m.If(tell & writer.requests.ready):
            m.d.sync += tell.eq(0)
        with m.If(writer.data.valid & writer.data.ready):
            m.d.sync += part.eq(part + ~final)
            with m.If(final):
                m.d.sync += part.eq(0)
        with m.If(reader.beats.valid & reader.beats.ready):
            m.d.sync += bytes_written.eq(bytes_written + 1)
        with m.If(block.start):
            m.d.sync += [ask.eq(1), tell.eq(~block.only_read), bytes_written.eq(0)]
        return m


class Promising(Component):  # type: ignore[misc]
    """Count the writes of a register, and state two rules: one that is kept, and one that the fifth write breaks."""

    def __init__(self) -> None:
        super().__init__(_ports(1))

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.block = block = RegisterBlock(register_map=MAP)
        m.submodules.inner = inner = Module()
        connect(m, flipped(self.registers), block.bus)
        writes = Signal(4)
        with m.If(block.start):
            m.d.sync += writes.eq(writes + 1)
        contract(inner, writes != 5, PROMISE)
        contract(m, writes != 15, "This rule is kept")
        return m


class Faulty(Component):  # type: ignore[misc]
    """Answer no register access, and after 15000 cycles request what no burst may hold."""

    def __init__(self) -> None:
        super().__init__(_ports(1))

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        cycle = Signal(32)
        m.d.sync += cycle.eq(cycle + 1)
        m.d.comb += [
            self.read0.araddr.eq(4096 - PORT_BYTES),
            self.read0.arlen.eq(1),
            self.read0.arvalid.eq(cycle >= 15_000),
        ]
        return m
