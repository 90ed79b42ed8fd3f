"""Figures of the server in Prometheus' text format, under llama.cpp's names where it has them.

Source: the text format is that of Prometheus 0.0.4; the names are those of llama.cpp ``tools/server/README.md``.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Literal

from edgedec.runtime.session.answer import Timings

__all__ = ["CONTENT_TYPE", "Metrics"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_Sample = tuple[str, Literal["counter", "gauge"], str, float]  # name, type, help, value


class Metrics:
    """Counters of all answers since the server began. Its methods may be called in any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answers = self._cancelled = 0
        self._answer_seconds = 0.0
        self._prompt_tokens = self._kept_tokens = self._predicted_tokens = self._longest = 0
        self._prompt_ms = self._predicted_ms = 0.0
        self._rounds = self._guess_rounds = self._drafted = self._accepted = 0
        self._peak_bytes = 0
        self._passes = self._busy = 0

    def count_answer(self, timings: Timings, *, seconds: float) -> None:
        """Add the figures of an answer. ``seconds`` is its time from its submission on, in the queue too."""
        with self._lock:
            self._answers += 1
            self._answer_seconds += seconds
            self._prompt_tokens += timings.prompt_n - timings.prompt_kept
            self._kept_tokens += timings.prompt_kept
            self._predicted_tokens += timings.predicted_n
            self._prompt_ms += timings.prompt_ms
            self._predicted_ms += timings.predicted_ms
            self._longest = max(self._longest, timings.prompt_n + timings.predicted_n)
            self._rounds += timings.rounds.count
            self._guess_rounds += timings.rounds.count if timings.rounds.drafted else 0
            self._drafted += timings.rounds.drafted
            self._accepted += sum(timings.rounds.accepted)
            self._peak_bytes = max(self._peak_bytes, timings.peak_bytes)

    def count_passes(self, passes: int, running: int) -> None:
        """Add passes of the model, in which ``running`` requests had a part."""
        with self._lock:
            self._passes += passes
            self._busy += passes * running

    def count_cancelled(self) -> None:
        """Add a submission that was cancelled."""
        with self._lock:
            self._cancelled += 1

    @property
    def mean_answer_seconds(self) -> float:
        """Seconds from submission to end of an answer, as a mean; 1 before the first answer."""
        with self._lock:
            return self._answer_seconds / self._answers if self._answers else 1.0

    def text(self, *, running: int, waiting: int, loaded: bool) -> str:
        """Return all figures.

        Parameters:
            running, waiting: requests that are being answered, and that wait.
            loaded: whether the model is in memory.
        """
        lines = []
        with self._lock:
            for name, kind, meaning, value in self._samples(running, waiting, loaded):
                shown = f"{value:d}" if isinstance(value, int) else f"{value:.6g}"
                lines += [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}", f"{name} {shown}"]
        return "\n".join(lines) + "\n"

    def _samples(self, running: int, waiting: int, loaded: bool) -> Iterator[_Sample]:
        prompt_s, predicted_s = self._prompt_ms / 1000, self._predicted_ms / 1000
        # The first token of an answer belongs to the time of the prompt.
        later = max(0, self._predicted_tokens - self._answers)
        yield "llamacpp:prompt_tokens_total", "counter", "Tokens of prompts that were computed.", self._prompt_tokens
        yield (
            "llamacpp:prompt_tokens_cached_total",
            "counter",
            "Tokens of prompts found in the cache.",
            self._kept_tokens,
        )
        yield "llamacpp:prompt_seconds_total", "counter", "Seconds until the first tokens.", prompt_s
        yield "llamacpp:tokens_predicted_total", "counter", "Tokens that were written.", self._predicted_tokens
        yield "llamacpp:tokens_predicted_seconds_total", "counter", "Seconds after the first tokens.", predicted_s
        yield "llamacpp:n_tokens_max", "counter", "Tokens of the longest prompt with its answer.", self._longest
        guesses = "llamacpp:spec_decode_num"
        yield f"{guesses}_draft_tokens_total", "counter", "Tokens that were guessed.", self._drafted
        yield f"{guesses}_accepted_tokens_total", "counter", "Guesses that were accepted.", self._accepted
        yield f"{guesses}_drafts_total", "counter", "Passes of the model in texts with guesses.", self._guess_rounds
        rate = self._prompt_tokens / prompt_s if prompt_s else 0.0
        yield "llamacpp:n_decode_total", "counter", "Passes of the model, each for all texts together.", self._passes
        busy = self._busy / self._passes if self._passes else 0.0
        yield "llamacpp:n_busy_slots_per_decode", "gauge", "Texts in a pass, as a mean.", busy
        yield "llamacpp:prompt_tokens_seconds", "gauge", "Tokens of prompts per second, as a mean.", rate
        rate = later / predicted_s if predicted_s else 0.0
        yield "llamacpp:predicted_tokens_seconds", "gauge", "Tokens written per second, as a mean.", rate
        yield "llamacpp:requests_processing", "gauge", "Requests that are being answered.", running
        yield "llamacpp:requests_deferred", "gauge", "Requests that wait.", waiting
        yield "edgedec:answers_total", "counter", "Answers that ended, cancelled ones included.", self._answers
        yield "edgedec:cancelled_total", "counter", "Requests whose client left.", self._cancelled
        yield "edgedec:rounds_total", "counter", "Passes of the model that wrote tokens.", self._rounds
        yield "edgedec:peak_bytes", "gauge", "Charged memory at its peak, in bytes.", self._peak_bytes
        yield "edgedec:model_loaded", "gauge", "1 if the model is in memory, else 0.", int(loaded)
