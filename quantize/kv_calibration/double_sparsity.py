"""Find the channels by which queries choose keys, and write the calibrated bundle. Source: 2408.07092 (Double Sparsity).

The channels of a key/value head are those with the largest mean of |q_i * k_i| over the queries and the keys that they see,
in texts that nothing else is measured on. No gradient is needed, and the weights stay as they are.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgedec.bundle.atomic import check_folder
from edgedec.bundle.bundle import Bundle
from edgedec.bundle.manifest import MANIFEST
from edgedec.calibrated_bundle import weights_sha256, write_calibrated
from edgedec.errors import UsageError
from edgedec.families import context_size
from edgedec.graph.graph import KvState
from edgedec.graph.ops import Attention
from edgedec.graph.selection import LABEL_BITS, MOST_KEYS, Selection
from edgedec.kv.policies._selecting import SelectingPolicy
from edgedec.kv.policies.double_sparsity import DoubleSparsityPolicy
from edgedec.progress import Progress, silent
from edgedec.quantize.kv_calibration.models import visited_model
from edgedec.quantize.kv_calibration.texts import recall_texts

__all__ = [
    "ChannelStatistics",
    "SelectionOptions",
    "SelectionReport",
    "calibrate_double_sparsity",
    "calibrated_selections",
    "channel_statistics",
]

LEAST_CONTEXT = 64  # positions; in a shorter text there is nothing to choose
MOST_TEXTS = 1000
_KEYS, _LEAST_KEYS = 16, 32  # the usual number of keys is this part of the context, and no less than this
_SINKS, _RECENT = 4, 8  # usual number of sinks, and the part of the keys that are the last ones
_CHANNELS = 8  # a label has this part of the channels of a head
_MOST_TOKENS = 4096  # length of a text


@dataclass(frozen=True, kw_only=True)
class SelectionOptions:
    """Options of a calibration.

    Members:
        keys: keys that a query attends to; None: a 16th of the context, but at least 32.
        key_share: share of the keys that a query sees to which it attends, if they are more than ``keys``.
        sinks: first keys that are always among them; None: 4.
        recent: last keys that are always among them; None: an eighth of ``keys``.
        channels: channels of a label; None: an eighth of the head's.
        label_bits: bits of a code of a label, 8 or 4.
        seed: seed of the texts.
        texts: number of texts.

    Raises:
        UsageError: a number is out of range.
    """

    keys: int | None = None
    key_share: float = 0.0
    sinks: int | None = None
    recent: int | None = None
    channels: int | None = None
    label_bits: int = 4
    seed: int = 0
    texts: int = 8

    def __post_init__(self) -> None:
        for flag, value, least in (
            ("--keys", self.keys, 1),
            ("--sinks", self.sinks, 0),
            ("--recent", self.recent, 1),
            ("--channels", self.channels, 1),
        ):
            if value is not None and not least <= value <= MOST_KEYS:
                raise UsageError(f"{flag} must be {least} to {MOST_KEYS}, not {value}")
        if not 0 <= self.key_share <= 1:
            raise UsageError(f"--key-share must be 0 to 1, not {self.key_share}")
        if self.label_bits not in LABEL_BITS:
            raise UsageError(f"--label-bits must be 8 or 4, not {self.label_bits}")
        if not 1 <= self.texts <= MOST_TEXTS:
            raise UsageError(f"--texts must be 1 to {MOST_TEXTS}, not {self.texts}")

    def numbers(self, context: int) -> tuple[int, int, int]:
        """Return the numbers of keys, sinks and recent keys for a model of ``context`` positions.

        Raises:
            UsageError: sinks and recent keys leave none to choose.
        """
        keys = max(_LEAST_KEYS, context // _KEYS) if self.keys is None else self.keys
        sinks = _SINKS if self.sinks is None else self.sinks
        recent = max(1, keys // _RECENT) if self.recent is None else self.recent
        if keys <= sinks + recent:
            raise UsageError(
                f"--keys {keys} leaves none to choose beside {sinks} sinks and {recent} recent keys; raise it, or lower "
                "--sinks and --recent"
            )
        return keys, sinks, recent


@dataclass(frozen=True, kw_only=True)
class ChannelStatistics:
    """The channels of a state's heads.

    Members:
        products: mean |q_i * k_i| of each channel, float64 [kv_heads, head_dim].
        most: largest |k_i|, float64 [kv_heads, head_dim].
    """

    products: NDArray[np.float64]
    most: NDArray[np.float64]

    def selection(
        self, channels: NDArray[np.int64], *, keys: int, sinks: int, recent: int, bits: int, share: float
    ) -> Selection:
        """Return the choice of keys by channels [kv_heads, n]; steps make the largest element the largest code."""
        codes = 127 if bits == 8 else 7
        steps = np.maximum(np.take_along_axis(self.most, channels, axis=1) / codes, 1e-12).astype(np.float32)
        return Selection(
            keys=keys,
            sinks=sinks,
            recent=recent,
            bits=bits,
            share=share,
            channels=tuple(map(tuple, channels.tolist())),
            steps=tuple(map(tuple, steps.tolist())),
        )

    def largest(self, count: int) -> NDArray[np.int64]:
        """Return the ``count`` channels of each head with the largest products, ascending [kv_heads, count]."""
        return np.sort(np.argsort(-self.products, axis=1, kind="stable")[:, :count], axis=1)

    def carried(self, channels: NDArray[np.int64]) -> float:
        """Return the share of all products that these channels have."""
        return float(np.take_along_axis(self.products, channels, axis=1).sum() / max(self.products.sum(), 1e-30))


@dataclass(frozen=True, kw_only=True)
class SelectionReport:
    """Result of a calibration of a policy whose queries choose keys.

    Members:
        policy: the policy that was written.
        shares: shares by their name and by state: ``carried``, what the labels' channels have of the products of queries and
            keys; ``explained``, what the importance of keys explains of the variance of their weights; ``held``, what the
            directions of stored keys hold of their squares.
        length: tokens of the longest text.
        seconds: duration.
    """

    policy: SelectingPolicy
    shares: Mapping[str, Mapping[str, float]]
    length: int
    seconds: float

    def as_json(self, output: Path) -> dict[str, Any]:
        """Return the report of a bundle at ``output`` for JSON."""
        shares = {name: {state: round(share, 4) for state, share in own.items()} for name, own in self.shares.items()}
        return {
            "output": str(output),
            **self.policy.to_json(),
            **shares,
            "text_tokens": self.length,
            "seconds": round(self.seconds, 1),
        }


def channel_statistics(
    bundle: Bundle, *, seed: int = 0, texts: int = 8, progress: Progress = silent
) -> tuple[dict[str, ChannelStatistics], int]:
    """Run texts through a model, and return the channels of each state that sees all positions, and the longest text.

    Raises:
        UsageError: the model's context is too short, or it has no such state.
        UnsupportedError: an operation has no torch form.
        BundleError: the bundle is damaged.
    """
    context = context_size(bundle.config)
    if context < LEAST_CONTEXT:
        raise UsageError(f"{bundle.path}: a context of {context} positions is too short to be calibrated")
    length = min(context, _MOST_TOKENS)
    products, most, pairs = dict[str, Tensor](), dict[str, Tensor](), dict[str, int]()

    def visit(op: Attention, state: KvState, q: Tensor, k: Tensor) -> None:
        seen = k.double().abs()
        group = (
            q.double().abs().unflatten(0, (state.kv_heads, -1)).sum(1)
        )  # sums over the query heads of a key/value head
        product = (group * seen.cumsum(1)).sum(1)
        products[state.name] = products.get(state.name, torch.zeros(())) + product
        most[state.name] = torch.maximum(most.get(state.name, torch.zeros(())), seen.amax(1))
        pairs[state.name] = pairs.get(state.name, 0) + q.shape[1] * (q.shape[1] + 1) // 2 * (len(q) // state.kv_heads)

    run, text_of, longest = visited_model(bundle, length, visit), recall_texts(bundle, length, seed), 0
    for number in range(texts):
        ids = torch.from_numpy(text_of(number).ids)
        run(ids)
        longest = max(longest, len(ids))
        progress("text", number + 1, texts)
    found = {
        name: ChannelStatistics(products=(own / pairs[name]).numpy(), most=most[name].numpy())
        for name, own in products.items()
    }
    return found, longest


def calibrated_selections(
    bundle: Bundle, options: SelectionOptions, *, progress: Progress = silent
) -> tuple[dict[str, Selection], dict[str, float], int]:
    """Return the choice of keys for each state that sees all positions, what its channels carry, and the longest text.

    Raises:
        UsageError: an option does not fit the model.
        UnsupportedError, BundleError: see ``channel_statistics``.
    """
    keys, sinks, recent = options.numbers(context_size(bundle.config))
    statistics, length = channel_statistics(bundle, seed=options.seed, texts=options.texts, progress=progress)
    selections, carried = dict[str, Selection](), dict[str, float]()
    for name, own in statistics.items():
        head_dim = own.products.shape[1]
        count = max(1, head_dim // _CHANNELS) if options.channels is None else options.channels
        if count > head_dim:
            raise UsageError(f"--channels {count}: the heads of {name} have {head_dim} channels; give fewer")
        channels = own.largest(count)
        carried[name] = own.carried(channels)
        selections[name] = own.selection(
            channels, keys=keys, sinks=sinks, recent=recent, bits=options.label_bits, share=options.key_share
        )
    return selections, carried, length


def calibrate_double_sparsity(
    bundle: Bundle, output: Path, options: SelectionOptions, *, threads: int = 0, progress: Progress = silent
) -> SelectionReport:
    """Calibrate a bundle and write it with its policy to ``output``, completely or not at all.

    Args:
        bundle: the bundle; a policy that it has is replaced.
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
    selections, carried, length = calibrated_selections(bundle, options, progress=progress)
    policy = DoubleSparsityPolicy(weights_sha256=weights_sha256(bundle), selections=selections)
    write_calibrated(bundle, output, policy)
    return SelectionReport(policy=policy, shares={"carried": carried}, length=length, seconds=time.monotonic() - began)
