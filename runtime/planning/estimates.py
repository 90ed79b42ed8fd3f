"""Estimates of tokens per second, made before anything is loaded. They serve to choose a plan and are not measurements.

A pass of n rows takes T(n) = bytes read per pass / bandwidth * (1 + slope * (n - 1)), and at least the time in which the
disk reads the weights that are not in memory, however many rows it has. A chain of k guesses, each right with
probability a, gives (1 - a^(k + 1)) / (1 - a) tokens: the target's own token, and the probabilities that the first guess is
right, that the first two are right, and so on up to k. Source: derived here; how often a drafter is right, and what a guess
costs, was measured (``drafter_figures``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edgedec.runtime.base.cores import physical_cores
from edgedec.runtime.planning.drafter_figures import drafter_figures

__all__ = ["DiskReads", "draft_bytes", "memory_bandwidth", "pass_seconds", "tokens_per_second"]

# Memory bandwidth of passes by number of threads, bytes per second, on a machine with two memory channels. Only ratios
# matter to a plan.
_BYTES_PER_SECOND = {1: 14e9, 2: 20e9}
_SLOPE = 0.13  # slope of a CPU, for which T(8) / T(1) is about 1.9
_DEVICE_SLOPE = 0.0005  # slope of an accelerator, for which T(8) / T(1) is 1.003 in simulation
_ROUND_SECONDS = 150e-6  # time of a round outside of the pass


@dataclass(frozen=True, kw_only=True)
class DiskReads:
    """The reads of each pass from the disk: their bytes, and the rate in bytes per second."""

    nbytes: int
    bytes_per_second: float

    @property
    def seconds(self) -> float:
        """Seconds that the disk takes for a pass."""
        return self.nbytes / self.bytes_per_second


def pass_seconds(
    items: Mapping[str, int],
    rows: int,
    *,
    threads: int = 0,
    device_bytes_per_second: float | None = None,
    disk: DiskReads | None = None,
) -> float:
    """Return the estimated seconds of a round with a pass of ``rows`` rows. See ``tokens_per_second`` for the arguments."""
    slope = _SLOPE if device_bytes_per_second is None else _DEVICE_SLOPE
    bandwidth = device_bytes_per_second or memory_bandwidth(threads)
    streamed = 0 if disk is None else disk.nbytes
    weights = items["weights"] if "weights" in items else items["weights_pinned"] + streamed
    seconds = (weights + _read_bytes(items)) / bandwidth + _ROUND_SECONDS
    return max(seconds * (1 + slope * (rows - 1)), 0.0 if disk is None else disk.seconds + _ROUND_SECONDS)


def memory_bandwidth(threads: int) -> float:
    """Return the assumed bandwidth of passes in bytes per second; ``threads`` as in ``tokens_per_second``."""
    return _BYTES_PER_SECOND.get(threads or physical_cores(), max(_BYTES_PER_SECOND.values()))


def tokens_per_second(
    items: Mapping[str, int],
    *,
    drafter: str,
    nodes: int,
    model: bool,
    guess_bytes: float | None = None,
    every_token: bool = False,
    acceptance: float | None = None,
    threads: int = 0,
    device_bytes_per_second: float | None = None,
    disk: DiskReads | None = None,
) -> float:
    """Return the estimated decoding speed of a plan in tokens per second.

    Example: a chain of 4 guesses of which 0.8 are right gives 3.4 tokens in the time of a pass of 5 rows and of 4 guesses.

    Args:
        items: planned bytes by item.
        drafter: name of the drafter.
        nodes: nodes of a tree, including its root; the best chain that fits is assumed.
        model: whether ``auto`` has a draft model.
        guess_bytes: bytes that a pass of the draft model reads, see ``draft_bytes``; None: those of the items.
        every_token: the draft model runs for each token, beside the target, instead of making guesses.
        acceptance: share of right guesses; None: the usual one of the drafter.
        threads: number of CPU threads; 0: one for each core.
        device_bytes_per_second: bandwidth at which an accelerator reads weights; None: the model runs on the CPU.
        disk: reads of each pass from the disk; None: all weights are in memory.

    Raises:
        EdgedecError: the file of the drafters' figures is damaged.
    """

    def seconds(rows: int) -> float:
        return pass_seconds(items, rows, threads=threads, device_bytes_per_second=device_bytes_per_second, disk=disk)

    if nodes == 1 and not every_token:
        return 1 / seconds(1)
    draft_seconds = (draft_bytes(items) if guess_bytes is None else guess_bytes) / memory_bandwidth(threads)
    name = ("model" if model else "ngram") if drafter == "auto" else drafter
    figures = drafter_figures(name)
    call_seconds = draft_seconds + figures.guess_seconds
    right = figures.acceptance if acceptance is None else acceptance
    expected = 1.0
    best = 1 / (seconds(1) + (call_seconds if every_token else 0))
    for guesses in range(1, nodes):
        expected += right**guesses
        best = max(best, expected / (seconds(1 + guesses) + guesses * call_seconds))
    return best


def draft_bytes(items: Mapping[str, int], lent_bytes: int = 0) -> float:
    """Return the bytes that a pass of a draft model reads, by its items, and ``lent_bytes`` of its target's memory."""
    return items.get("draft_weights", 0) + lent_bytes + _read_bytes(items, "draft_")


def _read_bytes(items: Mapping[str, int], prefix: str = "") -> float:
    """Return the bytes of keys and values that a pass reads at most with half of the context in use; rings are full then."""
    growing = items.get(f"{prefix}kv", 0) + items.get(f"{prefix}kv_labels", 0)
    return growing / 2 + items.get(f"{prefix}kv_ring", 0)
