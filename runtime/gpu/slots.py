"""Slots: buffers that values share which are not alive at the same time."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Slots"]


@dataclass(kw_only=True)
class _Slot:
    words: int = 0
    values: set[str] = field(default_factory=set)


@dataclass(kw_only=True)
class Slots:
    """The slots of a program."""

    _pools: dict[bool, list[_Slot]] = field(default_factory=lambda: {False: [], True: []})

    @property
    def words(self) -> dict[tuple[str, bool], int]:
        """Words of a row of each slot, by name and by whether it has result rows."""
        return {
            (_name(results, number), results): slot.words
            for results, pool in self._pools.items()
            for number, slot in enumerate(pool)
        }

    def take(self, words: int, *values: str, results: bool) -> str:
        """Return the name of a slot for ``values``, which lie beside one another in rows of ``words`` words.

        Result rows have slots of their own, so that further result rows can be computed from the rows of a pass.
        """
        pool = self._pools[results]
        free = [slot for slot in pool if not slot.values]
        # The free slot that has to grow least, and of those that are large enough, the smallest.
        slot = min(free, key=lambda item: (max(0, words - item.words), item.words), default=None)
        if slot is None:
            slot = _Slot()
            pool.append(slot)
        slot.words = max(slot.words, words)
        slot.values.update(values)
        return _name(results, next(at for at, other in enumerate(pool) if other is slot))

    def release(self, value: str) -> None:
        """Note that a value is not read any more."""
        for pool in self._pools.values():
            for slot in pool:
                slot.values.discard(value)


def _name(results: bool, number: int) -> str:
    return f"{'results' if results else 'rows'}.{number}"
