"""Arrays of a pass on the CPU: the inputs and outputs to which the kernels are bound."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgedec.runtime.protocols import F32

__all__ = ["PassArrays"]


class PassArrays(NamedTuple):
    """The inputs and outputs of n rows with r rows of logits, as views of the target's buffers."""

    embed: F32  # [n, width]
    positions: NDArray[np.int64]  # [n]
    rows: NDArray[np.int64]  # [r]
    visible: NDArray[np.uint64]  # [n, words]
    logits: F32  # [r, vocab]
    row_taps: Mapping[str, F32]  # name -> [n, width]
    taps: Mapping[str, F32]  # name -> [r, width]

    def part(self, row: int, end: int, result: int, stop: int) -> PassArrays:
        """Return the part of a sequence: rows [row, end), and rows [result, stop) of logits."""
        return PassArrays(
            embed=self.embed[row:end],
            positions=self.positions[row:end],
            rows=self.rows[result:stop],
            visible=self.visible[row:end],
            logits=self.logits[result:stop],
            row_taps={name: values[row:end] for name, values in self.row_taps.items()} if self.row_taps else {},
            taps={name: values[result:stop] for name, values in self.taps.items()} if self.taps else {},
        )
