"""Provide the ports of a Zynq-7000's processing system in Amaranth's simulator: an AXI3 manager, and AXI3 memory."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from edgedec.sim.verify.axi_monitor import Watched

__all__ = ["Access", "Manager", "Memory", "run"]

_LONGEST = 16  # beats


@dataclass(kw_only=True)
class Access:
    """A burst of the manager, and its answer.

    Members:
        beats: (data, strobes) of a write; an empty tuple is a read of ``count`` beats.
        wids: WID of each beat; None: the burst's id.
        found, response: data and response of each beat of a read; the response of a write is the only one.
    """

    address: int
    beats: Sequence[tuple[int, int]] = ()
    count: int = 1
    size: int = 2
    burst: int = 1
    lock: int = 0
    identity: int = 0
    wids: Sequence[int] | None = None
    found: list[int] = field(default_factory=list)
    response: list[int] = field(default_factory=list)


async def _taken(ctx: Any, valid: Any, ready: Any) -> None:
    ctx.set(valid, 1)
    accepted = False
    while not accepted:
        _, _, accepted = await ctx.tick().sample(ready)
    ctx.set(valid, 0)


class Manager:
    """Make accesses one after the other, with random delays. The address and the data of a write are offered in either
    order, and neither waits for the other.
    """

    def __init__(self, bus: Any, *, idle: float = 0.3, seed: int = 0) -> None:
        self.bus, self._idle, self._rng = bus, idle, random.Random(seed)

    async def wait(self, ctx: Any) -> None:
        while self._rng.random() < self._idle:
            await ctx.tick()

    def _address(self, ctx: Any, letter: str, access: Access, beats: int) -> None:
        values = {"id": access.identity, "addr": access.address, "len": beats - 1, "size": access.size}
        values |= {"burst": access.burst, "lock": access.lock}
        for name, value in values.items():
            ctx.set(getattr(self.bus, f"a{letter}{name}"), value)

    async def read(self, ctx: Any, access: Access) -> Access:
        bus = self.bus
        await self.wait(ctx)
        self._address(ctx, "r", access, access.count)
        await _taken(ctx, bus.arvalid, bus.arready)
        offered = None
        while len(access.found) < access.count:
            ready = self._rng.random() >= self._idle
            ctx.set(bus.rready, ready)
            sampled = await ctx.tick().sample(bus.rvalid, bus.rid, bus.rdata, bus.rresp, bus.rlast)
            valid, *beat = sampled[2:]
            assert offered is None or (valid and beat == offered), "R changed before it was taken"
            offered = beat if valid and not ready else None
            if valid and ready:
                assert beat[0] == access.identity, "RID is not the burst's"
                access.found.append(beat[1])
                access.response.append(beat[2])
                assert beat[3] == (len(access.found) == access.count), "RLAST is not the last beat"
        ctx.set(bus.rready, 0)
        return access

    async def write(self, ctx: Any, access: Access) -> Access:
        bus, offered = self.bus, None
        await self.wait(ctx)
        self._address(ctx, "w", access, len(access.beats))
        delay = self._rng.choice((-4, 0, 0, 4))  # cycles by which the data are offered later than the address
        address_left, next_beat, cycle = True, 0, 0
        while not access.response:
            ready = self._rng.random() >= self._idle
            give_address, give_data = address_left and cycle >= -delay, next_beat < len(access.beats) and cycle >= delay
            ctx.set(bus.awvalid, give_address)
            ctx.set(bus.wvalid, give_data)
            ctx.set(bus.bready, ready)
            if give_data:
                data, strobes = access.beats[next_beat]
                wid = access.identity if access.wids is None else access.wids[next_beat]
                for name, value in (("wdata", data), ("wstrb", strobes), ("wid", wid)):
                    ctx.set(getattr(bus, name), value)
                ctx.set(bus.wlast, next_beat == len(access.beats) - 1)
            sampled = await ctx.tick().sample(bus.awready, bus.wready, bus.bvalid, bus.bid, bus.bresp)
            address_taken, data_taken, valid, *answer = sampled[2:]
            cycle += 1
            assert offered is None or (valid and answer == offered), "B changed before it was taken"
            offered = answer if valid and not ready else None
            if valid:
                assert (address_left, next_beat) == (False, len(access.beats)), "B before all beats"
                assert answer[0] == access.identity, "BID is not the burst's"
            if valid and ready:
                access.response.append(answer[1])
            address_left &= not (give_address and address_taken)
            next_beat += bool(give_data and data_taken)
        for name in ("awvalid", "wvalid", "bready"):
            ctx.set(getattr(bus, name), 0)
        return access

    async def read_word(self, ctx: Any, address: int) -> int:
        access = await self.read(ctx, Access(address=address, identity=self._rng.getrandbits(12)))
        assert access.response == [0], f"{address:#x} answers {access.response}"
        return access.found[0]

    async def write_word(self, ctx: Any, address: int, value: int) -> None:
        access = Access(address=address, beats=[(value, 15)], identity=self._rng.getrandbits(12))
        await self.write(ctx, access)
        assert access.response == [0], f"{address:#x} answers {access.response}"


class Memory:
    """Answer the bursts at one AXI3 port from an array of bytes that begins at ``base``, and check the protocol. Other
    addresses are answered DECERR. The address of a write may be taken before or after its data.
    """

    def __init__(
        self, bus: Any, contents: bytearray, *, base: int = 0, port_bytes: int = 8, stall: float = 0.3, seed: int = 0
    ) -> None:
        self.bus, self.contents, self.base, self.port_bytes = bus, contents, base, port_bytes
        self._stall, self._rng = stall, random.Random(seed)
        self.reads: list[tuple[int, int]] = []
        self.writes: list[tuple[int, int]] = []

    def _chance(self) -> bool:
        return self._rng.random() >= self._stall

    def _check(self, identity: int, address: int, beats: int, size: int, burst: int, lock: int) -> None:
        assert beats <= _LONGEST
        assert (1 << size, burst, lock, identity) == (self.port_bytes, 1, 0, 0), "not whole beats, INCR, normal, id 0"
        assert address % self.port_bytes == 0
        assert address // 4096 == (address + beats * self.port_bytes - 1) // 4096, "a burst crosses 4 KiB"

    def _place(self, address: int) -> int | None:
        offset = address - self.base
        return offset if 0 <= offset <= len(self.contents) - self.port_bytes else None

    async def serve_reads(self, ctx: Any) -> None:
        bus, queue, held = self.bus, list[tuple[int, bool]](), None
        names = ("arid", "araddr", "arlen", "arsize", "arburst", "arlock")
        while True:
            ready = self._chance()
            ctx.set(bus.arready, ready)
            if not ctx.get(bus.rvalid) and queue and self._chance():
                address, last = queue[0]
                place = self._place(address)
                data = b"" if place is None else self.contents[place : place + self.port_bytes]
                ctx.set(bus.rdata, int.from_bytes(data, "little"))
                ctx.set(bus.rresp, 3 if place is None else 0)
                ctx.set(bus.rlast, last)
                ctx.set(bus.rvalid, 1)
            sampled = await ctx.tick().sample(
                bus.rvalid, bus.rready, bus.arvalid, *(getattr(bus, name) for name in names)
            )
            beat_valid, beat_ready, valid, *fields = sampled[2:]
            assert held is None or (valid and fields == held), "AR changed before it was taken"
            held = fields if valid and not ready else None
            if beat_valid and beat_ready:
                queue.pop(0)
                ctx.set(bus.rvalid, 0)
            if valid and ready:
                identity, address, length, size, burst, lock = fields
                self._check(identity, address, length + 1, size, burst, lock)
                self.reads.append((address, length + 1))
                queue += [(address + n * self.port_bytes, n == length) for n in range(length + 1)]

    async def serve_writes(self, ctx: Any) -> None:
        bus, addresses, beats, answers = self.bus, list[tuple[int, int]](), list[Any](), list[int]()
        held_address = held_data = None
        names = ("awid", "awaddr", "awlen", "awsize", "awburst", "awlock")
        while True:
            # A subordinate may wait with either channel for the other one.
            address_ready, data_ready = self._chance(), self._chance()
            ctx.set(bus.awready, address_ready)
            ctx.set(bus.wready, data_ready)
            if not ctx.get(bus.bvalid) and answers and self._chance():
                ctx.set(bus.bresp, answers.pop(0))
                ctx.set(bus.bvalid, 1)
            sampled = await ctx.tick().sample(
                *(bus.bvalid, bus.bready, bus.wvalid, bus.wid, bus.wdata, bus.wstrb, bus.wlast, bus.awvalid),
                *(getattr(bus, name) for name in names),
            )
            answer_valid, answer_ready, data_valid, *rest = sampled[2:]
            data, valid, fields = rest[:4], rest[4], rest[5:]
            assert held_address is None or (valid and fields == held_address), "AW changed before it was taken"
            assert held_data is None or (data_valid and data == held_data), "W changed before it was taken"
            held_address = fields if valid and not address_ready else None
            held_data = data if data_valid and not data_ready else None
            if answer_valid and answer_ready:
                ctx.set(bus.bvalid, 0)
            if data_valid and data_ready:
                assert data[0] == 0, "WID is not the burst's"
                beats.append(data)
            if valid and address_ready:
                identity, address, length, size, burst, lock = fields
                self._check(identity, address, length + 1, size, burst, lock)
                addresses.append((address, length + 1))
                self.writes.append((address, length + 1))
            while addresses and len(beats) >= addresses[0][1]:
                address, count = addresses.pop(0)
                answers.append(self._store(address, beats[:count]))
                del beats[:count]

    def _store(self, address: int, beats: Sequence[Any]) -> int:
        response = 0
        for number, (_, value, strobes, last) in enumerate(beats):
            assert last == (number == len(beats) - 1), "WLAST is not the last beat"
            place = self._place(address + number * self.port_bytes)
            for lane in range(self.port_bytes):
                if strobes >> lane & 1 and place is not None:
                    self.contents[place + lane] = value >> 8 * lane & 255
            response |= 3 if place is None else 0
        return response


def run(dut: Any, bench: Any, *background: Any, legal: bool = True, limit: int = 60_000) -> None:
    """Run ``bench`` to its end, with a monitor at each AXI bus of the component and, in a system, between its parts.

    Args:
        legal: False if the bench breaks rules of AXI on purpose: there are no monitors.

    Raises:
        AssertionError: it has not ended after ``limit`` cycles, or a check failed.
    """
    from amaranth.sim import Simulator

    simulator = Simulator(Watched(dut, protocol="AXI3", contracts=True) if legal else dut)
    simulator.add_clock(1e-6)
    ended = False

    async def watch(ctx: Any) -> None:
        for _ in range(limit):
            await ctx.tick()
        assert ended, f"no end after {limit} cycles"

    async def whole(ctx: Any) -> None:
        nonlocal ended
        await bench(ctx)
        ended = True

    for process in (watch, *background):
        simulator.add_testbench(process, background=True)
    simulator.add_testbench(whole)
    simulator.run()
