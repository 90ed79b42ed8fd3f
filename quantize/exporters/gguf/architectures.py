"""What llama.cpp calls our models, the metadata that describes them, and a check that it would run the same model.

The check reads the metadata back as ``readers.gguf_models`` does and compares the graphs: a setting that llama.cpp has no
key for shows as an operation that is another.

Source: ``llama-arch.cpp`` and ``models/`` of llama.cpp for names, keys and what its graphs assume.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle import Bundle
from edgedec.errors import UnsupportedError
from edgedec.families import build_graph
from edgedec.families._rope import rotation
from edgedec.graph import Graph
from edgedec.ops import Attention, Linear, Operation, RmsNorm, Rope
from edgedec.quantize.exporters.gguf.file import F32, Value
from edgedec.quantize.readers.gguf.header import GgufHeader, GgufTensor
from edgedec.quantize.readers.gguf.models import ROPE_FACTORS, architecture, configuration

__all__ = ["Target", "check_same", "find_target", "metadata", "rope_factors"]


@dataclass(frozen=True, kw_only=True)
class Target:
    """Members:
    name: llama.cpp's, of the architecture.
    neighbours: q's and k's rows lie as neighbours, not as halves of a head.
    post_norms: there are norms behind attention and MLP.
    gated_up: the gate's rows go before those of ``ffn_up``, in one matrix.
    """

    name: str
    neighbours: bool = False
    post_norms: bool = False
    gated_up: bool = False


_TARGETS = {
    "llama": Target(name="llama", neighbours=True),
    "mistral": Target(name="llama", neighbours=True),
    "qwen2": Target(name="qwen2"),
    "qwen3": Target(name="qwen3"),
    "bitnet": Target(name="bitnet"),
    "phi3": Target(name="phi3", gated_up=True),
    "smollm3": Target(name="smollm3", neighbours=True),
    "gemma": Target(name="gemma"),
    "gemma2": Target(name="gemma2", post_norms=True),
    "gemma3_text": Target(name="gemma3", post_norms=True),
}
_THETAS = {"bitnet": 500000.0, "smollm3": 2000000.0, "gemma3_text": 1000000.0}  # where the configuration does not say
_LOCAL_THETA = 10000.0
_LONG = ("longrope", "su")
_PERIODS = {"gemma2": 2, "gemma3": 6}  # every how many layers one sees everything, where the file does not say


def find_target(bundle: Bundle) -> Target:
    """Raises:
    UnsupportedError: llama.cpp has no such architecture, or rotates otherwise; says what.
    """
    config = bundle.config
    found = _TARGETS.get(config["model_type"])
    if found is None:
        raise UnsupportedError(
            f"{bundle.path}: {config['model_type']} is not written as GGUF; known: {', '.join(_TARGETS)}"
        )
    if config["model_type"] == "bitnet" and config.get("hidden_act") != "silu":
        raise UnsupportedError(
            f"{bundle.path}: llama.cpp's bitnet has silu, this model relu2; export it as safetensors, for bitnet.cpp"
        )
    if not found.neighbours and config.get("rope_interleaved"):
        raise UnsupportedError(
            f"{bundle.path}: llama.cpp rotates halves of a {found.name}'s heads, this model neighbours"
        )
    return found


def metadata(bundle: Bundle, graph: Graph, name: str) -> dict[str, Value]:
    """Of the model, without its vocabulary.

    Raises:
        UnsupportedError: a scaling of the rotation that is not written.
    """
    config = bundle.config
    attention = next(op for op in graph.operations if isinstance(op, Attention))
    state = graph.states[attention.state]
    turned = next((2 * len(op.inverse_frequencies) for op in graph.operations if isinstance(op, Rope)), state.head_dim)
    found: dict[str, Value] = {
        "vocab_size": config["vocab_size"],
        "context_length": config.get("max_position_embeddings") or 2048,
        "embedding_length": config["hidden_size"],
        "block_count": len(graph.states),
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": attention.heads,
        "attention.head_count_kv": state.kv_heads,
        "attention.key_length": state.head_dim,
        "attention.value_length": state.head_dim,
        "attention.layer_norm_rms_epsilon": next(op.eps for op in graph.operations if isinstance(op, RmsNorm)),
        "rope.dimension_count": turned,
    }
    found |= _windows(graph, name) | _caps(graph) | _rotation(bundle)
    front: dict[str, Value] = {
        "general.architecture": name,
        "general.name": bundle.path.stem,
        "general.quantization_version": 2,
    }
    return front | {f"{name}.{key}": value for key, value in found.items()}


def _windows(graph: Graph, name: str) -> dict[str, Value]:
    windows = [state.window for state in graph.states.values()]
    sizes = {size for size in windows if size is not None}
    if not sizes:
        return {"attention.sliding_window": 0} if name == "phi3" else {}
    found: dict[str, Value] = {"attention.sliding_window": max(sizes)}
    period = next((at for at, size in enumerate(windows, 1) if size is None), None)
    if name in _PERIODS and period not in (None, _PERIODS[name]):
        found["attention.sliding_window_pattern"] = period or 0
    return found


def _caps(graph: Graph) -> dict[str, Value]:
    scores = next(op for op in graph.operations if isinstance(op, Attention)).soft_cap
    head = graph.operations[-1]
    logits = head.soft_cap if isinstance(head, Linear) else None
    caps = {"attn_logit_softcapping": scores, "final_logit_softcapping": logits}
    return {key: float(cap) for key, cap in caps.items() if cap is not None}


def _scaling(config: Mapping[str, Any], layers: str = "full") -> Mapping[str, Any]:
    """Of all layers, or of those of a kind, where kinds rotate differently."""
    found = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return found.get(f"{layers}_attention") or found


def _kind(scaling: Mapping[str, Any]) -> Any:
    return scaling.get("rope_type", scaling.get("type", "default"))


def _rotation(bundle: Bundle) -> dict[str, Value]:
    config = bundle.config
    scaling = _scaling(config)
    kind, family = _kind(scaling), config["model_type"]
    found: dict[str, Value] = {"rope.freq_base": _base(config, scaling)}
    if kind == "linear":
        found |= {"rope.scaling.type": "linear", "rope.scaling.factor": float(scaling["factor"])}
    elif kind in _LONG:
        original = config.get("original_max_position_embeddings") or scaling["original_max_position_embeddings"]
        found["rope.scaling.original_context_length"] = original
        found["rope.scaling.attn_factor"] = rotation(config, partial=True).magnitude
    elif kind not in ("default", "llama3", "dynamic"):
        raise UnsupportedError(
            f"{bundle.path}: rope scaling {kind!r} is not written as GGUF; known: linear, llama3, longrope"
        )
    if family == "gemma3_text":
        near = _scaling(config, "sliding").get("rope_theta") if "rope_parameters" in config else None
        found["rope.freq_base_swa"] = float(near or config.get("rope_local_base_freq") or _LOCAL_THETA)
    return found


def _base(config: Mapping[str, Any], scaling: Mapping[str, Any]) -> float:
    usual = _THETAS.get(config["model_type"], 10000.0)
    return float(scaling.get("rope_theta") or config.get("rope_theta") or usual)


def rope_factors(config: Mapping[str, Any], graph: Graph) -> dict[str, NDArray[np.float32]]:
    """By how much each pair is slowed, where that is no plain scaling; llama.cpp reads it as tensors."""
    scaling = _scaling(config)
    everywhere, short, long = ROPE_FACTORS
    if _kind(scaling) in _LONG:
        named = {short: "short_factor", long: "long_factor"}
        return {
            name: np.asarray(scaling.get(key) or scaling["short_factor"], np.float32) for name, key in named.items()
        }
    if _kind(scaling) != "llama3":
        return {}
    turned = np.asarray(next(op for op in graph.operations if isinstance(op, Rope)).inverse_frequencies)
    plain = _base(config, scaling) ** (-np.arange(len(turned)) / len(turned))
    return {everywhere: (plain / turned).astype(np.float32)}


def check_same(
    bundle: Bundle,
    graph: Graph,
    described: Mapping[str, Value],
    shapes: Mapping[str, tuple[int, ...]],
    factors: Mapping[str, NDArray[np.float32]],
) -> None:
    """Raises:
    UnsupportedError: llama.cpp would run another model; names the first operation that differs, and how.

    Args:
        described: the metadata that are to be written.
        shapes: of the tensors that are to be written, by llama.cpp's names.
    """
    tensors = {
        name: GgufTensor(path=bundle.path, name=name, shape=shape, kind=F32, offset=0) for name, shape in shapes.items()
    }
    header = GgufHeader(path=bundle.path, metadata=dict(described), tensors=tensors)  # type: ignore[arg-type]
    theirs = build_graph(configuration(header, architecture(header), factors))
    what = f"{bundle.path}: llama.cpp's {described['general.architecture']}"
    others = {op.name: op for op in theirs.operations}
    if more := [name for name in others if name not in {op.name for op in graph.operations}]:
        raise UnsupportedError(f"{what} cannot do without {others[more[0]].kind} {more[0]}, which this model has not")
    for ours in graph.operations:
        if ours.name not in others:
            raise UnsupportedError(f"{what} has no {ours.kind} {ours.name}, which this model has")
        one, two = _facts(ours, graph), _facts(others[ours.name], theirs)
        for name in one:
            if not _close(one[name], two.get(name)):
                raise UnsupportedError(
                    f"{what} cannot express {ours.kind} {ours.name}: its {name} would be {two.get(name)}, not {one[name]}"
                )


def _facts(op: Operation, graph: Graph) -> dict[str, Any]:
    """What an operation computes, but for what the tensors bring: the order of rows, and 1 within a norm's weight."""
    if isinstance(op, Rope):
        op = replace(op, layout="half")
    if isinstance(op, RmsNorm):
        op = replace(op, offset=0.0)
    found = {field.name: getattr(op, field.name) for field in fields(op)}
    if isinstance(op, Attention):
        state = graph.states[op.state]
        found |= {"window": state.window, "key/value heads": state.kv_heads, "head width": state.head_dim}
    return found


def _close(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float | int):
        return math.isclose(one, other, rel_tol=1e-6)  # what float32 keeps
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(_close(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other)
