"""Which rows a device has, and how another state's come to be there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from edgedec.runtime.driver.driver import NO_LOGITS, Driver
from edgedec.runtime.driver.report import PassReport
from edgedec.runtime.protocols import I32, Pass

__all__ = ["DeviceRows", "Row", "rows_of"]


@dataclass(frozen=True)
class Row:
    """A row of a cache: what has to be sent to make it again. ``embed``: of a negative id, float32 [hidden]."""

    id: int
    position: int
    embed: bytes = b""


def rows_of(work: Pass) -> list[Row]:
    """Of a pass."""
    embeds = work.embeds
    return [
        Row(number, position, b"" if number >= 0 or embeds is None else embeds[-number - 1].astype("<f4").tobytes())
        for number, position in zip(work.ids.tolist(), work.positions.tolist(), strict=True)
    ]


class DeviceRows:
    """The committed rows of the one cache that a device has.

    ``bring`` and ``commit`` may fail at any point, Ctrl-C included; the next ``bring`` then finds out what is left.

    Args:
        ran: called with the report of each pass that was run again, and its rows.
    """

    def __init__(self, driver: Driver, ran: Callable[[PassReport, int], object]) -> None:
        self._driver, self._ran = driver, ran
        self._held: list[Row] = []
        self._owner: object = None  # whose rows these are, all of them; None: look

    def forget(self, owner: object) -> None:
        """``owner``'s rows are not what they were."""
        if self._owner is owner:
            self._owner = None

    def is_of(self, owner: object, rows: Sequence[Row]) -> bool:
        """Whether the device has ``rows``, and no others, and ``owner`` was who brought them."""
        return self._owner is owner and self._driver.length == len(self._held) == len(rows)

    def bring(self, owner: object, rows: Sequence[Row]) -> None:
        """The device has exactly these rows: what it shares with them stays, the others are run again.

        Raises:
            DeviceError: as ``Driver.forward``.
        """
        if self.is_of(owner, rows):
            return
        self._owner = None
        del self._held[self._driver.length :]
        shared = 0
        while shared < min(len(self._held), len(rows)) and self._held[shared] == rows[shared]:
            shared += 1
        self._driver.truncate(shared)
        del self._held[shared:]
        slots = self._driver.program.config.slots
        for start in range(shared, len(rows), slots):
            self._run(rows[start : start + slots])
        self._owner = owner

    def _run(self, rows: Sequence[Row]) -> None:
        embeds = [np.frombuffer(row.embed, "<f4") for row in rows if row.embed]
        numbers = iter(range(-1, -1 - len(embeds), -1))
        ids = np.array([next(numbers) if row.embed else row.id for row in rows], np.int32)
        positions = np.array([row.position for row in rows], np.int32)
        given = np.stack(embeds) if embeds else None
        self._ran(self._driver.forward(ids, positions=positions, logits=NO_LOGITS, embeds=given), len(rows))
        self._driver.commit(np.arange(len(rows), dtype=np.int32))
        self._held += rows

    def commit(self, nodes: I32, rows: Sequence[Row]) -> PassReport | None:
        """Keeps these slots of the last pass, which are ``rows``.

        Raises:
            DeviceError: as ``Driver.commit``.
        """
        report = self._driver.commit(nodes)
        self._held += rows
        return report
