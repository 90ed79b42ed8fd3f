"""The base of the torch forms of operations, and the memory of a batch between its passes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from edgedec.graph.ops import Operation

__all__ = ["TorchCache", "TorchStep"]


@dataclass(kw_only=True)
class TorchCache:
    """Keys and values of a batch, per state [batch, kv_heads, positions, head_dim]; ``length`` positions are filled.

    ``recurrent`` has the states that do not grow, each [batch, ...].
    """

    positions: int
    length: int = 0
    rows: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    recurrent: dict[str, Tensor] = field(default_factory=dict)

    def append(self, state: str, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store new rows [batch, kv_heads, n, head_dim] and return all rows so far."""
        if state not in self.rows:
            shape = (*keys.shape[:2], self.positions, keys.shape[3])
            self.rows[state] = keys.new_zeros(shape), values.new_zeros(shape)
        end = self.length + keys.shape[2]
        for stored, new in zip(self.rows[state], (keys, values), strict=True):
            stored[:, :, self.length : end] = new
        return self.rows[state][0][:, :, :end], self.rows[state][1][:, :, :end]


class TorchStep(nn.Module):
    """One operation. ``take(values, first, cache)`` reads its inputs and returns its outputs."""

    def __init__(self, op: Operation) -> None:
        super().__init__()
        self.inputs, self.outputs = op.inputs, op.outputs

    def take(self, values: Mapping[str, Tensor], first: int, cache: TorchCache | None) -> tuple[Tensor, ...]:
        raise NotImplementedError

    @torch.no_grad()
    def draw(self, generator: torch.Generator) -> None:
        """Draw the weights whose first values are not those that ``TorchGraph.draw`` describes."""
