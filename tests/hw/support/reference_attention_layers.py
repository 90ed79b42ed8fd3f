"""Run passes through one layer's attention in the reference, and return the items that make an AttentionPath compute
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from amaranth.hdl import Module, Signal
from amaranth.lib import data, stream
from amaranth.lib.wiring import Component, In, Out, connect, flipped

from edgedec.graph.graph import KvState
from edgedec.graph.ops import Attention, Rope
from edgedec.hw.attention.attention_path import AttentionPath
from edgedec.hw.attention.head_shape import HeadShape
from edgedec.hw.attention.parts import KEYS, QUERIES, VALUES, head_factor
from edgedec.hw.attention.score_memory import visibility
from edgedec.hw.compiler.constants import head_norm_items
from edgedec.hw.isa.kv_layout import KvLayout
from edgedec.hw.matrix.mac_array import MacArray
from edgedec.reference.integer_profile.cache import IntegerCache
from edgedec.reference.integer_profile.context import IntegerPassContext
from edgedec.reference.integer_profile.numbers import I64, Mantissas, WidthCheck
from edgedec.reference.integer_profile.ops import attention, rope
from edgedec.reference.integer_profile.ops.rms_norm import normed_heads
from edgedec.reference.integer_profile.tables import rotary
from edgedec.reference.integer_profile.values import Value
from tests.hw.support.make_vectors import awkward, to_words

__all__ = ["Layer", "Pass", "Together", "streams"]

_STATE = "kv"


@dataclass(frozen=True, kw_only=True)
class Pass:
    """Hold a layer's inputs q, k and v [slots, columns], and its outputs [own, columns], [own, kv_heads, head_dim].

    Slots from ``own`` on hold noise and see nothing.
    """

    parts: list[I64]
    committed: int
    own: int
    first: list[int]
    sinks: int
    mask: I64
    cos: I64
    sin: I64
    turns: bool
    committed_keys: I64
    committed_values: I64
    output: I64
    keys: I64
    values: I64


def _vectors(rng: np.random.Generator, slots: int, width: int) -> I64:
    """Draw [slots, width] s18: rows of different sizes, some elements at their extremes."""
    limit = (1 << 17) - 1
    x = rng.integers(-limit, limit + 1, (slots, width)) >> rng.integers(0, 4, (slots, 1))
    return np.where(rng.random(x.shape) < 0.1, rng.choice([-limit, limit], x.shape), x)


class Layer:
    """Hold one attention with random constants; ``attend`` runs the reference and commits some of the rows."""

    def __init__(
        self,
        rng: np.random.Generator,
        *,
        heads: int,
        group: int,
        head_dim: int,
        window: int | None = None,
        sinks: int = 0,
        rotated: tuple[bool, bool] = (True, True),
        normed: tuple[bool, bool] | None = None,
        capped: bool = False,
    ) -> None:
        """Draw the constants.

        Args:
            normed: whether queries and keys are normed; None if there is no unit for it.
            capped: whether scores have a soft-cap, which most of them reach partly.
        """
        self.rng, self.heads, self.group, self.head_dim, self.rotated = rng, heads, group, head_dim, rotated
        self.normed = normed
        norms = range(2) if normed else ()
        self.norms = [(rng.integers(1 << 13, 1 << 15, head_dim), 1 << int(rng.integers(20, 40)), 14) for _ in norms]
        kv_heads = heads // group
        self.state = KvState(name=_STATE, kv_heads=kv_heads, head_dim=head_dim, bits=8, window=window, sinks=sinks)
        self.cache = IntegerCache({_STATE: self.state})
        self.op = Attention(
            name="attend", inputs=("q", "k", "v"), outputs=("out",), state=_STATE, heads=heads, scale=1.0
        )
        self.frequencies = tuple(10000.0 ** -(2 * i / head_dim) for i in range(head_dim // 2))
        shape = (kv_heads, head_dim)

        def factors(minimum: int, maximum: int, *of: int) -> Mantissas:
            return Mantissas(
                values=rng.integers(1 << 12, 1 << 16, of), exponent=-int(rng.integers(minimum, maximum + 1))
            )

        self.constants = attention.AttentionConstants(
            q=factors(20, 23, heads, head_dim),
            k=factors(24, 27, *shape),
            v=factors(24, 27, *shape),
            k_middle=awkward(rng, kv_heads, head_dim, 18),
            score=factors(22, 26, heads),
            output=Mantissas(values=rng.choice([1, 1 << 15, 65535, int(rng.integers(1 << 16))], shape), exponent=-21),
        )
        if capped:
            of_capped = Mantissas(values=np.full(heads, int(rng.integers(1 << 12, 1 << 16))), exponent=-20)
            self.constants = replace(self.constants, score=of_capped, cap=factors(14, 17, heads))

    def _rotate(self, x: Value, context: IntegerPassContext) -> Value:
        assert isinstance(x, np.ndarray)
        heads = x.shape[1] // self.head_dim
        op = Rope(
            name="turn",
            inputs=("x", "positions"),
            outputs=("y",),
            heads=heads,
            head_dim=self.head_dim,
            layout="half",
            inverse_frequencies=self.frequencies,
        )
        (rotated,) = rope.run(op, None, (x, context.positions.astype(np.int64)), context)
        return rotated

    def attend(
        self,
        *,
        slots: int,
        mask: Sequence[Sequence[int]],
        depths: Sequence[int],
        commit: Sequence[int],
        turns: bool = True,
    ) -> Pass:
        """Run a pass of len(mask) tokens: token i stands ``depths[i]`` after the committed ones and sees mask[i]."""
        own, cache, state = len(mask), self.cache, self.state
        widths = (self.heads * self.head_dim, *[state.kv_heads * self.head_dim] * 2)
        parts = [_vectors(self.rng, slots, width) for width in widths]
        committed = cache.length
        positions = (committed + np.array(depths)).astype(np.int32)
        cache.begin(positions)
        visible = np.array(mask, bool)
        context = IntegerPassContext(
            cache=cache, visible=visible, positions=positions, embeds=None, check=WidthCheck(enabled=True)
        )
        inputs: list[Value] = [x[:own] for x in parts]
        for at, rotated in enumerate(self.rotated):
            if self.normed and self.normed[at]:
                inputs[at] = normed_heads(parts[at][:own], *self.norms[at])
            inputs[at] = self._rotate(inputs[at], context) if rotated else inputs[at]
        (output,) = attention.run(self.op, self.constants, inputs, context)
        assert isinstance(output, np.ndarray)
        keys, values = cache.keys[_STATE].astype(np.int64), cache.values[_STATE].astype(np.int64)
        cos, sin = (np.zeros((slots, self.head_dim // 2), np.int64) for _ in range(2))
        cos[:own], sin[:own] = rotary(positions, self.frequencies)
        whole = np.zeros((slots, slots), np.int64)
        whole[:own, :own] = visible
        first = [0 if state.window is None else max(0, int(p) - state.window + 1) for p in positions]
        cache.commit(np.array(commit, np.int32))
        return Pass(
            parts=parts,
            committed=committed,
            own=own,
            first=first + [committed] * (slots - own),
            sinks=state.sinks if state.window is not None else 0,
            mask=whole,
            cos=cos,
            sin=sin,
            turns=turns,
            committed_keys=keys[:committed],
            committed_values=values[:committed],
            output=output,
            keys=keys[committed:],
            values=values[committed:],
        )


class Together(Component):
    """Combine the path, its multipliers, and a caller that holds a pass's parts until the one before it is done.

    With ``eager`` the caller offers them as soon as heads attend; all passes are like the first.

    Members:
        passes: In(stream {seen, turns, cap}). Visibility, whether there are new angles, and the factor of capped scores;
            three parts belong to each.
        begun: Out(stream 1). First ``work`` of a pass.
        others: ports of the path.
    """

    def __init__(
        self,
        shape: HeadShape,
        *,
        eager: bool = False,
        **options: Any,
    ) -> None:
        self._eager = eager
        self.path = AttentionPath(shape, **options)
        self.macs = MacArray(lanes=shape.beat_bytes, slots=shape.slots, chunk=shape.chunk, query_bits=12)
        self._half = shape.head_dim // 2
        pass_layout = data.StructLayout({"seen": visibility(shape), "turns": 1, "cap": head_factor()})
        own_ports = ("work", "scores", "columns", "visibility", "cap")
        begun_port = stream.Signature(1, always_ready=True)
        ports = {name: m for name, m in self.path.signature.members.items() if name not in own_ports}
        super().__init__({**ports, "passes": In(stream.Signature(pass_layout)), "begun": Out(begun_port)})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.path, m.submodules.macs = path, macs = self.path, self.macs
        connect(m, path.work, macs.work)
        connect(m, path.scores, macs.scores)
        connect(m, path.columns, macs.columns)
        angles, parts, attends = Signal(range(self._half + 1)), Signal(2), Signal()
        gates = {
            "angles": angles != 0,
            "parts": (parts != 0) & (angles == 0),
            "attends": attends & (parts == 0) & path.coded,
        }
        for name, member in path.signature.members.items():
            if name not in self.signature.members:
                continue
            port, inner = getattr(self, name), getattr(path, name)
            if not member.is_signature:
                m.d.comb += port.eq(inner)
            elif member.flow == Out:
                connect(m, inner, flipped(port))
            elif name in gates:
                m.d.comb += [
                    inner.payload.eq(port.payload),
                    inner.valid.eq(port.valid & gates[name]),
                    port.ready.eq(inner.ready & gates[name]),
                ]
            else:
                connect(m, flipped(port), inner)
        for name, remaining in (("angles", angles), ("parts", parts), ("attends", attends)):
            with m.If(getattr(self, name).valid & getattr(self, name).ready):
                m.d.sync += remaining.eq(remaining - 1)
        if self._eager:
            with m.If(self.attends.valid & self.attends.ready):
                m.d.sync += [parts.eq(3), attends.eq(1)]
        armed = Signal()
        m.d.comb += self.begun.valid.eq(armed & path.work.valid)
        with m.If(path.work.valid):
            m.d.sync += armed.eq(0)
        visibility_register = Signal(self.passes.p.seen.shape())
        if hasattr(path, "cap"):
            cap = Signal(head_factor())
            m.d.comb += path.cap.eq(cap)
            with m.If(self.passes.valid & self.passes.ready):
                m.d.sync += cap.eq(self.passes.p.cap)
        m.d.comb += [
            path.visibility.as_value().eq(visibility_register.as_value()),
            self.passes.ready.eq(path.idle & (angles == 0) & (parts == 0) & ~attends),
        ]
        with m.If(self.passes.valid & self.passes.ready):
            m.d.sync += [
                visibility_register.as_value().eq(self.passes.p.seen.as_value()),
                angles.eq(self.passes.p.turns * self._half),
                parts.eq(3),
                attends.eq(1),
                armed.eq(1),
            ]
        return m


def streams(
    layer: Layer, passes: Sequence[Pass], *, beat_bytes: int, chunk: int, slots: int, shared: bool = False
) -> dict[str, list[Any]]:
    """Return the items of every input of ``Together``; bytes after the committed positions are noise.

    Args:
        shared: heads attend together as far as the slots allow.
    """
    items: dict[str, list[Any]] = {
        name: [] for name in ("passes", "parts", "input", "coding", "angles", "attends", "factors", "scales", "beats")
    }
    if layer.normed:
        items["gains"] = []
    for work in passes:
        heads = _together(layer.group, work.own, slots) if shared else 1
        _add(items, layer, work, KvLayout(beat_bytes=beat_bytes, head_dim=layer.head_dim, chunk=chunk), slots, heads)
        scales = layer.constants.output.values.repeat(layer.group, axis=0)
        items["scales"] += scales.reshape(-1, 1).tolist()
    return items


def _together(group: int, own: int, slots: int) -> int:
    """Return the most neighbours, 1, 2, 4 or 8, that divide a group and fit the slots; each has a power of two of rows."""
    each = next(rows for rows in (1, 2, 4, 8) if rows >= own)
    return max(heads for heads in (1, 2, 4, 8) if heads == 1 or (group % heads == 0 and heads * each <= slots))


def _add(items: dict[str, list[Any]], layer: Layer, work: Pass, layout: KvLayout, slots: int, together: int) -> None:
    constants, heads, group = layer.constants, layer.heads, layer.group
    fields = {name: getattr(work, name) for name in ("committed", "own", "first", "sinks")}
    seen = {**fields, "mask": work.mask.tolist()}
    cap = {"factor": int(constants.score.values[0]), "shift": -constants.score.exponent}
    items["passes"].append({"seen": seen, "turns": int(work.turns), "cap": cap})
    if work.turns:
        items["angles"] += [
            {"cos": [c], "sin": [s]} for c, s in zip(work.cos.T.tolist(), work.sin.T.tolist(), strict=True)
        ]
    zeros = np.zeros_like(constants.k_middle)
    factors = (
        (constants.q, np.zeros_like(constants.q.values)),
        (constants.k, constants.k_middle),
        (constants.v, zeros),
    )
    for place, rotate, x, (factor, middle) in zip(
        (QUERIES, KEYS, VALUES), (*layer.rotated, False), work.parts, factors, strict=True
    ):
        items["parts"].append({"part": place, "rotate": int(rotate), "shift": -factor.exponent})
        if layer.normed:
            normed = place != VALUES and layer.normed[place]
            items["parts"][-1]["normed"] = int(normed)
            if normed:
                items["gains"] += head_norm_items(*layer.norms[place]).view("<i2").tolist()
        items["input"] += to_words(x)
        items["coding"] += [
            {"mantissa": m, "middle": low}
            for m, low in zip(factor.values.ravel().tolist(), middle.ravel().tolist(), strict=True)
        ]
    logs = {"together": together.bit_length() - 1, "stride": (work.own - 1).bit_length()}
    items["attends"].append({"heads": heads, "group": group, **logs})
    of_scores = constants.score if constants.cap is None else constants.cap
    items["factors"] += [{"factor": c, "shift": -of_scores.exponent} for c in of_scores.values.tolist()]

    def run(codes: I64, head: int) -> list[Any]:
        fill = int(layer.rng.integers(-128, 128))
        return list(layout.pack(codes[:, head // group].astype(np.int8), fill).tolist())

    for head in range(0, heads + together, together):
        items["beats"] += run(work.committed_keys, head) if head < heads else []
        items["beats"] += run(work.committed_values, head - together) if head else []
