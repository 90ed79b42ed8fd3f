"""Prepare random tiny models in the integer profile."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from edgedec.families import build_graph
from edgedec.graph.graph import Graph
from edgedec.graph.passes import assign_schemes, fuse_linears, quantize_activations
from edgedec.reference.integer_profile.calibrate import calibrate_graph
from edgedec.reference.integer_profile.model import IntegerModel, prepare_graph
from edgedec.reference.integer_profile.rough_head import head_of, with_rough_head
from edgedec.schemes import FloatScheme, Int8Scheme, Int8Weight, Scheme, TernaryScheme, Weight
from tests.support.make_rotated import rotated_config
from tests.support.make_tiny import CONFIG, random_schemes, random_tensors

# Odd sizes on purpose: heads of 8 and 10, grouped heads, widths that are multiples of nothing, every storage of
# weights.
_BITNET: Mapping[str, Any] = {"model_type": "bitnet", "hidden_size": 32, "head_dim": 8, "attention_bias": False}
_GEMMA: Mapping[str, Any] = {
    **{"model_type": "gemma2", "query_pre_attn_scalar": 10, "sliding_window": 8, "attention_bias": False},
    **{"tie_word_embeddings": True},
}
_GROUPS_128 = TernaryScheme(group_size=128)
KINDS: Mapping[str, tuple[Scheme, Mapping[str, Any]]] = {
    "int8": (Int8Scheme(), {"mlp_bias": True}),
    "int8-wide": (Int8Scheme(), {"intermediate_size": 1100, "head_dim": 80, "num_hidden_layers": 1}),
    "native": (TernaryScheme(), {"tie_word_embeddings": True, "attention_bias": False}),
    "planes1": (TernaryScheme(planes=1, group_size=64), {"rope_interleaved": True}),
    "planes2": (TernaryScheme(planes=2, group_size=64), {}),
    "planes3": (TernaryScheme(planes=3, group_size=128), {"intermediate_size": 140}),
    "normed": (TernaryScheme(), {"model_type": "qwen3", "rope_interleaved": True}),
    "bonsai": (_GROUPS_128, {"model_type": "qwen3", "tie_word_embeddings": True, "attention_bias": False}),
    "gelu": (Int8Scheme(), {"model_type": "gemma", "attention_bias": False, "tie_word_embeddings": True}),
    "gemma2": (TernaryScheme(), {**_GEMMA, "attn_logit_softcapping": 10.0, "final_logit_softcapping": 5.0}),
    "gemma2-int8": (Int8Scheme(), {**_GEMMA, "attn_logit_softcapping": 50.0, "num_key_value_heads": 1}),
    "gemma3": (TernaryScheme(), {**_GEMMA, "model_type": "gemma3_text", "sliding_window_pattern": 2}),
    "bitnet": (TernaryScheme(), _BITNET),
    "bitnet-silu": (TernaryScheme(), {**_BITNET, "hidden_act": "silu"}),
}
EMBEDDINGS: Mapping[str, Scheme] = {"bonsai": _GROUPS_128}  # schemes of embeddings that are the head, too
# Models that the profile defines and the accelerator has no unit for.
ROTATED: Mapping[str, tuple[Scheme, Mapping[str, Any]]] = {
    "rotated": (TernaryScheme(), rotated_config()),
    "rotated-int8": (Int8Scheme(), rotated_config(block_size=32, inverse_weights=[])),
}
# Models with recurrent states; the matrices of few rows stay floats, or are quantized with the others.
_DELTA: Mapping[str, Any] = {
    **{"model_type": "qwen3_5_text", "full_attention_interval": 2, "partial_rotary_factor": 0.4},
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 6},
    **{"attention_bias": False, "rms_norm_eps": 1e-5},
}
_SCAN: Mapping[str, Any] = {
    **{"model_type": "mamba2", "num_heads": 6, "head_dim": 8, "state_size": 5, "n_groups": 1, "conv_kernel": 3},
    **{"hidden_size": 24, "expand": 2, "tie_word_embeddings": True},
}
RECURRENT: Mapping[str, tuple[Scheme, Mapping[str, Any]]] = {
    "hybrid": (TernaryScheme(), _DELTA),
    "hybrid-int8": (Int8Scheme(), _DELTA),
    "hybrid-all-int8": (Int8Scheme(), {**_DELTA, "linear_key_head_dim": 5}),
    "scan": (TernaryScheme(), _SCAN),
    "scan-int8": (Int8Scheme(), {**_SCAN, "n_groups": 3, "time_step_limit": [0.1, 2.0], "use_bias": True}),
}
CONTEXT = 64
VOCAB = CONFIG["vocab_size"]
# Values that have tapped rows: one of each kind.
TAPPED = (
    "embed",
    "layers.0.attn",
    "layers.0.attn_out",
    "layers.0.mlp_norm",
    "layers.0.gated",
    "layers.0.out",
    "final_norm",
)


def float_model(
    scheme: Scheme, changes: Mapping[str, Any], embedding: Scheme | None = None, *, narrow_floats: bool = True
) -> tuple[Graph, dict[str, Weight]]:
    """Return a graph with quantize points, and its weights.

    Args:
        scheme: scheme of the matrices.
        changes: changes of the configuration.
        embedding: scheme of an embedding that is the head, too; None: the usual one.
        narrow_floats: True if the matrices that steer recurrent states stay floats.
    """
    graph = build_graph({**CONFIG, **changes})
    schemes = random_schemes(graph, scheme, embedding)
    if narrow_floats:
        schemes |= dict.fromkeys(graph.steering_weights(), FloatScheme())
    return fuse_linears(quantize_activations(assign_schemes(graph, schemes))), random_tensors(graph, schemes)[1]


def prepared(graph: Graph, weights: Mapping[str, Weight]) -> IntegerModel:
    rng = np.random.default_rng(1)
    windows = [rng.integers(0, VOCAB, 24).astype(np.int32) for _ in range(4)]
    return prepare_graph(
        graph, weights.__getitem__, calibrate_graph(graph, weights.__getitem__, windows, context=CONTEXT)
    )


@cache
def tiny(kind: str) -> tuple[Graph, dict[str, Weight], IntegerModel]:
    scheme, changes = {**KINDS, **ROTATED, **RECURRENT}[kind]
    graph, weights = float_model(scheme, changes, EMBEDDINGS.get(kind), narrow_floats=kind != "hybrid-all-int8")
    return graph, weights, prepared(graph, weights)


@cache
def rough_tiny(kind: str, candidates: int, planes: int = 2) -> IntegerModel:
    """Return a model of ``tiny`` with a rough head of so many planes."""
    _, weights, model = tiny(kind)
    return roughened(weights, model, candidates, planes)


def roughened(weights: Mapping[str, Weight], model: IntegerModel, candidates: int, planes: int = 2) -> IntegerModel:
    """Return a model with a rough head, so coarse that the best token is often not the likeliest.

    Its weights are the nearest multiples, -4..4, of a sixth of the row's largest one; with one plane, -1..1 of two thirds.
    """
    weight = weights[head_of(model.graph).weights[0]]
    assert isinstance(weight, Int8Weight)
    most = (3**planes - 1) // 2
    scale = np.abs(weight.dense()).max(axis=1) / (1.5 * most)
    rounded = np.rint(weight.dense() / scale[:, None]).clip(-most, most).astype(np.int8)
    low = ((rounded + np.int8(1)) % np.int8(3) - np.int8(1)).astype(np.int8)
    trits = np.stack([(rounded - low) // np.int8(3), low])[-planes:]
    return with_rough_head(model, weight, trits, scale, candidates=candidates)
