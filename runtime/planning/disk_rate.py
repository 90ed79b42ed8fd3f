"""Measure how fast a file can be read around the system's page cache, as streamed weights are."""

from __future__ import annotations

import mmap
import os
import time
from dataclasses import dataclass
from pathlib import Path

from edgedec.errors import BundleError

__all__ = ["DiskRate", "measure_disk"]

_PIECE_BYTES = 1 << 20  # bytes of one read, as of a part of the weights
_MOST_BYTES, _MOST_SECONDS = 64 << 20, 0.25  # the measurement ends at the first of the two


@dataclass(frozen=True, kw_only=True)
class DiskRate:
    """The measured rate of direct reads.

    Members:
        bytes_per_second: the rate.
        direct: False if the file system has no direct reads; its page cache then took part in the measurement.
    """

    bytes_per_second: float
    direct: bool


def measure_disk(path: Path) -> DiskRate:
    """Read pieces of a file, spread over all of it, for at most a quarter of a second.

    Raises:
        BundleError: the file cannot be read, or is empty.
    """
    try:
        descriptor, direct = _open(path)
        try:
            return _measure(descriptor, os.fstat(descriptor).st_size, direct)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise BundleError(f"{path}: cannot be read: {error.strerror}") from error


def _open(path: Path) -> tuple[int, bool]:
    """Return a descriptor, and whether its reads are direct."""
    if hasattr(os, "O_DIRECT"):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
        except OSError:
            return os.open(path, os.O_RDONLY), False
        with mmap.mmap(-1, mmap.PAGESIZE) as page:
            try:
                os.preadv(descriptor, [page], 0)
                return descriptor, True
            except OSError:  # the file system takes the flag, and refuses the reads
                os.close(descriptor)
    return os.open(path, os.O_RDONLY), False


def _measure(descriptor: int, size: int, direct: bool) -> DiskRate:
    pieces = max(1, size // _PIECE_BYTES)
    step = max(1, pieces * _PIECE_BYTES // _MOST_BYTES)
    done, began = 0, time.perf_counter()
    with mmap.mmap(-1, _PIECE_BYTES) as piece:
        for at in range(0, pieces, step):
            done += os.preadv(descriptor, [piece], at * _PIECE_BYTES)
            if time.perf_counter() - began > _MOST_SECONDS:
                break
    if not done:
        raise OSError(0, "it is empty")
    return DiskRate(bytes_per_second=done / max(1e-9, time.perf_counter() - began), direct=direct)
