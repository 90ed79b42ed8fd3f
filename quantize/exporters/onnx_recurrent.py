"""Write operations with recurrent states, and those that stand around them, with ONNX's own operators.

A state is an input ``past_recurrent.N`` float32 [b, ...] of the graph and an output ``present_recurrent.N``, where N counts
the states of the graph in its order. Zeros are the state before a text. A ``Scan`` runs over the rows of a sequence and
carries the state from row to row, so that nothing is kept for each row.

Names of dimensions: b sequences, s rows, H heads, D columns of a head, N columns of its state, K columns of a key.

Source: the definitions are edgedec/graph/ops.py; Scan, Conv and Softplus are those of the ONNX standard, opset 21.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from edgedec.bundle.bundle import Bundle
from edgedec.graph.graph import Graph
from edgedec.graph.ops import (
    CausalConv,
    Concat,
    GatedDeltaRule,
    GatedRmsNorm,
    Operation,
    SelectiveScan,
    SigmoidGate,
    Split,
)

__all__ = ["PAST", "PRESENT", "RecurrentWriter"]

PAST, PRESENT = "past_recurrent", "present_recurrent"
_LEAST = 1e-6  # keeps the length of a vector of zeros above zero


class Writer(Protocol):
    """The graph under construction: ``GraphWriter`` of onnx_graph.py."""

    bundle: Bundle
    graph: Graph
    nodes: list[onnx.NodeProto]
    tensors: list[onnx.TensorProto]
    bound: dict[str, str]

    def node(self, kind: str, inputs: Sequence[str], output: str, domain: str = "", **attributes: Any) -> str:
        """Add a node with one output and return the output's name."""

    def tensor(self, name: str, array: NDArray[Any]) -> str:
        """Add an initializer in the weights file."""


class RecurrentWriter:
    """Writes the operations into the graph of ``writer``.

    Members:
        lowered: the functions by type of operation; each returns the name of the first output.
    """

    def __init__(self, writer: Writer) -> None:
        self._writer, self._bundle, self._bound = writer, writer.bundle, writer.bound
        self._numbers = {name: number for number, name in enumerate(writer.graph.recurrent)}
        self.lowered: Mapping[type[Operation], Callable[[Any], str]] = {
            CausalConv: self._conv,
            Concat: self._concat,
            GatedDeltaRule: self._delta_rule,
            GatedRmsNorm: self._gated_norm,
            SelectiveScan: self._selective_scan,
            SigmoidGate: self._sigmoid_gate,
            Split: self._split,
        }

    def _node(self, kind: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        return self._writer.node(kind, inputs, output, **attributes)

    def _constant(self, name: str, values: Any) -> str:
        """Add a small constant: int64 if ``values`` are integers, else float32."""
        array = np.asarray(values)
        kind = np.int64 if array.dtype.kind == "i" else np.float32
        self._writer.tensors.append(numpy_helper.from_array(array.astype(kind), name))
        return name

    def _weight(self, name: str) -> NDArray[np.float32]:
        values: NDArray[np.float32] = self._bundle.weight(name).dense()
        return values

    def _reshaped(self, x: str, output: str, *sizes: int) -> str:
        """Return x [b, s, ...] with other sizes after its first two."""
        return self._node("Reshape", [x, self._constant(f"{output}.shape", [0, 0, *sizes])], output)

    def _heads(self, x: str, output: str, count: int, heads: int) -> str:
        """Return x [b, s, count * width] as [b, s, heads, width], where neighbouring heads share a part."""
        parts = self._reshaped(x, f"{output}.parts" if heads != count else output, count, -1)
        if heads == count:
            return parts
        place = self._constant(f"{output}.place", np.arange(heads) * count // heads)
        return self._node("Gather", [parts, place], output, axis=2)

    def _silu(self, x: str, output: str) -> str:
        return self._node("Mul", [x, self._node("Sigmoid", [x], f"{output}.sigmoid")], output)

    def _conv(self, op: CausalConv) -> str:
        """Convolve each channel over the rows of the state and of the pass, [b, kernel - 1 + s, channels]."""
        weight, at = self._weight(op.weight), self._numbers[op.state]
        channels, _, kernel = weight.shape
        seen = self._node("Concat", [f"{PAST}.{at}", self._bound[op.inputs[0]]], f"{op.name}.seen", axis=1)
        ends = [
            self._constant(f"{op.name}.{part}", [end])
            for part, end in (("from", 1 - kernel), ("to", 1 << 62), ("axis", 1))
        ]
        self._node("Slice", [seen, *ends], f"{PRESENT}.{at}")
        turned = self._node("Transpose", [seen], f"{op.name}.turned", perm=[0, 2, 1])
        inputs = [turned, self._writer.tensor(f"{op.name}.weight", weight)]
        if op.bias:
            inputs.append(self._writer.tensor(f"{op.name}.bias", self._weight(op.bias)))
        product = self._node("Conv", inputs, f"{op.name}.product", group=channels, kernel_shape=[kernel])
        return self._silu(self._node("Transpose", [product], f"{op.name}.rows", perm=[0, 2, 1]), op.name)

    def _softplus(self, x: str, bias: str, name: str) -> str:
        biased = self._node("Add", [x, self._constant(f"{name}.step_bias", self._weight(bias))], f"{name}.biased")
        return self._node("Softplus", [biased], f"{name}.softplus")

    def _selective_scan(self, op: SelectiveScan) -> str:
        """Compute S [b, H, D, N] = exp(-rate * d) * S + outer(d * x, b), and S @ c + skip * x, row by row."""
        name, heads = op.name, op.heads
        x = self._heads(self._bound[op.inputs[0]], f"{name}.x", heads, heads)
        b, c = (
            self._heads(self._bound[part], f"{name}.{letter}", op.groups, heads)
            for part, letter in zip(op.inputs[1:3], "bc", strict=True)
        )
        step = self._softplus(self._bound[op.inputs[3]], op.step_bias, name)
        least, most = op.step_limits
        if (least, most) != (0.0, float("inf")):
            limits = [self._constant(f"{name}.least", least), self._constant(f"{name}.most", most)]
            step = self._node("Clip", [step, *limits], f"{name}.clipped")
        step = self._reshaped(step, f"{name}.step", heads, 1)
        added = self._node("Mul", [step, x], f"{name}.added")
        rate = self._constant(f"{name}.rate", -np.exp(self._weight(op.decay)).reshape(heads, 1, -1))
        last, before = self._constant(f"{name}.last", [-1]), self._constant(f"{name}.before", [-2])

        def row(body: Body, state: str, step: str, added: str, b: str, c: str) -> tuple[str, str]:
            factor = body("Exp", body("Mul", body("Unsqueeze", step, last), rate))
            outer = body("Mul", body("Unsqueeze", added, last), body("Unsqueeze", b, before))
            after = body("Add", body("Mul", factor, state), outer)
            return after, body("Squeeze", body("MatMul", after, body("Unsqueeze", c, last)), last)

        out = self._scan(op, row, [step, added, b, c])
        skip = self._constant(f"{name}.skip", self._weight(op.skip).reshape(heads, 1))
        total = self._node("Add", [out, self._node("Mul", [x, skip], f"{name}.skipped")], f"{name}.total")
        return self._reshaped(total, name, -1)

    def _delta_rule(self, op: GatedDeltaRule) -> str:
        """Compute D = kept * S [b, H, K, D], S = D + outer(k, rate * (v - k @ D)), and q @ S, row by row."""
        name, heads = op.name, op.heads
        q, k = (
            self._unit(self._heads(self._bound[part], f"{name}.{letter}", op.key_heads, heads), f"{name}.{letter}")
            for part, letter in zip(op.inputs[:2], "qk", strict=True)
        )
        key_dim = self._writer.graph.recurrent[op.state].shape[1]
        q = self._node("Div", [q, self._constant(f"{name}.root", np.sqrt(np.float32(key_dim)))], f"{name}.query")
        v = self._heads(self._bound[op.inputs[2]], f"{name}.v", heads, heads)
        rate = self._node("Sigmoid", [self._bound[op.inputs[3]]], f"{name}.sigmoid")
        rate = self._reshaped(rate, f"{name}.rate", heads, 1)
        step = self._reshaped(self._softplus(self._bound[op.inputs[4]], op.step_bias, name), f"{name}.step", heads, -1)
        decay = self._constant(f"{name}.decay", -np.exp(self._weight(op.decay)).reshape(heads, 1))
        kept = self._node("Exp", [self._node("Mul", [step, decay], f"{name}.exponent")], f"{name}.kept")
        last, before = self._constant(f"{name}.last", [-1]), self._constant(f"{name}.before", [-2])

        def row(body: Body, state: str, q: str, k: str, v: str, rate: str, kept: str) -> tuple[str, str]:
            decayed = body("Mul", body("Unsqueeze", kept, last), state)
            read = body("MatMul", body("Unsqueeze", k, before), decayed)  # [b, H, 1, D]
            wrong = body("Sub", body("Unsqueeze", v, before), read)
            written = body("Mul", body("Unsqueeze", rate, last), wrong)
            after = body("Add", decayed, body("Mul", body("Unsqueeze", k, last), written))
            return after, body("Squeeze", body("MatMul", body("Unsqueeze", q, before), after), before)

        return self._reshaped(self._scan(op, row, [q, k, v, rate, kept]), name, -1)

    def _unit(self, x: str, name: str) -> str:
        """Return x divided by its length over the last axis."""
        axes, least = self._constant(f"{name}.axes", [-1]), self._constant(f"{name}.least_square", _LEAST)
        square = self._node("ReduceSumSquare", [x, axes], f"{name}.square", keepdims=1)
        length = self._node("Sqrt", [self._node("Add", [square, least], f"{name}.above")], f"{name}.length")
        return self._node("Div", [x, length], f"{name}.unit")

    def _scan(
        self, op: SelectiveScan | GatedDeltaRule, row: Callable[..., tuple[str, str]], inputs: Sequence[str]
    ) -> str:
        """Run ``row`` over axis 1 of ``inputs`` [b, s, ...] and return its outputs, [b, s, H, D].

        ``row`` gets a ``Body``, the name of the state, and those of the inputs of a row, [b, ...]. It returns the names of
        the next state and of the output.
        """
        at, body = self._numbers[op.state], Body(f"{op.name}.row")
        names = [f"{op.name}.row.{part}" for part in ("state", *(f"in{number}" for number in range(len(inputs))))]
        after, output = row(body, *names)
        shapes = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in (*names, after, output)]
        graph = helper.make_graph(body.nodes, f"{op.name}.row", shapes[: len(names)], shapes[len(names) :])
        made = f"{op.name}.scanned"
        self._writer.nodes.append(
            helper.make_node(
                "Scan",
                [f"{PAST}.{at}", *inputs],
                [f"{PRESENT}.{at}", made],
                name=made,
                body=graph,
                num_scan_inputs=len(inputs),
                scan_input_axes=[1] * len(inputs),
                scan_output_axes=[1],
            )
        )
        return made

    def _split(self, op: Split) -> str:
        """Cut columns of each head apart, and bind every part."""
        x, widths = self._bound[op.inputs[0]], self._constant(f"{op.name}.widths", list(op.widths))
        parts = [f"{op.name}.{number}" for number in range(len(op.widths))]
        cut = [f"{part}.cut" for part in parts]
        heads = self._reshaped(x, f"{op.name}.heads", op.heads, sum(op.widths))
        self._writer.nodes.append(helper.make_node("Split", [heads, widths], cut, name=op.name, axis=3))
        for output, part, source in zip(op.outputs, parts, cut, strict=True):
            self._bound[output] = self._reshaped(source, part, -1)
        return self._bound[op.outputs[0]]

    def _concat(self, op: Concat) -> str:
        """Join columns, head by head, where all heads may share a part and zeros may follow it."""
        parts = list[str]()
        for number, (source, is_shared, gap) in enumerate(op.parts()):
            name = f"{op.name}.part{number}"
            part = self._reshaped(self._bound[source], f"{name}.heads", 1 if is_shared else op.heads, -1)
            if is_shared and op.heads > 1:
                shape = self._constant(f"{name}.shape", [1, 1, op.heads, 1])
                part = self._node("Expand", [part, shape], f"{name}.expanded")
            if gap:
                pads = self._constant(f"{name}.pads", [0, 0, 0, 0, 0, 0, 0, gap])
                part = self._node("Pad", [part, pads], f"{name}.padded")
            parts.append(part)
        return self._reshaped(self._node("Concat", parts, f"{op.name}.joined", axis=3), op.name, -1)

    def _gated_norm(self, op: GatedRmsNorm) -> str:
        gate, x = (self._bound[part] for part in op.inputs)
        gated = self._node("Mul", [self._silu(gate, f"{op.name}.silu"), x], f"{op.name}.gated")
        gain = self._weight(op.weight)
        width = len(gain) // op.groups
        groups = self._reshaped(gated, f"{op.name}.groups", op.groups, width)
        ones = self._constant(f"{op.name}.ones", np.ones(width, np.float32))
        settings: dict[str, Any] = {"axis": -1, "epsilon": op.eps, "stash_type": 1}
        normed = self._node("SimplifiedLayerNormalization", [groups, ones], f"{op.name}.normed", **settings)
        rows = self._reshaped(normed, f"{op.name}.rows", -1)
        return self._node("Mul", [rows, self._writer.tensor(f"{op.name}.gain", gain)], op.name)

    def _sigmoid_gate(self, op: SigmoidGate) -> str:
        gate, x = (self._bound[part] for part in op.inputs)
        return self._node("Mul", [x, self._node("Sigmoid", [gate], f"{op.name}.sigmoid")], op.name)


class Body:
    """The nodes of a row of a scan. Calling it adds one and returns the name of its output.

    Members:
        nodes: the nodes.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.nodes: list[onnx.NodeProto] = []

    def __call__(self, kind: str, *inputs: str) -> str:
        output = f"{self._name}.{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [output], name=output))
        return output
