"""An AXI4-Lite register block for any register map."""

from collections.abc import Iterator
from functools import reduce
from operator import or_
from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib.wiring import In, Member, Out
from amaranth.utils import exact_log2

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.pipeline import check
from edgedec.hw.blocks.resources import Resources
from edgedec.hw.isa.register_map import Access, Field, Register, RegisterMap
from edgedec.hw.memory.axi import Response, axi_lite

__all__ = ["RegisterBlock"]

_GROUP = 8  # words of a group: an ECP5 chooses one of eight bits in a slice, without a wire between the LUT


class RegisterBlock(CostedComponent):
    """Serve reads and writes of a ``RegisterMap``.

    Every access is answered OKAY; addresses outside the map read as zero and ignore writes.

    Parameters:
        register_map: the register map.
        address_bits: bits of an address on the bus, enough for the map; addresses are fully decoded.

    Members:
        bus: In(AXI4-Lite).
        one port for each field: named ``Register.port``; an array if the register's count is more than 1. Its direction
            depends on the access:
            read only: In, sampled when it is read. The two words of 64 bits are sampled one after the other.
            read and write: Out.
            pulse: Out, high for one cycle.
            write one to clear: Out, and an In of the same width with the suffix ``_set``, which wins over a clear.
        interrupt: Out(1). A write-one-to-clear bit and its enable are both set.

    Latency: 3 cycles from the later of AW and W to a changed output and to B; 4 from AR to R.
    Throughput: one write in three cycles, and one read in four.
    Source: AXI4-Lite (ARM IHI 0022), part B.
    """

    def __init__(self, *, register_map: RegisterMap, address_bits: int = 12) -> None:
        check("address_bits", address_bits, max(2, (register_map.bytes - 1).bit_length()), 64)
        self._map = register_map
        self._address_bits = address_bits
        super().__init__(
            lambda: {"bus": In(axi_lite(address_bits=address_bits)), "interrupt": Out(1), **dict(_ports(register_map))}
        )

    @property
    def resources(self) -> Resources:
        """Estimate of the cost: each readable bit is an input of a wide multiplexer; stored bits also have their writes."""
        register_map, address_bits = self._map, self._address_bits
        kept = read_only = 0  # numbers of bits
        for register in register_map.registers:
            bits = register.count * sum(field.bits for field in register.fields)
            if register.access is Access.READ_ONLY:
                read_only += bits
            elif register.access is not Access.CONSTANT:
                kept += bits
        bus = 2 * (address_bits - 2) + 2 * 32 + 4 + 5
        groups = len({word // _GROUP for word in _words(register_map)})
        return Resources(lut=read_only // 2 + 5 * kept // 3 + 11, ff=kept + bus + groups * (32 + _GROUP.bit_length()))

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        address, word_data, strobes, select = self._writes(m)
        mask = Cat(strobe.replicate(8) for strobe in strobes)
        words: dict[int, Value] = {}
        pending = []
        for register in self._map.registers:
            for index in range(register.count):
                offset = register.offset + index * register.bytes
                enables = Cat(
                    self._selected(m, select & (address == offset // 4 + word)).replicate(32) & mask
                    for word in range(register.bytes // 4)
                )
                written = Cat(word_data for _ in range(register.bytes // 4))
                value = Cat(
                    self._field(m, register, index, field, written, enables, lsb) for field, lsb in register.positions()
                )
                for word in range(register.bytes // 4):
                    words[offset // 4 + word] = value[32 * word : 32 * word + 32]
                if register.enabled_by:
                    pending.append(value & self._state(self._map[register.enabled_by]))
        m.d.comb += self.interrupt.eq(Cat(pending).any())
        self._reads(m, words)
        return m

    def _signal(self, name: str, register: Register, index: int) -> Any:
        port = getattr(self, name)
        return port if register.count == 1 else port[index]

    def _state(self, register: Register) -> Value:
        return Cat(self._signal(register.port(field), register, 0) for field in register.fields)

    def _selected(self, m: Module, now: Value) -> Value:
        """Return the cycle in which a word is written, the one after ``now``."""
        selected = Signal()
        m.d.sync += selected.eq(now)
        return selected

    def _field(
        self, m: Module, register: Register, index: int, field: Field, written: Value, enables: Value, lsb: int
    ) -> Value:
        """Add the registers of one field, and return the value that a read shows."""
        if register.access is Access.CONSTANT:
            return Const(field.reset, field.bits)
        port = self._signal(register.port(field), register, index)
        written, enables = written[lsb : lsb + field.bits], enables[lsb : lsb + field.bits]
        if register.access is Access.READ_WRITE:
            m.d.sync += port.eq((port & ~enables) | (written & enables))
        elif register.access is Access.WRITE_ONE_TO_CLEAR:
            m.d.sync += port.eq(
                (port & ~(written & enables)) | self._signal(f"{register.port(field)}_set", register, index)
            )
        elif register.access is Access.PULSE:
            m.d.sync += port.eq(written & enables)
            return Const(0, field.bits)
        return port

    def _writes(self, m: Module) -> tuple[Value, Value, Value, Value]:
        """Handle AW, W and B. Return the word's number, its data and strobes, and the cycle in which they are selected."""
        bus = self.bus
        address = Signal(len(bus.awaddr) - 2)
        has_address = Signal()
        written = Signal(32)
        strobes = Signal(4)
        has_data = Signal()
        select = Signal()
        write = Signal()
        m.d.comb += [
            bus.awready.eq(~has_address),
            bus.wready.eq(~has_data),
            bus.bresp.eq(Response.OKAY),
            select.eq(has_address & has_data & ~write & (~bus.bvalid | bus.bready)),
        ]
        m.d.sync += write.eq(select)
        with m.If(bus.bready):
            m.d.sync += bus.bvalid.eq(0)
        with m.If(select):
            m.d.sync += [has_address.eq(0), has_data.eq(0)]
        with m.If(write):  # data and strobes are the selected word's until the end of this cycle
            m.d.sync += bus.bvalid.eq(1)
        with m.If(bus.awvalid & bus.awready):
            m.d.sync += [has_address.eq(1), address.eq(bus.awaddr[2:])]
        with m.If(bus.wvalid & bus.wready):
            m.d.sync += [has_data.eq(1), written.eq(bus.wdata), strobes.eq(bus.wstrb)]
        return address, written, strobes, select

    def _reads(self, m: Module, words: dict[int, Value]) -> None:
        """Handle AR and R."""
        bus = self.bus
        address = Signal(len(bus.araddr) - 2)
        has_address = Signal()
        stages = Signal(2)  # an address has reached the registers of its group, and its word those of the value
        m.d.comb += [bus.arready.eq(~has_address), bus.rresp.eq(Response.OKAY)]
        m.d.sync += stages.eq(Cat(has_address, stages[0]))
        chosen = self._chosen(m, address, words)
        with m.If(bus.rready):
            m.d.sync += bus.rvalid.eq(0)
        with m.If(stages[1] & (~bus.rvalid | bus.rready)):
            m.d.sync += [bus.rvalid.eq(1), bus.rdata.eq(chosen), has_address.eq(0), stages.eq(0)]
        with m.If(bus.arvalid & bus.arready):
            m.d.sync += [has_address.eq(1), address.eq(bus.araddr[2:])]

    def _chosen(self, m: Module, address: Value, words: dict[int, Value]) -> Value:
        """Return the word at an address that has been there for two cycles; 0 where there is none.

        The words come from everywhere on the device, so each group of them has a register of its own to which they are
        near, and the position of the word in its group as well. Only one group's register is not zero.
        """
        values = []
        for group in sorted({word // _GROUP for word in words}):
            hit = Signal(name=f"group_{group}_hit")
            position = Signal(range(_GROUP), name=f"group_{group}_position")
            value = Signal(32, name=f"group_{group}_value")
            choice = Signal(32, name=f"group_{group}_choice")
            here = address[exact_log2(_GROUP) :] == group
            m.d.sync += [hit.eq(here), position.eq(Mux(here, address[: exact_log2(_GROUP)], 0)), value.eq(0)]
            with m.Switch(position):
                for word in (word for word in words if word // _GROUP == group):
                    with m.Case(word % _GROUP):
                        m.d.comb += choice.eq(words[word])
            with m.If(hit):
                m.d.sync += value.eq(choice)
            values.append(value)
        return reduce(or_, values)


def _words(register_map: RegisterMap) -> Iterator[int]:
    """Yield the number of each word of a map."""
    for register in register_map.registers:
        first = register.offset // 4
        yield from range(first, first + register.count * register.bytes // 4)


def _ports(register_map: RegisterMap) -> Iterator[tuple[str, Member]]:
    for register in register_map.registers:
        for field in register.fields:
            name = register.port(field)
            ports = []
            if register.access is Access.READ_ONLY:
                ports = [(name, In(field.bits))]
            elif register.access is not Access.CONSTANT:
                ports = [(name, Out(field.bits, init=field.reset))]
            if register.access is Access.WRITE_ONE_TO_CLEAR:
                ports.append((f"{name}_set", In(field.bits)))
            for port, member in ports:
                yield port, member if register.count == 1 else member.array(register.count)
