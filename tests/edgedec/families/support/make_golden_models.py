"""Build the models of ``golden/`` as graphs with weights and as bundles, and run them on any target."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle.bundle import Bundle, BundleWriter
from edgedec.bundle.manifest import Tokens
from edgedec.families import build_graph
from edgedec.graph.graph import Graph
from edgedec.graph.ops import Embed, Linear, QuantizeActivation
from edgedec.quantize.methods.int8 import quantize_int8
from edgedec.reference.float_profile.model import ReferenceModel
from edgedec.runtime.model_graph import bundle_graph
from edgedec.runtime.protocols import U64, Limits, Pass, Target
from edgedec.runtime.targets import open_target
from edgedec.runtime.visibility import tree
from edgedec.schemes import FloatScheme, FloatWeight, Int8Scheme
from tests.edgedec.families.support.reference_golden import Golden
from tests.support.make_tiny import TOKENIZER

F32 = NDArray[np.float32]
_TIE = 5e-5  # codes; float32 codes of up to 127 that differ in their last bits are nearer

_PACKED = {
    **dict.fromkeys(("qkv_proj", "Wqkv"), ("q_proj", "k_proj", "v_proj")),
    **dict.fromkeys(("gate_up_proj", "fc1"), ("gate_proj", "up_proj")),
}


def weights(model: Golden, graph: Graph) -> dict[str, F32]:
    """Return the tensors under the graph's names, with packed matrices split as the reader splits them."""
    tensors: dict[str, F32] = {}
    for name, values in model.weights.items():
        (part,) = [part for part in _PACKED if f".{part}." in name and name not in graph.weights] or [""]
        at = 0
        for inner in _PACKED.get(part, (part,)):
            key = name.replace(part, inner) if part else name
            rows = graph.weights[key].shape[0]
            tensors[key] = values[at : at + rows]
            at += rows
        assert at == len(values), name
    return tensors


def reference(model: Golden, changes: Mapping[str, Any] | None = None) -> ReferenceModel:
    """Return the float reference of a model with some keys of its configuration changed."""
    graph = build_graph({**model.config, **(changes or {})})
    tensors = weights(model, graph)
    return ReferenceModel(graph, lambda name: FloatWeight(values=tensors[name]))


def logits(model: Golden, changes: Mapping[str, Any] | None = None, *, step: int | None = None) -> F32:
    """Return the logits of one pass, or of passes of ``step`` rows."""
    interpreter = reference(model, changes)
    cache, parts = interpreter.new_cache(), []
    step = step or len(model.ids)
    for start in range(0, len(model.ids), step):
        rows = slice(start, start + step)
        parts.append(interpreter.forward(model.ids[rows], cache, positions=model.positions[rows])[0])
        cache.commit(np.arange(len(model.ids[rows]), dtype=np.int32))
    return np.concatenate(parts)


def write_bundle(path: Path, model: Golden, method: str) -> Bundle:
    """Write a bundle of the model's own weights; ``method`` is float, or int8 for every matrix."""
    graph = build_graph(model.config)
    tensors = weights(model, graph)
    matrices = {name for op in graph.operations if isinstance(op, Linear | Embed) for name in op.weight_names}
    with BundleWriter.create(path) as writer:
        for name, spec in graph.weights.items():
            values = np.ascontiguousarray(tensors[name])
            if method == "int8" and len(spec.shape) == 2 and name in matrices:
                codes, scale = quantize_int8(values)
                writer.add(name, Int8Scheme(rows=True), spec.shape, {"codes": codes, "scale": scale})
            else:
                writer.add(name, FloatScheme(), spec.shape, {"values": values})
        writer.finish(
            config=model.config,
            quantization={"method": method},
            tokens=Tokens(size=int(model.config["vocab_size"])),
            tokenizer_json=TOKENIZER,
            chat_template=None,
        )
    return Bundle.open(path)


def drawn_ids(vocab: int, seed: int) -> NDArray[np.int32]:
    """Return the ids of ``passes``, int32 [18]."""
    return np.random.default_rng(seed).integers(0, vocab, 18).astype(np.int32)


def passes(target: Target, limits: Limits, vocab: int, seed: int, taps: tuple[str, ...] = ()) -> tuple[F32, list[F32]]:
    """Run a prefill, single steps, and a tree after them, which is left out if passes have no room for its 6 rows.

    Returns:
        The logits [18, vocab], without the tree [12, vocab], and the values of ``taps``, one array for each pass and name.
    """
    ids, state, parts, tapped = drawn_ids(vocab, seed), target.open(limits), list[F32](), list[F32]()

    def run(ids: NDArray[np.int32], positions: NDArray[Any], visible: U64 | None = None) -> None:
        rows = _rows(len(ids))
        work = Pass(ids=ids, positions=positions.astype(np.int32), visible=visible, logits=rows, taps=taps)
        (result,) = target.submit([(state, work)]).result()
        parts.append(np.array(result.logits))  # a target may return a view of its own memory
        tapped.extend(np.array(values) for values in result.taps.values())

    for begin, end in ((0, 7), (7, 8), (8, 9), (9, 12)):
        for start in range(begin, end, limits.nodes):
            stop = min(start + limits.nodes, end)
            run(ids[start:stop], np.arange(start, stop))
            state.commit(_rows(stop - start))
    if limits.nodes >= 6:  # two branches of three rows: siblings share positions
        run(ids[12:], 12 + np.array([0, 1, 1, 2, 2, 3]), tree(np.array([-1, 0, 0, 1, 2, 4], np.int32)))
    return np.concatenate(parts), tapped


def clear_seed(bundle: Bundle, limits: Limits) -> int:
    """Return the first seed of ``passes`` with which the reference quantizes no activation that is almost between two codes.

    There, floats that differ in their last bits are rounded to different codes, and both are right.
    """
    graph = bundle_graph(bundle, 32, rings=True)
    names = tuple(dict.fromkeys(op.inputs[0] for op in graph.operations if isinstance(op, QuantizeActivation)))
    target = open_target(bundle, device="float_reference", limits=limits, kv_bits=32, taps=names)
    for seed in range(5, 25):
        _, values = passes(target, limits, int(bundle.config["vocab_size"]), seed, names)
        if min(map(_tie_distance, values), default=1.0) > _TIE:
            return seed
    raise AssertionError("each of 20 seeds has an activation between two codes")


def _tie_distance(x: F32) -> float:
    """Return the least distance from a point between two codes, in codes, of activations [n, width]."""
    scale = np.abs(x).max(axis=1, keepdims=True) / np.float32(127)
    codes = np.divide(x, scale, out=np.zeros_like(x), where=scale > 0)
    return float(np.abs(codes - np.floor(codes) - np.float32(0.5)).min())


def _rows(n: int) -> NDArray[np.int32]:
    return np.arange(n, dtype=np.int32)
