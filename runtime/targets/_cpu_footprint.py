"""The footprint of the CPU target: its charged bytes by item, and the file of values, computed from shapes."""

from __future__ import annotations

from edgedec.bundle.bundle import Bundle
from edgedec.graph.graph import Graph
from edgedec.memory.plan import MemoryUse
from edgedec.onnx.kv_cache import CacheLayout, blocks_of, cache_layout
from edgedec.onnx.lowering import check_lowered
from edgedec.onnx.recurrent_layout import RecurrentLayout, recurrent_layout
from edgedec.runtime.base.cores import physical_cores
from edgedec.runtime.kernels.attention.value_file import value_room
from edgedec.runtime.kernels.weights.layout_cache import LOAD_BYTES
from edgedec.runtime.model_graph import bundle_graph, embedding_name
from edgedec.runtime.protocols import Bytes, Limits
from edgedec.runtime.run_sizes import cache_rows, recurrent_slots, run_rows, usual_result_rows
from edgedec.runtime.targets._cpu_weights import fixed_sizes, program_room, weight_items
from edgedec.runtime.targets._footprint import (
    OPERATION_BYTES,
    OWN_OPERATION_BYTES,
    OWN_TENSOR_BYTES,
    RUNTIME,
    RUNTIME_BYTES,
    SELF_TEST,
    SELF_TEST_BYTES,
    chosen_bytes,
    features_bytes,
    rotary_bytes,
    selection_bytes,
)
from edgedec.runtime.targets._lent_weights import lent_weights

__all__ = ["KV_CHOICES", "arena_layout", "cpu_footprint", "mask_words", "value_file_use"]

KV_CHOICES = (16, 8, 4, 32)  # supported bits of keys and values; the first is the default
# Activations that are alive at once in ONNX Runtime, in units of the widest value; blocks of its arena are rounded up.
_ACTIVATION_COPIES = 6
# Memory of a session of ONNX Runtime that is the first one after the plan: nothing before it has left free blocks for it.
_LATE_BYTES = 5 << 18
_HOLES = 16  # one part of so many is added to the buffers of a program, for holes between them in the heap (measured)
_BLOCK_ROWS = 8  # kRows of attention.hpp
_BLOCK_BYTES = 64  # Python objects for each block of the arena: its number, its place among the free ones, its holders


def mask_words(rows: int) -> int:
    """Return the words of 64 bits of a row of a mask."""
    return -(-rows // 64)


def arena_layout(graph: Graph, limits: Limits) -> CacheLayout:
    """Return the layout of the cache; the slack of rings is the largest pass of a sequence."""
    return cache_layout(
        graph.states,
        cache_rows(limits),
        positions=limits.positions,
        slack=limits.nodes,
        value_rows=limits.value_rows,
    )


def cpu_footprint(
    bundle: Bundle,
    limits: Limits,
    *,
    threads: int = 0,
    kv_bits: int | None = None,
    result_rows: int | None = None,
    lent: bool = False,
) -> Bytes:
    """Return the charged bytes by item, computed from shapes and from constants measured with ONNX Runtime 1.31.

    They are for submissions of at most ``run_rows(limits)`` rows. A wider one takes several runs, and the results of
    all runs but the last are copied. With ``lent``, what the bundle's lender has in memory is not counted again.
    """
    graph = bundle_graph(bundle, kv_bits or KV_CHOICES[0], rings=True)
    check_lowered(graph, kernels=True)
    vocab, width = graph.weights[embedding_name(graph)].shape
    from_target = lent_weights(bundle, lent=lent)
    fixed = fixed_sizes(bundle, graph, from_target)
    widest = fixed.widest
    states, rows, blocks = graph.states.values(), run_rows(limits), blocks_of(limits.positions)
    layout, recurrent = arena_layout(graph, limits), recurrent_layout(graph, limits.nodes)
    # Each thread has the codes of a pass in three orders with their sums, and twice the scores of a block of rows.
    head_dim = max((state.head_dim for state in states), default=0)
    scores = head_dim + limits.positions + 16 if graph.states else 0
    thread_bytes = 4 * rows * widest + 4 * _BLOCK_ROWS * 2 * scores
    selecting = max((selection_bytes(state, limits.positions) for state in states), default=0)
    thread_bytes += selecting
    # A flight (``runtime/loop/flight.py``) has a thread of its own, whose passes have one row.
    flight_bytes = 4 * widest + 4 * 2 * scores + selecting
    count, room = len(graph.operations), program_room(bundle, graph)
    foreign = room is None
    loaded = {
        **weight_items(bundle, graph, limits, from_target),
        "rotary_tables": rotary_bytes(graph, limits.positions + run_rows(limits)),
        "session": OPERATION_BYTES * count
        if foreign
        else OWN_OPERATION_BYTES * count + OWN_TENSOR_BYTES * len(bundle.tensors),
    }
    one_sequence = not (limits.cache_rows or limits.batch_rows)  # ``result_rows`` are those of one pass
    results = (result_rows if one_sequence else None) or usual_result_rows(limits)
    # Conversion and self-test end before the session is loaded, so only their excess over its memory counts.
    converting = max(0, LOAD_BYTES * fixed.packed - sum(loaded.values()))
    once = RUNTIME_BYTES + _LATE_BYTES if foreign else 0
    testing = max(0, SELF_TEST_BYTES - once - sum(loaded.values()) - converting)
    return {
        **loaded,
        **({RUNTIME: once} if foreign else {}),
        "kv": layout.nbytes - layout.ring_bytes - layout.label_bytes,
        **({"kv_ring": layout.ring_bytes} if layout.ring_bytes else {}),
        **({"kv_labels": layout.label_bytes + chosen_bytes(graph, limits.positions)} if layout.label_bytes else {}),
        **({"kv_value_rows": layout.frame_bytes} if layout.filed else {}),
        **({} if recurrent is None else {"recurrent": _recurrent_bytes(recurrent, limits)}),
        "masks": 8 * (rows * mask_words(rows) + limits.nodes * mask_words(limits.nodes)),
        # Two tables for each sequence and kind of states.
        "block_tables": _BLOCK_BYTES * sum(layout.blocks) + 2 * 4 * rows * blocks * len(layout.kinds),
        "logits": 4 * results * (vocab + (0 if room is None else room.results)),
        "activations": 4
        * rows
        * (width + (_ACTIVATION_COPIES * widest if room is None else room.floats + room.floats // _HOLES)),
        **features_bytes(graph, rows),
        "workspace": (threads or physical_cores()) * (thread_bytes + 4 * (recurrent.head_floats if recurrent else 0))
        + flight_bytes,
        "load_transient": converting,
        SELF_TEST: testing,
    }


def value_file_use(bundle: Bundle, limits: Limits, *, kv_bits: int | None = None) -> tuple[MemoryUse, ...]:
    """Return the use of the disk by the file of values; nothing if all values are in memory."""
    graph = bundle_graph(bundle, kv_bits or KV_CHOICES[0], rings=True)
    nbytes = arena_layout(graph, limits).file_bytes
    return (value_room(nbytes),) if nbytes else ()


def _recurrent_bytes(layout: RecurrentLayout, limits: Limits) -> int:
    """Return the bytes of the tables, all slots and snapshots."""
    return layout.nbytes(recurrent_slots(limits)) + 4 * layout.state_floats * limits.snapshots
