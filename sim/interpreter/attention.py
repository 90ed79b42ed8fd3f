"""Attention over all heads of a layer: rotation, codes, keys and values in the layout of the cache, one division."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.isa.instructions import Instruction
from edgedec.hw.isa.kv_layout import KvLayout
from edgedec.hw.isa.sequences import SequenceRows
from edgedec.reference.integer_profile.numbers import I64, NARROW_BITS, normalize16, round_shift, saturate
from edgedec.reference.integer_profile.ops.attention import capped_scores
from edgedec.reference.integer_profile.tables import EXP2_LAST, ROTARY_FRACTION_BITS, exp2_negative
from edgedec.sim.interpreter.streams import integers

__all__ = [
    "HeadConstants",
    "KvMemory",
    "attended",
    "coded",
    "past_cache",
    "rotated",
    "run_order",
    "run_ranges",
    "visible",
]

I8 = NDArray[np.int8]
U8 = NDArray[np.uint8]
Trace = Callable[[str, I64], None]

_DIFFERENCE_BITS = 26  # bits of a score below the largest one
_OUT_SHIFT = 13
_HIDDEN = -(1 << 40)  # score of a hidden position, below all others


def rotated(x: I64, angles: U8, head_dim: int) -> I64:
    """Rotate the pairs (i, i + head_dim / 2) of every head.

    Args:
        x: s18 [n, elements].
        angles: uint8 [head_dim / 2, item], the cosine and the sine of each slot.

    Returns:
        s18 [n, elements].
    """
    n = len(x)
    turns = integers(angles, "<i2", 0, 2 * n).reshape(-1, n, 2).transpose(1, 0, 2)  # [n, head_dim / 2, 2]
    cos, sin = turns[:, None, :, 0], turns[:, None, :, 1]
    heads = x.reshape(n, -1, head_dim)
    a, b = heads[..., : head_dim // 2], heads[..., head_dim // 2 :]
    both = np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=2)
    return saturate(round_shift(both, ROTARY_FRACTION_BITS), NARROW_BITS).reshape(n, -1)


def coded(x: I64, constants: U8, shift: int, bits: int) -> I64:
    """Quantize x s18 [n, elements] to codes of ``bits`` bits, with the constants uint8 [elements, 8]."""
    mantissa, middle = integers(constants, "<u2", 0, 1)[:, 0], integers(constants, "<i4", 4, 1)[:, 0]
    return saturate(round_shift((x - middle) * mantissa, shift), bits)


def run_order(heads: int) -> Iterator[tuple[int, int]]:
    """Yield (query head, 0 for keys or 1 for values) in the order in which attention reads: K0 K1 V0 K2 ... V(n-1)."""
    for head in range(heads):
        yield head, 0
        if head:
            yield head - 1, 1
    yield heads - 1, 1


def run_ranges(of: Instruction, config: AcceleratorConfig, parts: Sequence[SequenceRows]) -> Iterator[tuple[int, int]]:
    """Yield the first beat in the cache and the beats of each range that a CACHE reads in a pass.

    Args:
        parts: the sequences of the pass; the rows of one with a ring begin with the run.
    """
    together = config.together(of["group"], sum(part.slots for part in parts))
    for head, part in run_order(of["heads"] // together):
        start = of["start"] + (2 * (head * together // of["group"]) + part) * of["run"]
        for sequence in parts:
            for first, beats in config.cache_rows(of["ring"]).ranges(sequence.committed):
                yield start + sequence.group * config.kv_layout.chunks + first, beats


def past_cache(parts: Sequence[SequenceRows], config: AcceleratorConfig) -> bool:
    """Return whether a pass writes or reads past the positions of a cache: in memory, or of the scores of a head."""
    layout, context = config.kv_layout, config.context
    scored = sum(layout.groups(part.committed) for part in parts)
    return scored > layout.groups(context) or any(part.row(layout, part.slots) > context for part in parts)


class KvMemory:
    """The memory of all keys and values, in logical order: uint8 [beats, beat_bytes]."""

    def __init__(self, layout: KvLayout, memory: U8) -> None:
        self._layout, self._beats = layout, memory.reshape(-1, layout.beat_bytes)

    def beats(self, start: int, count: int) -> U8:
        """Return ``count`` beats from beat ``start`` on."""
        return self._beats[start : start + count].copy()

    def rows(self, beats: U8, positions: int) -> I8:
        """Return the codes [positions, head_dim] that the beats of a run hold."""
        layout = self._layout
        parts = beats.view(np.int8).reshape(-1, layout.chunks, layout.positions, layout.chunk)
        codes: I8 = parts.transpose(0, 2, 1, 3).reshape(-1, layout.head_dim)[:positions]
        return codes

    def write(self, start: int, place: int, row: I64) -> None:
        """Write the codes [head_dim] at a place of the run that begins at beat ``start``."""
        self._at(start, place)[:] = row.astype(np.int8).view(np.uint8).reshape(-1, self._layout.chunk)

    def copy(self, start: int, source: int, target: int) -> None:
        self._at(start, target)[:] = self._at(start, source)

    def _at(self, start: int, position: int) -> U8:
        group, place = divmod(position, self._layout.positions)
        first, chunk = start + group * self._layout.chunks, self._layout.chunk
        return self._beats[first : first + self._layout.chunks, place * chunk : (place + 1) * chunk]


def visible(
    committed: Sequence[tuple[int, range]], positions: I64, mask: NDArray[np.bool_], window: int, sinks: int
) -> NDArray[np.bool_]:
    """Return the positions that each slot sees, bool [n, t + n], with all t committed positions that are read.

    A slot sees all committed positions of its sequence and the slots of its mask. A window hides those that are further
    back, except the first ``sinks`` positions.

    Args:
        committed: for each sequence, the number of its slots, and its committed positions that are read.
    """
    sequence = np.repeat(np.arange(len(committed)), [slots for slots, _ in committed])  # sequence of each slot
    read = np.repeat(np.arange(len(committed)), [len(of) for _, of in committed])  # sequence of each committed position
    seen = np.concatenate([sequence[:, None] == read, mask], axis=1)
    if window:
        at = np.concatenate([*(np.array(of, np.int64) for _, of in committed), positions])
        seen &= (at > positions[:, None] - window) | (at < sinks)
    return seen


@dataclass(frozen=True, kw_only=True)
class HeadConstants:
    """The constants of attention as they are in memory.

    Members:
        factors: uint8 [heads, 4].
        scales: uint8 [heads * head_dim, 2].
        cap: c and sc of capped scores; None without a soft-cap, and else the factors are those of the argument of tanh.
    """

    factors: U8
    scales: U8
    cap: tuple[int, int] | None = None

    def of(self, head_dim: int) -> tuple[I64, I64, I64]:
        """Return (c [heads], sc [heads], V [heads, head_dim]), the names of docs/integer-profile.md."""
        c, sc = integers(self.factors, "<u2", 0, 1)[:, 0], integers(self.factors, "u1", 2, 1)[:, 0]
        return c, sc, integers(self.scales, "<u2", 0, 1).reshape(-1, head_dim)


def attended(
    name: str, queries: I64, keys: I64, values: I64, seen: NDArray[np.bool_], constants: HeadConstants, trace: Trace
) -> I64:
    """Return the weighted values s27 [n, heads * head_dim].

    Args:
        queries: s12 [n, heads, head_dim].
        keys, values: s8 [heads, t, head_dim].
        seen: bool [n, t], from ``visible``.
    """
    n, heads, head_dim = queries.shape
    c, sc, scale = constants.of(head_dim)
    # The sums of both products stay below 2^53, so float64 computes them exactly, and faster than integers.
    products = queries.transpose(1, 0, 2).astype(np.float64) @ keys.transpose(0, 2, 1).astype(np.float64)
    scores = products.astype(np.int64)  # [heads, n, t]
    if constants.cap is not None:
        scores = capped_scores(scores, c[:, None, None], int(sc[0]))
        c, sc = (np.full(heads, value, np.int64) for value in constants.cap)
    largest = np.where(seen, scores, _HIDDEN).max(axis=2, keepdims=True)
    trace(f"{name}.max", largest)
    d = np.minimum(np.where(seen, largest - scores, 0), (1 << _DIFFERENCE_BITS) - 1)
    u = np.minimum(round_shift(d * c[:, None, None], sc[:, None, None]), EXP2_LAST)
    p = np.where(seen, exp2_negative(u), 0)
    trace(f"{name}.p", p)
    total = p.sum(axis=2, keepdims=True)
    trace(f"{name}.sum", total)
    mixed = (p.astype(np.float64) @ values.astype(np.float64)).astype(np.int64)
    trace(f"{name}.mixed", mixed)
    l16, e = normalize16(total)
    reciprocal = round_shift(((1 << 32) - 1) // l16 * scale[:, None], 16)
    out = round_shift(round_shift(mixed, e - 16) * reciprocal, _OUT_SHIFT)
    return out.transpose(1, 0, 2).reshape(n, heads * head_dim)
