"""Tokens per second before anything is loaded: estimates to choose a plan by, never to be printed as measured.

T(n) = bytes read per pass / bandwidth * (1 + slope * (n - 1)); a chain of k guesses of which each is right with probability
a brings (1 - a^(k + 1)) / (1 - a) tokens. Source: derived here, as the target's
own token plus the chances that the first guess is right, the first two are, and so on up to k.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

__all__ = ["ACCEPTANCE", "tokens_per_second"]

# Bytes per second that passes read, by threads: of a machine with two channels. Only ratios matter to a plan.
_BYTES_PER_SECOND = {1: 14e9, 2: 20e9}
_SLOPE = 0.13  # T(8) / T(1) of about 1.9
_DEVICE_SLOPE = 0.0005  # of an accelerator: T(8) / T(1) of 1.003, simulated
_ROUND_SECONDS = 150e-6
# Share of right guesses: measured on the embedded pair (docs/speculation.md), by drafter; they differ much with the text.
ACCEPTANCE = {"model": 0.62, "ngram": 0.35, "copy": 0.35, "stand": 0.35, "trigram": 0.35, "none": 0.0}

_UNKNOWN_ACCEPTANCE = 0.35  # of a drafter whose file came later: as the other text-only ones


def tokens_per_second(
    items: Mapping[str, int],
    *,
    drafter: str,
    nodes: int,
    model: bool,
    threads: int = 0,
    device_bytes_per_second: float | None = None,
) -> float:
    """Estimated decoding speed of a plan.

    Args:
        items: planned bytes by name.
        nodes: of a tree, its root among them; the best chain within it is taken.
        model: whether ``auto`` has a draft model.
        device_bytes_per_second: that an accelerator reads weights at, whose nodes share them; None: it is the CPU.
    """
    cores = threads or os.cpu_count() or 1
    bandwidth = _BYTES_PER_SECOND.get(cores, max(_BYTES_PER_SECOND.values()))
    slope = _SLOPE if device_bytes_per_second is None else _DEVICE_SLOPE
    seconds = (items["weights"] + items["kv"] / 2) / (device_bytes_per_second or bandwidth) + _ROUND_SECONDS
    draft_seconds = (items.get("draft_weights", 0) + items.get("draft_kv", 0) / 2) / bandwidth
    name = ("model" if model else "ngram") if drafter == "auto" else drafter
    right, best, expected = ACCEPTANCE.get(name, _UNKNOWN_ACCEPTANCE), 1 / seconds, 1.0
    for guesses in range(1, nodes):
        expected += right**guesses
        took = seconds * (1 + slope * guesses) + guesses * (draft_seconds + (_ROUND_SECONDS if draft_seconds else 0))
        best = max(best, expected / took)
    return best
