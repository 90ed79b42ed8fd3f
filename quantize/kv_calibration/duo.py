"""Find the heads that need the whole context by training a gate for each, and write the calibrated bundle.

Source: 2410.10819 (DuoAttention). The loss is the distance between the last hidden states with gates and without on tokens
that can only be recalled, plus the sum of the gates, so that a gate stays open only where recall needs it.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from edgedec.bundle.atomic import check_folder
from edgedec.bundle.bundle import Bundle
from edgedec.bundle.manifest import MANIFEST
from edgedec.calibrated_bundle import weights_sha256, write_calibrated
from edgedec.errors import EdgedecError, UsageError
from edgedec.families import context_size
from edgedec.kv.policies.duo import DuoPolicy
from edgedec.progress import Progress, silent
from edgedec.quantize.kv_calibration.gates import GatedModel
from edgedec.quantize.kv_calibration.models import calibration_graph
from edgedec.quantize.kv_calibration.texts import recall_texts

__all__ = ["DuoOptions", "DuoReport", "calibrate_duo", "find_gates", "streaming_heads"]

log = logging.getLogger(__name__)

MOST_STEPS = 10_000
LEAST_CONTEXT = 64  # positions; a shorter text has no beginning that its end could recall
_WINDOWS, _LEAST_WINDOW = 64, 32  # the usual window is this part of the context, and no less than this
_USUAL_SINKS = 16  # a block of the CPU's cache
_SPANS = 12  # a training text is as long as this number of windows, within these limits
_LEAST_TOKENS, _MOST_TOKENS = 1024, 4096
_RATE, _GATES_WEIGHT = 0.05, 0.05  # peak learning rate, and weight of the sum of the gates


@dataclass(frozen=True, kw_only=True)
class DuoOptions:
    """Options of a calibration.

    Members:
        sinks: first positions that streaming heads see; None: 16.
        window: last positions that they see; None: a 64th of the context, but at least 32.
        share: share of the heads that keep all rows, rounded up to whole heads.
        threshold: least gate of a head that keeps all rows, in place of ``share``; None: the share counts.
        seed: seed of the texts.
        steps: optimizer steps, with a text each.

    Raises:
        UsageError: a number is out of range.
    """

    sinks: int | None = None
    window: int | None = None
    share: float = 0.5
    threshold: float | None = None
    seed: int = 0
    steps: int = 120

    def __post_init__(self) -> None:
        if self.sinks is not None and self.sinks < 0:
            raise UsageError(f"--sinks must be 0 or more, not {self.sinks}")
        if self.window is not None and self.window < 1:
            raise UsageError(f"--window must be at least 1, not {self.window}")
        if not 0 <= self.share <= 1:
            raise UsageError(f"--share must be 0 to 1, not {self.share}")
        if self.threshold is not None and not 0 <= self.threshold <= 1:
            raise UsageError(f"--threshold must be 0 to 1, not {self.threshold}")
        if not 1 <= self.steps <= MOST_STEPS:
            raise UsageError(f"--steps must be 1 to {MOST_STEPS}, not {self.steps}")

    def visible(self, context: int) -> tuple[int, int]:
        """Return sinks and window for a model of ``context`` positions.

        Raises:
            UsageError: together they are not less than the context.
        """
        window = max(_LEAST_WINDOW, context // _WINDOWS) if self.window is None else self.window
        sinks = _USUAL_SINKS if self.sinks is None else self.sinks
        if window >= context:
            raise UsageError(f"--window must be less than the model's context of {context}, not {window}")
        if sinks + window >= context:
            raise UsageError(
                f"--sinks {sinks} and a window of {window} do not fit the model's context of {context}; together they must "
                "be less"
            )
        return sinks, window


@dataclass(frozen=True, kw_only=True)
class DuoReport:
    """Result of a calibration.

    Members:
        policy: the policy that was written.
        gates: trained gates [kv_heads] of each state, 0 to 1.
        distance: mean distance of the hidden states with the heads as they were chosen, relative to their size; 0: none.
        length: tokens of the longest training text.
        seconds: duration.
    """

    policy: DuoPolicy
    gates: Mapping[str, NDArray[np.float32]]
    distance: float
    length: int
    seconds: float


def streaming_heads(
    gates: Mapping[str, NDArray[np.float32]], *, share: float, threshold: float | None = None
) -> dict[str, tuple[int, ...]]:
    """Return the heads that stream, by state: those with the least gates.

    Args:
        gates: gates [kv_heads] of each state.
        share: share of the heads that keep all rows, rounded up to whole heads; of equal gates the first ones count.
        threshold: least gate of a head that keeps all rows, in place of ``share``.
    """
    every = [(-float(gate), at, name, head) for at, name in enumerate(gates) for head, gate in enumerate(gates[name])]
    if threshold is None:
        kept = {(name, head) for *_, name, head in sorted(every)[: math.ceil(share * len(every))]}
    else:
        kept = {(name, head) for gate, _, name, head in every if -gate >= threshold}
    return {name: tuple(head for head in range(len(own)) if (name, head) not in kept) for name, own in gates.items()}


def calibrate_duo(
    bundle: Bundle, output: Path, options: DuoOptions, *, threads: int = 0, progress: Progress = silent
) -> DuoReport:
    """Calibrate a bundle and write it with its policy to ``output``, completely or not at all.

    Args:
        bundle: the bundle; a policy that it has is replaced.
        threads: number of threads; 0: one for each core.
        progress: called after each step.

    Raises:
        UsageError: an option does not fit the model, which may have no attention that sees everything; or ``output`` is
            there and is no bundle.
        UnsupportedError: an operation has no torch form.
        BundleError: the bundle is damaged, or has changed since it was opened.
        EdgedecError: the loss is not finite, or the disk is full.
    """
    began = time.monotonic()
    graph = calibration_graph(bundle)
    context = context_size(bundle.config)
    if context < LEAST_CONTEXT:
        raise UsageError(f"{bundle.path}: a context of {context} positions is too short to be calibrated")
    sinks, window = options.visible(context)
    check_folder(output, MANIFEST)
    torch.set_num_threads(threads or os.cpu_count() or 1)
    length = min(context, max(_LEAST_TOKENS, min(_MOST_TOKENS, _SPANS * (sinks + window))))
    model = GatedModel(graph, positions=length, sinks=sinks, window=window)
    model.model.fill(lambda name: np.array(bundle.weight(name).dense()))  # a copy: floats are views of the file
    gates = find_gates(model, bundle, length, options, progress)
    streaming = streaming_heads(gates, share=options.share, threshold=options.threshold)
    policy = DuoPolicy(weights_sha256=weights_sha256(bundle), sinks=sinks, window=window, streaming=streaming)
    distance = _distance(model, bundle, length, options, streaming)
    write_calibrated(bundle, output, policy)
    return DuoReport(policy=policy, gates=gates, distance=distance, length=length, seconds=time.monotonic() - began)


def find_gates(
    model: GatedModel, bundle: Bundle, length: int, options: DuoOptions, progress: Progress = silent
) -> dict[str, NDArray[np.float32]]:
    """Train the gates of a model, and return them.

    Raises:
        EdgedecError: the loss is not finite.
    """
    text_of = recall_texts(bundle, length, options.seed)
    gates = list(model.gates.values())
    count = sum(len(gate) for gate in gates)
    optimizer = torch.optim.Adam(gates, lr=_RATE)
    for step in range(options.steps):
        text = text_of(step)
        ids, rows = torch.from_numpy(text.ids)[None], torch.from_numpy(text.rows)
        distance = _relative(model, ids, rows)
        loss = distance + _GATES_WEIGHT * sum((gate.abs().sum() for gate in gates), torch.zeros(())) / count
        if not torch.isfinite(loss):
            raise EdgedecError(f"{bundle.path}: the distance of the hidden states is not finite at step {step}")
        optimizer.param_groups[0]["lr"] = _RATE * (1 - step / options.steps)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for gate in gates:
                gate.clamp_(0, 1)
        log.debug("step %s: distance %.4f, loss %.4f", step, distance.item(), loss.item())
        progress("step", step + 1, options.steps)
    return {name: gate.detach().numpy().copy() for name, gate in model.gates.items()}


def _relative(model: GatedModel, ids: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return the mean squared distance of hidden states with gates from those without, relative to the latter."""
    with torch.no_grad():
        whole = model(ids, rows, is_open=True)
    return (model(ids, rows) - whole).square().sum() / whole.square().sum()


@torch.no_grad()
def _distance(
    model: GatedModel, bundle: Bundle, length: int, options: DuoOptions, streaming: Mapping[str, tuple[int, ...]]
) -> float:
    """Return the distance on a text after the training's, with gates that are open or closed, as the heads were chosen."""
    for name, gate in model.gates.items():
        gate.copy_(torch.tensor([float(head not in streaming[name]) for head in range(len(gate))]))
    text = recall_texts(bundle, length, options.seed)(options.steps)
    return float(_relative(model, torch.from_numpy(text.ids)[None], torch.from_numpy(text.rows)))
