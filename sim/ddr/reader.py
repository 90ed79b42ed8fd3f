"""The accelerator's read stream before a memory, without its RTL: a layer of a large model in 50 ms."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgedec.errors import UsageError
from edgedec.hw.isa.striping import GRANULE_BYTES
from edgedec.sim.ddr.memory import Memory

__all__ = ["Range", "Reading", "Write", "read"]

_AHEAD = 1 << 32  # cycles: 17 seconds at 250 MHz


@dataclass(frozen=True, kw_only=True)
class Range:
    """Beats ``start`` and following, in the order of ``edgedec.hw.isa.striping``; a beat is as wide as all ports together.

    wait: cycles from the last beat before it until the reader would take the first of these.
    """

    start: int
    beats: int
    wait: int = 0


@dataclass(frozen=True, kw_only=True)
class Write:
    """A burst over port 0. due: how many beats of the stream the reader has taken when it is there. address: physical."""

    due: int
    address: int
    beats: int = 1


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Members:
    cycles: until the last beat was taken.
    finished: the same of each range.
    starved: cycles in which the reader wanted a beat that was not there.
    most_lead: slices that a port was ahead of the slowest one, at most.
    """

    cycles: int
    finished: tuple[int, ...]
    starved: int
    most_lead: int


_FIELDS = ("ports", "port_bytes", "depth", "outstanding", "lead", "batch", "write_cycles", "starved", "most_lead")


class _Reader(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in _FIELDS]  # of Reader in reader.hpp


def read(
    memory: Memory,
    ranges: Sequence[Range],
    writes: Sequence[Write] = (),
    *,
    lead: int | None = 16,
    depth: int = 4096,
    outstanding: int = 8,
    batch: int = 64,
    write_cycles: int = 2,
    limit_cycles: int = _AHEAD,
) -> Reading:
    """All ranges from the memory's present state, over all its ports, as a ``Prefetcher`` asks for them; the reader takes
    a beat in each cycle in which it does not wait. tests/sim/ddr/test_prefetcher_memory.py compares it with the RTL.

    Args:
        writes: in the order in which they come.
        lead: slices that a port may be ahead of the slowest one; None: as many as its queue holds.
        depth: slices of that queue.
        outstanding: bursts of a port under way at most.
        batch: writes that wait for each other, as in ``edgedec.hw.logits.result_writer``; at the end all go.
        write_cycles: from one of them to the next, at least.

    Raises:
        UsageError: ranges or writes that no accelerator could ask for.
        DeviceError: not finished after ``limit_cycles``; a write crosses 4 KiB.
    """
    width = memory.parameters.port_bytes
    limits = {"depth": depth, "outstanding": outstanding, "batch": batch, "write_cycles": write_cycles}
    for name, value in (*limits.items(), ("lead", 1 if lead is None else lead)):
        if value < 1:
            raise UsageError(f"{name} must be positive, not {value}")
    for i, one in enumerate(ranges):
        if min(one.start, one.beats, one.wait) < 0:
            raise UsageError(f"range {i}: start, beats and wait must not be negative: {one}")
    for i, write in enumerate(writes):
        if min(write.due, write.address) < 0 or write.address % width or not 1 <= write.beats <= GRANULE_BYTES // width:
            raise UsageError(f"write {i}: no burst of {width}-byte beats: {write}")
    reader = _Reader(
        ports=memory.parameters.ports,
        port_bytes=width,
        lead=0 if lead is None else lead,
        starved=0,
        most_lead=0,
        **limits,
    )
    given = np.array([(one.start, one.beats, one.wait, 0) for one in ranges], np.int64).reshape(-1, 4)
    written = np.array([(write.due, write.address, write.beats) for write in writes], np.int64).reshape(-1, 3)
    cycles = memory.run_reader(reader, given, written, limit_cycles)
    return Reading(
        cycles=cycles, finished=tuple(given[:, 3].tolist()), starved=reader.starved, most_lead=reader.most_lead
    )
