"""The CPU target's own inputs and outputs, lent to the compiled loop."""

from __future__ import annotations

from functools import cached_property
from typing import Any
from weakref import ref

from numpy.typing import NDArray

from edgedec.bundle.row_reader import RowReader, StoredRows
from edgedec.onnx.kv_cache import BLOCK_ROWS, blocks_of
from edgedec.runtime.cache.arena import ArenaState, CacheArena
from edgedec.runtime.kernels import Kernels
from edgedec.runtime.kernels.sessions.session import KernelSession
from edgedec.runtime.loop.flight import Flight
from edgedec.runtime.loop.inputs import STORED, SUBMIT, LoopInputs, TargetArguments
from edgedec.runtime.protocols import State
from edgedec.runtime.targets._pass_arrays import PassBuffers

__all__ = ["CpuLender"]


class CpuLender:
    """Lends a CPU target's inputs and states to the compiled loop. It does not hold the target, so that this is freed.

    Parameters:
        kernels: the library of the operators.
        session: runs the passes.
        buffers: inputs and outputs of the session.
        embedding: rows of the embedding.
        arena: the cache of all sequences.
        positions: rows of the cache of one sequence.
        weights: the arrays and files that the session reads, kept as long as it is lent.

    Members:
        flight: the rounds that run on the target now; None: there are none.
    """

    def __init__(
        self,
        kernels: Kernels,
        session: KernelSession,
        buffers: PassBuffers,
        embedding: RowReader,
        arena: CacheArena,
        positions: int,
        *,
        weights: object,
    ) -> None:
        self._kernels, self._session, self._buffers = kernels, session, buffers
        self._embedding, self._arena, self._positions, self._weights = embedding, arena, positions, weights

    flight: ref[Flight] | None = None
    frees_host, top_k = False, 0

    def want(self, top_k: int) -> None:
        """Passes return whole rows."""

    def joins(self, texts: int, *, guesses: bool) -> bool:
        """Return that a pass may have rows of any number of texts."""
        return True

    def own(self, state: State) -> ArenaState | None:
        """Return the state of a sequence; None if it is not one of this target."""
        return state if isinstance(state, ArenaState) and state.arena is self._arena else None

    @cached_property
    def inputs(self) -> LoopInputs:
        """The inputs and outputs of passes."""
        embedding, buffers, session = self._embedding.stored_rows(), self._buffers, self._session
        cache, slots, kernels = self._arena.buffer, self._arena.slots, self._kernels
        embed, logits = buffers.floats["embed"], buffers.floats["logits"]
        arrays: dict[str, NDArray[Any]] = {
            "embed": embed,
            "row_positions": buffers.positions,
            "result_rows": buffers.result_rows,
            "visible": buffers.visible,
            "sequences": buffers.sequences,
            "table": buffers.tables,
            "logits": logits,
            "slots": buffers.slots,
        }
        arguments = TargetArguments(
            **{name: array.ctypes.data for name, array in arrays.items()},
            **cache.move_arguments(),
            **({} if slots is None else slots.buffer.commit_arguments()),
            width=embed.shape[1],
            vocab=logits.shape[1],
            rows=len(embed),
            submit=SUBMIT(session.run_function),
            session=session.address,
            **_embedding_arguments(embedding, embed.shape[1]),
            block_rows=BLOCK_ROWS,
            kinds=len(buffers.tables),
            table_stride=buffers.tables.shape[1],
            block_stride=blocks_of(self._positions),
        )
        return LoopInputs(
            arguments=arguments,
            pass_error=lambda: session.error,
            move_error=lambda: kernels.error,
            logits=logits,
            alive=(*arrays.values(), embedding, self._arena, session, self._weights),
        )


def _embedding_arguments(embedding: StoredRows, width: int) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "file": embedding.file,
        "offset": embedding.offset,
        "stored": STORED.index(embedding.dtype.name),
        "scales": None if embedding.scales is None else embedding.scales.ctypes.data,
    }
    scheme = embedding.ternary
    if scheme is None:
        return arguments
    block = scheme.block(width)
    return arguments | {
        "planes": scheme.planes,
        "row_bytes": -(-width // block) * block // 4,
        "group": scheme.group_size,
        "tied": scheme.tied,
        "half_scales": scheme.half_scales,
        "scales_offset": embedding.scales_offset,
    }
