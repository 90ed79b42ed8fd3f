"""The rows in the cache of a device, and the exchange of one state's rows for another's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from weakref import ref

import numpy as np

from edgedec.runtime import visibility
from edgedec.runtime.driver.driver import Driver
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


class DeviceRows:
    """The committed rows of a device's cache.

    ``bring`` and ``commit`` may fail at any point, including by Ctrl-C; the next ``bring`` then determines which rows are
    left.

    Args:
        driver: the driver of the device.
        recipe: recipe of the rows, whose passes run again.
    """

    def __init__(self, driver: Driver, recipe: RowRecipe) -> None:
        self._driver, self._recipe = driver, recipe
        self._held: list[Row] = []
        # The state whose rows these are. If it is unknown or gone, rows have to be compared.
        self._owner: Callable[[], object] = _nobody

    def forget(self, owner: object) -> None:
        """Note that the rows of ``owner`` have changed."""
        if self._owner() is owner:
            self._owner = _nobody

    def is_of(self, owner: object, rows: Sequence[Row]) -> bool:
        """Return whether the device holds exactly ``rows``, which are those of ``owner``."""
        return self._owner() is owner and self._driver.length == len(self._held) == len(rows)

    def extend(self, rows: Sequence[Row]) -> None:
        """Note that the compiled loop has committed rows after those that the device holds."""
        self._held += rows

    def bring(self, owner: object, rows: Sequence[Row]) -> None:
        """Make the device hold exactly ``rows``. Its rows of a common prefix stay, and the others run again.

        All rows run again if a layer with a ring does not have those of the prefix any more.

        Raises:
            DeviceError: see ``Driver.post``.
        """
        if self.is_of(owner, rows):
            return
        self._owner = _nobody
        del self._held[self._driver.length :]
        shared = 0
        while shared < min(len(self._held), len(rows)) and self._held[shared] == rows[shared]:
            shared += 1
        while (kept := self._driver.truncate(self._recipe.whole(shared))) != shared:
            shared = kept
        del self._held[shared:]
        ids = np.array([row.id for row in rows], np.int32)
        while shared < len(rows):
            work = self._recipe.rows_pass(ids, shared, self._driver.program.config.slots)
            self._run(work, rows[shared : shared + len(work.ids)])
            shared += len(work.ids)
        self._owner = ref(owner)

    def _run(self, work: Pass, rows: Sequence[Row]) -> None:
        embeds = [np.frombuffer(row.embed, "<f4") for row in rows if row.embed]
        numbers = iter(range(-1, -1 - len(embeds), -1))
        self._driver.post(
            np.array([next(numbers) if row.embed else row.id for row in rows], np.int32),
            positions=np.array([row.position for row in rows], np.int32),
            visible=None if work.visible is None else visibility.unpack(work.visible, len(rows)),
            embeds=np.stack(embeds) if embeds else None,
        )
        self._driver.commit(np.arange(len(rows), dtype=np.int32))
        self._held += rows

    def commit(self, nodes: I32, rows: Sequence[Row]) -> PassReport | None:
        """Commit the slots ``nodes`` of the last pass, whose rows are ``rows``.

        Raises:
            DeviceError: see ``Driver.commit``.
        """
        report = self._driver.commit(nodes)
        self._held += rows
        return report
