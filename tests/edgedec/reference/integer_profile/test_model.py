"""Test the integer profile as a whole: batch-invariant to the bit, near the float profile, clear about its limits."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from edgedec.errors import BundleError, UnsupportedError, UsageError
from edgedec.reference.float_profile.model import ReferenceModel
from edgedec.reference.integer_profile import head
from edgedec.reference.integer_profile.calibrate import calibrate_graph
from edgedec.reference.integer_profile.calibration import Calibration
from edgedec.reference.integer_profile.model import IntegerModel, prepare_graph
from edgedec.reference.integer_profile.model import Sequence as Decoding
from edgedec.reference.integer_profile.ops import attention
from edgedec.reference.integer_profile.values import Logits
from edgedec.runtime.visibility import tree, unpack
from edgedec.schemes import FloatScheme, Int4Scheme, Int8Weight, Scheme, TernaryScheme
from tests.edgedec.reference.integer_profile.support.make_models import (
    CONTEXT,
    KINDS,
    ROTATED,
    VOCAB,
    float_model,
    prepared,
    tiny,
)
from tests.support.make_tiny import CONFIG

I32 = NDArray[np.int32]
tokens = st.integers(0, VOCAB - 1)


def array(values: Sequence[int]) -> I32:
    return np.array(values, np.int32)


@cache
def model(kind: str) -> IntegerModel:
    if kind != "windowed":
        return tiny(kind)[2]
    graph, weights, _ = tiny("native")
    states = {name: replace(state, window=4, sinks=2) for name, state in graph.states.items()}
    return prepared(replace(graph, states=states), weights)


def equal(a: Logits, b: Logits, rows: Any = slice(None)) -> bool:
    return (
        np.array_equal(a.values, b.values[rows])
        and np.array_equal(a.mantissa, b.mantissa[rows])
        and np.array_equal(a.exponent, b.exponent[rows])
    )


def chain(kind: str, ids: Sequence[int]) -> tuple[list[Logits], Decoding]:
    """Run one row per pass."""
    sequence, rows = model(kind).open(), []
    for token in ids:
        rows.append(sequence.forward(array([token]), check=True))
        sequence.commit(array([0]))
    return rows, sequence


def same_cache(a: Decoding, b: Decoding) -> bool:
    a, b = a.fork(), b.fork()
    a.truncate(a.length)
    b.truncate(b.length)
    pairs = [
        (x[name], y[name]) for x, y in ((a.cache.keys, b.cache.keys), (a.cache.values, b.cache.values)) for name in x
    ]
    return np.array_equal(a.cache.positions, b.cache.positions) and all(np.array_equal(x, y) for x, y in pairs)


# --- batch invariance -------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@settings(max_examples=30)
@given(
    st.sampled_from([*KINDS, *ROTATED, "windowed"]),
    st.lists(tokens, min_size=1, max_size=6),
    st.lists(st.tuples(tokens, st.integers(0, 100)), min_size=1, max_size=8),
    st.lists(tokens, min_size=1, max_size=3),
    st.data(),
)
def test_a_partly_committed_tree_equals_the_chain(
    kind: str, prompt: list[int], nodes: list[tuple[int, int]], after: list[int], data: st.DataObject
) -> None:
    """Check that each node's logits, and those after a commit of its path, equal those of the path decoded row by row."""
    parents = [-1, *(choice % (i + 1) for i, (_, choice) in enumerate(nodes[1:]))]
    sequence = model(kind).open()
    sequence.forward(array(prompt), check=True)
    sequence.commit(array(range(len(prompt))))
    paths = [[0]]
    for i in range(1, len(nodes)):
        paths.append([*paths[parents[i]], i])
    positions = array([len(prompt) + len(path) - 1 for path in paths])
    logits = sequence.forward(
        array([token for token, _ in nodes]), positions=positions, visible=tree(array(parents)), check=True
    )
    leaf = data.draw(st.integers(0, len(nodes) - 1))
    text = [*prompt, *(nodes[i][0] for i in paths[leaf])]
    alone, reached = chain(kind, text)
    for at, node in enumerate(paths[leaf]):
        assert equal(alone[len(prompt) + at], logits, slice(node, node + 1))
    length = data.draw(st.integers(1, len(paths[leaf])))
    sequence.commit(array(paths[leaf][:length]))
    reached.truncate(len(prompt) + length)
    assert same_cache(sequence, reached)
    assert equal(sequence.forward(array(after), check=True), reached.fork().forward(array(after)))
    assert equal(sequence.forward(array(after[:1])), reached.forward(array(after)), slice(0, 1))


@pytest.mark.thorough(sample=3)
@pytest.mark.parametrize("kind", [*KINDS, *ROTATED, "windowed"])
def test_any_split_into_passes_gives_the_same_bits(kind: str) -> None:
    ids = np.random.default_rng(3).integers(0, VOCAB, 14).tolist()
    alone, reached = chain(kind, ids)
    for cuts in ([14], [1, 13], [8, 6], [3, 3, 8]):
        sequence, start = model(kind).open(), 0
        for n in cuts:
            logits = sequence.forward(array(ids[start : start + n]), check=True)
            sequence.commit(array(range(n)))
            assert all(equal(alone[start + i], logits, slice(i, i + 1)) for i in range(n))
            start += n
        assert same_cache(sequence, reached)


def test_requested_rows_and_embeddings_give_the_same_bits() -> None:
    graph, weights, subject = tiny("planes2")
    ids = array([3, 9, 1, 40])
    all_rows = subject.open().forward(ids)
    some_rows = subject.open().forward(ids, want_rows=array([2, 0]))
    assert equal(some_rows, all_rows, [2, 0])
    table: Any = weights["model.embed_tokens.weight"]
    given_rows = subject.open().forward(array([3, -1, 1, -2]), embeds=table.rows(array([9, 40])))
    assert equal(given_rows, all_rows)
    assert graph.values["logits"].shape == ("r", VOCAB)


# --- against the float profile ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*KINDS, *ROTATED])
def test_logits_are_near_those_of_the_float_profile(kind: str) -> None:
    graph, weights, subject = tiny(kind)
    ids = np.random.default_rng(9).integers(0, VOCAB, 24).astype(np.int32)
    reference = ReferenceModel(graph, weights.__getitem__)
    expected, _ = reference.forward(ids, reference.new_cache())
    actual = subject.open().forward(ids, check=True)
    error = head.real(actual) - expected
    assert np.sqrt(np.square(error).mean() / np.square(expected).mean()) < 0.08
    logits = head.real(replace(actual, cap=None))
    if actual.cap is not None:
        assert np.allclose(head.real(actual), actual.cap * np.tanh(logits / actual.cap))
        assert np.abs(head.real(actual)).max() < 0.97 * np.abs(logits).max()
    best = head.top(actual, 3)
    assert np.array_equal(best[:, 0], logits.argmax(axis=1))
    assert np.array_equal(np.take_along_axis(actual.values, best.astype(np.int64), 1), -np.sort(-actual.values)[:, :3])


def test_equal_logits_are_ordered_by_id() -> None:
    tied = Logits(values=np.array([[5, 7, 7, 1]]), mantissa=np.array([40000]), exponent=np.array([-20]))
    assert head.top(tied, 3).tolist() == [[1, 2, 0]]


def test_the_trace_names_every_output_in_order() -> None:
    graph, _, subject = tiny("bitnet")
    names: list[str] = []
    plain = subject.open().forward(array([1, 2]))
    traced = subject.open().forward(array([1, 2]), trace=lambda name, x: names.append(name))
    assert equal(plain, traced)
    outputs = [op.outputs[0] for op in graph.operations if op.kind != "select_rows"]
    assert [name for name in names if name in outputs] == outputs
    for name in ("layers.0.q_proj.acc", "layers.1.attn.k8", "layers.0.ffn_sub_norm.root", "final_norm.scale.mantissa"):
        assert name in names


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize(
    ("scheme", "changes", "message"),
    [
        (
            Int4Scheme(),
            {},
            r"linear layers\.0\.q_proj.* is int4, which the accelerator cannot multiply; quantize with --method ternary",
        ),
        (FloatScheme(), {}, r"linear layers\.0\.q_proj\|.*q_proj\.weight.* is kept as float; quantize it"),
        (
            TernaryScheme(planes=2, group_size=32),
            {},
            r"linear layers\.0\.q_proj.* has groups of 32 columns; quantize with --group-size 64 or 128",
        ),
        (
            TernaryScheme(),
            {"hidden_size": 16384, "num_hidden_layers": 1},
            r"attn_norm: its rows are 16384 wide; at most 16383",
        ),
        (TernaryScheme(), {"rms_norm_eps": 1e9}, r"rms_norm layers\.0\.attn_norm: eps 1e\+09 is \d+ in squared units"),
    ],
)
def test_unsupported_graphs_are_refused(scheme: Scheme, changes: Mapping[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        prepared(*float_model(scheme, changes))


def test_a_head_that_is_too_wide_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "_WIDEST_HEAD", 8)
    with pytest.raises(UnsupportedError, match=r"attention layers\.0\.attn: its heads are 10 wide; at most 8"):
        prepared(*float_model(*KINDS["native"]))


def test_a_gate_out_of_range_is_refused() -> None:
    graph, weights = float_model(*KINDS["int8"])
    gate: Any = weights["model.layers.1.mlp.gate_proj.weight"]
    loud = {**weights, "model.layers.1.mlp.gate_proj.weight": Int8Weight(codes=gate.codes, scale=gate.scale * 1e4)}
    with pytest.raises(UnsupportedError, match=r"layers\.1\.gate reaches .* a silu's gate must stay below 1024"):
        prepared(graph, loud)


def test_negative_and_zero_scales_are_computed() -> None:
    graph, weights = float_model(*KINDS["int8"])
    name = "model.layers.0.mlp.up_proj.weight"
    up: Any = weights[name]
    turned = Int8Weight(codes=-up.codes, scale=-up.scale)
    ids = array([1, 5, 9])
    assert equal(prepared(graph, {**weights, name: turned}).open().forward(ids), model("int8").open().forward(ids))
    silent = {**weights, name: Int8Weight(codes=up.codes, scale=up.scale * 0)}
    actual = head.real(prepared(graph, silent).open().forward(ids, check=True))
    reference = ReferenceModel(graph, silent.__getitem__)
    assert np.allclose(actual, reference.forward(ids, reference.new_cache())[0], atol=0.05 * np.abs(actual).max())


@pytest.mark.parametrize(
    ("ids", "options", "message"),
    [
        ([], {}, "needs at least one id"),
        ([VOCAB], {}, rf"ids {VOCAB}\.\.{VOCAB} are not in 0\.\.{VOCAB - 1}"),
        ([-1], {}, r"ids -1\.\.-1 are not in 0\.\."),
        ([1, 2], {"positions": array([0])}, "needs 2 positions"),
        ([1, 2], {"positions": array([0, -1])}, "none negative"),
        ([1, 2], {"visible": np.array([[True, False], [True, False]])}, "row 1 of the pass does not see itself"),
        ([1, 2], {"visible": np.ones((2, 3), np.bool_)}, r"needs visible as bool \[2, 2\] or uint64 \[2, 1\]"),
        ([1, 2], {"want_rows": array([2])}, r"logits of rows \[2\] are requested of a pass of 2"),
    ],
)
def test_invalid_passes_are_refused(ids: list[int], options: Mapping[str, Any], message: str) -> None:
    sequence = model("native").open()
    sequence.forward(array([1, 2, 3]))
    sequence.commit(array([0, 1]))
    before = sequence.fork()
    with pytest.raises(UsageError, match=message):
        sequence.forward(array(ids), **options)
    assert same_cache(sequence, before)


@pytest.mark.parametrize("nodes", [[3], [-1], [0, 0]])
def test_invalid_commits_are_refused(nodes: list[int]) -> None:
    sequence = model("native").open()
    sequence.forward(array([1, 2, 3]))
    with pytest.raises(UsageError, match=r"commit .* of a pass of 3 rows"):
        sequence.commit(array(nodes))
    with pytest.raises(UsageError, match="truncate to 1 rows of 0"):
        sequence.truncate(1)


# --- calibration ------------------------------------------------------------------------------------------------------


def test_a_calibration_survives_json_and_is_deterministic() -> None:
    graph, weights, subject = tiny("planes3")
    windows = [array([1, 2, 3, 4, 5])]
    calibration = calibrate_graph(graph, weights.__getitem__, windows, context=CONTEXT)
    assert calibration == calibrate_graph(graph, weights.__getitem__, windows, context=CONTEXT)
    assert Calibration.from_json(calibration.to_json()) == calibration
    again = prepare_graph(graph, weights.__getitem__, Calibration.from_json(calibration.to_json()))
    assert equal(
        again.open().forward(array([7, 8])),
        prepare_graph(graph, weights.__getitem__, calibration).open().forward(array([7, 8])),
    )
    assert subject.vocab == VOCAB
    with pytest.raises(UsageError, match="at least one token id"):
        calibrate_graph(graph, weights.__getitem__, [], context=CONTEXT)


def test_rotated_columns_are_calibrated_over_the_context() -> None:
    """Check that a slow pair is calibrated over columns that the window itself does not reach."""
    graph, weights, _ = tiny("native")
    near, far = (calibrate_graph(graph, weights.__getitem__, [array([4])], context=n) for n in (1, 4096))
    assert np.allclose(near.columns("layers.0.k"), 0)  # one key at one position: each column is its own middle
    key = np.abs(near.middles["layers.0.k"])
    assert np.array(far.columns("layers.0.k")).min() > 0
    assert np.hypot(key[0], key[5]) == pytest.approx(
        far.columns("layers.0.k")[0], rel=0.01
    )  # the fastest pair describes a circle
    assert near.columns("layers.0.v") == far.columns("layers.0.v")


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"format": "x", "maxima": {}, "tokens": 1}', "[" * 100000]
    + [
        json.dumps({"format": "edgedec-integer-calibration-1", "tokens": 1, "maxima": {"a": limit}, "middles": middles})
        for limit, middles in (
            ([], {}),
            ([-1.0], {}),
            ([float("nan")], {}),
            (["a"], {}),
            (3, {}),
            ([1.0], []),
            ([1.0], {"a": [1.0, 2.0]}),
            ([1.0], {"a": [float("inf")]}),
            ([1.0], {"b": [1.0]}),
        )
    ],
)
def test_damaged_calibrations_are_refused(text: str) -> None:
    with pytest.raises(BundleError, match="calibration"):
        Calibration.from_json(text)


def test_the_calibration_of_another_model_is_refused() -> None:
    graph, weights, _ = tiny("native")
    with pytest.raises(BundleError, match="made for another model"):
        prepare_graph(graph, weights.__getitem__, Calibration(maxima={"embed": (1.0,)}, middles={}, tokens=1))
    assert CONFIG["num_hidden_layers"] == 2


def test_packed_visibility_is_that_of_the_runtime() -> None:
    parents = array([-1, 0, 0, 2])
    packed, ids, positions = tree(parents), array([1, 2, 3, 4]), array([0, 1, 1, 2])
    a = model("int8").open().forward(ids, positions=positions, visible=packed)
    b = model("int8").open().forward(ids, positions=positions, visible=unpack(packed, 4))
    assert equal(a, b)
