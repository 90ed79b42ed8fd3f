"""Run a model graph in torch, as teacher or student of a training.

Nothing here depends on the family. With ``ternary`` the linears, except the head and the narrow matrices that steer a delta
net, compute what a bundle of one plane computes: ternary weights and int8 activations, with straight-through gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from edgedec.errors import UnsupportedError
from edgedec.graph.graph import Graph, KvState, check_no_features
from edgedec.graph.ops import (
    Add,
    Attention,
    CausalConv,
    Concat,
    Embed,
    GatedActivation,
    GatedDeltaRule,
    GatedRmsNorm,
    Linear,
    Operation,
    RmsNorm,
    Rope,
    ScaleColumns,
    SelectiveScan,
    SelectRows,
    SigmoidGate,
    Split,
)
from edgedec.graph.passes import fuse_linears
from edgedec.quantize.distil.ternary import fake_int8, fake_ternary
from edgedec.quantize.distil.torch_recurrent import CausalConvStep, GatedDeltaRuleStep, SelectiveScanStep
from edgedec.quantize.distil.torch_step import TorchCache, TorchStep

__all__ = ["AttentionStep", "Ternary", "TorchCache", "TorchGraph", "TorchStep"]


@dataclass(frozen=True, kw_only=True)
class Ternary:
    """Form of ternary weights: ``group_size`` columns share a scale; 0: one scale per tensor."""

    group_size: int = 0


class _Embed(TorchStep):
    def __init__(self, op: Embed, weight: nn.Parameter) -> None:
        super().__init__(op)
        self.weight, self.scale = weight, op.scale

    def take(self, values: Mapping[str, Tensor], first: int, cache: TorchCache | None) -> tuple[Tensor, ...]:
        rows = functional.embedding(values[self.inputs[0]], self.weight)
        return (rows if self.scale == 1 else rows * self.scale,)


class _RmsNorm(TorchStep):
    def __init__(self, op: RmsNorm, weight: nn.Parameter) -> None:
        super().__init__(op)
        self.weight, self.eps, self.heads, self.offset = weight, op.eps, op.heads, op.offset

    def take(self, values: Mapping[str, Tensor], first: int, cache: TorchCache | None) -> tuple[Tensor, ...]:
        x = values[self.inputs[0]].float().unflatten(-1, (self.heads, -1))
        gain = self.weight + self.offset if self.offset else self.weight
        return (functional.rms_norm(x, (x.shape[-1],), gain, self.eps).flatten(-2),)


class _Linear(TorchStep):
    def __init__(
        self,
        op: Linear,
        weights: Sequence[nn.Parameter],
        biases: Sequence[nn.Parameter | None],
        ternary: Ternary | None,
        rounded: Sequence[bool],
    ) -> None:
        super().__init__(op)
        self.weights = nn.ParameterList(weights)
        self.biases = list(biases)
        for at, bias in enumerate(biases):
            self.register_parameter(f"bias{at}", bias)
        self.ternary, self.rounded, self.soft_cap = ternary, tuple(rounded), op.soft_cap

    def take(self, values: Mapping[str, Tensor], first: int, cache: TorchCache | None) -> tuple[Tensor, ...]:
        x, cap = values[self.inputs[0]], self.soft_cap
        if self.ternary is None or not any(self.rounded):
            plain = [functional.linear(x, w, b) for w, b in zip(self.weights, self.biases, strict=True)]
            return tuple(plain if cap is None else (torch.tanh(y / cap) * cap for y in plain))
        codes, size = fake_int8(x), self.ternary.group_size
        return tuple(
            functional.linear(codes, fake_ternary(w, size), b) if rounded else functional.linear(x, w, b)
            for w, b, rounded in zip(self.weights, self.biases, self.rounded, strict=True)
        )


class _Rope(TorchStep):
    def __init__(self, op: Rope, positions: int) -> None:
        super().__init__(op)
        self.head_dim, self.interleaved = op.head_dim, op.layout == "interleaved"
        self.columns = 2 * len(op.inverse_frequencies)  # number of rotated columns
        angles = torch.outer(torch.arange(positions).float(), torch.tensor(op.inverse_frequencies))
        self.register_buffer("cos", angles.cos()[:, None] * op.magnitude, persistent=False)  # [positions, 1, pairs]
        self.register_buffer("sin", angles.sin()[:, None] * op.magnitude, persistent=False)

    def take(self, values: Mapping[str, Tensor], first: int, cache: TorchCache | None) -> tuple[Tensor, ...]:
        x = values[self.inputs[0]].float().unflatten(-1, (-1, self.head_dim))  # [batch, n, heads, head_dim]
        some = slice(first, first + x.shape[1])
        cos, sin = self.get_buffer("cos")[some], self.get_buffer("sin")[some]
        x, rest = x[..., : self.columns], x[..., self.columns :]
        if self.interleaved:
            a, b = x[..., ::2], x[..., 1::2]
            turned = torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)
        else:
            a, b = x.chunk(2, dim=-1)
            turned = torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
        return (torch.cat((turned, rest), -1).flatten(2),)


class AttentionStep(TorchStep):
    """An attention. A subclass may compute ``mixed`` in another way."""

    def __init__(self, op: Attention, state: KvState) -> None:
        super().__init__(op)
        self.op, self.state = op, state

    def take(self, values: Mapping[str, Tensor], first: int, cache: TorchCache | None) -> tuple[Tensor, ...]:
        v_type = values[self.inputs[2]].dtype
        q, k, v = (
            values[name].to(v_type).unflatten(-1, (-1, self.state.head_dim)).transpose(1, 2) for name in self.inputs
        )
        if cache is not None:
            k, v = cache.append(self.state.name, k, v)
        shared = self.op.heads // self.state.kv_heads
        if shared > 1:
            k, v = k.repeat_interleave(shared, dim=1), v.repeat_interleave(shared, dim=1)
        return (self.mixed(q, k, v, first).transpose(1, 2).flatten(2),)

    def mixed(self, q: Tensor, k: Tensor, v: Tensor, first: int) -> Tensor:
        """Return the result of each head, all [batch, heads, n, head_dim]; ``first`` is the position of the first query."""
        return self.seen(q, k, v, first, window=self.state.window, sinks=self.state.sinks)

    def seen(self, q: Tensor, k: Tensor, v: Tensor, first: int, *, window: int | None, sinks: int) -> Tensor:
        """Return attention over the keys that a window and its sinks show; None: over all earlier keys."""
        mask = None
        if window is not None or (first and q.shape[2] > 1):
            at, key = torch.arange(first, first + q.shape[2])[:, None], torch.arange(k.shape[2])
            mask = key <= at
            if window is not None:
                mask &= (key > at - window) | (key < sinks)
            mask = mask.to(q.device)
        causal = mask is None and q.shape[2] > 1
        return functional.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, scale=self.op.scale)


class _Gated(TorchStep):
    def __init__(self, op: GatedActivation) -> None:
        super().__init__(op)
        self.activation = op.activation

    def take(self, values: Mapping[str, Tensor], first: int, cache: TorchCache | None) -> tuple[Tensor, ...]:
        gate, up = (values[name] for name in self.inputs)
        if self.activation == "gelu_tanh":
            return (functional.gelu(gate, approximate="tanh") * up,)
        return ((functional.silu(gate) if self.activation == "silu" else functional.relu(gate).square()) * up,)


class _GatedRmsNorm(TorchStep):
    def __init__(self, op: GatedRmsNorm, weight: nn.Parameter) -> None:
        super().__init__(op)
        self.weight, self.eps, self.groups = weight, op.eps, op.groups

    def take(self, values: Mapping[str, Tensor], first: int, cache: TorchCache | None) -> tuple[Tensor, ...]:
        gate, x = (values[name].float() for name in self.inputs)
        parts = (functional.silu(gate) * x).unflatten(-1, (self.groups, -1))
        return (functional.rms_norm(parts, (parts.shape[-1],), None, self.eps).flatten(-2) * self.weight,)


class _SigmoidGate(TorchStep):
    def take(self, values: Mapping[str, Tensor], first: int, cache: TorchCache | None) -> tuple[Tensor, ...]:
        gate, x = (values[name] for name in self.inputs)
        return (gate.sigmoid() * x,)


class _Split(TorchStep):
    def __init__(self, op: Split) -> None:
        super().__init__(op)
        self.widths, self.heads = op.widths, op.heads

    def take(self, values: Mapping[str, Tensor], first: int, cache: TorchCache | None) -> tuple[Tensor, ...]:
        parts = values[self.inputs[0]].unflatten(-1, (self.heads, -1)).split(self.widths, -1)
        return tuple(part.flatten(-2) for part in parts)


class _Concat(TorchStep):
    def take(self, values: Mapping[str, Tensor], first: int, cache: TorchCache | None) -> tuple[Tensor, ...]:
        return (torch.cat([values[name] for name in self.inputs], -1),)


class _ScaleColumns(TorchStep):
    def __init__(self, op: ScaleColumns) -> None:
        super().__init__(op)
        factors = torch.tensor(op.factors).repeat_interleave(torch.tensor(op.widths))
        self.register_buffer("factors", factors, persistent=False)

    def take(self, values: Mapping[str, Tensor], first: int, cache: TorchCache | None) -> tuple[Tensor, ...]:
        return (values[self.inputs[0]] * self.get_buffer("factors"),)


class _Add(TorchStep):
    def take(self, values: Mapping[str, Tensor], first: int, cache: TorchCache | None) -> tuple[Tensor, ...]:
        return (values[self.inputs[0]] + values[self.inputs[1]],)


class _Same(TorchStep):
    def take(self, values: Mapping[str, Tensor], first: int, cache: TorchCache | None) -> tuple[Tensor, ...]:
        return (values[self.inputs[0]],)  # training needs the logits of every row


def _feature(op: Operation) -> str:
    """Return what of an operation has no torch form, if that is not all of it, for a message."""
    match op:
        case Attention():
            return ", with a soft-cap"
        case GatedDeltaRule() | SelectiveScan():
            return ", with a decay by channel"
        case Concat():
            return ", with heads"
    return ""


class TorchGraph(nn.Module):
    """Torch module of a graph.

    ``forward(ids int64 [batch, n])`` returns the logits [batch, n, vocab] and the values that ``taps`` names. The positions
    in the cache plus n must not exceed ``positions``. ``tensors`` holds the parameters under their checkpoint names; a tied
    head is one parameter in two places.

    ``attention`` makes the step of an attention; a training may have one of its own.

    Raises:
        UnsupportedError: an operation has no torch form, the graph reads features beside its ids, or the group size does not
            divide the columns of a matrix.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        positions: int,
        ternary: Ternary | None = None,
        attention: Callable[[Attention, KvState], TorchStep] = AttentionStep,
    ) -> None:
        super().__init__()
        check_no_features(graph, "a graph in torch")
        self.graph, self.positions, self.ternary, self._attention = graph, positions, ternary, attention
        self.tensors = {name: nn.Parameter(torch.zeros(spec.shape)) for name, spec in graph.weights.items()}
        apart = {graph.operations[-1].weight_names[0], *graph.steering_weights()}
        self.ternary_names = tuple(
            name for op in graph.operations if isinstance(op, Linear) for name in op.weights if name not in apart
        )
        size = ternary.group_size if ternary else 0
        for name in self.ternary_names if size else ():
            width = graph.weights[name].shape[1]
            if width % size:
                raise UnsupportedError(
                    f"tensor {name} has {width} columns, which groups of {size} do not divide; "
                    "choose another --group-size, or 0"
                )
        fused = fuse_linears(graph)
        self.steps = nn.ModuleList(map(self._step, fused.operations))
        last = fused.last_uses()
        self._dead = [tuple(name for name in last if last[name] == at) for at in range(len(self.steps))]

    def _step(self, op: Operation) -> TorchStep:
        step = self._recurrent(op) or self._rearranging(op)
        if step:
            return step
        tensors = self.tensors
        if isinstance(op, Embed):
            return _Embed(op, tensors[op.weight])
        if isinstance(op, RmsNorm):
            return _RmsNorm(op, tensors[op.weight])
        if isinstance(op, Linear):
            biases = [tensors[bias] if bias else None for bias in op.biases]
            rounded = [w in self.ternary_names for w in op.weights]
            return _Linear(op, [tensors[w] for w in op.weights], biases, self.ternary, rounded)
        if isinstance(op, Rope):
            return _Rope(op, self.positions)
        if isinstance(op, Attention) and op.soft_cap is None:
            return self._attention(op, self.graph.states[op.state])
        if isinstance(op, GatedActivation):
            return _Gated(op)
        if isinstance(op, GatedRmsNorm):
            return _GatedRmsNorm(op, tensors[op.weight])
        if isinstance(op, SigmoidGate):
            return _SigmoidGate(op)
        if isinstance(op, Add):
            return _Add(op)
        raise UnsupportedError(
            f"operation {op.name} ({op.kind}{_feature(op)}) cannot be trained: quantize/distil/torch_graph.py does not "
            "implement it"
        )

    def _recurrent(self, op: Operation) -> TorchStep | None:
        tensors = self.tensors
        if isinstance(op, CausalConv):
            return CausalConvStep(op, tensors[op.weight], tensors[op.bias] if op.bias else None)
        if isinstance(op, GatedDeltaRule) and op.decay_by == "head":
            return GatedDeltaRuleStep(op, tensors[op.decay], tensors[op.step_bias])
        if isinstance(op, SelectiveScan) and op.decay_by == "head":
            return SelectiveScanStep(op, tensors[op.decay], tensors[op.skip], tensors[op.step_bias])
        return None

    def _rearranging(self, op: Operation) -> TorchStep | None:
        if isinstance(op, SelectRows):
            return _Same(op)
        if isinstance(op, Split):
            return _Split(op)
        if isinstance(op, Concat) and op.plain:
            return _Concat(op)
        if isinstance(op, ScaleColumns):
            return _ScaleColumns(op)
        return None

    @torch.no_grad()
    def fill(self, load: Callable[[str], NDArray[Any]]) -> None:
        """Set every parameter to ``load(name)``."""
        for name, parameter in self.tensors.items():
            parameter.copy_(torch.from_numpy(np.ascontiguousarray(load(name), np.float32)))

    @torch.no_grad()
    def draw(self, seed: int) -> None:
        """Draw random weights: normal with deviation 0.02, and gains 1.

        Matrices that write to the residual stream have a deviation smaller by sqrt(2 layers), as in GPT-2. Convolutions,
        decay rates and step sizes begin as their authors' do (``TorchStep.draw``).
        """
        generator = torch.Generator().manual_seed(seed)
        writers = sum(isinstance(step, _Add) for step in self.steps)
        added = {name for op in self.graph.operations if isinstance(op, Add) for name in op.inputs}
        small = {
            w for op in self.graph.operations if isinstance(op, Linear) and op.outputs[0] in added for w in op.weights
        }
        offsets = {op.weight: op.offset for op in self.graph.operations if isinstance(op, RmsNorm)}
        for name, parameter in self.tensors.items():
            if parameter.ndim == 1:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0 - offsets.get(name, 0.0))
            else:
                parameter.normal_(0.0, 0.02 / (writers**0.5 if name in small else 1.0), generator=generator)
        for step in self.steps:
            assert isinstance(step, TorchStep)
            step.draw(generator)

    def forward(
        self, ids: Tensor, cache: TorchCache | None = None, taps: tuple[str, ...] = ()
    ) -> tuple[Tensor, dict[str, Tensor]]:
        first = 0 if cache is None else cache.length
        values: dict[str, Tensor] = {"ids": ids}
        for step, dead in zip(self.steps, self._dead, strict=True):
            assert isinstance(step, TorchStep)
            values.update(zip(step.outputs, step.take(values, first, cache), strict=True))
            for name in dead:  # without gradients, a pass then needs the memory of one layer instead of all layers
                if name not in taps:
                    values.pop(name, None)
        if cache is not None:
            cache.length += ids.shape[1]
        return values[self.graph.outputs[0]], {name: values[name] for name in taps}
