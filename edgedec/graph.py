"""A model as a graph: typed values in SSA form, operations in topological order, explicit state.

A family builds one from a configuration; the passes rewrite it; the reference interprets it; ``edgedec.onnx`` and the
accelerator's compiler lower it. No executor knows a family.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Literal

from edgedec.errors import UnsupportedError
from edgedec.ops import Operation

__all__ = ["Graph", "KvState", "RecurrentState", "Value", "WeightSpec"]


@dataclass(frozen=True, kw_only=True)
class Value:
    """A named value. Its shape has sizes and the symbols "n", rows of the pass, and "r", rows whose logits are requested."""

    name: str
    shape: tuple[int | str, ...]
    dtype: str = "float32"


@dataclass(frozen=True, kw_only=True)
class KvState:
    """Keys and values of one attention: two arrays [positions, kv_heads, head_dim].

    Members:
        bits: 32 for float32, 16 for float16, 8 for int8 codes with a float32 scale per row and head, absmax / 127.
        window: number of last positions that are visible, besides the first ``sinks``; None: all positions are visible.
        capacity: rows that are kept, all of a sequence ("full"), or those that a window can show ("ring", see
            edgedec/capacity.py). A family declares the window, and the pass ``windows_as_rings`` makes rings of windows.

    Raises:
        UnsupportedError: the window has no position, or a ring has no window.
    """

    name: str
    kv_heads: int
    head_dim: int
    bits: int = 32
    window: int | None = None
    sinks: int = 0
    capacity: Literal["full", "ring"] = "full"

    def __post_init__(self) -> None:
        if self.window is not None and self.window < 1:
            raise UnsupportedError(f"state {self.name}: a window must have at least 1 position, not {self.window}")
        if self.sinks < 0:
            raise UnsupportedError(f"state {self.name}: a window must have 0 or more sinks, not {self.sinks}")
        if self.capacity == "ring" and self.window is None:
            raise UnsupportedError(f"state {self.name}: a ring must have a window")

    def row_bytes(self) -> int:
        """Return the bytes of the keys and values of one position."""
        return 2 * self.kv_heads * self.head_dim * self.bits // 8


@dataclass(frozen=True, kw_only=True)
class RecurrentState:
    """A float32 array of a constant size, which each row replaces by one that it computes from that of the row before it.

    Its bytes do not depend on the number of positions. What a row replaced is gone, so it cannot go back by itself.
    """

    name: str
    shape: tuple[int, ...]

    def sequence_bytes(self) -> int:
        """Return the bytes that a sequence takes."""
        return 4 * prod(self.shape)


@dataclass(frozen=True, kw_only=True)
class WeightSpec:
    """The shape of a weight, [out, in] for a matrix."""

    shape: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Graph:
    """A model. Every value must be defined once and before its use, and every weight and state must be declared.

    ``states`` grow with the positions, and ``recurrent`` ones do not.

    Raises:
        UnsupportedError: the graph is not well formed; the message names the operation and the value.
    """

    inputs: tuple[Value, ...]
    outputs: tuple[str, ...]
    operations: tuple[Operation, ...]
    values: Mapping[str, Value]
    weights: Mapping[str, WeightSpec]
    states: Mapping[str, KvState] = field(default_factory=dict)
    recurrent: Mapping[str, RecurrentState] = field(default_factory=dict)

    def __post_init__(self) -> None:
        defined = {value.name for value in self.inputs}
        for operation in self.operations:
            for name in operation.inputs:
                if name not in defined:
                    raise UnsupportedError(f"operation {operation.name} reads {name!r} before it is defined")
            for name in operation.outputs:
                if name in defined:
                    raise UnsupportedError(f"operation {operation.name} defines {name!r} a second time")
                if name not in self.values:
                    raise UnsupportedError(f"operation {operation.name} defines {name!r}, which has no declared shape")
                defined.add(name)
            for name in operation.weight_names:
                if name not in self.weights:
                    raise UnsupportedError(f"operation {operation.name} needs the undeclared weight {name!r}")
            state = getattr(operation, "state", None)
            if state is not None and state not in self.states and state not in self.recurrent:
                raise UnsupportedError(f"operation {operation.name} needs the undeclared state {state!r}")
        for name in self.outputs:
            if name not in defined:
                raise UnsupportedError(f"graph output {name!r} is never defined")

    def last_uses(self) -> Mapping[str, int]:
        """Return the index of the last operation that reads each value; for an output, the number of operations."""
        last = {name: index for index, operation in enumerate(self.operations) for name in operation.inputs}
        return last | {name: len(self.operations) for name in self.outputs}
