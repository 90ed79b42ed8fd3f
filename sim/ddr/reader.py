"""The accelerator's read stream on a memory, without the RTL: a layer of a large model takes 50 ms."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgedec.errors import UsageError
from edgedec.hw.isa.striping import GRANULE_BYTES
from edgedec.sim.ddr.memory import DdrMemory

__all__ = ["OtherMaster", "Range", "ReadResult", "Write", "read"]

_MOST_CYCLES = 1 << 32  # 17 seconds at 250 MHz
LINE_BYTES = 64  # bytes of an access of another master, and of a burst of the DRAM


@dataclass(frozen=True, kw_only=True)
class Range:
    """Consecutive beats in the order of ``edgedec.hw.isa.striping``. A beat is as wide as all ports together.

    Members:
        start: number of the first beat.
        wait: cycles from the last beat before the range until the reader takes the first one of the range.
    """

    start: int
    beats: int
    wait: int = 0


@dataclass(frozen=True, kw_only=True)
class Write:
    """A write burst on port 0.

    Members:
        due: number of beats of the stream that the reader takes before the burst is ready.
        address: physical address in bytes.
    """

    due: int
    address: int
    beats: int = 1


@dataclass(frozen=True, kw_only=True)
class OtherMaster:
    """Another master of the memory, such as a processor: accesses of a line of 64 bytes each, at random places.

    It has the last port of the memory, which ``DdrParameters.with_other_master`` adds. That port alone, without any access,
    costs the accelerator 1.2 % in this model, because a turn that is not used cuts the next one short.

    Members:
        bytes_per_s: rate at which it asks; what the memory does not take in time is asked for later.
        address, size_bytes: the places, in physical bytes; by default half of 4 GB, in all banks.
        write_one_in: one access in so many is a write; 0: all are reads.
        outstanding: largest number of pending accesses of each direction.
    """

    bytes_per_s: int
    address: int = 0
    size_bytes: int = 1 << 31
    write_one_in: int = 0
    outstanding: int = 16
    seed: int = 1


@dataclass(frozen=True, kw_only=True)
class ReadResult:
    """The times of a read stream.

    Members:
        cycles: cycles until the last beat was taken.
        finished: cycles until the last beat of each range was taken.
        starved: cycles in which the reader was ready for a beat that had not arrived.
        most_lead: largest number of slices by which a port was ahead of the slowest one.
        other_bytes: bytes that another master moved in this time.
    """

    cycles: int
    finished: tuple[int, ...]
    starved: int
    most_lead: int
    other_bytes: int = 0


_LONGEST_BURST = 256  # beats, by AXI4
_FIELDS = (
    "ports",
    "port_bytes",
    "depth",
    "outstanding",
    "burst",
    "lead",
    "batch",
    "write_cycles",
    "starved",
    "most_lead",
)


class _ReaderRecord(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in _FIELDS]  # members of Reader in reader.hpp


_OTHER_FIELDS = ("port", "bytes_per_s", "address", "lines", "write_one_in", "outstanding", "seed", "done")


class _OtherRecord(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in _OTHER_FIELDS]  # members of Other in reader.hpp


def read(
    memory: DdrMemory,
    ranges: Sequence[Range],
    writes: Sequence[Write] = (),
    *,
    lead: int | None = 16,
    depth: int = 4096,
    outstanding: int = 8,
    burst_beats: int = 64,
    batch: int = 64,
    write_cycles: int = 2,
    other: OtherMaster | None = None,
    limit_cycles: int = _MOST_CYCLES,
) -> ReadResult:
    """Read all ranges from the memory's present state over all its ports, as a ``Prefetcher`` requests them.

    The reader takes a beat in each cycle in which it does not wait. tests/sim/ddr/test_prefetcher_memory.py compares the
    result with the RTL.

    Args:
        writes: write bursts in the order of ``due``.
        lead: slices that a port may be ahead of the slowest one; None: as many as its queue holds.
        depth: slices of that queue.
        outstanding: largest number of pending bursts of a port.
        burst_beats: beats of its longest burst, a power of two up to 256.
        batch: number of writes that are sent together, as in ``edgedec.hw.logits.result_writer``; the last batch may be
            smaller.
        write_cycles: smallest number of cycles from one write to the next.
        other: another master, on the memory's last port.

    Raises:
        UsageError: an accelerator cannot request these ranges or writes, or another master its accesses.
        DeviceError: the reader has not finished after ``limit_cycles``, or a write crosses 4 KiB.
    """
    width = memory.parameters.port_bytes
    limits = {
        "depth": depth,
        "outstanding": outstanding,
        "burst": burst_beats,
        "batch": batch,
        "write_cycles": write_cycles,
    }
    for name, value in (*limits.items(), ("lead", 1 if lead is None else lead)):
        if value < 1:
            raise UsageError(f"{name} must be positive, not {value}")
    if burst_beats > _LONGEST_BURST or burst_beats & (burst_beats - 1):
        raise UsageError(f"burst_beats must be a power of two up to {_LONGEST_BURST}, not {burst_beats}")
    for i, one in enumerate(ranges):
        if min(one.start, one.beats, one.wait) < 0:
            raise UsageError(f"range {i}: start, beats and wait must not be negative: {one}")
    for i, write in enumerate(writes):
        if min(write.due, write.address) < 0 or write.address % width or not 1 <= write.beats <= GRANULE_BYTES // width:
            raise UsageError(f"write {i}: no burst of {width}-byte beats: {write}")
    reader = _ReaderRecord(
        ports=memory.parameters.ports - (other is not None),
        port_bytes=width,
        lead=0 if lead is None else lead,
        starved=0,
        most_lead=0,
        **limits,
    )
    requested = np.array([(one.start, one.beats, one.wait, 0) for one in ranges], np.int64).reshape(-1, 4)
    written = np.array([(write.due, write.address, write.beats) for write in writes], np.int64).reshape(-1, 3)
    record = None if other is None else _other_record(memory, other)
    cycles = memory.run_reader(reader, requested, written, record, limit_cycles)
    return ReadResult(
        cycles=cycles,
        finished=tuple(requested[:, 3].tolist()),
        starved=reader.starved,
        most_lead=reader.most_lead,
        other_bytes=0 if record is None else record.done * LINE_BYTES,
    )


def _other_record(memory: DdrMemory, other: OtherMaster) -> _OtherRecord:
    p = memory.parameters
    if p.ports < 2 or p.controller_port.count(p.controller_port[-1]) > 1:
        raise UsageError("another master needs a port of its own; use DdrParameters.with_other_master")
    if p.port_bytes > LINE_BYTES or min(other.bytes_per_s, other.outstanding) < 1:
        raise UsageError(f"bytes_per_s and outstanding of another master must be positive: {other}")
    if min(other.address, other.write_one_in) < 0 or other.address % LINE_BYTES or other.size_bytes < LINE_BYTES:
        raise UsageError(f"another master's places must be lines of {LINE_BYTES} bytes: {other}")
    return _OtherRecord(
        port=p.ports - 1,
        bytes_per_s=other.bytes_per_s,
        address=other.address,
        lines=other.size_bytes // LINE_BYTES,
        write_one_in=other.write_one_in,
        outstanding=other.outstanding,
        seed=other.seed,
        done=0,
    )
