"""Run a float graph over many sequences at once, for calibration and sampling.

The operations are those of the reference. Only matrix products and attention, which are Python loops in the reference, are
computed here for a whole batch. Rows are sequence-major: B sequences of T tokens are B * T rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.graph.graph import Graph, KvState, RecurrentState, check_no_features
from edgedec.graph.ops import Attention, Linear, Operation
from edgedec.plugins import load
from edgedec.reference.float_profile.cache import FloatCache
from edgedec.reference.float_profile.model import FloatPassContext
from edgedec.reference.float_profile.ops.linear import soft_capped
from edgedec.schemes import FloatWeight

__all__ = ["BatchCache", "BatchInterpreter"]

Array = NDArray[Any]
F32 = NDArray[np.float32]
LoadTensor = Callable[[str], F32]

_SCORE_BYTES = 64 << 20  # limit on the attention scores of the sequences that are computed at a time


@dataclass(kw_only=True)
class BatchCache:
    """Keys and values of B sequences, per state [B, positions, kv_heads, head_dim], and their recurrent states; ``length``
    positions are filled.
    """

    sequences: int
    positions: int
    length: int = 0
    arrays: dict[str, tuple[F32, F32]] = field(default_factory=dict)
    recurrent: dict[str, list[FloatCache]] = field(default_factory=dict)

    def rows(self, state: KvState) -> tuple[F32, F32]:
        shape = (self.sequences, self.positions, state.kv_heads, state.head_dim)
        if state.name not in self.arrays:
            self.arrays[state.name] = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        return self.arrays[state.name]

    def advancing(self, state: RecurrentState) -> list[FloatCache]:
        """Return a recurrent state of each sequence."""
        if state.name not in self.recurrent:
            self.recurrent[state.name] = [FloatCache({}, {state.name: state}) for _ in range(self.sequences)]
        return self.recurrent[state.name]


def _attend(op: Attention, state: KvState, q: F32, k: F32, v: F32, sequences: int, cache: BatchCache | None) -> F32:
    """Return the causal attention of each sequence over its own keys, [B * T, heads * head_dim]."""
    q, k, v = (x.reshape(sequences, -1, x.shape[1] // state.head_dim, state.head_dim) for x in (q, k, v))
    tokens, past = q.shape[1], 0
    if cache is not None:
        keys, values = cache.rows(state)
        past = cache.length
        keys[:, past : past + tokens], values[:, past : past + tokens] = k, v
        k, v = keys[:, : past + tokens], values[:, : past + tokens]
    at = np.arange(past, past + tokens)[:, None]
    seen = np.arange(past + tokens) <= at
    if state.window is not None:
        seen &= (np.arange(past + tokens) > at - state.window) | (np.arange(past + tokens) < state.sinks)
    shared = op.heads // state.kv_heads
    k, v = (x.transpose(0, 2, 1, 3) for x in (k, v))  # [B, kv_heads, past + tokens, head_dim]
    mask = np.where(np.tile(seen, (shared, 1)), np.float32(0), np.float32(-np.inf))
    out = np.empty_like(q)
    step = max(1, _SCORE_BYTES // (4 * op.heads * tokens * (past + tokens)))
    for first in range(0, sequences, step):
        some = slice(first, first + step)
        # Queries of the heads that share keys are stacked, so that each key head needs one matrix product.
        grouped = q[some].reshape(-1, tokens, state.kv_heads, shared, state.head_dim).transpose(0, 2, 3, 1, 4)
        stacked = grouped.reshape(-1, state.kv_heads, shared * tokens, state.head_dim)
        scores = stacked @ k[some].swapaxes(2, 3)
        scores *= np.float32(op.scale)
        scores = soft_capped(scores, op.soft_cap)
        scores += mask
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=-1, keepdims=True)
        mixed = (scores @ v[some]).reshape(-1, state.kv_heads, shared, tokens, state.head_dim)
        out[some] = mixed.transpose(0, 3, 1, 2, 4).reshape(-1, tokens, op.heads, state.head_dim)
    return out.reshape(sequences * tokens, -1)


class BatchInterpreter:
    """Runs one graph; each float tensor is loaded when an operation needs it and dropped afterwards.

    Raises:
        UnsupportedError: the graph reads features beside its ids.
    """

    def __init__(self, graph: Graph, load_tensor: LoadTensor) -> None:
        check_no_features(graph, "a calibration of weights")
        self.graph = graph
        self.load_tensor = load_tensor
        self._last_uses = graph.last_uses()
        kinds = {op.kind for op in graph.operations} - {Attention.kind, Linear.kind}
        self._run = {kind: load("edgedec.reference.float_profile.ops", kind).run for kind in kinds}

    def start(self, ids: NDArray[np.int32], first: int = 0, rows: NDArray[np.int32] | None = None) -> dict[str, Array]:
        """Return the input values of a pass over ids int32 [B, T] at positions from ``first`` on."""
        positions = np.tile(np.arange(first, first + ids.shape[1], dtype=np.int32), len(ids))
        if rows is None:
            rows = np.arange(ids.size, dtype=np.int32)
        return {"ids": ids.reshape(-1), "positions": positions, "rows": rows}

    def apply(self, op: Operation, values: dict[str, Array], sequences: int, cache: BatchCache | None = None) -> None:
        """Compute one operation from ``values`` into ``values``."""
        inputs = [values[name] for name in op.inputs]
        if isinstance(op, Attention):
            q, k, v = inputs
            values[op.outputs[0]] = _attend(op, self.graph.states[op.state], q, k, v, sequences, cache)
        elif isinstance(op, Linear):
            for output, weight, bias in zip(op.outputs, op.weights, op.biases, strict=True):
                shift = self.load_tensor(bias) if bias else np.float32(0)
                values[output] = soft_capped(inputs[0] @ self.load_tensor(weight).T + shift, op.soft_cap)
        elif (state := self.graph.recurrent.get(getattr(op, "state", ""))) is not None:
            caches = (cache or BatchCache(sequences=sequences, positions=0)).advancing(state)
            values[op.outputs[0]] = np.concatenate(
                [
                    self._advance(op, [part.reshape(sequences, -1, part.shape[1])[at] for part in inputs], one)
                    for at, one in enumerate(caches)
                ]
            )
        else:
            outputs = self._run[op.kind](op, inputs, self._context(FloatCache({})))
            values.update(zip(op.outputs, outputs, strict=True))

    def _context(self, cache: FloatCache) -> FloatPassContext:
        return FloatPassContext(
            weights=lambda name: FloatWeight(values=self.load_tensor(name)),
            cache=cache,
            visible=np.zeros((0, 0), np.bool_),
            positions=np.zeros(0, np.int32),
            embeds=None,
        )

    def _advance(self, op: Operation, inputs: list[F32], cache: FloatCache) -> F32:
        """Compute an operation with a recurrent state for the rows of one sequence, and keep its state."""
        rows = np.arange(len(inputs[0]), dtype=np.int32)
        cache.begin(rows, np.tri(len(rows), dtype=np.bool_))
        (out,) = self._run[op.kind](op, inputs, self._context(cache))
        cache.commit(rows)
        result: F32 = out
        return result

    def drop_dead(self, index: int, *environments: dict[str, Array]) -> None:
        """Drop the values that no operation after ``index`` reads."""
        for values in environments:
            for name in [name for name in values if self._last_uses.get(name, index + 1) <= index]:
                del values[name]

    def logits(
        self,
        ids: NDArray[np.int32],
        cache: BatchCache | None = None,
        rows: NDArray[np.int32] | None = None,
        *,
        report: Callable[[float], None] | None = None,
    ) -> F32:
        """Return the logits float32 [len(rows), vocab] for ids int32 [B, T]. A cache grows by T positions.

        ``report`` is called after each operation with the share of the operations that are done.
        """
        values = self.start(ids, cache.length if cache else 0, rows)
        for index, op in enumerate(self.graph.operations):
            self.apply(op, values, len(ids), cache)
            self.drop_dead(index, values)
            if report is not None:
                report((index + 1) / len(self.graph.operations))
        if cache is not None:
            cache.length += ids.shape[1]
        return values[self.graph.outputs[0]]
