"""Make tiny models of every weight scheme, in memory or written as bundles."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle.bundle import BundleWriter
from edgedec.bundle.manifest import Tokens
from edgedec.families import build_graph
from edgedec.graph.graph import Graph
from edgedec.graph.ops import Linear
from edgedec.graph.passes import assign_schemes
from edgedec.reference.float_profile.model import ReferenceModel
from edgedec.schemes import FloatScheme, Int4Scheme, Int8Scheme, Scheme, TernaryScheme, Weight

Parts = dict[str, NDArray[Any]]

# Odd sizes on purpose: grouped heads, head_dim independent of hidden / heads, widths that are multiples of nothing.
CONFIG: Mapping[str, Any] = {
    "model_type": "llama",
    "hidden_size": 36,
    "intermediate_size": 70,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "vocab_size": 41,
    "attention_bias": True,
    "rms_norm_eps": 1e-5,
}
SCHEMES: Mapping[str, Scheme] = {
    "float": FloatScheme(),
    "half": FloatScheme(dtype="float16"),
    "int8": Int8Scheme(rows=True),
    "int8_columns": Int8Scheme(),  # linears of older bundles
    "native": TernaryScheme(),
    "planes2": TernaryScheme(planes=2, group_size=32),
    "planes3": TernaryScheme(planes=3, group_size=64),
    "tied3": TernaryScheme(planes=3, group_size=32, tied=True),
    "int4": Int4Scheme(),
    "int4_offset": Int4Scheme(offset=True),
}
TOKENIZER = json.dumps({"version": "1.0", "model": {"type": "BPE", "vocab": {"é": 0}}, "added_tokens": []})


def random_parts(rng: np.random.Generator, scheme: Scheme, shape: tuple[int, ...]) -> Parts:
    """Return stored arrays of a random weight, of a size that keeps activations in range."""
    spread = shape[-1] ** -0.5
    if isinstance(scheme, FloatScheme):
        values = 1 + 0.2 * rng.standard_normal(shape) if len(shape) == 1 else 1.5 * spread * rng.standard_normal(shape)
        return {"values": values.astype(scheme.parts(shape)["values"].dtype)}
    if isinstance(scheme, Int4Scheme):
        parts = {"codes": scheme.pack(rng.integers(0, 16, shape, np.uint8))}
        for name, part in scheme.parts(shape).items():
            if name == "steps":
                parts[name] = rng.integers(0, 64, part.shape, np.uint8)
            elif name != "codes":
                parts[name] = (rng.uniform(0.5, 2, part.shape) * spread / 16).astype(part.dtype)
        return parts
    scale = scheme.parts(shape)["scale"]
    if isinstance(scheme, Int8Scheme):
        codes = rng.integers(-127, 128, scheme.parts(shape)["codes"].shape, np.int8)
        return {"codes": codes, "scale": rng.uniform(0.01, 0.03, scale.shape).astype(np.float32) * np.float32(spread)}
    trits = rng.integers(-1, 2, (scheme.planes, *shape), np.int8)
    return {
        "codes": scheme.pack(trits),
        "scale": (rng.uniform(0.5, 2, scale.shape).astype(np.float32) * np.float32(spread)).astype(scale.dtype),
    }


def random_schemes(graph: Graph, scheme: Scheme, embedding: Scheme | None = None) -> dict[str, Scheme]:
    """Return ``scheme`` for every matrix of a linear; a tied embedding is ``embedding``, or else float, or int8 by rows."""
    linear = {name for op in graph.operations if isinstance(op, Linear) for name in op.weights}
    schemes: dict[str, Scheme] = {name: scheme if name in linear else FloatScheme() for name in graph.weights}
    if "lm_head.weight" not in graph.weights and not isinstance(scheme, FloatScheme):
        schemes["model.embed_tokens.weight"] = embedding or Int8Scheme(rows=True)
    return schemes


def random_tensors(
    graph: Graph, schemes: Mapping[str, Scheme], seed: int = 0
) -> tuple[dict[str, Parts], dict[str, Weight]]:
    rng = np.random.default_rng(seed)
    parts = {name: random_parts(rng, schemes[name], spec.shape) for name, spec in graph.weights.items()}
    for name in parts:
        if name.startswith("hadamard.signs."):
            parts[name] = {"values": rng.choice(np.array([-1, 1], np.float32), graph.weights[name].shape)}
    weights = {name: schemes[name].open(name, graph.weights[name].shape, parts[name]) for name in parts}
    return parts, weights


def random_model(kind: str, changes: Mapping[str, Any] | None = None, seed: int = 0) -> tuple[Graph, dict[str, Weight]]:
    """Return the graph, with schemes assigned but not changed otherwise, and its weights."""
    graph = build_graph({**CONFIG, **(changes or {})})
    schemes = random_schemes(graph, SCHEMES[kind])
    return assign_schemes(graph, schemes), random_tensors(graph, schemes, seed)[1]


def logits(graph: Graph, weights: Mapping[str, Weight], ids: NDArray[np.int32]) -> NDArray[np.float32]:
    model = ReferenceModel(graph, weights.__getitem__)
    return model.forward(ids, model.new_cache())[0]


def write_bundle(
    path: Path,
    kind: str = "planes2",
    *,
    changes: Mapping[str, Any] | None = None,
    seed: int = 0,
    chat_template: str | None = "{{ messages }}\r\n",
    tokenizer_json: str = TOKENIZER,
) -> dict[str, Weight]:
    """Write a bundle of a random model, and return its weights."""
    config = {**CONFIG, **(changes or {})}
    graph = build_graph(config)
    schemes = random_schemes(graph, SCHEMES[kind])
    parts, weights = random_tensors(graph, schemes, seed)
    with BundleWriter.create(path) as writer:
        for name, spec in graph.weights.items():
            writer.add(name, schemes[name], spec.shape, parts[name])
        writer.finish(
            config=config,
            quantization={"method": kind},
            tokens=Tokens(size=40, bos=1, eos=(2, 3)),
            tokenizer_json=tokenizer_json,
            chat_template=chat_template,
        )
    return weights
