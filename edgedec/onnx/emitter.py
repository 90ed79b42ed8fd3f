"""Collect the nodes and initializers of an ONNX graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle.manifest import WEIGHTS, Tensor
from edgedec.graph.graph import Graph
from edgedec.graph.ops import Rope
from edgedec.onnx.fusion import FusedProgram, fuse, whole_program
from edgedec.onnx.kv_cache import CacheLayout
from edgedec.onnx.model_bytes import DataType, ExternalData, Node, TensorValue, ValueInfo, array_value, encode_model
from edgedec.onnx.recurrent_layout import RecurrentLayout

__all__ = ["CONTRIB", "KERNELS", "Emitter", "packed_names"]

CONTRIB = "com.microsoft"
KERNELS = "edgedec"  # domain of edgedec's own operators, see runtime/kernels
_OPSETS = {"": 21, CONTRIB: 1}
_ONNX_DTYPES = {
    "int8": DataType.INT8,
    "uint8": DataType.UINT8,
    "float32": DataType.FLOAT,
    "float16": DataType.FLOAT16,
    "bfloat16": DataType.BFLOAT16,
}
_DTYPES = {dtype: name for name, dtype in _ONNX_DTYPES.items()} | {DataType.INT64: "int64", DataType.INT32: "int32"}


def packed_names(weight: str) -> tuple[str, str]:
    """Return the ONNX names of a matrix's codes and scales in the kernels' layout."""
    return f"{weight}.packed_codes", f"{weight}.packed_scales"


@dataclass(kw_only=True)
class Emitter:
    """An ONNX graph under construction.

    Members:
        cache: the one buffer of keys and values of TreeAttention.
        recurrent: the slots of the recurrent states; None: there are none, or the session has no operators for them.
        bound: ONNX value of each graph value, [1, n, width] for activations.
        sources: float value of each value of int8 codes, because MatMulNBits quantizes by itself.
        rotations: operation of each rotated value without a node, because TreeAttention rotates by itself.
        packed: (bytes of codes, number of scales) of each matrix that the session receives in the kernels' layout.
        kernels: True if the session has edgedec's own operators, which then compute attention.
        fused_threads: threads of the session if its nodes of edgedec's own operators become fused nodes, else 0.
        pass_rows: the most rows of a pass, for which fused nodes make room at once; 0: unknown.
        unsigned_int8: True to multiply int8 matrices as uint8, with codes + 128 and zero point 128.
        arrays: large constants that the session receives beside the model, by name; None: the model holds them.
    """

    graph: Graph
    tensors: Mapping[str, Tensor]
    positions: int
    cache: CacheLayout
    recurrent: RecurrentLayout | None = None
    packed: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    kernels: bool = False
    unsigned_int8: bool = False
    fused_threads: int = 0
    pass_rows: int = 0
    arrays: dict[str, NDArray[Any]] | None = None
    taps: Sequence[str] = ()
    bound: dict[str, str] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    rotations: dict[str, Rope] = field(default_factory=dict)
    _nodes: list[Node] = field(default_factory=list)
    _inputs: list[ValueInfo] = field(default_factory=list)
    _outputs: list[ValueInfo] = field(default_factory=list)
    _initializers: dict[str, TensorValue] = field(default_factory=dict)

    def input(self, name: str, shape: Sequence[int | str], dtype: DataType = DataType.FLOAT) -> str:
        self._inputs.append(ValueInfo(name=name, dtype=dtype, shape=shape))
        return name

    def output(self, name: str, shape: Sequence[int | str], dtype: DataType = DataType.FLOAT) -> str:
        self._outputs.append(ValueInfo(name=name, dtype=dtype, shape=shape))
        return name

    def node(
        self,
        kind: str,
        inputs: Sequence[str],
        name: str,
        *,
        outputs: Sequence[str] = (),
        domain: str = "",
        **attrs: Any,
    ) -> str:
        """Append a node ``name``, and return its first output, which has the same name unless ``outputs`` is given."""
        outputs = list(outputs) or [name]
        self._nodes.append(Node(kind=kind, inputs=inputs, outputs=outputs, name=name, domain=domain, attributes=attrs))
        return outputs[0]

    def sum_of(self, first: str, second: str, name: str) -> str:
        """Add a node ``name`` that adds ``second``, of the same shape or one row, to ``first``, and return its output."""
        return self.node("Add", [first, second], name, domain=KERNELS if self.kernels else "")

    def product_of(self, first: str, second: str, name: str) -> str:
        """Add a node ``name`` that multiplies ``first`` by ``second``, of the same shape, one row, or one number [1]."""
        own = {"kind": "Multiply", "domain": KERNELS} if self.kernels else {"kind": "Mul"}
        return self.node(inputs=[first, second], name=name, **own)

    def columns(self, name: str, pieces: Sequence[tuple[str | None, int, int]]) -> str:
        """Add a node of edgedec's own operators with columns of several values side by side, and return its output.

        Args:
            name: name of the node and its output.
            pieces: ONNX value (None: zeros), first column and number of columns of each piece.
        """
        inputs = list(dict.fromkeys(value for value, _, _ in pieces if value is not None))
        at: dict[str | None, int] = {None: -1, **{value: number for number, value in enumerate(inputs)}}
        numbers = [number for value, *columns in pieces for number in (at[value], *columns)]
        if len(inputs) == 1:  # an operator that is not in a fused node must have two inputs at least
            inputs *= 2
        return self.node("Columns", inputs, name, domain=KERNELS, pieces=numbers)

    def has_constant(self, name: str) -> bool:
        """Return True if a constant or weight of this name was added."""
        return name in self._initializers

    def constant(self, name: str, value: NDArray[Any]) -> str:
        """Add a constant to the model itself, and return its name. Equal names must have equal values."""
        if name not in self._initializers:
            self._initializers[name] = array_value(name, value)
        return name

    def large_constant(self, name: str, value: NDArray[np.float32]) -> str:
        """Add a constant to ``arrays``, if the session receives them, or else to the model, and return its name.

        A constant of the model exists three times while the session is loaded: as an array, as bytes, and as what ONNX
        Runtime reads from them.
        """
        if self.arrays is None:
            return self.constant(name, value)
        self.arrays[name] = value
        self._external(name, value.shape, DataType.FLOAT, 0, value.nbytes)
        return name

    def rows_shape(self, *sizes: int) -> str:
        """Return the name of the shape [1, n, *sizes] for Reshape, which keeps a dimension that is 0."""
        return self.constant(f"shape.{'.'.join(map(str, sizes))}", np.array([0, 0, *sizes], np.int64))

    def weight(self, name: str, part: str, plane: int | None = None) -> str:
        """Add a part of a stored tensor, or one plane of it, as external data, which ONNX Runtime maps from the bundle."""
        tensor = self.tensors[name]
        spec, offset = tensor.scheme.parts(tensor.shape)[part], tensor.offsets[part]
        shape, nbytes, label = spec.shape, spec.nbytes, f"{name}.{part}"
        if plane is not None:
            nbytes //= shape[0]
            shape, offset, label = shape[1:], offset + plane * nbytes, f"{label}.{plane}"
        self._external(label, shape, _ONNX_DTYPES[spec.dtype.name], offset, nbytes)
        return label

    def packed_weight(self, name: str) -> tuple[str, ...]:
        """Add a matrix's codes and scales in the kernels' layout, as names and sizes only; some layouts have codes alone.

        The session receives the arrays (``SessionOptions.add_initializer``). The place in the bundle is never read, but ONNX
        Runtime requires that the file exists.
        """
        codes, scales = packed_names(name)
        nbytes, count = self.packed[name]
        self._external(codes, [nbytes], DataType.UINT8, 0, nbytes)
        if not count:
            return (codes,)
        self._external(scales, [count], DataType.FLOAT, 0, 4 * count)
        return codes, scales

    def _external(self, label: str, shape: Sequence[int], dtype: DataType, offset: int, nbytes: int) -> None:
        if label in self._initializers:
            return
        data = ExternalData(location=WEIGHTS, offset=offset, length=nbytes)
        self._initializers[label] = TensorValue(name=label, dtype=dtype, shape=shape, data=data)

    def unsigned_codes(self, name: str) -> str:
        """Return an int8 matrix's codes + 128 as uint8, computed once when the session folds constants.

        In two's complement, adding 128 inverts the highest bit. The file is declared as uint8, and no value is converted.
        """
        label = self.weight(name, "codes")
        self._initializers[label] = replace(self._initializers[label], dtype=DataType.UINT8)
        return self.once("BitwiseXor", [label, self.scalar("u128", 128, np.uint8)], f"{label}.uint8")

    def turned(self, label: str) -> str:
        """Return the transpose of a matrix, computed once when the session folds constants."""
        return self.once("Transpose", [label], f"{label}.turned", perm=[1, 0])

    def float_weight(self, name: str) -> str:
        """Return a float tensor as float32; narrower types are converted once, when the session folds constants."""
        label = self.weight(name, "values")
        if self._initializers[label].dtype == DataType.FLOAT:
            return label
        return self.once("Cast", [label], f"{label}.float32", to=DataType.FLOAT)

    def own_weight(self, name: str) -> str:
        """Return a float tensor as float32 for edgedec's own operators alone, converted before if the session receives it.

        An operator of ONNX Runtime must not read it, because ONNX Runtime folds constants with what the file has.
        """
        wide = f"{name}.float32"
        if self.arrays is None or wide not in self.arrays:
            return self.float_weight(name)
        return self.large_constant(wide, self.arrays[wide])

    def derived(
        self, source: str, name: str, derive: Callable[[NDArray[np.float32]], NDArray[np.float32]]
    ) -> str | None:
        """Return a constant ``name`` that is computed from ``source``, for edgedec's own operators alone.

        The result is None if the session does not receive ``source`` as an array.
        """
        if self.arrays is None or source not in self.arrays:
            return None
        if name not in self.arrays:
            self.arrays[name] = np.ascontiguousarray(derive(self.arrays[source]))
        return self.large_constant(name, self.arrays[name])

    def once(self, kind: str, inputs: Sequence[str], name: str, **attrs: Any) -> str:
        """Add a node that several operations may share."""
        if not any(node.name == name for node in self._nodes):
            self.node(kind, inputs, name, **attrs)
        return name

    def model(self) -> bytes:
        """Return the serialized ONNX model."""
        given = self._given()
        constants = [value for name, value in self._initializers.items() if name not in given]
        return encode_model(
            "edgedec",
            nodes=fuse(self._nodes, KERNELS, self.fused_threads, given, rows=self.pass_rows)
            if self.fused_threads
            else self._nodes,
            inputs=self._inputs,
            outputs=self._outputs,
            constants=constants,
            opsets=_OPSETS | ({KERNELS: 1} if self.kernels else {}),
        )

    def program(self) -> FusedProgram | None:
        """Return the model as a program for the kernels' library; None if ONNX Runtime must run some of its nodes."""
        if not self.fused_threads:
            return None
        inputs = {value.name for value in self._inputs}
        return whole_program(self._nodes, inputs, KERNELS, self.fused_threads, self._given(), rows=self.pass_rows)

    def _given(self) -> set[str]:
        """Return the constants that the session receives, for fused nodes alone; those of the model become arrays."""
        if self.arrays is None or not self.fused_threads:
            return set()
        others = {name for node in self._nodes if node.domain != KERNELS for name in node.inputs}
        for name, value in self._initializers.items():
            if name not in others and isinstance(value.data, bytes):
                self.arrays[name] = np.frombuffer(value.data, _DTYPES[value.dtype]).reshape(value.shape)
        return {name for name in self._initializers if name in self.arrays} - others

    def scalar(self, name: str, value: float | int, dtype: Any = np.float32) -> str:
        return self.constant(name, np.array(value, dtype))
