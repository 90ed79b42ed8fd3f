"""The key/value cache of the operator TreeAttention: moves of its rows, and calls of the attention kernel for tests."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import EdgedecError
from edgedec.graph import KvState
from edgedec.onnx.kv_cache import kv_bytes
from edgedec.runtime.kernels import Kernels
from edgedec.runtime.protocols import F32, I32, U64

__all__ = ["attend", "move_rows"]


def _sizes(state: KvState, positions: int) -> tuple[int, int, int, int]:
    return state.kv_heads, state.head_dim, positions, state.bits


def _checked(cache: NDArray[np.uint8], state: KvState, positions: int) -> int:
    size = kv_bytes(state, positions)
    if cache.dtype != np.uint8 or cache.size != size or not cache.flags.c_contiguous:
        raise EdgedecError(f"the cache of {state.name} must be {size} contiguous uint8, not {cache.size} {cache.dtype}")
    return cache.ctypes.data


def move_rows(
    kernels: Kernels, cache: NDArray[np.uint8], state: KvState, positions: int, start: int, nodes: I32
) -> None:
    """Copy row ``start + nodes[i]`` to row ``start + i``, for every i.

    Args:
        kernels: the kernels.
        cache: uint8 [bytes], the cache of ``state`` with room for ``positions`` rows.
        state: sizes of the cache.
        positions: number of rows.
        start, nodes: first row, and int32 [m] in ascending order.

    Raises:
        EdgedecError: ``nodes`` do not ascend, or a row is outside of the cache.
    """
    nodes = np.ascontiguousarray(nodes, np.int32)
    address = _checked(cache, state, positions)
    kernels.call("edgedec_kv_move", *_sizes(state, positions), address, start, nodes.ctypes.data, len(nodes))


def attend(
    kernels: Kernels,
    cache: NDArray[np.uint8],
    state: KvState,
    capacity: int,
    *,
    queries: F32,
    keys: F32,
    values: F32,
    past: int,
    positions: I32,
    visible: U64,
    scale: float,
    cap: float = 0.0,
    rotary: int = 0,
    tables: tuple[F32, F32] | None = None,
    code_path: str | None = None,
) -> F32:
    """Store the keys and values of a pass of n rows and return its attention, float32 [n, heads * head_dim].

    Args:
        kernels: the kernels.
        cache: uint8 [bytes], the cache of ``state`` with room for ``capacity`` rows.
        state: sizes of the cache.
        capacity: number of rows of the cache.
        queries: float32 [n, heads * head_dim], before rotation.
        keys, values: float32 [n, kv_heads * head_dim], before rotation.
        past: number of committed rows.
        positions: int32 [n].
        visible: uint64 [n, words], the mask of ``Pass.visible``.
        scale: factor of the scores.
        cap: soft cap of the scores, ``ops.Attention.soft_cap``; 0: none.
        rotary: 0: no rotation; 1: pairs (i, i + half); 2: pairs (2 i, 2 i + 1).
        tables: cosines and sines, float32 [capacity, head_dim / 2] each; needed with ``rotary``.
        code_path: name of a code path; None: that of this process.

    Raises:
        EdgedecError: the sizes of the arguments do not fit each other.
    """
    n = len(queries)
    arrays: list[NDArray[Any]] = [np.ascontiguousarray(array, np.float32) for array in (queries, keys, values)]
    arrays += [np.ascontiguousarray(positions, np.int64), np.ascontiguousarray(visible, np.uint64)]
    rotary_tables: list[F32] = [np.ascontiguousarray(table, np.float32) for table in tables or ()]
    heads, kv_width = queries.shape[1] // state.head_dim, state.kv_heads * state.head_dim
    shapes = ((n, heads * state.head_dim), (n, kv_width), (n, kv_width), (n,), (n, arrays[4].shape[-1]))
    for name, array, shape in zip(("queries", "keys", "values", "positions", "visible"), arrays, shapes, strict=True):
        if array.shape != shape:
            raise EdgedecError(f"{name} must have the shape {shape}, not {array.shape}")
    if rotary and [table.shape for table in rotary_tables] != [(capacity, state.head_dim // 2)] * 2:
        raise EdgedecError(f"cos and sin must be [{capacity}, {state.head_dim // 2}]")
    out = np.empty(shapes[0], np.float32)
    kernels.call(
        "edgedec_attention",
        *(code_path.encode() if code_path else None, heads, *_sizes(state, capacity)),
        *(_checked(cache, state, capacity), past, n, *(array.ctypes.data for array in arrays), arrays[4].shape[1]),
        *(state.window or 0, state.sinks, scale, cap, rotary),
        *(table.ctypes.data for table in rotary_tables or (out, out)),  # not read without rotary
        out.ctypes.data,
    )
    return out
