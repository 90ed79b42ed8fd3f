"""Common parts of the footprints of the ONNX Runtime targets."""

from __future__ import annotations

from edgedec.graph import Graph
from edgedec.ops import Embed, Hadamard, Rope
from edgedec.runtime.model_graph import embedding_name

__all__ = [
    "ONCE",
    "OPERATION_BYTES",
    "PACKED_OPERATION_BYTES",
    "RUNTIME",
    "RUNTIME_BYTES",
    "SELF_TEST",
    "SELF_TEST_BYTES",
    "read_weights",
    "rotary_bytes",
    "transform_bytes",
    "widest_value",
]

RUNTIME, SELF_TEST = ONCE = "onnx_runtime", "self_test"  # items that only the first session of a process has

# Memory besides arrays, measured on sessions of 21 to 389 operations. The first session of a process allocates what all
# sessions share. An operation takes 9 to 10 KiB if its weights are mapped, and up to 35 KiB if ONNX Runtime packs them.
RUNTIME_BYTES = 3 << 20
SELF_TEST_BYTES = (
    8 << 20
)  # peak of the operators' self-test, including RUNTIME_BYTES; it runs before anything is loaded
OPERATION_BYTES, PACKED_OPERATION_BYTES = 16 << 10, 40 << 10
# Memory of the five nodes of a step of a Walsh-Hadamard transform in the portable graph: 31 KiB were measured.
_STEP_BYTES = 40 << 10


def read_weights(graph: Graph) -> set[str]:
    """Return the names of the weights in the session: all except an embedding that no other operation reads."""
    return {name for op in graph.operations if not isinstance(op, Embed) for name in op.weight_names}


def widest_value(graph: Graph) -> int:
    """Return the number of columns of the widest value of the graph except the logits."""
    vocab = graph.weights[embedding_name(graph)].shape[0]
    return max(size for value in graph.values.values() if isinstance(size := value.shape[-1], int) and size != vocab)


def transform_bytes(graph: Graph) -> int:
    """Return the bytes of the nodes of Walsh-Hadamard transforms in the portable graph, which has no operator for them."""
    blocks = [op.block for op in graph.operations if isinstance(op, Hadamard)]
    return sum(_STEP_BYTES * (block.bit_length() - 1) for block in blocks)


def rotary_bytes(graph: Graph, positions: int) -> int:
    """Return the bytes of the tables of cosines and sines, which are in the model and, as initializers, in the session."""
    tables = {(op.inverse_frequencies, op.magnitude) for op in graph.operations if isinstance(op, Rope)}
    pairs = sum(len(frequencies) for frequencies, _ in tables)
    return 2 * 8 * pairs * positions
