"""The model of a pass's cycles: what it must have whatever its constants are, and passes counted by hand."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest

from edgedec.errors import UsageError
from edgedec.hw.compiler.cycles import TABLES, PassCycles, _Stream, cycles
from edgedec.hw.compiler.program import Program, compile_model
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.isa.instructions import Destination, Opcode, When
from tests.edgedec.reference.integer_profile.support.make_models import KINDS, float_model, prepared
from tests.hw.plan.test_estimate import SMALL
from tests.hw.support.bench_counted_calls import counted_calls

FULL = SMALL.clock_hz * SMALL.beat_bytes  # bytes per second that the port can take


@cache
def program(kind: str = "native") -> Program:
    scheme, changes = KINDS[kind]
    return compile_model(prepared(*float_model(scheme, {**changes, "head_dim": 8})), SMALL)


def _sum(found: PassCycles) -> int:
    return found.beats + found.dependency + found.unpacking + found.sweeps + found.starved + found.ends


@pytest.mark.parametrize("kind", ["native", "int8", "planes2"])
@pytest.mark.parametrize("bandwidth", [None, FULL / 3])
@pytest.mark.parametrize(("slots", "committed", "logits"), [(1, 0, True), (4, 17, True), (2, 44, False)])
def test_cycles_are_the_sum_of_their_heads(
    kind: str, bandwidth: float | None, slots: int, committed: int, logits: bool
) -> None:
    found = cycles(program(kind), slots=slots, committed=committed, logits=logits, bandwidth=bandwidth)
    assert found.cycles == _sum(found)
    assert 0 < found.beats_share <= 1
    assert found.seconds(SMALL) == found.cycles / SMALL.clock_hz
    waited = sum(wait.cycles for wait in found.waits)
    assert waited <= found.dependency + len(found.waits)  # each is rounded up


@pytest.mark.parametrize("logits", [False, True])
@pytest.mark.parametrize("committed", [0, 5, 40])
def test_beats_are_those_of_the_reads(committed: int, logits: bool) -> None:
    """Of the program itself, of every READ of the pass, and of the cache's runs."""
    given = program()
    left_out = When.WITHOUT_LOGITS if logits else When.WITH_LOGITS
    wanted = -(-len(given.code) // SMALL.beat_bytes)
    for instruction in given.instructions[: given.commit]:
        if instruction["when"] == left_out:
            continue
        if instruction.opcode == Opcode.READ:
            wanted += instruction["beats"]
        if instruction.opcode == Opcode.CACHE:
            wanted += 2 * instruction["heads"] * SMALL.kv_layout.beats(committed)
    assert cycles(given, slots=1, committed=committed, logits=logits).beats == wanted


def test_more_positions_slots_and_work_take_no_less() -> None:
    given = program()
    by_length = [cycles(given, slots=1, committed=n).cycles for n in range(1, 48)]
    assert by_length == sorted(by_length)
    by_slots = [cycles(given, slots=n, committed=20).cycles for n in range(1, 5)]
    assert by_slots == sorted(by_slots)
    assert cycles(given, slots=1, committed=20, logits=False).cycles < by_length[19]


def test_less_bandwidth_takes_longer_and_never_less_than_the_bytes_need() -> None:
    given, last = program(), cycles(program(), slots=1, committed=20)
    for divisor in (1, 1.5, 2, 4, 16):
        found = cycles(given, slots=1, committed=20, bandwidth=FULL / divisor)
        assert found.cycles >= last.cycles - (0 if divisor > 1 else 80)
        assert found.cycles >= found.beats * divisor
        last = found
    plenty = cycles(given, slots=1, committed=20, bandwidth=FULL * 8)
    assert plenty.starved < 0.01 * plenty.cycles


def test_every_fresh_matrix_and_attention_has_its_wait() -> None:
    given = program()
    fresh = [
        index
        for index, instruction in enumerate(given.instructions[: given.commit])
        if instruction.opcode == Opcode.MATRIX and instruction["fresh"] and instruction["when"] != When.WITHOUT_LOGITS
    ]
    caches = [index for index, instruction in enumerate(given.instructions) if instruction.opcode == Opcode.CACHE]
    found = [wait.index for wait in cycles(given, slots=1, committed=20).waits]
    assert len(found) == len(fresh) + len(caches)
    assert all(index in caches or given.instructions[index]["destination"] == Destination.WEIGHTS for index in found)
    assert {given.names[index] for index in found} >= {given.names[index] for index in fresh}


def test_answers_in_milliseconds() -> None:
    """It does not go through the cycles: some 2,400 calls, and not more for longer matrices."""
    given = program()
    assert counted_calls(lambda: cycles(given, slots=4, committed=20, bandwidth=1e9)) < 24_000


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
def test_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=f"^{message}$"):
        cycles(program(), **arguments)


# The stream by itself: half a beat of memory in a cycle.


def half(prefetch: int = 64) -> _Stream:
    config = SimpleNamespace(clock_hz=100.0, beat_bytes=8, prefetch_beats=prefetch)
    return _Stream(config, 400.0)  # type: ignore[arg-type]  # the members that it looks at


def test_stream_starves_without_anything_waiting() -> None:
    stream = half()
    stream.take(10, 10, "sweeps")
    assert (stream.now, stream.spent["starved"], stream.beats) == (20, 10, 10)


def test_stream_lives_on_what_came_while_it_waited() -> None:
    stream = half()
    assert stream.wait(20, "dependency") == 20  # ten beats come meanwhile
    stream.take(20, 20, "sweeps")  # which with ten more are twenty in twenty cycles
    assert (stream.now, stream.spent["starved"]) == (40, 0)
    stream.take(1, 1, "sweeps")
    assert stream.now == 42


def test_stream_keeps_no_more_than_the_prefetcher_holds() -> None:
    stream = half(prefetch=16)
    stream.wait(1000, "dependency")
    stream.take(32, 32, "sweeps")
    assert (stream.now, stream.spent["starved"]) == (1032, 0)
    stream.take(16, 16, "sweeps")
    assert stream.now == 1064


def test_stream_pays_for_writes_when_it_reads() -> None:
    stream = half()
    stream.write(80, 8)
    stream.take(10, 10, "sweeps")
    assert stream.now == 40


def test_slow_takers_leave_memory_time() -> None:
    stream = half()
    stream.take(10, 40, "unpacking")
    assert (stream.now, stream.spent["unpacking"], stream.level) == (40, 30, 10)


def test_short_sweeps_take_as_long_as_their_tables() -> None:
    """A tile of fewer words than the tables' cycles, in an accelerator of otherwise the same sizes."""
    config = AcceleratorConfig(**{**_members(SMALL), "tile_rows": 5})
    scheme, changes = KINDS["native"]
    model = prepared(*float_model(scheme, {**changes, "head_dim": 8}))
    short = cycles(compile_model(model, config), slots=1, committed=20)
    assert short.sweeps > cycles(program(), slots=1, committed=20).sweeps
    assert short.cycles > (TABLES - 1) * 36 // 5 * 5


def _members(config: AcceleratorConfig) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(config)
