"""Insert the rotations of weights that are stored rotated.

The configuration's key ``hadamard`` names these weights. Every family can have it, because the operation stands between two
operations of the family: before the linears that read a value, or after the embedding.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from edgedec.bundle.manifest import ROTATED_WEIGHTS
from edgedec.errors import BundleError, UnsupportedError
from edgedec.graph.graph import Graph, Value, WeightSpec
from edgedec.graph.ops import Embed, Hadamard, Linear, Operation

__all__ = ["hadamard_signs", "insert_rotations"]

_KEYS = {"block_size", "signs", "weights", "inverse_weights"}
_HEAD = "lm_head.weight"  # name of the head in the key, also if its weight is the embedding


def hadamard_signs(width: int) -> str:
    """Return the name of the weight [width] with the signs of values of this width."""
    return f"hadamard.signs.{width}"


@dataclass(frozen=True, kw_only=True)
class _Rotations:
    """The content of the key. ``weights`` are those of linears, ``inverse_weights`` those of embeddings."""

    block_size: int
    signs: bool
    weights: frozenset[str]
    inverse_weights: frozenset[str]


def _read(entry: Any) -> _Rotations:
    if not isinstance(entry, dict) or set(entry) != _KEYS:
        raise BundleError(
            f"configuration: {ROTATED_WEIGHTS} must have {', '.join(sorted(_KEYS))}, not {reprlib.repr(entry)}; quantize "
            "the checkpoint again"
        )
    block, signs = entry["block_size"], entry["signs"]
    if type(block) is not int or not isinstance(signs, bool):
        raise BundleError(
            f"configuration: block_size and signs of {ROTATED_WEIGHTS} must be an integer and a truth value, not "
            f"{reprlib.repr(block)} and {reprlib.repr(signs)}"
        )
    lists = {}
    for key in ("weights", "inverse_weights"):
        names = entry[key]
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise BundleError(
                f"configuration: {key} of {ROTATED_WEIGHTS} must be a list of names, not {reprlib.repr(names)}"
            )
        lists[key] = frozenset(names)
    return _Rotations(block_size=block, signs=signs, **lists)


def insert_rotations(graph: Graph, config: Mapping[str, Any]) -> Graph:
    """Return a family's graph with the operations ``hadamard`` of the configuration, or the graph itself without any.

    Linears that read the same value share its rotation, which stands before the first of them and is named after the value:
    ``VALUE.hadamard``. An embedding's rotation back is named likewise, and its rows of the pass's embeds are rotated, too.

    Raises:
        BundleError: the key is damaged, or names a weight that no linear or embedding reads.
        UnsupportedError: the block is not a power of two, or the columns of a value are no multiple of it.
    """
    if config.get(ROTATED_WEIGHTS) is None:
        return graph
    return _Insertion(graph, _read(config[ROTATED_WEIGHTS])).graph()


class _Insertion:
    def __init__(self, graph: Graph, rotations: _Rotations) -> None:
        self._graph, self._rotations = graph, rotations
        self._operations: list[Operation] = []
        self._values, self._weights = dict(graph.values), dict(graph.weights)
        self._renamed: dict[str, str] = {}  # embeddings' values, whose readers read the value that was rotated back
        self._left = {*rotations.weights, *rotations.inverse_weights}

    def graph(self) -> Graph:
        for operation in self._graph.operations:
            inputs = tuple(self._renamed.get(name, name) for name in operation.inputs)
            self._add(replace(operation, inputs=inputs))
        if self._left:
            raise BundleError(
                f"configuration: {ROTATED_WEIGHTS} names {reprlib.repr(min(self._left))}, which the model does not read as "
                "it says; quantize the checkpoint again"
            )
        return replace(self._graph, operations=tuple(self._operations), values=self._values, weights=self._weights)

    def _add(self, operation: Operation) -> None:
        if isinstance(operation, Linear):
            (weight,) = operation.weights
            name = _HEAD if operation.outputs[0] in self._graph.outputs else weight
            if name in self._rotations.weights:
                self._left.discard(name)
                (x,) = operation.inputs
                operation = replace(operation, inputs=(self._rotated(x, operation.name, inverse=False),))
        self._operations.append(operation)
        if isinstance(operation, Embed) and operation.weight in self._rotations.inverse_weights:
            self._left.discard(operation.weight)
            (x,) = operation.outputs
            self._renamed[x] = self._rotated(x, operation.name, inverse=True)

    def _rotated(self, x: str, reader: str, *, inverse: bool) -> str:
        """Return the name of a value after its rotation, which is added if it does not exist."""
        name, block = f"{x}.{ROTATED_WEIGHTS}", self._rotations.block_size
        if name in self._values:
            return name
        value = self._values[x]
        width = value.shape[1]
        assert isinstance(width, int)
        signs = hadamard_signs(width) if self._rotations.signs else None
        rotation = Hadamard(name=name, inputs=(x,), outputs=(name,), block=block, signs=signs, inverse=inverse)
        if width % block:
            raise UnsupportedError(
                f"operation {name}, which {reader} needs: the {width} columns are no multiple of the block of {block}"
            )
        self._operations.append(rotation)
        self._values[name] = Value(name=name, shape=value.shape)
        if signs:
            self._weights[signs] = WeightSpec(shape=(width,))
        return name
