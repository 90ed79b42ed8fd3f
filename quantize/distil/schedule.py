"""Compute the learning rate and the batch of a step from its number alone, so that a run can resume exactly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import UsageError

__all__ = ["Batches", "Ids", "Schedule", "check_shares"]

Ids = NDArray[np.uint16 | np.uint32]

_VALID_ROWS = 16


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Schedule of the learning rate and the weight decay.

    The rate warms up linearly, stays at its full value for a share of the steps, and then falls to a tenth along half a
    cosine. Weight decay acts in the first half of the steps. It is off in the second half, when ternary weights should
    settle and latent weights near a threshold should not be pulled across it (BitNet b1.58, 2402.17764 and its training
    notes).
    """

    steps: int
    learning_rate: float
    weight_decay: float = 0.1
    warmup_steps: int = 50
    hold_share: float = 0.0
    floor: float = 0.1

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise UsageError(f"--steps must be at least 1, not {self.steps}")
        if not (math.isfinite(self.learning_rate) and self.learning_rate > 0):
            raise UsageError(f"--learning-rate must be positive, not {self.learning_rate}")
        if not (math.isfinite(self.weight_decay) and self.weight_decay >= 0):
            raise UsageError(f"--weight-decay must be 0 or more, not {self.weight_decay}")
        if self.warmup_steps < 0:
            raise UsageError(f"--warmup-steps must be 0 or more, not {self.warmup_steps}")
        if not 0 <= self.hold_share <= 1 or not 0 <= self.floor <= 1:
            raise UsageError("a schedule's shares must lie between 0 and 1")

    def rate(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0."""
        warm = min(self.warmup_steps, self.steps // 5)  # a short run must not consist of warm-up alone
        if step < warm:
            return self.learning_rate * (step + 1) / warm
        held = max(warm, round(self.hold_share * self.steps))
        if step < held:
            return self.learning_rate
        done = (step - held) / max(1, self.steps - held)
        return self.learning_rate * (self.floor + (1 - self.floor) * (1 + math.cos(math.pi * done)) / 2)

    def decay(self, step: int) -> float:
        """Return the weight decay of a step."""
        return self.weight_decay if step < self.steps / 2 else 0.0


def check_shares(tokens: int, lengths: Sequence[int], *, world: int, accumulate: int) -> None:
    """Check that a batch divides equally among ``world`` processes in ``accumulate`` parts each.

    Raises:
        UsageError: for one of ``lengths``, the rows of that length in ``tokens`` do not divide equally.
    """
    for length in lengths:
        rows, shares = tokens // length, world * accumulate
        if rows < 1 or rows % shares:
            raise UsageError(
                f"--batch-tokens {tokens} are {rows} rows of {length}, which cannot be divided into {shares} equal parts "
                f"({world} processes, --accumulate {accumulate}); make it a multiple of {length * shares}, or change "
                "--length or --accumulate"
            )


@dataclass(frozen=True, kw_only=True)
class Batches:
    """Batches of training text: ``tokens`` per step in rows of ``length``, in ``accumulate`` parts per process.

    The last steps, a share ``long_share``, have rows of ``long_length``, because a model learns late positions from few
    rows.
    """

    train: Ids
    valid: Ids
    tokens: int
    length: int
    long_length: int = 0
    long_share: float = 0.0
    accumulate: int = 1
    seed: int = 0

    def check(self, world: int) -> None:
        """Check the text and the batches for ``world`` processes.

        Raises:
            UsageError: the text is too short, or the rows do not divide equally.
        """
        lengths = [length for length in (self.length, self.long_length) if length]
        for name, data in (("training", self.train), ("held-out", self.valid)):
            if len(data) < max(lengths) + 2:
                raise UsageError(
                    f"the {name} text has {len(data)} tokens, fewer than one row of {max(lengths)}; give more text or a "
                    "smaller --length"
                )
        check_shares(self.tokens, lengths, world=world, accumulate=self.accumulate)

    def at(self, step: int, steps: int) -> NDArray[np.int64]:
        """Return the rows of a step: int64 [rows, length + 1]."""
        length = self.long_length if self.long_length and step >= steps * (1 - self.long_share) else self.length
        rng = np.random.default_rng((self.seed, step))
        starts = rng.integers(0, len(self.train) - length, self.tokens // length)
        return np.stack([self.train[start : start + length + 1] for start in starts]).astype(np.int64)

    def valid_rows(self) -> NDArray[np.int64]:
        """Return rows of held-out text, int64 [at most 16, length + 1], the same on every call."""
        step = self.length + 1
        count = min(_VALID_ROWS, len(self.valid) // step)
        return self.valid[: count * step].reshape(count, step).astype(np.int64)
