"""Masters that move bytes without using them. They run in C++ at some million cycles per second."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

from edgedec.errors import UsageError
from edgedec.sim.ddr.memory import DdrMemory

__all__ = ["TrafficResult", "TrafficStream", "run"]

_MOST_CYCLES = 1 << 32  # 17 seconds at 250 MHz


@dataclass(frozen=True, kw_only=True)
class TrafficStream:
    """One master on one port, from ``address`` upwards.

    Members:
        burst_bytes: size of an AXI burst; bursts end at multiples of 4 KiB and at a chunk's end.
        chunk_bytes, stride_bytes: size of a chunk of consecutive bytes, and distance of the starts of two chunks; 0: all
            bytes are consecutive.
        outstanding: largest number of pending bursts.
        start_cycle: first cycle of the stream.
        beat_cycles: smallest number of cycles from one beat to the next; 4 is the rate of a 32-bit master on a 128-bit port.
        after: index of a read stream whose results this stream writes; None: it waits for no other stream.
        per_bytes: number of bytes of that stream for each byte that is written; a burst starts when it is full.
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
class TrafficResult:
    """The times of a run.

    Members:
        cycles: cycles until the last byte and the last response.
        finished: the same for each stream.
        size_bytes: number of bytes that were read.
    """

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
)  # members of Stream in traffic.hpp


class _StreamRecord(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in _FIELDS]


def _check(memory: DdrMemory, streams: Sequence[TrafficStream]) -> None:
    width = memory.parameters.port_bytes
    places: set[tuple[int, bool]] = set()
    for i, s in enumerate(streams):
        if not 0 <= s.port < memory.parameters.ports:
            raise UsageError(f"stream {i}: port must be below {memory.parameters.ports}, not {s.port}")
        if (s.port, s.write) in places:
            raise UsageError(f"stream {i}: port {s.port} has another stream of that direction")
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


def run(memory: DdrMemory, streams: Sequence[TrafficStream], *, limit_cycles: int = _MOST_CYCLES) -> TrafficResult:
    """Run all streams to their end, from the memory's present state.

    Raises:
        UsageError: a master cannot produce one of the streams.
        DeviceError: the streams have not ended after ``limit_cycles``, for example because a port stalls forever.
    """
    _check(memory, streams)
    array = (_StreamRecord * len(streams))()
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
    return TrafficResult(
        cycles=cycles,
        finished=tuple(place.finished for place in array),
        size_bytes=sum(s.size_bytes for s in streams if not s.write),
        port_hz=memory.parameters.port_hz,
    )
