"""Write bundles as llama.cpp's GGUF for a comparison, as ``edgedec export`` does, but with any number of made-up tokens.

Only models that can be compared fairly are written, with trits as TQ2_0 and int8 codes as Q8_0, so that both programs run
the same codes.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle.bundle import Bundle
from edgedec.errors import UnsupportedError, UsageError
from edgedec.families import build_graph
from edgedec.graph.graph import Graph
from edgedec.graph.ops import Embed, RmsNorm
from edgedec.progress import Progress, silent
from edgedec.quantize.exporters.gguf.file import (
    BF16,
    F16,
    F32,
    Q8_0,
    TQ2_0,
    PlannedGgufTensor,
    Value,
    q8_0,
    tq2_0,
    write_gguf,
)
from edgedec.quantize.readers.gguf.blocks import Kind
from edgedec.quantize.readers.gguf.names import gguf_name as tensor_name
from edgedec.quantize.readers.tokenizers.piece_tokenizer import PieceKind
from edgedec.schemes import FloatWeight, Int4Weight, Int8Weight, TernaryWeight, Weight

__all__ = ["tensor_name", "write_llama"]

Array = NDArray[Any]

_PLAIN_KEYS = ("rope_scaling", "rope_parameters", "attention_bias", "mlp_bias", "partial_rotary_factor")
_FLOATS = {"float32": F32, "float16": F16, "bfloat16": BF16}


def _kind(name: str, weight: Weight, inputs: int) -> Kind:
    if isinstance(weight, FloatWeight):
        # Vectors are added and multiplied in float32 and are therefore stored as float32.
        return _FLOATS[weight.values.dtype.name] if weight.values.ndim == 2 else F32
    if isinstance(weight, Int4Weight):
        raise UnsupportedError(f"tensor {name} is int4; use a ternary or int8 model")
    kind = Q8_0 if isinstance(weight, Int8Weight) else TQ2_0
    if isinstance(weight, TernaryWeight) and (len(weight.trits) > 1 or weight.group_size):
        raise UnsupportedError(f"tensor {name}: TQ2_0 holds one plane of trits with one scale; use a ternary model")
    if inputs % kind.block:
        raise UnsupportedError(f"tensor {name}: rows of {inputs} are no multiple of GGML's block of {kind.block}")
    return kind


def _stored(bundle: Bundle, name: str, kind: Kind, order: NDArray[np.intp] | None, rows: int) -> Array:
    """Return a tensor's bytes, with its rows in ``order`` and zeros up to ``rows``."""
    weight = bundle.weight(name)
    if isinstance(weight, FloatWeight):
        stored = weight.values.astype(np.float32) if kind is F32 else weight.values
    elif isinstance(weight, Int8Weight):
        stored = q8_0(name, weight.codes, weight.scale)
    else:
        assert isinstance(weight, TernaryWeight), f"{name} is int4"  # _kind refuses it
        stored = tq2_0(name, weight.trits[0], weight.scale.reshape(1, 1))
    if order is not None:
        stored = stored[order]
    data = np.ascontiguousarray(stored).view(np.uint8).reshape(len(stored), -1)
    return data if rows == len(data) else np.pad(data, ((0, rows - len(data)), (0, 0)))


def _rotation_order(heads: int, head_dim: int) -> NDArray[np.intp]:
    """Return the order of q's or k's rows for llama.cpp, which rotates neighbours instead of halves of a head."""
    return np.arange(heads * head_dim).reshape(heads, 2, head_dim // 2).swapaxes(1, 2).reshape(-1)


def _metadata(bundle: Bundle, graph: Graph, vocab: int) -> dict[str, Value]:
    """Return the metadata. Tokens have made-up names, because texts are ids; both models of a pair need the same names."""
    config = bundle.config
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    return {
        "general.architecture": "llama",
        "general.name": bundle.path.stem,
        "llama.vocab_size": vocab,
        "llama.context_length": config["max_position_embeddings"],
        "llama.embedding_length": config["hidden_size"],
        "llama.block_count": config["num_hidden_layers"],
        "llama.feed_forward_length": config["intermediate_size"],
        "llama.attention.head_count": heads,
        "llama.attention.head_count_kv": config.get("num_key_value_heads") or heads,
        "llama.attention.key_length": head_dim,
        "llama.attention.value_length": head_dim,
        "llama.attention.layer_norm_rms_epsilon": next(op.eps for op in graph.operations if isinstance(op, RmsNorm)),
        "llama.rope.dimension_count": head_dim,
        "llama.rope.freq_base": float(config.get("rope_theta") or 10000.0),
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [f"t{at}" for at in range(vocab)],
        "tokenizer.ggml.scores": [0.0] * vocab,
        "tokenizer.ggml.token_type": [int(PieceKind.NORMAL)] * vocab,
        "tokenizer.ggml.bos_token_id": bundle.tokens.bos or 0,
        "tokenizer.ggml.eos_token_id": bundle.tokens.eos[0] if bundle.tokens.eos else 0,
        "tokenizer.ggml.add_bos_token": False,
    }


def write_llama(bundle: Bundle, path: Path, *, vocab: int | None = None, progress: Progress = silent) -> None:
    """Write ``bundle``, of the Llama family, as a GGUF.

    Args:
        vocab: rows of embedding and head; rows that the bundle lacks are zeros. llama.cpp refuses a draft whose
            vocabulary is much smaller than the target's. None: the bundle's own vocabulary.

    Raises:
        UsageError: ``vocab`` is below the bundle's own.
        UnsupportedError: GGML or llama.cpp's "llama" cannot express a part of the model, which the message names.
    """
    config = bundle.config
    own = config["vocab_size"]
    vocab = own if vocab is None else vocab
    if vocab < own:
        raise UsageError(f"vocab must be at least the model's {own}, not {vocab}")
    if config.get("model_type") != "llama":
        raise UnsupportedError(f"{bundle.path}: llama.cpp's names are known for Llama, not {config.get('model_type')}")
    if odd := [key for key in _PLAIN_KEYS if config.get(key)]:
        raise UnsupportedError(f"{bundle.path}: {', '.join(odd)} has no counterpart in the GGUF that is written here")
    graph = build_graph(config)
    bundle.check(graph)
    metadata = _metadata(bundle, graph, vocab)
    tables = {graph.operations[-1].weight_names[0], *(op.weight for op in graph.operations if isinstance(op, Embed))}
    heads = {"q_proj": metadata["llama.attention.head_count"], "k_proj": metadata["llama.attention.head_count_kv"]}

    def planned(name: str) -> PlannedGgufTensor:
        shape, part = graph.weights[name].shape, name.split(".")[-2]
        rows, order = vocab if name in tables else shape[0], None
        if part in heads and not config.get("rope_interleaved"):
            count = int(heads[part])  # type: ignore[arg-type]
            order = _rotation_order(count, shape[0] // count)
        kind = _kind(name, bundle.weight(name), shape[-1])
        make = partial(_stored, bundle, name, kind, order, rows)
        return PlannedGgufTensor(name=tensor_name(name), shape=(rows, *shape[1:]), kind=kind, make=make)

    write_gguf(path, metadata, [planned(name) for name in graph.weights], progress)
