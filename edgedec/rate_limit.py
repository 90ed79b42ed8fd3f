"""A log that tells of frequent decisions without flooding whoever reads it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

__all__ = ["RateLimitedLog"]

INTERVAL_S = 1.0  # seconds between two messages of one kind


class RateLimitedLog:
    """Log at most one message of a kind in an interval, at level INFO; all of them where the logger takes DEBUG.

    A message that follows others that were left out says how many they were.

    Parameters:
        logger: takes the messages.
        interval_s: seconds between two messages of one kind.
        clock: the time in seconds.
    """

    def __init__(
        self,
        logger: logging.Logger,
        *,
        interval_s: float = INTERVAL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._logger, self._interval_s, self._clock = logger, interval_s, clock
        self._last: dict[str, float] = {}  # kind -> when its last message was logged
        self._left_out: dict[str, int] = {}  # kind -> messages since then

    @property
    def on(self) -> bool:
        """Whether anybody takes the messages; where not, none need be made."""
        return self._logger.isEnabledFor(logging.INFO)

    def info(self, kind: str, message: str, *arguments: object) -> None:
        """Log ``message % arguments`` unless one of its kind was logged less than an interval ago."""
        if not self.on:
            return
        now, last = self._clock(), self._last.get(kind)
        if last is not None and now - last < self._interval_s and not self._logger.isEnabledFor(logging.DEBUG):
            self._left_out[kind] = self._left_out.get(kind, 0) + 1
            return
        self._last[kind] = now
        text = message % arguments if arguments else message
        count = self._left_out.pop(kind, 0)
        self._logger.info("%s", f"{text} ({count} more since the last such line)" if count else text)
