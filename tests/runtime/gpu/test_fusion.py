"""Test how the operations of graphs are grouped into nodes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from edgedec.errors import UnsupportedError
from edgedec.families import build_graph
from edgedec.graph.graph import Graph
from edgedec.graph.ops import Linear, RmsNorm
from edgedec.graph.passes import assign_schemes, fuse_linears, quantize_activations
from edgedec.runtime.gpu.fusion import group_operations
from edgedec.schemes import Int8Scheme

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 60,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "bitnet": LLAMA | {"model_type": "bitnet"},
    "qwen3": LLAMA | {"model_type": "qwen3"},
    "gemma2": LLAMA | {"model_type": "gemma2", "query_pre_attn_scalar": 16, "sliding_window": 8},
}


def graph_of(family: str) -> Graph:
    graph = build_graph(FAMILIES[family])
    matrices = {
        weight: Int8Scheme(rows=True) for op in graph.operations if isinstance(op, Linear) for weight in op.weights
    }
    return fuse_linears(quantize_activations(assign_schemes(graph, matrices)))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_operation_is_in_one_node_and_values_are_made_before_they_are_read(family: str) -> None:
    graph = graph_of(family)
    nodes = group_operations(graph)
    counts = Counter(op.name for node in nodes for op in node.operations)
    assert counts == Counter(op.name for op in graph.operations)
    made = {value.name for value in graph.inputs}
    for node in nodes:
        assert set(node.inputs) <= made, node.name
        made |= set(node.outputs)
    assert set(graph.outputs) <= made


def test_a_layer_of_a_llama_has_nine_nodes() -> None:
    kinds = [node.kind for node in group_operations(graph_of("llama"))]
    layer = [
        "rms_norm+quantize_activation",
        "linear",
        "rope+rope+attention",
        "quantize_activation",
        "linear+add",
        "rms_norm+quantize_activation",
        "linear",
        "gated_activation+quantize_activation",
        "linear+add",
    ]
    assert kinds == ["embed", *layer, *layer, "select_rows", "rms_norm+quantize_activation", "linear"]


def test_the_sub_norm_of_a_bitnet_is_part_of_the_gate() -> None:
    kinds = Counter(node.kind for node in group_operations(graph_of("bitnet")))
    assert kinds["gated_activation+rms_norm+quantize_activation"] == 2


def test_a_tap_is_not_hidden_in_a_node() -> None:
    graph = graph_of("llama")
    tapped = group_operations(graph, ["layers.0.attn_norm", "layers.1.o"])
    assert {"layers.0.attn_norm", "layers.1.o"} <= {name for node in tapped for name in node.outputs}
    assert len(tapped) == len(group_operations(graph)) + 2


def test_what_is_not_lowered_is_named() -> None:
    graph = graph_of("llama")

    class Convolution(RmsNorm):
        kind = "convolution"

    (norm,) = [op for op in graph.operations if op.name == "layers.1.mlp_norm"]
    assert isinstance(norm, RmsNorm)
    other = Convolution(name=norm.name, inputs=norm.inputs, outputs=norm.outputs, weight=norm.weight, eps=norm.eps)
    changed = replace(graph, operations=tuple(other if op is norm else op for op in graph.operations))
    with pytest.raises(
        UnsupportedError, match=r"cannot run 'convolution' \(layers.1.mlp_norm\).*--device float_reference"
    ):
        group_operations(changed)


def test_a_rotation_that_a_tap_wants_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"'rope' \(layers.0.q\)"):
        group_operations(graph_of("llama"), ["layers.0.q"])
