"""Attention whose key/value heads each have a gate between all rows and the rows of a window.

Source: 2410.10819, section 2.3: output = gate * full + (1 - gate) * streaming, with one gate for each key/value head.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from edgedec.graph.graph import Graph, KvState
from edgedec.graph.ops import Attention
from edgedec.quantize.distil.torch_graph import AttentionStep, TorchGraph, TorchStep
from edgedec.quantize.kv_calibration.models import headless

__all__ = ["GatedModel"]


class _GatedAttention(AttentionStep):
    """An attention with a gate [kv_heads] from 0, the window alone, to 1, all rows; ``is_open`` leaves the gates out."""

    def __init__(self, op: Attention, state: KvState, *, sinks: int, window: int) -> None:
        super().__init__(op, state)
        self.sinks, self.window, self.is_open = sinks, window, False
        self.gates = nn.Parameter(torch.ones(state.kv_heads))

    def mixed(self, q: Tensor, k: Tensor, v: Tensor, first: int) -> Tensor:
        whole = super().mixed(q, k, v, first)
        if self.is_open:
            return whole
        part = self.seen(q, k, v, first, window=self.window, sinks=self.sinks)
        gates = self.gates.repeat_interleave(self.op.heads // self.state.kv_heads)[:, None, None]
        return gates * whole + (1 - gates) * part


class GatedModel(nn.Module):
    """A model without its head, with a gate for each key/value head that sees all rows.

    ``forward(ids int64 [1, n], rows int64 [r])`` returns the last hidden states [r, width] of these rows, which the head
    would read. Weights have no gradients.

    Parameters:
        graph: a family's graph.
        positions: longest text.
        sinks, window: positions that a closed gate shows.

    Raises:
        UnsupportedError: an operation has no torch form.
    """

    def __init__(self, graph: Graph, *, positions: int, sinks: int, window: int) -> None:
        super().__init__()

        def attention(op: Attention, state: KvState) -> TorchStep:
            if state.window is not None:
                return AttentionStep(op, state)
            return _GatedAttention(op, state, sinks=sinks, window=window)

        self.model = TorchGraph(headless(graph), positions=positions, attention=attention)
        for weight in self.model.tensors.values():
            weight.requires_grad_(False)
        self._gated = {step.state.name: step for step in self.model.steps if isinstance(step, _GatedAttention)}

    @property
    def gates(self) -> dict[str, Tensor]:
        """Gates [kv_heads] of each state."""
        return {name: step.gates for name, step in self._gated.items()}

    def forward(self, ids: Tensor, rows: Tensor, *, is_open: bool = False) -> Tensor:
        for step in self._gated.values():
            step.is_open = is_open
        hidden, _ = self.model(ids)
        result: Tensor = hidden[0, rows]
        return result
