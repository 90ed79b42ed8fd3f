"""The inputs and outputs of passes on the CPU, to which the kernels are bound."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgedec.graph.graph import FEATURES_INPUT
from edgedec.memory.heap import use_small_pages
from edgedec.runtime.protocols import F32, I32
from edgedec.runtime.targets._cpu_footprint import mask_words

__all__ = ["PassArrays", "PassBuffers"]

_BINDINGS = 96  # sizes of passes whose arrays are kept, as many as ``kMostBindings`` of onnxruntime.cpp


class PassArrays(NamedTuple):
    """The inputs and outputs of n rows with r rows of logits, as views of the target's buffers."""

    embed: F32  # [n, width]
    features: F32 | None  # [n, width of the features]; None: the model reads none
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
            features=None if self.features is None else self.features[row:end],
            positions=self.positions[row:end],
            rows=self.rows[result:stop],
            visible=self.visible[row:end],
            logits=self.logits[result:stop],
            row_taps={name: values[row:end] for name, values in self.row_taps.items()} if self.row_taps else {},
            taps={name: values[result:stop] for name, values in self.taps.items()} if self.taps else {},
        )


class PassBuffers:
    """The buffers of a run, and the arrays of passes, which are views of them.

    Parameters:
        rows: rows of the widest run.
        kinds, entries: shape of the tables.
        widths: name -> width of the buffers of floats: "embed", "features" if the model reads them, "logits" and the taps.
        row_taps: names of the taps that have a value for each row. One of them may be "embed".
        result_taps: names of the taps that have one for each row with logits.

    Members:
        row_taps: the parameter of this name.
        sequences: rows and committed rows of each sequence of a run, int64 [rows, 2].
        tables: tables of all sequences, int32 [kinds, entries].
        slots: slot of each sequence, if states are recurrent, int64 [rows].
        positions, result_rows, visible: the inputs of these names, ``rows`` and ``visible`` of ``PassArrays``.
        floats: name -> float32 [rows, width].
    """

    def __init__(
        self,
        rows: int,
        *,
        kinds: int,
        entries: int,
        widths: Mapping[str, int],
        row_taps: Set[str],
        result_taps: Set[str],
    ) -> None:
        self.row_taps, self._result_taps = row_taps, result_taps
        self.sequences = np.zeros((rows, 2), np.int64)
        self.tables: I32 = np.zeros((kinds, entries), np.int32)
        self.slots, self.positions, self.result_rows = (np.zeros(rows, np.int64) for _ in range(3))
        self.visible = np.zeros(rows * mask_words(rows), np.uint64)
        self.floats: dict[str, F32] = {}
        for name, width in widths.items():
            self.floats[name] = np.empty((rows, width), np.float32)
            use_small_pages(self.floats[name])  # pages that no pass has reached take no memory
        self._bound: dict[tuple[int, int], PassArrays] = {}

    def bind(self, n: int, r: int) -> PassArrays:
        """Return the inputs and outputs of passes of ``n`` rows with ``r`` rows of logits."""
        if (n, r) in self._bound:
            return self._bound[n, r]
        arrays = PassArrays(
            embed=self.floats["embed"][:n],
            features=self.floats[FEATURES_INPUT][:n] if FEATURES_INPUT in self.floats else None,
            positions=self.positions[:n],
            rows=self.result_rows[:r],
            visible=self.visible[: n * mask_words(n)].reshape(n, -1),
            logits=self.floats["logits"][:r],
            row_taps={name: self.floats[name][:n] for name in self.row_taps},
            taps={name: self.floats[name][:r] for name in self._result_taps},
        )
        if len(self._bound) == _BINDINGS:
            del self._bound[next(iter(self._bound))]
        self._bound[n, r] = arrays
        return arrays
