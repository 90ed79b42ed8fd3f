"""Inputs without guidance: seeds and kept inputs, mutated at random. What the tests run, and who has no atheris."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.attacks.fuzz.property import Finding, check
from tests.attacks.fuzz.targets import Target

__all__ = ["FROM_SEEDS", "run_unguided"]

FROM_SEEDS = 0.4  # of what campaigns find most is broken; sound inputs must be begun with, too


def run_unguided(
    target: Target,
    origins: Sequence[bytes],
    inputs: int,
    seed: int,
    folder: Path,
    found: Callable[[bytes, Finding], None] | None = None,
) -> Counter[str]:
    """How many of ``inputs`` were read, and how many refused; the same ones for the same seed and origins.

    Args:
        found: is told of findings; None: the first one is raised.

    Raises:
        Finding: an input that the property does not hold for; it lies in ``folder``.
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
            if found is None:
                raise
            found(data, finding)
        counts["inputs"] += 1
    return counts
