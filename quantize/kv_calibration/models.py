"""The models that calibrations run: without their policy, without their head, and with attention that a calibration sees."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from edgedec.bundle.bundle import Bundle
from edgedec.errors import UnsupportedError, UsageError
from edgedec.families import build_graph
from edgedec.graph.graph import Graph, KvState
from edgedec.graph.ops import Attention
from edgedec.kv.policy import KV_POLICY
from edgedec.quantize.distil.torch_graph import AttentionStep, TorchGraph

__all__ = ["Visit", "calibration_graph", "headless", "tapped_model", "visited_model"]

# A function that sees an attention's rotated queries [heads, n, head_dim] and keys [kv_heads, n, head_dim] of a text.
Visit = Callable[[Attention, KvState, Tensor, Tensor], None]


def calibration_graph(bundle: Bundle) -> Graph:
    """Return the graph of a bundle without its policy.

    Raises:
        UsageError: no layer sees all positions.
        UnsupportedError: the model has recurrent states.
        BundleError: the bundle's tensors do not fit its configuration.
    """
    graph = build_graph({key: value for key, value in bundle.config.items() if key != KV_POLICY})
    bundle.check(graph)
    if all(state.window is not None for state in graph.states.values()):
        raise UsageError(
            f"{bundle.path}: no layer has attention that sees all positions, so there is nothing to calibrate"
        )
    if graph.recurrent:
        raise UnsupportedError(f"{bundle.path}: models with recurrent states cannot be calibrated")
    return graph


def headless(graph: Graph) -> Graph:
    """Return a graph that ends with the value that its head reads, the last hidden states."""
    *body, head = graph.operations
    weights = {name for op in body for name in op.weight_names}
    return replace(
        graph,
        operations=tuple(body),
        outputs=(head.inputs[0],),
        weights={name: spec for name, spec in graph.weights.items() if name in weights},
    )


class _VisitedAttention(AttentionStep):
    def __init__(self, op: Attention, state: KvState, visit: Visit) -> None:
        super().__init__(op, state)
        self._visit = visit

    def mixed(self, q: Tensor, k: Tensor, v: Tensor, first: int) -> Tensor:
        if self.state.window is None:
            self._visit(self.op, self.state, q[0], k[0, :: self.op.heads // self.state.kv_heads])
        return super().mixed(q, k, v, first)


def visited_model(bundle: Bundle, positions: int, visit: Visit) -> Callable[[Tensor], None]:
    """Return a function that runs a text, int64 [n], and calls ``visit`` for each state that sees all positions.

    Raises:
        UsageError, UnsupportedError, BundleError: see ``calibration_graph``; or an operation has no torch form.
    """
    model = TorchGraph(
        headless(calibration_graph(bundle)),
        positions=positions,
        attention=lambda op, state: _VisitedAttention(op, state, visit),
    )
    model.fill(lambda name: np.array(bundle.weight(name).dense()))  # a copy: floats are views of the file

    @torch.no_grad()
    def run(ids: Tensor) -> None:
        model(ids[None])

    return run


def tapped_model(bundle: Bundle, positions: int, names: tuple[str, ...]) -> Callable[[Tensor], Mapping[str, Tensor]]:
    """Return a function that runs a text, int64 [n], and returns the values of these names, [n, width].

    Raises:
        UsageError, UnsupportedError, BundleError: see ``calibration_graph``; or an operation has no torch form.
    """
    model = TorchGraph(headless(calibration_graph(bundle)), positions=positions)
    model.fill(lambda name: np.array(bundle.weight(name).dense()))  # a copy: floats are views of the file

    @torch.no_grad()
    def run(ids: Tensor) -> Mapping[str, Tensor]:
        return {name: value[0] for name, value in model(ids[None], taps=names)[1].items()}

    return run
