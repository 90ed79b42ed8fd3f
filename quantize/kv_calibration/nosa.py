"""Fit the importance of keys, and write the calibrated bundle. Source: 2510.13602 (NOSA), whose importance is trained.

The importance of a key is a linear function of the squares of its elements, which a rotation changes in pairs only, so that
both elements of a pair have one weight. It is fitted, by least squares, to the logarithm of the weight that later queries
give the key, relative to the mean weight of the keys that they see.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgedec.bundle.atomic import check_folder
from edgedec.bundle.bundle import Bundle
from edgedec.bundle.manifest import MANIFEST
from edgedec.calibrated_bundle import weights_sha256, write_calibrated
from edgedec.families import context_size
from edgedec.graph.graph import Graph, KvState
from edgedec.graph.ops import Attention, Rope
from edgedec.kv.policies.nosa import NosaPolicy
from edgedec.progress import Progress, silent
from edgedec.quantize.kv_calibration.double_sparsity import SelectionOptions, SelectionReport, calibrated_selections
from edgedec.quantize.kv_calibration.models import calibration_graph, visited_model
from edgedec.quantize.kv_calibration.texts import recall_texts

__all__ = ["calibrate_nosa", "fitted_importance", "relative_weights"]

_MOST_TOKENS = 1024  # length of a text, whose attention is held as a matrix
_LEAST_LATER = 32  # later queries, without recent ones, over which the weight of a key is a mean
_LEAST_WEIGHT = 1e-4  # added to a relative weight before its logarithm is taken
_RIDGE = 1e-3  # part of the mean square of a feature that is added to its square
_SPREAD = 40.0  # codes of a standard deviation of the importance


@dataclass(kw_only=True)
class _Fit:
    """The sums of a least-squares fit for each head: of products of features, of features and targets, and of targets."""

    features: NDArray[np.float64]  # [kv_heads, groups + 1, groups + 1]; the last feature is 1
    targets: NDArray[np.float64]  # [kv_heads, groups + 1]
    squares: NDArray[np.float64]  # [kv_heads], of the targets
    groups: NDArray[np.int64] = field(repr=False)  # [head_dim], group of each dimension

    def add(self, keys: Tensor, targets: Tensor) -> None:
        """Add keys [kv_heads, n, head_dim] and their targets [kv_heads, n]."""
        count = self.features.shape[1] - 1
        x = torch.zeros(*keys.shape[:2], count + 1, dtype=torch.float64)
        x[..., -1] = 1
        x.index_add_(2, torch.from_numpy(self.groups), keys.double().square())
        self.features += (x.transpose(1, 2) @ x).numpy()
        self.targets += (x.transpose(1, 2) @ targets[..., None])[..., 0].numpy()
        self.squares += targets.square().sum(1).numpy()

    def solve(self) -> tuple[tuple[tuple[float, ...], ...], float]:
        """Return the importance of each head, and the share of the variance that it explains."""
        lists, left, whole = [], 0.0, 0.0
        for square, target, total in zip(self.features, self.targets, self.squares, strict=True):
            rows, size = square[-1, -1], len(target) - 1
            ridge = np.diag([*(_RIDGE * np.diag(square)[:size] + 1e-9), 0.0])
            weights = np.linalg.solve(square + ridge, target)
            mean = square[-1] @ weights / rows
            spread = np.sqrt(max(weights @ square @ weights / rows - mean**2, 1e-12))
            left += total - 2 * weights @ target + weights @ square @ weights
            whole += total - target[-1] ** 2 / rows
            codes = weights * (_SPREAD / spread)
            offset = (weights[-1] - mean) * (_SPREAD / spread)
            lists.append(tuple(np.array([offset, *codes[:-1][self.groups]], np.float32).tolist()))
        return tuple(lists), float(1 - left / whole)


def _groups(graph: Graph, op: Attention, state: KvState) -> NDArray[np.int64]:
    """Return the group of each dimension of a head's keys: pairs that are rotated together, or a dimension alone."""
    makers = {name: made for made in graph.operations for name in made.outputs}
    turn, groups = makers.get(op.inputs[1]), np.arange(state.head_dim)
    if isinstance(turn, Rope):
        pairs = len(turn.inverse_frequencies)
        first, second = (
            (np.arange(pairs), np.arange(pairs, 2 * pairs))
            if turn.layout == "half"
            else (np.arange(0, 2 * pairs, 2), np.arange(1, 2 * pairs, 2))
        )
        groups[second] = first
    return np.unique(groups, return_inverse=True)[1].astype(np.int64)


def relative_weights(q: Tensor, k: Tensor, scale: float, recent: int) -> Tensor:
    """Return the mean weight that later queries give each key, times the number of keys that they see, [kv_heads, n].

    Args:
        q, k: queries [heads, n, head_dim] and keys [kv_heads, n, head_dim].
        scale: factor of the scores.
        recent: number of last keys of a query that do not count. Keys without enough later queries get NaN.
    """
    count, shared = q.shape[1], len(q) // len(k)
    at = torch.arange(count)
    scores = (q @ k.repeat_interleave(shared, 0).transpose(1, 2)).double() * scale
    weights = scores.masked_fill(at[None] > at[:, None], -torch.inf).softmax(-1) * (at + 1)[:, None]
    later = (at[None] <= at[:, None] - recent).double()
    means = (weights * later).sum(1) / later.sum(0)
    means[:, later.sum(0) < _LEAST_LATER] = torch.nan
    return means.unflatten(0, (len(k), shared)).mean(1)


def fitted_importance(
    bundle: Bundle, *, recent: int, seed: int = 0, texts: int = 8, progress: Progress = silent
) -> dict[str, tuple[tuple[tuple[float, ...], ...], float]]:
    """Return the importance of keys for each state that sees all positions, and the share of the variance that it explains.

    Raises:
        UsageError, UnsupportedError, BundleError: see ``visited_model``.
    """
    length = min(context_size(bundle.config), _MOST_TOKENS)
    graph, fits = calibration_graph(bundle), dict[str, _Fit]()

    def visit(op: Attention, state: KvState, q: Tensor, k: Tensor) -> None:
        groups = _groups(graph, op, state)
        size = int(groups.max()) + 2
        if state.name not in fits:
            fits[state.name] = _Fit(
                features=np.zeros((state.kv_heads, size, size)),
                targets=np.zeros((state.kv_heads, size)),
                squares=np.zeros(state.kv_heads),
                groups=groups,
            )
        weights = relative_weights(q, k, op.scale, recent)
        known = ~weights[0].isnan()
        fits[state.name].add(k[:, known], (weights[:, known] + _LEAST_WEIGHT).log())

    run, text_of = visited_model(bundle, length, visit), recall_texts(bundle, length, seed)
    for number in range(texts):
        run(torch.from_numpy(text_of(number).ids))
        progress("importance", number + 1, texts)
    return {name: fit.solve() for name, fit in fits.items()}


def calibrate_nosa(
    bundle: Bundle,
    output: Path,
    options: SelectionOptions,
    *,
    kept: int | None = None,
    threads: int = 0,
    progress: Progress = silent,
) -> SelectionReport:
    """Calibrate a bundle and write it with its policy to ``output``, completely or not at all.

    Args:
        bundle: the bundle; a policy that it has is replaced.
        kept: number of keys that are chosen by their importance; None: half of those that are chosen at all.
        threads: number of threads; 0: one for each core.
        progress: called after each text.

    Raises:
        UsageError: an option does not fit the model, which may have no attention that sees everything; or ``output`` is
            there and is no bundle.
        UnsupportedError: an operation has no torch form, or ``kept`` is out of range.
        BundleError: the bundle is damaged, or has changed since it was opened.
        EdgedecError: the disk is full.
    """
    began = time.monotonic()
    keys, sinks, recent = options.numbers(context_size(bundle.config))
    check_folder(output, MANIFEST)
    torch.set_num_threads(threads or os.cpu_count() or 1)
    plain, carried, length = calibrated_selections(bundle, options, progress=progress)
    found = fitted_importance(bundle, recent=recent, seed=options.seed, texts=options.texts, progress=progress)
    number = (keys - sinks - recent) // 2 if kept is None else kept
    selections = {
        name: replace(own, kept=number, importance=found[name][0] if number else ()) for name, own in plain.items()
    }
    policy = NosaPolicy(weights_sha256=weights_sha256(bundle), selections=selections)
    write_calibrated(bundle, output, policy)
    explained = {name: share for name, (_, share) in found.items()}
    shares = {"carried": carried, "explained": explained}
    return SelectionReport(policy=policy, shares=shares, length=length, seconds=time.monotonic() - began)
