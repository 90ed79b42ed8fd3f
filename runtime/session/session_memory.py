"""Memory that a session gives back while it is open: idle blocks, the drafter, kept prefixes and paused texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from edgedec.runtime.capabilities import ReleasingTarget
from edgedec.runtime.drafters._releasing import ReleasingDrafter
from edgedec.runtime.engine.scheduler import Scheduler
from edgedec.runtime.engine.spill import SpillFolder
from edgedec.runtime.protocols import State, Target
from edgedec.runtime.rounds.compiled_text import land

__all__ = ["SessionMemory"]


class SessionMemory:
    """Measures the parts of a session's memory that are not needed at the moment, and gives them back.

    No text changes with it: texts that pause go on with the same rows, and a drafter is only released if texts do not depend
    on its guesses.

    Args:
        target: holds the cache.
        scheduler: writes the texts.
        planned: planned bytes of the session, by item; the drafter's begin with ``draft_``.
    """

    def __init__(self, target: Target, scheduler: Scheduler, planned: Mapping[str, int]) -> None:
        self._target = target if isinstance(target, ReleasingTarget) else None
        self._scheduler = scheduler
        self._draft_bytes = sum(size for name, size in planned.items() if name.startswith("draft_"))

    @property
    def idle_bytes(self) -> int:
        """Bytes of the cache that no text holds, and that ``release_idle`` would give back to the system, at most."""
        return 0 if self._target is None else self._target.idle_bytes

    def release_idle(self) -> None:
        """Give memory that is not needed now back to the system. Later passes take it again."""
        if self._target is not None:
            self._target.release_idle()

    @property
    def drafter_bytes(self) -> int:
        """Planned bytes of the drafter, if it is loaded and texts do not depend on its guesses; otherwise 0."""
        drafter = self._drafter
        return 0 if drafter is None or drafter.released else self._draft_bytes

    def release_drafter(self) -> None:
        """Give the drafter's memory back to the system. Texts are written without guesses until ``restore_drafter``."""
        if (drafter := self._drafter) is not None:
            if self._target is not None:
                land(self._target)  # rounds that run hold the draft
            drafter.release()
            self.release_idle()

    def restore_drafter(self) -> None:
        """Load the drafter again after ``release_drafter``.

        Raises:
            EdgedecError: it cannot be loaded. Texts are still written without guesses.
        """
        if (drafter := self._drafter) is not None:
            drafter.restore()

    def keep_prefixes(self, keep: bool) -> None:
        """Keep the rows of texts that end from now on for prompts that begin alike, or give them back at once."""
        self._scheduler.keep_prefixes(keep)

    @property
    def kept_bytes(self) -> int:
        """Bytes of the rows of texts that have ended, which are kept for their prefixes, at most."""
        return self._bytes_of(self._scheduler.kept_states)

    def keep_on_disk(self, disk: SpillFolder) -> None:
        """Let rows of texts that have ended move to ``disk`` when a session for several texts needs their room.

        The folder may outlive the session, and serve the next one of the same model.
        """
        self._scheduler.keep_on_disk(disk)

    def move_to_disk(self) -> None:
        """Move the rows of texts that have ended to the folder of ``keep_on_disk``, before the model is unloaded."""
        self._scheduler.move_to_disk()

    @property
    def parked(self) -> int:
        """Number of texts that are not written on at the moment, because their rows are on the disk."""
        return self._scheduler.parked

    @property
    def parkable_bytes(self) -> int:
        """Bytes of rows that ``park`` would move to the folder of ``keep_on_disk`` if it were called again and again."""
        return self._bytes_of(self._scheduler.parkable_states)

    def park(self) -> None:
        """Move the rows of the text that was begun last to the disk, unless it is the only one that is written.

        Raises:
            EdgedecError: the disk is full. Nothing has changed then.
        """
        self._scheduler.park()
        self.release_idle()

    def unpark(self) -> None:
        """Write all texts on whose rows are on the disk."""
        self._scheduler.unpark()

    @property
    def _drafter(self) -> ReleasingDrafter | None:
        """The drafter, if texts do not depend on its guesses."""
        decoder = self._scheduler.decoders[0]
        return decoder.guesser if isinstance(decoder.guesser, ReleasingDrafter) else None

    def _bytes_of(self, states: Sequence[State]) -> int:
        return 0 if self._target is None else sum(map(self._target.held_bytes, states))
