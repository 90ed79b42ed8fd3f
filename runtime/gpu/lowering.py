"""Lower a graph to the layout of a program, for any limits. ``sized_program.py`` makes the program for some.

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
from edgedec.graph.graph import FEATURES_INPUT, Graph, KvState
from edgedec.graph.ops import Embed, Linear
from edgedec.runtime.gpu.attending import cache_shape, lower_attention, state_plan
from edgedec.runtime.gpu.fusion import FusedNode, group_operations
from edgedec.runtime.gpu.kernels.embedding import embed, pack_embedding
from edgedec.runtime.gpu.kernels.head import HeadLayout
from edgedec.runtime.gpu.kernels.kernel import Count, Groups, Kernel
from edgedec.runtime.gpu.kernels.results import exp_sums, move_rows, sum_parts, top_k
from edgedec.runtime.gpu.kernels.rows import Columns
from edgedec.runtime.gpu.kernels.source import ShaderOptions
from edgedec.runtime.gpu.layout import MOST_MOVES, BufferPlan, Dispatch, ProgramLayout, Sizes, ValuePlace
from edgedec.runtime.gpu.matrices import lower_linear
from edgedec.runtime.gpu.program import When
from edgedec.runtime.gpu.row_nodes import lower_rows
from edgedec.runtime.gpu.slots import Slots
from edgedec.runtime.gpu.weights import read_part
from edgedec.runtime.model_graph import bundle_graph, embedding_name
from edgedec.schemes import FloatScheme, Int8Scheme, Scheme

__all__ = ["GraphLowering", "bundle_layout"]

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
        if features := self.graph.features:
            self.buffer(
                FEATURES_INPUT, BufferPlan(words=partial(_per_row, words=features), kind="input", item=FEATURES_INPUT)
            )
            self._places[FEATURES_INPUT] = ValuePlace(
                buffer=FEATURES_INPUT, columns=Columns(offset=0, stride=features), width=features, results=False
            )
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

        def sums(options: ShaderOptions, sizes: Sizes) -> Kernel:
            return exp_sums(options, vocab=layout.vocab, k=k, size=layout.ids)

        words = 2 * sum_parts(layout.ids)
        self.buffer("top_sums", BufferPlan(words=partial(_per_result, words=words), kind="output", item=_LOGITS))
        self.dispatch("sums of exponentials", sums, ("logits", "top_logits", "top_sums"), when="sums")
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
        else:
            lower_rows(self, node)

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
