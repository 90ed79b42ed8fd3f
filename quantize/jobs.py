"""Convert one tensor of a checkpoint to stored codes, as a job that any process can run.

A job holds no weights, only a function that loads them, so that it is small to send. Its result is what a bundle stores. The
bytes of the result depend on the job alone, not on the process that ran it or on what ran at the same time.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import BundleError, UnsupportedError
from edgedec.quantize.methods.float_bits import Rows, all_finite, pieces
from edgedec.quantize.methods.int4 import int4_parts
from edgedec.quantize.methods.int8 import quantize_int8
from edgedec.quantize.methods.native import NativeTernary, NotTernaryError, find_ternary, grouped_ternary
from edgedec.quantize.methods.planes import ScaleRangeError, Statistics, quantize_planes, quantize_tied
from edgedec.quantize.readers.checkpoint import Int4Maker, Maker, TernaryMaker, TwoBitMaker
from edgedec.quantize.readers.safetensors_file import StoredTensor
from edgedec.schemes import FloatScheme, Int4Scheme, Int8Scheme, Scheme, TernaryScheme, split
from edgedec.stopwatch import Stopwatch

__all__ = ["Fitted", "Job", "JobResult", "error_squares", "fit", "load_finite", "run_job"]

Array = NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class Job:
    """Quantize one matrix.

    Members:
        make: function that loads the matrix.
        where: name of the tensor in messages.
        scheme: storage scheme of the result. If ternary weights are not fitted, planes and groups are those of the weights,
            and ``scheme`` says how many planes they may have.
        fitted: planes or int4 codes are fitted to the weights; otherwise the weights must be ternary or int4 already.
        otherwise: scheme of a matrix that turns out not to be ternary; None: it is an error.
    """

    make: Maker
    where: str
    scheme: Int4Scheme | Int8Scheme | TernaryScheme
    fitted: bool = False
    otherwise: Int8Scheme | FloatScheme | None = None


@dataclass(frozen=True, kw_only=True)
class JobResult:
    """Result of a job.

    Members:
        scheme: the scheme of the arrays.
        parts: arrays to store, with the names and shapes of ``scheme.parts``; none with a ``FloatScheme``, whose values need
            no conversion.
        note: why the scheme is another than the job's, if the values are the reason; else empty.
        squares: sum of the squared errors of a fitted matrix, and sum of its squared weights; zeros if none was fitted.
        read_s, seconds: seconds of reading the tensor, and of the whole job.
        process: id of the process that ran the job.
        peak_bytes: peak resident memory of that process so far; 0 if the system does not report it.
    """

    scheme: Scheme
    parts: Mapping[str, Array]
    process: int
    peak_bytes: int
    note: str = ""
    squares: tuple[float, float] = (0.0, 0.0)
    read_s: float = 0.0
    seconds: float = 0.0


class Fitted(NamedTuple):
    """A matrix whose codes were fitted. ``note`` says why its scheme is not the one that was asked for, if it is not."""

    scheme: Scheme
    parts: dict[str, Array]
    note: str = ""


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
    watch, squares = Stopwatch("quantizing"), (0.0, 0.0)
    if job.fitted and not isinstance(job.scheme, Int8Scheme):
        with watch.phase("reading"):
            matrix = load_finite(job.make, job.where).astype(np.float32, copy=False)
        scheme, parts, note = fit(matrix, job.scheme, job.where)
        squares = error_squares(matrix, scheme.open(job.where, matrix.shape, parts).dense())
    else:
        scheme, parts, note = _converted(job, watch)
    seconds = watch.seconds()
    return JobResult(
        scheme=scheme,
        parts=parts,
        process=os.getpid(),
        peak_bytes=_peak_bytes(),
        note=note,
        squares=squares,
        read_s=seconds.get("reading", 0.0),
        seconds=sum(seconds.values()),
    )


def error_squares(matrix: Array, dense: Array) -> tuple[float, float]:
    """Return the sum of the squared differences of two matrices of one shape, and that of the squares of the first."""
    error, weights = 0.0, 0.0
    for some in pieces(*matrix.shape):
        one = matrix[some].astype(np.float64)
        weights += float(np.vdot(one, one))
        one -= dense[some]
        error += float(np.vdot(one, one))
    return error, weights


def _converted(job: Job, watch: Stopwatch) -> Fitted:
    if isinstance(job.scheme, Int8Scheme):
        return Fitted(job.scheme, _int8(job, watch))
    if isinstance(job.scheme, Int4Scheme):
        return Fitted(job.scheme, _native_int4(job))
    try:
        return Fitted(*_native_ternary(job, job.scheme, watch))
    except NotTernaryError:
        if job.otherwise is None:
            raise
    return Fitted(job.otherwise, _int8(job, watch) if isinstance(job.otherwise, Int8Scheme) else {})


@dataclass(frozen=True)
class _Rows:
    """A tensor whose reading belongs to the phase "reading" of a stopwatch."""

    rows: Rows
    watch: Stopwatch

    @property
    def shape(self) -> tuple[int, ...]:
        return self.rows.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.rows.dtype

    def __getitem__(self, rows: slice) -> Array:
        with self.watch.phase("reading"):
            return self.rows[rows]


def _rows(job: Job, watch: Stopwatch) -> Rows:
    """Return the tensor. It stays in its file if the file stores it in the form that is needed."""
    if isinstance(job.make, StoredTensor):
        return _Rows(job.make, watch)
    with watch.phase("reading"):
        return job.make()


def _not_finite(job: Job) -> BundleError:
    return BundleError(f"{job.where} holds NaN or infinity; the checkpoint is damaged")


def _int8(job: Job, watch: Stopwatch) -> dict[str, Array]:
    array = _rows(job, watch)
    codes, scale = np.empty(array.shape, np.int8), np.empty(array.shape[0], np.float32)
    for some in pieces(*array.shape):
        piece = array[some]
        if not all_finite(piece):
            raise _not_finite(job)
        codes[some], scale[some] = quantize_int8(piece.astype(np.float32))
    return {"codes": codes, "scale": scale}


def fit(matrix: Array, scheme: Int4Scheme | TernaryScheme, where: str, statistics: Statistics | None = None) -> Fitted:
    """Fit planes or int4 codes to a matrix float32 [out, in], named ``where`` in messages.

    The result is int8 if float16 does not hold the scales of int4 with all of their bits.

    Raises:
        UnsupportedError: float32 does not hold the scales of planes.
    """
    try:
        if isinstance(scheme, Int4Scheme):
            return Fitted(scheme, int4_parts(matrix, statistics))
        fit_planes = quantize_tied if scheme.tied else quantize_planes
        trits, scale = fit_planes(matrix, scheme.planes, scheme.group_size, statistics)
    except ScaleRangeError as error:
        if isinstance(scheme, TernaryScheme):
            raise UnsupportedError(
                f"{where} cannot be {scheme.kind}: {error}; quantize it with --method int8"
            ) from None
        codes, scale = quantize_int8(matrix)
        return Fitted(Int8Scheme(rows=True), {"codes": codes, "scale": scale}, f"{where} is int8, not int4: {error}")
    return Fitted(scheme, {"codes": scheme.pack(trits), "scale": scale})


def _native_int4(job: Job) -> dict[str, Array]:
    assert isinstance(job.make, Int4Maker)
    parts = job.make.int4()
    for part in parts.values():
        if part.dtype == np.float16 and not np.isfinite(part).all():
            raise _not_finite(job)
    return parts


def _native_ternary(job: Job, scheme: TernaryScheme, watch: Stopwatch) -> tuple[TernaryScheme, dict[str, Array]]:
    """Return the scheme and the parts of a matrix that is ternary, or has codes for two planes, without loss."""
    codes = _native_codes(job, scheme, watch)
    planes = codes.trits[None]
    # A negative scale has turned a code of 2 into -2.
    if scheme.planes > 1 and (codes.trits.max(initial=0) > 1 or codes.trits.min(initial=0) < -1):
        planes, tied = split(codes.trits, tied=scheme.tied), scheme.tied
        found = TernaryScheme(planes=scheme.planes, group_size=codes.group_size, tied=tied)
    else:
        found = TernaryScheme(group_size=codes.group_size)
    scale: Array = codes.scales[None] if codes.group_size else codes.scales
    if len(planes) > 1 and not found.tied:
        scale = np.repeat(scale, len(planes), axis=0)
    if found.group_size and not found.tied and (halves := _halves(scale)) is not None:
        found, scale = replace(found, half_scales=True), halves
    return found, {"codes": found.pack(planes), "scale": scale}


def _halves(scale: NDArray[np.float32]) -> NDArray[np.float16] | None:
    """Return scales as float16 if all of them are exact, as those of most checkpoints are; else None."""
    with np.errstate(over="ignore"):  # to infinity, which is not equal
        halves = scale.astype(np.float16)
    return halves if np.array_equal(halves.astype(np.float32), scale) else None


def _native_codes(job: Job, scheme: TernaryScheme, watch: Stopwatch) -> NativeTernary:
    """Return the reader's own trits or codes if it has them; otherwise find them in the floats."""
    if scheme.planes > 1:
        assert isinstance(job.make, TwoBitMaker)
        return _finite_groups(job, *job.make.codes(), least=1)
    if isinstance(job.make, TernaryMaker):
        return _finite_groups(job, *job.make.trits())
    try:
        return find_ternary(_rows(job, watch), f"{job.where}: it")
    except FloatingPointError:
        raise _not_finite(job) from None


def _finite_groups(
    job: Job, codes: NDArray[np.int8], scales: NDArray[np.float32] | np.float32, group_size: int, least: int = 0
) -> NativeTernary:
    if not np.isfinite(scales).all():
        raise _not_finite(job)
    return grouped_ternary(codes, scales, group_size, least=least)


def _peak_bytes() -> int:
    """Return the peak resident memory of this process; getrusage would include the process that started it."""
    try:
        match = re.search(rb"^VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_bytes(), re.MULTILINE)
    except OSError:
        return 0
    return int(match[1]) * 1024 if match else 0
