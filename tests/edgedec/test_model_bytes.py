"""Test the writer of ONNX models against the package ``onnx``, which must read every model and write the same bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from edgedec.bundle.bundle import Bundle
from edgedec.errors import UnsupportedError
from edgedec.onnx.lowering import emit
from edgedec.onnx.model_bytes import (
    DataType,
    ExternalData,
    Node,
    TensorValue,
    ValueInfo,
    array_value,
    encode_model,
)
from edgedec.runtime.model_graph import bundle_graph

NAMES = st.text(max_size=300)
INTS = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(width=32, allow_nan=False)
ATTRIBUTES = st.one_of(INTS, FLOATS, NAMES, st.lists(INTS, min_size=1), st.lists(FLOATS, min_size=1))
SHAPES = st.lists(st.one_of(st.integers(0, 2**62), NAMES), max_size=4)
NODES = st.builds(
    Node,
    kind=NAMES,
    inputs=st.lists(NAMES, max_size=4),
    outputs=st.lists(NAMES, max_size=4),
    name=NAMES,
    domain=NAMES,
    attributes=st.dictionaries(NAMES, ATTRIBUTES, max_size=4),
)
VALUES = st.builds(ValueInfo, name=NAMES, dtype=st.sampled_from(DataType), shape=st.none() | SHAPES)
SIZES = st.integers(0, 2**62)
TENSORS = st.builds(
    TensorValue,
    name=NAMES,
    dtype=st.sampled_from(DataType),
    shape=st.lists(SIZES, max_size=4),
    data=st.binary(max_size=200) | st.builds(ExternalData, location=NAMES, offset=SIZES, length=SIZES),
)


def again(data: bytes) -> Any:
    """Return the parsed model, whose bytes must be those it was parsed from."""
    model = onnx.load_model_from_string(data)
    assert model.SerializeToString(deterministic=True) == data
    return model


@pytest.mark.thorough
@given(
    name=NAMES,
    nodes=st.lists(NODES, max_size=3),
    inputs=st.lists(VALUES, max_size=3),
    outputs=st.lists(VALUES, max_size=3),
    constants=st.lists(TENSORS, max_size=3),
    opsets=st.dictionaries(NAMES, st.integers(1, 2**40), max_size=3),
)
def test_any_model_is_what_the_package_writes(name: str, opsets: dict[str, int], **parts: Any) -> None:
    model = again(encode_model(name, opsets=opsets, **parts))
    assert (model.graph.name, model.ir_version) == (name, 10)
    assert {item.domain: item.version for item in model.opset_import} == opsets
    for node, proto in zip(parts["nodes"], model.graph.node, strict=True):
        assert (node.kind, node.name, node.domain) == (proto.op_type, proto.name, proto.domain)
        assert (list(node.inputs), list(node.outputs)) == (list(proto.input), list(proto.output))
        read = {item.name: helper.get_attribute_value(item) for item in proto.attribute}
        expected = {key: value.encode() if isinstance(value, str) else value for key, value in node.attributes.items()}
        assert read == expected
    for kind in ("inputs", "outputs"):
        for value, proto in zip(parts[kind], getattr(model.graph, kind.removesuffix("s")), strict=True):
            made = helper.make_tensor_value_info(value.name, value.dtype, value.shape)
            assert proto == made
    for tensor, proto in zip(parts["constants"], model.graph.initializer, strict=True):
        assert (tensor.name, tensor.dtype, list(tensor.shape)) == (proto.name, proto.data_type, list(proto.dims))
        if isinstance(tensor.data, bytes):
            assert proto.raw_data == tensor.data
        else:
            assert proto.data_location == TensorProto.EXTERNAL
            place = {"location": tensor.data.location, "offset": str(tensor.data.offset)}
            place["length"] = str(tensor.data.length)
            assert {entry.key: entry.value for entry in proto.external_data} == place


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "uint8", "int32", "int64", "bool"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3)])
def test_arrays_are_those_of_the_package(dtype: str, shape: tuple[int, ...]) -> None:
    array = (np.arange(np.prod(shape)).reshape(shape) - 1).astype(dtype).T
    model = again(
        encode_model("x", nodes=[], inputs=[], outputs=[], constants=[array_value("a", array)], opsets={"": 21})
    )
    assert model.graph.initializer[0] == numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), "a")


def test_the_numbers_of_data_types_are_the_packages() -> None:
    assert {item.name: int(item) for item in DataType} == {
        item.name: TensorProto.DataType.Value(item.name) for item in DataType
    }


def test_other_dtypes_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="constant c: no model of edgedec has values of complex64"):
        array_value("c", np.zeros(2, np.complex64))


@pytest.mark.thorough
@pytest.mark.parametrize("kernels", [False, True])
def test_a_bundles_model_passes_the_packages_checks(demo_bundle: Bundle, kernels: bool) -> None:
    graph = bundle_graph(demo_bundle, 16 if kernels else None)
    model = again(emit(graph, demo_bundle.tensors, positions=64, kernels=kernels).model())
    assert {node.domain for node in model.graph.node} >= ({"", "edgedec"} if kernels else {"", "com.microsoft"})
    for node in model.graph.node:
        if not node.domain and onnx.defs.has(node.op_type):  # ONNX Runtime has operators of its own in this domain
            onnx.checker.check_node(node, onnx.checker.DEFAULT_CONTEXT)
    for value in (*model.graph.input, *model.graph.output):
        onnx.checker.check_value_info(value, onnx.checker.DEFAULT_CONTEXT)


@pytest.fixture(scope="module")
def demo_bundle() -> Bundle:
    from edgedec import demo

    return Bundle.open(demo.bundle_path())
