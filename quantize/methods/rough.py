"""Round a matrix to small integers with one scale for each row, in a fraction of the time of ``quantize_tied``.

The scale of a row is fitted to the row alone. Its columns are rounded in blocks, with the error compensation of
``compensate``, and then the scale is fitted once more, to the output.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgedec.quantize.blas_threads import one_thread
from edgedec.quantize.methods.compensate import round_groups, upper_factor
from edgedec.quantize.methods.grid import Grid, GridLevels
from edgedec.quantize.methods.planes import Statistics, with_ridge
from edgedec.workers.local import usable_cores

__all__ = ["quantize_rows"]

Float64 = npt.NDArray[np.float64]

_BLOCK = 128  # columns that are rounded one after the other; products with those before them are matrix products
_ROWS_AT_A_TIME = 1024
_MOST_THREADS = 4


@dataclass(frozen=True)
class _FixedScale:
    """The codebook of the levels of ``grid`` whose scales [rows, 1] are known, and the same for every group."""

    grid: Grid
    known: Float64

    scales = 1

    def fit(self, x: Float64, steps: int = 8) -> Float64:
        return self.known

    def levels(self, scales: Float64) -> GridLevels:
        return self.grid.levels(scales)

    def ordered(self, scales: Float64) -> Float64:
        return self.known


def quantize_rows(
    weight: npt.NDArray[np.float32], most: int, statistics: Statistics
) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
    """Return integers -most..most, int8 [out, in], and the scale of each row, float32 [out], of ``weight`` [out, in].

    The squared error of the output on the calibration rows is low, and not the least: scales and integers are not fitted in
    turn. Scales are not negative; a row of zeros has the scale 0.

    Args:
        weight: the matrix.
        most: the largest integer, 1 to 127.
        statistics: sums over its inputs; ``gram`` alone is read.
    """
    grid = Grid(-most, most)
    codes, scale = np.empty(weight.shape, np.int8), np.empty(len(weight), np.float32)
    gram, ridge = with_ridge(statistics.gram)
    if ridge == 0:  # inputs that are always zero give no information
        gram = np.eye(len(gram))
    factor, coarse = upper_factor(gram), gram.astype(np.float32)

    def quantize_some(start: int) -> None:
        part = slice(start, start + _ROWS_AT_A_TIME)
        x = np.ascontiguousarray(weight[part].T, np.float64)
        known = grid.fit(x)
        rounded, _ = round_groups(x, factor, _BLOCK, _FixedScale(grid, known))
        chosen = grid.levels(known).codes(rounded)[..., 0]
        numbers = chosen.T.astype(np.float32)
        seen = coarse @ numbers
        energy = np.einsum("cr,cr->r", seen, numbers).astype(np.float64)
        wanted = np.einsum("cr,cr->r", seen, x)
        codes[part] = chosen
        scale[part] = np.maximum(np.where(energy > 0, wanted / np.where(energy > 0, energy, 1), 0), 0)

    starts = range(0, len(weight), _ROWS_AT_A_TIME)
    with one_thread(), ThreadPoolExecutor(min(len(starts), usable_cores(), _MOST_THREADS)) as threads:
        list(threads.map(quantize_some, starts))
    return codes, scale
