"""Test the queue of passes and commits, by itself and before a command processor."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import pytest
from amaranth.sim import Simulator

from edgedec.hw.config import PASSES_AHEAD
from edgedec.hw.control.pass_queue import ADDRESSES, PassQueue
from edgedec.hw.isa.instructions import Destination, Instruction, Opcode
from edgedec.hw.isa.registers import Cause
from edgedec.hw.isa.striping import block_bytes
from tests.hw.support.bench_command_processor import CONFIGS, Bench, Pass, as_commands, program, walk

CONFIG = CONFIGS[16]
BLOCK = block_bytes(CONFIG.ports)
WIDTHS = {"program_bytes": 32, "slots": 4, "committed": 20, "logits": 2, "accepted": 8}
STOP = Instruction(Opcode.STOP, {})
LOAD = Instruction(Opcode.LOAD, {"elements": 3})
READ = Instruction(Opcode.READ, {"destination": Destination.GAINS, "beats": 2})


def test_operations_leave_in_order_with_what_the_registers_held_at_their_doorbells() -> None:
    """Compare random traffic, with overruns, addresses out of place and clears, with a list in Python."""
    queue, rng = PassQueue(CONFIG), random.Random(7)
    seen = {"overrun": 0, "misplaced": 0, "both": 0, "clear": 0, "taken": 0}

    async def bench(ctx: Any) -> None:
        waiting, now, overrun = deque[dict[str, Any]](), dict[str, Any](), 0
        for cycle in range(1500):
            addresses = {name: rng.randrange(1 << 40) // BLOCK * BLOCK for name in ADDRESSES}
            if rng.random() < 0.2:
                addresses[rng.choice(ADDRESSES)] ^= rng.choice([1 << 45, 1 << 63, BLOCK >> 1, 1])
            values = {name: rng.getrandbits(bits) for name, bits in WIDTHS.items()}
            positions, masks = [rng.getrandbits(20) for _ in range(8)], [rng.getrandbits(8) for _ in range(8)]
            start, commit = rng.random() < 0.5, rng.random() < 0.3
            # Long stretches in which little is taken, so that the queue becomes full, and others in which it becomes empty.
            ready, clear = rng.random() < (0.1, 0.9)[cycle // 100 % 2], rng.random() < 0.01
            for name, value in addresses.items():
                ctx.set(getattr(queue, f"{name}_address"), value)
            for name, value in values.items():
                ctx.set(getattr(queue, name), value)
            for slot in range(8):
                ctx.set(queue.position[slot], positions[slot])
                ctx.set(queue.mask[slot], masks[slot])
            for port, value in ((queue.start, start), (queue.commit, commit), (queue.clear, clear)):
                ctx.set(port, value)
            ctx.set(queue.output.ready, ready)
            assert ctx.get(queue.waiting) == len(waiting)
            assert ctx.get(queue.overrun) == overrun
            assert ctx.get(queue.output.valid) == bool(waiting)
            for port, expected in ((queue.output.payload, waiting[0] if waiting else {}), (queue.now, now)):
                for name, value in expected.items():
                    found = ctx.get(port[name])
                    assert (list(found) if isinstance(value, list) else found) == value, (cycle, name)
            rung, full = (start or commit) and not clear, len(waiting) == PASSES_AHEAD
            overrun = 0 if clear else overrun | (rung and full)
            seen["overrun"] += rung and full
            if waiting and ready:
                now = waiting.popleft()
                seen["taken"] += 1
            if rung and not full:
                outside = [addresses[name] % BLOCK or addresses[name] >> 40 for name in ADDRESSES]
                seen["misplaced"] += any(outside)
                seen["both"] += start and commit
                waiting.append(
                    {
                        **{
                            name: addresses[name] // CONFIG.beat_bytes % ((1 << 40) // CONFIG.beat_bytes)
                            for name in ADDRESSES
                        },
                        "misplaced": sum(bool(one) << at for at, one in enumerate(outside)),
                        "bytes": values["program_bytes"],
                        **{name: value for name, value in values.items() if name != "program_bytes"},
                        "positions": positions[: CONFIG.slots],
                        "mask": [mask % (1 << CONFIG.slots) for mask in masks[: CONFIG.slots]],
                        "commits": not start,
                    }
                )
            if clear:
                waiting.clear()
                seen["clear"] += 1
            await ctx.tick()

    simulator = Simulator(queue)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    assert min(seen.values()) > 5, seen


@pytest.mark.rtl
def test_operations_run_one_after_another() -> None:
    raw = program(CONFIG, [LOAD, READ, LOAD, STOP])
    items = [Pass(raw=raw, slots=1 + number % 2, committed=number, commits=number % 3 == 2) for number in range(9)]

    async def script(ctx: Any, bench: Bench) -> None:
        for item in items:
            await bench.ring(ctx, item)
        assert ctx.get(bench.control.waiting) == 8
        assert ctx.get(bench.control.running & bench.control.busy)
        busy = 0
        while ctx.get(bench.control.ended) < 9:
            assert ctx.get(bench.control.busy), "a host would take the accelerator for idle between two passes"
            busy += not ctx.get(bench.control.running)
            assert bench.now < 3000
            await ctx.tick()
        assert busy, "the cycle between two passes was never seen"
        await bench.rest(ctx)
        assert ctx.get(bench.control.done)
        assert not ctx.get(bench.control.error)

    bench = Bench(config=CONFIG).run(script)
    walks = [walk(CONFIG, [LOAD, READ, LOAD, STOP], item) for item in items]
    assert bench.commands == as_commands([one for _, commands in walks for one in commands])
    assert len(bench.pulses["done_set"]) == sum(not item.commits for item in items)
    assert len(bench.pulses["committed_set"]) == sum(item.commits for item in items)


@pytest.mark.rtl
def test_a_doorbell_that_finds_the_queue_full_ends_what_runs_and_forgets_what_waits() -> None:
    item = Pass(raw=program(CONFIG, [LOAD, STOP]))

    async def script(ctx: Any, bench: Bench) -> None:
        control = bench.control
        for _ in range(PASSES_AHEAD + 1):  # one runs, and the others fill the queue
            await bench.ring(ctx, item)
        assert ctx.get(control.waiting) == PASSES_AHEAD
        assert not ctx.get(control.error)
        await bench.ring(ctx, item)
        await bench.rest(ctx)
        assert (ctx.get(control.cause), ctx.get(control.waiting)) == (Cause.OVERRUN, 0)
        commands = len(bench.commands)
        await bench.press(ctx, "soft_reset")
        await bench.rest(ctx)
        assert (ctx.get(control.cause), ctx.get(control.ended), ctx.get(control.busy)) == (0, 0, 0)
        bench.stuck = ()
        await bench.once(ctx, item)
        assert (ctx.get(control.ended), len(bench.commands) - commands) == (1, 1)

    bench = Bench(config=CONFIG, stuck=("loads",)).run(script)
    assert len(bench.pulses["error_set"]) == 1


@pytest.mark.rtl
@pytest.mark.parametrize("failing", [0, 3])
def test_an_error_ends_all_operations_that_wait(failing: int) -> None:
    """Check that what ended before the error is counted, and that nothing runs after it."""
    good = program(CONFIG, [LOAD, STOP])

    async def script(ctx: Any, bench: Bench) -> None:
        control = bench.control
        for number in range(6):
            await bench.ring(ctx, Pass(raw=good, slots=0 if number == failing else 1))
        await bench.rest(ctx)
        await ctx.tick().repeat(40)
        assert (ctx.get(control.cause), ctx.get(control.ended), ctx.get(control.waiting)) == (Cause.SLOTS, failing, 0)
        assert len(bench.commands) == failing
        await bench.press(ctx, "soft_reset")
        await bench.rest(ctx)
        assert len(bench.commands) == failing, "an operation that waited has run after the reset"

    Bench(config=CONFIG).run(script)


@pytest.mark.rtl
def test_a_soft_reset_forgets_what_waits() -> None:
    item = Pass(raw=program(CONFIG, [LOAD, LOAD, LOAD, STOP]))

    async def script(ctx: Any, bench: Bench) -> None:
        for _ in range(4):
            await bench.ring(ctx, item)
        await ctx.tick().repeat(40)
        await bench.press(ctx, "soft_reset")
        commands = len(bench.commands)
        await bench.press(ctx, "start")  # ignored meanwhile
        await bench.rest(ctx)
        await ctx.tick().repeat(60)
        assert len(bench.commands) == commands
        assert not ctx.get(bench.control.busy)

    Bench(config=CONFIG).run(script)
