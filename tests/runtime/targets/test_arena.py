"""Test the one buffer of keys and values that the sequences of the CPU target share."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.bundle.bundle import Bundle
from edgedec.errors import CacheFullError, EdgedecError, UsageError
from edgedec.memory.meter import MemoryMeter
from edgedec.quantize.synthetic.random_bundle import write_random_bundle
from edgedec.runtime.cache.arena import ArenaState
from edgedec.runtime.kernels.sessions.operator import usable
from edgedec.runtime.protocols import F32, I32, Limits, Pass, State
from edgedec.runtime.targets._cpu import CpuTarget
from tests.conformance.test_targets import CONFIG

pytestmark = pytest.mark.skipif(usable() is None, reason="the kernels' library was not built (no C++ compiler)")

LIMITS = Limits(nodes=40, depth=8, positions=64, cache_rows=128, batch_rows=48)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("bundles") / "b"
    write_random_bundle(folder, CONFIG, method="ternary")
    return Bundle.open(folder)


def opened(bundle: Bundle, limits: Limits = LIMITS) -> CpuTarget:
    kernels = usable()
    assert kernels is not None
    return CpuTarget(bundle, kernels, limits=limits, threads=1, taps=())


@pytest.fixture
def target(bundle: Bundle) -> CpuTarget:
    return opened(bundle)


def block_bytes(target: CpuTarget) -> int:
    """Return the bytes of a block of rows in all states."""
    return sum(target._arena.kind_bytes)


def rows(n: int) -> I32:
    return np.arange(n, dtype=np.int32)


def chain(state: State, n: int, first: int = 0) -> tuple[State, Pass]:
    return state, Pass(ids=(rows(n) + first) % 101, positions=rows(n) + state.length)


def run(target: CpuTarget, *work: tuple[State, Pass]) -> list[F32]:
    return [result.logits.copy() for result in target.submit(work).result()]


def written(target: CpuTarget, n: int, first: int = 0) -> State:
    """Return a sequence of n committed rows."""
    state = target.open(LIMITS)
    run(target, chain(state, n, first))
    state.commit(rows(n))
    return state


def test_blocks_are_taken_by_passes_and_given_back(target: CpuTarget) -> None:
    state = target.open(LIMITS)
    assert target.free_rows == 128
    run(target, chain(state, 40))
    assert target.free_rows == 128 - 48
    state.commit(rows(17))
    assert target.free_rows == 128 - 32
    state.truncate(16)
    assert target.free_rows == 128 - 16
    run(target, chain(state, 1))
    assert target.free_rows == 128 - 32
    state.commit(rows(0))
    assert target.free_rows == 128 - 16
    state.close()
    state.close()
    assert target.free_rows == 128


def test_a_dropped_sequence_gives_its_blocks_back(target: CpuTarget) -> None:
    state = written(target, 20)
    fork = state.fork()
    del state
    assert target.free_rows == 128 - 32
    del fork
    assert target.free_rows == 128


def test_the_default_is_one_sequence(bundle: Bundle) -> None:
    """The cache has the rows of one context, in whole blocks."""
    target = opened(bundle, replace(LIMITS, positions=50, cache_rows=0, batch_rows=0))
    assert target.free_rows == 64
    with pytest.raises(CacheFullError, match="needs 6 more blocks of 16 rows, and 4 of 4 are free"):
        run(target, chain(target.open(LIMITS), 40), chain(target.open(LIMITS), 40))
    assert target.free_rows == 64


def test_a_full_cache_refuses_before_anything_runs(target: CpuTarget) -> None:
    first, second, third = written(target, 33), written(target, 33, 1), target.open(LIMITS)
    right = run(target, chain(first.fork(), 1))
    assert target.free_rows == 32
    with pytest.raises(
        CacheFullError, match=r"needs 3 more blocks of 16 rows, and 2 of 8 are free; close or truncate .* cache_rows"
    ):
        run(target, chain(first, 1), chain(third, 33), chain(second, 1))
    assert (target.free_rows, first.length, third.length) == (32, 33, 0)
    np.testing.assert_array_equal(run(target, chain(first, 1)), right)
    second.close()
    run(target, chain(third, 33))


def test_a_fork_shares_blocks_until_one_of_them_is_written(target: CpuTarget) -> None:
    state = written(target, 20)
    expected = run(target, chain(state, 3, 50))
    state.commit(rows(0))
    fork = state.fork()
    assert target.free_rows == 128 - 32
    run(target, chain(fork, 3, 70))
    assert target.free_rows == 128 - 48, "the second block, which is filled in part, is copied"
    fork.commit(rows(3))
    np.testing.assert_array_equal(run(target, chain(state, 3, 50)), expected)
    assert target.free_rows == 128 - 48, "the last holder of a block writes to it in place"
    fork.truncate(20)
    np.testing.assert_array_equal(run(target, chain(fork, 3, 50)), expected)


def test_a_fork_at_the_end_of_a_block_copies_nothing(target: CpuTarget) -> None:
    state = written(target, 32)
    forks = [state.fork() for _ in range(3)]
    run(target, *(chain(fork, 1, number) for number, fork in enumerate(forks)))
    assert target.free_rows == 128 - 32 - 3 * 16


def test_all_holders_of_a_block_but_one_need_a_copy(target: CpuTarget) -> None:
    """Three sequences that share a block need two more, and have them."""
    state = written(target, 10)
    expected = run(target, chain(state, 2, 50))
    state.commit(rows(0))
    filler = written(target, 40), written(target, 40)
    assert target.free_rows == 16
    forks = [state.fork(), state.fork()]
    with pytest.raises(CacheFullError, match="needs 2 more blocks of 16 rows, and 1 of 8 are free"):
        run(target, chain(state, 2, 50), *(chain(fork, 2, 50) for fork in forks))
    filler[0].truncate(30)
    for logits in run(target, chain(state, 2, 50), *(chain(fork, 2, 50) for fork in forks)):
        np.testing.assert_array_equal(logits, expected[0])
    assert target.free_rows == 0


def test_rows_of_a_shared_block_that_are_cut_are_not_written_over(target: CpuTarget) -> None:
    state = written(target, 20)
    fork = state.fork()
    expected = run(target, chain(fork.fork(), 1, 7))
    state.truncate(3)
    run(target, chain(state, 16, 60))
    state.commit(rows(16))
    np.testing.assert_array_equal(run(target, chain(fork, 1, 7)), expected)


def test_a_fork_between_a_pass_and_its_commit(target: CpuTarget) -> None:
    """The fork has the committed rows, and the rows of the pass stay with the first sequence."""
    state, clean = written(target, 10), written(target, 10)
    for other in (state, clean):
        run(target, chain(other, 6, 50))
    fork = state.fork()
    run(target, chain(fork, 6, 80))
    for other in (state, clean):
        other.commit(np.array([0, 3, 5], np.int32))
    np.testing.assert_array_equal(run(target, chain(state, 1)), run(target, chain(clean, 1)))
    with pytest.raises(UsageError, match="row 6 cannot be committed: 6 rows of the last pass are left"):
        fork.commit(rows(7))
    fork.commit(rows(6))
    assert (state.length, fork.length) == (13, 16)


def test_a_narrow_pass_after_a_wide_one_that_was_not_committed(target: CpuTarget) -> None:
    """The first sequence holds more blocks than its pass needs."""
    state, other = written(target, 5), written(target, 20, 40)
    expected = run(target, chain(state, 1), chain(other, 1, 3))
    for _ in range(2):
        run(target, chain(state, 40))
        again = run(target, chain(state, 1), chain(other, 1, 3))
        np.testing.assert_array_equal(again, expected)


def test_more_rows_than_a_run_has_run_in_several(target: CpuTarget) -> None:
    limits = replace(LIMITS, cache_rows=256)
    wide = opened(target.bundle, limits)
    states = [wide.open(limits) for _ in range(4)]
    results = run(wide, *(chain(state, 20, 9 * at) for at, state in enumerate(states)))
    for at, logits in enumerate(results):
        np.testing.assert_array_equal(logits, run(wide, chain(wide.open(limits), 20, 9 * at))[0])


def test_sequences_with_common_blocks_are_neighbours_in_a_run(target: CpuTarget) -> None:
    first, second = _arena_state(written(target, 20)), _arena_state(written(target, 20, 40))
    states = [first, second, first.fork(), second.fork(), first.fork()]
    (order,) = target._runs([(state, chain(state, 1)[1]) for state in states])
    families = [number % 2 for number in order]
    assert families in ([0, 0, 0, 1, 1], [1, 1, 0, 0, 0])


@pytest.mark.parametrize("use", ["commit", "truncate", "fork", "submit"])
def test_a_closed_sequence_is_refused(target: CpuTarget, use: str) -> None:
    state = written(target, 3)
    state.close()
    calls: dict[str, Any] = {
        "commit": lambda: state.commit(rows(0)),
        "truncate": lambda: state.truncate(0),
        "fork": state.fork,
        "submit": lambda: run(target, chain(state, 1)),
    }
    with pytest.raises(UsageError, match=r"the sequence was closed; open another one with Target\.open"):
        calls[use]()
    assert target.free_rows == 128


def test_rows_that_there_are_not_are_refused(target: CpuTarget) -> None:
    state = written(target, 3)
    for length in (4, -1):
        with pytest.raises(UsageError, match=f"cannot go back to {length} rows, there are 3"):
            state.truncate(length)
    with pytest.raises(UsageError, match="row 0 cannot be committed: 0 rows of the last pass are left"):
        state.commit(rows(1))
    run(target, chain(state, 4))
    with pytest.raises(EdgedecError, match="nodes must ascend"):
        state.commit(np.array([1, 0, 3], np.int32))
    state.commit(rows(4))
    assert state.length == 7


def test_sequences_that_do_not_belong_together_are_refused(target: CpuTarget, bundle: Bundle) -> None:
    state, other = written(target, 3), opened(bundle)
    with pytest.raises(UsageError, match="a sequence occurs twice in one submit"):
        run(target, chain(state, 1), chain(state, 1))
    with pytest.raises(UsageError, match="the sequence belongs to another target"):
        run(other, chain(state, 1))


@pytest.mark.thorough
@settings(max_examples=60)
@given(data=st.data())
def test_no_block_is_lost_and_none_is_written_by_two(bundle: Bundle, data: st.DataObject) -> None:
    """After any uses, each block is free or in a table, and the next row of a sequence goes to a block of its own."""
    target = _KEPT.setdefault(str(bundle.path), opened(bundle))
    states: list[ArenaState] = []
    for _ in range(data.draw(st.integers(1, 25))):
        use = data.draw(st.sampled_from(["open", "run", "run", "commit", "truncate", "fork", "close"]))
        chosen = [state for state in states if data.draw(st.booleans())]
        if use == "open" or not states:
            states.append(_arena_state(target.open(LIMITS)))
        elif use == "run" and chosen:
            chosen = [state for state in chosen if state.length < 60]
            work = [chain(state, data.draw(st.integers(1, 40 if state.length < 24 else 4))) for state in chosen]
            try:
                run(target, *work)
            except CacheFullError:
                continue
            blocks = [state.last_block() for state in chosen]
            for state, block in zip(chosen, blocks, strict=True):
                assert block is None or sum(block in other.table[0].tolist() for other in states) == 1, state.table
        for state in chosen:
            if use == "commit" and state.held * 16 > state.length and state.length:
                state.commit(rows(0))
            elif use == "commit" and not state.length and state.held:
                state.commit(rows(1))
            elif use == "truncate":
                state.truncate(data.draw(st.integers(0, state.length)))
            elif use == "fork":
                states.append(_arena_state(state.fork()))
            elif use == "close":
                state.close()
                states.remove(state)
        held = {block for state in states for block in state.table[0].tolist()}
        assert target.free_rows == 128 - 16 * len(held)
    for state in states:
        state.close()
    assert target.free_rows == 128


_KEPT: dict[str, CpuTarget] = {}


def _arena_state(state: State) -> ArenaState:
    assert isinstance(state, ArenaState)
    return state


def test_the_footprint_charges_the_arena_and_wide_runs(bundle: Bundle) -> None:
    target = opened(bundle)
    one = target.footprint(replace(LIMITS, cache_rows=0, batch_rows=0))
    two = target.footprint(replace(LIMITS, batch_rows=0))
    wide = target.footprint(replace(LIMITS, batch_rows=80))
    assert two["kv"] == 2 * one["kv"] == wide["kv"]
    assert one["block_tables"] < two["block_tables"] < wide["block_tables"]
    assert wide["activations"] == 2 * two["activations"] == 2 * one["activations"]
    assert wide["logits"] == 2 * two["logits"]
    assert wide["workspace"] > two["workspace"] == one["workspace"]


def test_released_pages_are_given_back_and_taken_again(bundle: Bundle) -> None:
    """Check the bits after rows that were written into released blocks, and those of rows between released blocks."""
    target = opened(bundle, replace(LIMITS, cache_rows=256))
    first, kept, last = written(target, 40, 1), written(target, 20, 2), written(target, 40, 3)
    right = run(target, chain(kept.fork(), 3))
    assert target.idle_bytes % block_bytes(target) == 0
    first.close()
    last.close()
    assert target.idle_bytes >= 6 * block_bytes(target)
    target.release_idle()
    assert target.idle_bytes == 0
    np.testing.assert_array_equal(run(target, chain(kept.fork(), 3)), right)
    again = written(target, 20, 2)
    np.testing.assert_array_equal(run(target, chain(again, 3)), right)


@pytest.mark.thorough
@pytest.mark.skipif(not MemoryMeter().available, reason="the meter needs Linux' /proc/self/smaps_rollup")
def test_released_pages_are_no_longer_charged(bundle: Bundle) -> None:
    target = opened(bundle, replace(LIMITS, cache_rows=64 * 2000))
    size = 8000 * block_bytes(target)
    gc.collect()  # arenas of earlier tests go now, and not while the meter looks
    meter = MemoryMeter()
    target._arena.buffer.cache[...] = 1
    assert meter.charged_bytes() >= 0.9 * size
    state = written(target, 40)
    (pool,) = target._arena.pools
    pool.stale.update(pool.free)  # all free blocks were written to above
    target.release_idle()
    assert meter.charged_bytes() <= 0.2 * size
    state.close()


@pytest.mark.skipif(not MemoryMeter().available, reason="the meter needs Linux' /proc/self/smaps_rollup")
def test_a_row_takes_small_pages_after_pages_were_released(bundle: Bundle) -> None:
    """Write to a block in the middle of each head, where no other page is left. NumPy asks for huge pages of 2 MiB."""
    target = opened(bundle, replace(LIMITS, cache_rows=64))
    views = [view for head in target._arena.heads for view in head]
    blocks = (6 << 20) * len(views) // block_bytes(target)
    target = opened(bundle, replace(LIMITS, cache_rows=16 * blocks))
    meter, arena = MemoryMeter(), target._arena
    arena.buffer.cache[...] = 1
    (pool,) = arena.pools
    pool.stale.update(pool.free)  # all free blocks were written to above
    target.release_idle()
    before = meter.charged_bytes()
    for head in arena.heads:
        for view in head:
            view[len(view) // 2] = 1
    assert meter.charged_bytes() - before <= 0.1 * arena.buffer.cache.nbytes
