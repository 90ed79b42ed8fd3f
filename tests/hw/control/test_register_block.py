"""Compare simulated reads and writes of every register with the table."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from edgedec.hw.control.register_block import RegisterBlock
from edgedec.hw.isa.register_map import VALUE, Access, Field, Register, RegisterMap
from edgedec.hw.isa.registers import REGISTER_MAP
from tests.hw.support.bench_streams import checked_simulator

Bench = Callable[["Host"], Awaitable[None]]


class Host:
    """Act as an AXI4-Lite manager in Amaranth's simulator."""

    def __init__(self, ctx: Any, component: RegisterBlock, rng: random.Random) -> None:
        self.ctx, self.component, self.bus, self.rng = ctx, component, component.bus, rng
        self.pulses: dict[str, int] = {}  # port -> cycles in which it was high

    def port(self, register: Register, field: Field, index: int, suffix: str = "") -> Any:
        port = getattr(self.component, register.port(field) + suffix)
        return port[index] if register.count > 1 else port

    async def tick(self) -> None:
        for register in REGISTER_MAP.registers:
            if register.access is Access.PULSE:
                for field in register.fields:
                    name = register.port(field)
                    self.pulses[name] = self.pulses.get(name, 0) + self.ctx.get(getattr(self.component, name))
        await self.ctx.tick()

    async def write(self, offset: int, value: int, strobes: int = 15) -> None:
        """Send address and data in either order, and take B late."""
        ctx, bus = self.ctx, self.bus
        late = {channel: self.rng.randrange(3) for channel in ("aw", "w", "b")}
        ctx.set(bus.awaddr, offset)
        ctx.set(bus.wdata, value)
        ctx.set(bus.wstrb, strobes)
        pending = {"aw", "w"}
        for cycle in range(40):
            for channel in ("aw", "w"):
                ctx.set(getattr(bus, f"{channel}valid"), channel in pending and cycle >= late[channel])
            ctx.set(bus.bready, cycle >= 4 + late["b"])
            accepted_channels = {
                channel
                for channel in pending
                if ctx.get(getattr(bus, f"{channel}valid")) and ctx.get(getattr(bus, f"{channel}ready"))
            }
            has_response = ctx.get(bus.bvalid) and ctx.get(bus.bready)
            assert not (has_response and pending), "response before the request"
            response = ctx.get(bus.bresp)
            await self.tick()
            pending -= accepted_channels
            if has_response:
                assert response == 0
                ctx.set(bus.bready, 0)
                return
        raise AssertionError("no answer to a write")

    async def read(self, offset: int) -> int:
        ctx, bus = self.ctx, self.bus
        late = self.rng.randrange(4)
        waits = self.rng.random() < 0.5  # AXI lets a manager be ready only once R is valid
        ctx.set(bus.araddr, offset)
        ctx.set(bus.arvalid, 1)
        for cycle in range(40):
            ctx.set(bus.rready, cycle >= late and (not waits or ctx.get(bus.rvalid)))
            address_accepted = ctx.get(bus.arvalid) and ctx.get(bus.arready)
            data_valid, value = ctx.get(bus.rvalid) and ctx.get(bus.rready), ctx.get(bus.rdata)
            assert ctx.get(bus.rresp) == 0
            await self.tick()
            if address_accepted:
                ctx.set(bus.arvalid, 0)
            if data_valid:
                ctx.set(bus.rready, 0)
                return int(value)
        raise AssertionError("no answer to a read")

    async def read_register(self, register: Register, index: int = 0) -> int:
        offset = register.offset + index * register.bytes
        words = [await self.read(offset + 4 * word) for word in range(register.bytes // 4)]
        return sum(word << 32 * n for n, word in enumerate(words))


def simulate(bench: Bench, register_map: RegisterMap = REGISTER_MAP) -> None:
    component = RegisterBlock(register_map=register_map)

    async def drive(ctx: Any) -> None:
        await bench(Host(ctx, component, random.Random(0)))

    simulator = checked_simulator(component)
    simulator.add_clock(1e-6)
    simulator.add_testbench(drive)
    simulator.run()


def each() -> list[tuple[Register, int]]:
    return [(register, index) for register in REGISTER_MAP.registers for index in range(register.count)]


@pytest.mark.rtl
def test_reset_values_and_inputs_are_read() -> None:
    async def bench(host: Host) -> None:
        for register, index in each():
            expected = 0 if register.access is Access.READ_ONLY else register.reset
            if register.access is Access.READ_ONLY:
                for field, lsb in register.positions():
                    value = host.rng.getrandbits(field.bits)
                    host.ctx.set(host.port(register, field, index), value)
                    expected |= value << lsb
            assert await host.read_register(register, index) == expected, register.name

    simulate(bench)


@pytest.mark.rtl
def test_writes_reach_their_field_only() -> None:
    async def bench(host: Host) -> None:
        expected = {(register.name, index): 0 for register, index in each()}
        for register, index in each():
            if register.access is Access.CONSTANT:
                expected[register.name, index] = register.reset
        for register, index in [*each(), *each()]:
            value = host.rng.getrandbits(8 * register.bytes)
            for word in range(register.bytes // 4):
                offset = register.offset + index * register.bytes + 4 * word
                await host.write(offset, value >> 32 * word & 0xFFFFFFFF)
            if register.access is Access.READ_WRITE:
                expected[register.name, index] = value & register.mask
                for field, lsb in register.positions():
                    stored = host.ctx.get(host.port(register, field, index))
                    assert stored == value >> lsb & ((1 << field.bits) - 1)
        for register, index in each():
            assert await host.read_register(register, index) == expected[register.name, index], register.name

    simulate(bench)


@pytest.mark.rtl
def test_bytes_without_strobe_are_unchanged() -> None:
    async def bench(host: Host) -> None:
        register = REGISTER_MAP["program_address"]
        for strobes in range(16):
            before = await host.read_register(register)
            value = host.rng.getrandbits(32)
            await host.write(register.offset + 4, value, strobes)
            mask = sum(255 << 32 + 8 * lane for lane in range(4) if strobes >> lane & 1)
            assert await host.read_register(register) == before & ~mask | value << 32 & mask

    simulate(bench)


@pytest.mark.rtl
def test_pulses_last_one_cycle_and_read_as_zero() -> None:
    async def bench(host: Host) -> None:
        control = REGISTER_MAP["control"]
        for bits in range(1 << len(control.fields)):
            host.pulses.clear()
            await host.write(control.offset, bits)
            for _ in range(3):
                await host.tick()
            counts = [host.pulses[control.port(field)] for field in control.fields]
            assert counts == [bits >> lsb & 1 for _, lsb in control.positions()]
            assert await host.read(control.offset) == 0
        host.pulses.clear()
        await host.write(control.offset, 0xFFFFFFFF, strobes=0b1110)
        await host.tick()
        assert not any(host.pulses.values())

    simulate(bench)


@pytest.mark.rtl
def test_interrupts_are_set_by_hardware_and_cleared_by_ones() -> None:
    async def bench(host: Host) -> None:
        ctx, component = host.ctx, host.component
        status, enable = REGISTER_MAP["interrupt_status"].offset, REGISTER_MAP["interrupt_enable"].offset
        ctx.set(component.interrupt_status_done_set, 1)
        await host.tick()
        ctx.set(component.interrupt_status_done_set, 0)
        assert await host.read(status) == 1
        assert not ctx.get(component.interrupt)
        await host.write(enable, 2)
        assert not ctx.get(component.interrupt)
        await host.write(enable, 3)
        assert ctx.get(component.interrupt)
        await host.write(status, 6)  # other bits
        await host.write(status, 1, strobes=0b1110)  # another byte
        await host.write(status, 0)
        assert await host.read(status) == 1
        await host.write(status, 1)
        assert await host.read(status) == 0
        assert not ctx.get(component.interrupt)
        ctx.set(component.interrupt_status_committed_set, 1)  # an event wins over a clear in the same cycle
        await host.write(status, 7)
        assert ctx.get(component.interrupt_status_committed)
        ctx.set(component.interrupt_status_committed_set, 0)
        assert await host.read(status) == 4
        assert not ctx.get(component.interrupt)  # not enabled

    simulate(bench)


@pytest.mark.rtl
def test_addresses_outside_of_the_table_are_harmless() -> None:
    async def bench(host: Host) -> None:
        known_offsets = {
            register.offset + index * register.bytes + 4 * word
            for register, index in each()
            for word in range(register.bytes // 4)
        }
        free = [offset for offset in range(0, 256, 4) if offset not in known_offsets] + [0x140, 0x400, 0x820, 0xFFC]
        for offset in free:
            await host.write(offset, 0xFFFFFFFF)
            assert await host.read(offset) == 0
        for register, index in each():
            if register.access is Access.READ_WRITE:
                assert await host.read_register(register, index) == register.reset
        assert not any(host.pulses.values())

    simulate(bench)


def test_a_map_with_resets_and_odd_widths_works() -> None:
    odd = Register(
        name="odd",
        offset=8,
        access=Access.READ_WRITE,
        fields=(
            Field(name="a", bits=31, reset=5, description="Across the words' border with b."),
            Field(name="b", bits=7, reset=100, description="On both sides of it."),
        ),
        description="Two words.",
    )
    entry = Register(
        name="one",
        offset=4,
        access=Access.CONSTANT,
        fields=(Field(name=VALUE, bits=3, reset=6, description="Six."),),
        description="A constant.",
    )
    register_map = RegisterMap(name="odd_map", registers=(entry, odd), description="For a test.")

    async def bench(host: Host) -> None:
        assert await host.read_register(odd) == 5 | 100 << 31
        assert await host.read_register(entry) == 6
        await host.write(12, 0x3F)
        assert host.ctx.get(host.component.odd_b) == 0x7E
        assert host.ctx.get(host.component.odd_a) == 5

    async def bench_without_pulses(host: Host) -> None:
        host.tick = host.ctx.tick  # type: ignore[method-assign]
        await bench(host)

    simulate(bench_without_pulses, register_map)


def test_constructor_refuses_too_few_address_bits() -> None:
    with pytest.raises(ValueError, match="address_bits must be an integer from 9 to 64, not 7"):
        RegisterBlock(register_map=REGISTER_MAP, address_bits=7)
