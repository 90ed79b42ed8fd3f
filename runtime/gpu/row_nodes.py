"""Lower the nodes that make each row of the same row of their inputs: sums, norms, rotations, gates, quantizations."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle.bundle import Bundle
from edgedec.graph.ops import Add, GatedActivation, Hadamard, Operation, QuantizeActivation, RmsNorm, SelectRows
from edgedec.runtime.gpu.fusion import FusedNode
from edgedec.runtime.gpu.kernels import rows
from edgedec.runtime.gpu.kernels.codes import code_stride
from edgedec.runtime.gpu.kernels.kernel import Kernel
from edgedec.runtime.gpu.kernels.source import ShaderOptions
from edgedec.runtime.gpu.layout import Sizes, ValuePlace

if TYPE_CHECKING:
    from edgedec.runtime.gpu.lowering import GraphLowering

__all__ = ["lower_rows"]


def lower_rows(lowering: GraphLowering, node: FusedNode) -> None:
    """Add the dispatch of a node."""
    first = node.operations[0]
    if isinstance(first, SelectRows):
        _select(lowering, node)
    elif isinstance(first, Add):
        _add(lowering, node)
    elif isinstance(node.operations[-1], QuantizeActivation):
        _quantize(lowering, node)
    elif isinstance(first, RmsNorm):
        _norm(lowering, node, first)
    elif isinstance(first, Hadamard):
        _hadamard(lowering, node, first)
    else:
        assert isinstance(first, GatedActivation)
        _gate(lowering, node, first)


def _select(lowering: GraphLowering, node: FusedNode) -> None:
    x = lowering.place(node.inputs[0])
    place = lowering.new(node.outputs[0], x.width, results=True)
    lowering.dispatch(
        node.name,
        lambda options, sizes: rows.select(options, width=x.width),
        (x.buffer, place.buffer),
        when="results",
    )


def _add(lowering: GraphLowering, node: FusedNode) -> None:
    a, b = (lowering.place(name) for name in node.inputs)
    place = lowering.new(node.outputs[0], a.width, results=a.results)
    lowering.dispatch(
        node.name,
        lambda options, sizes: rows.add(options, width=a.width, a=a.columns, b=b.columns),
        (a.buffer, b.buffer, place.buffer),
        results=a.results,
    )


def _norm(lowering: GraphLowering, node: FusedNode, op: RmsNorm) -> None:
    x, (width,) = lowering.place(node.inputs[0]), lowering.graph.weights[op.weight].shape
    place = lowering.new(node.outputs[0], x.width, results=x.results)
    lowering.dispatch(
        node.name,
        lambda options, sizes: rows.norm(options, width=width, eps=op.eps, heads=op.heads, x=x.columns),
        (x.buffer, lowering.floats(op.weight, op.offset), place.buffer),
        results=x.results,
    )


def _hadamard(lowering: GraphLowering, node: FusedNode, op: Hadamard) -> None:
    x = lowering.place(node.inputs[0])
    signs = (
        lowering.floats(op.signs)
        if op.signs
        else lowering.constant(f"ones {x.width}", x.width, partial(_ones, x.width))
    )
    place = lowering.new(node.outputs[0], x.width, results=x.results)
    lowering.dispatch(
        node.name,
        lambda options, sizes: rows.hadamard(options, width=x.width, block=op.block, inverse=op.inverse, x=x.columns),
        (x.buffer, signs, place.buffer),
        results=x.results,
    )


def _gate(lowering: GraphLowering, node: FusedNode, op: GatedActivation) -> None:
    gate, up = (lowering.place(name) for name in node.inputs)
    place = lowering.new(node.outputs[0], gate.width, results=gate.results)
    lowering.dispatch(
        node.name,
        lambda options, sizes: rows.gate(
            options, width=gate.width, activation=op.activation, gate=gate.columns, up=up.columns
        ),
        (gate.buffer, up.buffer, place.buffer),
        results=gate.results,
    )


def _quantize(lowering: GraphLowering, node: FusedNode) -> None:
    """Lower a quantization with the operations before it."""
    operations, inputs = node.operations[:-1], [lowering.place(name) for name in node.inputs]
    x, codes, scale = inputs[0], *node.outputs
    to = lowering.new(codes, code_stride(x.width), x.width, results=x.results)
    scales = lowering.new(scale, 1, results=x.results)
    lowering.dispatch(
        node.name,
        partial(_quantizer, operations, inputs),
        (
            *(place.buffer for place in inputs),
            *(lowering.floats(op.weight, op.offset) for op in operations if isinstance(op, RmsNorm)),
            to.buffer,
            scales.buffer,
        ),
        results=x.results,
    )


def _quantizer(
    operations: Sequence[Operation], inputs: Sequence[ValuePlace], options: ShaderOptions, sizes: Sizes
) -> Kernel:
    """Return the kernel of a quantization with the operations before it."""
    x = inputs[0]
    gate = next((op for op in operations if isinstance(op, GatedActivation)), None)
    norm = next((op for op in operations if isinstance(op, RmsNorm)), None)
    return rows.quantize(
        options,
        width=x.width,
        x=x.columns,
        activation=gate.activation if gate else None,
        up=inputs[1].columns if gate else None,
        eps=norm.eps if norm else None,
    )


def _ones(count: int, bundle: Bundle, sizes: Sizes) -> NDArray[np.float32]:
    return np.ones(count, np.float32)
