"""The key/value cache of the operator TreeAttention: moves of its rows, and calls of the attention kernel for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import EdgedecError
from edgedec.graph.graph import KvState
from edgedec.onnx.kv_cache import BLOCK_ROWS, CacheLayout, kv_bytes
from edgedec.runtime.kernels import Kernels
from edgedec.runtime.kernels.attention.value_file import FiledHead, ValueFile
from edgedec.runtime.protocols import F32, I32, U64

__all__ = ["KvBuffer", "attend"]

_COUNTS_BYTES = 64  # size of ``KeyCounts``


class KvBuffer:
    """The keys and values of all layers and sequences, in blocks of rows.

    Members:
        layout: sizes and offsets of the states.
        cache: uint8 [layout.nbytes], zero at first; pages that no pass has written take no memory.
        file: the values of the states ``layout.filed``; None: all values are in the cache.

    Raises:
        DeviceError: the file of values cannot be made.
    """

    def __init__(self, kernels: Kernels, layout: CacheLayout) -> None:
        self.file = ValueFile(kernels, layout.filed) if layout.filed else None
        layout = layout if self.file is None else layout.with_store(self.file.number)
        self._kernels, self.layout = kernels, layout
        self.cache = np.zeros(layout.nbytes, np.uint8)
        self._numbers = layout.numbers()
        self._states = (self._numbers.ctypes.data, len(self._numbers), self.cache.ctypes.data)

    def filed_heads(self) -> list[list[FiledHead]]:
        """Return the parts of the file by state and key/value head, as ``heads`` does: one for each head, or none."""
        heads = list[list[FiledHead]]()
        for name, state in self.layout.states.items():
            filed, (_, part) = self.layout.filed.get(name), self.layout.values_place(name)
            for head in range(state.kv_heads):
                heads.append([] if filed is None or self.file is None else [FiledHead(self.file, part, head, filed)])
        return heads

    def heads(self) -> list[list[NDArray[np.uint8]]]:
        """Return views of the cache by state and key/value head, in this order.

        Each head has keys, values, for codes of 8 or 4 bits the scales of both, and labels if queries choose keys, uint8
        [blocks, bytes of a block] each. Values in a file, and their scales, are left out.
        """
        heads, layout = [], self.layout
        for name, state in layout.states.items():
            end, blocks = layout.offsets[name], layout.blocks[layout.kind_of[name]]
            scale, filed = (4,) if state.bits <= 8 else (), name in layout.filed
            values, value_scales = ((), ()) if filed else ((state.value_bytes,), scale)
            labels = () if state.selection is None else (state.selection.label_bytes,)
            for _ in range(state.kv_heads):
                views = []
                for width in (state.key_bytes, *values, *scale, *value_scales, *labels):
                    begin, end = end, end + blocks * BLOCK_ROWS * width
                    views.append(self.cache[begin:end].reshape(blocks, BLOCK_ROWS * width))
                heads.append(views)
        return heads

    @property
    def counts(self) -> list[int] | None:
        """The numbers of ``KeyCounts`` of attention.hpp, of all passes since the opening; None: no query chooses keys."""
        at = self.layout.counts
        if at is None:
            return None
        numbers: list[int] = self.cache[at : at + _COUNTS_BYTES].view(np.int64).tolist()
        return numbers

    def move(self, blocks: I32, start: int, nodes: I32) -> None:
        """Copy row ``start + nodes[i]`` of a sequence to its row ``start + i``, for every i.

        Args:
            blocks: int32 [kinds, b], the sequence's tables: for each kind of states the block for each 16 rows.
            start, nodes: first row, and int32 [m] in ascending order.

        Raises:
            EdgedecError: ``nodes`` do not ascend, or a row is outside of the table, or a block outside of the buffer.
        """
        nodes, blocks = np.ascontiguousarray(nodes, np.int32), np.ascontiguousarray(blocks, np.int32)
        table = (blocks.ctypes.data, blocks.shape[1], blocks.shape[1])
        self._kernels.call("edgedec_kv_move", *self._states, *table, start, nodes.ctypes.data, len(nodes))

    def move_arguments(self) -> dict[str, Any]:
        """Return the address of ``edgedec_kv_move`` and its arguments, by their names in the compiled loop."""
        numbers, count, cache = self._states
        return {
            "move": self._kernels.address("edgedec_kv_move"),
            "cache_numbers": numbers,
            "cache_count": count,
            "cache": cache,
        }

    def copy_block(self, kind: int, source: int, to: int) -> None:
        """Copy a block of rows of all states of a kind.

        Raises:
            EdgedecError: there is no such block.
        """
        self._kernels.call("edgedec_kv_copy", *self._states, kind, source, to)


def attend(
    kernels: Kernels,
    cache: NDArray[np.uint8],
    state: KvState,
    slots: int,
    *,
    queries: F32,
    keys: F32,
    values: F32,
    sequences: Sequence[tuple[int, int]],
    blocks: Sequence[int],
    context: int,
    positions: I32,
    visible: U64,
    scale: float,
    cap: float = 0.0,
    rotary: int = 0,
    tables: tuple[F32, F32] | None = None,
    code_path: str | None = None,
    store: int = 0,
) -> F32:
    """Store the keys and values of a pass of n rows and return its attention, float32 [n, heads * head_dim].

    Args:
        kernels: the kernels.
        cache: uint8 [bytes], the cache of ``state`` with room for ``slots`` rows.
        state: sizes of the cache.
        slots: number of rows of the cache, all sequences together.
        queries: float32 [n, heads * head_dim], before rotation.
        keys, values: float32 [n, kv_heads * head_dim], before rotation.
        sequences: rows in the pass and committed rows of each sequence.
        blocks: tables of the sequences, one after another: the block of the cache for each 16 rows.
        context: bound of positions, and maximum rows of a sequence.
        positions: int32 [n].
        visible: uint64 [n, words], the masks of ``Pass.visible`` of the sequences.
        scale: factor of the scores.
        cap: soft cap of the scores, ``ops.Attention.soft_cap``; 0: none.
        rotary: 0: no rotation; 1: pairs (i, i + half); 2: pairs (2 i, 2 i + 1).
        tables: cosines and sines, float32 [context, head_dim / 2] each; needed with ``rotary``.
        code_path: name of a code path; None: that of this process.
        store: number of the store that has the values as its only part; 0: they are in the cache.

    Raises:
        EdgedecError: the file of the values cannot be read or written, or the sizes of the arguments do not fit each other.
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
    if rotary and [table.shape for table in rotary_tables] != [(context, state.head_dim // 2)] * 2:
        raise EdgedecError(f"cos and sin must be [{context}, {state.head_dim // 2}]")
    size = kv_bytes(state, slots, filed=bool(store))
    if cache.dtype != np.uint8 or cache.size != size or not cache.flags.c_contiguous:
        raise EdgedecError(f"the cache of {state.name} must be {size} contiguous uint8, not {cache.size} {cache.dtype}")
    numbers, table = np.array(sequences, np.int64).reshape(-1, 2), np.array(blocks, np.int32)
    out = np.empty(shapes[0], np.float32)
    select = np.zeros(9, np.int64)
    basis = np.zeros(0, np.float32)
    channels, steps, importance = np.zeros(0, np.int64), np.zeros(0, np.float32), np.zeros(0, np.float32)
    if chosen := state.selection:
        channels, steps = np.array(chosen.channels, np.int64), np.array(chosen.steps, np.float32)
        width = len(chosen.channels[0])
        select[:7] = chosen.keys, chosen.parts, chosen.sinks, chosen.recent, width, chosen.bits, chosen.kept
        select[7:] = 0 if state.basis is None else state.basis.rank, store
        importance = np.array(chosen.importance, np.float32)
        basis = basis if state.basis is None else state.basis.array(state.kv_heads)
    kernels.call(
        "edgedec_attention",
        *(code_path.encode() if code_path else None, heads, state.kv_heads, state.head_dim, slots, state.bits),
        *(cache.ctypes.data, numbers.ctypes.data, len(numbers), table.ctypes.data, len(table), context, n),
        *(*(array.ctypes.data for array in arrays), arrays[4].shape[1]),
        *(state.window or 0, state.sinks, scale, cap, rotary),
        *(table.ctypes.data for table in rotary_tables or (out, out)),  # not read without rotary
        *(select.ctypes.data, channels.ctypes.data, steps.ctypes.data, importance.ctypes.data),
        *(basis.ctypes.data, out.ctypes.data),
    )
    return out
