"""Test the building blocks of pipelines, each against a model in plain integers."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from amaranth.hdl import Const, Module, Signal, Value, signed
from amaranth.lib import stream
from amaranth.lib.wiring import Component, In, Out
from amaranth.sim import Simulator

from edgedec.hw.blocks.pipeline import (
    clamped,
    countdown,
    every,
    first_or_others,
    fork,
    pipeline,
    reduced,
    round_bit,
    saturate,
)
from tests.hw.support.bench_streams import run


def settled(inputs: list[tuple[Signal, int]], outputs: list[Value]) -> list[int]:
    """Return the values of combinational outputs."""
    m, results = Module(), [Signal(value.shape()) for value in outputs]
    m.d.comb += [signal.eq(value) for signal, value in zip(results, outputs, strict=True)]
    found: list[int] = []

    async def bench(ctx: Any) -> None:
        for signal, value in inputs:
            ctx.set(signal, value)
        found.extend(ctx.get(result) for result in results)

    simulator = Simulator(m)
    simulator.add_testbench(bench)
    simulator.run()
    return found


@pytest.mark.parametrize("bits", [2, 3, 4, 6])
def test_saturation_is_symmetric(bits: int) -> None:
    values = [Const(x, signed(6)) for x in range(-32, 32)]
    most = (1 << (bits - 1)) - 1
    assert settled([], [saturate(x, bits) for x in values]) == [max(-most, min(most, x)) for x in range(-32, 32)]


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_a_clamped_value_has_one_bit_more_than_a_code_above_the_rounding_bit(bits: int) -> None:
    values = [Const(x, signed(8)) for x in range(-128, 128)]
    most = 1 << (bits + 1)
    expected = [max(-most, min(most - 1, x)) for x in range(-128, 128)]
    assert settled([], [clamped(x, bits) for x in values]) == expected


def test_the_bit_that_rounds_is_the_highest_one_dropped() -> None:
    cases = [(x, shift) for x in range(32) for shift in range(6)]
    found = settled([], [round_bit(Const(x, 5), Const(shift, 3)) for x, shift in cases])
    assert found == [(2 * x >> shift) & 1 for x, shift in cases]


def test_every_is_true_without_conditions_and_else_their_conjunction() -> None:
    a, b = Signal(), Signal()
    for x in range(2):
        for y in range(2):
            assert settled([(a, x), (b, y)], [every([]), every([a]), every([a, b])]) == [1, x, x & y]


class Built(Component):
    """A component with ports of eight bits, whose contents are given."""

    def __init__(self, build: Callable[[Module, Any], None], **ports: Any) -> None:
        super().__init__(ports or {"input": In(stream.Signature(8)), "output": Out(stream.Signature(8))})
        self._build = build

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        self._build(m, self)
        return m


@pytest.mark.parametrize("stages", [1, 3])
@pytest.mark.parametrize(("idle", "stall"), [(0.0, 0.0), (0.4, 0.6)])
def test_a_pipeline_stalls_as_one_and_loses_nothing(stages: int, idle: float, stall: float) -> None:
    def build(m: Module, component: Any) -> None:
        enable, _ = pipeline(m, component.output, component.input.valid, stages)
        value = component.input.payload
        for stage in range(stages):
            register = Signal(8, name=f"stage_{stage}")
            with m.If(enable):
                m.d.sync += register.eq(value)
            value = register
        m.d.comb += [component.input.ready.eq(enable), component.output.payload.eq(value)]

    items = list(range(40))
    cycles: dict[str, list[int]] = {}
    outputs = run(Built(build), {"input": items}, {"output": 40}, idle=idle, stall=stall, cycles=cycles)
    assert outputs["output"] == items
    if not idle:
        assert cycles["output"] == [cycle + stages for cycle in cycles["input"]]


def test_a_fork_gives_each_sink_every_item_once() -> None:
    def build(m: Module, component: Any) -> None:
        fork(m, component.input, [component.one, component.two])

    ports = {name: Out(stream.Signature(8)) for name in ("one", "two")}
    items = list(range(60))
    component = Built(build, input=In(stream.Signature(8)), **ports)
    outputs = run(component, {"input": items}, {"one": 60, "two": 60}, idle=0.2, stall=0.5)
    assert outputs == {"one": items, "two": items}


def shared() -> Component:
    """Return a component whose input goes to ``one`` when that is ready, and else to ``two``."""

    def build(m: Module, component: Any) -> None:
        source = first_or_others(m, component.one, component.two, "shared", "One or two is ready")
        m.d.comb += [
            source.payload.eq(component.input.payload),
            source.valid.eq(component.input.valid),
            component.input.ready.eq(source.ready),
        ]

    ports = {name: Out(stream.Signature(8)) for name in ("one", "two")}
    return Built(build, input=In(stream.Signature(8)), **ports)


@pytest.mark.parametrize("valid", [0, 1])
@pytest.mark.parametrize(("one", "two"), [(0, 0), (1, 0), (0, 1)])
def test_the_first_takes_what_it_is_ready_for_and_the_other_the_rest(valid: int, one: int, two: int) -> None:
    component: Any = shared()

    async def bench(ctx: Any) -> None:
        for port, value in ((component.input.valid, valid), (component.one.ready, one), (component.two.ready, two)):
            ctx.set(port, value)
        ctx.set(component.input.payload, 77)
        assert [ctx.get(component.one.valid), ctx.get(component.two.valid)] == [valid, valid and not one]
        assert ctx.get(component.input.ready) == (one or two)
        assert ctx.get(component.one.payload) == ctx.get(component.two.payload) == 77

    simulator = Simulator(component)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()


def test_two_takers_at_once_break_the_contract() -> None:
    component: Any = shared()

    async def bench(ctx: Any) -> None:
        ctx.set(component.one.ready, 1)
        ctx.set(component.two.ready, 1)
        await ctx.tick().repeat(2)

    simulator = Simulator(component)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    with pytest.raises(AssertionError, match="One or two is ready"):
        simulator.run()


@pytest.mark.parametrize("count", [1, 2, 3, 7, 0])
def test_a_countdown_is_high_at_the_last_step(count: int) -> None:
    """Steps come at random, and a second count is loaded at the last step of the first; a count of 0 means 2**3."""
    m, load, step, value = Module(), Signal(), Signal(), Signal(3)
    last = countdown(m, "steps", load=load, count=value, step=step)
    rng, steps = random.Random(count), count or 8

    async def bench(ctx: Any) -> None:
        ctx.set(value, count)
        ctx.set(load, 1)
        await ctx.tick()
        for _ in range(2):
            left = steps
            while left:
                made = rng.random() < 0.6
                ctx.set(step, made)
                ctx.set(load, made and left == 1)
                assert ctx.get(last) == (left == 1)
                await ctx.tick()
                left -= made
        assert ctx.get(last) == (steps == 1)

    simulator = Simulator(m)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()


@pytest.mark.parametrize("count", [2, 5, 8])
def test_all_items_are_combined_in_as_many_levels_as_are_needed(count: int) -> None:
    m, items = Module(), [Signal(8, init=3 * i + 1) for i in range(count)]
    total, levels = reduced(m, Const(1), items, lambda a, b: (a + b)[:8])
    assert levels == (count - 1).bit_length()

    async def bench(ctx: Any) -> None:
        await ctx.tick().repeat(levels)
        assert ctx.get(total) == sum(3 * i + 1 for i in range(count))

    simulator = Simulator(m)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
