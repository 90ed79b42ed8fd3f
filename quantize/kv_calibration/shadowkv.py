"""Find the directions in which keys are stored, and write the calibrated bundle. Source: 2410.21465 (ShadowKV).

The directions of a key/value head are the right singular vectors of its keys before their rotation, those of the largest
singular values, over texts that nothing else is measured on. The paper takes them from the prompt. Then a text would depend
on the length of its prompt, and on the pieces in which it is read; keys of other texts lie in nearly the same directions.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from edgedec.bundle.atomic import check_folder
from edgedec.bundle.bundle import Bundle
from edgedec.bundle.manifest import MANIFEST
from edgedec.calibrated_bundle import weights_sha256, write_calibrated
from edgedec.errors import UsageError
from edgedec.families import context_size
from edgedec.graph.graph import Graph
from edgedec.graph.low_rank import KeyBasis
from edgedec.graph.ops import Attention, Rope
from edgedec.kv.policies.shadowkv import ShadowKvPolicy
from edgedec.progress import Progress, silent
from edgedec.quantize.kv_calibration.double_sparsity import SelectionOptions, SelectionReport, calibrated_selections
from edgedec.quantize.kv_calibration.models import calibration_graph, tapped_model
from edgedec.quantize.kv_calibration.texts import recall_texts

__all__ = ["calibrate_shadowkv", "key_bases", "key_moments"]

_MOST_TOKENS = 4096  # length of a text
_RANK = 3  # the usual rank is this part of the dimensions of a head

Moments = Mapping[
    str, NDArray[np.float64]
]  # by state: sums of products of keys' elements, [kv_heads, head_dim, head_dim]


def _plain_keys(graph: Graph) -> dict[str, str]:
    """Return for each state that sees all positions the value that has its keys before their rotation."""
    makers = {name: op for op in graph.operations for name in op.outputs}
    found = dict[str, str]()
    for op in graph.operations:
        if isinstance(op, Attention) and graph.states[op.state].window is None:
            maker = makers[op.inputs[1]]
            found[op.state] = maker.inputs[0] if isinstance(maker, Rope) else op.inputs[1]
    return found


def key_moments(bundle: Bundle, *, seed: int = 0, texts: int = 8, progress: Progress = silent) -> Moments:
    """Run texts through a model, and return the moments of the keys of each state that sees all positions.

    Raises:
        UsageError, UnsupportedError, BundleError: see ``calibration_graph``; or an operation has no torch form.
    """
    graph = calibration_graph(bundle)
    names, length = _plain_keys(graph), min(context_size(bundle.config), _MOST_TOKENS)
    run, text_of = tapped_model(bundle, length, tuple(names.values())), recall_texts(bundle, length, seed)
    sums = dict[str, NDArray[np.float64]]()
    for number in range(texts):
        values = run(torch.from_numpy(text_of(number).ids))
        for state, name in names.items():
            keys = values[name].double().unflatten(1, (graph.states[state].kv_heads, -1)).transpose(0, 1)
            sums[state] = sums.get(state, np.zeros(())) + (keys.transpose(1, 2) @ keys).numpy()
        progress("keys", number + 1, texts)
    return sums


def key_bases(moments: Moments, rank: int | None = None) -> tuple[dict[str, KeyBasis], dict[str, float]]:
    """Return the bases of ``rank`` directions, and the share of the squares of keys that they hold.

    Args:
        moments: result of ``key_moments``.
        rank: numbers of a stored key; None: a third of the dimensions of a head.

    Raises:
        UsageError: the rank is odd or not 2 to the dimensions of a head.
    """
    bases, shares = dict[str, KeyBasis](), dict[str, float]()
    for name, own in moments.items():
        size = own.shape[1]
        count = max(2, size // _RANK // 2 * 2) if rank is None else rank
        if not 2 <= count <= size or count % 2:
            raise UsageError(f"--rank must be even, 2 to {size}, the dimensions of a head of {name}, not {count}")
        squares, vectors = np.linalg.eigh(own)  # ascending
        bases[name] = KeyBasis.of(vectors[:, :, : -count - 1 : -1].transpose(0, 2, 1))
        shares[name] = float(squares[:, -count:].sum() / max(squares.sum(), 1e-30))
    return bases, shares


def calibrate_shadowkv(
    bundle: Bundle,
    output: Path,
    options: SelectionOptions,
    *,
    rank: int | None = None,
    threads: int = 0,
    progress: Progress = silent,
) -> SelectionReport:
    """Calibrate a bundle and write it with its policy to ``output``, completely or not at all.

    Args:
        bundle: the bundle; a policy that it has is replaced.
        options: options of the choice of keys.
        rank: numbers of a stored key; None: a third of the dimensions of a head.
        threads: number of threads; 0: one for each core.
        progress: called after each text.

    Raises:
        UsageError: an option does not fit the model, which may have no attention that sees everything; or ``output`` is
            there and is no bundle.
        UnsupportedError: an operation has no torch form.
        BundleError: the bundle is damaged, or has changed since it was opened.
        EdgedecError: the disk is full.
    """
    began = time.monotonic()
    check_folder(output, MANIFEST)
    torch.set_num_threads(threads or os.cpu_count() or 1)
    moments = key_moments(bundle, seed=options.seed, texts=options.texts, progress=progress)
    bases, held = key_bases(moments, rank)
    selections, carried, length = calibrated_selections(bundle, options, progress=progress)
    policy = ShadowKvPolicy(weights_sha256=weights_sha256(bundle), selections=selections, bases=bases)
    write_calibrated(bundle, output, policy)
    shares = {"carried": carried, "held": held}
    return SelectionReport(policy=policy, shares=shares, length=length, seconds=time.monotonic() - began)
