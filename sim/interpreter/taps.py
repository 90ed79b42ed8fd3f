"""The unit that writes tapped vectors and norms to the output."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import BundleError
from edgedec.hw.compiler.output_places import item_row_bytes, tap_places
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.isa.instructions import Instruction
from edgedec.hw.isa.output_layout import RESULT_BYTES
from edgedec.reference.integer_profile.numbers import I64
from edgedec.reference.integer_profile.values import Normed

__all__ = ["write_taps"]


def write_taps(
    config: AcceleratorConfig, of: Instruction, output: NDArray[np.uint8], vector: I64, norm: Normed | None
) -> None:
    """Write what a ``VECTOR`` taps: s27 [slots of the pass, width] as columns of all slots, whose other slots stay.

    Raises:
        BundleError: the accelerator has no such unit, or the vector is longer than the instruction's blocks.
    """
    places = tap_places(config, of)
    if places is None:
        return
    slots, width = vector.shape
    columns, size = of["blocks"] * config.beat_bytes, item_row_bytes(config)
    if width > columns:
        raise BundleError(
            f"a tapped vector of {width} columns is longer than the {columns} of its blocks; compile it again"
        )
    for start, values in ((places.vector, vector), (places.norm, None if norm is None else norm.y)):
        if start is not None and values is not None:
            items = output[start : start + columns * size].view("<i4").reshape(columns, size // 4)
            items[:width, :slots] = values.T
    if places.roots is not None and norm is not None:
        end = places.roots + RESULT_BYTES * config.slots
        roots = output[places.roots : end].view("<i2").reshape(config.slots, RESULT_BYTES // 2)[:slots]
        roots[:] = 0
        roots[:, 0] = norm.root.astype(np.uint16).view(np.int16)
        roots[:, 1] = norm.exponent
