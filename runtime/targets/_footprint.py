"""What the footprints of the ONNX Runtime targets have in common."""

from __future__ import annotations

from edgedec.graph import Graph
from edgedec.ops import Embed, Rope
from edgedec.runtime.protocols import Limits
from edgedec.runtime.targets._graphs import embedding_name

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
    "usual_result_rows",
    "widest_value",
]

RUNTIME, SELF_TEST = ONCE = "onnx_runtime", "self_test"  # items that a second session of a process does not have again

# Measured on sessions of 21 to 389 operations: the share that no array explains. The first session of a process brings
# what all of them use. Of an operation: 9 to 10 KiB where its weights are mapped, up to 35 where ONNX Runtime packs them.
RUNTIME_BYTES = 3 << 20
SELF_TEST_BYTES = 8 << 20  # the most that the operators' test holds, RUNTIME_BYTES among them; nothing is loaded yet
OPERATION_BYTES, PACKED_OPERATION_BYTES = 16 << 10, 40 << 10


def read_weights(graph: Graph) -> set[str]:
    """Weights that the session itself holds: all but an embedding that nothing else reads."""
    return {name for op in graph.operations if not isinstance(op, Embed) for name in op.weight_names}


def usual_result_rows(limits: Limits) -> int:
    """Rows of logits of the widest pass: a tree's all, a plain one's last."""
    return limits.nodes if limits.depth else 1


def widest_value(graph: Graph) -> int:
    """Columns of the widest value, the logits aside."""
    vocab = graph.weights[embedding_name(graph)].shape[0]
    return max(size for value in graph.values.values() if isinstance(size := value.shape[-1], int) and size != vocab)


def rotary_bytes(graph: Graph, positions: int) -> int:
    """Cosines and sines, in the model and as an initializer."""
    turns = {(op.inverse_frequencies, op.magnitude) for op in graph.operations if isinstance(op, Rope)}
    pairs = sum(len(frequencies) for frequencies, _ in turns)
    return 2 * 8 * pairs * positions
