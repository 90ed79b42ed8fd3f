"""Write ONNX models as bytes, without the package ``onnx``, whose import takes longer than all of a small model's loading.

Only the messages and fields that edgedec's own models need are known. They are written in the order of their numbers, as the
package writes them, so that a model that the package parses and serializes again has the same bytes.

Source: the message definitions of onnx.proto; the protocol buffers encoding: varints, length-delimited fields, proto2.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import UnsupportedError

__all__ = ["Attribute", "DataType", "ExternalData", "Node", "TensorValue", "ValueInfo", "array_value", "encode_model"]

Attribute = int | float | str | bytes | Sequence[int] | Sequence[float] | NDArray[np.float32]

_VARINT, _BYTES, _FIXED32 = 0, 2, 5  # wire types
_EXTERNAL = 1  # TensorProto.DataLocation
_SMALL = [bytes([value]) for value in range(128)]  # varints of one byte


class DataType(IntEnum):
    """The numbers of ONNX's data types that edgedec's models have (``TensorProto.DataType``)."""

    FLOAT = 1
    UINT8 = 2
    INT8 = 3
    INT32 = 6
    INT64 = 7
    BOOL = 9
    FLOAT16 = 10
    BFLOAT16 = 16


class _AttributeType(IntEnum):
    FLOAT, INT, STRING, FLOATS, INTS = 1, 2, 3, 6, 7


_TYPES = {
    "float32": DataType.FLOAT,
    "uint8": DataType.UINT8,
    "int8": DataType.INT8,
    "int32": DataType.INT32,
    "int64": DataType.INT64,
    "bool": DataType.BOOL,
    "float16": DataType.FLOAT16,
    "bfloat16": DataType.BFLOAT16,
}


@dataclass(frozen=True, kw_only=True)
class ExternalData:
    """The place of a tensor's bytes in a file beside the model."""

    location: str
    offset: int
    length: int


@dataclass(frozen=True, kw_only=True)
class TensorValue:
    """A constant of a model: its little-endian bytes, or their place in a file."""

    name: str
    dtype: DataType
    shape: Sequence[int]
    data: bytes | ExternalData


@dataclass(frozen=True, kw_only=True)
class ValueInfo:
    """An input or output of a model. A size that is a text is a name for any size; without a shape, any shape is."""

    name: str
    dtype: DataType
    shape: Sequence[int | str] | None


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node: ``kind`` is its operator in ``domain``."""

    kind: str
    inputs: Sequence[str]
    outputs: Sequence[str]
    name: str = ""
    domain: str = ""
    attributes: Mapping[str, Attribute] = field(default_factory=dict)


def array_value(name: str, array: NDArray[Any]) -> TensorValue:
    """Return an array as a constant.

    Raises:
        UnsupportedError: edgedec's models have no values of this dtype.
    """
    if array.dtype.name not in _TYPES:
        raise UnsupportedError(
            f"constant {name}: no model of edgedec has values of {array.dtype}, only of {', '.join(_TYPES)}"
        )
    data = np.ascontiguousarray(array).tobytes()
    return TensorValue(name=name, dtype=_TYPES[array.dtype.name], shape=array.shape, data=data)


def encode_model(
    name: str,
    *,
    nodes: Iterable[Node],
    inputs: Iterable[ValueInfo],
    outputs: Iterable[ValueInfo],
    constants: Iterable[TensorValue] = (),
    opsets: Mapping[str, int],
    ir_version: int = 10,
) -> bytes:
    """Return the bytes of a model.

    Args:
        name: name of the graph.
        opsets: version of the operators of each domain.
    """
    graph = [_message(1, _node(node)) for node in nodes]
    graph.append(_text(2, name))
    for value in constants:
        graph += _framed(5, _tensor(value))
    graph += [_message(11, _value_info(value)) for value in inputs]
    graph += [_message(12, _value_info(value)) for value in outputs]
    versions = [_message(8, _text(1, domain) + _integer(2, version)) for domain, version in opsets.items()]
    return b"".join([_integer(1, ir_version), _text(2, "edgedec"), *_framed(7, graph), *versions])


def _varint(value: int) -> bytes:
    if 0 <= value < 128:
        return _SMALL[value]
    if value < 0:
        value += 1 << 64  # negative numbers are written as 64 bits in two's complement
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _integer(number: int, value: int) -> bytes:
    return _varint(number << 3 | _VARINT) + _varint(value)


def _message(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(data)) + data


def _framed(number: int, parts: Sequence[bytes]) -> list[bytes]:
    """Return a message in parts. Large constants are then copied once, when all parts of the model are joined."""
    return [_varint(number << 3 | _BYTES) + _varint(sum(map(len, parts))), *parts]


def _text(number: int, value: str) -> bytes:
    return _message(number, value.encode())


def _float(number: int, value: float) -> bytes:
    return _varint(number << 3 | _FIXED32) + struct.pack("<f", value)


def _node(node: Node) -> bytes:
    parts = [_text(1, name) for name in node.inputs]
    parts += [_text(2, name) for name in node.outputs]
    if node.name:
        parts.append(_text(3, node.name))
    parts.append(_text(4, node.kind))
    parts += [_message(5, _attribute(name, node.attributes[name])) for name in sorted(node.attributes)]
    if node.domain:
        parts.append(_text(7, node.domain))
    return b"".join(parts)


def _attribute(name: str, value: Attribute) -> bytes:
    kind, data = _attribute_value(value)
    return _text(1, name) + data + _integer(20, kind)


def _attribute_value(value: Attribute) -> tuple[_AttributeType, bytes]:
    if isinstance(value, str):
        return _AttributeType.STRING, _text(4, value)
    if isinstance(value, bytes):
        return _AttributeType.STRING, _message(4, value)
    if isinstance(value, np.ndarray):
        value = [float(item) for item in value]
    if isinstance(value, int):
        return _AttributeType.INT, _integer(3, int(value))
    if isinstance(value, float):
        return _AttributeType.FLOAT, _float(2, value)
    if any(isinstance(item, float) for item in value):
        return _AttributeType.FLOATS, b"".join(_float(7, item) for item in value)
    return _AttributeType.INTS, b"".join(_integer(8, int(item)) for item in value)


def _tensor(value: TensorValue) -> list[bytes]:
    parts = [*(_integer(1, size) for size in value.shape), _integer(2, value.dtype), _text(8, value.name)]
    if isinstance(value.data, bytes):
        return [*parts, *_framed(9, [value.data])]
    place = {"location": value.data.location, "offset": str(value.data.offset), "length": str(value.data.length)}
    parts += [_message(13, _text(1, key) + _text(2, item)) for key, item in place.items()]
    return [*parts, _integer(14, _EXTERNAL)]


def _value_info(value: ValueInfo) -> bytes:
    tensor = _integer(1, value.dtype)
    if value.shape is not None:
        sizes = [_text(2, size) if isinstance(size, str) else _integer(1, size) for size in value.shape]
        tensor += _message(2, b"".join(_message(1, size) for size in sizes))
    return _text(1, value.name) + _message(2, _message(1, tensor))
