"""Drive a component through its stream ports in Amaranth's simulator, with gaps and stalls, and check the protocol."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from amaranth.hdl import Const, Elaboratable, Value
from amaranth.lib import data
from amaranth.sim import Simulator

from edgedec.sim.verify.axi_monitor import RULES, Watched, broken

__all__ = ["checked_simulator", "plain", "run"]


def checked_simulator(
    component: Any, *, domains: Mapping[str, str] | None = None, prepare: Callable[[Any], Any] = lambda design: design
) -> Simulator:
    """Return a simulator without clocks that fails if a rule of AXI is broken at a port of the component.

    Args:
        domains: clock domains of the ports that are not in "sync", by name.
        prepare: returns what is simulated, given the component with its monitors.
    """
    watched = Watched(component, domains=domains)
    simulator = Simulator(prepare(watched))
    by_domain: dict[str, int] = {}
    for number, name in enumerate(watched.names):
        domain = (domains or {}).get(name, "sync")
        by_domain[domain] = by_domain.get(domain, 0) | ((1 << len(RULES)) - 1) << number * len(RULES)
    for domain, mask in by_domain.items():
        simulator.add_testbench(partial(_rules_hold, watched=watched, domain=domain, mask=mask), background=True)
    return simulator


async def _rules_hold(ctx: Any, *, watched: Watched, domain: str, mask: int) -> None:
    while True:
        _, _, violations = await ctx.tick(domain).sample(watched.violations)
        assert not violations & mask, broken(violations & mask, watched.names)


def plain(value: Any) -> Any:
    """Return a payload as ints, lists and dicts."""
    if not isinstance(value, data.Const):
        return value
    layout = value.shape()
    if isinstance(layout, data.ArrayLayout):
        return [plain(value[i]) for i in range(layout.length)]
    return {name: plain(value[name]) for name, _ in layout}


def _chance(of: float | Mapping[str, float], name: str) -> float:
    return of.get(name, 0.0) if isinstance(of, Mapping) else of


def run(
    component: Elaboratable,
    inputs: Mapping[str, Sequence[Any]],
    outputs: Mapping[str, int],
    *,
    idle: float | Mapping[str, float] = 0.0,
    stall: float | Mapping[str, float] = 0.0,
    limit: int = 20_000,
    seed: int = 0,
    cycles: dict[str, list[int]] | None = None,
    settings: Mapping[str, Any] | None = None,
    background: Sequence[Callable[[Any], Awaitable[None]]] = (),
) -> dict[str, list[Any]]:
    """Feed all inputs at once, each with its items, and collect ``outputs[name]`` items of each output.

    Args:
        inputs: stream port -> payloads (ints, lists, dicts by the payload's layout).
        outputs: stream port -> number of items to wait for.
        idle, stall: chance of a cycle without an offered item, and of one without a ready sink; of all ports or by name.
        limit: cycles after which the run has failed.
        cycles: filled with the cycle in which each item of each port was handed over.
        settings: plain input port -> its value from before the first clock edge on.
        background: processes that run beside, a bus model for instance; each is called with the simulator's context.

    Raises:
        AssertionError: nothing after ``limit`` cycles; a payload changed, or vanished, before it was taken; valid follows
            ready within a cycle; an item came after the last one expected; a rule of AXI is broken at a port.
    """
    collected: dict[str, list[Any]] = {name: [] for name in outputs}
    times = {} if cycles is None else cycles
    times.update({name: [] for name in (*inputs, *outputs)})
    now = 0

    async def clock(ctx: Any) -> None:
        nonlocal now
        for name, value in (settings or {}).items():
            ctx.set(getattr(component, name), value)
        async for _ in ctx.tick():
            now += 1
            counts = {name: f"{len(collected[name])} of {count}" for name, count in outputs.items()}
            assert now < limit, f"no end after {limit} cycles: {counts}"

    async def feed(ctx: Any, name: str, items: Sequence[Any]) -> None:
        port, rng, gap = getattr(component, name), random.Random(f"{seed} {name}"), _chance(idle, name)
        for item in items:
            while rng.random() < gap:
                await ctx.tick()
            ctx.set(port.payload, item)
            ctx.set(port.valid, 1)
            await ctx.tick().until(port.ready)
            times[name].append(now)
            ctx.set(port.valid, 0)

    async def collect(ctx: Any, name: str, count: int) -> None:
        port, rng, lazy = getattr(component, name), random.Random(f"{name} {seed}"), _chance(stall, name)
        offered_bits: int | None = None  # payload that was offered and not taken
        while True:
            always = isinstance(port.ready, Const)  # a port that cannot be stalled
            ready = always or rng.random() >= lazy
            before = ctx.get(port.valid)
            if not always:
                ctx.set(port.ready, ready)
            assert ctx.get(port.valid) == before, f"{name}.valid follows {name}.ready"
            _, _, valid, bits, payload = await ctx.tick().sample(port.valid, Value.cast(port.payload), port.payload)
            assert offered_bits is None or (valid and bits == offered_bits), (
                f"{name}: an item changed before it was taken"
            )
            offered_bits = bits if valid and not ready else None
            if valid and ready:
                assert len(collected[name]) < count, f"{name}: more than {count} items"
                collected[name].append(plain(payload))
                times[name].append(now)

    async def wait(ctx: Any) -> None:
        while any(len(collected[name]) < count for name, count in outputs.items()):
            await ctx.tick()
        for _ in range(8):  # a superfluous item would appear now
            await ctx.tick()

    simulator = checked_simulator(component)
    simulator.add_clock(1e-6)
    simulator.add_testbench(clock, background=True)
    for process in background:
        simulator.add_testbench(process, background=True)
    for name, items in inputs.items():
        simulator.add_testbench(partial(feed, name=name, items=items), background=True)
    for name, count in outputs.items():
        simulator.add_testbench(partial(collect, name=name, count=count), background=True)
    simulator.add_testbench(wait)
    simulator.run()
    return collected
