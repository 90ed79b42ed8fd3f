"""Masters that move bytes and look at none of them, run in C++: some million cycles a second."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

from edgedec.errors import UsageError
from edgedec.sim.ddr.memory import Memory

__all__ = ["Run", "Stream", "run"]

_AHEAD = 1 << 32  # cycles: 17 seconds at 250 MHz


@dataclass(frozen=True, kw_only=True)
class Stream:
    """One master on one port, from ``address`` upwards.

    Members:
        burst_bytes: of one AXI burst; cut at 4 KiB and at a chunk's end.
        chunk_bytes, stride_bytes: so many bytes on end, then on to the next chunk, ``stride_bytes`` after the start of this
            one; 0: all on end.
        outstanding: bursts under way at most.
        start_cycle: when it may begin.
        beat_cycles: it moves a beat every so many cycles at most: 4 is a 32-bit master's rate on a 128-bit port.
        after: another stream's place in the list: this one writes results of what that one has read ...
        per_bytes: ... a byte for each so many of its bytes; a burst leaves when it is full.
    """

    port: int
    address: int
    size_bytes: int
    write: bool = False
    burst_bytes: int = 1024
    outstanding: int = 4
    chunk_bytes: int = 0
    stride_bytes: int = 0
    start_cycle: int = 0
    beat_cycles: int = 1
    after: int | None = None
    per_bytes: int = 1


@dataclass(frozen=True, kw_only=True)
class Run:
    """cycles: until the last byte and answer; finished: the same of each stream."""

    cycles: int
    finished: tuple[int, ...]
    size_bytes: int
    port_hz: int

    @property
    def seconds(self) -> float:
        return self.cycles / self.port_hz


_FIELDS = (
    *("port", "write", "address", "bytes", "burst_bytes", "outstanding", "chunk_bytes", "stride_bytes"),
    *("start_cycle", "beat_cycles", "after", "ratio", "finished"),
)  # of Stream in traffic.hpp


class _Stream(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in _FIELDS]


def _check(memory: Memory, streams: Sequence[Stream]) -> None:
    width = memory.parameters.port_bytes
    places: set[tuple[int, bool]] = set()
    for i, s in enumerate(streams):
        if not 0 <= s.port < memory.parameters.ports:
            raise UsageError(f"stream {i}: port must be below {memory.parameters.ports}, not {s.port}")
        if (s.port, s.write) in places:
            raise UsageError(f"stream {i}: port {s.port} has a stream of that direction")
        places.add((s.port, s.write))
        for name in ("address", "size_bytes", "burst_bytes", "chunk_bytes", "stride_bytes"):
            value = getattr(s, name)
            if value < (name in ("size_bytes", "burst_bytes")) or value % width:
                raise UsageError(f"stream {i}: {name} must be a multiple of {width} bytes, not {value}")
        if s.burst_bytes > 256 * width:
            raise UsageError(f"stream {i}: burst_bytes must be at most 256 beats, {256 * width}, not {s.burst_bytes}")
        if min(s.outstanding, s.beat_cycles, s.per_bytes) < 1 or s.start_cycle < 0:
            raise UsageError(f"stream {i}: outstanding, beat_cycles and per_bytes must be positive: {s}")
        if s.after is not None and (not s.write or not 0 <= s.after < len(streams) or streams[s.after].write):
            raise UsageError(f"stream {i}: only a write can follow a read stream, not stream {s.after}")


def run(memory: Memory, streams: Sequence[Stream], *, limit_cycles: int = _AHEAD) -> Run:
    """Run all streams to their end, from the memory's present state.

    Raises:
        UsageError: a stream that no master could make.
        DeviceError: they have not ended after ``limit_cycles``, as on a port that stalls for ever.
    """
    _check(memory, streams)
    array = (_Stream * len(streams))()
    for place, s in zip(array, streams, strict=True):
        after = -1 if s.after is None else s.after
        where = (s.port, s.write, s.address, s.size_bytes, s.burst_bytes, s.outstanding)
        values = (
            *where,
            s.chunk_bytes or s.size_bytes,
            s.stride_bytes,
            s.start_cycle,
            s.beat_cycles,
            after,
            s.per_bytes,
            0,
        )
        for name, value in zip(_FIELDS, values, strict=True):
            setattr(place, name, int(value))
    cycles = memory.run_streams(array, len(streams), limit_cycles)
    return Run(
        cycles=cycles,
        finished=tuple(place.finished for place in array),
        size_bytes=sum(s.size_bytes for s in streams if not s.write),
        port_hz=memory.parameters.port_hz,
    )
