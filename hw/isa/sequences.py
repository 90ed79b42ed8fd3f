"""The sequences of a pass: whose slots follow whose, and where the rows of each lie in the cache."""

from collections.abc import Sequence
from dataclasses import dataclass

from edgedec.hw.isa.kv_layout import KvLayout

__all__ = ["SequenceRows", "sequences_of"]


@dataclass(frozen=True, kw_only=True)
class SequenceRows:
    """The part of a pass that belongs to one sequence.

    ``SequenceRows(slots=2, committed=9, group=32)`` writes its two rows after 9 others, which begin with group 32 of each
    run of the cache: in groups of 4 positions, at rows 137 and 138.

    Members:
        slots: number of its slots.
        committed: positions of the cache that they see.
        group: first group of its rows in each run.
    """

    slots: int
    committed: int
    group: int = 0

    def row(self, layout: KvLayout, slot: int) -> int:
        """Return the row of each run to which its slot ``slot`` is written, counted from its first one."""
        return self.group * layout.positions + self.committed + slot


def sequences_of(
    slots: int, committed: int, begins: int, groups: Sequence[int], later: Sequence[int]
) -> tuple[SequenceRows, ...] | None:
    """Return the sequences of a pass as the registers describe them, in the order of their slots.

    Args:
        slots: slots of the pass.
        committed: committed positions of the first sequence.
        begins: a bit for each slot that begins another sequence than the slot before.
        groups: first group of each sequence.
        later: committed positions of each sequence but the first.

    Returns:
        None if the first slot, or one that the pass does not have, is said to begin another sequence.
    """
    if begins & 1 or begins >> slots:
        return None
    firsts = [0, *(slot for slot in range(slots) if begins >> slot & 1)]
    sizes = [end - first for first, end in zip(firsts, [*firsts[1:], slots], strict=True)]
    known = zip(sizes, [committed, *later], groups, strict=False)
    return tuple(SequenceRows(slots=size, committed=rows, group=group) for size, rows, group in known)
