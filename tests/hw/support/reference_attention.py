"""Compute attention of docs/integer-profile.md in plain integers, and the items that make the hardware compute it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from amaranth.hdl import Module
from amaranth.lib.wiring import Component, In, connect, flipped

from edgedec.hw.attention.head_shape import HeadShape
from edgedec.hw.attention.heads import AttentionHeads
from edgedec.hw.isa.kv_layout import KvLayout
from edgedec.hw.matrix.mac_array import MacArray
from tests.hw.support.reference_exponentials import chance, rs

__all__ = ["Head", "Pass", "Together", "expected", "random_pass", "streams"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True)
class Head:
    """Hold codes of one head, q [rows, head_dim], k and v [committed + own, head_dim], and its constants."""

    q: Array
    k: Array
    v: Array
    factors: list[int]
    shift: int
    scales: list[int]


@dataclass(frozen=True, kw_only=True)
class Pass:
    """Hold one pass; ``visible`` is bool [rows, committed + own]."""

    heads: list[Head]
    committed: int
    own: int
    first: list[int]
    sinks: int
    mask: Array

    @property
    def visible(self) -> Array:
        at = np.arange(self.committed)
        committed = (at >= np.array(self.first)[:, None]) | (at < self.sinks)
        return np.concatenate([committed, self.mask[:, : self.own]], axis=1)


def _row(head: Head, row: int, visible: Array) -> list[int]:
    keys = np.flatnonzero(visible)
    scores = {int(j): int(head.q[row] @ head.k[j]) for j in keys}
    if not scores:
        return [0] * head.v.shape[1]
    p = {
        j: chance(min(max(scores.values()) - s, (1 << 26) - 1), head.factors[row], head.shift)
        for j, s in scores.items()
    }
    total = sum(p.values())
    e = total.bit_length()
    reciprocal = ((1 << 32) - 1) // (total >> (e - 16))
    mixed = sum((chances * head.v[j].astype(object) for j, chances in p.items()), np.zeros(head.v.shape[1], object))
    return [
        rs(rs(int(n), e - 16) * rs(reciprocal * scale, 16), 13) for n, scale in zip(mixed, head.scales, strict=True)
    ]


def expected(work: Pass) -> Array:
    """Return the expected output [heads * head_dim, rows]."""
    visible = work.visible
    return (
        np.array([[_row(head, row, visible[row]) for row in range(len(visible))] for head in work.heads], object)
        .transpose(0, 2, 1)
        .reshape(-1, len(visible))
    )


def random_pass(
    rng: np.random.Generator, *, head_dim: int, slots: int, committed: int, own: int, heads: int, query_bits: int = 12
) -> Pass:
    """Draw a pass whose rows past ``own`` see nothing.

    Scores run from flat to one that outweighs all, with some codes at their extremes.
    """

    def codes(rows: int, bits: int) -> Array:
        limit = (1 << (bits - 1)) - 1
        codes_drawn = rng.integers(-limit, limit + 1, (rows, head_dim)) >> rng.integers(0, bits)
        codes_drawn[rng.random((rows, head_dim)) < 0.1] = rng.choice([-limit, limit])
        return codes_drawn

    def head() -> Head:
        k, v = codes(committed + own, 8), codes(committed + own, 8)
        kind = rng.integers(4)
        if kind == 0:
            k[:] = k[0]
        if kind == 1:
            v[:] = 127
        q = codes(slots, query_bits)
        q[own:] = 0
        factors = [int(f) for f in rng.choice([0, 1 << 15, 65535, int(rng.integers(1, 65536))], slots)]
        scales = [int(scale) for scale in rng.choice([0, 1, 1 << 15, 65535, int(rng.integers(65536))], head_dim)]
        # 4607 of the unit are about the spread of the scores, or an eighth of it, or eight times it
        spread = max(1, int(np.abs(q @ k.T).max())) * 40000 // 4607
        shift = int(np.clip(spread.bit_length() + rng.integers(-3, 4), 0, 47))
        return Head(q=q, k=k, v=v, factors=factors, shift=shift, scales=scales)

    mask = np.zeros((slots, slots), bool)
    mask[:own, :own] = rng.random((own, own)) < 0.4
    mask[np.arange(own), np.arange(own)] = True
    # Rows past ``own`` exist in the hardware: nothing is visible to them.
    first = [int(rng.integers(0, committed + 1)) if rng.random() < 0.5 and row < own else 0 for row in range(slots)]
    first[own:] = [committed] * (slots - own)
    sinks = int(rng.integers(0, 3)) if own == slots and committed > 2 else 0
    return Pass(heads=[head() for _ in range(heads)], committed=committed, own=own, first=first, sinks=sinks, mask=mask)


class Together(Component):
    """Combine attention with the multipliers that it uses."""

    def __init__(self, shape: HeadShape, *, query_bits: int = 12, **options: Any) -> None:
        self.attention = AttentionHeads(shape, query_bits=query_bits, **options)
        self.macs = MacArray(lanes=shape.beat_bytes, slots=shape.slots, chunk=shape.chunk, query_bits=query_bits)
        inner = ("work", "scores", "columns")
        super().__init__({name: m for name, m in self.attention.signature.members.items() if name not in inner})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.attention, m.submodules.macs = self.attention, self.macs
        connect(m, self.attention.work, self.macs.work)
        connect(m, self.attention.scores, self.macs.scores)
        connect(m, self.attention.columns, self.macs.columns)
        for name, member in self.signature.members.items():
            port, inner = getattr(self, name), getattr(self.attention, name)
            if not member.is_signature:
                m.d.comb += inner.as_value().eq(port.as_value())
            elif member.flow == In:
                connect(m, flipped(port), inner)
            else:
                connect(m, inner, flipped(port))
        return m


def streams(
    work: Pass, layout: KvLayout, slots: int, out_lanes: int, rng: np.random.Generator
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the items of every input stream, and the settings; what is read after the committed positions is noise."""

    def items(codes: Array) -> list[Any]:
        rows = np.zeros((slots, layout.head_dim), int)
        rows[: len(codes)] = codes
        return list(rows.T.reshape(layout.chunks, layout.chunk, slots).tolist())

    def run(codes: Array) -> list[Any]:
        return list(layout.pack(codes[: work.committed].astype(np.int8), int(rng.integers(-128, 128))).tolist())

    heads, count = work.heads, len(work.heads)
    beats: list[Any] = []
    for at in range(count + 1):
        beats += run(heads[at].k) if at < count else []
        beats += run(heads[at - 1].v) if at else []
    inputs = {
        "heads": [
            {"factors": head.factors, "shift": head.shift, "last": int(at == count - 1)}
            for at, head in enumerate(heads)
        ],
        "beats": beats,
        "scales": [item for head in heads for item in np.reshape(head.scales, (-1, out_lanes)).tolist()],
        "queries": [item for head in heads for item in items(head.q)],
        "keys": [item for head in heads for item in items(head.k[work.committed :])],
        "values": [item for head in heads for item in items(head.v[work.committed :])],
    }
    visibility = {
        "committed": work.committed,
        "own": work.own,
        "first": work.first,
        "sinks": work.sinks,
        "mask": work.mask.astype(int).tolist(),
    }
    return inputs, {"visibility": visibility}
