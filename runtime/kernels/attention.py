"""The key/value cache of the operator TreeAttention: moving its rows, and attention by itself, for tests."""

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
    wanted = kv_bytes(state, positions)
    if cache.dtype != np.uint8 or cache.size != wanted or not cache.flags.c_contiguous:
        raise EdgedecError(
            f"the cache of {state.name} must be {wanted} contiguous uint8, not {cache.size} {cache.dtype}"
        )
    return cache.ctypes.data


def move_rows(
    kernels: Kernels, cache: NDArray[np.uint8], state: KvState, positions: int, start: int, nodes: I32
) -> None:
    """Row ``start + nodes[i]`` becomes row ``start + i``.

    Raises:
        EdgedecError: nodes do not ascend, or lie outside of the cache.
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
    """One pass of n rows over ``past`` committed ones: stores its keys and values, returns float32 [n, heads * head_dim].

    Args:
        queries: float32 [n, heads * head_dim]; keys, values: [n, kv_heads * head_dim]; before rotation.
        visible: as in ``Pass``.
        cap: of scores, as ``ops.Attention.soft_cap``; 0: none.
        rotary: 0 none, 1 pairs (i, i + half), 2 pairs (2 i, 2 i + 1); tables: cos and sin [capacity, head_dim / 2].

    Raises:
        EdgedecError: numbers that do not fit one another.
    """
    n = len(queries)
    arrays: list[NDArray[Any]] = [np.ascontiguousarray(array, np.float32) for array in (queries, keys, values)]
    arrays += [np.ascontiguousarray(positions, np.int64), np.ascontiguousarray(visible, np.uint64)]
    turning: list[F32] = [np.ascontiguousarray(table, np.float32) for table in tables or ()]
    heads, kv_width = queries.shape[1] // state.head_dim, state.kv_heads * state.head_dim
    shapes = ((n, heads * state.head_dim), (n, kv_width), (n, kv_width), (n,), (n, arrays[4].shape[-1]))
    for name, array, wanted in zip(("queries", "keys", "values", "positions", "visible"), arrays, shapes, strict=True):
        if array.shape != wanted:
            raise EdgedecError(f"{name} must have the shape {wanted}, not {array.shape}")
    if rotary and [table.shape for table in turning] != [(capacity, state.head_dim // 2)] * 2:
        raise EdgedecError(f"cos and sin must be [{capacity}, {state.head_dim // 2}]")
    out = np.empty(shapes[0], np.float32)
    kernels.call(
        "edgedec_attention",
        *(code_path.encode() if code_path else None, heads, *_sizes(state, capacity)),
        *(_checked(cache, state, capacity), past, n, *(array.ctypes.data for array in arrays), arrays[4].shape[1]),
        *(state.window or 0, state.sinks, scale, cap, rotary),
        *(table.ctypes.data for table in turning or (out, out)),  # never read without rotary
        out.ctypes.data,
    )
    return out
