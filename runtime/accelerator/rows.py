"""The rows in the parts of a device's cache, and the exchange of one state's rows for another's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from weakref import ref

import numpy as np

from edgedec.runtime import visibility
from edgedec.runtime.driver.driver import Driver
from edgedec.runtime.driver.parts import CachePart
from edgedec.runtime.driver.report import PassReport
from edgedec.runtime.protocols import I32, Pass
from edgedec.runtime.row_recipe import RowRecipe

__all__ = ["DeviceRows", "Row", "rows_of"]


@dataclass(frozen=True)
class Row:
    """The input from which a row of a cache is computed. ``embed`` holds float32 [hidden] if the id is negative."""

    id: int
    position: int
    embed: bytes = b""


def rows_of(work: Pass) -> list[Row]:
    """Return the rows of a pass."""
    embeds = work.embeds
    return [
        Row(number, position, b"" if number >= 0 or embeds is None else embeds[-number - 1].astype("<f4").tobytes())
        for number, position in zip(work.ids.tolist(), work.positions.tolist(), strict=True)
    ]


def _nobody() -> None:
    """Refer to no state."""


@dataclass(kw_only=True, eq=False)
class _Held:
    """The committed rows in a part of a device's cache.

    Members:
        part: the part.
        rows: its rows, perhaps with some at the end that are not there any more.
        owner: returns the state that the part belongs to; None: it belongs to none.
        same: whether the rows are known to be those of the state. Otherwise they have to be compared.
    """

    part: CachePart
    rows: list[Row] = field(default_factory=list)
    owner: Callable[[], object] = _nobody
    same: bool = False

    def shared(self, rows: Sequence[Row]) -> int:
        """Return the number of first rows that are also those of ``rows``."""
        shared = 0
        while shared < min(len(self.rows), len(rows), self.part.length) and self.rows[shared] == rows[shared]:
            shared += 1
        return shared


class DeviceRows:
    """The committed rows of a device's cache, which has a part for each of some states.

    ``bring`` and ``commit`` may fail at any point, including by Ctrl-C; the next ``bring`` then determines which rows are
    left.

    Args:
        driver: the driver of the device.
        recipe: recipe of the rows, whose passes run again.
    """

    def __init__(self, driver: Driver, recipe: RowRecipe) -> None:
        self._driver, self._recipe = driver, recipe
        self._held = [_Held(part=part) for part in driver.parts]  # the one that was not used longest comes first

    def forget(self, owner: object, left: int) -> None:
        """Note that the rows of ``owner`` have changed, and that ``left`` are left. Without any it needs no part."""
        held = self._of(owner)
        if held is not None:
            held.same = False
            if not left:
                held.owner = _nobody

    def _of(self, owner: object) -> _Held | None:
        return next((held for held in self._held if held.owner() is owner), None)

    def has(self, owner: object, rows: Sequence[Row]) -> bool:
        """Return whether the device has exactly ``rows``, which are those of ``owner``."""
        held = self._of(owner)
        return held is not None and held.same and held.part.length == len(held.rows) == len(rows)

    def extend(self, owner: object, rows: Sequence[Row]) -> CachePart:
        """Note that the compiled loop has committed rows after those that the device has of ``owner``. Return its part."""
        held = self._of(owner)
        assert held is not None, "it was lent"
        held.rows += rows
        return held.part

    def bring(self, wanted: Sequence[tuple[object, Sequence[Row]]]) -> list[CachePart]:
        """Make the device have exactly the rows of some states. What a part has of them stays, and the others run again.

        A state keeps its part. Another one gets a part that belongs to none, if there is one: that with most of its rows.
        Otherwise it gets the part of the state that was not in a pass for the longest time. All rows run again if a layer
        with a ring does not have those of the prefix any more.

        Args:
            wanted: states with their rows, at most as many as there are parts.

        Returns:
            The part of each.

        Raises:
            DeviceError: see ``Driver.post``.
        """
        chosen = self._choose(wanted)
        for held, (owner, rows) in zip(chosen, wanted, strict=True):
            if not self.has(owner, rows):
                held.same, held.owner = False, ref(owner)
                self._fill(held, rows)
                held.same = True
        return [held.part for held in chosen]

    def _choose(self, wanted: Sequence[tuple[object, Sequence[Row]]]) -> list[_Held]:
        """Return the parts for some states, which are then those that were used last."""
        chosen, free = [self._of(owner) for owner, _ in wanted], list(self._held)
        for held in chosen:
            if held is not None:
                free.remove(held)
        found = list[_Held]()
        for held, (_, rows) in zip(chosen, wanted, strict=True):
            if held is None:
                unused = [one for one in free if one.owner() is None] or free[:1]
                shared = [one.shared(rows) for one in unused]
                held = unused[shared.index(max(shared))]
                free.remove(held)
            found.append(held)
        self._held = [*(held for held in self._held if held not in found), *found]
        return found

    def _fill(self, held: _Held, rows: Sequence[Row]) -> None:
        """Make a part have exactly ``rows``."""
        self._driver.part = held.part
        del held.rows[held.part.length :]
        shared = held.shared(rows)
        while (kept := self._driver.truncate(self._recipe.whole(shared))) != shared:
            shared = kept
        del held.rows[shared:]
        ids = np.array([row.id for row in rows], np.int32)
        while shared < len(rows):
            work = self._recipe.rows_pass(ids, shared, self._driver.program.config.slots)
            self._run(held, work, rows[shared : shared + len(work.ids)])
            shared += len(work.ids)

    def _run(self, held: _Held, work: Pass, rows: Sequence[Row]) -> None:
        embeds = [np.frombuffer(row.embed, "<f4") for row in rows if row.embed]
        numbers = iter(range(-1, -1 - len(embeds), -1))
        self._driver.post(
            np.array([next(numbers) if row.embed else row.id for row in rows], np.int32),
            positions=np.array([row.position for row in rows], np.int32),
            visible=None if work.visible is None else visibility.unpack(work.visible, len(rows)),
            embeds=np.stack(embeds) if embeds else None,
        )
        self._driver.commit(np.arange(len(rows), dtype=np.int32))
        held.rows += rows

    def commit(self, owner: object, nodes: I32, rows: Sequence[Row]) -> PassReport | None:
        """Commit the slots ``nodes`` of the last pass of ``owner``, whose rows are ``rows``.

        Raises:
            DeviceError: see ``Driver.commit``.
        """
        held = self._of(owner)
        assert held is not None, "the device has its rows"
        self._driver.part = held.part
        report = self._driver.commit(nodes)
        held.rows += rows
        return report
