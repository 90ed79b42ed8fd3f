"""Run many sequences on every target: each says the same alone and among others, whatever is forked, cut and closed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.bundle.bundle import Bundle
from edgedec.quantize.synthetic.random_bundle import write_random_bundle
from edgedec.runtime.accelerator.options import AcceleratorOptions
from edgedec.runtime.kernels.sessions.operator import usable
from edgedec.runtime.protocols import F32, I32, Limits, Pass, State, Target
from edgedec.runtime.targets import open_target
from edgedec.runtime.targets._portable import OnnxTarget
from edgedec.runtime.targets.accelerator import ProgramTarget
from edgedec.runtime.visibility import tree
from tests.conformance.test_targets import CONFIG
from tests.support.gpu_here import need_gpu

LIMITS = Limits(nodes=8, depth=7, positions=64, cache_rows=640, batch_rows=20)
WINDOW = {"model_type": "mistral", "sliding_window": 11}
# name of the case, with the bits of keys and values, and changes of the model
CASES: dict[str, dict[str, Any]] = {
    "cpu-32": WINDOW,
    "cpu-16": {},
    "cpu-8": WINDOW,
    "float_reference-8": {},
    "portable-32": {},
    "interpreter-8": {},
    "gpu-16": WINDOW,
}


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=[pytest.mark.thorough] if name == "gpu-16" else []) for name in CASES],
)
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Target:
    device, _, bits = request.param.partition("-")
    if device == "gpu":
        need_gpu()
    if device == "cpu" and usable() is None:
        pytest.skip("the kernels' library was not built (no C++ compiler)")
    folder = tmp_path_factory.mktemp("bundles") / "b"
    write_random_bundle(folder, CONFIG | CASES[request.param], method="ternary")
    if device == "portable":
        return OnnxTarget(Bundle.open(folder), device="cpu", limits=LIMITS, threads=1, taps=())
    options: dict[str, Any] = {"kv_bits": int(bits), "threads": 1}
    if device == "interpreter":
        options["accelerator"] = AcceleratorOptions(overrides={"slots": 8})
    return open_target(Bundle.open(folder), device=device, limits=LIMITS, **options)


@dataclass
class Written:
    """Hold a sequence beside one that never shares a pass or a cache, and the rows that both have committed."""

    state: State
    alone: State
    ids: list[int] = field(default_factory=list)


def rows(n: int) -> I32:
    return np.arange(n, dtype=np.int32)


def drawn_pass(data: st.DataObject, state: State) -> Pass:
    n = data.draw(st.integers(1, 8), label="rows")
    ids = data.draw(st.lists(st.integers(0, 100), min_size=n, max_size=n), label="ids")
    parents = [data.draw(st.integers(max(-1, i - 3), i - 1)) for i in range(n)] if data.draw(st.booleans()) else None
    depth = list(range(n))
    for i, parent in enumerate(parents or ()):
        depth[i] = depth[parent] + 1 if parent >= 0 else 0
    return Pass(
        ids=np.array(ids, np.int32),
        positions=np.array(depth, np.int32) + state.length,
        visible=None if parents is None else tree(np.array(parents, np.int32)),
        logits=rows(n) if data.draw(st.booleans()) else None,
    )


def drawn_path(data: st.DataObject, work: Pass) -> I32:
    """Return a path of the pass, from a root down; or nothing."""
    n = len(work.ids)
    end = data.draw(st.integers(-1, n - 1), label="end of the path")
    if end < 0:
        return rows(0)
    if work.visible is None:
        return rows(end + 1)
    return np.array([row for row in range(n) if int(work.visible[end, 0]) >> row & 1], np.int32)


def copied(target: Target, sequence: Written) -> State:
    """Return a state for a fork's lonely twin, which shares nothing: its rows run again if that gives the same bits."""
    if not target.info.batch_invariant:
        return sequence.alone.fork()
    state = target.open(LIMITS)
    for at in range(0, len(sequence.ids), LIMITS.nodes):
        chunk = np.array(sequence.ids[at : at + LIMITS.nodes], np.int32)
        target.submit([(state, Pass(ids=chunk, positions=rows(len(chunk)) + at))]).result()
        state.commit(rows(len(chunk)))
    return state


def logits(target: Target, work: list[tuple[State, Pass]]) -> list[F32]:
    return [result.logits.copy() for result in target.submit(work).result()]


@pytest.mark.thorough(sample=1)
@settings(max_examples=20)
@given(data=st.data())
def test_a_sequence_is_the_same_alone_and_among_others(target: Target, data: st.DataObject) -> None:
    """Passes are submitted together here, and one by one there; forks share rows here, and run them again there."""
    first = Written(target.open(LIMITS), target.open(LIMITS))
    sequences = [first]
    for _ in range(data.draw(st.integers(1, 5), label="rounds")):
        chosen = [item for item in sequences if item.state.length <= 40 and data.draw(st.booleans())] or [first]
        for item in chosen:
            if item.state.length > 40:
                item.state.truncate(17)
                item.alone.truncate(17)
                del item.ids[17:]
        work = [(item, drawn_pass(data, item.state)) for item in chosen]
        together = logits(target, [(item.state, own) for item, own in work])
        for (item, own), result in zip(work, together, strict=True):
            (right,) = logits(target, [(item.alone, own)])
            np.testing.assert_array_equal(result, right)
            path = drawn_path(data, own)
            item.state.commit(path)
            item.alone.commit(path)
            item.ids += own.ids[path].tolist()
            assert item.state.length == item.alone.length == len(item.ids)
        change = data.draw(st.sampled_from(["fork", "fork", "truncate", "close", "nothing"]))
        item = data.draw(st.sampled_from(sequences))
        if change == "fork":
            sequences.append(Written(item.state.fork(), copied(target, item), list(item.ids)))
        elif change == "truncate":
            kept = data.draw(st.integers(0, item.state.length))
            item.state.truncate(kept)
            item.alone.truncate(kept)
            del item.ids[kept:]
        elif change == "close" and item is not first:
            item.state.close()
            sequences.remove(item)
    probe = [(item, Pass(ids=rows(1), positions=rows(1) + item.state.length)) for item in sequences]
    together = logits(target, [(item.state, own) for item, own in probe])
    for (item, own), result in zip(probe, together, strict=True):
        np.testing.assert_array_equal(result, logits(target, [(item.alone, own)])[0])


def test_results_have_the_order_of_the_passes(target: Target) -> None:
    """A target may run them in another order, in several runs; taps, likeliest tokens and rows are those of each pass."""
    states = [target.open(LIMITS) for _ in range(5)]
    passes = [
        Pass(ids=rows(n) + 10 * n, positions=rows(n), logits=rows(n)[::-1].copy(), top_k=n) for n in (3, 8, 1, 8, 5)
    ]
    results = target.submit(list(zip(states, passes, strict=True))).result()
    for work, result in zip(passes, results, strict=True):
        n = len(work.ids)
        (right,) = target.submit([(target.open(LIMITS), work)]).result()
        np.testing.assert_array_equal(result.logits, right.logits)
        assert result.top is not None
        assert right.top is not None
        assert result.top.ids.shape == (n, n)
        np.testing.assert_array_equal(result.top.ids, right.top.ids)
        np.testing.assert_array_equal(result.top.logits, right.top.logits)


def test_nothing_submitted_gives_nothing(target: Target) -> None:
    assert target.submit([]).result() == []


def test_a_closed_sequence_leaves_its_fork_alone(target: Target) -> None:
    state, clean = target.open(LIMITS), target.open(LIMITS)
    work = Pass(ids=rows(6) + 20, positions=rows(6))
    for open_state in (state, clean):
        target.submit([(open_state, work)]).result()
        open_state.commit(rows(6))
    fork = state.fork()
    state.truncate(3)
    state.close()
    state.close()
    other = target.open(LIMITS)
    target.submit([(other, replace(work, ids=rows(6) + 50))]).result()
    after = Pass(ids=rows(1), positions=rows(1) + 6)
    np.testing.assert_array_equal(logits(target, [(fork, after)])[0], logits(target, [(clean, after)])[0])


def test_a_target_says_how_many_rows_are_free(target: Target) -> None:
    """Rows of a shared cache are counted in blocks; a target without one reserves whole contexts in its footprint."""
    kv = target.footprint(LIMITS)["kv"]
    one = target.footprint(replace(LIMITS, cache_rows=0, batch_rows=0))["kv"]
    if target.free_rows is None:
        assert target.info.block_rows == 1
        # An accelerator has the rows of one sequence, and those of the others run again.
        assert kv == (one if isinstance(target, ProgramTarget) else 10 * one)
        return
    assert kv == 10 * one
    free, block = target.free_rows, target.info.block_rows
    assert free % block == 0
    state = target.open(LIMITS)
    assert target.free_rows == free
    target.submit([(state, Pass(ids=rows(8), positions=rows(8)))]).result()
    assert target.free_rows == free - block
    state.commit(rows(8))
    fork = state.fork()
    assert target.free_rows == free - block
    state.close()
    assert target.free_rows == free - block
    fork.close()
    assert target.free_rows == free
