"""Run passes through a whole accelerator, the smallest that has everything: all logits equal the integer model's.

The sizes are the least with which a pass takes seconds in Amaranth's simulator: vectors of 12 and 20 elements, two heads of
four, a layer.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
from amaranth.hdl import Module
from amaranth.sim import Simulator

from edgedec.graph.ops import Embed
from edgedec.hw.accelerator import Accelerator
from edgedec.hw.compiler.choose import config_for
from edgedec.hw.compiler.host import ProgramHost
from edgedec.hw.compiler.program import Program, compile_model, laid_out
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.isa.instructions import Destination, Opcode, When
from edgedec.hw.isa.registers import COUNTS
from edgedec.hw.isa.striping import stripe
from edgedec.reference.integer_profile.head import real, sum_of_exponentials, sum_shift, top
from edgedec.reference.integer_profile.model import IntegerModel
from edgedec.reference.integer_profile.rough_head import head_of
from edgedec.reference.integer_profile.taps import TapRecorder
from edgedec.reference.integer_profile.values import Logits
from edgedec.runtime.driver.driver import BEST, NO_LOGITS, WHOLE_ROWS, Driver
from edgedec.schemes import Int8Scheme, TernaryScheme
from edgedec.sim.interpreter import Interpreter
from tests.edgedec.reference.integer_profile.support.make_models import TAPPED, float_model, prepared, roughened
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


# A model in whose linears, embedding and head groups of 128 columns have a scale each, and whose heads are normed.
BONSAI = (
    TernaryScheme(group_size=128),
    {**SHAPE, "model_type": "qwen3", "tie_word_embeddings": True},
    TernaryScheme(group_size=128),
)

# A model with soft-caps and norms of the rows of o and down, which are divided into two matrices each.
_CAPS = {"attn_logit_softcapping": 1.5, "final_logit_softcapping": 4.0, "query_pre_attn_scalar": 4}
GEMMA = (
    Int8Scheme(),
    {**SHAPE, "model_type": "gemma2", "tie_word_embeddings": True, "sliding_window": 8, **_CAPS},
)

# A model of two layers with norms of heads and of rows, whose layers are rotated by different angles.
GEMMA_3 = (
    TernaryScheme(),
    {**GEMMA[1], "model_type": "gemma3_text", "num_hidden_layers": 2, "sliding_window_pattern": 2},
)

# A ring of 34 groups of two positions, of which a pass reads two.
RING = {"context": 256, "window": 4}


@cache
def compiled(
    *,
    beat_bytes: int = 8,
    ports: int = 2,
    slots: int = 2,
    context: int = 16,
    window: int | None = None,
    shared: bool = False,
    bonsai: bool = False,
    gemma: int | None = None,
    taps: tuple[str, ...] = (),
    sequences: int = 1,
) -> tuple[IntegerModel, Program, Any]:
    """Return a model, its program, and its table of embeddings."""
    kinds = {None: (TernaryScheme(), SHAPE), 2: GEMMA, 3: GEMMA_3}
    graph, weights = float_model(*(BONSAI if bonsai else kinds[gemma]))
    states = {name: replace(state, window=window) for name, state in graph.states.items()}
    model = prepared(replace(graph, states=states), weights)
    small = {"tile_rows": 10 if gemma else 20, "context": context, "prefetch_beats": 16, "top_k": 2}
    small |= {"beat_bytes": beat_bytes, "ports": ports, "slots": slots, "sequences": sequences}
    small |= {"window": 0} if sequences > 1 else {}  # rings hold one sequence
    config = config_for(model, **small, shared=shared, ultra=False, clock_hz=1e6, taps=bool(taps))
    program = compile_model(model, config, taps=taps)
    (embed,) = (op for op in model.graph.operations if isinstance(op, Embed))
    constants: Any = model.constants[embed.name]
    return model, program, constants.weight


def sums(logits: Logits) -> list[int]:
    """Return the sums of exponentials of each row."""
    found: list[int] = sum_of_exponentials(logits.values, logits.mantissa, sum_shift(logits.exponent)).tolist()
    return found


def units(logits: Logits) -> Any:
    """Return the real value of 1 in each row."""
    return np.ldexp(logits.mantissa.astype(np.float64), logits.exponent)


def beats(program: Program, committed: int, slots: int = 2) -> int:
    """Return the beats of a pass with logits: of its code, of every READ, and of each head's keys and values."""
    instructions, config = program.instructions[: program.commit], program.config
    read = sum(one["beats"] for one in instructions if one.opcode == Opcode.READ and one["when"] != When.WITHOUT_LOGITS)
    cached = sum(
        2 * one["heads"] // config.together(one["group"], slots) * config.cache_rows(one["ring"]).beats(committed)
        for one in instructions
        if one.opcode == Opcode.CACHE
    )
    return len(program.code) // config.beat_bytes + read + cached


def test_the_registers_have_a_page_of_addresses() -> None:
    """Read the width of the bus at the registers: boards place them at multiples of 4 KiB."""
    bus = Accelerator(compiled()[1].config).registers
    assert len(bus.awaddr) == len(bus.araddr) == 12


@pytest.mark.thorough
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
            assert driver.results(rows).sums.tolist() == sums(expected)
            assert report.beats == beats(program, committed=driver.length)
            for holder in (driver, sequence):
                holder.commit(np.array(kept, np.int32))


@pytest.mark.nightly
@pytest.mark.rtl
def test_tokens_of_a_bonsai_equal_the_integer_model() -> None:
    model, program, embedding = compiled(bonsai=True)
    assert program.config.head_norms
    assert not any(one["int8"] for one in program.instructions if one.opcode == Opcode.MATRIX)
    run_trees(model, program, embedding)


@pytest.mark.nightly
@pytest.mark.rtl
def test_tokens_of_a_gemma_2_equal_the_integer_model() -> None:
    """Rows that are normed come from two matrices each; the last ones of a pass without logits go nowhere."""
    model, program, embedding = compiled(gemma=2)
    assert program.config.post_norms
    assert program.config.score_cap
    matrices = [one for one in program.instructions if one.opcode == Opcode.MATRIX]
    assert sum(one["norm_rows"] and one["more"] for one in matrices) >= 2
    best = run_trees(model, program, embedding)
    assert np.abs(best).max() < GEMMA[1]["final_logit_softcapping"]


@pytest.mark.nightly
@pytest.mark.rtl
def test_tokens_of_a_gemma_3_equal_the_integer_model() -> None:
    """The second layer's angles are read between the two, and the first one's again in the next pass."""
    model, program, embedding = compiled(gemma=3)
    assert program.config.post_norms
    assert program.config.head_norms
    assert len(program.input_offsets(Destination.ANGLES)) == 2
    run_trees(model, program, embedding)


@pytest.mark.nightly(sample=1)
@pytest.mark.rtl
@pytest.mark.parametrize(
    ("planes", "slots", "beat_bytes", "ports"), [(2, 2, 8, 2), (1, 2, 8, 2), (2, 1, 4, 1), (1, 3, 16, 1)]
)
def test_tokens_of_a_rough_head_equal_the_integer_model(planes: int, slots: int, beat_bytes: int, ports: int) -> None:
    """Score candidates again from the norm that the accelerator writes, with whole rows and without."""
    graph, weights = float_model(TernaryScheme(), {**SHAPE, "tie_word_embeddings": True})
    model = roughened(weights, prepared(graph, weights), 3, planes)
    members = {"beat_bytes": beat_bytes, "ports": ports, "slots": slots, "tile_rows": 20, "prefetch_beats": 16}
    config = config_for(model, **members, context=16, top_k=3, ultra=False, clock_hz=1e6)
    program = compile_model(model, config)
    (embed,) = (op for op in graph.operations if isinstance(op, Embed))
    head: Any = weights[head_of(graph).weights[0]]
    table: Any = weights[embed.weight]
    device, sequence = simulated(program.config, laid_out(program.sizes, ports)[1]), model.open()
    with Driver(device, program, table, head, max_cycles=60_000) as driver:
        for count, logits in ((slots, WHOLE_ROWS), (1, BEST), (slots, BEST)):
            ids, rows = np.arange(count, dtype=np.int32) + 7, np.arange(count, dtype=np.int32)
            expected = sequence.forward(ids)
            report = driver.forward(ids, logits=logits)
            found, best = driver.results(rows), top(expected, 3)
            assert np.array_equal(found.ids, best)
            assert np.array_equal(found.logits, np.take_along_axis(expected.values, best.astype(np.int64), 1))
            assert np.array_equal(units(found.integers), units(expected))
            assert found.sums.all()
            if logits == WHOLE_ROWS:
                assert np.array_equal(driver.logits(rows).values, expected.values)
            assert report.beats == beats(program, driver.length, count)
            driver.commit(rows)
            sequence.commit(rows)


def run_trees(model: IntegerModel, program: Program, embedding: Any) -> Any:
    """Run a prompt of two without and with logits, and a tree of which a part is kept; compare the cache as well.

    Returns:
        the real values of the likeliest tokens of the last pass.
    """
    device = simulated(program.config, laid_out(program.sizes, program.config.ports)[1])
    sequence, interpreter, host = model.open(), Interpreter(program), ProgramHost(program, embedding)
    passes: list[tuple[list[int], list[int], list[int]]] = [
        ([7, 14], [0b01, 0b11], []),
        ([7, 14], [0b01, 0b11], [0, 1]),
        ([21, 3], [0b01, 0b10], [1]),
    ]
    with Driver(device, program, embedding, max_cycles=20_000) as driver:
        for ids, masks, kept in passes:
            committed, rows = driver.length, np.arange(len(ids), dtype=np.int32)
            visible = np.array(masks)[:, None] >> np.arange(len(ids)) & 1 == 1
            positions = (committed + visible.sum(axis=1) - 1).astype(np.int32)
            array = np.array(ids, np.int32)
            expected = sequence.forward(array, positions=positions, visible=visible, check=True)
            driver.forward(array, positions=positions, visible=visible, logits=WHOLE_ROWS if kept else NO_LOGITS)
            logits = driver.logits(rows) if kept else expected
            assert np.array_equal(logits.values, expected.values)
            assert np.array_equal(real(logits), real(expected))
            interpreter.input[:] = host.input(array, positions)
            interpreter.run_pass(len(ids), committed, masks, positions.tolist(), logits=1)
            for holder in (driver, sequence):
                holder.commit(np.array(kept, np.int32))
            interpreter.commit(committed, sum(1 << slot for slot in kept))
        cache = stripe(interpreter.cache, ports=program.config.ports, port_bytes=program.config.port_bytes)
        assert np.array_equal(driver.regions["cache"].fetched()[: cache.size], cache)
        return driver.results(rows).real


@pytest.mark.nightly
@pytest.mark.rtl
@pytest.mark.parametrize(("slots", "beat_bytes", "ports"), [(1, 4, 1), (3, 8, 2), (4, 16, 1)])
def test_tapped_values_equal_the_integer_model(slots: int, beat_bytes: int, ports: int) -> None:
    """Write every kind of value, in passes of all slots, of one row, and without logits."""
    model, program, embedding = compiled(beat_bytes=beat_bytes, ports=ports, slots=slots, taps=TAPPED)
    device = simulated(program.config, laid_out(program.sizes, ports)[1])
    sequence, recorder = model.open(), TapRecorder(model, TAPPED)
    with Driver(device, program, embedding, max_cycles=60_000) as driver:
        for count, logits in ((slots, WHOLE_ROWS), (1, BEST), (slots, NO_LOGITS)):
            ids = np.arange(count, dtype=np.int32) + 7
            sequence.forward(ids, trace=recorder.trace)
            driver.forward(ids, logits=logits)
            rows = np.arange(count, dtype=np.int32)
            for name in TAPPED if logits else [one for one in TAPPED if not driver.host.needs_logits(one)]:
                actual, expected = driver.tapped(name, rows), recorder.rows(name)
                assert np.array_equal(actual.values, expected.values), name
                assert actual.real.tobytes() == expected.real.tobytes(), name
            driver.commit(rows)
            sequence.commit(rows)


@pytest.mark.nightly
@pytest.mark.rtl
def test_tokens_in_a_ring_equal_the_integer_model() -> None:
    """Let the interpreter fill the ring, run rows at its end of which one moves over it, and rows that read both ends."""
    model, program, embedding = compiled(**RING)
    rows = program.config.ring
    assert rows is not None
    committed = 2 * rows.rows - 1
    sequence, interpreter, host = model.open(), Interpreter(program), ProgramHost(program, embedding)
    for start in range(committed):
        ids, position = np.array([start % 41], np.int32), np.array([start], np.int32)
        sequence.forward(ids)
        sequence.commit(np.array([0], np.int32))
        interpreter.input[:] = host.input(ids, position)
        interpreter.run_pass(1, start, logits=0)
    device = simulated(program.config, laid_out(program.sizes, program.config.ports)[1])
    with Driver(device, program, embedding, max_cycles=20_000) as driver:
        driver.regions["cache"].put(interpreter.cache)
        driver.length = committed
        for ids_, kept in (([21, 3], [1]), ([7, 14], [1]), ([40], [])):
            array, visible = np.array(ids_, np.int32), np.eye(len(ids_), dtype=np.bool_)
            positions = np.full(len(ids_), driver.length, np.int32)
            expected = sequence.forward(array, positions=positions, visible=visible)
            report = driver.forward(array, positions=positions, visible=visible, logits=WHOLE_ROWS)
            logits = driver.logits(np.arange(len(ids_), dtype=np.int32))
            assert np.array_equal(logits.values, expected.values)
            assert np.array_equal(units(logits), units(expected))
            assert report.beats == beats(program, committed=driver.length)
            for holder in (driver, sequence):
                holder.commit(np.array(kept, np.int32))
    assert driver.length == committed + 2


@pytest.mark.nightly
@pytest.mark.rtl
@pytest.mark.parametrize(("slots", "bonsai"), [(2, False), (3, True), (5, False), (6, True), (7, True)])
def test_tokens_whose_heads_attend_together_equal_the_integer_model(slots: int, bonsai: bool) -> None:
    """Run a prompt that fills the slots, and one token after it, which reads the keys and values of both heads once."""
    model, program, embedding = compiled(shared=True, slots=slots, bonsai=bonsai)
    device = simulated(program.config, laid_out(program.sizes, program.config.ports)[1])
    sequence = model.open()
    with Driver(device, program, embedding, max_cycles=20_000) as driver:
        for ids in ([7, 14, 40, 9, 22, 3, 31][:slots], [40]):
            array, rows = np.array(ids, np.int32), np.arange(len(ids), dtype=np.int32)
            expected = sequence.forward(array)
            report = driver.forward(array, logits=WHOLE_ROWS)
            logits = driver.logits(rows)
            assert np.array_equal(logits.values, expected.values)
            assert np.array_equal(units(logits), units(expected))
            assert report.beats == beats(program, driver.length, len(ids))
            for holder in (driver, sequence):
                holder.commit(rows)
    assert beats(program, 2, 1) < beats(program, 2, slots)
