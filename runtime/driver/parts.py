"""The parts of a device's cache, one for each sequence, and the registers that say which of them a pass uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgedec.device_steps import Step
from edgedec.errors import UsageError
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.isa.sequences import SequenceRows
from edgedec.runtime.driver.registers import Registers

__all__ = ["CachePart", "PartRows", "PlaceRegisters", "divided", "part_rows", "positions_read"]


@dataclass(kw_only=True, eq=False)
class CachePart:
    """The rows of one sequence in the cache.

    Members:
        group: first group of positions in each run of the cache.
        rows: rows that it has room for.
        length: number of committed positions, also of posted passes that have not ended.
        longest: most committed positions since there were none; rings lack rows because of them.
        slots: slots of its last pass that can be committed; 0 after a commit.
    """

    group: int
    rows: int
    length: int = 0
    longest: int = 0
    slots: int = 0


@dataclass(frozen=True, kw_only=True, eq=False)
class PartRows:
    """The rows that one sequence has in a pass.

    Members:
        part: its part of the cache.
        ids, positions, visible, embeds: see ``Driver.forward``.
    """

    part: CachePart
    ids: NDArray[np.int32]
    positions: NDArray[np.int32] | None = None
    visible: NDArray[np.bool_] | None = None
    embeds: NDArray[np.float32] | None = None

    @property
    def sequence(self) -> SequenceRows:
        """The numbers that the registers have of them."""
        return SequenceRows(slots=len(self.ids), committed=self.part.length, group=self.part.group)


def part_rows(config: AcceleratorConfig, parts: int) -> int:
    """Return the rows of each of ``parts`` equal parts of a cache: whole groups, or the whole cache if it is not divided.

    Raises:
        UsageError: the accelerator has one sequence, or the cache has fewer groups than parts.
    """
    if parts == 1:
        return config.context
    if config.sequences == 1:
        raise UsageError(
            f"the accelerator has rows of one sequence, not {parts}: build it with sequences={min(parts, config.slots)}, or "
            "write one text at a time (--parallel 1)"
        )
    layout = config.kv_layout
    rows = config.context // layout.positions // parts * layout.positions
    if not rows:
        raise UsageError(
            f"the accelerator's {config.context} positions cannot be divided into {parts} parts: raise context"
        )
    return rows


def divided(config: AcceleratorConfig, parts: int) -> tuple[CachePart, ...]:
    """Return the parts of a cache, without a committed position. See ``part_rows`` for the errors."""
    rows = part_rows(config, parts)
    return tuple(CachePart(group=number * rows // config.kv_layout.positions, rows=rows) for number in range(parts))


def positions_read(config: AcceleratorConfig, sequences: Sequence[SequenceRows]) -> int:
    """Return the committed positions that a pass reads: several sequences begin with a group each."""
    if len(sequences) == 1:
        return sequences[0].committed
    layout = config.kv_layout
    return layout.positions * sum(layout.groups(one.committed) for one in sequences)


class PlaceRegisters:
    """The registers that say where the rows of the sequences of a pass lie. They are written where they change.

    An accelerator with one sequence has none.
    """

    def __init__(self, registers: Registers, config: AcceleratorConfig) -> None:
        self._registers, self._several = registers, config.sequences > 1
        self._known = dict[tuple[str, int], int]()  # values that the registers have; others are not known
        self._sent = dict[tuple[str, int], int]()

    def of_pass(self, sequences: Sequence[SequenceRows]) -> list[Step]:
        """Return the steps that describe the sequences of a pass. After they were carried out, call ``sent``."""
        firsts = np.cumsum([one.slots for one in sequences])[:-1].tolist()
        values = {("sequence_begins", 0): sum(1 << first for first in firsts)}
        values |= {("sequence_group", number): one.group for number, one in enumerate(sequences)}
        values |= {("later_committed", number): one.committed for number, one in enumerate(sequences[1:])}
        return self._changes(values)

    def of_commit(self, part: CachePart) -> list[Step]:
        """Return the steps that say whose slots are committed. After they were carried out, call ``sent``."""
        return self._changes({("sequence_group", 0): part.group})

    def forget(self) -> None:
        """Note that the registers may have other values."""
        self._known = {}

    def sent(self) -> None:
        """Note that the registers have the values of the last steps."""
        self._known |= self._sent
        self._sent = {}

    def _changes(self, values: dict[tuple[str, int], int]) -> list[Step]:
        steps, self._sent = list[Step](), {}
        for (name, index), value in values.items():
            if self._several and self._known.get((name, index)) != value:
                self._known.pop((name, index), None)
                self._sent[name, index] = value
                steps += self._registers.writes(name, value, index)
        return steps
