"""Test the model of a pass's cycles: properties for any constants, and passes counted by hand."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest

from edgedec.errors import UsageError
from edgedec.hw.compiler.cycles import TABLES, PassCycles, _engine_latency, _Stream, cycles, timetable
from edgedec.hw.compiler.program import Program, compile_model
from edgedec.hw.compiler.shapes import shape_graph, shape_program
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.isa.instructions import Destination, Opcode, When
from edgedec.sim.synthesis.estimate_parts import CONFIGS
from tests.edgedec.reference.integer_profile.support.make_models import KINDS, float_model, prepared
from tests.hw.plan.test_estimate import SMALL
from tests.hw.support.bench_counted_calls import counted_calls

FULL = SMALL.clock_hz * SMALL.beat_bytes  # bytes per second that the port can take


@cache
def program(kind: str = "native") -> Program:
    scheme, changes = KINDS[kind]
    return compile_model(prepared(*float_model(scheme, {**changes, "head_dim": 8})), SMALL)


@pytest.mark.parametrize("kind", ["native", "int8", "planes2"])
@pytest.mark.parametrize("bandwidth", [None, FULL / 3])
def test_a_matrix_in_several_regions_takes_the_cycles_of_one_read(kind: str, bandwidth: float | None) -> None:
    """Divide matrices among READs: only the program itself is longer, by whole beats."""
    scheme, changes = KINDS[kind]
    divided = compile_model(prepared(*float_model(scheme, {**changes, "head_dim": 8})), SMALL, region_bytes=512)
    more = (len(divided.code) - len(program(kind).code)) // SMALL.beat_bytes
    assert more > 0
    whole, parts = (cycles(one, slots=2, committed=3, bandwidth=bandwidth) for one in (program(kind), divided))
    assert parts.beats == whole.beats + more
    assert parts.dependency == whole.dependency
    ranges = [timetable(one, slots=2, committed=3)[0] for one in (program(kind), divided)]
    assert ranges[0][1:] == ranges[1][1:], "a range for each matrix"
    assert parts.cycles == pytest.approx(whole.cycles + more * (1 if bandwidth is None else 3), abs=4)


def _sum(pass_cycles: PassCycles) -> int:
    return (
        pass_cycles.beats
        + pass_cycles.dependency
        + pass_cycles.unpacking
        + pass_cycles.sweeps
        + pass_cycles.starved
        + pass_cycles.ends
    )


@pytest.mark.parametrize("kind", ["native", "int8", "planes2"])
@pytest.mark.parametrize("bandwidth", [None, FULL / 3])
@pytest.mark.parametrize(("slots", "committed", "logits"), [(1, 0, True), (4, 17, True), (2, 44, False)])
def test_cycles_are_the_sum_of_their_heads(
    kind: str, bandwidth: float | None, slots: int, committed: int, logits: bool
) -> None:
    result = cycles(program(kind), slots=slots, committed=committed, logits=logits, bandwidth=bandwidth)
    assert result.cycles == _sum(result)
    assert 0 < result.beats_share <= 1
    assert result.seconds(SMALL) == result.cycles / SMALL.clock_hz
    waited = sum(wait.cycles for wait in result.waits)
    assert waited <= result.dependency + len(result.waits)  # each is rounded up


@pytest.mark.parametrize("logits", [False, True])
@pytest.mark.parametrize("committed", [0, 5, 40])
def test_beats_are_those_of_the_reads(committed: int, logits: bool) -> None:
    """Count the beats of the program itself, of every READ of the pass, and of the cache's runs."""
    tiny_program = program()
    left_out = When.WITHOUT_LOGITS if logits else When.WITH_LOGITS
    beats = -(-len(tiny_program.code) // SMALL.beat_bytes)
    for instruction in tiny_program.instructions[: tiny_program.commit]:
        if instruction["when"] == left_out:
            continue
        if instruction.opcode == Opcode.READ:
            beats += instruction["beats"]
        if instruction.opcode == Opcode.CACHE:
            beats += 2 * instruction["heads"] * SMALL.kv_layout.beats(committed)
    assert cycles(tiny_program, slots=1, committed=committed, logits=logits).beats == beats


def test_more_positions_slots_and_work_take_at_least_as_long() -> None:
    tiny_program = program()
    by_length = [cycles(tiny_program, slots=1, committed=n).cycles for n in range(1, 48)]
    assert by_length == sorted(by_length)
    by_slots = [cycles(tiny_program, slots=n, committed=20).cycles for n in range(1, 5)]
    assert by_slots == sorted(by_slots)
    assert cycles(tiny_program, slots=1, committed=20, logits=False).cycles < by_length[19]


def test_several_sequences_may_read_the_whole_cache() -> None:
    """The positions of one leave room for the tokens of the pass; the last groups of several have them."""
    several = replace(SMALL, sequences=3)
    scheme, changes = KINDS["native"]
    model = compile_model(prepared(*float_model(scheme, {**changes, "head_dim": 8})), several)
    of = [cycles(model, slots=3, committed=n) for n in (SMALL.context - 3, SMALL.context)]
    assert of[0].beats < of[1].beats
    assert of[0].cycles == cycles(program(), slots=3, committed=SMALL.context - 3).cycles
    with pytest.raises(UsageError, match=f"committed must be 0 to {SMALL.context} with 3 slots"):
        cycles(model, slots=3, committed=SMALL.context + 1)


def test_less_bandwidth_takes_longer_and_at_least_the_time_of_the_bytes() -> None:
    tiny_program, last = program(), cycles(program(), slots=1, committed=20)
    for divisor in (1, 1.5, 2, 4, 16):
        result = cycles(tiny_program, slots=1, committed=20, bandwidth=FULL / divisor)
        assert result.cycles >= last.cycles - (0 if divisor > 1 else 80)
        assert result.cycles >= result.beats * divisor
        last = result
    plenty = cycles(tiny_program, slots=1, committed=20, bandwidth=FULL * 8)
    assert plenty.starved < 0.01 * plenty.cycles


def test_every_fresh_matrix_and_attention_has_its_wait() -> None:
    tiny_program = program()
    fresh = [
        index
        for index, instruction in enumerate(tiny_program.instructions[: tiny_program.commit])
        if instruction.opcode == Opcode.MATRIX and instruction["fresh"] and instruction["when"] != When.WITHOUT_LOGITS
    ]
    caches = [
        index for index, instruction in enumerate(tiny_program.instructions) if instruction.opcode == Opcode.CACHE
    ]
    indices = [wait.index for wait in cycles(tiny_program, slots=1, committed=20).waits]
    assert len(indices) == len(fresh) + len(caches)
    assert all(
        index in caches or tiny_program.instructions[index]["destination"] == Destination.WEIGHTS for index in indices
    )
    assert {tiny_program.names[index] for index in indices} >= {tiny_program.names[index] for index in fresh}


def test_an_answer_takes_a_bounded_number_of_calls() -> None:
    """Check that it does not step through the cycles: some 2,400 calls, and not more for longer matrices."""
    tiny_program = program()
    assert counted_calls(lambda: cycles(tiny_program, slots=4, committed=20, bandwidth=1e9)) < 24_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"slots": 5, "committed": 0}, "slots must be 1 to 4, not 5"),
        ({"slots": 0, "committed": 0}, "slots must be 1 to 4, not 0"),
        ({"slots": 4, "committed": 45}, "committed must be 0 to 44 with 4 slots, not 45"),
        ({"slots": 1, "committed": -1}, "committed must be 0 to 47 with 1 slots, not -1"),
        ({"slots": 1, "committed": 0, "bandwidth": 0.0}, "bandwidth must be positive, not 0.0"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=f"^{message}$"):
        cycles(program(), **arguments)


# Stream alone: half a beat of memory per cycle.


def half(prefetch: int = 64) -> _Stream:
    config = SimpleNamespace(clock_hz=100.0, beat_bytes=8, prefetch_beats=prefetch)
    return _Stream(config, 400.0)  # type: ignore[arg-type]  # the members that it reads


@pytest.mark.parametrize(
    ("slots", "committed", "bandwidth", "simulated"),
    [(1, 0, None, 3349), (1, 22, 0.8e9, 4453), (4, 0, 0.8e9, 4430), (4, 22, None, 3659)],
)
def test_a_norm_that_is_written_takes_the_cycles_of_the_rtl(
    slots: int, committed: int, bandwidth: float | None, simulated: int
) -> None:
    """Take the cycles of the RTL of a small accelerator with a rough head, whose norm has a fifth of a pass's cycles."""
    case = CONFIGS["small"].config
    config = replace(case, scaling=False, rough_head=2, taps=True, top_k=16)
    shape = {
        **{"model_type": "llama", "vocab_size": 160, "max_position_embeddings": case.context, "num_hidden_layers": 1},
        **{"hidden_size": case.hidden, "intermediate_size": case.width, "head_dim": case.head_dim},
        **{"num_attention_heads": case.heads, "num_key_value_heads": case.kv_heads, "rms_norm_eps": 1e-5},
    }
    compiled = shape_program(shape_graph(shape), config)
    modelled = cycles(compiled, slots=slots, committed=committed, bandwidth=bandwidth).cycles
    assert modelled == pytest.approx(simulated, rel=0.04)


def test_a_level_of_the_engines_tree_takes_a_cycle() -> None:
    """See the documented latency of ``LookupEngine``, which its own tests measure."""
    assert [_engine_latency(beat_bytes) for beat_bytes in (4, 8, 16, 32, 64)] == [4, 5, 6, 7, 8]


def test_a_stream_without_a_backlog_starves() -> None:
    stream = half()
    stream.take(10, 10, "sweeps")
    assert (stream.now, stream.spent["starved"], stream.beats) == (20, 10, 10)


def test_a_stream_uses_what_arrived_while_it_waited() -> None:
    stream = half()
    assert stream.wait(20, "dependency") == 20  # ten beats arrive meanwhile
    stream.take(20, 20, "sweeps")  # with ten more these are twenty in twenty cycles
    assert (stream.now, stream.spent["starved"]) == (40, 0)
    stream.take(1, 1, "sweeps")
    assert stream.now == 42


def test_a_stream_stores_no_more_than_the_prefetcher_holds() -> None:
    stream = half(prefetch=16)
    stream.wait(1000, "dependency")
    stream.take(32, 32, "sweeps")
    assert (stream.now, stream.spent["starved"]) == (1032, 0)
    stream.take(16, 16, "sweeps")
    assert stream.now == 1064


def test_a_stream_pays_for_writes_when_it_reads() -> None:
    stream = half()
    stream.write(80, 8)
    stream.take(10, 10, "sweeps")
    assert stream.now == 40


def test_slow_sinks_leave_time_to_the_memory() -> None:
    stream = half()
    stream.take(10, 40, "unpacking")
    assert (stream.now, stream.spent["unpacking"], stream.level) == (40, 30, 10)


def test_short_sweeps_take_as_long_as_their_tables() -> None:
    """Use a tile of fewer words than the tables' cycles, in an accelerator of otherwise the same sizes."""
    config = AcceleratorConfig(**{**_members(SMALL), "tile_rows": 5})
    scheme, changes = KINDS["native"]
    model = prepared(*float_model(scheme, {**changes, "head_dim": 8}))
    short = cycles(compile_model(model, config), slots=1, committed=20)
    assert short.sweeps > cycles(program(), slots=1, committed=20).sweeps
    assert short.cycles > (TABLES - 1) * 36 // 5 * 5


def _members(config: AcceleratorConfig) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(config)
