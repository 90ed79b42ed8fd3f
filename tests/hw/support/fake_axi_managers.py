"""Provide AXI masters in Amaranth's simulator that follow the protocol with random timing."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Reader", "Writer"]


async def _until(ctx: Any, signal: Any, domain: str) -> None:
    accepted = False
    while not accepted:
        _, _, accepted = await ctx.tick(domain).sample(signal)


@dataclass
class Reader:
    """Read bursts, in order, with random stalls.

    Members:
        found, responses: data and response of each beat.
        first_cycle, last_cycle: in which a beat was taken, counted from when ``take`` began.
    """

    bus: Any
    bursts: Sequence[tuple[int, int]]  # address, beats
    stall: float = 0.0
    idle: float = 0.0
    seed: int = 0
    domain: str = "sync"
    found: list[int] = field(default_factory=list)
    responses: list[int] = field(default_factory=list)
    first_cycle: int | None = None
    last_cycle: int = 0

    async def ask(self, ctx: Any) -> None:
        rng = random.Random(self.seed)
        for address, beats in self.bursts:
            while rng.random() < self.idle:
                await ctx.tick(self.domain)
            ctx.set(self.bus.araddr, address)
            ctx.set(self.bus.arlen, beats - 1)
            ctx.set(self.bus.arvalid, 1)
            await _until(ctx, self.bus.arready, self.domain)
            ctx.set(self.bus.arvalid, 0)

    async def take(self, ctx: Any) -> None:
        rng, bus, now = random.Random(~self.seed), self.bus, 0
        beats_left = [beats for _, beats in self.bursts]
        offered_beat = None
        while beats_left:
            ready = rng.random() >= self.stall
            ctx.set(bus.rready, ready)
            _, _, valid, *beat = await ctx.tick(self.domain).sample(bus.rvalid, bus.rdata, bus.rresp, bus.rlast)
            now += 1
            assert offered_beat is None or (valid and beat == offered_beat), "R changed before it was taken"
            offered_beat = beat if valid and not ready else None
            if not (valid and ready):
                continue
            self.first_cycle, self.last_cycle = self.first_cycle or now, now
            self.found.append(beat[0])
            self.responses.append(beat[1])
            beats_left[0] -= 1
            assert beat[2] == (beats_left[0] == 0), "RLAST is not the last beat"
            if beats_left[0] == 0:
                beats_left.pop(0)


@dataclass
class Writer:
    """Write bursts whose data may come long after their address, or before it.

    Members:
        answers: response of each burst.
    """

    bus: Any
    bursts: Sequence[tuple[int, Sequence[tuple[int, int]]]]  # address, (data, strobes) of each beat
    idle: float = 0.0
    stall: float = 0.0  # chance of a stalled response
    seed: int = 0
    domain: str = "sync"
    answers: list[int] = field(default_factory=list)

    async def ask(self, ctx: Any) -> None:
        for address, beats in self.bursts:
            ctx.set(self.bus.awaddr, address)
            ctx.set(self.bus.awlen, len(beats) - 1)
            ctx.set(self.bus.awvalid, 1)
            await _until(ctx, self.bus.awready, self.domain)
            ctx.set(self.bus.awvalid, 0)

    async def give(self, ctx: Any) -> None:
        rng, bus = random.Random(self.seed), self.bus
        for _, beats in self.bursts:
            for number, (data, strobes) in enumerate(beats):
                while rng.random() < self.idle:
                    await ctx.tick(self.domain)
                ctx.set(bus.wdata, data)
                ctx.set(bus.wstrb, strobes)
                ctx.set(bus.wlast, number == len(beats) - 1)
                ctx.set(bus.wvalid, 1)
                await _until(ctx, bus.wready, self.domain)
                ctx.set(bus.wvalid, 0)

    async def answered(self, ctx: Any) -> None:
        rng = random.Random(~self.seed)
        while len(self.answers) < len(self.bursts):
            ready = rng.random() >= self.stall
            ctx.set(self.bus.bready, ready)
            _, _, valid, response = await ctx.tick(self.domain).sample(self.bus.bvalid, self.bus.bresp)
            if valid and ready:
                self.answers.append(response)
        ctx.set(self.bus.bready, 0)
