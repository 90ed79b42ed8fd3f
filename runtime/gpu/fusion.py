"""Group the operations of a graph into nodes, each of which one kernel, or a few, compute.

A norm or a gate whose result is only quantized is one node with the quantization, so that the result itself is never stored;
a residual addition is part of the linear before it; a rotation is part of the attention that reads it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from edgedec.errors import UnsupportedError
from edgedec.graph.graph import Graph
from edgedec.graph.ops import (
    Add,
    Attention,
    GatedActivation,
    Hadamard,
    Linear,
    Operation,
    QuantizeActivation,
    RmsNorm,
    Rope,
)
from edgedec.runtime.gpu.kernels.rows import MOST_BLOCK

__all__ = ["FusedNode", "group_operations"]

_HINT = "run the model with --device cpu, or --device float_reference"
_KNOWN = (
    *("embed", "rms_norm", "quantize_activation", "linear", "gated_activation", "add", "select_rows", "attention"),
    "hadamard",
)


@dataclass(frozen=True, kw_only=True)
class FusedNode:
    """Operations that are computed together.

    Members:
        operations: the operations in the order of the graph.
        inputs: values that the node reads; those of a linear with a residual end with the residual.
        outputs: values that it makes.
    """

    operations: tuple[Operation, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @property
    def kind(self) -> str:
        """The kinds of its operations, as "rms_norm+quantize_activation"."""
        return "+".join(operation.kind for operation in self.operations)

    @property
    def name(self) -> str:
        """The names of its operations, for messages."""
        return "+".join(operation.name for operation in self.operations)


def group_operations(graph: Graph, taps: Collection[str] = ()) -> list[FusedNode]:
    """Return the nodes of a graph in an order in which each follows those whose values it reads.

    Values that ``taps`` names are kept, so that no node hides them.

    Raises:
        UnsupportedError: an operation cannot be lowered; the message names it and its layer.
    """
    for operation in graph.operations:
        if isinstance(operation, Attention) and graph.states[operation.state].selection is not None:
            raise UnsupportedError(
                f"the GPU cannot choose keys ({operation.name}), which the model's policy of keys and values does; {_HINT}; "
                "--kv-policy full runs it without the policy"
            )
    return _Grouping(graph, taps).nodes()


class _Grouping:
    def __init__(self, graph: Graph, taps: Collection[str]) -> None:
        self._graph, self._kept = graph, {*taps, *graph.outputs}
        self._readers: dict[str, list[Operation]] = {}
        for operation in graph.operations:
            for name in operation.inputs:
                self._readers.setdefault(name, []).append(operation)
        self._makers = {name: op for op in graph.operations for name in op.outputs}
        self._done: set[str] = set()  # names of operations that are part of an earlier node
        self._made = {value.name for value in graph.inputs}

    def nodes(self) -> list[FusedNode]:
        nodes = []
        for operation in self._graph.operations:
            if operation.name in self._done or self._waits(operation):
                continue
            node = self._node(operation)
            self._done.update(op.name for op in node.operations)
            self._made.update(node.outputs)
            nodes.append(node)
        return nodes

    def _waits(self, operation: Operation) -> bool:
        """Return True if a rotation is part of the attention that follows."""
        if not isinstance(operation, Rope):
            return False
        (output,) = operation.outputs
        readers = self._readers.get(output, [])
        if output in self._kept or len(readers) != 1 or not isinstance(readers[0], Attention):
            raise UnsupportedError(
                f"the GPU cannot run {operation.kind!r} ({operation.name}): it rotates queries and keys only as a part of "
                f"their attention, and this value has another reader; {_HINT}"
            )
        return True

    def _node(self, operation: Operation) -> FusedNode:
        if operation.kind not in _KNOWN:
            raise UnsupportedError(
                f"the GPU cannot run {operation.kind!r} ({operation.name}): it has no lowering in runtime/gpu; {_HINT}"
            )
        if isinstance(operation, Hadamard) and operation.block > MOST_BLOCK:
            raise UnsupportedError(
                f"the GPU cannot run {operation.kind!r} ({operation.name}): its block of {operation.block} columns does not "
                f"fit the memory of a workgroup, which holds {MOST_BLOCK}; {_HINT}"
            )
        if isinstance(operation, Attention):
            return self._attention(operation)
        if isinstance(operation, Linear):
            return self._linear(operation)
        chain: list[Operation] = [operation]
        norm = self._only_reader(operation) if isinstance(operation, GatedActivation) else None
        if norm is not None and _is_whole_norm(norm) and isinstance(self._only_reader(norm), QuantizeActivation):
            chain.append(norm)
        if isinstance(chain[-1], GatedActivation) or _is_whole_norm(chain[-1]):
            quantize = self._only_reader(chain[-1])
            if isinstance(quantize, QuantizeActivation):
                chain.append(quantize)
        return FusedNode(operations=tuple(chain), inputs=operation.inputs, outputs=chain[-1].outputs)

    def _only_reader(self, operation: Operation) -> Operation | None:
        """Return the only reader of an operation's only value; None if it has several, or the value is kept."""
        (output,) = operation.outputs
        readers = self._readers.get(output, [])
        return readers[0] if len(readers) == 1 and output not in self._kept else None

    def _linear(self, operation: Linear) -> FusedNode:
        if len(operation.outputs) == 1 and operation.soft_cap is None:
            add = self._only_reader(operation)
            if isinstance(add, Add) and len(set(add.inputs)) == 2:
                (residual,) = set(add.inputs) - set(operation.outputs)
                if residual in self._made:
                    return FusedNode(
                        operations=(operation, add), inputs=(*operation.inputs, residual), outputs=add.outputs
                    )
        return FusedNode(operations=(operation,), inputs=operation.inputs, outputs=operation.outputs)

    def _attention(self, operation: Attention) -> FusedNode:
        """Return the node of an attention with the rotations of its queries and keys."""
        makers = [self._makers.get(name) for name in operation.inputs]
        if isinstance(makers[2], Rope):
            raise UnsupportedError(f"the GPU cannot rotate the values of {operation.name}; {_HINT}")
        rotations = [maker for maker in makers[:2] if isinstance(maker, Rope)]
        if rotations and not _alike(rotations):
            raise UnsupportedError(
                f"the GPU rotates the queries and keys of an attention alike, and {operation.name} has two rotations, or "
                f"one for either alone; {_HINT}"
            )
        sources = [
            maker.inputs[0] if isinstance(maker, Rope) else name
            for maker, name in zip(makers, operation.inputs, strict=True)
        ]
        return FusedNode(operations=(*rotations, operation), inputs=tuple(sources), outputs=operation.outputs)


def _is_whole_norm(operation: Operation) -> bool:
    return isinstance(operation, RmsNorm) and operation.heads == 1


def _alike(rotations: Sequence[Rope]) -> bool:
    return (
        len(rotations) == 2
        and len({(r.layout, r.inverse_frequencies, r.magnitude, r.head_dim) for r in rotations}) == 1
    )
