"""A bundle as llama.cpp's GGUF: the same codes and trits where GGML has a type for them, float16 where it has not.

Trits with one scale for each 256 columns become TQ2_0, int8 codes Q8_0. Only scales lose bits: GGML keeps them in float16.
Trits that do not fit (several planes, smaller groups, rows that are no multiple of 256) and int8 rows that are no multiple
of 32 become float16; of one plane the trits are still the same when they are read back.

Source: ``llama-arch.cpp`` and ``models/`` of llama.cpp for names, keys and the order of rows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle import Bundle
from edgedec.errors import UnsupportedError
from edgedec.families import build_graph
from edgedec.graph import Graph
from edgedec.ops import Embed, RmsNorm, Rope
from edgedec.progress import Progress, silent
from edgedec.quantize.exporters.gguf_file import (
    BF16,
    F16,
    F32,
    Q8_0,
    TQ2_0,
    PlannedTensor,
    Value,
    q8_0,
    tq2_0,
    write_gguf,
)
from edgedec.quantize.exporters.gguf_tokenizer import vocabulary
from edgedec.quantize.methods.int8 import quantize_int8
from edgedec.quantize.readers.gguf_blocks import Kind
from edgedec.quantize.readers.gguf_models import gguf_name
from edgedec.schemes import FloatWeight, Int8Weight, TernaryWeight, Weight

__all__ = ["export_gguf"]

Array = NDArray[Any]

# model_type: (architecture, q's and k's rows lie as neighbours)
_ARCHITECTURES = {
    "llama": ("llama", True),
    "qwen2": ("qwen2", False),
    "qwen3": ("qwen3", False),
    "bitnet": ("bitnet", False),
}
_FLOATS = {"float32": F32, "float16": F16, "bfloat16": BF16}
_BLOCK, _GROUP = 256, 128
_ROTATED = re.compile(r"model\.layers\.\d+\.self_attn\.([qk])_proj\.(weight|bias)")
_ROWS_AT_ONCE = 2048


def export_gguf(bundle: Bundle, path: Path, *, progress: Progress = silent) -> dict[str, int]:
    """Write ``bundle`` as one GGUF file, whole or not at all; how many tensors have each of GGML's types.

    Raises:
        UnsupportedError: llama.cpp or GGML cannot express the model, or its tokenizer; says what.
        EdgedecError: the disk is full, or there is no permission.
    """
    config = bundle.config
    graph = build_graph(config)
    bundle.check(graph)
    name, neighbours = _architecture(bundle)
    metadata = _metadata(bundle, graph, name) | vocabulary(bundle)
    heads = _Rows(config, neighbours and not config.get("rope_interleaved"))
    left_out = _head_of_bitnet(bundle, graph) if name == "bitnet" else None
    tensors = []
    counts: dict[str, int] = {}
    for weight, spec in graph.weights.items():
        if weight == left_out:
            continue
        kind = _kind(bundle, weight)
        counts[kind.name] = counts.get(kind.name, 0) + 1
        make = partial(_bytes, bundle, weight, kind, heads)
        tensors.append(PlannedTensor(name=gguf_name(weight), shape=spec.shape, kind=kind, make=make))
    if (factors := _rope_factors(config, graph)) is not None:
        tensors.append(
            PlannedTensor(name="rope_freqs.weight", shape=factors.shape, kind=F32, make=lambda: factors[None])
        )
    write_gguf(path, metadata, tensors, progress)
    return counts


def _architecture(bundle: Bundle) -> tuple[str, bool]:
    config = bundle.config
    found = _ARCHITECTURES.get(config["model_type"])
    if found is None:
        raise UnsupportedError(
            f"{bundle.path}: {config['model_type']} is not written as GGUF; known: {', '.join(_ARCHITECTURES)}"
        )
    if config["model_type"] == "bitnet" and config.get("hidden_act") != "silu":
        raise UnsupportedError(
            f"{bundle.path}: llama.cpp's bitnet has silu, this model relu2; export it as safetensors, for bitnet.cpp"
        )
    if found[1] is False and config.get("rope_interleaved"):
        raise UnsupportedError(
            f"{bundle.path}: llama.cpp rotates halves of a {found[0]}'s heads, this model neighbours"
        )
    for key in ("use_sliding_window", "partial_rotary_factor"):
        if config.get(key):
            raise UnsupportedError(f"{bundle.path}: {key} has no counterpart in llama.cpp's {found[0]}")
    return found


class _Rows:
    """The order of q's and k's rows: llama.cpp rotates neighbours, Hugging Face's layout the halves of a head."""

    def __init__(self, config: Mapping[str, Any], moved: bool) -> None:
        self._dim, self._moved = _head_dim(config), moved

    def arranged(self, name: str, stored: Array) -> Array:
        """``stored`` [rows, ...] as llama.cpp wants it."""
        if not self._moved or not _ROTATED.fullmatch(name):
            return stored
        halves = stored.reshape(-1, 2, self._dim // 2, *stored.shape[1:])
        return halves.swapaxes(1, 2).reshape(stored.shape)


def _head_dim(config: Mapping[str, Any]) -> int:
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


def _kind(bundle: Bundle, name: str) -> Kind:
    tensor = bundle.tensors[name]
    weight = bundle.weight(name)
    if len(tensor.shape) == 1:
        return F32  # vectors are added and multiplied in float32
    if isinstance(weight, FloatWeight):
        return _FLOATS[weight.values.dtype.name]
    if isinstance(weight, Int8Weight):
        return Q8_0 if tensor.shape[1] % Q8_0.block == 0 else F16
    return F16 if _trit_scales(weight) is None else TQ2_0


def _trit_scales(weight: TernaryWeight) -> NDArray[np.float32] | None:
    """Scales [out or 1, blocks or 1] of TQ2_0's blocks; None: they have several."""
    planes, _, inputs = weight.trits.shape
    if planes > 1 or inputs % _BLOCK:
        return None
    if not weight.group_size:
        return weight.scale.reshape(1, 1)
    groups = weight.scale[0].reshape(len(weight.scale[0]), -1, _BLOCK // weight.group_size)
    return groups[..., 0] if (groups == groups[..., :1]).all() else None


def _bytes(bundle: Bundle, name: str, kind: Kind, rows: _Rows) -> Array:
    """A tensor as the file holds it."""
    weight: Weight = bundle.weight(name)
    if kind is TQ2_0:
        assert isinstance(weight, TernaryWeight)
        scales = _trit_scales(weight)
        assert scales is not None
        return rows.arranged(name, tq2_0(name, weight.trits[0], scales))
    if kind is Q8_0:
        assert isinstance(weight, Int8Weight)
        return rows.arranged(name, q8_0(name, weight.codes, weight.scale))
    if isinstance(weight, FloatWeight):
        values: Array = weight.values.astype(np.float32) if kind is F32 else weight.values
    else:
        values = _halved(name, weight.dense())
    return np.ascontiguousarray(rows.arranged(name, values)).view(np.uint8)


def _halved(name: str, values: NDArray[np.float32]) -> NDArray[np.float16]:
    with np.errstate(over="ignore"):
        half = values.astype(np.float16)
    if not np.isfinite(half).all():
        raise UnsupportedError(f"tensor {name}: {np.abs(values).max():g} does not fit into float16")
    return half


def _head_of_bitnet(bundle: Bundle, graph: Graph) -> str | None:
    """The head, which llama.cpp's bitnet does not have: its embedding serves. None: they are one tensor already.

    Raises:
        UnsupportedError: they are different matrices.
    """
    head = graph.operations[-1].weight_names[0]
    embedding = next(op.weight for op in graph.operations if isinstance(op, Embed))
    if head == embedding:
        return None
    one, other = bundle.weight(embedding), bundle.weight(head)
    for start in range(0, graph.weights[head].shape[0], _ROWS_AT_ONCE):
        some = np.arange(start, min(start + _ROWS_AT_ONCE, graph.weights[head].shape[0]), dtype=np.int32)
        assert not isinstance(one, TernaryWeight)
        rows = one.rows(some)
        if isinstance(other, Int8Weight):
            codes, scale = quantize_int8(rows)
            same = np.array_equal(codes, other.codes[some]) and np.array_equal(scale, other.scale[some])
        else:
            same = np.array_equal(rows, other.dense()[some])
        if not same:
            raise UnsupportedError(
                f"{bundle.path}: llama.cpp's bitnet has no head but the embedding; this one has both"
            )
    return head


def _metadata(bundle: Bundle, graph: Graph, name: str) -> dict[str, Value]:
    config = bundle.config
    heads, head_dim = config["num_attention_heads"], _head_dim(config)
    found: dict[str, Value] = {
        "general.architecture": name,
        "general.name": bundle.path.stem,
        "general.quantization_version": 2,
        f"{name}.vocab_size": config["vocab_size"],
        f"{name}.context_length": config.get("max_position_embeddings") or 2048,
        f"{name}.embedding_length": config["hidden_size"],
        f"{name}.block_count": config["num_hidden_layers"],
        f"{name}.feed_forward_length": config["intermediate_size"],
        f"{name}.attention.head_count": heads,
        f"{name}.attention.head_count_kv": config.get("num_key_value_heads") or heads,
        f"{name}.attention.key_length": head_dim,
        f"{name}.attention.value_length": head_dim,
        f"{name}.attention.layer_norm_rms_epsilon": next(op.eps for op in graph.operations if isinstance(op, RmsNorm)),
        f"{name}.rope.dimension_count": head_dim,
    }
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = scaling.get("rope_theta") or config.get("rope_theta") or 10000.0
    found[f"{name}.rope.freq_base"] = float(theta)
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "linear":
        found |= {f"{name}.rope.scaling.type": "linear", f"{name}.rope.scaling.factor": float(scaling["factor"])}
    elif kind not in ("default", "llama3"):
        raise UnsupportedError(f"{bundle.path}: rope scaling {kind!r} is not written as GGUF; known: linear, llama3")
    return found


def _rope_factors(config: Mapping[str, Any], graph: Graph) -> NDArray[np.float32] | None:
    """By how much each pair is slowed, where that is no plain scaling; llama.cpp reads it as a tensor."""
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if scaling.get("rope_type", scaling.get("type")) != "llama3":
        return None
    theta = float(scaling.get("rope_theta") or config.get("rope_theta") or 10000.0)
    turned = next(op for op in graph.operations if isinstance(op, Rope)).inverse_frequencies
    pairs = len(turned)
    plain = theta ** (-np.arange(pairs) / pairs)
    factors: NDArray[np.float32] = (plain / np.asarray(turned)).astype(np.float32)
    return factors
