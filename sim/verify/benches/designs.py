"""The designs of the benches: the accelerator, and two of its paths with the multipliers that they share."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module
from amaranth.lib.wiring import Component, In, connect, flipped

from edgedec.errors import UsageError
from edgedec.hw.accelerator import Accelerator
from edgedec.hw.attention.attention_path import AttentionPath
from edgedec.hw.attention.head_shape import HeadShape
from edgedec.hw.matrix.mac_array import MacArray, WorkKind
from edgedec.hw.matrix.matrix_path import MatrixPath
from edgedec.sim.verify.benches.workloads import CONFIG

__all__ = ["Attending", "Multiplying", "design"]


def design(bench: str) -> Component:
    """Return the design of the bench ``top``, ``engine`` or ``attention``, in the workloads' configuration.

    Raises:
        UsageError: the bench is unknown.
    """
    if bench == "top":
        return Accelerator(CONFIG)
    if bench == "engine":
        return Multiplying()
    if bench == "attention":
        return Attending()
    raise UsageError(f"bench must be top, engine or attention, not {bench!r}")


def _multipliers() -> MacArray:
    return MacArray(lanes=CONFIG.beat_bytes, slots=CONFIG.slots, chunk=CONFIG.chunk)


def _pass_on(m: Module, outer: Component, inner: Component, names: list[str]) -> None:
    for name in names:
        member = outer.signature.members[name]
        port, within = getattr(outer, name), getattr(inner, name)
        if member.is_signature:
            connect(m, flipped(port), within) if member.flow == In else connect(m, within, flipped(port))
        else:
            m.d.comb += within.eq(port) if member.flow == In else port.eq(within)


class Multiplying(Component):
    """A MatrixPath with its MacArray.

    Members:
        lent: In(1). Attention uses the multipliers in this cycle; its products must not reach the path.

    The other members are those of the path.
    """

    def __init__(self) -> None:
        self._path = MatrixPath(
            beat_bytes=CONFIG.beat_bytes,
            slots=CONFIG.slots,
            tile_words=CONFIG.tile_words,
            depth=CONFIG.depth,
            scaling=CONFIG.scaling,
            per_row=CONFIG.per_row,
        )
        members = self._path.signature.members
        self._outer = [name for name in members if not name.startswith("mac_")]
        super().__init__({**{name: members[name] for name in self._outer}, "lent": In(1)})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.path, m.submodules.array = path, array = self._path, _multipliers()
        _pass_on(m, self, path, self._outer)
        connect(m, path.mac_codes, array.codes)
        connect(m, path.mac_weights, array.weights)
        connect(m, array.sums, path.mac_sums)
        work = array.work.p
        m.d.comb += [
            array.work.valid.eq(self.lent),
            work.kind.as_value().eq(WorkKind.SCORES.value),  # type: ignore[attr-defined]
            work["values"].as_value().eq(~path.mac_weights.payload.values.as_value()),
            work.operands.as_value().eq(~0),
        ]
        return m


class Attending(Component):
    """An AttentionPath with its MacArray. The members are those of the path."""

    def __init__(self) -> None:
        heads = HeadShape(
            beat_bytes=CONFIG.beat_bytes,
            head_dim=CONFIG.head_dim,
            chunk=CONFIG.chunk,
            slots=CONFIG.slots,
            context=CONFIG.context,
            lanes=CONFIG.softmax_lanes,
        )
        self._path = AttentionPath(
            heads,
            query_columns=CONFIG.heads * CONFIG.head_dim,
            key_columns=CONFIG.kv_heads * CONFIG.head_dim,
        )
        members = self._path.signature.members
        self._outer = [name for name in members if name not in ("work", "scores", "columns")]
        super().__init__({name: members[name] for name in self._outer})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.path, m.submodules.array = path, array = self._path, _multipliers()
        _pass_on(m, self, path, self._outer)
        connect(m, path.work, array.work)
        connect(m, array.scores, path.scores)
        connect(m, array.columns, path.columns)
        return m
