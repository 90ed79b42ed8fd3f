"""Structures and numbers of ``runtime/loop/accelerator.hpp``, by which the compiled loop knows an accelerator."""

from __future__ import annotations

import ctypes
from ctypes import CFUNCTYPE, c_double, c_int64, c_void_p
from enum import IntEnum

from edgedec.hw.isa.registers import COUNTS, REGISTER_MAP
from edgedec.runtime.accelerator.lent_head import HeadRowArguments
from edgedec.runtime.driver.regions import OWNER_REGISTER
from edgedec.runtime.loop.inputs import members

__all__ = [
    "COMMITTED",
    "ESTIMATE",
    "FETCH",
    "FILES",
    "FLUSH",
    "FROM_DEVICE",
    "READ",
    "TO_DEVICE",
    "WAIT_S",
    "WRITE",
    "AcceleratorArguments",
    "PassFailure",
    "register_places",
]

_MOST_TURNS = 2
READ, WRITE = CFUNCTYPE(c_int64, c_int64), CFUNCTYPE(c_int64, c_int64, c_int64)
ESTIMATE = CFUNCTYPE(c_double, c_int64, c_int64)
WAIT_S, FLUSH, FETCH = CFUNCTYPE(c_int64, c_double), CFUNCTYPE(c_int64), CFUNCTYPE(c_int64, c_int64, c_int64)
FILES = ("offset", "size", "direction", "action")
TO_DEVICE, FROM_DEVICE = 1, 2  # values of the setting of the direction


def _bit(register: str, field: str) -> int:
    return next(1 << lsb for one, lsb in REGISTER_MAP[register].positions() if one.name == field)


COMMITTED = _bit("interrupt_status", "committed")


class PassFailure(IntEnum):
    """``PassFailure`` of accelerator.hpp."""

    NONE = 0
    CALLED = 1
    OWNER = 2
    ERROR = 3
    SILENT = 4
    IDLE = 5
    IDS = 6


class _CacheFiles(ctypes.Structure):
    """``CacheFiles`` of accelerator.hpp."""

    _fields_ = members(c_int64, *FILES, "start", "value")


class AcceleratorArguments(ctypes.Structure):
    """``AcceleratorArguments`` of accelerator.hpp."""

    _fields_ = (
        *members(c_void_p, "embed", "positions", "visible", "sequences", "groups", "logits", "found_ids"),
        *(("found", c_int64), ("seconds", c_double), ("registers", c_void_p)),
        *(("read", READ), ("write", WRITE), ("wait", WAIT_S), ("flush", FLUSH), ("fetch", FETCH)),
        *(("flush_files", _CacheFiles), ("fetch_files", _CacheFiles), ("cache_instructions", c_int64)),
        *members(c_double, "poll_seconds", "patience_seconds", "clock_hz"),
        *members(c_int64, "owner_at", "parameters_at", "position_at", "mask_at", "commit_slots_at"),
        *members(c_int64, "control_at", "status_at", "events_at", "counters_at"),
        *members(c_int64, "committed_shift", "logits_shift", "start_bit", "commit_bit", "latch_bit", "clear_bit"),
        *members(c_int64, "busy_bits", "done_bit", "error_bit", "committed_bit"),
        *members(c_int64, "begins_at", "group_at", "later_at", "owner"),
        *members(c_void_p, "input", "places"),
        *members(c_int64, "input_bytes", "port_bytes", "slots", "width", "item_bytes"),
        *(("rows_start", c_int64), *members(c_double, "scale", "per_unit", "most")),
        *(("angles", c_void_p * _MOST_TURNS), ("angles_start", c_int64 * _MOST_TURNS)),
        *members(c_int64, "turns", "pairs"),
        *(("output", c_void_p), *members(c_int64, "top_k", "vocab", "ids", "logit_exponent", "rows_at", "row_bytes")),
        *(("likeliest", c_int64), ("head", HeadRowArguments), ("estimate", ESTIMATE), ("group_positions", c_int64)),
        *(*members(c_int64, "passes", "rows", "commits"), ("busy_seconds", c_double)),
        ("counters", c_int64 * len(COUNTS)),
        *members(c_int64, "accesses", "quiet", "pending", "chained", "moved_after", "failure", "written", "running"),
    )


def register_places(*, several: bool) -> dict[str, int]:
    """Return the places of the registers, also of those of ``several`` sequences, and the bits of their fields."""
    offsets = REGISTER_MAP.offsets()
    places = {
        "owner_at": OWNER_REGISTER,
        "parameters_at": "pass_parameters",
        "position_at": "position",
        "mask_at": "mask",
        "commit_slots_at": "commit_slots",
        "control_at": "control",
        "status_at": "status",
        "events_at": "interrupt_status",
        "counters_at": f"counter_{COUNTS[0]}",
        **(
            {"begins_at": "sequence_begins", "group_at": "sequence_group", "later_at": "later_committed"}
            if several
            else {}
        ),
    }
    shifts = {field.name: lsb for field, lsb in REGISTER_MAP["pass_parameters"].positions()}
    return {name: offsets[register] for name, register in places.items()} | {
        "committed_shift": shifts["committed"],
        "logits_shift": shifts["logits"],
        "start_bit": _bit("control", "start"),
        "commit_bit": _bit("control", "commit"),
        "latch_bit": _bit("control", "latch_counters"),
        "clear_bit": _bit("control", "clear_counters"),
        "busy_bits": _bit("status", "busy") | _bit("status", "error"),
        "done_bit": _bit("interrupt_status", "done"),
        "error_bit": _bit("interrupt_status", "error"),
        "committed_bit": COMMITTED,
    }
