"""Test layers that keep the rows of their window only: each pass has the bits of the same model with all rows."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.bundle.bundle import Bundle
from edgedec.errors import UsageError
from edgedec.quantize.synthetic.random_bundle import write_random_bundle
from edgedec.runtime.cache.arena import ArenaState
from edgedec.runtime.kernels.sessions.operator import usable
from edgedec.runtime.model_graph import bundle_graph
from edgedec.runtime.protocols import F32, I32, Limits, Pass, State, Target
from edgedec.runtime.targets._cpu import CpuTarget
from edgedec.runtime.targets.float_reference import _ReferenceTarget
from edgedec.runtime.visibility import tree
from tests.conformance.test_targets import CONFIG

needs_kernels = pytest.mark.skipif(usable() is None, reason="the kernels' library was not built (no C++ compiler)")

LIMITS = Limits(nodes=8, depth=7, positions=160, cache_rows=640, batch_rows=20)
MOST = 4  # sequences
# Only the upper layer of "mixed" has a window, and that of the lower layer of "two" has half of its size.
MODELS: dict[str, dict[str, Any]] = {
    "all": {"model_type": "mistral"},
    "two": {"model_type": "mistral"},
    "mixed": {"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 1},
}
# model, window, sinks, bits: windows of one row, below a pass, of some passes, almost the context, the context, and more.
CASES = [
    ("all", 1, 0, 16),
    ("mixed", 5, 3, 8),
    ("all", 20, 1, 16),
    ("mixed", 33, 0, 16),
    ("all", 40, 17, 8),
    ("mixed", 120, 0, 8),
    ("two", 50, 2, 16),
    ("mixed", 160, 2, 16),
    ("all", 1000, 0, 16),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bundles")


@cache
def opened(folder: Path, case: tuple[str, int, int, int], device: str, *, rings: bool) -> Target:
    """Return a target, of which the windows have ``sinks``, which no family has."""
    model, window, sinks, bits = case
    path = folder / f"{model}-{window}"
    if not path.exists():
        config = CONFIG | MODELS[model] | {"sliding_window": window, "max_position_embeddings": 1024}
        write_random_bundle(path, config, method="ternary")
    bundle = Bundle.open(path)
    graph = bundle_graph(bundle, bits, rings=rings)
    states = {name: replace(state, sinks=sinks if state.window else 0) for name, state in graph.states.items()}
    if model == "two":
        lower = next(iter(states))
        states[lower] = replace(states[lower], window=window // 2)
    bundle.derived["bundle_graph", bits, rings] = replace(graph, states=states)
    if device == "float_reference":
        return _ReferenceTarget(bundle, LIMITS, (), bits, rings=rings)
    kernels = usable()
    assert kernels is not None
    return CpuTarget(bundle, kernels, limits=LIMITS, threads=1, taps=(), kv_bits=bits, rings=rings)


@dataclass
class Twins:
    """Hold a sequence with rings, the same with all rows, and the ids of the rows that both have committed."""

    ring: State
    full: State
    ids: list[int] = field(default_factory=list)
    most: int = 0  # greatest length since its rows were last dropped


def rows(n: int) -> I32:
    return np.arange(n, dtype=np.int32)


def chain(ids: list[int], start: int) -> Pass:
    n = len(ids)
    return Pass(ids=np.array(ids, np.int32), positions=start + rows(n), logits=rows(n))


def run(target: Target, *work: tuple[State, Pass]) -> list[F32]:
    return [result.logits.copy() for result in target.submit(work).result()]


class World:
    """Do the same with sequences of both targets, and compare the bits of all rows."""

    def __init__(self, ring: Target, full: Target) -> None:
        self.ring, self.full = ring, full
        self.twins: list[Twins] = []

    def open(self) -> None:
        self.twins.append(Twins(self.ring.open(LIMITS), self.full.open(LIMITS)))

    def run(self, work: list[tuple[Twins, Pass]]) -> None:
        a = run(self.ring, *((twins.ring, item) for twins, item in work))
        b = run(self.full, *((twins.full, item) for twins, item in work))
        for x, y in zip(a, b, strict=True):
            np.testing.assert_array_equal(x, y)

    def commit(self, twins: Twins, item: Pass, path: I32) -> None:
        twins.ring.commit(path)
        twins.full.commit(path)
        twins.ids += item.ids[path].tolist()
        twins.most = max(twins.most, len(twins.ids))
        assert twins.ring.length == twins.full.length == len(twins.ids)

    def truncate(self, twins: Twins, length: int) -> None:
        """Go back in both; the ring runs the rows again that it has dropped."""
        expected, near = twins.ring.reach(length), length >= twins.most - LIMITS.nodes
        assert expected == length or not near, "a ring goes back by a pass"
        kept = twins.ring.truncate(length)
        assert kept == expected == twins.ring.length
        assert twins.full.truncate(length) == length
        del twins.ids[length:]
        if kept < length:
            twins.most = length
        for start in range(kept, length, LIMITS.nodes):
            ids = twins.ids[start : start + LIMITS.nodes]
            run(self.ring, (twins.ring, chain(ids, start)))
            twins.ring.commit(rows(len(ids)))

    def close(self, twins: Twins) -> None:
        twins.ring.close()
        twins.full.close()
        self.twins.remove(twins)

    def check(self) -> None:
        """Check that no sequence holds more than its part of the arena, and that no block is lost."""
        if not isinstance(self.ring, CpuTarget):
            return
        arena = self.ring._arena
        arena.collect()
        for kind, pool in enumerate(arena.pools):
            held = set[int]()
            for twins in self.twins:
                assert isinstance(twins.ring, ArenaState)
                own = twins.ring._live(0, twins.ring.held)[kind].tolist()
                assert len(own) == len(set(own)) <= pool.capacity.rows(LIMITS.positions) // 16
                held |= set(own)
            assert sorted(pool.free) == sorted(set(range(len(pool.holders))) - held)


def drawn_pass(data: st.DataObject, start: int) -> Pass:
    n = data.draw(st.integers(1, min(LIMITS.nodes, LIMITS.positions - start)), label="rows")
    ids = data.draw(st.lists(st.integers(0, 100), min_size=n, max_size=n), label="ids")
    if data.draw(st.booleans()):
        return chain(ids, start)
    parents = [-1] + [data.draw(st.integers(max(0, row - 3), row - 1)) for row in range(1, n)]
    depth = [0] * n
    for row in range(1, n):
        depth[row] = depth[parents[row]] + 1
    item = chain(ids, start)
    return replace(item, positions=start + np.array(depth, np.int32), visible=tree(np.array(parents, np.int32)))


def drawn_path(data: st.DataObject, item: Pass) -> I32:
    end = data.draw(st.integers(-1, len(item.ids) - 1), label="end of the path")
    if end < 0:
        return rows(0)
    if item.visible is None:
        return rows(end + 1)
    return np.array([row for row in range(end + 1) if int(item.visible[end, 0]) >> row & 1], np.int32)


def use(world: World, data: st.DataObject, steps: int) -> None:
    """Use sequences in any way, and compare them after each step."""
    try:
        _use(world, data, steps)
    finally:  # the targets serve all examples
        for twins in tuple(world.twins):
            world.close(twins)
    world.check()


def _use(world: World, data: st.DataObject, steps: int) -> None:
    world.open()
    for _ in range(steps):
        does = data.draw(st.sampled_from(["open", "pass", "pass", "read", "read", "truncate", "near", "fork", "close"]))
        some = [twins for twins in world.twins if data.draw(st.booleans())] or world.twins[:1]
        free = [twins for twins in some if len(twins.ids) < LIMITS.positions]
        one = some[0] if some else None
        if one is None or (does == "open" and len(world.twins) < MOST):
            world.open()
        elif does == "pass" and free:
            work = [(twins, drawn_pass(data, len(twins.ids))) for twins in free]
            world.run(work)
            for twins, item in work:
                world.commit(twins, item, drawn_path(data, item))
        elif does == "read":
            for _ in range(data.draw(st.integers(1, 8), label="chunks")):
                room = [twins for twins in free if len(twins.ids) + LIMITS.nodes <= LIMITS.positions]
                work = [(twins, chain(data.draw(_CHUNKS), len(twins.ids))) for twins in room]
                world.run(work)
                for twins, item in work:
                    world.commit(twins, item, rows(len(item.ids)))
        elif does in ("truncate", "near"):
            low = len(one.ids) - LIMITS.nodes if does == "near" else 0
            world.truncate(one, data.draw(st.integers(max(0, low), len(one.ids)), label="length"))
        elif does == "fork" and len(world.twins) < MOST:
            world.twins.append(Twins(one.ring.fork(), one.full.fork(), list(one.ids), one.most))
        elif does == "close":
            world.close(one)
        world.check()
    for twins in tuple(world.twins):
        if len(twins.ids) < LIMITS.positions:
            world.run([(twins, chain([7], len(twins.ids)))])


_CHUNKS = st.lists(st.integers(0, 100), min_size=LIMITS.nodes, max_size=LIMITS.nodes)


@needs_kernels
@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("case", CASES, ids=str)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_a_ring_has_the_bits_of_all_rows(folder: Path, case: tuple[str, int, int, int], data: st.DataObject) -> None:
    use(World(*(opened(folder, case, "cpu", rings=rings) for rings in (True, False))), data, 14)


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("case", [CASES[1], CASES[2]], ids=str)
@settings(max_examples=4, deadline=None)
@given(data=st.data())
def test_a_ring_of_the_reference_has_the_bits_of_all_rows(
    folder: Path, case: tuple[str, int, int, int], data: st.DataObject
) -> None:
    use(World(*(opened(folder, case, "float_reference", rings=rings) for rings in (True, False))), data, 8)


@needs_kernels
def test_a_position_that_would_see_dropped_rows_is_refused(folder: Path) -> None:
    """The rows of texts never have such positions, because the rows of a pass follow the committed ones."""
    for device in ("cpu", "float_reference"):
        target = opened(folder, CASES[2], device, rings=True)
        state = target.open(LIMITS)
        for start in range(0, 80, 8):
            run(target, (state, chain([1] * 8, start)))
            state.commit(rows(8))
        (result,) = run(target, (state, chain([5], 80)))
        with pytest.raises(UsageError, match="position 3 would see rows that the sequence has dropped"):
            run(target, (state, chain([5], 3)))
        np.testing.assert_array_equal(run(target, (state, chain([5], 80)))[0], result)
        assert state.reach(60) == (16 if device == "cpu" else 1), "its sinks, in a whole block on the CPU"
        state.close()
