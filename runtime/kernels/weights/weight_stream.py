"""Weights that are read from the disk while a pass computes: the memory of a split, and the thread of weight_stream.cpp.

Pinned parts and the slots of the window are in one region of memory, in huge pages as far as it has whole ones. Files are
read directly into it, around the system's page cache. The session gets addresses of memory that does not exist for the
matrices; they only name them.
"""

from __future__ import annotations

import ctypes
import mmap
import weakref
from collections.abc import Iterable
from ctypes import c_char_p, c_double, c_int32, c_int64, c_void_p
from dataclasses import fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle.manifest import ALIGNMENT
from edgedec.errors import DeviceError
from edgedec.runtime.base.native_library import Functions
from edgedec.runtime.base.stream_counts import StreamCounts, StreamTimings
from edgedec.runtime.kernels import Kernels
from edgedec.runtime.kernels.weights.huge_pages import anonymous
from edgedec.runtime.kernels.weights.weight_parts import PAGE_BYTES, WeightPart, WeightSplit

__all__ = ["WeightStream"]

_FUNCTIONS: Functions = {
    "edgedec_stream_argument_size": (c_int64, (c_int64,)),
    "edgedec_stream_error": (c_char_p, ()),
    "edgedec_stream_open": (c_void_p, (c_void_p, c_int64, c_void_p, c_int64, c_void_p, c_int64, c_int64)),
    "edgedec_stream_stop": (None, (c_void_p,)),
    "edgedec_stream_close": (None, (c_void_p,)),
    "edgedec_stream_throttle": (None, (c_void_p, c_double)),
    "edgedec_stream_direct": (c_int32, (c_void_p,)),
    "edgedec_stream_counters": (None, (c_void_p, c_void_p)),
}


class StreamPart(ctypes.Structure):
    """``StreamPart`` of weight_stream.hpp."""

    _fields_ = (
        *(("matrix", c_void_p), ("first", c_int64), ("end", c_int64), ("file", c_int64)),
        *(("codes_offset", c_int64), ("codes_bytes", c_int64), ("codes", c_void_p)),
    )


class StreamCounters(ctypes.Structure):
    """``StreamCounters`` of weight_stream.hpp."""

    _fields_ = (
        *(("read_bytes", c_int64), ("used_bytes", c_int64)),
        *(("read_seconds", c_double), ("waited_seconds", c_double), ("restarts", c_int64)),
    )


class WeightStream:
    """The memory of a split, and the thread that reads its streamed parts.

    Parameters:
        kernels: the library.
        split: the parts, and which of them are pinned.
        layout: the file of the kernels' layout.
        weights: the bundle's file.

    Members:
        split: the parameter.
        matrices: for each matrix the array of codes that the session gets, uint8 [bytes]. It must not be read: there is no
            memory behind it.

    Raises:
        DeviceError: a file cannot be read.
    """

    def __init__(self, kernels: Kernels, split: WeightSplit, *, layout: Path, weights: Path) -> None:
        self.split = split
        self._library = kernels.declared(_FUNCTIONS)
        for kind, structure in enumerate((StreamPart, StreamCounters)):
            size = self._library.edgedec_stream_argument_size(kind)
            if size != ctypes.sizeof(structure):
                raise DeviceError(f"{kernels.path} takes arguments of {size} bytes, not {ctypes.sizeof(structure)}")
        self._memory = anonymous(split.window_bytes + split.pinned_bytes)
        self.matrices = _names(split.parts)
        parts = (StreamPart * len(split.parts))(*self._parts(self._memory.ctypes.data + split.window_bytes))
        files = (c_char_p * 2)(str(layout).encode(), str(weights).encode())
        address = self._library.edgedec_stream_open(
            *(ctypes.addressof(files), len(files), ctypes.addressof(parts), len(parts)),
            *(self._memory.ctypes.data, split.slot_bytes, split.slots),
        )
        if address is None:
            message: bytes = self._library.edgedec_stream_error()
            raise DeviceError(message.decode(errors="replace"))
        self._address: int = address
        # At the end of the process the thread must not read into memory that is being freed, and a run may still wait for
        # it, so it is stopped and not freed. The last one that was made is called first.
        weakref.finalize(self, self._library.edgedec_stream_close, address).atexit = False
        weakref.finalize(self, self._library.edgedec_stream_stop, address)

    def _parts(self, at: int) -> Iterable[StreamPart]:
        """Yield the parts for the library. The codes of the pinned ones are from address ``at`` on."""
        for part, is_pinned in zip(self.split.parts, self.split.pinned, strict=True):
            place = None
            if is_pinned:
                place = at
                at += -(-part.codes_bytes // ALIGNMENT) * ALIGNMENT
            yield StreamPart(
                matrix=self.matrices[part.matrix].ctypes.data,
                first=part.first,
                end=part.end,
                file=0 if part.packed else 1,
                codes_offset=part.codes_offset,
                codes_bytes=part.codes_bytes,
                codes=place,
            )

    @property
    def direct(self) -> bool:
        """True if reads go around the page cache; False if the file system has no such reads, and pages are dropped."""
        return bool(self._library.edgedec_stream_direct(self._address))

    def timings(self, since: StreamCounts) -> StreamTimings:
        """Return the figures from ``since`` until now."""
        return StreamTimings(counts=self.counts - since, bytes_per_pass=self.split.streamed_bytes, direct=self.direct)

    @property
    def counts(self) -> StreamCounts:
        """The counts since the opening."""
        counters = StreamCounters()
        self._library.edgedec_stream_counters(self._address, ctypes.addressof(counters))
        return StreamCounts(**{field.name: getattr(counters, field.name) for field in fields(StreamCounts)})

    def throttle(self, bytes_per_second: float) -> None:
        """Read no faster than so many bytes per second, for benchmarks that simulate a slower disk; 0: without a limit."""
        self._library.edgedec_stream_throttle(self._address, bytes_per_second)


def _names(parts: Iterable[WeightPart]) -> dict[str, NDArray[np.uint8]]:
    """Return arrays of the sizes of the matrices, which have addresses and no memory."""
    sizes: dict[str, int] = {}
    for part in parts:
        sizes[part.matrix] = sizes.get(part.matrix, 0) + part.codes_bytes
    places, end = {}, 0
    for name, size in sizes.items():
        places[name] = end
        end += -(-size // ALIGNMENT) * ALIGNMENT
    reserved = mmap.mmap(-1, max(PAGE_BYTES, end), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=0)
    whole = np.frombuffer(reserved, np.uint8)
    return {name: whole[at : at + sizes[name]] for name, at in places.items()}
