"""Tree policies, one file each, named as ``--spec-tree`` selects it. Each file has ``create(rng=None) -> TreePolicy``.

Without ``rng`` the children of a node are *chosen*: they are the draft's likeliest tokens, and ``TokenTree.draft`` gives
each of them probability 1. With ``rng`` they are *drawn* from the draft's distribution one after another, without
replacement, and ``TokenTree.draft`` contains that distribution. In both cases the tree states correctly where its children
come from, which is all that a verifier needs; ``docs/speculation.md`` explains why.
"""

from __future__ import annotations

__all__ = ["DEFAULT", "DEFAULTS", "default_tree"]

# The policy of a run that names none, by what its verifier keeps (``Traits.lossless``): the fastest one with default sizes
# (docs/reports/speculation.md).
DEFAULTS = {"exact": "dynamic", "distribution": "chain", "lossy": "chain"}
DEFAULT = DEFAULTS["exact"]  # policy with the default verifier
# Bytes of weights, about those that a processor's caches hold, below which passes on the CPU take a fraction of a
# millisecond. No tree was measured to be faster than a chain there.
_SMALL_BYTES = 32 << 20


def default_tree(lossless: str, device: str, weight_bytes: int) -> str:
    """Return the policy of a run that names none: ``default_tree("exact", "cpu", 220 << 20)`` is ``"dynamic"``.

    Args:
        lossless: ``Traits.lossless`` of the verifier.
        device: name of the device.
        weight_bytes: bytes of the model's weights.
    """
    return "chain" if device == "cpu" and weight_bytes < _SMALL_BYTES else DEFAULTS[lossless]
