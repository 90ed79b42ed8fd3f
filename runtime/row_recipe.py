"""Row recipes: what a committed row is, and how rows are computed again from the ids of a text.

The cache of a text has a row for each committed token. A row is a function of ids; of which ones, the recipe says. Whoever
computes rows again (a prompt that is read, a text that was parked, a device whose rows another text has taken) runs the
passes of the recipe. Whoever keeps rows for a prefix (the prefix cache, files of idle rows) names them by ids and recipe. So
rows have the same bits wherever they come from.

A recipe belongs to a decoder: to the way in which it lets rows see each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from edgedec.errors import UnsupportedError
from edgedec.runtime.protocols import I32, Masks, Pass, State, Target, TargetInfo
from edgedec.runtime.visibility import FORMS

__all__ = ["CAUSAL", "Causal", "RowRecipe", "check_recipe", "check_rows", "common_prefix", "make_rows", "reachable"]

_NO_LOGITS = np.zeros(0, np.int32)
_NO_LOGITS.setflags(write=False)


class RowRecipe(Protocol):
    """A rule by which rows are computed from ids."""

    @property
    def name(self) -> str:
        """Names the recipe in messages and in files of rows. Two recipes of one name compute the same rows."""

    @property
    def masks(self) -> Masks:
        """Widest form of ``Pass.visible`` of the passes."""

    @property
    def least(self) -> int:
        """Rows that a pass must have room for, at least 1."""

    def whole(self, length: int) -> int:
        """Return how many of the first ``length`` rows no later id changes. Only these are kept for other texts."""

    def rows_pass(self, ids: I32, start: int, most: int) -> Pass:
        """Return the pass over the next rows of a text, without logits.

        Args:
            ids: ids of the rows, int32 [n]; the last ones belong to the pass if there is room.
            start: number of committed rows, less than n; a value of ``whole``.
            most: maximum number of rows, at least ``least``.
        """


@dataclass(frozen=True)
class Causal:
    """Each row sees the rows before it and itself.

    Example:
        >>> work = CAUSAL.rows_pass(np.array([7, 8, 9], np.int32), 1, 64)
        >>> work.ids.tolist(), work.positions.tolist(), work.visible
        ([8, 9], [1, 2], None)
    """

    name: str = "causal"
    masks: Masks = "chain"
    least: int = 1

    def whole(self, length: int) -> int:
        """Return ``length``: later ids change no row."""
        return length

    def rows_pass(self, ids: I32, start: int, most: int) -> Pass:
        """Return the pass over the next ``most`` rows, or as many as there are."""
        chunk = ids[start : start + most]
        return Pass(ids=chunk, positions=start + np.arange(len(chunk), dtype=np.int32), logits=_NO_LOGITS)


CAUSAL = Causal()


def common_prefix(ids: Sequence[int], others: Sequence[int]) -> int:
    """Return the length of the longest common prefix of two lists of ids."""
    most = min(len(ids), len(others))
    if ids[:most] == others[:most]:
        return most
    return next(at for at in range(most) if ids[at] != others[at])


def reachable(recipe: RowRecipe, reach: Callable[[int], int], length: int) -> int:
    """Return the number of first rows, at most ``length``, that a cache can go back to and that the recipe keeps.

    Args:
        recipe: the recipe of the rows.
        reach: ``State.reach`` of the cache.
        length: number of rows whose ids are those that are wanted.
    """
    while True:
        rows = recipe.whole(length)
        length = reach(rows)
        if length == rows:
            return rows


def make_rows(recipe: RowRecipe, target: Target, state: State, ids: I32, most: int) -> None:
    """Run the passes over the rows of ``ids``, int32 [n], that ``state`` does not have, and commit them.

    Args:
        recipe: the recipe of the rows.
        target: target of the state.
        state: cache with the first rows; their number is a value of ``recipe.whole``.
        ids: the ids.
        most: maximum number of rows of a pass.

    Raises:
        EdgedecError: the target failed.
    """
    while state.length < len(ids):
        work = recipe.rows_pass(ids, state.length, most)
        target.submit([(state, work)]).result()
        state.commit(np.arange(len(work.ids), dtype=np.int32))


def check_recipe(recipe: RowRecipe, info: TargetInfo) -> None:
    """Check that a target can run the passes of a recipe.

    Args:
        recipe: the recipe.
        info: properties of the target.

    Raises:
        UnsupportedError: its masks are wider than those of the target.
    """
    if FORMS.index(recipe.masks) > FORMS.index(info.masks):
        raise UnsupportedError(
            f"the rows of this decoder are {recipe.name}, which takes masks of the form {recipe.masks!r}, and this target "
            f"computes those of the form {info.masks!r}; use another --decoder or another --device"
        )


def check_rows(least: int, rows: int) -> None:
    """Check that passes of at most ``rows`` rows have the ``least`` rows that a decoder needs.

    Raises:
        UnsupportedError: they have fewer.
    """
    if least > rows:
        raise UnsupportedError(
            f"this decoder needs passes of {least} rows, and the context and the device leave {rows}; give a larger "
            "--ctx-size, another --device or another --decoder"
        )
