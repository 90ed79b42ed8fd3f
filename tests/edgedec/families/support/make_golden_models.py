"""Build the models of ``golden/`` as graphs with weights and as bundles, and run them on any target."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle import Bundle, BundleWriter
from edgedec.families import build_graph
from edgedec.graph import Graph
from edgedec.manifest import Tokens
from edgedec.quantize.methods.int8 import quantize_int8
from edgedec.reference.float_profile.model import ReferenceModel
from edgedec.runtime.protocols import Limits, Pass, Target
from edgedec.runtime.visibility import tree
from edgedec.schemes import FloatScheme, FloatWeight, Int8Scheme
from tests.edgedec.families.support.reference_golden import Golden
from tests.support.make_tiny import TOKENIZER

F32 = NDArray[np.float32]

_PACKED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}


def weights(model: Golden, graph: Graph) -> dict[str, F32]:
    """Return the tensors under the graph's names, with packed matrices split as the reader splits them."""
    tensors: dict[str, F32] = {}
    for name, values in model.weights.items():
        (part,) = [part for part in _PACKED if f".{part}." in name] or [""]
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
    with BundleWriter.create(path) as writer:
        for name, spec in graph.weights.items():
            values = np.ascontiguousarray(tensors[name])
            if method == "int8" and len(spec.shape) == 2:
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


def passes(target: Target, limits: Limits, vocab: int) -> F32:
    """Return the logits of a prefill, of single steps, and of a tree after them: [18, vocab]."""
    rng = np.random.default_rng(5)
    ids = rng.integers(0, vocab, 18).astype(np.int32)
    state, parts = target.open(limits), []
    run = _runner(target, state)
    for start, stop in ((0, 7), (7, 8), (8, 9), (9, 12)):
        n = stop - start
        parts.append(run(Pass(ids=ids[start:stop], positions=np.arange(start, stop, dtype=np.int32), logits=_rows(n))))
        state.commit(_rows(n))
    # Two branches of three rows: siblings share positions.
    parents = np.array([-1, 0, 0, 1, 2, 4], np.int32)
    depths = np.array([0, 1, 1, 2, 2, 3], np.int32)
    parts.append(run(Pass(ids=ids[12:], positions=12 + depths, visible=tree(parents), logits=_rows(6))))
    return np.concatenate(parts)


def _rows(n: int) -> NDArray[np.int32]:
    return np.arange(n, dtype=np.int32)


def _runner(target: Target, state: Any) -> Callable[[Pass], F32]:
    def run(work: Pass) -> F32:
        (result,) = target.submit([(state, work)]).result()
        return np.array(result.logits)  # a target may return a view of its own memory

    return run
