"""Compare the operations of hybrid and state space models with their formulas, written here in float64 for whole paths."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from edgedec.errors import UnsupportedError
from edgedec.graph.graph import RecurrentState
from edgedec.graph.ops import (
    CausalConv,
    Concat,
    DifferentialHeads,
    GatedDeltaRule,
    GatedRmsNorm,
    LayerNorm,
    Operation,
    ScaleColumns,
    SelectiveScan,
    SigmoidGate,
    Split,
)
from edgedec.plugins import load
from edgedec.reference.float_profile.cache import FloatCache
from edgedec.reference.float_profile.model import FloatPassContext
from edgedec.schemes import FloatWeight

TESTED = (
    *(CausalConv, Concat, DifferentialHeads, GatedDeltaRule, GatedRmsNorm, LayerNorm),
    *(ScaleColumns, SelectiveScan, SigmoidGate, Split),
)
OPS = "edgedec.reference.float_profile.ops"
F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
seeds = st.integers(0, 2**32 - 1)


def normal(seed: int, *shape: int) -> F32:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def run(
    op: Operation,
    *inputs: F32,
    weights: dict[str, F32] | None = None,
    cache: FloatCache | None = None,
    visible: NDArray[np.bool_] | None = None,
) -> tuple[F32, ...]:
    rows = len(inputs[0])
    seen = np.tri(rows, dtype=np.bool_) if visible is None else visible
    cache, positions = cache or FloatCache({}), np.arange(rows, dtype=np.int32)
    cache.begin(positions, seen)
    context = FloatPassContext(
        weights=lambda name: FloatWeight(values=(weights or {})[name]),
        cache=cache,
        visible=seen,
        positions=positions,
        embeds=None,
    )
    outputs: tuple[F32, ...] = load(OPS, op.kind).run(op, inputs, context)
    assert all(output.dtype == np.float32 for output in outputs)
    return outputs


def close(actual: F32, expected: F64) -> None:
    assert actual.shape == expected.shape
    assert np.abs(actual - expected).max(initial=0) <= 2e-5 * max(1.0, np.abs(expected).max(initial=0))


@given(seeds, st.integers(1, 3))
def test_split_takes_the_columns_of_each_head(seed: int, heads: int) -> None:
    x = normal(seed, 4, heads * 6)
    op = Split(name="parts", inputs=("x",), outputs=("a", "b", "c"), widths=(1, 3, 2), heads=heads)
    parts = run(op, x)
    for row in range(4):
        for part, (start, stop) in zip(parts, ((0, 1), (1, 4), (4, 6)), strict=True):
            expected = [x[row, 6 * head + column] for head in range(heads) for column in range(start, stop)]
            assert part[row].tolist() == expected


def test_concat_puts_columns_side_by_side() -> None:
    a, b = normal(1, 3, 2), normal(2, 3, 4)
    (both,) = run(Concat(name="both", inputs=("a", "b"), outputs=("y",)), a, b)
    assert all(both[row].tolist() == [*a[row].tolist(), *b[row].tolist()] for row in range(3))


def test_concat_takes_heads_apart_and_leaves_gaps() -> None:
    a, b = normal(1, 3, 4), normal(2, 3, 3)
    op = Concat(name="both", inputs=("a", "b"), outputs=("y",), heads=2, shared=(False, True), gaps=(1, 2))
    (both,) = run(op, a, b)
    for row in range(3):
        whole = b[row].tolist()
        assert both[row].tolist() == [*a[row, :2].tolist(), 0, *whole, 0, 0, *a[row, 2:].tolist(), 0, *whole, 0, 0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"shared": (True,)}, "shared has 1 entries for 2 inputs"),
        ({"gaps": (1, 2, 3)}, "gaps has 3 entries for 2 inputs"),
        ({"gaps": (0, -1)}, r"gaps must not be negative, as in \(0, -1\)"),
    ],
)
def test_a_concat_whose_lists_do_not_fit_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedError, match=f"operation both: {words}"):
        Concat(name="both", inputs=("a", "b"), outputs=("y",), **changes)


@given(seeds)
def test_a_layer_norm_takes_the_mean_away(seed: int) -> None:
    x, weight, bias = 3 + normal(seed, 4, 6), normal(seed + 1, 6), normal(seed + 2, 6)
    op = LayerNorm(name="n", inputs=("x",), outputs=("y",), weight="w", bias="b", eps=1e-2)
    (actual,) = run(op, x, weights={"w": weight, "b": bias})
    wide = x.astype(float)
    expected = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-2) * weight + bias
    close(actual, expected)


@given(seeds)
def test_differential_heads_take_a_part_of_the_second_away(seed: int) -> None:
    x, names = normal(seed, 3, 8), ("q1", "k1", "q2", "k2")
    weights = {name: normal(seed + 1 + at, 5) / np.float32(3) for at, name in enumerate(names)}
    op = DifferentialHeads(name="d", inputs=("x",), outputs=("y",), pairs=2, factors=names, start=0.3)
    (actual,) = run(op, x, weights=weights)
    q1, k1, q2, k2 = (weights[name].astype(float) for name in names)
    factor = np.exp(q1 @ k1) - np.exp(q2 @ k2) + 0.3
    expected = [[row[at] - factor * row[at + 2] for at in (0, 1, 4, 5)] for row in x.astype(float)]
    close(actual, np.array(expected))


def test_scale_has_a_factor_for_each_part_of_the_columns() -> None:
    x = normal(3, 2, 5)
    op = ScaleColumns(name="scaled", inputs=("x",), outputs=("y",), widths=(2, 3), factors=(0.5, -3.0))
    (actual,) = run(op, x)
    assert all(actual[row].tolist() == [*(x[row, :2] * 0.5), *(x[row, 2:] * np.float32(-3))] for row in range(2))


def test_a_sigmoid_gate_multiplies_and_does_not_overflow() -> None:
    gate, x = np.array([[0.5, -200.0, 200.0]], np.float32), np.array([[3.0, 2.0, -4.0]], np.float32)
    (actual,) = run(SigmoidGate(name="gated", inputs=("g", "x"), outputs=("y",)), gate, x)
    close(actual, np.array([[3 / (1 + np.exp(-0.5)), 0.0, -4.0]]))


@given(seeds, st.sampled_from([1, 2, 3]))
def test_a_gated_norm_has_a_mean_for_each_group(seed: int, groups: int) -> None:
    gate, x, weight = normal(seed, 3, 6), normal(seed + 1, 3, 6), normal(seed, 6)
    op = GatedRmsNorm(name="n", inputs=("g", "x"), outputs=("y",), weight="w", eps=1e-3, groups=groups)
    (actual,) = run(op, gate, x, weights={"w": weight})
    y = gate.astype(float) / (1 + np.exp(-gate.astype(float))) * x
    for row in range(3):
        for column in range(6):
            group = y[row].reshape(groups, -1)[column * groups // 6]
            y_hat = y[row, column] / np.sqrt((group**2).mean() + 1e-3) * weight[column]
            assert actual[row, column] == pytest.approx(y_hat, rel=1e-5, abs=1e-6)


# --- operations with a state: expected values of the whole path of a row ----------------------------------------------


def convolved(x: F64, weights: dict[str, F32]) -> F64:
    """Return the outputs of a path x [t, channels]."""
    kernel = weights["w"].shape[2]
    padded = np.concatenate([np.zeros((kernel - 1, x.shape[1])), x])
    total = (
        np.array([(padded[t : t + kernel] * weights["w"][:, 0].T).sum(axis=0) for t in range(len(x))]) + weights["b"]
    )
    result: F64 = total / (1 + np.exp(-total))
    return result


def scanned(parts: list[F64], weights: dict[str, F32]) -> F64:
    """Return the outputs of a path by the sum over all earlier rows, which needs no state."""
    x, b, c, step = parts
    x, b, c = x.reshape(-1, 4, 3), b.reshape(-1, 2, 5), c.reshape(-1, 2, 5)
    d = np.clip(np.log1p(np.exp(step + weights["bias"])), 0.1, 1.5)
    rate = np.exp(weights["decay"].astype(float)).reshape(4, -1)  # one for each head, or for each column of its state
    out = np.zeros_like(x)
    for t in range(len(x)):
        for head in range(4):
            for s in range(t + 1):
                kept = np.exp(-rate[head] * d[s + 1 : t + 1, head].sum())
                out[t, head] += d[s, head] * (c[t, head // 2] * kept @ b[s, head // 2]) * x[s, head]
            out[t, head] += weights["skip"][head] * x[t, head]
    return out.reshape(len(x), -1)


def delta_ruled(parts: list[F64], weights: dict[str, F32]) -> F64:
    """Return the outputs of a path; what is written is first taken away along its key, as a product of matrices."""
    q, k, v = parts[0].reshape(-1, 2, 3), parts[1].reshape(-1, 2, 3), parts[2].reshape(-1, 4, 2)
    written, step = 1 / (1 + np.exp(-parts[3])), np.log1p(np.exp(parts[4] + weights["bias"]))
    kept = np.exp(-np.exp(weights["decay"].astype(float))[:, None] * step.reshape(len(step), 4, -1))
    out = np.zeros_like(v)
    for head in range(4):
        state = np.zeros((3, 2))
        for t in range(len(v)):
            query, key = (x[t, head // 2] / np.sqrt((x[t, head // 2] ** 2).sum() + 1e-6) for x in (q, k))
            state = (np.eye(3) - written[t, head] * np.outer(key, key)) @ (kept[t, head][:, None] * state)
            state += written[t, head] * np.outer(key, v[t, head])
            out[t, head] = state.T @ query / np.sqrt(3)
    return out.reshape(len(v), -1)


CONV = CausalConv(name="c", inputs=("x",), outputs=("y",), state="s", weight="w", bias="b")
SCAN = SelectiveScan(
    name="scan",
    inputs=("x", "b", "c", "d"),
    outputs=("y",),
    state="s",
    heads=4,
    groups=2,
    decay="decay",
    skip="skip",
    step_bias="bias",
    step_limits=(0.1, 1.5),
)
RULE = GatedDeltaRule(
    name="rule",
    inputs=("q", "k", "v", "r", "d"),
    outputs=("y",),
    state="s",
    heads=4,
    key_heads=2,
    decay="decay",
    step_bias="bias",
)
# operation, widths of its inputs, shapes of its weights, shape of its state, and the outputs of a path
CASES: dict[str, tuple[Any, tuple[int, ...], dict[str, tuple[int, ...]], tuple[int, ...], Any]] = {
    "causal_conv": (
        CONV,
        (5,),
        {"w": (5, 1, 4), "b": (5,)},
        (3, 5),
        lambda parts, weights: convolved(parts[0], weights),
    ),
    "selective_scan": (SCAN, (12, 10, 10, 4), dict.fromkeys(("decay", "skip", "bias"), (4,)), (4, 3, 5), scanned),
    "selective_scan by channel": (
        replace(SCAN, decay_by="channel"),
        (12, 10, 10, 4),
        {"decay": (4, 5), **dict.fromkeys(("skip", "bias"), (4,))},
        (4, 3, 5),
        scanned,
    ),
    "gated_delta_rule": (RULE, (6, 6, 8, 4, 4), dict.fromkeys(("decay", "bias"), (4,)), (4, 3, 2), delta_ruled),
    "gated_delta_rule by channel": (
        replace(RULE, decay_by="channel"),
        (6, 6, 8, 4, 12),
        {"decay": (4,), "bias": (12,)},
        (4, 3, 2),
        delta_ruled,
    ),
}


def random_case(kind: str, seed: int, rows: int) -> tuple[Any, list[F32], dict[str, F32], FloatCache, Any]:
    op, widths, shapes, state, formula = CASES[kind]
    weights = {name: normal(seed + at, *shape) for at, (name, shape) in enumerate(shapes.items())}
    inputs = [normal(seed + 9 + at, rows, width) for at, width in enumerate(widths)]
    return op, inputs, weights, FloatCache({}, {"s": RecurrentState(name="s", shape=state)}), formula


def trees(data: st.DataObject, rows: int) -> list[int]:
    return [-1, *(data.draw(st.integers(0, row - 1)) for row in range(1, rows))]


def path_of(parents: list[int], row: int) -> list[int]:
    path = [row]
    while parents[path[0]] >= 0:
        path.insert(0, parents[path[0]])
    return path


def mask(parents: list[int]) -> NDArray[np.bool_]:
    seen = np.zeros((len(parents), len(parents)), np.bool_)
    for row in range(len(parents)):
        seen[row, path_of(parents, row)] = True
    return seen


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(sorted(CASES)), seeds, st.data())
def test_rows_follow_the_formula_of_their_path(kind: str, seed: int, data: st.DataObject) -> None:
    """Run trees one after the other, each continued from a path of the one before."""
    op, inputs, weights, cache, formula = random_case(kind, seed, 12)
    text, start = list[int](), 0
    while start < 12:
        rows = min(data.draw(st.integers(1, 6)), 12 - start)
        parents = trees(data, rows)
        (out,) = run(
            op, *(x[start : start + rows] for x in inputs), weights=weights, cache=cache, visible=mask(parents)
        )
        for row in range(rows):
            path = [*text, *(start + one for one in path_of(parents, row))]
            expected = formula([x[path].astype(np.float64) for x in inputs], weights)
            close(out[row], expected[-1])
        kept = path_of(parents, data.draw(st.integers(0, rows - 1)))
        cache.commit(np.array(kept, np.int32))
        text, start = [*text, *(start + one for one in kept)], start + rows
    assert cache.length == len(text)


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(sorted(CASES)), seeds, st.integers(1, 7))
def test_steps_and_passes_have_the_same_bits(kind: str, seed: int, step: int) -> None:
    op, inputs, weights, cache, _ = random_case(kind, seed, 8)
    (whole,) = run(op, *inputs, weights=weights, cache=cache)
    other, parts = random_case(kind, seed, 8)[3], []
    for start in range(0, 8, step):
        (out,) = run(op, *(x[start : start + step] for x in inputs), weights=weights, cache=other)
        other.commit(np.arange(len(out), dtype=np.int32))
        parts.append(out)
    assert np.concatenate(parts).tobytes() == whole.tobytes()


@pytest.mark.parametrize("kind", CASES)
def test_forks_go_their_own_ways(kind: str) -> None:
    op, inputs, weights, cache, _ = random_case(kind, 4, 6)
    run(op, *(x[:2] for x in inputs), weights=weights, cache=cache)
    fork = cache.fork()  # has the rows of the pass, too
    cache.commit(np.array([0, 1], np.int32))
    fork.commit(np.array([0], np.int32))
    (after,) = run(op, *(x[2:4] for x in inputs), weights=weights, cache=cache)
    run(op, *(x[4:] for x in inputs), weights=weights, cache=fork)
    alone = random_case(kind, 4, 6)[3]
    (whole,) = run(op, *(x[:4] for x in inputs), weights=weights, cache=alone)
    assert np.array_equal(after, whole[2:])


def test_a_recurrent_state_goes_back_to_nothing_or_stays() -> None:
    op, inputs, weights, cache, _ = random_case("causal_conv", 4, 6)
    run(op, *(x[:3] for x in inputs), weights=weights, cache=cache)
    cache.commit(np.arange(3, dtype=np.int32))
    run(op, *(x[3:] for x in inputs), weights=weights, cache=cache)
    assert cache.truncate(3) == 3
    (after,) = run(op, *(x[3:4] for x in inputs), weights=weights, cache=cache)
    (whole,) = run(op, *inputs, weights=weights, cache=random_case("causal_conv", 4, 6)[3])
    assert np.array_equal(after[0], whole[3])
    assert cache.truncate(2) == 0
    (again,) = run(op, *inputs, weights=weights, cache=cache)
    assert np.array_equal(again, whole)
    assert len(cache.positions) == 6


def test_a_mask_that_is_no_tree_is_refused() -> None:
    op, inputs, weights, cache, _ = random_case("causal_conv", 1, 3)
    seen = np.tri(3, dtype=np.bool_)
    seen[2, 0] = False  # sees its parent, and not what that one sees
    with pytest.raises(UnsupportedError, match=r"row 2 of the pass sees rows \[1, 2\], which are no path of a tree"):
        run(op, *inputs, weights=weights, cache=cache, visible=seen)
