"""Test the size of chunks of prompts against a machine whose times are known."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedec.runtime.engine.chunk_size import STALL, ChunkSize

Machine = Callable[[int, int], float]  # (rows of a chunk, its past) -> seconds


def machine(row: float, past: float, both: float = 0.0) -> Machine:
    """Return a machine on which a pass takes a second, and more for each row, each row of the past, and both together."""
    return lambda rows, before: 1.0 + row * rows + past * before + both * rows * before


def alone(count: int = 5) -> ChunkSize:
    """Return chunks of which so many passes without prompts are known, of one row and one second each."""
    chunks = ChunkSize(lambda rows: float(rows))
    for _ in range(count):
        chunks.observe(1, 0, 0, 1.0)
    return chunks


def read(chunks: ChunkSize, seconds: Machine, *, begin: int = 0, end: int) -> tuple[list[int], list[float]]:
    """Read a prompt from row ``begin`` to ``end`` beside one row, and return the rows and seconds of its passes.

    A pass without rows of prompts, which ``chunks`` asks for from time to time, is run and not returned.
    """
    sizes, times = [], []
    while begin < end:
        size = min(chunks.rows(1, begin), end - begin)
        time = seconds(size, begin if size else 0)
        chunks.observe(1, size, begin if size else 0, time)
        if size:
            sizes.append(size)
            times.append(time)
        begin += size
    return sizes, times


@pytest.mark.thorough
@given(row=st.floats(0.01, 0.35), past=st.floats(0.0, 4e-4), share=st.floats(0.0, 5e-4))
def test_no_pass_takes_much_longer_than_the_limit(row: float, past: float, share: float) -> None:
    """A row becomes dearer by a part of its price for each row before it, which the prices do not describe."""
    _, times = read(alone(), machine(row, past, share * row), end=1000)
    assert max(times) <= max(
        1.1 * STALL, machine(row, past, share * row)(1, 1000)
    )  # a row may take longer than the limit


@pytest.mark.parametrize("row", [0.02, 0.1, 0.2])
def test_chunks_are_as_large_as_the_limit_allows(row: float) -> None:
    sizes, _ = read(alone(), machine(row, 3e-4), end=2000)
    middle = len(sizes) // 2
    best = (STALL - 1 - 3e-4 * sum(sizes[:middle])) / row
    assert best - 2 <= sizes[middle] <= max(1.1 * best, 1)


def test_chunks_begin_small_and_grow_by_a_quarter_at_most() -> None:
    sizes, _ = read(alone(), machine(0.005, 0.0), end=1000)
    assert sizes[0] == 2
    assert all(after <= before + max(1, before // 4) for before, after in pairwise(sizes))
    assert max(sizes) > 100


def test_a_prompt_that_begins_far_behind_a_cached_prefix_begins_with_a_small_chunk() -> None:
    chunks = alone()
    seconds = machine(0.1, 5e-4)
    read(chunks, seconds, end=100)
    sizes, times = read(chunks, seconds, begin=800, end=1000)
    assert sizes[0] == 2
    assert max(times) <= 1.1 * STALL


def test_a_prompt_that_begins_beside_one_with_a_long_past_has_as_many_rows_as_alone() -> None:
    """The chunks of both take turns. Those of the other one are small, because reading its past takes most of the time."""
    chunks, seconds = alone(), machine(0.1, 8e-4)
    for past in range(0, 700, 10):  # prompts of different pasts, from which both prices are learned
        for begin in (0, past):
            size = chunks.rows(1, begin)
            chunks.observe(1, size, begin if size else 0, seconds(size, begin if size else 0))
    far, near = chunks.rows(1, 700), chunks.rows(1, 0)
    far = far or chunks.rows(1, 700)
    near = near or chunks.rows(1, 0)
    chunks.observe(1, far, 700, seconds(far, 700))
    assert far <= 2
    assert chunks.joined(1, 0) == near
    assert near >= 5
    assert chunks.joined(1, 700) <= 2


def test_passes_that_another_program_interrupts_change_little() -> None:
    """Every tenth pass takes three times as long; the others stay below the limit, and the prompt is read about as fast."""
    rng = np.random.default_rng(5)
    quiet, _ = read(alone(), machine(0.1, 2e-4), end=1000)

    def disturbed(rows: int, past: int) -> float:
        return machine(0.1, 2e-4)(rows, past) * (3.0 if rng.random() < 0.1 else 1.0)

    sizes, _ = read(alone(), disturbed, end=1000)
    before = np.cumsum([0, *sizes[:-1]]).tolist()
    assert max(map(machine(0.1, 2e-4), sizes, before)) <= 1.1 * STALL
    assert len(sizes) <= 1.5 * len(quiet)


def test_a_slow_pass_without_prompts_does_not_count() -> None:
    chunks = alone(4)
    chunks.observe(1, 0, 0, 5.0)
    _, times = read(chunks, machine(0.1, 0.0), end=200)
    assert max(times) <= STALL


def test_more_texts_leave_room_for_more_rows() -> None:
    """A pass of eight rows takes eight times as long here, so a chunk beside it may have eight times as many rows."""
    chunks = alone()
    read(chunks, machine(0.1, 0.0), end=200)
    for _ in range(60):
        size = chunks.rows(8, 0)
        chunks.observe(8, size, 0, 8.0 + 0.1 * size)
        size = size or chunks.rows(8, 0)
    assert 45 <= size <= 8 * (STALL - 1) / 0.1


def test_one_pass_in_nine_has_no_rows_of_prompts() -> None:
    chunks, rows = alone(), []
    for _ in range(90):
        rows.append(chunks.rows(1, 0))
        chunks.observe(1, rows[-1], 0, machine(0.1, 0.0)(rows[-1], 0))
    assert [at for at, size in enumerate(rows) if not size] == list(range(8, 90, 9))


@pytest.mark.parametrize("factor", [0.4, 2.5])
def test_chunks_follow_a_machine_whose_speed_changes_while_a_prompt_is_read(factor: float) -> None:
    """All passes take ``factor`` times as long from row 300 on. After a while the chunks are as large as without that."""
    seconds, far = machine(0.1, 2e-4), [0]

    def changing(rows: int, past: int) -> float:
        far[0] = max(far[0], past)
        return seconds(rows, past) * (factor if far[0] >= 300 else 1.0)

    usual, _ = read(alone(), seconds, end=2000)
    sizes, _ = read(alone(), changing, end=2000)
    before = np.cumsum([0, *sizes[:-1]]).tolist()
    late = list(map(seconds, sizes, before))[-len(sizes) // 2 :]
    assert max(late) <= 1.1 * STALL
    assert len(sizes) <= 1.2 * len(usual)


def test_chunks_far_into_a_prompt_do_not_shrink_to_a_single_row() -> None:
    """Reading the past takes twice as long as a pass alone here, so no chunk is within the limit."""
    chunks, seconds = alone(), machine(0.1, 5e-4)
    sizes, times = read(chunks, seconds, end=4000)
    assert sizes[-2] >= 2
    assert max(times) <= 1 + 2.0 * 1.3


def test_nothing_is_learned_while_the_time_without_prompts_is_unknown() -> None:
    chunks = ChunkSize(lambda rows: 0.0)
    chunks.observe(1, 2, 0, 1.0)
    assert chunks.rows(1, 2) == 2
