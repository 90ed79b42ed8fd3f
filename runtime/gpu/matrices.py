"""Lower linears: matrices of one scheme stacked by rows, in parts that a kernel can read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle.bundle import Bundle
from edgedec.errors import UnsupportedError
from edgedec.graph.ops import Add, Linear
from edgedec.runtime.gpu.forms import MatrixForm, form_of
from edgedec.runtime.gpu.fusion import FusedNode
from edgedec.runtime.gpu.kernels.kernel import Kernel
from edgedec.runtime.gpu.kernels.linear import OUTS, Ending, Packed
from edgedec.runtime.gpu.kernels.rows import Columns
from edgedec.runtime.gpu.kernels.source import ShaderOptions
from edgedec.runtime.gpu.layout import Sizes, ValuePlace
from edgedec.runtime.gpu.weights import read_part

if TYPE_CHECKING:
    from edgedec.runtime.gpu.lowering import GraphLowering

__all__ = ["lower_linear"]


class _Rows(NamedTuple):
    """Rows [start, stop) of a weight, and the name of its bias."""

    weight: str
    start: int
    stop: int
    bias: str | None


def lower_linear(lowering: GraphLowering, node: FusedNode) -> None:
    """Add the dispatches of a linear, with the addition of a residual if the node has one."""
    operation = node.operations[0]
    assert isinstance(operation, Linear)
    places = _outputs(lowering, node, operation)
    weights = [
        (form_of(lowering.tensors[weight].scheme), weight, bias, place)
        for weight, bias, place in zip(operation.weights, operation.biases, places, strict=True)
    ]
    residual = lowering.place(node.inputs[-1]) if isinstance(node.operations[-1], Add) else None
    if residual is not None and residual.columns != Columns(offset=0, stride=residual.width):
        raise UnsupportedError(f"{node.name}: the residual is a part of a wider value; use --device cpu")
    for form, group in groupby(weights, key=lambda item: item[0]):
        members = list(group)
        rows = [_Rows(weight, 0, place.width, bias) for _, weight, bias, place in members]
        first = members[0][3]
        start = first.columns.offset
        inputs = lowering.tensors[rows[0].weight].shape[1]
        for part in _parts(rows, form, inputs, lowering.binding_bytes):
            count = sum(item.stop - item.start for item in part)
            columns = replace(first.columns, offset=start)
            _dispatch(
                lowering, node, operation, form, part, inputs, replace(first, columns=columns, width=count), residual
            )
            start += count


def _outputs(lowering: GraphLowering, node: FusedNode, operation: Linear) -> list[ValuePlace]:
    """Return the places of the outputs, beside one another in the order of the weights."""
    results = lowering.place(node.inputs[0]).results
    widths = [lowering.tensors[weight].shape[0] for weight in operation.weights]
    if set(node.outputs) & set(lowering.graph.outputs):
        return [lowering.new_output(node.outputs[0], widths[0])]
    return lowering.new_beside(list(zip(node.outputs, widths, strict=True)), results=results)


def _parts(rows: Sequence[_Rows], form: MatrixForm, inputs: int, binding_bytes: int) -> list[list[_Rows]]:
    """Divide stacked matrices into parts that the device can bind, of whole tiles of outputs where there are several."""
    most = binding_bytes // form.row_bytes(inputs) // OUTS * OUTS
    if not most:
        raise UnsupportedError(
            f"{rows[0].weight}: {OUTS} rows of {inputs} columns are more than the device binds ({binding_bytes} bytes); "
            "use --device cpu"
        )
    parts: list[list[_Rows]] = [[]]
    left = most
    for item in rows:
        start = item.start
        while start < item.stop:
            if not left:
                parts.append([])
                left = most
            stop = min(item.stop, start + left)
            parts[-1].append(item._replace(start=start, stop=stop))
            left -= stop - start
            start = stop
    return parts


def _dispatch(
    lowering: GraphLowering,
    node: FusedNode,
    operation: Linear,
    form: MatrixForm,
    part: Sequence[_Rows],
    inputs: int,
    place: ValuePlace,
    residual: ValuePlace | None,
) -> None:
    name = "|".join(
        item.weight
        if (item.start, item.stop) == (0, lowering.tensors[item.weight].shape[0])
        else f"{item.weight}[{item.start}:{item.stop}]"
        for item in part
    )
    packing = _Packing(form, tuple(part), inputs)
    outputs = place.width
    words, scale_words = form.words(outputs, inputs), form.scale_words(outputs, inputs)
    buffers = [lowering.constant(f"{name}.codes", words, packing.weights)]
    if scale_words:
        buffers.append(lowering.constant(f"{name}.scales", scale_words, packing.scales))
    biased = any(item.bias for item in part)
    if biased:
        buffers.append(lowering.constant(f"{name}.bias", outputs, partial(_biases, tuple(part))))
    if residual is not None:
        buffers.append(residual.buffer)
    build = form.build
    if form.reads_floats:
        build = partial(form.build, x=lowering.place(operation.inputs[0]).columns)
    ending = Ending(bias=biased, residual=residual is not None, soft_cap=operation.soft_cap, results=place.results)
    lowering.dispatch(
        node.name,
        partial(_kernel, build, outputs, inputs, ending, place.columns),
        (*(lowering.place(value).buffer for value in operation.inputs), *buffers, place.buffer),
        results=place.results,
    )


def _kernel(
    build: Callable[..., Kernel],
    outputs: int,
    inputs: int,
    ending: Ending,
    columns: Columns,
    options: ShaderOptions,
    sizes: Sizes,
) -> Kernel:
    """Return the kernel of a product that writes some columns of the output's rows, and reads those of the residual."""
    kernel = build(options, outputs=outputs, inputs=inputs, ending=ending)
    if columns == Columns(offset=0, stride=outputs):
        return kernel
    place = "[row * OUTPUTS + column]"  # index of ``y`` and ``residual`` in ``Ending.source``
    assert kernel.source.count(place) == 1 + ending.residual, "kernels/linear.py finds its output in another way"
    part = f"[row * {columns.stride}u + {columns.offset}u + column]"
    return replace(kernel, source=kernel.source.replace(place, part))


def _biases(part: Sequence[_Rows], bundle: Bundle, sizes: Sizes) -> NDArray[np.float32]:
    """Return the biases of stacked matrices, float32 [outputs]; those without one have zeros."""
    values = [
        np.zeros(item.stop - item.start, np.float32)
        if item.bias is None
        else bundle.weight(item.bias).dense()[item.start : item.stop]
        for item in part
    ]
    return np.concatenate(values)


@dataclass
class _Packing:
    """The two arrays of a part, which are packed together and taken one after the other."""

    form: MatrixForm
    part: tuple[_Rows, ...]
    inputs: int
    _packed: Packed | None = None

    def weights(self, bundle: Bundle, sizes: Sizes) -> NDArray[Any]:
        self._packed = self._pack(bundle)
        return self._packed.weights

    def scales(self, bundle: Bundle, sizes: Sizes) -> NDArray[Any]:
        packed, self._packed = self._packed or self._pack(bundle), None
        return packed.scales

    def _pack(self, bundle: Bundle) -> Packed:
        matrices = []
        for item in self.part:
            stored = {part: read_part(bundle, item.weight, part) for part in self.form.parts}
            matrices.append(self.form.rows(stored, item.start, item.stop))
        return self.form.pack(self.inputs, matrices)
