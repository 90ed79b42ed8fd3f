"""Mutate seeds and kept inputs at random, without guidance by coverage; the tests use it, and machines without
atheris.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.attacks.fuzz.property import Finding, check
from tests.attacks.fuzz.targets import Target

__all__ = ["FROM_SEEDS", "run_unguided"]

FROM_SEEDS = 0.4  # share of sound inputs as origins, because most inputs that campaigns find are broken


def run_unguided(
    target: Target,
    origins: Sequence[bytes],
    inputs: int,
    seed: int,
    folder: Path,
    on_finding: Callable[[bytes, Finding], None] | None = None,
) -> Counter[str]:
    """Return how many of ``inputs`` were read, and how many refused; equal seeds and origins give equal inputs.

    Args:
        on_finding: function called with findings; None raises the first one.

    Raises:
        Finding: the property does not hold for an input, which is in ``folder``.
    """
    rng, seeds = random.Random(f"{target.name} {seed}"), list(target.seeds())
    counts: Counter[str] = Counter()
    for _ in range(inputs):
        data = rng.choice(seeds if rng.random() < FROM_SEEDS else origins)
        for _ in range(rng.choice((1, 1, 2, 3))):
            data = target.mutate(rng, data)
        try:
            counts["read" if check(target, data, folder) is None else "refused"] += 1
        except Finding as finding:
            if on_finding is None:
                raise
            on_finding(data, finding)
        counts["inputs"] += 1
    return counts
