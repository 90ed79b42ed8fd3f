"""Trit-planes: a float matrix as one to three ternary planes with a scale per row, group of columns and plane.

``W ~ sum_k scales[k] * trits[k]``. Without statistics this minimises the squared weight error: nearest level per element
and least squares for the scales, in turn. With statistics it minimises the squared error of the layer's *output* on
calibration rows, in four steps:

1. The target is not the weight but ``target_weight``: what, fed with the quantized model's inputs, comes closest to what
   the float layer gave.
2. Error compensation: column after column is rounded to the nearest level after the errors of the columns before it have
   been carried over; the scales of a group are fitted when it is reached.
3. Refinement to a local optimum: each element in turn takes the best level given all others, each group's scales follow
   by least squares. The objective never rises.
4. Steps 2 and 3 again with the scales kept and the columns in another order; each row keeps its best result.

Source: OPTQ (2210.17323) in the triangular form of QuIP (2307.13304, section 3.2) for step 2; asymmetric calibration as
in GPTAQ (2504.02692); PTQTP (2509.16989) for the planes. The rest is derived here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt

__all__ = ["MAX_PLANES", "Statistics", "dequantize_planes", "quantize_planes", "target_weight"]

Float64 = npt.NDArray[np.float64]
Float32 = npt.NDArray[np.float32]
Int8 = npt.NDArray[np.int8]

MAX_PLANES = 3
_DAMPING = 0.01  # of the mean diagonal, added to it
_ROWS_AT_A_TIME = 1024  # rows are independent; this bounds the working memory
_COLUMNS_AT_A_TIME = 64
