"""The number of rows of prompts that join a pass of texts that are being written.

Such a pass shall take at most ``STALL`` times as long as without rows of prompts, so that the texts go on evenly while
others' prompts are read. Each row of a prompt takes time, and each pass over a prompt reads the keys and values of the rows
before, however few its new rows are. The two prices, relative to a pass without prompts, are learned from the passes of this
run: each measured pass corrects them by a part of its error, in proportion to its rows and its past (normalized least mean
squares).

The speed of a machine may change while a prompt is read. Therefore one pass in ``_EVERY`` has no rows of prompts and is
measured, so that the prices refer to the present speed. On a busy machine a single pass may take as long as several others.
Therefore a pass without prompts counts with the median of several, and the error of one pass is bounded.

Source: chunked prefill beside decoding, SARATHI (2308.16369); the prices are derived here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from edgedec.runtime.base.median import median

__all__ = ["STALL", "ChunkSize"]

STALL = 1.65  # ratio by which rows of prompts may lengthen a pass

_FIRST = 2  # rows of a chunk whose price is not known: the first one, and the first after many more cached rows
_GROWTH = 4  # after a pass within the limit, a chunk may have a quarter more rows, and one more at least
_EVERY = 9  # passes beside a prompt among which one has no rows of prompts
_PLAIN = 5  # passes without prompts whose median is the duration of such a pass
_LEARN = 1 / 4  # part of an error by which a measured pass corrects the prices
_MOST = 1 / 10  # largest error that counts, relative to a pass without prompts
_PAST_ROWS = 128  # cached rows whose price is corrected as much as that of one new row
_LEAST_PRICE = 1e-3  # the lowest price of a row, relative to a pass without prompts
# Least time of a chunk's rows relative to that of reading the past, which alone exceeds the limit in a very long prompt.
# With a single row per pass, nearly all of the time would go into reading the past again.
_SHARE = 1 / 4


class ChunkSize:
    """The price of a prompt's rows, and the size of chunks that follows from it.

    Parameters:
        expected: returns the expected seconds of a pass of so many rows, or 0.0 if nothing is known. Only ratios of these
            seconds are used once a pass without prompts was measured.
    """

    def __init__(self, expected: Callable[[int], float]) -> None:
        self._expected = expected
        self._plain: deque[tuple[int, float]] = deque(maxlen=_PLAIN)  # rows and seconds of passes without prompts
        # Prices are relative to a pass without prompts.
        self._row = 0.0  # price of a row of a prompt; 0.0: not known yet
        self._past = 0.0  # price of ``_PAST_ROWS`` cached rows before a chunk
        self._largest = 0  # rows that the next chunk may have after the same past, whatever the prices are
        self._last = 0.0  # past of the last chunk, in units of ``_PAST_ROWS``
        self._farthest = 0  # the largest past of a chunk that was measured
        self._passes = 0  # passes with rows of prompts since the last one without

    def rows(self, writing: int, past: int) -> int:
        """Return the largest number of rows of prompts that may join the next pass; 0 if the pass shall be without them.

        Args:
            writing: rows of the texts that are being written, at least 1.
            past: cached rows of the prompt.
        """
        if self._passes == _EVERY - 1:
            self._passes = 0
            return 0
        self._passes += 1
        return self.joined(writing, past)

    def joined(self, writing: int, past: int) -> int:
        """Return the largest number of rows of several prompts that may join the pass for which ``rows`` was called last.

        Args:
            writing: the same number.
            past: cached rows of these prompts together.
        """
        if not self._row or past > self._farthest + _PAST_ROWS:
            return _FIRST
        cached = past / _PAST_ROWS
        most = int((self._longest(cached) - self._past * cached) / self._row)
        # A prompt with a shorter past than the last one has more rows in the same time.
        largest = max(self._largest, round(self._largest + self._past * (self._last - cached) / self._row))
        return max(1, min(most, largest))

    def observe(self, writing: int, chunk: int, past: int, seconds: float) -> None:
        """Learn from a pass.

        Args:
            writing: rows of texts that are being written.
            chunk: rows of prompts.
            past: cached rows of these prompts.
            seconds: duration of the pass.
        """
        if not chunk:
            self._plain.append((writing, seconds))
            return
        alone = self._alone(writing)
        if not alone:
            return
        longer, cached = seconds / alone - 1, past / _PAST_ROWS
        self._largest = chunk + (max(1, chunk // _GROWTH) if longer <= self._longest(cached) else 0)
        self._farthest, self._last = max(past, self._farthest), cached
        if not self._row:
            self._row = max(longer / chunk, _LEAST_PRICE)
            return
        error = longer - self._row * chunk - self._past * cached
        correction = _LEARN * max(-_MOST, min(_MOST, error)) / (chunk * chunk + cached * cached)
        self._row = max(self._row + correction * chunk, _LEAST_PRICE)
        self._past = max(self._past + correction * cached, 0.0)

    def _longest(self, cached: float) -> float:
        """Return the time by which rows of prompts may lengthen a pass, relative to one without them.

        Args:
            cached: cached rows of the prompt, in units of ``_PAST_ROWS``.
        """
        return max(STALL - 1, (1 + _SHARE) * self._past * cached)

    def _alone(self, rows: int) -> float:
        """Return the seconds of a pass of ``rows`` rows without those of prompts."""
        expected = self._expected(rows)
        if not self._plain:
            return expected
        # Measured passes count, because the expectation follows passes with prompts, too.
        return expected * median([seconds / max(1e-9, self._expected(size)) for size, seconds in self._plain])
