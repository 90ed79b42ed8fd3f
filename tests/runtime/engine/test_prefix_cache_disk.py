"""Test that rows of the CPU target's cache move to the disk and back without any change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgedec.bundle.bundle import Bundle
from edgedec.errors import CacheFullError, UsageError
from edgedec.quantize.synthetic.random_bundle import write_random_bundle
from edgedec.runtime.engine import prefix_cache
from edgedec.runtime.engine.prefix_cache import CachedRows, PrefixCache
from edgedec.runtime.engine.spill import SpillableState, SpillError, SpillFolder
from edgedec.runtime.kernels.sessions.operator import usable
from edgedec.runtime.protocols import F32, Limits, Pass, State
from edgedec.runtime.row_recipe import CAUSAL
from edgedec.runtime.targets._cpu import CpuTarget
from tests.conformance.test_targets import CONFIG

pytestmark = pytest.mark.skipif(usable() is None, reason="the kernels' library was not built (no C++ compiler)")

LIMITS = Limits(nodes=40, depth=0, positions=64, cache_rows=128, batch_rows=48)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("bundles") / "b"
    write_random_bundle(folder, CONFIG, method="ternary")
    return Bundle.open(folder)


@pytest.fixture(params=[8, 16, 32])
def target(bundle: Bundle, request: pytest.FixtureRequest) -> CpuTarget:
    kernels = usable()
    assert kernels is not None
    return CpuTarget(bundle, kernels, limits=LIMITS, threads=1, taps=(), kv_bits=request.param)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SpillFolder]:
    with SpillFolder(tmp_path, model="m") as disk:
        yield disk


def text(rows: int, seed: int) -> list[int]:
    ids: list[int] = np.random.default_rng(seed).integers(0, 101, rows).tolist()
    return ids


def run(target: CpuTarget, state: State, ids: list[int]) -> F32:
    """Run ids after a sequence's rows, commit them, and return the logits of the last one."""
    positions = np.arange(len(ids), dtype=np.int32) + state.length
    (result,) = target.submit([(state, Pass(ids=np.array(ids, np.int32), positions=positions))]).result()
    state.commit(np.arange(len(ids), dtype=np.int32))
    logits: F32 = result.logits[-1].copy()
    return logits


def written(target: CpuTarget, ids: list[int]) -> State:
    state = target.open(LIMITS)
    for start in range(0, len(ids), 40):
        run(target, state, ids[start : start + 40])
    return state


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.integers(0, 60), kept=st.floats(0, 1), seed=st.integers(0, 1000))
def test_restored_rows_give_the_same_bits(
    target: CpuTarget, disk: SpillFolder, rows: int, kept: float, seed: int
) -> None:
    """Compare the logits after rows that came from the disk, into other blocks, with those after the rows themselves."""
    ids, count = text(rows, seed), int(kept * rows)
    state = written(target, ids)
    assert isinstance(state, SpillableState)
    spilled = disk.write(ids, state, CAUSAL)
    state.truncate(count)
    expected = run(target, state.fork(), [7])
    blocker = written(target, text(17, 1))  # so that other blocks are free
    state.close()
    restored = target.open(LIMITS)
    assert isinstance(restored, SpillableState)
    disk.read(spilled, restored, count, CAUSAL)
    assert restored.length == count
    np.testing.assert_array_equal(run(target, restored, [7]), expected)
    blocker.close()
    restored.close()
    assert target.free_rows == 128
    disk.discard(spilled)


@pytest.mark.thorough(sample=1)
def test_rows_need_room_and_an_empty_sequence(target: CpuTarget, disk: SpillFolder) -> None:
    ids = text(60, 0)
    state, other = written(target, ids), written(target, ids)
    assert isinstance(state, SpillableState)
    spilled = disk.write(ids, state, CAUSAL)
    with pytest.raises(
        UsageError, match=r"60 rows can be restored to a sequence without rows .* not to one with 60 of 64"
    ):
        disk.read(spilled, state, 60, CAUSAL)
    third = target.open(LIMITS)
    assert isinstance(third, SpillableState)
    with pytest.raises(CacheFullError, match="60 rows need 4 blocks of 16 rows, and 0 of 8 are free"):
        disk.read(spilled, third, 60, CAUSAL)
    other.close()
    spilled.file.write_bytes(spilled.file.read_bytes()[:-1] + b"x")
    with pytest.raises(SpillError, match="is damaged"):
        disk.read(spilled, third, 60, CAUSAL)
    assert target.free_rows == 64
    state.close()


@pytest.mark.thorough(sample=1)
def test_layouts_of_other_sizes_differ(bundle: Bundle, target: CpuTarget, disk: SpillFolder) -> None:
    kernels = usable()
    assert kernels is not None
    state = written(target, text(20, 0))
    assert isinstance(state, SpillableState)
    spilled = disk.write(text(20, 0), state, CAUSAL)
    bits = 8 if "x 16," in state.rows_layout() or state.rows_layout().endswith("x 16") else 16
    other = CpuTarget(bundle, kernels, limits=LIMITS, threads=1, taps=(), kv_bits=bits).open(LIMITS)
    assert isinstance(other, SpillableState)
    with pytest.raises(SpillError, match=r"is of another model, layout or text|has another size"):
        disk.read(spilled, other, 20, CAUSAL)
    state.close()


# --- the prefix cache -------------------------------------------------------------------------------------------------


@pytest.fixture
def cache(target: CpuTarget, disk: SpillFolder, monkeypatch: pytest.MonkeyPatch) -> Iterator[PrefixCache]:
    monkeypatch.setattr(prefix_cache, "_LEAST_SPILLED", 20)
    cache = PrefixCache(target, LIMITS, CAUSAL, most=4)
    cache.disk = disk
    yield cache
    cache.close()
    assert target.free_rows == 128


def give(target: CpuTarget, cache: PrefixCache, ids: list[int]) -> None:
    cache.give(CachedRows(state=written(target, ids), ids=list(ids), recipe=CAUSAL))


def files(disk: SpillFolder) -> int:
    return sum(path.name != "lock" for path in disk.path.iterdir())


def test_evicted_rows_are_found_again(target: CpuTarget, cache: PrefixCache, disk: SpillFolder) -> None:
    ids = text(50, 1)
    give(target, cache, ids)
    expected = run(target, (probe := written(target, ids[:45])), [3])
    probe.close()
    assert cache.evict()
    assert (files(disk), target.free_rows) == (1, 128)
    rows = cache.take([*ids[:45], 99])
    assert (rows.ids, rows.state.length) == (ids[:45], 45)
    np.testing.assert_array_equal(run(target, rows.state, [3]), expected)
    rows.state.close()


@pytest.mark.thorough(sample=1)
def test_short_rows_are_run_again(target: CpuTarget, cache: PrefixCache, disk: SpillFolder) -> None:
    give(target, cache, text(19, 1))
    cache.evict()
    assert files(disk) == 0
    ids = text(50, 1)
    give(target, cache, ids)
    cache.evict()
    give(target, cache, ids[:35])  # only 15 rows fewer than on the disk
    rows = cache.take(ids)
    assert rows.ids == ids[:35]
    rows.state.close()


@pytest.mark.thorough(sample=1)
def test_a_file_is_written_once_and_longer_rows_replace_it(
    target: CpuTarget, cache: PrefixCache, disk: SpillFolder
) -> None:
    ids = text(60, 1)
    for count in (40, 40, 30, 60):
        give(target, cache, ids[:count])
        cache.evict()
        assert files(disk) == 1
    rows = cache.take(ids)
    assert len(rows.ids) == 60
    rows.state.close()


@pytest.mark.thorough(sample=1)
def test_damaged_rows_are_run_again(target: CpuTarget, cache: PrefixCache, disk: SpillFolder) -> None:
    ids = text(50, 1)
    give(target, cache, ids)
    cache.evict()
    (file,) = (path for path in disk.path.iterdir() if path.name != "lock")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    rows = cache.take(ids)
    assert (rows.ids, rows.state.length, files(disk), target.free_rows) == ([], 0, 0, 128)
    rows.state.close()


@pytest.mark.thorough(sample=1)
def test_rows_on_the_disk_evict_others_for_their_room(target: CpuTarget, cache: PrefixCache, disk: SpillFolder) -> None:
    texts = [text(60, seed) for seed in range(3)]
    for ids in texts[:2]:
        give(target, cache, ids)
    cache.evict()
    give(target, cache, texts[2])
    assert target.free_rows == 0
    rows = cache.take(texts[0])
    assert rows.ids == texts[0]
    assert (len(cache), files(disk)) == (0, 3)  # four blocks and one to write to
    rows.state.close()


@pytest.mark.thorough(sample=1)
def test_the_oldest_files_make_room_on_the_disk(target: CpuTarget, tmp_path: Path) -> None:
    cache = PrefixCache(target, LIMITS, CAUSAL, most=4)
    ids = [text(64, seed) for seed in range(3)]
    with SpillFolder(tmp_path / "a", model="m") as probe:
        state = written(target, ids[0][:60])
        assert isinstance(state, SpillableState)
        size = probe.write(ids[0][:60], state, CAUSAL).nbytes
        state.close()
    with SpillFolder(tmp_path / "b", model="m", limit_bytes=2 * size) as disk:
        cache.disk = disk
        for one in ids:
            give(target, cache, one)
            cache.evict()
        assert (files(disk), disk.nbytes) == (2, 2 * size)
        for one, found in zip(ids, (0, 64, 64), strict=True):
            rows = cache.take(one)
            assert len(rows.ids) == found
            rows.state.close()
    cache.disk = SpillFolder(tmp_path / "c", model="m", limit_bytes=size - 1)
    give(target, cache, ids[0])
    assert cache.evict()  # the rows are dropped
    assert target.free_rows == 128
    cache.disk.close()


@pytest.mark.thorough(sample=1)
def test_without_a_disk_evicted_rows_are_dropped(target: CpuTarget) -> None:
    cache = PrefixCache(target, replace(LIMITS), CAUSAL, most=2)
    ids = text(60, 1)
    give(target, cache, ids)
    cache.evict()
    assert cache.take(ids).ids == []
