"""Convert one tensor of a checkpoint to stored codes, as a job that any process can run.

A job holds no weights, only a function that loads them, so that it is small to send. Its result is what a bundle stores. The
bytes of the result depend on the job alone, not on the process that ran it or on what ran at the same time.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import BundleError
from edgedec.quantize.methods.float_bits import Rows, all_finite, pieces
from edgedec.quantize.methods.int4 import int4_parts
from edgedec.quantize.methods.int8 import quantize_int8
from edgedec.quantize.methods.native import native_ternary, native_ternary_groups
from edgedec.quantize.methods.planes import Statistics, quantize_planes, quantize_tied
from edgedec.quantize.readers.checkpoint import Int4Maker, Maker, TernaryMaker, Trits
from edgedec.quantize.readers.safetensors_file import StoredTensor
from edgedec.schemes import Int4Scheme, Int8Scheme, TernaryScheme

__all__ = ["Job", "JobResult", "fitted_parts", "load_finite", "run_job"]

Array = NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class Job:
    """Quantize one matrix.

    Members:
        make: function that loads the matrix.
        where: name of the tensor in messages.
        scheme: storage scheme of the result.
        fitted: planes or int4 codes are fitted to the weights; otherwise the weights must be ternary or int4 already.
    """

    make: Maker
    where: str
    scheme: Int4Scheme | Int8Scheme | TernaryScheme
    fitted: bool = False


@dataclass(frozen=True, kw_only=True)
class JobResult:
    """Result of a job.

    Members:
        parts: arrays to store, with the names and shapes of ``scheme.parts``.
        process: id of the process that ran the job.
        peak_bytes: peak resident memory of that process so far; 0 if the system does not report it.
    """

    parts: Mapping[str, Array]
    process: int
    peak_bytes: int


def load_finite(make: Maker, where: str) -> Array:
    """Load and return the values of a tensor.

    Raises:
        BundleError: a value is NaN or infinite, or the tensor cannot be read.
    """
    array = np.ascontiguousarray(make())
    if not all_finite(array):
        raise BundleError(f"{where} holds NaN or infinity; the checkpoint is damaged")
    return array


def run_job(job: Job) -> JobResult:
    """Run a job in this process and return its result.

    Raises:
        BundleError: the tensor is damaged, or cannot be read.
        UnsupportedError: the job expects a ternary tensor and the tensor is not ternary, or its type is not supported.
    """
    if isinstance(job.scheme, Int8Scheme):
        parts = _int8(job)
    elif job.fitted:
        parts = fitted_parts(load_finite(job.make, job.where).astype(np.float32, copy=False), job.scheme)
    elif isinstance(job.scheme, Int4Scheme):
        parts = _native_int4(job)
    else:
        parts = _native(job, job.scheme)
    return JobResult(parts=parts, process=os.getpid(), peak_bytes=_peak_bytes())


def _rows(job: Job) -> Rows:
    """Return the tensor. It stays in its file if the file stores it in the form that is needed."""
    return job.make if isinstance(job.make, StoredTensor) else job.make()


def _require_finite(job: Job, array: Rows) -> None:
    if not all_finite(array):
        raise BundleError(f"{job.where} holds NaN or infinity; the checkpoint is damaged")


def _int8(job: Job) -> dict[str, Array]:
    array = _rows(job)
    codes, scale = np.empty(array.shape, np.int8), np.empty(array.shape[0], np.float32)
    for some in pieces(*array.shape):
        piece = array[some]
        _require_finite(job, piece)
        codes[some], scale[some] = quantize_int8(piece.astype(np.float32))
    return {"codes": codes, "scale": scale}


def fitted_parts(
    matrix: Array, scheme: Int4Scheme | TernaryScheme, statistics: Statistics | None = None
) -> dict[str, Array]:
    """Fit planes or int4 codes to a matrix float32 [out, in], and return what is stored."""
    if isinstance(scheme, Int4Scheme):
        return int4_parts(matrix, statistics)
    fit = quantize_tied if scheme.tied else quantize_planes
    trits, scale = fit(matrix, scheme.planes, scheme.group_size, statistics)
    return {"codes": scheme.pack(trits), "scale": scale}


def _native_int4(job: Job) -> dict[str, Array]:
    assert isinstance(job.make, Int4Maker)
    parts = job.make.int4()
    for part in parts.values():
        if part.dtype == np.float16 and not np.isfinite(part).all():
            raise BundleError(f"{job.where} holds NaN or infinity; the checkpoint is damaged")
    return parts


def _native(job: Job, scheme: TernaryScheme) -> dict[str, Array]:
    trits, scales = _trits(job, scheme.group_size)
    scale = np.asarray(scales)[None]
    return {"codes": scheme.pack(trits[None]), "scale": np.asarray(scale, np.float32)}


def _trits(job: Job, group_size: int) -> Trits:
    """Return the reader's own trits if it has them with scales for the same groups; otherwise compute them."""
    if isinstance(job.make, TernaryMaker):
        stored = job.make.trits()
        if bool(np.ndim(stored.scales)) == bool(group_size):
            if not np.isfinite(stored.scales).all():
                raise BundleError(f"{job.where} holds NaN or infinity; the checkpoint is damaged")
            return stored
    where = f"{job.where}: it"
    if group_size:
        return Trits(*native_ternary_groups(load_finite(job.make, job.where), group_size, where))
    array = _rows(job)
    _require_finite(job, array)
    return Trits(*native_ternary(array, where))


def _peak_bytes() -> int:
    """Return the peak resident memory of this process; getrusage would include the process that started it."""
    try:
        match = re.search(rb"^VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_bytes(), re.MULTILINE)
    except OSError:
        return 0
    return int(match[1]) * 1024 if match else 0
