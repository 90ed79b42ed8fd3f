"""A log of frequent events that limits the number of messages."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

__all__ = ["RateLimitedLog"]

INTERVAL_S = 1.0  # seconds between two messages of one kind


class RateLimitedLog:
    """Log at most one message of a kind per interval, at level INFO; if the logger takes DEBUG, log all messages.

    A message contains the number of messages of its kind that were left out before it.

    Parameters:
        logger: receives the messages.
        interval_s: seconds between two messages of one kind.
        clock: returns the time in seconds.
    """

    def __init__(
        self,
        logger: logging.Logger,
        *,
        interval_s: float = INTERVAL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._logger, self._interval_s, self._clock = logger, interval_s, clock
        self._last: dict[str, float] = {}  # kind -> time of its last message
        self._left_out: dict[str, int] = {}  # kind -> number of messages left out since then

    @property
    def on(self) -> bool:
        """True if the messages are logged; if not, callers need not prepare them."""
        return self._logger.isEnabledFor(logging.INFO)

    def info(self, kind: str, message: str, *arguments: object) -> None:
        """Log ``message % arguments`` unless a message of its kind was logged less than an interval ago."""
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
