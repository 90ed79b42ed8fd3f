"""Calibrate a model: find absolute maxima of values over some text, in the float profile. This is deterministic."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle.bundle import Bundle
from edgedec.bundle.manifest import Tokens
from edgedec.errors import UnsupportedError, UsageError
from edgedec.families import context_size
from edgedec.graph.graph import Graph
from edgedec.graph.ops import Attention, CausalConv, GatedDeltaRule, GatedRmsNorm, Linear, Rope, SelectiveScan
from edgedec.progress import Progress, silent
from edgedec.reference.float_profile.model import ReferenceModel
from edgedec.reference.float_profile.ops.rope import pair_columns, tables
from edgedec.reference.integer_profile.calibration import Calibration
from edgedec.reference.integer_profile.model import profile_graph
from edgedec.reference.integer_profile.site import divides, in_residual
from edgedec.schemes import Weight

__all__ = ["calibrate", "calibrate_graph", "default_windows"]

I32 = NDArray[np.int32]
Reach = tuple[NDArray[np.float64], NDArray[np.float64]]  # smallest and largest value of each column

_ROWS_PER_PASS = 64
_PLACES = 64  # positions of the context at which a rotated value is evaluated
_TEXTS, _TEXT_TOKENS = 2, 160  # texts sampled from the model itself
_SHUFFLES, _SHUFFLE_TOKENS = 8, 48  # uniform draws from the vocabulary; rare ids give larger values than common ones


def _observed(graph: Graph) -> list[str]:
    """Return the names of the values to measure.

    They are the residual, outputs of linears, convolutions, scans and gated norms, normed heads, and inputs of attention.
    """
    observed: dict[str, None] = {}
    readers = graph.readers()
    for op in graph.operations:
        plain = in_residual(op) or isinstance(op, Linear | CausalConv | SelectiveScan | GatedRmsNorm)
        if plain or divides(op, readers.get(op.outputs[0], ())):
            observed.update(dict.fromkeys(name for name in op.outputs if name not in graph.outputs))
        if isinstance(op, Attention):
            observed.update(dict.fromkeys(op.inputs))
    return list(observed)


def _turned(op: Rope, x: NDArray[np.float32], places: I32) -> Reach:
    """Return the smallest and largest value of each column of x [n, heads * head_dim], rotated to any of the places."""
    heads = x.reshape(len(x), op.heads, op.head_dim).astype(np.float64)
    first, second = pair_columns(op)
    turned, reach = heads.copy(), _nothing(op.heads * op.head_dim)
    for cos, sin in zip(*tables(op, places), strict=True):
        turned[first] = heads[first] * cos - heads[second] * sin
        turned[second] = heads[second] * cos + heads[first] * sin
        reach = _joined(reach, _reach(turned))
    return reach


def _nothing(columns: int) -> Reach:
    return np.full(columns, np.inf), np.full(columns, -np.inf)


def _reach(x: NDArray[Any]) -> Reach:
    rows = x.reshape(len(x), -1).astype(np.float64)
    return rows.min(axis=0), rows.max(axis=0)


def _joined(a: Reach, b: Reach) -> Reach:
    return np.minimum(a[0], b[0]), np.maximum(a[1], b[1])


def _summary(graph: Graph, reaches: Mapping[str, Reach], tokens: int) -> Calibration:
    """Return the calibration of measured values.

    Keys are relative to the middle of each column, because a constant that is added to all keys does not change a softmax.
    Queries and values have a maximum per column, and other values have one maximum.
    """
    attentions = [op for op in graph.operations if isinstance(op, Attention)]
    keys = {op.inputs[1] for op in attentions}
    columns = {name for op in attentions for name in op.inputs}
    maxima, middles = {}, {}
    for name, (low, high) in reaches.items():
        if name in keys:
            maxima[name], middles[name] = (high - low) / 2, (high + low) / 2
        else:
            most = np.maximum(high, -low)
            maxima[name] = most if name in columns else most.max(keepdims=True)
    as_tuples = [{name: tuple(map(float, x)) for name, x in part.items()} for part in (maxima, middles)]
    return Calibration(maxima=as_tuples[0], middles=as_tuples[1], tokens=tokens)


def calibrate_graph(
    graph: Graph,
    weights: Callable[[str], Weight],
    windows: Sequence[I32],
    *,
    context: int,
    progress: Progress = silent,
) -> Calibration:
    """Return the maxima over windows of ids, each read from position 0.

    Rotated values are evaluated as if each row were at many positions of the context, because slow pairs reach values that
    short windows do not show.

    Args:
        graph: graph with its quantize points.
        weights: returns a weight by its name.
        windows: int32 ids of each window.
        context: number of positions of the context.

    Raises:
        UsageError: the windows have no id.
        UnsupportedError: a value is NaN or infinity.
    """
    total = sum(map(len, windows))
    if not total:
        raise UsageError("calibration needs at least one token id")
    model, observed, done = ReferenceModel(graph, weights), _observed(graph), 0
    states = [op.state for op in graph.operations if isinstance(op, GatedDeltaRule | SelectiveScan)]
    rotations = {op.outputs[0]: op for op in graph.operations if isinstance(op, Rope)}
    taps = {name: rotations[name].inputs[0] if name in rotations else name for name in observed}
    places = np.arange(0, max(context, 1), max(1, context // _PLACES), dtype=np.int32)
    reaches: dict[str, Reach] = {}
    for window in windows:
        cache = model.new_cache()
        for start in range(0, len(window), _ROWS_PER_PASS):
            chunk = window[start : start + _ROWS_PER_PASS]
            last = np.array([len(chunk) - 1], np.int32)
            _, seen = model.forward(chunk, cache, rows=last, taps=tuple(set(taps.values())))
            for state in states:
                most = np.array([max(np.abs(after).max(initial=0.0) for after in cache.after(state))], np.float64)
                reaches[state] = _joined(reaches.get(state, _nothing(1)), (-most, most))
            cache.commit(np.arange(len(chunk), dtype=np.int32))
            for name in observed:
                x = seen[taps[name]]
                if not np.isfinite(x).all():
                    raise UnsupportedError(f"{name} is not finite on the calibration text; check the checkpoint")
                reach = _turned(rotations[name], x, places) if name in rotations else _reach(x)
                reaches[name] = _joined(reaches.get(name, reach), reach)
            done += len(chunk)
            progress("calibration tokens", done, total)
    return _summary(graph, reaches, total)


def calibrate(bundle: Bundle, windows: Sequence[I32] | None = None, *, progress: Progress = silent) -> Calibration:
    """Calibrate a bundle's model. Without windows, use text that the model itself generates, and shuffled ids.

    Raises:
        BundleError, UnsupportedError: the bundle cannot be run in the float profile.
    """
    graph = profile_graph(bundle)
    kept = {name: bundle.weight(name) for name in graph.weights}
    context = context_size(bundle.config)
    if windows is None:
        windows = default_windows(graph, kept.__getitem__, bundle.tokens, context=context, progress=progress)
    return calibrate_graph(graph, kept.__getitem__, windows, context=context, progress=progress)


def default_windows(
    graph: Graph, weights: Callable[[str], Weight], tokens: Tokens, *, context: int, progress: Progress = silent
) -> list[I32]:
    """Return text that the float profile samples, and shuffled ids. They are the same for the same model.

    Source: LLM-QAT (2305.17888): a model's own text calibrates it about as well as its training data.
    """
    rng = np.random.default_rng(0)
    model, texts = ReferenceModel(graph, weights), []
    length = min(_TEXT_TOKENS, context)
    for text in range(_TEXTS):
        texts.append(_sample(model, tokens, length, rng))
        progress("sampled tokens", length * (text + 1), length * _TEXTS)
    first = [] if tokens.bos is None else [tokens.bos]
    for _ in range(_SHUFFLES):
        ids = rng.permutation(tokens.size)[: min(_SHUFFLE_TOKENS, context) - len(first)]
        texts.append(np.array([*first, *ids], np.int32))
    return texts


def _sample(model: ReferenceModel, tokens: Tokens, length: int, rng: np.random.Generator) -> I32:
    """Return ``length`` ids that begin with BOS or a random id, and continue after an end token."""
    cache, ids = model.new_cache(), np.empty(length, np.int32)
    ids[0] = rng.integers(tokens.size) if tokens.bos is None else tokens.bos
    for at in range(1, length):
        logits = model.forward(ids[at - 1 : at], cache)[0][0, : tokens.size].astype(np.float64)
        cache.commit(np.zeros(1, np.int32))
        ids[at] = (logits + rng.gumbel(size=tokens.size)).argmax()  # Gumbel-max: a draw from softmax(logits)
    return ids
