"""Tree policies, one file each, named as ``--spec-tree`` selects it. Each file has ``create(rng=None) -> TreePolicy``.

Without ``rng`` the children of a node are *chosen*: they are the draft's likeliest tokens, and ``TokenTree.draft`` gives
each of them probability 1. With ``rng`` they are *drawn* from the draft's distribution one after another, without
replacement, and ``TokenTree.draft`` contains that distribution. In both cases the tree states correctly where its children
come from, which is all that a verifier needs; ``docs/speculation.md`` explains why.
"""

from __future__ import annotations

__all__ = ["DEFAULT", "DEFAULTS"]

# The policy of a run that names none, by what its verifier keeps (``Traits.lossless``): the fastest one with default sizes
# (docs/reports/speculation.md).
DEFAULTS = {"exact": "dynamic", "distribution": "chain", "lossy": "chain"}
DEFAULT = DEFAULTS["exact"]  # policy with the default verifier
