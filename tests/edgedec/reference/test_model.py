"""Test the reference as a whole: a row's result depends on the row and on the keys that it sees alone, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from edgedec.errors import UnsupportedError
from edgedec.graph.graph import Graph
from edgedec.graph.ops import Add, Operation
from edgedec.graph.passes import fuse_linears, quantize_activations
from edgedec.reference.float_profile.cache import FloatCache
from edgedec.reference.float_profile.model import ReferenceModel
from edgedec.runtime.visibility import pack, tree, unpack
from edgedec.schemes import FloatWeight
from tests.support.make_tiny import CONFIG, random_model

I32 = NDArray[np.int32]
VOCAB = CONFIG["vocab_size"]
KINDS = ["float", "int8", "native", "planes2", "windowed"]
kinds = st.sampled_from(KINDS)
tokens = st.integers(0, VOCAB - 1)


@cache
def model(kind: str) -> ReferenceModel:
    graph, weights = random_model("int8" if kind == "windowed" else kind)
    if kind == "windowed":
        states = {name: replace(state, window=4, sinks=2) for name, state in graph.states.items()}
        graph = replace(graph, states=states)
    return ReferenceModel(fuse_linears(quantize_activations(graph)), weights.__getitem__)


def array(values: Sequence[int]) -> I32:
    return np.array(values, np.int32)


@cache
def stepped(kind: str, ids: tuple[int, ...]) -> tuple[tuple[NDArray[np.float32], ...], FloatCache]:
    if not ids:
        return (), model(kind).new_cache()
    rows, before = stepped(kind, ids[:-1])
    after = before.fork()
    row = model(kind).forward(array([ids[-1]]), after)[0][0]
    after.commit(array([0]))
    return (*rows, row), after


def step_by_step(kind: str, ids: Sequence[int]) -> tuple[NDArray[np.float32], FloatCache]:
    """Run one row per pass; return the logits of every row and the cache."""
    rows, reached = stepped(kind, tuple(ids))
    return np.array(rows, np.float32).reshape(-1, VOCAB), reached.fork()


def same(a: FloatCache, b: FloatCache) -> bool:
    """Check that committed rows are equal bit for bit; rows of an uncommitted pass do not count."""
    a, b = a.fork(), b.fork()
    a.truncate(a.length)
    b.truncate(b.length)
    pairs = [(a.keys[name], b.keys[name]) for name in a.states] + [
        (a.values[name], b.values[name]) for name in a.states
    ]
    return np.array_equal(a.positions, b.positions) and all(np.array_equal(x, y) for x, y in pairs)


# --- batch invariance -------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@settings(max_examples=50)
@given(kinds, st.lists(tokens, min_size=1, max_size=14), st.data())
def test_any_split_into_passes_gives_the_same_bits(kind: str, ids: list[int], data: st.DataObject) -> None:
    expected, reached = step_by_step(kind, ids)
    cuts = data.draw(st.lists(st.integers(0, len(ids)), max_size=3).map(lambda parts: sorted({0, len(ids), *parts})))
    cache_, parts = model(kind).new_cache(), []
    for start, stop in pairwise(cuts):
        parts.append(model(kind).forward(array(ids[start:stop]), cache_)[0])
        cache_.commit(np.arange(stop - start, dtype=np.int32))
    assert np.array_equal(np.concatenate(parts), expected)
    assert same(cache_, reached)


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("kind", KINDS)
def test_a_long_prefill_gives_the_bits_of_single_steps(kind: str) -> None:
    ids = np.random.default_rng(0).integers(0, VOCAB, 150).tolist()
    expected, reached = step_by_step(kind, ids)
    cache_ = model(kind).new_cache()
    actual = model(kind).forward(array(ids), cache_)[0]
    cache_.commit(np.arange(150, dtype=np.int32))
    assert np.array_equal(actual, expected)
    assert same(cache_, reached)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["float", "planes2"])
def test_wide_rows_give_the_same_bits(kind: str) -> None:
    """Use widths at which a BLAS library computes in blocks and threads."""
    graph, weights = random_model(
        kind, {"hidden_size": 512, "intermediate_size": 1408, "head_dim": 64, "num_hidden_layers": 1}
    )
    wide = ReferenceModel(quantize_activations(graph), weights.__getitem__)
    ids = np.random.default_rng(1).integers(0, VOCAB, 24).astype(np.int32)
    cache_ = wide.new_cache()
    together = wide.forward(ids, cache_)[0]
    cache_, single = wide.new_cache(), []
    for token in ids:
        single.append(wide.forward(array([token]), cache_)[0][0])
        cache_.commit(array([0]))
    assert np.array_equal(together, single)


@dataclass(frozen=True)
class Node:
    """Model a tree as protocols.TokenTree has it, with its paths spelled out."""

    token: int
    parent: int


trees = st.lists(st.tuples(tokens, st.floats(0, 1)), min_size=1, max_size=9).map(
    lambda drawn: [Node(token, min(int(at * (i + 1)), i) - 1) for i, (token, at) in enumerate(drawn)]
)


def path(nodes: list[Node], node: int) -> list[int]:
    return [*(path(nodes, nodes[node].parent) if nodes[node].parent >= 0 else []), node]


@pytest.mark.thorough
@settings(max_examples=60)
@given(kinds, st.lists(tokens, max_size=6), trees, st.data())
def test_a_tree_pass_equals_its_chains(kind: str, prefix: list[int], nodes: list[Node], data: st.DataObject) -> None:
    """Check that each node's logits are those of its path as plain text, and that a committed path is that text."""
    subject = model(kind)
    _, cache_ = step_by_step(kind, prefix)
    parents = array([node.parent for node in nodes])
    depth = array([len(path(nodes, i)) - 1 for i in range(len(nodes))])
    logits, _ = subject.forward(
        array([node.token for node in nodes]),
        cache_,
        positions=len(prefix) + depth,
        visible=unpack(tree(parents), len(nodes)),
    )
    for node in range(len(nodes)):
        text = prefix + [nodes[i].token for i in path(nodes, node)]
        assert np.array_equal(logits[node], step_by_step(kind, text)[0][-1])
    # Accept a path, or a part of it.
    accepted_path = path(nodes, data.draw(st.integers(0, len(nodes) - 1)))
    accepted_path = accepted_path[: data.draw(st.integers(0, len(accepted_path)))]
    cache_.commit(array(accepted_path))
    text = prefix + [nodes[i].token for i in accepted_path]
    assert cache_.length == len(text)
    chain = step_by_step(kind, text)[1]
    assert same(cache_, chain)
    # The following rows are the same as well.
    after = subject.forward(array([7, 8]), cache_)[0]
    assert np.array_equal(after, subject.forward(array([7, 8]), chain)[0])


@settings(max_examples=25)
@given(kinds, st.lists(tokens, min_size=2, max_size=8), st.data())
def test_rows_that_nothing_sees_change_nothing(kind: str, ids: list[int], data: st.DataObject) -> None:
    """Fill rows that no row sees with anything, at any position."""
    subject, hidden = model(kind), data.draw(tokens)
    n = len(ids)
    at = data.draw(st.integers(0, n))
    visible = np.insert(np.insert(np.tri(n, dtype=np.bool_), at, False, axis=0), at, False, axis=1)
    visible[at, at] = True
    positions = np.insert(np.arange(n, dtype=np.int32), at, 99)
    logits, _ = subject.forward(
        array([*ids[:at], hidden, *ids[at:]]), subject.new_cache(), positions=positions, visible=visible
    )
    assert np.array_equal(np.delete(logits, at, axis=0), subject.forward(array(ids), subject.new_cache())[0])


@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_token_changes_later_rows(kind: str) -> None:
    """Check that the equalities above are not those of a model that ignores its past."""
    changed = step_by_step(kind, [3, 4, 5])[0]
    assert np.abs(step_by_step(kind, [2, 4, 5])[0] - changed).max(axis=1).min() > 1e-3
    assert np.abs(step_by_step(kind, [5])[0][0] - changed[2]).max() > 1e-3


def test_a_window_hides_older_rows() -> None:
    """Check that beyond a window of 4 only the two sinks and the last tokens reach a row of the first layer."""
    taps = ("layers.0.attn",)
    rows = []
    for third in (5, 6):
        ids = array([1, 2, third, 4, 5, 6, 7, 8])
        rows.append(model("windowed").forward(ids, model("windowed").new_cache(), taps=taps)[1][taps[0]])
    assert np.array_equal(rows[0][6:], rows[1][6:])  # position 2 is at a distance of 4 or more
    assert not np.array_equal(rows[0][5], rows[1][5])
    far = model("windowed").forward(array([9, 2, 5, 4, 5, 6, 7, 8]), model("windowed").new_cache(), taps=taps)[1][
        taps[0]
    ]
    assert not np.array_equal(far[7], rows[0][7])  # position 0 is a sink


# --- rows, taps, embeddings -------------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(kinds, st.lists(tokens, min_size=1, max_size=6), st.data())
def test_requested_rows_are_returned(kind: str, ids: list[int], data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.integers(0, len(ids) - 1), max_size=8))
    every = model(kind).forward(array(ids), model(kind).new_cache())[0]
    assert every.shape == (len(ids), VOCAB)
    assert every.dtype == np.float32
    cache_ = model(kind).new_cache()
    actual = model(kind).forward(array(ids), cache_, rows=array(rows))[0]
    assert np.array_equal(actual, every[rows])
    # The cache gets all rows nevertheless.
    cache_.commit(np.arange(len(ids), dtype=np.int32))
    assert same(cache_, step_by_step(kind, ids)[1])


def test_taps_return_inner_values() -> None:
    subject = model("int8")
    names = [name for operation in subject.graph.operations for name in operation.outputs]
    ids, rows = array([3, 1, 4]), array([2])
    logits, taps = subject.forward(ids, subject.new_cache(), rows=rows, taps=names)
    assert list(taps) == names
    assert np.array_equal(taps["logits"], logits)
    sizes = {"n": 3, "r": 1}
    for name, value in taps.items():
        declared = subject.graph.values[name]
        assert value.dtype == declared.dtype
        assert value.shape == tuple(sizes[size] if isinstance(size, str) else size for size in declared.shape)
    assert np.array_equal(taps["layers.1.out"], taps["layers.1.attn_out"] + taps["layers.1.down"])
    assert np.array_equal(taps["wanted"], taps["layers.1.out"][2:])
    assert subject.forward(ids, subject.new_cache())[1] == {}
    inputs = subject.forward(ids, subject.new_cache(), taps=("ids", "positions"))[1]
    assert inputs["positions"].tolist() == [0, 1, 2]


def test_an_unknown_tap_is_refused_before_anything_runs() -> None:
    subject = model("int8")
    cache_ = subject.new_cache()
    with pytest.raises(UnsupportedError, match=r"the graph has no value 'layers\.9\.out' to tap"):
        subject.forward(array([1]), cache_, taps=("logits", "layers.9.out"))
    assert len(cache_.positions) == 0


@settings(max_examples=25)
@given(kinds, st.lists(tokens, min_size=1, max_size=5), st.data())
def test_given_embeddings_replace_ids(kind: str, ids: list[int], data: st.DataObject) -> None:
    subject = model(kind)
    embeds = subject.weights("model.embed_tokens.weight").dense()[::-1]  # id t is row VOCAB - 1 - t: id -(VOCAB - t)
    replaced = [data.draw(st.sampled_from([token, token - VOCAB])) for token in ids]
    actual = subject.forward(array(replaced), subject.new_cache(), embeds=embeds)[0]
    assert np.array_equal(actual, step_by_step(kind, ids)[0])


# --- the cache --------------------------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(kinds, st.lists(tokens, min_size=1, max_size=8), st.data())
def test_truncate_leaves_a_shorter_text(kind: str, ids: list[int], data: st.DataObject) -> None:
    _, cache_ = step_by_step(kind, ids)
    if data.draw(st.booleans()):
        model(kind).forward(array([1, 2]), cache_)  # uncommitted rows are dropped, too
    length = data.draw(st.integers(0, len(ids)))
    cache_.truncate(length)
    assert cache_.length == length == len(cache_.positions)
    _, expected = step_by_step(kind, ids[:length])
    assert same(cache_, expected)
    after = model(kind).forward(array([5]), cache_)[0]
    assert np.array_equal(after, model(kind).forward(array([5]), expected)[0])


@pytest.mark.thorough
@settings(max_examples=25)
@given(
    kinds,
    st.lists(tokens, max_size=5),
    st.lists(tokens, min_size=1, max_size=4),
    st.lists(tokens, min_size=1, max_size=4),
)
def test_forks_share_a_prefix_and_nothing_else(kind: str, ids: list[int], left: list[int], right: list[int]) -> None:
    subject = model(kind)
    _, cache_ = step_by_step(kind, ids)
    fork = cache_.fork()
    for token_a, token_b in zip((left * 4)[:4], (right * 4)[:4], strict=True):
        for place, token in ((cache_, token_a), (fork, token_b)):
            subject.forward(array([token, 1]), place)
            place.commit(array([0]))
    assert same(cache_, step_by_step(kind, ids + (left * 4)[:4])[1])
    assert same(fork, step_by_step(kind, ids + (right * 4)[:4])[1])
    fork.truncate(0)
    assert cache_.length == len(ids) + 4


def test_a_fork_keeps_the_rows_of_the_uncommitted_pass() -> None:
    """Check this because a tree may be verified once and committed along two paths."""
    subject = model("planes2")
    _, cache_ = step_by_step("planes2", [3])
    visible = unpack(tree(array([-1, -1])), 2)
    subject.forward(array([5, 6]), cache_, positions=array([1, 1]), visible=visible)
    fork = cache_.fork()
    cache_.commit(array([0]))
    fork.commit(array([1]))
    assert same(cache_, step_by_step("planes2", [3, 5])[1])
    assert same(fork, step_by_step("planes2", [3, 6])[1])


def test_a_pass_drops_the_uncommitted_rows_before_it() -> None:
    subject = model("float")
    _, cache_ = step_by_step("float", [3, 4])
    for _ in range(3):
        subject.forward(array([9, 9, 9]), cache_)
    actual = subject.forward(array([5]), cache_)[0]
    assert np.array_equal(actual[0], step_by_step("float", [3, 4, 5])[0][-1])
    assert {len(keys) for keys in cache_.keys.values()} == {3}


def test_commit_takes_rows_of_the_last_pass_only() -> None:
    subject = model("float")
    _, cache_ = step_by_step("float", [3, 4])
    for nodes in ([0], [-1]):
        with pytest.raises(AssertionError, match=r"commit .* of a pass of 0 rows"):
            cache_.commit(array(nodes))
    subject.forward(array([5, 6]), cache_)
    for nodes in ([2], [-1], [0, 1, 2]):
        with pytest.raises(AssertionError, match=r"commit .* of a pass of 2 rows"):
            cache_.commit(array(nodes))
    cache_.commit(array([]))
    assert same(cache_, step_by_step("float", [3, 4])[1])


def test_truncate_only_shortens() -> None:
    _, cache_ = step_by_step("float", [3, 4])
    model("float").forward(array([5, 6]), cache_)
    for length in (-1, 3, 4):
        with pytest.raises(AssertionError, match=f"truncate 2 rows to {length}"):
            cache_.truncate(length)
    assert cache_.length == 2


def test_a_failed_pass_leaves_the_cache_usable() -> None:
    """Fail after half of the states have the pass's rows, which the next pass drops."""
    subject = model("float")
    _, cache_ = step_by_step("float", [3, 4])

    def weights(name: str) -> Any:
        if "layers.0.self_attn.o_proj" in name:
            raise MemoryError
        return subject.weights(name)

    with pytest.raises(MemoryError):
        ReferenceModel(subject.graph, weights).forward(array([9, 9]), cache_)
    with pytest.raises(AssertionError, match=r"commit \[0\] of a pass of 0 rows"):
        cache_.commit(array([0]))
    actual = subject.forward(array([5]), cache_)[0]
    assert np.array_equal(actual[0], step_by_step("float", [3, 4, 5])[0][-1])


def test_an_operation_without_a_definition_is_named() -> None:
    class Convolve(Operation):
        kind: ClassVar[str] = "convolve"

    graph = model("float").graph
    last = graph.operations[-1]
    odd = Convolve(name="layers.0.conv", inputs=last.inputs, outputs=last.outputs)
    odd_graph = replace(graph, operations=(*graph.operations[:-1], odd))
    with pytest.raises(
        UnsupportedError, match=r"does not define 'convolve' \(layers\.0\.conv\); known: add, attention"
    ):
        ReferenceModel(odd_graph, model("float").weights)


def test_a_graph_without_layers_runs() -> None:
    """Check that the interpreter knows nothing of layers, heads or vocabularies."""
    base = model("float").graph
    values = {name: replace(base.values["embed"], name=name) for name in ("embed", "twice")}
    graph = Graph(
        inputs=base.inputs,
        outputs=("twice",),
        operations=(base.operations[0], Add(name="twice", inputs=("embed", "embed"), outputs=("twice",))),
        values=values,
        weights={"model.embed_tokens.weight": base.weights["model.embed_tokens.weight"]},
    )
    table = np.arange(VOCAB * 36, dtype=np.float32).reshape(VOCAB, 36)
    subject = ReferenceModel(graph, lambda name: FloatWeight(values=table))
    assert np.array_equal(subject.forward(array([1, 0]), subject.new_cache())[0], 2 * table[[1, 0]])


# --- visibility -------------------------------------------------------------------------------------------------------


@given(st.integers(1, 140), st.integers(0, 2**32 - 1))
def test_packed_visibility_can_be_unpacked(n: int, seed: int) -> None:
    visible = np.random.default_rng(seed).random((n, n)) < 0.5
    packed = pack(visible)
    assert packed.dtype == np.uint64
    assert packed.shape == (n, -(-n // 64))
    assert np.array_equal(unpack(packed, n), visible)
    for i, j in ((0, 0), (n - 1, 0), (0, n - 1), (n // 2, n - 1)):
        assert bool(int(packed[i, j // 64]) >> j % 64 & 1) == visible[i, j]


@given(trees)
def test_a_node_sees_its_path(nodes: list[Node]) -> None:
    visible = unpack(tree(array([node.parent for node in nodes])), len(nodes))
    for i in range(len(nodes)):
        assert np.flatnonzero(visible[i]).tolist() == path(nodes, i)
