"""Lower a graph to a program: a layout for any limits, then the program and its constants for some.

Each node of ``fusion.py`` becomes a few dispatches. Values live in slots, which they share when they are not alive at the
same time; the outputs of linears that read the same input lie beside one another in one slot, and their readers know the
columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle.bundle import Bundle
from edgedec.bundle.manifest import Tensor
from edgedec.errors import UnsupportedError
from edgedec.graph.graph import Graph, KvState
from edgedec.graph.ops import (
    Add,
    Embed,
    GatedActivation,
    Hadamard,
    Linear,
    Operation,
    QuantizeActivation,
    RmsNorm,
    SelectRows,
)
from edgedec.runtime.gpu.attending import cache_shape, lower_attention, state_plan
from edgedec.runtime.gpu.fusion import FusedNode, group_operations
from edgedec.runtime.gpu.kernels import rows
from edgedec.runtime.gpu.kernels.codes import code_stride
from edgedec.runtime.gpu.kernels.embedding import embed, pack_embedding
from edgedec.runtime.gpu.kernels.head import HeadLayout
from edgedec.runtime.gpu.kernels.kernel import Count, Groups, Kernel
from edgedec.runtime.gpu.kernels.results import move_rows, top_k
from edgedec.runtime.gpu.kernels.rows import Columns
from edgedec.runtime.gpu.kernels.source import ShaderOptions
from edgedec.runtime.gpu.layout import BufferPlan, Dispatch, ProgramLayout, Sizes, ValuePlace
from edgedec.runtime.gpu.matrices import lower_linear
from edgedec.runtime.gpu.program import GpuBuffer, GpuProgram, Step, Tap, When
from edgedec.runtime.gpu.slots import Slots
from edgedec.runtime.gpu.weights import read_part
from edgedec.runtime.model_graph import bundle_graph, embedding_name
from edgedec.schemes import FloatScheme, Int8Scheme, Scheme

__all__ = ["GraphLowering", "bundle_layout", "constants", "lower"]

MOST_MOVES = 512  # pairs of rows that one submission moves
_ACTIVATIONS, _LOGITS = "activations", "logits"


class GraphLowering:
    """The layout of a program under construction.

    Members:
        graph: the graph.
        tensors: the tensors of its weights.
        binding_bytes: largest buffer that a kernel can read.
        layout: the layout so far.
    """

    def __init__(
        self,
        graph: Graph,
        tensors: Mapping[str, Tensor],
        *,
        ids: int,
        taps: Sequence[str],
        binding_bytes: int,
        embeds_only: bool,
    ) -> None:
        self.graph, self.tensors, self.binding_bytes = graph, tensors, binding_bytes
        name = embedding_name(graph)
        vocab, width = graph.weights[name].shape
        self.layout = ProgramLayout(
            operations=graph.operations,
            embedding=name,
            embeds_only=embeds_only,
            vocab=vocab,
            width=width,
            ids=ids,
        )
        self._slots, self._taps = Slots(), tuple(taps)
        self._places: dict[str, ValuePlace] = {}

    def build(self) -> ProgramLayout:
        """Return the layout.

        Raises:
            UnsupportedError: an operation cannot be lowered, or a tap names no value.
        """
        self._inputs()
        nodes = group_operations(self.graph, self._taps)
        last = {name: number for number, node in enumerate(nodes) for name in node.inputs}
        kept = {*self._taps, *self.graph.outputs}
        for number, node in enumerate(nodes):
            self._lower(node)
            for name in (*node.inputs, *node.outputs):
                if last.get(name, -1) <= number and name not in kept:
                    self._slots.release(name)
        self._outputs()
        for (name, results), words in self._slots.words.items():
            self.layout.buffers[name] = BufferPlan(
                words=partial(_per_result if results else _per_row, words=words), kind="activation", item=_ACTIVATIONS
            )
        return self.layout

    def _inputs(self) -> None:
        width = self.layout.width
        self.buffer("embeds", BufferPlan(words=partial(_per_row, words=width), kind="input", item="embeds"))
        self.buffer("moves", BufferPlan(words=lambda sizes: 1 + 2 * MOST_MOVES, kind="input", item="moves"))
        for state in self.graph.states.values():
            self.buffer(state.name, state_plan(state))
            self.dispatch(f"{state.name}.moves", partial(_mover, state), ("moves", state.name), when="moves")

    def _outputs(self) -> None:
        layout = self.layout
        (output,) = self.graph.outputs
        place = self.place(output)
        if not place.results or place.width != layout.vocab:
            raise UnsupportedError(f"the GPU returns logits of selected rows, and {output!r} has other rows or columns")
        k = layout.top_k
        for name in ("top_ids", "top_logits"):
            self.buffer(name, BufferPlan(words=partial(_per_result, words=k), kind="output", item=_LOGITS))

        def likeliest(part: int, options: ShaderOptions, sizes: Sizes) -> Kernel:
            kernel = top_k(options, vocab=layout.vocab, k=k, size=layout.ids)[part]
            assert isinstance(kernel, Kernel)
            return kernel

        one = ShaderOptions(head=HeadLayout(rows=1, results=1, blocks=1))
        words = top_k(one, vocab=layout.vocab, k=k, size=layout.ids).scratch
        found = self.scratch("found", partial(_per_result, words=words))
        self.dispatch("likeliest tokens of parts", partial(likeliest, 0), ("logits", found), when="top")
        self.dispatch("likeliest tokens", partial(likeliest, 1), (found, "top_ids", "top_logits"), when="top")
        for name in self._taps:
            if name not in self._places:
                raise UnsupportedError(f"the graph has no value {name!r} to return")
            place = self._places[name]
            if place.columns != Columns(offset=0, stride=place.width):
                raise UnsupportedError(f"the GPU cannot return {name!r}, a part of a wider value; use --device cpu")
        layout.taps = {name: self._places[name] for name in self._taps}

    # For the modules that lower one kind of node

    def buffer(self, name: str, plan: BufferPlan) -> str:
        """Add a buffer, unless there is one of this name, and return the name."""
        self.layout.buffers.setdefault(name, plan)
        return name

    def constant(
        self,
        name: str,
        words: Callable[[Sizes], int] | int,
        make: Callable[[Bundle, Sizes], Any],
        item: str = "weights",
    ) -> str:
        """Add a constant, unless there is one of this name, and return the name."""
        count = words if callable(words) else partial(_fixed, words=words)
        return self.buffer(name, BufferPlan(words=count, kind="constant", item=item, make=make))

    def floats(self, weight: str, add: float = 0.0) -> str:
        """Add a float weight as float32, with ``add`` added to it, and return the name of the constant."""
        (count,) = self.graph.weights[weight].shape
        name = f"{weight} + {add:g}" if add else weight

        def make(bundle: Bundle, sizes: Sizes) -> NDArray[np.float32]:
            values = bundle.weight(weight).dense()
            return values + np.float32(add) if add else values

        return self.constant(name, count, make)

    def place(self, value: str) -> ValuePlace:
        """Return the place of a value."""
        return self._places[value]

    def new(self, value: str, words: int, width: int | None = None, *, results: bool) -> ValuePlace:
        """Give a value a slot of ``words`` words a row, and return its place."""
        place = ValuePlace(
            buffer=self._slots.take(words, value, results=results),
            columns=Columns(offset=0, stride=words),
            width=width or words,
            results=results,
        )
        self._places[value] = place
        return place

    def new_beside(self, values: Sequence[tuple[str, int]], *, results: bool) -> list[ValuePlace]:
        """Give values of the widths one slot, in which they lie beside one another, and return their places."""
        total, start, places = sum(width for _, width in values), 0, []
        name = self._slots.take(total, *(value for value, _ in values), results=results)
        for value, width in values:
            place = ValuePlace(buffer=name, columns=Columns(offset=start, stride=total), width=width, results=results)
            self._places[value] = place
            places.append(place)
            start += width
        return places

    def new_output(self, value: str, width: int) -> ValuePlace:
        """Give the logits a buffer of their own, and return its place."""
        self.buffer("logits", BufferPlan(words=partial(_per_result, words=width), kind="output", item=_LOGITS))
        self._places[value] = ValuePlace(
            buffer="logits", columns=Columns(offset=0, stride=width), width=width, results=True
        )
        return self._places[value]

    def scratch(self, name: str, words: Callable[[Sizes], int]) -> str:
        """Add a buffer that all nodes of a kind share, and return its name."""
        return self.buffer(name, BufferPlan(words=words, kind="activation", item=_ACTIVATIONS))

    def release(self, value: str) -> None:
        """Let other values have the slot of a value that is not read any more."""
        self._slots.release(value)

    def dispatch(
        self,
        name: str,
        build: Callable[[ShaderOptions, Sizes], Kernel],
        buffers: Sequence[str],
        *,
        results: bool = False,
        when: When = "pass",
    ) -> None:
        """Add a step. With ``results``, its rows are the result rows, and there are as many workgroups."""
        if results:
            build, when = partial(_on_results, build), "results"
        self.layout.dispatches.append(Dispatch(name=name, build=build, buffers=tuple(buffers), when=when))

    # Nodes

    def _lower(self, node: FusedNode) -> None:
        first = node.operations[0]
        if node.operations[-1].kind == "attention":
            lower_attention(self, node)
        elif first.kind == "linear":
            lower_linear(self, node)
        elif isinstance(first, Embed):
            self._embed(node, first)
        elif isinstance(first, SelectRows):
            self._select(node)
        elif isinstance(first, Add):
            self._add(node)
        elif isinstance(node.operations[-1], QuantizeActivation):
            self._quantize(node)
        elif isinstance(first, RmsNorm):
            self._norm(node, first)
        elif isinstance(first, Hadamard):
            self._hadamard(node, first)
        else:
            assert isinstance(first, GatedActivation)
            self._gate(node, first)

    def _width(self, value: str) -> int:
        width = self.graph.values[value].shape[-1]
        assert isinstance(width, int)
        return width

    def _embed(self, node: FusedNode, op: Embed) -> None:
        width, tensor = self.layout.width, self.tensors[op.weight]
        place = self.new(node.outputs[0], width, results=False)
        scheme: Scheme = FloatScheme()
        tables, tiled = ["embeds"], False  # no row has an id, so the table is not read
        if not self.layout.embeds_only:
            scheme, (tables, tiled) = tensor.scheme, self._tables(op.weight, tensor)
        self.dispatch(
            node.name,
            lambda options, sizes: embed(options, width=width, scheme=scheme, scale=op.scale, tiled=tiled),
            (*tables, "embeds", place.buffer),
        )

    def _tables(self, weight: str, tensor: Tensor) -> tuple[list[str], bool]:
        """Return the names of an embedding's table and scales, and True if they are those of the head's product."""
        scheme = tensor.scheme
        tied = any(weight in op.weights for op in self.graph.operations if isinstance(op, Linear))
        if isinstance(scheme, Int8Scheme) and tied and tensor.count <= self.binding_bytes // 2:
            return [f"{weight}.codes", f"{weight}.scales"], True  # ``lower_linear`` adds them
        part = "codes" if isinstance(scheme, Int8Scheme) else "values"
        vocab, width = tensor.shape
        size = scheme.parts(tensor.shape)[part].dtype.itemsize
        names = [
            self.constant(
                f"{weight}.table",
                vocab * -(-width * size // 4),
                lambda bundle, sizes: pack_embedding(read_part(bundle, weight, part)),
            )
        ]
        if isinstance(scheme, Int8Scheme):
            names.append(
                self.constant(f"{weight}.row_scales", vocab, lambda bundle, sizes: read_part(bundle, weight, "scale"))
            )
        return names, False

    def _select(self, node: FusedNode) -> None:
        x = self.place(node.inputs[0])
        place = self.new(node.outputs[0], x.width, results=True)
        self.dispatch(
            node.name,
            lambda options, sizes: rows.select(options, width=x.width),
            (x.buffer, place.buffer),
            when="results",
        )

    def _add(self, node: FusedNode) -> None:
        a, b = (self.place(name) for name in node.inputs)
        place = self.new(node.outputs[0], a.width, results=a.results)
        self.dispatch(
            node.name,
            lambda options, sizes: rows.add(options, width=a.width, a=a.columns, b=b.columns),
            (a.buffer, b.buffer, place.buffer),
            results=a.results,
        )

    def _norm(self, node: FusedNode, op: RmsNorm) -> None:
        x, (width,) = self.place(node.inputs[0]), self.graph.weights[op.weight].shape
        place = self.new(node.outputs[0], x.width, results=x.results)
        self.dispatch(
            node.name,
            lambda options, sizes: rows.norm(options, width=width, eps=op.eps, heads=op.heads, x=x.columns),
            (x.buffer, self.floats(op.weight, op.offset), place.buffer),
            results=x.results,
        )

    def _hadamard(self, node: FusedNode, op: Hadamard) -> None:
        x = self.place(node.inputs[0])
        signs = (
            self.floats(op.signs) if op.signs else self.constant(f"ones {x.width}", x.width, partial(_ones, x.width))
        )
        place = self.new(node.outputs[0], x.width, results=x.results)
        self.dispatch(
            node.name,
            lambda options, sizes: rows.hadamard(
                options, width=x.width, block=op.block, inverse=op.inverse, x=x.columns
            ),
            (x.buffer, signs, place.buffer),
            results=x.results,
        )

    def _gate(self, node: FusedNode, op: GatedActivation) -> None:
        gate, up = (self.place(name) for name in node.inputs)
        place = self.new(node.outputs[0], gate.width, results=gate.results)
        self.dispatch(
            node.name,
            lambda options, sizes: rows.gate(
                options, width=gate.width, activation=op.activation, gate=gate.columns, up=up.columns
            ),
            (gate.buffer, up.buffer, place.buffer),
            results=gate.results,
        )

    def _quantize(self, node: FusedNode) -> None:
        """Lower a quantization with the operations before it."""
        operations, inputs = node.operations[:-1], [self.place(name) for name in node.inputs]
        x, codes, scale = inputs[0], *node.outputs
        to = self.new(codes, code_stride(x.width), x.width, results=x.results)
        scales = self.new(scale, 1, results=x.results)
        self.dispatch(
            node.name,
            partial(_quantizer, operations, inputs),
            (
                *(place.buffer for place in inputs),
                *(self.floats(op.weight, op.offset) for op in operations if isinstance(op, RmsNorm)),
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


def _fixed(sizes: Sizes, words: int) -> int:
    return words


def _per_row(sizes: Sizes, words: int) -> int:
    return words * sizes.rows


def _per_result(sizes: Sizes, words: int) -> int:
    return words * sizes.results


def _on_results(build: Callable[[ShaderOptions, Sizes], Kernel], options: ShaderOptions, sizes: Sizes) -> Kernel:
    """Return a kernel of rows for the result rows."""
    kernel = build(options, sizes)

    def swapped(count: Count) -> Count:
        return replace(count, rows=0, results=count.rows + count.results)

    groups = Groups(x=swapped(kernel.groups.x), y=swapped(kernel.groups.y), z=swapped(kernel.groups.z))
    return replace(kernel, groups=groups)


def _mover(state: KvState, options: ShaderOptions, sizes: Sizes) -> Kernel:
    return move_rows(options, cache=cache_shape(state, sizes))


def bundle_layout(
    bundle: Bundle,
    kv_bits: int,
    *,
    taps: Sequence[str] = (),
    binding_bytes: int = 1 << 27,
    embeds_only: bool = True,
) -> ProgramLayout:
    """Return the layout of a bundle's program, which is kept as long as the bundle.

    Args:
        bundle: the model.
        kv_bits: bits of keys and values.
        taps: values that passes can return.
        binding_bytes: largest buffer that a kernel can read; larger matrices are divided.
        embeds_only: True if the host looks embeddings up, which takes no memory of the device.

    Raises:
        UnsupportedError: an operation cannot be lowered; the message names it.
    """
    key = ("gpu_layout", kv_bits, tuple(taps), binding_bytes, embeds_only)
    if key not in bundle.derived:
        bundle.derived[key] = GraphLowering(
            bundle_graph(bundle, kv_bits),
            bundle.tensors,
            ids=bundle.tokens.size,
            taps=taps,
            binding_bytes=binding_bytes,
            embeds_only=embeds_only,
        ).build()
    layout: ProgramLayout = bundle.derived[key]
    return layout


def head_layout(sizes: Sizes) -> HeadLayout:
    """Return the layout of the header of a run."""
    return HeadLayout(rows=sizes.rows, results=sizes.results, blocks=sizes.table_blocks)


def lower(
    layout: ProgramLayout, sizes: Sizes, *, fused: bool, packed_dot: bool = True, compact: bool = False
) -> GpuProgram:
    """Return the program of a layout.

    Args:
        layout: the layout.
        sizes: numbers of rows.
        fused: True if the device's fma has one rounding.
        packed_dot: True if its compiler has ``dot4I8Packed``.
        compact: True for the form of the kernels that suits software drivers.
    """
    head = head_layout(sizes)
    options = ShaderOptions(head=head, fused=fused, packed_dot=packed_dot, compact=compact)
    buffers = [GpuBuffer(name="head", nbytes=4 * head.words, kind="input", item="head")]
    for name, plan in layout.buffers.items():
        buffers.append(GpuBuffer(name=name, nbytes=4 * plan.words(sizes), kind=plan.kind, item=plan.item))
    index = {buffer.name: number for number, buffer in enumerate(buffers)}
    kernels: dict[Kernel, int] = {}
    steps = []
    for dispatch in layout.dispatches:
        kernel = dispatch.build(options, sizes)
        number = kernels.setdefault(kernel, len(kernels))
        places = (0, *(index[name] for name in dispatch.buffers))
        steps.append(Step(name=dispatch.name, kernel=number, buffers=places, when=dispatch.when))
    return GpuProgram(
        rows=sizes.rows,
        results=sizes.results,
        cache_blocks=sizes.cache_blocks,
        positions=sizes.positions,
        vocab=layout.vocab,
        width=layout.width,
        top_k=layout.top_k,
        most_moves=MOST_MOVES,
        embeds_only=layout.embeds_only,
        layout=head,
        buffers=tuple(buffers),
        kernels=tuple(kernels),
        steps=tuple(steps),
        head=0,
        embeds=index["embeds"],
        moves=index["moves"],
        logits=index["logits"],
        top_ids=index["top_ids"],
        top_logits=index["top_logits"],
        taps={
            name: Tap(buffer=index[place.buffer], width=place.width, results=place.results)
            for name, place in layout.taps.items()
        },
    )


def constants(bundle: Bundle, layout: ProgramLayout, sizes: Sizes) -> dict[str, Callable[[], NDArray[Any]]]:
    """Return a maker of the contents of each constant, by name of its buffer."""
    return {name: partial(plan.make, bundle, sizes) for name, plan in layout.buffers.items() if plan.make is not None}
