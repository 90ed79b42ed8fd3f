"""Rows of caches, runs and results within the limits of a run, for targets that plan their memory."""

from __future__ import annotations

from edgedec.graph.graph import Graph
from edgedec.runtime.protocols import Limits

__all__ = [
    "LEAST_DRAFT_BITS",
    "MOST_ROWS",
    "cache_rows",
    "recurrent_bytes",
    "recurrent_slots",
    "reserved_rows",
    "run_rows",
    "usual_result_rows",
    "widest_pass",
]

LEAST_DRAFT_BITS = 8  # bits of keys and values of a draft model, at least
MOST_ROWS = 64  # maximum number of rows of a pass on devices without a limit
# Rows of a run that avoid a faulty kernel: with 32 rows and more the WebGPU plug-in (0.4) uses another attention kernel,
# written for subgroups of at least 8 lanes. On SwiftShader, which has 4, it gives wrong results without an error
# (docs/devices.md).
_WEBGPU_ROWS = 31


def widest_pass(device: str) -> int | None:
    """Return the maximum number of rows of a run on ``device``; None: no limit. Wider passes run in several parts."""
    return _WEBGPU_ROWS if device == "webgpu" else None


def cache_rows(limits: Limits) -> int:
    """Return the rows of the caches of all sequences together."""
    return limits.cache_rows or limits.positions


def reserved_rows(limits: Limits) -> int:
    """Return the rows of the caches of all sequences, each of which has room for ``limits.positions`` rows."""
    return limits.positions * _sequences(limits)


def _sequences(limits: Limits) -> int:
    """Return the sequences that have room for ``limits.positions`` rows each."""
    return max(1, -(-limits.cache_rows // limits.positions))


def recurrent_slots(limits: Limits) -> int:
    """Return the sequences that can have recurrent states at the same time.

    There is one more than texts that are written, so that a text can be forked, unless there is one text only.
    """
    sequences = _sequences(limits)
    return sequences + (sequences > 1)


def recurrent_bytes(graph: Graph, limits: Limits) -> dict[str, int]:
    """Return the bytes of the recurrent states, which each sequence has once, and once after each row of its last pass."""
    if not graph.recurrent:
        return {}
    each = sum(state.sequence_bytes() for state in graph.recurrent.values())
    return {"recurrent": _sequences(limits) * (1 + limits.nodes) * each}


def run_rows(limits: Limits) -> int:
    """Return the maximum rows of a run over several sequences."""
    return max(limits.nodes, limits.batch_rows)


def usual_result_rows(limits: Limits) -> int:
    """Return the rows of logits of the widest pass: all rows of a tree, or the last row without speculation.

    With several sequences, each row of a run may be the last one of its sequence.
    """
    return run_rows(limits) if limits.depth or limits.cache_rows or limits.batch_rows else 1
