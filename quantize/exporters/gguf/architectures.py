"""Describe a model by llama.cpp's architecture and metadata, and check that llama.cpp would run the same model.

The check reads the metadata back with ``readers.gguf.models`` and compares the graphs. A setting for which llama.cpp has no
key appears as an operation that differs.

Source: ``llama-arch.cpp`` and ``models/`` of llama.cpp for names, keys and what its graphs assume.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle.bundle import Bundle
from edgedec.errors import UnsupportedError
from edgedec.families import build_graph
from edgedec.families._rope import rotation
from edgedec.graph.graph import Graph
from edgedec.graph.ops import Attention, Linear, Operation, RmsNorm, Rope
from edgedec.quantize.exporters.gguf.file import F32, Value
from edgedec.quantize.readers.gguf.hadamard import read_rotations
from edgedec.quantize.readers.gguf.header import GgufHeader, GgufTensor
from edgedec.quantize.readers.gguf.models import ROPE_FACTORS, architecture, configuration
from edgedec.quantize.readers.gguf.names import huggingface_names
from edgedec.quantize.readers.gguf.tokenizer import TAKES_SPACES

__all__ = ["LlamaCppTarget", "check_same", "find_target", "metadata", "rope_factors"]


@dataclass(frozen=True, kw_only=True)
class LlamaCppTarget:
    """An architecture of llama.cpp that a model is exported to.

    Members:
        name: llama.cpp's name of the architecture.
        neighbours: rotary pairs of q's and k's rows are neighbours, not halves of a head.
        post_norms: there are norms after attention and MLP.
        gated_up: ``ffn_up`` holds the gate's rows, followed by its own.
    """

    name: str
    neighbours: bool = False
    post_norms: bool = False
    gated_up: bool = False


_TARGETS = {
    "llama": LlamaCppTarget(name="llama", neighbours=True),
    "mistral": LlamaCppTarget(name="llama", neighbours=True),
    "qwen2": LlamaCppTarget(name="qwen2"),
    "qwen3": LlamaCppTarget(name="qwen3"),
    "bitnet": LlamaCppTarget(name="bitnet"),
    "phi3": LlamaCppTarget(name="phi3", gated_up=True),
    "smollm3": LlamaCppTarget(name="smollm3", neighbours=True),
    "gemma": LlamaCppTarget(name="gemma"),
    "gemma2": LlamaCppTarget(name="gemma2", post_norms=True),
    "gemma3_text": LlamaCppTarget(name="gemma3", post_norms=True),
}
_THETAS = {"bitnet": 500000.0, "smollm3": 2000000.0, "gemma3_text": 1000000.0}  # defaults if the configuration has none
_LOCAL_THETA = 10000.0
_LONG = ("longrope", "su")
# Parts of a name by which llama.cpp lets special tokens take the spaces beside them
_TAKEN_NAMES = (*TAKES_SPACES, "modern-bert")
_PERIODS = {"gemma2": 2, "gemma3": 6}  # llama.cpp's default distance, in layers, between layers with full attention


def find_target(bundle: Bundle) -> LlamaCppTarget:
    """Return llama.cpp's architecture for a bundle.

    Raises:
        UnsupportedError: llama.cpp has no such architecture, or its activation or rotation differs.
    """
    config = bundle.config
    target = _TARGETS.get(config["model_type"])
    if target is None:
        raise UnsupportedError(
            f"{bundle.path}: {config['model_type']} is not written as GGUF; known: {', '.join(_TARGETS)}"
        )
    if config["model_type"] == "bitnet" and config.get("hidden_act") != "silu":
        raise UnsupportedError(
            f"{bundle.path}: llama.cpp's bitnet has silu, this model relu2; export it as safetensors, for bitnet.cpp"
        )
    if not target.neighbours and config.get("rope_interleaved"):
        raise UnsupportedError(
            f"{bundle.path}: llama.cpp rotates halves of a {target.name}'s heads, this model neighbours"
        )
    return target


def metadata(bundle: Bundle, graph: Graph, name: str) -> dict[str, Value]:
    """Return the metadata of the model, without those of its vocabulary.

    Raises:
        UnsupportedError: GGUF cannot express the scaling of the rotation.
    """
    config = bundle.config
    attention = next(op for op in graph.operations if isinstance(op, Attention))
    state = graph.states[attention.state]
    turned = next((2 * len(op.inverse_frequencies) for op in graph.operations if isinstance(op, Rope)), state.head_dim)
    keys: dict[str, Value] = {
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
    keys |= _windows(graph, name) | _caps(graph) | _rotation(bundle)
    front: dict[str, Value] = {"general.architecture": name, "general.quantization_version": 2}
    if not any(part in bundle.path.stem.lower() for part in _TAKEN_NAMES):
        front["general.name"] = bundle.path.stem
    return front | {f"{name}.{key}": value for key, value in keys.items()}


def _windows(graph: Graph, name: str) -> dict[str, Value]:
    windows = [state.window for state in graph.states.values()]
    sizes = {size for size in windows if size is not None}
    if not sizes:
        return {"attention.sliding_window": 0} if name == "phi3" else {}
    keys: dict[str, Value] = {"attention.sliding_window": max(sizes)}
    period = next((at for at, size in enumerate(windows, 1) if size is None), None)
    if name in _PERIODS and period not in (None, _PERIODS[name]):
        keys["attention.sliding_window_pattern"] = period or 0
    return keys


def _caps(graph: Graph) -> dict[str, Value]:
    scores = next(op for op in graph.operations if isinstance(op, Attention)).soft_cap
    head = graph.operations[-1]
    logits = head.soft_cap if isinstance(head, Linear) else None
    caps = {"attn_logit_softcapping": scores, "final_logit_softcapping": logits}
    return {key: float(cap) for key, cap in caps.items() if cap is not None}


def _scaling(config: Mapping[str, Any], layers: str = "full") -> Mapping[str, Any]:
    """Return the scaling of all layers, or of one kind of layers if the kinds rotate differently."""
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return scaling.get(f"{layers}_attention") or scaling


def _kind(scaling: Mapping[str, Any]) -> Any:
    return scaling.get("rope_type", scaling.get("type", "default"))


def _rotation(bundle: Bundle) -> dict[str, Value]:
    config = bundle.config
    scaling = _scaling(config)
    kind, family = _kind(scaling), config["model_type"]
    keys: dict[str, Value] = {"rope.freq_base": _base(config, scaling)}
    if kind == "linear":
        keys |= {"rope.scaling.type": "linear", "rope.scaling.factor": float(scaling["factor"])}
    elif kind in _LONG:
        original = config.get("original_max_position_embeddings") or scaling["original_max_position_embeddings"]
        keys["rope.scaling.original_context_length"] = original
        keys["rope.scaling.attn_factor"] = rotation(config, partial=True).magnitude
    elif kind not in ("default", "llama3", "dynamic"):
        raise UnsupportedError(
            f"{bundle.path}: rope scaling {kind!r} is not written as GGUF; known: linear, llama3, longrope"
        )
    if family == "gemma3_text":
        near = _scaling(config, "sliding").get("rope_theta") if "rope_parameters" in config else None
        keys["rope.freq_base_swa"] = float(near or config.get("rope_local_base_freq") or _LOCAL_THETA)
    return keys


def _base(config: Mapping[str, Any], scaling: Mapping[str, Any]) -> float:
    usual = _THETAS.get(config["model_type"], 10000.0)
    return float(scaling.get("rope_theta") or config.get("rope_theta") or usual)


def rope_factors(config: Mapping[str, Any], graph: Graph) -> dict[str, NDArray[np.float32]]:
    """Return the factors by which pairs rotate more slowly, as tensors of llama.cpp; empty if a plain scaling suffices."""
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
    """Check that llama.cpp would run the same model.

    Args:
        bundle: the bundle, for messages.
        graph: graph of the model.
        described: metadata that will be written.
        shapes: shapes of the tensors that will be written, by llama.cpp's names.
        factors: result of ``rope_factors``.

    Raises:
        UnsupportedError: llama.cpp would run another model; the message names the first operation that differs.
    """
    tensors = {
        name: GgufTensor(path=bundle.path, name=name, shape=shape, kind=F32, offset=0) for name, shape in shapes.items()
    }
    read = {key: np.array(value) if _is_integers(value) else value for key, value in described.items()}
    header = GgufHeader(path=bundle.path, metadata=read, tensors=tensors)  # type: ignore[arg-type]
    known, rotations = architecture(header), read_rotations(header)
    config = configuration(header, known, factors)
    if rotations is not None:
        form = {"post_norms": known.post_norms, "gated_up": known.gated_up}
        config |= rotations.configuration({ours: name for name in shapes for ours in huggingface_names(name, **form)})
    theirs = build_graph(config)
    model = f"{bundle.path}: llama.cpp's {described['general.architecture']}"
    others = {op.name: op for op in theirs.operations}
    if more := [name for name in others if name not in {op.name for op in graph.operations}]:
        raise UnsupportedError(f"{model} requires {others[more[0]].kind} {more[0]}, which this model does not have")
    for ours in graph.operations:
        if ours.name not in others:
            raise UnsupportedError(f"{model} has no {ours.kind} {ours.name}, which this model has")
        one, two = _facts(ours, graph), _facts(others[ours.name], theirs)
        for name in one:
            if not _close(one[name], two.get(name)):
                raise UnsupportedError(
                    f"{model} cannot express {ours.kind} {ours.name}: its {name} would be {two.get(name)}, not "
                    f"{one[name]}"
                )


def _is_integers(value: Value) -> bool:
    """Return whether a reader returns the value as an array."""
    return isinstance(value, list) and isinstance(value[0], int)


def _facts(op: Operation, graph: Graph) -> dict[str, Any]:
    """Return the settings of an operation, without those that tensors express: the order of rows, and a norm's offset."""
    if isinstance(op, Rope):
        op = replace(op, layout="half")
    if isinstance(op, RmsNorm):
        op = replace(op, offset=0.0)
    facts = {field.name: getattr(op, field.name) for field in fields(op)}
    if isinstance(op, Attention):
        state = graph.states[op.state]
        facts |= {"window": state.window, "key/value heads": state.kv_heads, "head width": state.head_dim}
    return facts


def _close(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float | int):
        return math.isclose(one, other, rel_tol=1e-6)  # precision of float32
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(_close(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other)
