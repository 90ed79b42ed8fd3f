"""The times and counts of an answer, as llama.cpp's server reports them."""

from __future__ import annotations

from typing import Any

from edgedec.runtime.session.answer import Timings

__all__ = ["timings_json"]


def timings_json(timings: Timings) -> dict[str, Any]:
    """Return the figures of ``generate --json``, with llama.cpp's meaning of ``prompt_n``.

    It counts the tokens of the prompt that were computed, and ``cache_n`` those that the cache still held. Times are in
    milliseconds and not rounded. The first token
    belongs to the prompt, so the time per predicted token counts the later ones.

    Source: llama.cpp ``tools/server/README.md``, "timings".
    """
    computed, later = timings.prompt_n - timings.prompt_kept, timings.predicted_n - 1
    return {
        **timings.as_json(),
        "cache_n": timings.prompt_kept,
        "prompt_n": computed,
        "prompt_ms": timings.prompt_ms,
        "prompt_per_token_ms": timings.prompt_ms / computed if computed else 0.0,
        "prompt_per_second": timings.prompt_per_second,
        "predicted_ms": timings.predicted_ms,
        "predicted_per_token_ms": timings.predicted_ms / later if later > 0 else 0.0,
        "predicted_per_second": timings.predicted_per_second,
    }
