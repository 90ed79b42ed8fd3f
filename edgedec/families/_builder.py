"""Build a graph operation by operation; each operation declares the shape of its output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from edgedec.graph.graph import FEATURES_INPUT, Graph, KvState, RecurrentState, Value, WeightSpec
from edgedec.graph.ops import (
    Activation,
    Add,
    Attention,
    CausalConv,
    Concat,
    DecayBy,
    DifferentialHeads,
    Embed,
    GatedActivation,
    GatedDeltaRule,
    GatedRmsNorm,
    LayerNorm,
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

__all__ = ["GraphBuilder"]


@dataclass
class GraphBuilder:
    """A graph under construction. Each method appends an operation ``name``, and returns the equal name of its output."""

    operations: list[Operation] = field(default_factory=list)
    values: dict[str, Value] = field(default_factory=dict)
    weights: dict[str, WeightSpec] = field(default_factory=dict)
    states: dict[str, KvState] = field(default_factory=dict)
    recurrent: dict[str, RecurrentState] = field(default_factory=dict)

    def _emit(self, operation: Operation, width: int, rows: str) -> str:
        (output,) = operation.outputs
        self.operations.append(operation)
        self.values[output] = Value(name=output, shape=(rows, width))
        return output

    def _width(self, value: str) -> int:
        width = self.values[value].shape[1]
        assert isinstance(width, int)
        return width

    def _rows(self, value: str) -> str:
        return str(self.values[value].shape[0])

    def embed(self, name: str, *, weight: str, vocab: int, width: int, scale: float = 1.0) -> str:
        self.weights[weight] = WeightSpec(shape=(vocab, width))
        return self._emit(Embed(name=name, inputs=("ids",), outputs=(name,), weight=weight, scale=scale), width, "n")

    def features(self, width: int) -> str:
        """Declare the input of values [n, width] that ride beside the ids, and return its name."""
        self.values[FEATURES_INPUT] = Value(name=FEATURES_INPUT, shape=("n", width))
        return FEATURES_INPUT

    def rms_norm(self, name: str, x: str, *, weight: str, eps: float, heads: int = 1, offset: float = 0.0) -> str:
        self.weights[weight] = WeightSpec(shape=(self._width(x) // heads,))
        norm = RmsNorm(name=name, inputs=(x,), outputs=(name,), weight=weight, eps=eps, heads=heads, offset=offset)
        return self._emit(norm, self._width(x), self._rows(x))

    def layer_norm(self, name: str, x: str, *, weight: str, bias: str, eps: float) -> str:
        self.weights |= dict.fromkeys((weight, bias), WeightSpec(shape=(self._width(x),)))
        norm = LayerNorm(name=name, inputs=(x,), outputs=(name,), weight=weight, bias=bias, eps=eps)
        return self._emit(norm, self._width(x), self._rows(x))

    def linear(
        self, name: str, x: str, *, weight: str, bias: str | None = None, out: int, soft_cap: float | None = None
    ) -> str:
        self.weights[weight] = WeightSpec(shape=(out, self._width(x)))
        if bias:
            self.weights[bias] = WeightSpec(shape=(out,))
        linear = Linear(name=name, inputs=(x,), outputs=(name,), weights=(weight,), biases=(bias,), soft_cap=soft_cap)
        return self._emit(linear, out, self._rows(x))

    def rope(
        self,
        name: str,
        x: str,
        *,
        head_dim: int,
        layout: Literal["half", "interleaved"],
        inverse_frequencies: tuple[float, ...],
        magnitude: float = 1.0,
    ) -> str:
        rope = Rope(
            name=name,
            inputs=(x, "positions"),
            outputs=(name,),
            heads=self._width(x) // head_dim,
            head_dim=head_dim,
            layout=layout,
            inverse_frequencies=inverse_frequencies,
            magnitude=magnitude,
        )
        return self._emit(rope, self._width(x), "n")

    def attention(
        self,
        name: str,
        q: str,
        k: str,
        v: str,
        *,
        state: KvState,
        heads: int,
        scale: float,
        soft_cap: float | None = None,
    ) -> str:
        self.states[state.name] = state
        attention = Attention(
            name=name,
            inputs=(q, k, v),
            outputs=(name,),
            state=state.name,
            heads=heads,
            scale=scale,
            soft_cap=soft_cap,
        )
        return self._emit(attention, heads * state.head_dim, "n")

    def gated_activation(self, name: str, gate: str, up: str, activation: Activation) -> str:
        gated = GatedActivation(name=name, inputs=(gate, up), outputs=(name,), activation=activation)
        return self._emit(gated, self._width(gate), self._rows(gate))

    def gated_rms_norm(self, name: str, gate: str, x: str, *, weight: str, eps: float, groups: int) -> str:
        self.weights[weight] = WeightSpec(shape=(self._width(x),))
        norm = GatedRmsNorm(name=name, inputs=(gate, x), outputs=(name,), weight=weight, eps=eps, groups=groups)
        return self._emit(norm, self._width(x), self._rows(x))

    def add(self, name: str, a: str, b: str) -> str:
        return self._emit(Add(name=name, inputs=(a, b), outputs=(name,)), self._width(a), self._rows(a))

    def split(self, name: str, x: str, parts: Mapping[str, int], heads: int = 1) -> tuple[str, ...]:
        """Append a ``Split``; ``parts`` maps the end of each output's name, ``name.END``, to its width in a head."""
        outputs, rows = tuple(f"{name}.{end}" for end in parts), self._rows(x)
        assert heads * sum(parts.values()) == self._width(x)
        self.operations.append(
            Split(name=name, inputs=(x,), outputs=outputs, widths=tuple(parts.values()), heads=heads)
        )
        self.values |= {
            output: Value(name=output, shape=(rows, heads * width))
            for output, width in zip(outputs, parts.values(), strict=True)
        }
        return outputs

    def concat(
        self, name: str, *parts: str, heads: int = 1, shared: tuple[bool, ...] = (), gaps: tuple[int, ...] = ()
    ) -> str:
        concat = Concat(name=name, inputs=parts, outputs=(name,), heads=heads, shared=shared, gaps=gaps)
        width = sum(self._width(part) * (heads if one else 1) + heads * gap for part, one, gap in concat.parts())
        return self._emit(concat, width, self._rows(parts[0]))

    def differential_heads(
        self, name: str, x: str, *, pairs: int, factors: tuple[str, str, str, str], dim: int, start: float
    ) -> str:
        self.weights |= dict.fromkeys(factors, WeightSpec(shape=(dim,)))
        difference = DifferentialHeads(
            name=name, inputs=(x,), outputs=(name,), pairs=pairs, factors=factors, start=start
        )
        return self._emit(difference, self._width(x) // 2, self._rows(x))

    def scale(self, name: str, x: str, factors: Sequence[float], widths: Sequence[int] = ()) -> str:
        """Append a ``ScaleColumns``, or nothing if all factors are 1; without ``widths`` the one factor is that of all
        columns.
        """
        if all(factor == 1 for factor in factors):
            return x
        columns = tuple(widths) or (self._width(x),)
        assert sum(columns) == self._width(x)
        scale = ScaleColumns(name=name, inputs=(x,), outputs=(name,), widths=columns, factors=tuple(factors))
        return self._emit(scale, self._width(x), self._rows(x))

    def sigmoid_gate(self, name: str, gate: str, x: str) -> str:
        return self._emit(SigmoidGate(name=name, inputs=(gate, x), outputs=(name,)), self._width(x), self._rows(x))

    def causal_conv(self, name: str, x: str, *, weight: str, bias: str | None, kernel: int) -> str:
        channels, state = self._width(x), f"{name}.state"
        self.recurrent[state] = RecurrentState(name=state, shape=(kernel - 1, channels))
        self.weights[weight] = WeightSpec(shape=(channels, 1, kernel))
        if bias:
            self.weights[bias] = WeightSpec(shape=(channels,))
        conv = CausalConv(name=name, inputs=(x,), outputs=(name,), state=state, weight=weight, bias=bias)
        return self._emit(conv, channels, "n")

    def selective_scan(
        self,
        name: str,
        x: str,
        b: str,
        c: str,
        step: str,
        *,
        groups: int,
        decay: str,
        skip: str,
        step_bias: str,
        step_limits: tuple[float, float] = (0.0, float("inf")),
        decay_by: DecayBy = "head",
    ) -> str:
        heads, size, state = self._width(step), self._width(b) // groups, f"{name}.state"
        self.recurrent[state] = RecurrentState(name=state, shape=(heads, self._width(x) // heads, size))
        self.weights |= dict.fromkeys((skip, step_bias), WeightSpec(shape=(heads,)))
        self.weights[decay] = WeightSpec(shape=(heads,) if decay_by == "head" else (heads, size))
        scan = SelectiveScan(
            name=name,
            inputs=(x, b, c, step),
            outputs=(name,),
            state=state,
            heads=heads,
            groups=groups,
            decay=decay,
            skip=skip,
            step_bias=step_bias,
            step_limits=step_limits,
            decay_by=decay_by,
        )
        return self._emit(scan, self._width(x), "n")

    def gated_delta_rule(
        self,
        name: str,
        q: str,
        k: str,
        v: str,
        rate: str,
        step: str,
        *,
        key_heads: int,
        decay: str,
        step_bias: str,
        decay_shape: tuple[int, ...] | None = None,
        decay_by: DecayBy = "head",
    ) -> str:
        """Append a ``GatedDeltaRule``; ``decay_shape`` is that of the weight ``decay``, [heads] if it is None."""
        heads, state = self._width(rate), f"{name}.state"
        shape = (heads, self._width(k) // key_heads, self._width(v) // heads)
        self.recurrent[state] = RecurrentState(name=state, shape=shape)
        self.weights[decay] = WeightSpec(shape=decay_shape or (heads,))
        self.weights[step_bias] = WeightSpec(shape=(self._width(step),))
        rule = GatedDeltaRule(
            name=name,
            inputs=(q, k, v, rate, step),
            outputs=(name,),
            state=state,
            heads=heads,
            key_heads=key_heads,
            decay=decay,
            step_bias=step_bias,
            decay_by=decay_by,
        )
        return self._emit(rule, self._width(v), "n")

    def select_rows(self, name: str, x: str) -> str:
        return self._emit(SelectRows(name=name, inputs=(x, "rows"), outputs=(name,)), self._width(x), "r")

    def graph(self, *, logits: str) -> Graph:
        inputs = (
            Value(name="ids", shape=("n",), dtype="int32"),
            Value(name="positions", shape=("n",), dtype="int32"),
            Value(name="rows", shape=("r",), dtype="int32"),
            *(value for name, value in self.values.items() if name == FEATURES_INPUT),
        )
        return Graph(
            inputs=inputs,
            outputs=(logits,),
            operations=tuple(self.operations),
            values={value.name: value for value in inputs} | self.values,
            weights=self.weights,
            states=self.states,
            recurrent=self.recurrent,
        )
