"""Test that an attention in two groups of heads computes what one attention with a mask for each head does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from edgedec.errors import UnsupportedError
from edgedec.families import build_graph
from edgedec.graph.graph import Graph
from edgedec.graph.ops import Attention, Concat, Rope, Split
from edgedec.graph.passes import fuse_linears, quantize_activations, windows_as_rings
from edgedec.kv.head_groups import stream_heads
from edgedec.reference.float_profile.model import FloatPassContext, ReferenceModel
from edgedec.reference.float_profile.ops.attention import stored
from edgedec.schemes import Weight
from tests.support.make_tiny import CONFIG, random_model

HEADS: Mapping[str, Any] = {"num_attention_heads": 8, "num_key_value_heads": 4}
# Configurations whose attentions read q, k and v in different ways.
KINDS: dict[str, dict[str, Any]] = {
    "grouped": {**HEADS},
    "own keys": {**HEADS, "num_key_value_heads": 8},
    "norms of heads": {**HEADS, "model_type": "qwen3"},
    "one rotation in two": {**HEADS, "model_type": "smollm3", "no_rope_layers": [1, 0]},
}
IDS = np.arange(23, dtype=np.int32) * 7 % 41


def masked(model: ReferenceModel, streaming: Mapping[str, Sequence[int]], sinks: int, window: int) -> ReferenceModel:
    """Let the attentions of a model hide from each streaming head what it does not see: the obvious implementation."""

    def run(
        op: Attention, inputs: Sequence[NDArray[Any]], context: FloatPassContext
    ) -> tuple[NDArray[np.float32], ...]:
        state = context.cache.states[op.state]
        q, k, v = (x.reshape(len(x), -1, state.head_dim) for x in inputs)
        context.cache.append(op.state, stored(k, state.bits), stored(v, state.bits))
        keys, values = context.cache.keys[op.state], context.cache.values[op.state]
        out = np.empty_like(q)
        for i, position in enumerate(context.positions):
            for head in range(op.heads):
                own, at = head * state.kv_heads // op.heads, context.cache.positions
                seen = np.concatenate([np.ones(len(at) - len(q), np.bool_), context.visible[i]])
                if own in streaming.get(op.state, ()):
                    seen &= (at > position - window) | (at < sinks)
                scores = keys[seen, own] @ q[i, head] * np.float32(op.scale)
                weights = np.exp(scores - scores.max())
                out[i, head] = weights @ values[seen, own] / weights.sum()
        return (out.reshape(len(q), -1),)

    model._run = {**model._run, "attention": run}
    return model


def texts(model: ReferenceModel, rows: int) -> NDArray[np.float32]:
    """Return the logits of all ids, read in passes of ``rows`` rows."""
    cache, parts = model.new_cache(slack=rows), []
    for start in range(0, len(IDS), rows):
        parts.append(model.forward(IDS[start : start + rows], cache)[0])
        cache.commit(np.arange(len(parts[-1]), dtype=np.int32))
    return np.concatenate(parts)


def executed(graph: Graph) -> Graph:
    return fuse_linears(quantize_activations(graph))


@st.composite
def divisions(draw: st.DrawFn, heads: int) -> dict[str, tuple[int, ...]]:
    chosen = {f"layers.{layer}.kv": draw(st.sets(st.integers(0, heads - 1))) for layer in range(2)}
    return {name: tuple(sorted(own)) for name, own in chosen.items()}


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_groups_have_the_bits_of_a_mask_for_each_head(kind: str, data: st.DataObject) -> None:
    graph, weights = _model(kind)
    heads = next(iter(graph.states.values())).kv_heads
    streaming = data.draw(divisions(heads))
    sinks, window = data.draw(st.integers(0, 4)), data.draw(st.integers(1, 30))
    divided = stream_heads(graph, streaming, sinks=sinks, window=window)
    plain = masked(ReferenceModel(executed(graph), weights.__getitem__), streaming, sinks, window)
    expected = texts(plain, 4)
    for version in (divided, windows_as_rings(divided)):
        assert np.array_equal(texts(ReferenceModel(executed(version), weights.__getitem__), 4), expected)


_MODELS: dict[str, tuple[Graph, dict[str, Weight]]] = {}


def _model(kind: str) -> tuple[Graph, dict[str, Weight]]:
    if kind not in _MODELS:
        changes = {"attention_bias": False, **KINDS[kind]}
        _MODELS[kind] = random_model("native", changes)
    return _MODELS[kind]


def test_each_group_has_a_state_and_values_keep_their_names() -> None:
    graph = build_graph({**CONFIG, **HEADS})
    divided = stream_heads(graph, {"layers.0.kv": (1, 3), "layers.1.kv": (0, 1, 2, 3)}, sinks=2, window=5)
    assert [(state.name, state.kv_heads, state.window, state.sinks) for state in divided.states.values()] == [
        ("layers.0.kv.retrieval", 2, None, 0),
        ("layers.0.kv.streaming", 2, 5, 2),
        ("layers.1.kv", 4, 5, 2),
    ]
    assert [op.heads for op in divided.operations if isinstance(op, Attention)] == [4, 4, 8]
    assert set(graph.values) - set(divided.values) == {"layers.0.q", "layers.0.k"}, "they are rotated in their groups"
    assert graph.outputs == divided.outputs
    turns = [op for op in divided.operations if isinstance(op, Rope)]
    assert [turn.heads for turn in turns[:4]] == [4, 4, 2, 2]
    bits = sum(state.row_bytes() for state in graph.states.values())
    assert bits == sum(state.row_bytes() for state in divided.states.values())


def test_neighbouring_heads_of_a_kind_are_one_part() -> None:
    graph = build_graph({**CONFIG, **HEADS})
    divided = stream_heads(graph, {"layers.0.kv": (2, 3)}, sinks=0, window=5)
    splits = [op for op in divided.operations if isinstance(op, Split)]
    assert [op.widths for op in splits] == [(40, 40), (20, 20), (20, 20)]
    assert [op.name for op in divided.operations if isinstance(op, Concat)] == ["layers.0.attn"]


def test_without_streaming_heads_a_graph_stays_as_it_is() -> None:
    graph = build_graph({**CONFIG, **HEADS})
    assert stream_heads(graph, {"layers.0.kv": ()}, sinks=2, window=5) == graph


@pytest.mark.parametrize(
    ("streaming", "message"),
    [
        ({"layers.7.kv": (0,)}, "there is no state 'layers.7.kv'"),
        ({"layers.0.kv": (1, 4)}, "state layers.0.kv: there is no key/value head 4; it has 4"),
        ({"layers.1.kv": (0,)}, "state layers.1.kv: its heads have a window of 9 positions already"),
    ],
)
def test_other_states_and_heads_are_refused(streaming: dict[str, tuple[int, ...]], message: str) -> None:
    changes = {"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 1, "sliding_window": 9}
    graph = build_graph({**CONFIG, **HEADS, **changes})
    with pytest.raises(UnsupportedError, match=message):
        stream_heads(graph, streaming, sinks=2, window=5)


def test_a_state_that_several_attentions_read_is_not_divided() -> None:
    sizes = {"num_hidden_layers": 8, "hidden_size": 40, "num_key_value_heads": 4, "sliding_window": 9}
    graph, name = build_graph({**CONFIG, **sizes, "model_type": "phi4flash"}), "layers.5.kv"
    whole = stream_heads(graph, {name: (0, 1)}, sinks=2, window=5)
    assert (whole.states[name].window, whole.states[name].sinks) == (5, 2)
    with pytest.raises(
        UnsupportedError, match=f"state {name}: several attentions read it, so all or none of its heads"
    ):
        stream_heads(graph, {name: (0,)}, sinks=2, window=5)
