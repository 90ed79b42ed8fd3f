"""Draws from a distribution with a generator that has a state, for drafts and trees of tests."""

from __future__ import annotations

import numpy as np

from edgedec.runtime.protocols import F32

__all__ = ["draw"]


def draw(probs: F32, rng: np.random.Generator) -> int:
    """Return an id, drawn from probabilities float32 [V] that need not sum to 1; ids of probability 0 never come."""
    weights = probs.astype(np.float64)
    return int(rng.choice(len(weights), p=weights / weights.sum()))
