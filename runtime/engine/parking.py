"""Move the rows of a text that is being written to the disk, and bring them back bit for bit.

A text is parked between two passes. Its decoder and its sequence stay as they are; only the cache has no rows meanwhile. A
file that is missing or damaged costs time and never changes the text: the rows are then computed again from their ids.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np

from edgedec.errors import EdgedecError
from edgedec.runtime.decoders._cached import CachedDecoder
from edgedec.runtime.engine.spill import SpillableState, Spilled, SpillFolder
from edgedec.runtime.protocols import Limits
from edgedec.runtime.row_recipe import make_rows

__all__ = ["ParkedRows", "park", "unpark"]

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ParkedRows:
    """The ids of a decoder's rows, and their file; None if there are no rows."""

    ids: list[int]
    spilled: Spilled | None

    def discard(self, disk: SpillFolder) -> None:
        """Remove the file."""
        if self.spilled is not None:
            disk.discard(self.spilled)


def park(decoder: CachedDecoder, disk: SpillFolder) -> ParkedRows:
    """Write the rows of a decoder to a file and free them.

    Raises:
        EdgedecError: the disk is full, or its limit is reached. Nothing has changed then.
    """
    state, ids = decoder.state, decoder.cached
    assert isinstance(state, SpillableState)
    rows = ParkedRows(ids=ids, spilled=disk.write(ids, state, decoder.recipe) if ids else None)
    state.truncate(0)
    decoder.cached = []
    return rows


def unpark(decoder: CachedDecoder, rows: ParkedRows, disk: SpillFolder, limits: Limits) -> None:
    """Give a decoder its rows again, and remove their file. The cache has room for them.

    Raises:
        EdgedecError: the rows had to be computed again, and the target failed.
    """
    state = decoder.state
    assert isinstance(state, SpillableState)
    if rows.spilled is not None:
        try:
            disk.read(rows.spilled, state, len(rows.ids), decoder.recipe)
        except EdgedecError as error:
            _LOG.warning("rows are computed again: %s", error)
            make_rows(decoder.recipe, decoder.target, state, np.array(rows.ids, np.int32), limits.nodes)
        finally:
            rows.discard(disk)
    decoder.cached = rows.ids
