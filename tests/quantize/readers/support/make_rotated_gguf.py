"""Fold rotations into weights, and describe them in metadata, as the definition of ``prism.hadamard.*`` reads.

The matrices are products of Kronecker's; nothing here is shared with the operation or the reader.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.quantize.readers import Checkpoint
from tests.quantize.readers.support import make_gguf
from tests.quantize.readers.support import make_ternary_gguf as maker

EMBEDDING = "token_embd.weight"
F32 = NDArray[np.float32]
F64 = NDArray[np.float64]


def sylvester(block: int) -> F64:
    """Return the normalized matrix [block, block] in Sylvester's order."""
    matrix: F64 = np.full((1, 1), block**-0.5)
    while len(matrix) < block:
        matrix = np.kron(np.array([[1.0, 1.0], [1.0, -1.0]]), matrix)
    return matrix


def random_signs(widths: Iterable[int], seed: int = 0) -> dict[int, list[int]]:
    rng = np.random.default_rng(seed)
    return {width: rng.choice([-1, 1], width).tolist() for width in widths}


def folded(weight: F32, block: int, signs: Sequence[int] | None) -> F32:
    """Return W diag(signs) H, whose product with H (signs * x) is W x."""
    rows, width = weight.shape
    signed = weight.astype(np.float64) * np.asarray(signs or [1] * width)
    turned: F64 = signed.reshape(rows, -1, block) @ sylvester(block)
    return turned.reshape(rows, width).astype(np.float32)


def unfolded(stored: F32, block: int, signs: Sequence[int] | None) -> F32:
    """Return the W of which ``stored`` is the folded weight."""
    rows, width = stored.shape
    turned: F64 = stored.astype(np.float64).reshape(rows, -1, block) @ sylvester(block)
    primal: F64 = turned.reshape(rows, width) * np.asarray(signs or [1] * width)
    return primal.astype(np.float32)


def rotation_keys(
    block: int,
    signs: Mapping[int, Sequence[int]] | None,
    weights: Sequence[str],
    inverse: Sequence[str] = (),
    **changes: Any,
) -> dict[str, Any]:
    """Return the metadata, as ``make_gguf.metadata`` takes changes; ``changes`` of them, None removes a key."""
    keys: dict[str, Any] = {
        "version": 1,
        "block_size": block,
        "transform": "normalized-sylvester-walsh-hadamard",
        "axis": "input-last-dimension",
        "sign_mode": "explicit" if signs else "identity",
        "weight_names": list(weights),
    }
    if inverse:
        keys["inverse_weight_names"] = list(inverse)
    if signs:
        keys["sign_widths"] = list(signs)
        keys["sign_values"] = [sign for vector in signs.values() for sign in vector]
    return {f"prism__hadamard__{key}": value for key, value in (keys | changes).items()}


def write_folded(path: Path, checkpoint: Checkpoint, block: int, widths: Iterable[int]) -> Path:
    """Write a Llama with a tied head, whose weights of ``widths`` columns are folded, as float32."""
    config, signs = checkpoint.config, random_signs(widths)
    parts = [part for part in maker.LAYER if not part.endswith(("q_norm", "k_norm"))]
    names = [f"blk.{layer}.{part}.weight" for layer in range(config["num_hidden_layers"]) for part in parts]
    tensors, turned = [], []
    for name in (EMBEDDING, "output_norm.weight", *names):
        values = checkpoint.load(maker.hf_name(name)).astype(np.float32)
        if not config.get("rope_interleaved") and any(part in name for part in (".attn_q.", ".attn_k.")):
            heads = config["num_attention_heads" if ".attn_q." in name else "num_key_value_heads"]
            values = values.reshape(heads, 2, -1, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
        if values.ndim == 2 and values.shape[1] in signs:
            turned.append(name)
            values = folded(values, block, signs[values.shape[1]])
        tensors.append(make_gguf.tensor(name, values))
    changes = {
        "llama__block_count": config["num_hidden_layers"],
        "llama__context_length": config["max_position_embeddings"],
        "llama__embedding_length": config["hidden_size"],
        "llama__feed_forward_length": config["intermediate_size"],
        "llama__attention__head_count": config["num_attention_heads"],
        "llama__attention__head_count_kv": config["num_key_value_heads"],
        **rotation_keys(block, signs, turned, [EMBEDDING]),
    }
    path.write_bytes(make_gguf.file_bytes(make_gguf.metadata(**changes), tensors))
    return path
