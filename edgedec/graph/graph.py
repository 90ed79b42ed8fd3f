"""A model as a graph: typed values in SSA form, operations in topological order, explicit state.

A family builds one from a configuration; the passes rewrite it; the reference interprets it; ``edgedec.onnx`` and the
accelerator's compiler lower it. No executor knows a family.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Literal

from edgedec.errors import UnsupportedError
from edgedec.graph.low_rank import KeyBasis
from edgedec.graph.ops import Attention, GatedDeltaRule, Linear, Operation, Split
from edgedec.graph.selection import Selection

__all__ = ["FEATURES_INPUT", "Graph", "KvState", "RecurrentState", "Value", "WeightSpec", "check_no_features"]

FEATURES_INPUT = "features"  # name of the input [n, width] of values that ride beside the ids


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
        bits: 32 for float32, 16 for float16, and with a float32 scale per row and head, 8 for int8 codes (absmax / 127) and
            4 for codes from -7 to 7 (absmax / 7).
        window: number of last positions that are visible, besides the first ``sinks``; None: all positions are visible.
        capacity: rows that are kept, all of a sequence ("full"), or those that a window can show ("ring", see
            capacity.py). A family declares the window, and the pass ``windows_as_rings`` makes rings of windows.
        selection: the keys that a query attends to, of those that it sees; None: all of them.
        basis: the directions in which keys are stored before their rotation; None: keys are stored as they are. Only with a
            selection.
        offload: True if values may lie in a file, of which those that queries choose are read. Only with a selection.

    Raises:
        UnsupportedError: the window has no position, a ring has no window, a selection has one or is not for these heads, or
            there is a basis or an offload without a selection.
    """

    name: str
    kv_heads: int
    head_dim: int
    bits: int = 32
    window: int | None = None
    sinks: int = 0
    capacity: Literal["full", "ring"] = "full"
    selection: Selection | None = None
    basis: KeyBasis | None = None
    offload: bool = False

    def __post_init__(self) -> None:
        if self.window is not None and self.window < 1:
            raise UnsupportedError(f"state {self.name}: a window must have at least 1 position, not {self.window}")
        if self.sinks < 0:
            raise UnsupportedError(f"state {self.name}: a window must have 0 or more sinks, not {self.sinks}")
        if self.capacity == "ring" and self.window is None:
            raise UnsupportedError(f"state {self.name}: a ring must have a window")
        if self.selection is not None:
            if self.window is not None:
                raise UnsupportedError(f"state {self.name}: keys can be chosen only where all positions are visible")
            self.selection.check_heads(self.kv_heads, self.head_dim, self.name)
        elif self.basis is not None or self.offload:
            raise UnsupportedError(f"state {self.name}: values in a file and keys of a basis need a selection of keys")
        if self.basis is not None:
            self.basis.check_heads(self.kv_heads, self.head_dim, self.name)

    def row_bytes(self) -> int:
        """Return the bytes of the keys and values of one position, without scales."""
        return self.kv_heads * (self.key_bytes + self.value_bytes)

    @property
    def key_bytes(self) -> int:
        """Bytes of the stored key of one position and head, without its scale."""
        return self._stored_bytes(self.head_dim if self.basis is None else self.basis.rank)

    @property
    def value_bytes(self) -> int:
        """Bytes of the value of one position and head, without its scale."""
        return self._stored_bytes(self.head_dim)

    def _stored_bytes(self, numbers: int) -> int:
        """Return the bytes of numbers in the cache. Codes of 4 bits are stored in groups of 16."""
        return (-(-numbers // 16) * 16 if self.bits == 4 else numbers) * self.bits // 8

    @property
    def label_bytes(self) -> int:
        """Bytes of the labels of one position, by which keys are chosen; 0: no query chooses keys."""
        return 0 if self.selection is None else self.kv_heads * self.selection.label_bytes


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

    ``states`` grow with the positions, and ``recurrent`` ones do not. ``inputs`` are "ids", "positions" and "rows", and
    "features" float32 [n, width] if the model reads such values beside the ids, as the head of a drafter does.

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
        self._check_features()
        defined = {value.name for value in self.inputs}
        appended = dict[str, tuple[str, ...]]()
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
            if isinstance(operation, Attention):
                keys = appended.setdefault(operation.state, operation.inputs[1:])
                if keys != operation.inputs[1:]:
                    raise UnsupportedError(
                        f"operation {operation.name} appends {operation.inputs[1:]} to the state {state!r}, which another "
                        f"attention fills with {keys}"
                    )
        for name in self.outputs:
            if name not in defined:
                raise UnsupportedError(f"graph output {name!r} is never defined")

    def _check_features(self) -> None:
        for value in self.inputs:
            if value.name != FEATURES_INPUT:
                continue
            rows, width = value.shape if len(value.shape) == 2 else ("", 0)
            if rows != "n" or not isinstance(width, int) or width < 1 or value.dtype != "float32":
                raise UnsupportedError(
                    f"the graph's input 'features' must be float32 [n, width], not {value.dtype} {list(value.shape)}"
                )
            if all(FEATURES_INPUT not in operation.inputs for operation in self.operations):
                raise UnsupportedError("no operation reads the graph's input 'features'")

    @property
    def features(self) -> int:
        """The width of the input "features", which passes must have beside their ids; 0: there is none."""
        widths = (value.shape[1] for value in self.inputs if value.name == FEATURES_INPUT)
        return int(next(widths, 0))

    def readers(self) -> Mapping[str, Sequence[Operation]]:
        """Return the operations that read each value, in their order; values that nothing reads are absent."""
        readers: dict[str, list[Operation]] = {}
        for op in self.operations:
            for name in op.inputs:
                readers.setdefault(name, []).append(op)
        return readers

    def last_uses(self) -> Mapping[str, int]:
        """Return the index of the last operation that reads each value; for an output, the number of operations."""
        last = {name: index for index, operation in enumerate(self.operations) for name in operation.inputs}
        return last | {name: len(self.operations) for name in self.outputs}

    def steering_weights(self) -> tuple[str, ...]:
        """Return the names of the narrow matrices that give gated delta nets their rates and steps, directly or split.

        Ternary models have floats there, because the values steer the decay of a state.
        """
        steering = {name for op in self.operations if isinstance(op, GatedDeltaRule) for name in op.steering}
        steering |= {op.inputs[0] for op in self.operations if isinstance(op, Split) and steering & set(op.outputs)}
        return tuple(
            weight
            for op in self.operations
            if isinstance(op, Linear)
            for weight, output in zip(op.weights, op.outputs, strict=True)
            if output in steering
        )


def check_no_features(graph: Graph, executor: str) -> None:
    """Check that a graph reads ids alone, for executors that take nothing beside them.

    Args:
        graph: the graph.
        executor: the executor's name for the message, such as "the accelerator".

    Raises:
        UnsupportedError: the graph has an input for features.
    """
    if graph.features:
        raise UnsupportedError(
            f"{executor} has no input for features, of which the model reads {graph.features} beside each id; run it with "
            "--device cpu, gpu or float_reference"
        )
