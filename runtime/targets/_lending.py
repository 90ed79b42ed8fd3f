"""The CPU target's own inputs and outputs, lent to the compiled loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from edgedec.onnx.kv_cache import BLOCK_ROWS
from edgedec.runtime.loop.inputs import RUN, STORED, LoopInputs, TargetArguments

if TYPE_CHECKING:
    from edgedec.runtime.targets._cpu import CpuTarget, PassArrays

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


def lend(target: CpuTarget, rows: int) -> Lent | None:
    """Lend the inputs and outputs of passes of up to ``rows`` rows; None if the embedding's scheme is not supported."""
    embedding = target.embedding.stored_rows()
    if embedding.dtype.name not in STORED or (embedding.dtype.name == "int8") != (embedding.scales is not None):
        return None
    arrays, session = target.bind(rows, rows), target.session
    result_rows, sequences, tables = target.run_inputs()
    buffers: dict[str, NDArray[Any]] = {
        "embed": arrays.embed,
        "row_positions": arrays.positions,
        "result_rows": result_rows,
        "visible": arrays.visible,
        "sequences": sequences,
        "table": tables,
        "logits": arrays.logits,
    }
    scales = embedding.scales
    arguments = TargetArguments(
        **{name: array.ctypes.data for name, array in buffers.items()},
        **target.move_arguments(),
        width=arrays.embed.shape[1],
        vocab=arrays.logits.shape[1],
        rows=rows,
        run=RUN(session.run_function),
        session=session.address,
        file=embedding.file,
        offset=embedding.offset,
        stored=STORED.index(embedding.dtype.name),
        scales=None if scales is None else scales.ctypes.data,
        block_rows=BLOCK_ROWS,
    )
    inputs = LoopInputs(
        arguments=arguments,
        pass_error=lambda: session.error,
        logits=arrays.logits,
        alive=(*buffers.values(), embedding, target.cache, session),
    )
    return Lent(inputs=inputs, arrays=arrays, rows=rows)
