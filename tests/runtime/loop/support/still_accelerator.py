"""Provide an accelerator whose registers stand still, for the compiled loop.

The event of the doorbell is set from the beginning, so that a pass has ended as soon as it is submitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import addressof
from typing import Any

import numpy as np

from edgedec.hw.isa.output_layout import ROWS_OFFSET
from edgedec.hw.isa.striping import physical_address
from edgedec.runtime import loop
from edgedec.runtime.accelerator.lent_arguments import AcceleratorArguments

__all__ = [
    "AT",
    "COMMITTED",
    "DONE",
    "ERROR",
    "IDS",
    "ITEM_BYTES",
    "PAIRS",
    "SLOTS",
    "TOP_K",
    "VOCAB",
    "WIDTH",
    "Still",
]

LIBRARY = loop.load()
SLOTS, WIDTH, PAIRS, VOCAB, IDS, TOP_K = 4, 5, 3, 24, 22, 4
ROW_BYTES, ITEM_BYTES = 4 * SLOTS, 4 * SLOTS
PORTS, PORT_BYTES = 2, 8
DONE, ERROR, COMMITTED = 1, 2, 4
AT = {
    "owner_at": 0,
    "parameters_at": 8,
    "commit_slots_at": 12,
    "position_at": 16,
    "mask_at": 48,
    "control_at": 80,
    "status_at": 84,
    "events_at": 88,
    "counters_at": 96,
}


class Still:
    """An accelerator that has always ended already, with the cycles 100, 101, ... in its counters."""

    def __init__(self, **members: Any) -> None:
        self.registers = np.zeros(64, np.uint32)
        self.registers[AT["owner_at"] // 4] = 0x5000
        self.registers[AT["counters_at"] // 4 :: 2][:6] = range(100, 106)
        self.embed, self.logits = np.zeros((SLOTS, WIDTH)), np.zeros((SLOTS, VOCAB), np.float32)
        self.positions, self.visible = np.arange(SLOTS, dtype=np.int64) + 7, np.arange(SLOTS, dtype=np.uint64) + 1
        self.sequences, self.found_ids = np.zeros((SLOTS, 2), np.int64), np.zeros((SLOTS, TOP_K), np.int32)
        self.sequences[0], self.groups = (1, 7), np.zeros(SLOTS, np.int32)
        self.angles = np.arange(16 * PAIRS * 2, dtype=np.int16).reshape(16, PAIRS, 2)
        self.input = np.zeros(2 * 4096, np.uint8)
        self.output = np.zeros(ROWS_OFFSET + VOCAB * ROW_BYTES, np.uint8)
        pieces = range(0, self.input.size, PORT_BYTES)
        self.places = np.array([physical_address(at, ports=PORTS, port_bytes=PORT_BYTES) for at in pieces], np.int32)
        names = (
            "embed",
            "positions",
            "visible",
            "sequences",
            "groups",
            "logits",
            "found_ids",
            "registers",
            "input",
            "output",
            "places",
        )
        self.arguments = AcceleratorArguments(
            **{name: getattr(self, name).ctypes.data for name in names},
            **AT,
            poll_seconds=1e-6,
            patience_seconds=1e-4,
            clock_hz=1000.0,
            committed_shift=4,
            logits_shift=24,
            start_bit=1,
            commit_bit=2,
            latch_bit=8,
            busy_bits=1,
            done_bit=DONE,
            error_bit=0,  # clearing the events sets their bits in memory that is no register
            committed_bit=COMMITTED,
            owner=0x5000,
            input_bytes=self.input.size,
            port_bytes=PORT_BYTES,
            slots=SLOTS,
            width=WIDTH,
            item_bytes=ITEM_BYTES,
            rows_start=16,
            scale=0.5,
            per_unit=2.0**4,
            most=1000.0,
            turns=1,
            pairs=PAIRS,
            top_k=TOP_K,
            vocab=VOCAB,
            ids=IDS,
            logit_exponent=-3,
            rows_at=ROWS_OFFSET,
            row_bytes=ROW_BYTES,
            likeliest=1,
            written=SLOTS,
        )
        self.arguments.angles[0], self.arguments.angles_start[0] = self.angles.ctypes.data, 112
        for files in (self.arguments.flush_files, self.arguments.fetch_files):
            files.action = -1
        for name, value in members.items():
            setattr(self.arguments, name, value)

    @property
    def address(self) -> int:
        return addressof(self.arguments)

    def submit(self, rows: int, first: int = 0) -> int:
        """Submit a pass, whose first sequence has ``first`` of the rows; 0: all of them."""
        assert LIBRARY is not None
        self.sequences[0, 0] = first or rows
        return int(LIBRARY.function("edgedec_loop_accelerator_submit")(self.address, rows, rows))

    def wait(self) -> int:
        assert LIBRARY is not None
        return int(LIBRARY.function("edgedec_loop_accelerator_wait")(self.address))

    def commit(self, nodes: Sequence[int]) -> int:
        assert LIBRARY is not None
        kept = np.array(nodes, np.int32)
        move = LIBRARY.function("edgedec_loop_accelerator_move")
        return int(move(None, 0, self.address, None, 1, 1, 7, kept.ctypes.data, len(kept)))

    def settle(self) -> None:
        assert LIBRARY is not None
        LIBRARY.function("edgedec_loop_accelerator_settle")(self.address)

    def words(self, start: int, count: int) -> list[int]:
        """Return words of the input buffer from a logical address on."""
        places = [physical_address(start + 4 * at, ports=PORTS, port_bytes=PORT_BYTES) for at in range(count)]
        return [int(self.input[place : place + 4].view(np.int32)[0]) for place in places]
