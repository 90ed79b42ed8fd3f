"""Convert vectors to words of lanes, and back; draw vectors with extreme values."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgedec.reference.integer_profile.numbers import I64

__all__ = ["PATTERNS", "awkward", "from_words", "to_words"]

# chance of an idle source, chance of a stalled sink
PATTERNS = [(0.0, 0.0), (0.5, 0.0), (0.0, 0.6), (0.4, 0.4)]


def to_words(x: I64, lanes: int = 1) -> list[dict[str, Any]]:
    """Convert x [slots, n] to payloads of ``hw.shapes.words``."""
    count = max(1, -(-x.shape[1] // lanes))
    padded = np.pad(x, ((0, 0), (0, count * lanes - x.shape[1])))
    return [
        {"values": padded[:, i * lanes : (i + 1) * lanes].T.tolist(), "last": int(i == count - 1)} for i in range(count)
    ]


def from_words(items: list[dict[str, Any]], widths: list[int]) -> list[I64]:
    """Convert payloads of ``hw.shapes.words`` to [slots, n] for each n of ``widths``; check ``last`` and the padding."""
    vectors: list[I64] = []
    parts: list[I64] = []
    for item in items:
        parts.append(np.array(item["values"]).T)
        if item["last"]:
            whole, width = np.concatenate(parts, axis=1), widths[len(vectors)]
            assert len(parts) == max(1, -(-width // parts[0].shape[1])), f"vector {len(vectors)}: {len(parts)} words"
            assert not whole[:, width:].any()
            vectors.append(whole[:, :width])
            parts = []
    assert not parts
    assert len(vectors) == len(widths)
    return vectors


def awkward(rng: np.random.Generator, slots: int, width: int, bits: int = 27) -> I64:
    """Draw [slots, width] within the symmetric range of ``bits``: rows of different sizes, some with edges, some of
    zeros.
    """
    limit = (1 << (bits - 1)) - 1
    size = rng.integers(0, bits, (slots, 1))
    x = rng.integers(-(1 << size), (1 << size) + 1, (slots, width)) * (rng.random((slots, 1)) < 0.9)
    edges = np.array([0, 1, -1, limit, -limit, limit - 1, 1 << 16, -(1 << 17), (1 << 17) - 1, 1 << 17, -(1 << 17) - 1])
    use = (rng.random((slots, width)) < 0.3) & (rng.random((slots, 1)) < 0.5)
    x = np.where(use, rng.choice(edges, (slots, width)), x)
    return np.clip(x, -limit, limit)
