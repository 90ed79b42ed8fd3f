"""Provide a memory at an AXI4 bus in Amaranth's simulator, which stalls at random and checks the protocol."""

from __future__ import annotations

import random
from collections.abc import Set
from typing import Any, Literal

__all__ = ["AxiMemory", "WriteOrder"]

# When addresses and data of writes are taken: each at any time; data after its address; neither before both are offered;
# an address after all its data. AXI allows a subordinate all of these (ARM IHI 0022, A3.3.1).
WriteOrder = Literal["any", "address first", "together", "data first"]


class AxiMemory:
    """Answer bursts from an array of bytes."""

    def __init__(
        self,
        bus: Any,
        *,
        memory: bytearray,
        data_bytes: int,
        stall: float = 0.0,
        latency: int = 0,
        bad: Set[int] = frozenset(),
        order: WriteOrder = "any",
        seed: int = 0,
    ) -> None:
        """Set the timing: ``bad`` holds addresses of beats that are answered SLVERR; ``latency`` is the cycles before
        a burst's answer.
        """
        self.order = order
        self.bus, self.memory, self.data_bytes = bus, memory, data_bytes
        self.stall, self.latency, self.bad = stall, latency, bad
        self.rng = random.Random(seed)
        self.reads: list[tuple[int, int]] = []
        self.writes: list[tuple[int, int]] = []
        self.outstanding = 0  # bursts under way, maximum so far
        self.now = 0

    def _chance(self) -> bool:
        return self.rng.random() >= self.stall

    def _check(self, address: int, beats: int, size: int, burst: int) -> None:
        last = address + beats * self.data_bytes - 1
        assert (1 << size, burst) == (self.data_bytes, 1), "not whole beats, or not INCR"
        assert address % self.data_bytes == 0, f"{address:#x} is no beat's address"
        assert address // 4096 == last // 4096, f"a burst from {address:#x} to {last:#x} crosses 4 KiB"

    def _beat(self, address: int) -> int:
        start = address % len(self.memory)
        return int.from_bytes(self.memory[start : start + self.data_bytes], "little")

    async def serve_reads(self, ctx: Any) -> None:
        """Serve AR and R as a background process of ``tests.hw.support.bench_streams.run``."""
        bus, offered_beat = self.bus, None
        bursts: list[tuple[int, list[int]]] = []  # due cycle, addresses of beats to answer
        while True:
            ready = self._chance()
            ctx.set(bus.arready, ready)
            if not ctx.get(bus.rvalid) and bursts and bursts[0][0] <= self.now and self._chance():
                address = bursts[0][1][0]
                ctx.set(bus.rdata, self._beat(address))
                ctx.set(bus.rresp, 2 if address in self.bad else 0)
                ctx.set(bus.rlast, len(bursts[0][1]) == 1)
                ctx.set(bus.rvalid, 1)
            names = ("arvalid", "araddr", "arlen", "arsize", "arburst", "rvalid", "rready")
            _, _, valid, *burst, beat_valid, beat_ready = await ctx.tick().sample(
                *(getattr(bus, name) for name in names)
            )
            self.now += 1
            assert offered_beat is None or (valid and burst == offered_beat), "AR changed before it was taken"
            offered_beat = burst if valid and not ready else None
            if beat_valid and beat_ready:
                ctx.set(bus.rvalid, 0)
                bursts[0][1].pop(0)
                if not bursts[0][1]:
                    bursts.pop(0)
            if valid and ready:
                address, beats = burst[0], burst[1] + 1
                self._check(address, beats, burst[2], burst[3])
                self.reads.append((address, beats))
                addresses = [address + n * self.data_bytes for n in range(beats)]
                bursts.append((self.now + self.latency, addresses))
            self.outstanding = max(self.outstanding, len(bursts))

    async def serve_writes(self, ctx: Any) -> None:
        """Serve AW, W and B as a background process of ``tests.hw.support.bench_streams.run``."""
        bus, held_address, held_data = self.bus, None, None
        bursts: list[tuple[int, int]] = []  # address and beats of bursts without their last beat
        beats: list[tuple[int, int, int]] = []  # data, strobes and last of beats without their address
        answers: list[tuple[int, int]] = []  # due cycle, response
        response = 0
        while True:
            address_taken, data_taken = self._write_order(held_address, held_data, bursts, beats)
            address_ready, data_ready = address_taken and self._chance(), data_taken and self._chance()
            ctx.set(bus.awready, address_ready)
            ctx.set(bus.wready, data_ready)
            if not ctx.get(bus.bvalid) and answers and answers[0][0] <= self.now and self._chance():
                ctx.set(bus.bresp, answers.pop(0)[1])
                ctx.set(bus.bvalid, 1)
            names = ("awvalid", "awaddr", "awlen", "awsize", "awburst", "wvalid", "wdata", "wstrb", "wlast", "bready")
            _, _, *samples = await ctx.tick().sample(*(getattr(bus, name) for name in names), bus.bvalid)
            valid, burst, data_valid, data, taken, answer_valid = (
                samples[0],
                samples[1:5],
                samples[5],
                tuple(samples[6:9]),
                samples[9],
                samples[10],
            )
            self.now += 1
            assert held_address is None or (valid and burst == held_address), "AW changed before it was taken"
            assert held_data is None or (data_valid and data == held_data), "W changed before it was taken"
            held_address = burst if valid and not address_ready else None
            held_data = data if data_valid and not data_ready else None
            if answer_valid and taken:
                ctx.set(bus.bvalid, 0)
            if data_valid and data_ready:
                beats.append(data)
            if valid and address_ready:
                self._check(burst[0], burst[1] + 1, burst[2], burst[3])
                self.writes.append((burst[0], burst[1] + 1))
                bursts.append((burst[0], burst[1] + 1))
            while bursts and beats:
                address, beats_left = bursts[0]
                value, strobes, last = beats.pop(0)
                response |= 2 if address in self.bad else 0
                self._store(address, value, strobes)
                assert last == (beats_left == 1), "WLAST is not the last beat"
                bursts[0] = (address + self.data_bytes, beats_left - 1)
                if beats_left == 1:
                    bursts.pop(0)
                    answers.append((self.now + self.latency, response))
                    response = 0
            self.outstanding = max(self.outstanding, len(bursts) + len(answers))

    def _write_order(self, address: Any, data: Any, bursts: Any, beats: Any) -> tuple[bool, bool]:
        """Return whether the order permits to take an address and a beat; ``address`` and ``data`` are those on offer."""
        match self.order:
            case "address first":
                return True, bool(bursts)
            case "together":
                return address is not None and bool(data or beats), bool(bursts or (address and data))
            case "data first":
                return any(last for *_, last in beats), True
        return True, True

    def _store(self, address: int, value: int, strobes: int) -> None:
        for lane in range(self.data_bytes):
            if strobes >> lane & 1:
                self.memory[(address + lane) % len(self.memory)] = value >> 8 * lane & 255
