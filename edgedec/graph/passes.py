"""Rewrites of a graph. Each returns a new graph, for which the reference must compute the same results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import groupby

from edgedec.errors import UsageError
from edgedec.graph.graph import Graph, Value
from edgedec.graph.ops import Linear, Operation, QuantizeActivation
from edgedec.schemes import FloatScheme, Scheme

__all__ = ["assign_schemes", "fuse_linears", "quantize_activations", "store_kv", "windows_as_rings"]


def assign_schemes(graph: Graph, schemes: Mapping[str, Scheme]) -> Graph:
    """Give every linear the scheme of its weight; weights that are not in ``schemes`` stay float."""
    operations = [
        replace(operation, schemes=tuple(schemes.get(weight, FloatScheme()) for weight in operation.weights))
        if isinstance(operation, Linear)
        else operation
        for operation in graph.operations
    ]
    return replace(graph, operations=tuple(operations))


def store_kv(graph: Graph, bits: int) -> Graph:
    """Store keys and values in ``bits``: 32 for float32, 16 for float16, 8 or 4 for codes with a scale per row and head.

    Raises:
        UsageError: ``bits`` is another number.
    """
    if bits not in (32, 16, 8, 4):
        raise UsageError(f"KV bits must be 32, 16, 8 or 4, not {bits}")
    return replace(graph, states={name: replace(state, bits=bits) for name, state in graph.states.items()})


def windows_as_rings(graph: Graph) -> Graph:
    """Let states with a window keep no more rows than the window can show, for executors that can drop rows."""
    return replace(
        graph,
        states={
            name: state if state.window is None else replace(state, capacity="ring")
            for name, state in graph.states.items()
        },
    )


def _is_quantized(operation: Operation) -> bool:
    return isinstance(operation, Linear) and not any(isinstance(scheme, FloatScheme) for scheme in operation.schemes)


def quantize_activations(graph: Graph) -> Graph:
    """Insert the quantize points of the float profile: one for each value that quantized linears read."""
    operations: list[Operation] = []
    values = dict(graph.values)
    quantized: set[str] = set()
    for operation in graph.operations:
        if not _is_quantized(operation):
            operations.append(operation)
            continue
        (source,) = operation.inputs
        codes, scale = f"{source}.codes", f"{source}.scale"
        if source not in quantized:
            quantized.add(source)
            rows, width = graph.values[source].shape
            values[codes] = Value(name=codes, shape=(rows, width), dtype="int8")
            values[scale] = Value(name=scale, shape=(rows, 1))
            operations.append(QuantizeActivation(name=f"{source}.quantize", inputs=(source,), outputs=(codes, scale)))
        operations.append(replace(operation, inputs=(codes, scale)))
    return replace(graph, operations=tuple(operations), values=values)


def _is_fusible(operation: Operation) -> bool:
    return isinstance(operation, Linear) and operation.soft_cap is None


def fuse_linears(graph: Graph) -> Graph:
    """Fuse neighbouring linears with the same input to one operation with several weights: q|k|v, gate|up.

    A linear with a soft-cap, which a head may have, is not fused, because an operation has one cap for all its weights.
    """
    operations: list[Operation] = []
    for (fusible, _), group in groupby(graph.operations, key=lambda op: (_is_fusible(op), op.inputs)):
        run = list(group)
        if not fusible or len(run) == 1:
            operations += run
            continue
        linears = [operation for operation in run if isinstance(operation, Linear)]
        operations.append(
            Linear(
                name="|".join(linear.name for linear in linears),
                inputs=linears[0].inputs,
                outputs=tuple(output for linear in linears for output in linear.outputs),
                weights=tuple(weight for linear in linears for weight in linear.weights),
                biases=tuple(bias for linear in linears for bias in linear.biases),
                schemes=tuple(scheme for linear in linears for scheme in linear.schemes),
            )
        )
    return replace(graph, operations=tuple(operations))
