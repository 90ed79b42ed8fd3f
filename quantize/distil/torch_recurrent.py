"""Torch forms of the operations whose state does not grow: a short convolution, delta nets and state spaces.

Their sums are float32 under autocast too: a state is a sum over all rows before it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import reduce
from operator import add

import torch
from torch import Tensor, nn
from torch.nn import functional

from edgedec.graph.ops import CausalConv, GatedDeltaRule, SelectiveScan
from edgedec.quantize.distil import chunked
from edgedec.quantize.distil.torch_step import TorchCache, TorchStep

__all__ = ["CausalConvStep", "GatedDeltaRuleStep", "SelectiveScanStep"]

_LEAST_SQUARE = 1e-6  # addend that keeps the length of a vector of zeros above zero, the reference's
_STEPS = (1e-3, 1e-1)  # range of the first step sizes, which are drawn uniformly on a logarithmic scale
_LARGEST_RATE = 16.0  # largest of the first decay rates


def _draw_decay(decay: Tensor, step_bias: Tensor, generator: torch.Generator) -> None:
    """Draw decay rates and step sizes as the authors of Mamba 2 do, and those of gated delta nets after them."""
    decay.uniform_(1e-3, _LARGEST_RATE, generator=generator).log_()
    low, high = map(math.log, _STEPS)
    sizes = torch.empty_like(step_bias).uniform_(low, high, generator=generator).exp()
    step_bias.copy_(sizes + torch.log(-torch.expm1(-sizes)))  # the inverse of softplus


class CausalConvStep(TorchStep):
    def __init__(self, op: CausalConv, weight: nn.Parameter, bias: nn.Parameter | None) -> None:
        super().__init__(op)
        self.op, self.weight, self.bias = op, weight, bias

    def take(self, values: Mapping[str, Tensor], first: int, cache: TorchCache | None) -> tuple[Tensor, ...]:
        x = values[self.inputs[0]].float()  # [batch, n, channels]
        taps = self.weight[:, 0].unbind(-1)
        before = None if cache is None else cache.recurrent.get(self.op.state)
        if before is None:
            before = x.new_zeros((x.shape[0], len(taps) - 1, x.shape[2]))
        seen = torch.cat((before, x), 1)
        if cache is not None:
            cache.recurrent[self.op.state] = seen[:, x.shape[1] :]
        total = reduce(add, (tap * seen[:, at : at + x.shape[1]] for at, tap in enumerate(taps)))
        return (functional.silu(total if self.bias is None else total + self.bias),)

    @torch.no_grad()
    def draw(self, generator: torch.Generator) -> None:
        bound = self.weight.shape[-1] ** -0.5  # torch's own range for a convolution of single channels
        self.weight.uniform_(-bound, bound, generator=generator)


class GatedDeltaRuleStep(TorchStep):
    def __init__(self, op: GatedDeltaRule, decay: nn.Parameter, step_bias: nn.Parameter) -> None:
        super().__init__(op)
        self.op, self.decay, self.step_bias = op, decay, step_bias

    def take(self, values: Mapping[str, Tensor], first: int, cache: TorchCache | None) -> tuple[Tensor, ...]:
        q, k, v, rate, step = (values[name].float() for name in self.inputs)
        with torch.autocast(v.device.type, enabled=False):
            q, k = (_unit(_heads(x, self.op.key_heads)) for x in (q, k))
            shared = self.op.heads // self.op.key_heads
            q, k = (x.repeat_interleave(shared, dim=1) for x in (q * q.shape[-1] ** -0.5, k))
            decay = -self.decay.exp() * functional.softplus(step + self.step_bias)
            out, state = chunked.gated_delta_rule(
                q,
                k,
                _heads(v, self.op.heads),
                decay.transpose(1, 2),
                rate.sigmoid().transpose(1, 2),
                None if cache is None else cache.recurrent.get(self.op.state),
            )
        if cache is not None:
            cache.recurrent[self.op.state] = state
        return (out.transpose(1, 2).flatten(2),)

    @torch.no_grad()
    def draw(self, generator: torch.Generator) -> None:
        _draw_decay(self.decay, self.step_bias, generator)


class SelectiveScanStep(TorchStep):
    def __init__(self, op: SelectiveScan, decay: nn.Parameter, skip: nn.Parameter, step_bias: nn.Parameter) -> None:
        super().__init__(op)
        self.op, self.decay, self.skip, self.step_bias = op, decay, skip, step_bias

    def take(self, values: Mapping[str, Tensor], first: int, cache: TorchCache | None) -> tuple[Tensor, ...]:
        x, b, c, step = (values[name].float() for name in self.inputs)
        with torch.autocast(x.device.type, enabled=False):
            x = _heads(x, self.op.heads)
            shared = self.op.heads // self.op.groups
            b, c = (_heads(part, self.op.groups).repeat_interleave(shared, dim=1) for part in (b, c))
            sizes = functional.softplus(step + self.step_bias).clamp(*self.op.step_limits)
            decay, sizes = (part.transpose(1, 2) for part in (-self.decay.exp() * sizes, sizes))
            before = None if cache is None else cache.recurrent.get(self.op.state)
            out, state = chunked.selective_scan(sizes[..., None] * x, b, c, decay, before)
            out = out + self.skip[:, None, None] * x
        if cache is not None:
            cache.recurrent[self.op.state] = state
        return (out.transpose(1, 2).flatten(2),)

    @torch.no_grad()
    def draw(self, generator: torch.Generator) -> None:
        _draw_decay(self.decay, self.step_bias, generator)


def _heads(x: Tensor, heads: int) -> Tensor:
    """Return x [batch, n, heads * width] as [batch, heads, n, width]."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def _unit(x: Tensor) -> Tensor:
    return x * (x.square().sum(-1, keepdim=True) + _LEAST_SQUARE).rsqrt()
