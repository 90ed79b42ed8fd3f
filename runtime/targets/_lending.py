"""The CPU target's own inputs and outputs, lent to the compiled loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from edgedec.bundle.row_reader import StoredRows
from edgedec.onnx.kv_cache import BLOCK_ROWS, blocks_of
from edgedec.runtime.loop.inputs import RUN, STORED, LoopInputs, TargetArguments

if TYPE_CHECKING:
    from edgedec.runtime.targets._cpu import CpuTarget
    from edgedec.runtime.targets._pass_arrays import PassArrays

__all__ = ["Lent", "lend"]


@dataclass(frozen=True, kw_only=True)
class Lent:
    """Inputs and outputs that were lent. They are valid until a larger pass replaces the target's buffers.

    Members:
        inputs: the inputs and outputs.
        arrays: arrays of the largest pass.
        rows: rows of the largest pass.
    """

    inputs: LoopInputs
    arrays: PassArrays
    rows: int

    def fits(self, target: CpuTarget, rows: int) -> bool:
        """Return whether a pass of ``rows`` rows still uses these buffers."""
        return rows <= self.rows and target.bind(self.rows, self.rows) is self.arrays


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


def lend(target: CpuTarget, rows: int) -> Lent:
    """Lend the inputs and outputs of passes of up to ``rows`` rows."""
    embedding = target.embedding.stored_rows()
    arrays, session = target.bind(rows, rows), target.session
    result_rows, sequences, tables, slots = target.run_inputs()
    buffers: dict[str, NDArray[Any]] = {
        "embed": arrays.embed,
        "row_positions": arrays.positions,
        "result_rows": result_rows,
        "visible": arrays.visible,
        "sequences": sequences,
        "table": tables,
        "logits": arrays.logits,
        "slots": slots,
    }
    arguments = TargetArguments(
        **{name: array.ctypes.data for name, array in buffers.items()},
        **target.commit_arguments(),
        width=arrays.embed.shape[1],
        vocab=arrays.logits.shape[1],
        rows=rows,
        run=RUN(session.run_function),
        session=session.address,
        **_embedding_arguments(embedding, arrays.embed.shape[1]),
        block_rows=BLOCK_ROWS,
        kinds=len(tables),
        table_stride=tables.shape[1],
        block_stride=blocks_of(target.limits.positions),
    )
    inputs = LoopInputs(
        arguments=arguments,
        pass_error=lambda: session.error,
        move_error=target.move_error,
        logits=arrays.logits,
        alive=(*buffers.values(), embedding, target.cache, target.recurrent, session),
    )
    return Lent(inputs=inputs, arrays=arrays, rows=rows)
