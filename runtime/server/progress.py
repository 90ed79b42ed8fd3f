"""The progress of a text: how much of its prompt was read, and how many tokens were written, with the times."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["ProgressClock", "TextProgress"]


@dataclass(frozen=True, kw_only=True)
class TextProgress:
    """The progress of a text.

    Members:
        index: number of its request in its submission.
        total: tokens of the prompt.
        cached: number of them that the cache still held.
        processed: number of them that were read, those in the cache included.
        prompt_ms: milliseconds since the reading began, until the first token.
        predicted_n: tokens of the text.
        predicted_ms: milliseconds since the first token.
    """

    index: int
    total: int
    cached: int
    processed: int
    prompt_ms: float
    predicted_n: int = 0
    predicted_ms: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """Return the members for a chunk of a stream that reports the reading of the prompt.

        Source: llama.cpp ``tools/server/README.md``, "return_progress".
        """
        read = {"total": self.total, "cache": self.cached, "processed": self.processed, "time_ms": self.prompt_ms}
        return {"prompt_progress": read, "timings": self.timings_json()}

    def timings_json(self) -> dict[str, Any]:
        """Return llama.cpp's members of ``timings`` as they are now."""
        computed, later = self.processed - self.cached, self.predicted_n - 1
        has_prompt, has_later = computed > 0 and self.prompt_ms > 0, later > 0 and self.predicted_ms > 0
        return {
            "cache_n": self.cached,
            "prompt_n": computed,
            "prompt_ms": self.prompt_ms,
            "prompt_per_token_ms": self.prompt_ms / computed if computed else 0.0,
            "prompt_per_second": 1000 * computed / self.prompt_ms if has_prompt else 0.0,
            "predicted_n": self.predicted_n,
            "predicted_ms": self.predicted_ms,
            "predicted_per_token_ms": self.predicted_ms / later if has_later else 0.0,
            "predicted_per_second": 1000 * later / self.predicted_ms if has_later else 0.0,
        }


class ProgressClock:
    """Measures the progress of one text.

    Parameters:
        index: number of its request in its submission.
        total: tokens of the prompt.
        clock: returns the time in seconds.
    """

    def __init__(self, index: int, total: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._index, self._total, self._clock = index, total, clock
        self._cached, self._processed = 0, -1  # -1: the reading has not begun
        self._began = 0.0
        self._first: float | None = None  # time of the first token

    def read(self, rows: int) -> TextProgress | None:
        """Note that the cache holds ``rows`` tokens of the prompt; return the progress, None if there is none."""
        if rows <= self._processed:
            return None
        if self._processed < 0:
            self._began, self._cached = self._clock(), rows
        self._processed = rows
        return self._progress(0)

    def begin_text(self) -> TextProgress | None:
        """Note the first token, with which all of the prompt was read. A second call returns None and does nothing."""
        if self._first is not None:
            return None
        self._first, self._processed = self._clock(), self._total
        return self._progress(1)

    def written(self, tokens: int) -> TextProgress:
        """Return the progress of a text with ``tokens`` tokens."""
        return self._progress(tokens)

    def _progress(self, tokens: int) -> TextProgress:
        now = self._clock()
        first = now if self._first is None else self._first
        is_first = self._processed == self._cached and self._first is None  # nothing was computed yet
        return TextProgress(
            index=self._index,
            total=self._total,
            cached=self._cached,
            processed=self._processed,
            prompt_ms=0.0 if is_first else 1000 * (first - self._began),
            predicted_n=tokens,
            predicted_ms=1000 * (now - first) if tokens > 1 else 0.0,
        )
