"""The CPU target's own inputs and outputs, lent to the compiled loop."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edgedec.onnx.kv_cache import BLOCK_ROWS
from edgedec.runtime.loop.inputs import STORED, LoopInputs, PassCall, TargetArguments
from edgedec.runtime.protocols import F32, I32

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
        return rows <= self.rows and target.bind(self.rows, self.rows).arrays is self.arrays


def lend(target: CpuTarget, rows: int) -> Lent | None:
    """Lend the inputs and outputs of passes of up to ``rows`` rows; None if the embedding's scheme is not supported."""
    embedding = target.embedding.stored_rows()
    if embedding.dtype.name not in STORED or (embedding.dtype.name == "int8") != (embedding.scales is not None):
        return None
    arrays = target.bind(rows, rows).arrays
    every: I32 = np.arange(rows, dtype=np.int32)
    logits: F32 = arrays.logits

    owner = weakref.proxy(target)  # no cycle, so a dropped target frees its memory at once

    def run(count: int) -> None:
        bound = owner.bind(count, count)
        bound.arrays.rows[...] = every[:count]
        owner.run(bound)

    sequences, tables = target.run_inputs()
    runner = PassCall(run)
    buffers: dict[str, NDArray[Any]] = {
        "embed": arrays.embed,
        "row_positions": arrays.positions,
        "visible": arrays.visible,
        "sequences": sequences,
        "table": tables,
        "logits": logits,
    }
    scales = embedding.scales
    arguments = TargetArguments(
        **{name: array.ctypes.data for name, array in buffers.items()},
        **target.move_arguments(),
        width=arrays.embed.shape[1],
        vocab=logits.shape[1],
        rows=rows,
        run=runner.address,
        file=embedding.file,
        offset=embedding.offset,
        stored=STORED.index(embedding.dtype.name),
        scales=None if scales is None else scales.ctypes.data,
        block_rows=BLOCK_ROWS,
    )
    inputs = LoopInputs(
        arguments=arguments,
        runner=runner,
        logits=logits,
        alive=(*buffers.values(), embedding, target.cache),
    )
    return Lent(inputs=inputs, arrays=arrays, rows=rows)
