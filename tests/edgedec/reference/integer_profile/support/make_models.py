"""Prepare random tiny models in the integer profile."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from edgedec.families import build_graph
from edgedec.graph import Graph
from edgedec.passes import assign_schemes, fuse_linears, quantize_activations
from edgedec.reference.integer_profile.calibrate import calibrate_graph
from edgedec.reference.integer_profile.model import IntegerModel, prepare_graph
from edgedec.schemes import Int8Scheme, Scheme, TernaryScheme, Weight
from tests.support.make_rotated import rotated_config
from tests.support.make_tiny import CONFIG, random_schemes, random_tensors

# Odd sizes on purpose: heads of 8 and 10, grouped heads, widths that are multiples of nothing, every storage of
# weights.
_BITNET: Mapping[str, Any] = {"model_type": "bitnet", "hidden_size": 32, "head_dim": 8, "attention_bias": False}
KINDS: Mapping[str, tuple[Scheme, Mapping[str, Any]]] = {
    "int8": (Int8Scheme(), {"mlp_bias": True}),
    "int8-wide": (Int8Scheme(), {"intermediate_size": 1100, "head_dim": 80, "num_hidden_layers": 1}),
    "native": (TernaryScheme(), {"tie_word_embeddings": True, "attention_bias": False}),
    "planes1": (TernaryScheme(planes=1, group_size=64), {"rope_interleaved": True}),
    "planes2": (TernaryScheme(planes=2, group_size=64), {}),
    "planes3": (TernaryScheme(planes=3, group_size=128), {"intermediate_size": 140}),
    "bitnet": (TernaryScheme(), _BITNET),
    "bitnet-silu": (TernaryScheme(), {**_BITNET, "hidden_act": "silu"}),
}
# Models that the profile defines and the accelerator has no unit for.
ROTATED: Mapping[str, tuple[Scheme, Mapping[str, Any]]] = {
    "rotated": (TernaryScheme(), rotated_config()),
    "rotated-int8": (Int8Scheme(), rotated_config(block_size=32, inverse_weights=[])),
}
CONTEXT = 64
VOCAB = CONFIG["vocab_size"]


def float_model(scheme: Scheme, changes: Mapping[str, Any]) -> tuple[Graph, dict[str, Weight]]:
    graph = build_graph({**CONFIG, **changes})
    schemes = random_schemes(graph, scheme)
    return fuse_linears(quantize_activations(assign_schemes(graph, schemes))), random_tensors(graph, schemes)[1]


def prepared(graph: Graph, weights: Mapping[str, Weight]) -> IntegerModel:
    rng = np.random.default_rng(1)
    windows = [rng.integers(0, VOCAB, 24).astype(np.int32) for _ in range(4)]
    return prepare_graph(
        graph, weights.__getitem__, calibrate_graph(graph, weights.__getitem__, windows, context=CONTEXT)
    )


@cache
def tiny(kind: str) -> tuple[Graph, dict[str, Weight], IntegerModel]:
    graph, weights = float_model(*{**KINDS, **ROTATED}[kind])
    return graph, weights, prepared(graph, weights)
