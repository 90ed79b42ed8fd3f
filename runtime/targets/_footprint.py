"""Common parts of the footprints of the CPU target and of those of ONNX Runtime."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from edgedec.bundle.bundle import Bundle
from edgedec.errors import UnsupportedError
from edgedec.graph.graph import FEATURES_INPUT, Graph, KvState
from edgedec.graph.ops import Attention, Embed, Hadamard, Rope
from edgedec.runtime.model_graph import embedding_name, tap_bytes
from edgedec.runtime.protocols import Limits
from edgedec.runtime.run_sizes import run_rows

__all__ = [
    "ONCE",
    "OPERATION_BYTES",
    "OWN_OPERATION_BYTES",
    "OWN_TENSOR_BYTES",
    "PACKED_OPERATION_BYTES",
    "RUNTIME",
    "RUNTIME_BYTES",
    "SELF_TEST",
    "SELF_TEST_BYTES",
    "check_one_file",
    "chosen_bytes",
    "features_bytes",
    "read_weights",
    "rotary_bytes",
    "rotary_tables",
    "selection_bytes",
    "tap_items",
    "transform_bytes",
    "widest_value",
]

RUNTIME, SELF_TEST = ONCE = "onnx_runtime", "self_test"  # items that only the first session of a process has

# Memory besides arrays. The first session of ONNX Runtime in a process allocates what all of them share. In its sessions an
# operation takes 12 to 16 KiB if its weights are mapped, 3 to 4 of which the planner leaves behind, and up to 35 KiB if ONNX
# Runtime packs them. Measured on sessions of 21 to 509 operations.
RUNTIME_BYTES = 15 << 17
OPERATION_BYTES, PACKED_OPERATION_BYTES = 17 << 10, 40 << 10
# Without ONNX Runtime, most of it are Python's objects for the graph, the manifest and the places of weights: 8.9 to 9.8 KiB
# for each tensor and hardly anything else were measured on models of 20 to 320 tensors and 37 to 509 operations.
OWN_TENSOR_BYTES, OWN_OPERATION_BYTES = 9 << 10, 1 << 10
# Peak of the operators' self-test, which runs before anything is loaded: 1.85 MiB were measured.
SELF_TEST_BYTES = 2 << 20
# Bytes for each position: its number among those that a query sees, its score, and its rank twice.
_LISTED_BYTES = 8 + 4 + 4 + 4
_KEY_BLOCK, _BLOCK_ROWS = 16, 8  # kKeyBlock and kRows of attention.hpp
# Bytes of a basis for each of its own: float16 in the configuration, float32 in two orders in the operator, and the model's.
_BASIS_COPIES = 8
# Memory of the five nodes of a step of a Walsh-Hadamard transform in the portable graph: 31 KiB were measured.
_STEP_BYTES = 40 << 10


def check_one_file(bundle: Bundle, mapped: Iterable[str]) -> None:
    """Check that a bundle borrows none of the weights that ONNX Runtime maps, which it does from one file.

    Raises:
        UnsupportedError: it borrows one; the message names it.
    """
    if found := sorted(bundle.borrowed.keys() & set(mapped)):
        raise UnsupportedError(
            f"{bundle.path}: borrows {found[0]}, and ONNX Runtime, which would run this draft model, reads weights from one "
            "file only; give the draft's bundle as it was before edgedec borrow, or use --device cpu with the CPU kernels "
            "(edgedec doctor) and quantized matrices"
        )


def read_weights(graph: Graph) -> set[str]:
    """Return the names of the weights in the session: all except an embedding that no other operation reads."""
    return {name for op in graph.operations if not isinstance(op, Embed) for name in op.weight_names}


def features_bytes(graph: Graph, rows: int) -> dict[str, int]:
    """Return the item of the buffer for the features of ``rows`` rows; none if the graph has no such input."""
    return {FEATURES_INPUT: 4 * rows * graph.features} if graph.features else {}


def widest_value(graph: Graph) -> int:
    """Return the number of columns of the widest value of the graph except the logits, whose rows are ``r``."""
    vocab = graph.weights[embedding_name(graph)].shape[0]
    widths = [value.shape[-1] for value in graph.values.values() if value.shape != ("r", vocab)]
    return max(size for size in widths if isinstance(size, int))


def transform_bytes(graph: Graph) -> int:
    """Return the bytes of the nodes of Walsh-Hadamard transforms in the portable graph, which has no operator for them."""
    blocks = [op.block for op in graph.operations if isinstance(op, Hadamard)]
    return sum(_STEP_BYTES * (block.bit_length() - 1) for block in blocks)


def chosen_bytes(graph: Graph, positions: int) -> int:
    """Return the bytes of the lists of keys that the last query of each head has chosen, and of the bases of keys."""
    attentions = [(op.heads, graph.states[op.state]) for op in graph.operations if isinstance(op, Attention)]
    lists = sum(8 * heads * own.selection.largest(positions) for heads, own in attentions if own.selection is not None)
    return lists + sum(_BASIS_COPIES * len(own.basis.directions) for _, own in attentions if own.basis is not None)


def selection_bytes(state: KvState, positions: int) -> int:
    """Return the bytes with which a thread chooses keys and copies the chosen ones (kernels/attention_select.cpp)."""
    selection = state.selection
    if selection is None:
        return 0
    chosen = -(-selection.largest(positions) // _KEY_BLOCK) * _KEY_BLOCK
    lists = _LISTED_BYTES * (positions + _KEY_BLOCK) + 8 * chosen
    elements = 8 * state.head_dim if state.basis is not None else state.key_bytes + state.value_bytes
    cache = chosen * (elements + 8)
    records = chosen * (8 + state.value_bytes + 4) if state.offload else 0
    return lists + cache + records + 4 * _BLOCK_ROWS * 2 * (state.head_dim + chosen) + 4 * (2 * state.head_dim + chosen)


def tap_items(bundle: Bundle, limits: Limits, taps: Sequence[str]) -> dict[str, int]:
    """Return the bytes of the values that passes return beside logits, for a footprint; none if there are no ``taps``.

    The values lie in buffers of their own, and operations that would write their result over such a value need another one.

    Raises:
        UnsupportedError: the model has no such value.
    """
    return {"taps": 2 * run_rows(limits) * tap_bytes(bundle, taps, every_row=False)} if taps else {}


def rotary_tables(graph: Graph) -> set[tuple[tuple[float, ...], float]]:
    """Return frequencies and magnitude of each table of cosines and sines."""
    return {(op.inverse_frequencies, op.magnitude) for op in graph.operations if isinstance(op, Rope)}


def rotary_bytes(graph: Graph, positions: int) -> int:
    """Return the bytes of the tables of cosines and sines."""
    return 2 * 4 * sum(len(frequencies) for frequencies, _ in rotary_tables(graph)) * positions
