"""Random-weight bundles of real shapes: speed and memory depend on the shape alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, models

from edgedec.bundle import BundleWriter, Tokens
from edgedec.errors import UsageError
from edgedec.families import build_graph
from edgedec.ops import Embed, Linear
from edgedec.schemes import FloatScheme, Int8Scheme, TernaryScheme

__all__ = ["SHAPES", "write_random_bundle"]

_LLAMA = {"model_type": "llama", "hidden_act": "silu", "tie_word_embeddings": False, "rms_norm_eps": 1e-5}

# Configurations of public checkpoints (FACTS section 6). The sub-norms of the BitNet models are left out: 0.1 % of the time.
SHAPES: Mapping[str, Mapping[str, Any]] = {
    "bitnet-0.73b": _LLAMA
    | {
        "hidden_size": 1536,
        "intermediate_size": 4096,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "vocab_size": 32002,
        "max_position_embeddings": 2048,
    },
    "bitnet-2b4t": _LLAMA
    | {
        "hidden_size": 2560,
        "intermediate_size": 6912,
        "num_hidden_layers": 30,
        "num_attention_heads": 20,
        "num_key_value_heads": 5,
        "vocab_size": 128256,
        "max_position_embeddings": 4096,
        "rope_theta": 500000.0,
    },
    "demo": _LLAMA
    | {
        "hidden_size": 384,
        "intermediate_size": 1024,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "vocab_size": 2048,
        "max_position_embeddings": 1024,
    },
}


def write_random_bundle(path: Path, shape: str, method: str = "ternary", seed: int = 0) -> None:
    """A bundle of the named shape: one-plane ternary or int8 layers, int8 head and embedding, uniform random codes.

    Raises:
        UsageError: unknown shape or method, or the path cannot be written.
    """
    if shape not in SHAPES:
        raise UsageError(f"there is no shape {shape!r}; known: {', '.join(SHAPES)}")
    if method not in ("ternary", "int8"):
        raise UsageError(f"method must be ternary or int8, not {method!r}")
    config = SHAPES[shape]
    graph = build_graph(config)
    embeddings = {op.weight for op in graph.operations if isinstance(op, Embed)}
    matrices = [weight for op in graph.operations if isinstance(op, Linear) for weight in op.weights]
    rng = np.random.default_rng(seed)
    with BundleWriter.create(path) as writer:
        for name, spec in graph.weights.items():
            if name in matrices[:-1] and method == "ternary":
                ternary = TernaryScheme()
                trits = rng.integers(-1, 2, (1, *spec.shape), np.int8)
                scale = np.array([spec.shape[1] ** -0.5], np.float32)
                writer.add(name, ternary, spec.shape, {"codes": ternary.pack(trits), "scale": scale})
            elif name in matrices or name in embeddings:
                int8 = Int8Scheme(rows=name in embeddings)
                part = int8.parts(spec.shape)
                scale = np.full(spec.shape[0], spec.shape[1] ** -0.5 / 64, np.float32)
                codes = rng.integers(-127, 128, part["codes"].shape, np.int8)
                writer.add(name, int8, spec.shape, {"codes": codes, "scale": scale})
            else:
                writer.add(name, FloatScheme(), spec.shape, {"values": np.ones(spec.shape, np.float32)})
        writer.finish(
            config=config,
            quantization={"method": method, "random_weights": True},
            tokens=Tokens(size=int(config["vocab_size"])),
            tokenizer_json=Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>")).to_str(),
            chat_template=None,
        )
