"""Make a policy of each kind for a random bundle, without a calibration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from edgedec.bundle.bundle import Bundle
from edgedec.calibrated_bundle import weights_sha256
from edgedec.families import build_graph
from edgedec.graph.graph import KvState
from edgedec.graph.low_rank import KeyBasis
from edgedec.graph.selection import Selection
from edgedec.kv.policies.double_sparsity import DoubleSparsityPolicy
from edgedec.kv.policies.duo import DuoPolicy
from edgedec.kv.policies.nosa import NosaPolicy
from edgedec.kv.policies.shadowkv import ShadowKvPolicy
from edgedec.kv.policy import KvPolicy

__all__ = ["MAKERS", "basis_of", "selection_of"]


def selection_of(state: KvState, *, keys: int = 24, width: int = 2) -> Selection:
    """Return a choice of keys by ``width`` channels, other ones in each head."""
    channels = tuple(
        tuple((5 * head + 7 * at) % state.head_dim for at in range(width)) for head in range(state.kv_heads)
    )
    steps = ((0.02,) * width,) * state.kv_heads
    return Selection(keys=keys, sinks=2, recent=4, channels=channels, steps=steps)


def _duo(bundle: Bundle) -> KvPolicy:
    """Return two groups of heads in the first state, and heads that all stream in the others, but the first one."""
    streaming = {
        name: tuple(head for head in range(state.kv_heads) if head % 3 == 0 or (at and head))
        for at, (name, state) in enumerate(build_graph(bundle.config).states.items())
    }
    return DuoPolicy(weights_sha256=weights_sha256(bundle), sinks=4, window=24, streaming=streaming)


def _double_sparsity(bundle: Bundle) -> KvPolicy:
    states = build_graph(bundle.config).states
    selections = {name: selection_of(state) for name, state in states.items()}
    return DoubleSparsityPolicy(weights_sha256=weights_sha256(bundle), selections=selections)


def _nosa(bundle: Bundle) -> KvPolicy:
    selections = {}
    for name, state in build_graph(bundle.config).states.items():
        weights = np.random.default_rng(state.head_dim).normal(size=(state.kv_heads, state.head_dim))
        importance = tuple((0.0, *map(float, own)) for own in 8 * weights)
        selections[name] = replace(selection_of(state), kept=9, importance=importance)
    return NosaPolicy(weights_sha256=weights_sha256(bundle), selections=selections)


def basis_of(state: KvState, *, rank: int = 6) -> KeyBasis:
    """Return orthogonal directions, other ones in each head."""
    drawn = np.random.default_rng(state.head_dim).normal(size=(state.kv_heads, state.head_dim, rank))
    return KeyBasis.of(np.linalg.qr(drawn)[0].transpose(0, 2, 1))


def _shadowkv(bundle: Bundle) -> KvPolicy:
    states = build_graph(bundle.config).states
    return ShadowKvPolicy(
        weights_sha256=weights_sha256(bundle),
        selections={name: selection_of(state) for name, state in states.items()},
        bases={name: basis_of(state) for name, state in states.items()},
    )


MAKERS: Mapping[str, Callable[[Bundle], KvPolicy]] = {
    "duo": _duo,
    "double-sparsity": _double_sparsity,
    "nosa": _nosa,
    "shadowkv": _shadowkv,
}
