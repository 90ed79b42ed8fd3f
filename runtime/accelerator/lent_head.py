"""The int8 head of a rough one, lent to the compiled loop."""

from __future__ import annotations

import ctypes
from ctypes import c_int64, c_void_p
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.hw.compiler.host import ProgramHost
from edgedec.runtime.loop.inputs import members

__all__ = ["HeadRowArguments", "head_arguments"]


class HeadRowArguments(ctypes.Structure):
    """``HeadRows`` of rescoring.hpp; zeros say that there is no rough head."""

    _fields_ = (
        *members(c_void_p, "codes", "mantissa"),
        *members(c_int64, "width", "pre_shift", "coarser", "norm_at", "norm_bytes"),
    )


def head_arguments(host: ProgramHost) -> tuple[HeadRowArguments, tuple[NDArray[Any], ...]]:
    """Return the arguments, and the arrays that must live as long as they do."""
    rescoring, norm = host.rescoring, host.beside
    if rescoring is None:
        return HeadRowArguments(), ()
    rows = rescoring.rows
    codes, mantissa = np.ascontiguousarray(rows.codes), rows.mantissa.astype(np.int32)
    arguments = HeadRowArguments(
        codes=codes.ctypes.data,
        mantissa=mantissa.ctypes.data,
        width=codes.shape[1],
        pre_shift=rows.pre_shift,
        coarser=rescoring.coarser,
        norm_at=norm.start,
        norm_bytes=len(norm),
    )
    return arguments, (codes, mantissa)
