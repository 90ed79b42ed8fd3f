"""Describe weights that are stored rotated by the metadata ``prism.hadamard.*`` of PrismML's llama.cpp."""

from __future__ import annotations

import numpy as np

from edgedec.bundle.bundle import Bundle
from edgedec.errors import UnsupportedError
from edgedec.graph.graph import Graph
from edgedec.graph.ops import Embed, Hadamard, Linear
from edgedec.quantize.exporters.gguf.file import Value
from edgedec.quantize.readers.gguf.hadamard import AXIS, PREFIX, TRANSFORM
from edgedec.quantize.readers.gguf.names import gguf_name

__all__ = ["rotation_metadata", "sign_weights"]

_ARCHITECTURES = ("llama", "qwen3")  # dense architectures whose graphs in PrismML's llama.cpp have rotations


def sign_weights(graph: Graph) -> set[str]:
    """Return the names of the weights that hold signs, which are metadata in a file."""
    return {op.signs for op in graph.operations if isinstance(op, Hadamard) and op.signs}


def rotation_metadata(bundle: Bundle, graph: Graph, architecture: str) -> dict[str, Value]:
    """Return the metadata of a bundle's rotations; empty if it has none.

    Raises:
        UnsupportedError: PrismML's llama.cpp has no rotations in this architecture.
    """
    rotations = {op.outputs[0]: op for op in graph.operations if isinstance(op, Hadamard)}
    if not rotations:
        return {}
    first = next(iter(rotations.values()))
    if architecture not in _ARCHITECTURES:
        raise UnsupportedError(
            f"{bundle.path}: its weights are stored rotated ({first.name}), and PrismML's llama.cpp has rotations only in "
            f"{' and '.join(_ARCHITECTURES)}, not in {architecture}; run the bundle with --device cpu"
        )
    back = {op.inputs[0] for op in rotations.values() if op.inverse}
    linears = (op for op in graph.operations if isinstance(op, Linear) and op.inputs[0] in rotations)
    keys: dict[str, Value] = {
        "version": 1,
        "block_size": first.block,
        "transform": TRANSFORM,
        "axis": AXIS,
        "sign_mode": "explicit" if first.signs else "identity",
        "weight_names": [gguf_name(weight) for op in linears for weight in op.weights],
    }
    inverse = [gguf_name(op.weight) for op in graph.operations if isinstance(op, Embed) and op.outputs[0] in back]
    if inverse:
        keys["inverse_weight_names"] = inverse
    if first.signs:
        vectors = [bundle.weight(name).dense() for name in sorted(sign_weights(graph))]
        keys["sign_widths"] = [len(vector) for vector in vectors]
        keys["sign_values"] = np.concatenate(vectors).astype(np.int32).tolist()
    return {f"{PREFIX}{key}": value for key, value in keys.items()}
