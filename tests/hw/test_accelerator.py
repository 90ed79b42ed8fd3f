"""Run passes through a whole accelerator, the smallest that has everything: all logits equal the integer model's.

The sizes are the least with which a pass takes seconds in Amaranth's simulator: vectors of 12 and 20 elements, two heads of
four, a layer.
"""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
from amaranth.hdl import Module
from amaranth.sim import Simulator

from edgedec.hw.accelerator import Accelerator
from edgedec.hw.compiler.choose import config_for
from edgedec.hw.compiler.program import Program, compile_model, laid_out
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.isa.instructions import Opcode, When
from edgedec.hw.isa.registers import COUNTS
from edgedec.ops import Embed
from edgedec.reference.integer_profile.model import IntegerModel
from edgedec.reference.integer_profile.values import Logits
from edgedec.runtime.driver.driver import WHOLE_ROWS, Driver
from edgedec.schemes import TernaryScheme
from tests.edgedec.reference.integer_profile.support.make_models import float_model, prepared
from tests.hw.support.bench_accelerator import simulated

SHAPE = {
    "hidden_size": 12,
    "intermediate_size": 20,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 4,
    "num_hidden_layers": 1,
    "attention_bias": False,
}


@cache
def compiled(*, beat_bytes: int = 8, ports: int = 2, slots: int = 2) -> tuple[IntegerModel, Program, Any]:
    """Return a model, its program, and its table of embeddings."""
    model = prepared(*float_model(TernaryScheme(), SHAPE))
    small = {"tile_rows": 20, "context": 16, "prefetch_beats": 16, "top_k": 2}
    small |= {"beat_bytes": beat_bytes, "ports": ports, "slots": slots}
    program = compile_model(model, config_for(model, **small, ultra=False, clock_hz=1e6))
    (embed,) = (op for op in model.graph.operations if isinstance(op, Embed))
    constants: Any = model.constants[embed.name]
    return model, program, constants.weight


def units(logits: Logits) -> Any:
    """Return the real value of 1 in each row."""
    return np.ldexp(logits.mantissa.astype(np.float64), logits.exponent)


def beats(program: Program, committed: int) -> int:
    """Return the beats of a pass with logits: of its code, of every READ, and of each head's keys and values."""
    instructions, config = program.instructions[: program.commit], program.config
    read = sum(one["beats"] for one in instructions if one.opcode == Opcode.READ and one["when"] != When.WITHOUT_LOGITS)
    runs = sum(2 * one["heads"] for one in instructions if one.opcode == Opcode.CACHE)
    return len(program.code) // config.beat_bytes + read + runs * config.kv_layout.beats(committed)


def test_the_registers_have_a_page_of_addresses() -> None:
    """Read the width of the bus at the registers: boards place them at multiples of 4 KiB."""
    bus = Accelerator(compiled()[1].config).registers
    assert len(bus.awaddr) == len(bus.araddr) == 12


def test_beats_and_stalls_are_counted() -> None:
    """Count all states of the streams that are observed: in a pass of this size no result waits for the write port."""
    top, m = Accelerator(AcceleratorConfig(hidden=12, width=20, heads=2, kv_heads=1, head_dim=4)), Module()
    registers, control, cache, datapath = top._registers, top._processor, top._cache, top._datapath
    # These parts are not in the module, so that their outputs are set here.
    top._count(m, registers, control, top.prefetcher, cache, datapath)
    streams = top.prefetcher.beats, cache.requests, datapath.requests
    counted: dict[str, int] = {}

    async def bench(ctx: Any) -> None:
        ctx.set(control.running, 1)
        for states in product(((0, 0), (0, 1), (1, 0), (1, 1)), repeat=3):
            for stream, (valid, ready) in zip(streams, states, strict=True):
                ctx.set(stream.valid, valid)
                ctx.set(stream.ready, ready)
            await ctx.tick()
        ctx.set(control.running, 0)
        await ctx.tick().repeat(2)
        ctx.set(registers.control_latch_counters, 1)
        await ctx.tick().repeat(2)
        counted.update({name: ctx.get(getattr(registers, f"counter_{name}")) for name in COUNTS})

    simulator = Simulator(m)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    # A quarter of the 64 states moves a beat, another one holds it; 7 of 16 hold a key or a result, or both.
    assert counted == {"cycles": 64, "beats": 16, "starved": 0, "blocked": 28, "dependency": 16, "descriptors": 0}


@pytest.mark.rtl
def test_a_token_equals_the_integer_model() -> None:
    """Run one token on one port: most of what can be wrong in the whole shows here, in a fraction of the time."""
    model, program, embedding = compiled(beat_bytes=4, ports=1, slots=1)
    device = simulated(program.config, laid_out(program.sizes, program.config.ports)[1])
    token, position, visible = np.array([7], np.int32), np.array([4], np.int32), np.ones((1, 1), np.bool_)
    with Driver(device, program, embedding, max_cycles=20_000) as driver:
        report = driver.forward(token, positions=position, visible=visible, logits=WHOLE_ROWS)
        logits = driver.logits(np.zeros(1, np.int32))
    expected = model.open().forward(token, positions=position, visible=visible)
    assert np.array_equal(logits.values, expected.values)
    assert np.array_equal(units(logits), units(expected))
    assert report.beats == beats(program, committed=0)


@pytest.mark.rtl
def test_tokens_equal_the_integer_model() -> None:
    """Run a prompt of two, two rows that do not see each other of which the second is kept, and a token after them."""
    model, program, embedding = compiled()
    device = simulated(program.config, laid_out(program.sizes, program.config.ports)[1])
    sequence = model.open()
    # The sines of later positions are negative.
    passes: list[tuple[list[int], list[int], list[list[int]], list[int]]] = [
        ([7, 14], [4, 5], [[1, 0], [1, 1]], [0, 1]),
        ([21, 3], [11, 4], [[1, 0], [0, 1]], [1]),
        ([40], [5], [[1]], []),
    ]
    with Driver(device, program, embedding, max_cycles=20_000) as driver:
        for ids, at, seen, kept in passes:
            array, positions, visible = np.array(ids, np.int32), np.array(at, np.int32), np.array(seen, np.bool_)
            expected = sequence.forward(array, positions=positions, visible=visible)
            report = driver.forward(array, positions=positions, visible=visible, logits=WHOLE_ROWS)
            rows = np.arange(len(ids), dtype=np.int32)
            logits = driver.logits(rows)
            assert np.array_equal(logits.values, expected.values)
            assert np.array_equal(units(logits), units(expected))
            assert driver.results(rows).ids[:, 0].tolist() == expected.values.argmax(axis=1).tolist()
            assert report.beats == beats(program, committed=driver.length)
            for holder in (driver, sequence):
                holder.commit(np.array(kept, np.int32))
