"""The project's operators in ONNX Runtime: their registration, and a numeric test before they are used."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import DeviceError
from edgedec.onnx.fusion import fuse
from edgedec.onnx.grid_layout import grid_layout
from edgedec.onnx.model_bytes import DataType, Node, TensorValue, ValueInfo, array_value, encode_model
from edgedec.ort import onnxruntime as ort
from edgedec.reference.float_profile.ops.linear import grouped_product
from edgedec.reference.float_profile.ops.quantize_activation import quantize_rows
from edgedec.runtime.kernels import Kernels, load
from edgedec.runtime.kernels.grid import pack_grid
from edgedec.runtime.kernels.recurrent_check import recurrent_check
from edgedec.schemes import Int4Scheme, TernaryScheme

__all__ = ["DOMAIN", "GRID", "INT8", "OPERATOR", "register", "usable"]

DOMAIN, OPERATOR, INT8, GRID = "edgedec", "TernaryMatMul", "Int8MatMul", "GridMatMul"
_TYPES = {"float32": DataType.FLOAT, "int64": DataType.INT64}
_LOG = logging.getLogger(__name__)

F32 = NDArray[np.float32]
I8 = NDArray[np.int8]


def register(options: ort.SessionOptions, kernels: Kernels) -> None:
    """Register the operators of the domain ``edgedec`` for sessions with ``options``.

    Raises:
        DeviceError: ONNX Runtime cannot load the library.
    """
    try:
        options.register_custom_ops_library(str(kernels.path))
    except Exception as error:  # ONNX Runtime's exception classes share no base
        raise DeviceError(f"ONNX Runtime {ort.__version__} cannot load {kernels.path}: {error}") from error


@functools.cache
def usable() -> Kernels | None:
    """Return the kernels if ONNX Runtime runs their operators with the right results; else None, with a line in the log.

    Raises:
        UsageError, DeviceError: ``load`` raised it.
    """
    kernels = load()
    if kernels is None:
        return None
    try:
        _self_test(kernels)
    except Exception as error:  # after any failure, models run with the portable graph
        _LOG.warning(
            "CPU kernels: the operators fail their self-test (%s); models run with the portable graph, which is slower",
            error,
        )
        return None
    return kernels


@dataclass(frozen=True, kw_only=True)
class _TestNode:
    """A node, its weights, and the expected outputs."""

    node: Node
    weights: list[TensorValue]
    expected: list[F32]


def _bits(seed: int, *shape: int) -> NDArray[np.uint32]:
    """Return numbers that look random. NumPy's generators would take ten milliseconds of a start to import."""
    state = np.arange(math.prod(shape), dtype=np.uint32) + np.uint32(seed << 24)
    for multiplier in (0x85EBCA6B, 0xC2B2AE35):  # the finalizer of MurmurHash3, which mixes all bits
        state ^= state >> np.uint32(16)
        state *= np.uint32(multiplier)
    state >>= np.uint32(8)
    return state.reshape(shape)


def _integers(seed: int, low: int, high: int, *shape: int) -> I8:
    """Return integers in [low, high), which repeat after a prime number of them, so that few large arrays are needed."""
    bits = _bits(seed, 65_521)
    bits %= np.uint32(high - low)
    integers = bits.astype(np.int8)
    integers += np.int8(low)
    return np.resize(integers, shape)


def _fractions(seed: int, *shape: int) -> F32:
    """Return values in [0, 1)."""
    return _bits(seed, *shape).astype(np.float32) * np.float32(2**-24)


def _scales(seed: int, *shape: int) -> F32:
    """Return values in (0.5, 1]."""
    return np.float32(1) - np.float32(0.5) * _fractions(seed, *shape)


def _exact_product(codes: I8, matrix: I8) -> F32:
    """Return the product of codes int8 [tokens, columns] and the rows of a matrix, int8 [rows, columns].

    Sums below 2**24 are exact in float32. ``einsum`` multiplies floats faster than integers, and unlike ``@`` it wakes no
    threads, which takes ten milliseconds while other programs use the processors.
    """
    product: F32 = np.einsum("ti,oi->to", codes.astype(np.float32), matrix.astype(np.float32))
    return product


def _ternary_node(kernels: Kernels, codes: I8, scale: F32) -> _TestNode:
    """Return a node with two ternary matrices that have enough rows for two threads."""
    inputs, sizes = codes.shape[1], (320, 400)
    schemes = (TernaryScheme(), TernaryScheme(planes=2, group_size=64, half_scales=True))
    weights, expected = [], []
    for number, (outputs, scheme) in enumerate(zip(sizes, schemes, strict=True)):
        trits = _integers(1 + number, -1, 2, scheme.planes, outputs, inputs)
        scales = np.float32(1) - np.float32(0.5) * _fractions(
            3 + number, *scheme.parts((outputs, inputs))["scale"].shape
        )
        stored = scales.astype(scheme.scale_dtype)
        scales = stored.astype(np.float32)
        total = np.zeros((len(codes), outputs), np.float32)
        size = scheme.group_size or inputs
        for plane in range(scheme.planes):
            for group, start in enumerate(range(0, inputs, size)):
                part = slice(start, start + size)
                total += _exact_product(codes[:, part], trits[plane, :, part]) * (
                    scales[plane, :, group] if scheme.group_size else scales
                )
        expected.append(total * scale)
        packed = kernels.pack(scheme.pack(trits), (outputs, inputs), scheme)
        packed_scales = kernels.pack_scales(stored, (outputs, inputs), scheme)
        weights += [array_value(f"t{number}", packed), array_value(f"u{number}", packed_scales)]
    node = Node(
        kind=OPERATOR,
        inputs=["x", "t0", "u0", "t1", "u1"],
        outputs=["ternary0", "ternary1"],
        domain=DOMAIN,
        attributes={
            "columns": inputs,
            "rows": sizes,
            "planes": [scheme.planes for scheme in schemes],
            "group_sizes": [scheme.group_size for scheme in schemes],
            "half_scales": [int(scheme.half_scales) for scheme in schemes],
            "biases": [0, 0],
        },
    )
    return _TestNode(node=node, weights=weights, expected=expected)


def _int8_node(codes: I8, scale: F32) -> _TestNode:
    """Return a node with two int8 matrices, one in each order of a bundle."""
    inputs, sizes = codes.shape[1], (330, 77)
    weights, expected = [], []
    for number, outputs in enumerate(sizes):
        matrix = _integers(5 + number, -127, 128, outputs, inputs)
        scales = _scales(7 + number, outputs)
        expected.append(_exact_product(codes, matrix) * scale * scales)
        stored = matrix if number else np.ascontiguousarray(matrix.T)
        weights += [array_value(f"c{number}", stored), array_value(f"s{number}", scales)]
    node = Node(
        kind=INT8,
        inputs=["x", "c0", "s0", "c1", "s1"],
        outputs=["int8_0", "int8_1"],
        domain=DOMAIN,
        attributes={"columns": inputs, "rows": sizes, "by_rows": [0, 1], "biases": [0, 0]},
    )
    return _TestNode(node=node, weights=weights, expected=expected)


def _grid_node(codes: I8, scale: F32) -> _TestNode:
    """Return a node with an int4 matrix and one of tied planes."""
    inputs, sizes = codes.shape[1], (330, 77)
    schemes: tuple[Int4Scheme | TernaryScheme, ...] = (
        Int4Scheme(offset=True),
        TernaryScheme(planes=3, group_size=64, tied=True),
    )
    weights, expected, layouts = [], [], []
    for number, (outputs, scheme) in enumerate(zip(sizes, schemes, strict=True)):
        shape = (outputs, inputs)
        parts: dict[str, NDArray[Any]] = {
            name: (_integers(9, 0, 64, *part.shape) if name == "steps" else _scales(10, *part.shape)).astype(part.dtype)
            for name, part in scheme.parts(shape).items()
        }
        if isinstance(scheme, Int4Scheme):
            parts["codes"] = scheme.pack(_integers(11, 0, 16, *shape).astype(np.uint8))
        else:
            parts["codes"] = scheme.pack(_integers(12, -1, 2, scheme.planes, *shape))
        expected.append(grouped_product(codes, scale, scheme.open("self test", shape, parts)))
        layout = grid_layout(scheme)
        assert layout is not None
        layouts.append(layout)
        weights.append(array_value(f"g{number}", pack_grid("self test", scheme, parts, shape)))
    node = Node(
        kind=GRID,
        inputs=["x", "g0", "g1"],
        outputs=["grid0", "grid1"],
        domain=DOMAIN,
        attributes={
            "columns": inputs,
            "rows": sizes,
            "bits": [layout.bits for layout in layouts],
            "forms": [layout.form for layout in layouts],
            "group_sizes": [layout.group_size for layout in layouts],
            "biases": [0, 0],
        },
    )
    return _TestNode(node=node, weights=weights, expected=expected)


def _row_nodes(x: str, width: int) -> list[Node]:
    """Return nodes on the float rows ``x`` [n, width] whose results depend on each other; the last one makes "chosen"."""
    half = width // 2
    return [
        Node(
            kind="RmsNorm", inputs=[x, "gain"], outputs=["normed"], name="norm", domain=DOMAIN, attributes={"eps": 1e-5}
        ),
        Node(
            kind="GatedActivation",
            inputs=["normed", x],
            outputs=["gated"],
            name="gate",
            domain=DOMAIN,
            attributes={"activation": 0},
        ),
        Node(
            kind="Hadamard",
            inputs=["gated", "gain"],
            outputs=["turned"],
            name="turn",
            domain=DOMAIN,
            attributes={"block": 2, "inverse": 0},
        ),
        Node(
            kind="Columns",
            inputs=["turned", x],
            outputs=["beside"],
            name="beside",
            domain=DOMAIN,
            attributes={"pieces": [*(0, half, width - half), *(1, 0, half)]},
        ),
        Node(
            kind="LayerNorm",
            inputs=["beside", "gain", "gain"],
            outputs=["centred"],
            name="centre",
            domain=DOMAIN,
            attributes={"eps": 1e-2},
        ),
        Node(
            kind="HeadDifference",
            inputs=["centred", "first", "first", "second", "second"],
            outputs=["less"],
            name="less",
            domain=DOMAIN,
            attributes={"pairs": 2, "start": 0.25},
        ),
        Node(
            kind="Columns",
            inputs=["less", x],
            outputs=["widened"],
            name="widened",
            domain=DOMAIN,
            attributes={"pieces": [*(0, 0, half), *(-1, 0, width - half)]},
        ),
        Node(kind="Add", inputs=["widened", x], outputs=["sum"], name="sum", domain=DOMAIN),
        Node(kind="FloatMatMul", inputs=["sum", "narrow"], outputs=["product"], name="product", domain=DOMAIN),
        Node(kind="SelectRows", inputs=["product", "rows"], outputs=["chosen"], name="select", domain=DOMAIN),
    ]


def _chosen_rows(x: F32, gain: F32, narrow: F32, rows: NDArray[np.int64], vectors: Sequence[F32]) -> F32:
    """Return the result of ``_row_nodes`` by NumPy."""
    wide = x.astype(np.float64)
    normed = wide / np.sqrt(np.square(wide).mean(axis=1, keepdims=True) + 1e-5) * gain
    pairs = (normed / (1 + np.exp(-normed)) * wide * gain).reshape(len(x), -1, 2)
    turned = (pairs @ np.array([[1, 1], [1, -1]])).reshape(x.shape) * np.sqrt(0.5)
    half = x.shape[1] // 2
    beside = np.concatenate([turned[:, half:], wide[:, :half]], axis=1)
    deviation = np.sqrt(beside.var(axis=1, keepdims=True) + 1e-2)
    parts = ((beside - beside.mean(axis=1, keepdims=True)) / deviation * gain + gain).reshape(len(x), 2, 2, -1)
    first, second = (np.exp(np.square(vector.astype(np.float64)).sum()) for vector in vectors)
    less = (parts[:, :, 0] - (first - second + 0.25) * parts[:, :, 1]).reshape(len(x), -1)
    widened = np.concatenate([less, np.zeros((len(x), x.shape[1] - less.shape[1]))], axis=1)
    result: F32 = ((widened + wide)[rows] @ narrow.T).astype(np.float32)
    return result


def _self_test(kernels: Kernels) -> None:
    """Run a node of each kind on two threads, each by itself and all in one fused node, and compare the results.

    Products are compared with those of integers in NumPy, the other operations within a tolerance, those with states with
    the reference, and the fused node with the single nodes to the bit.

    Raises:
        DeviceError: they differ.
    """
    x = 6 * _fractions(0, 1, 8, 528) - 3  # so many values that the threads share their quantization
    codes, scale = quantize_rows(x[0])
    items = [_ternary_node(kernels, codes, scale), _int8_node(codes, scale), _grid_node(codes, scale)]
    gain, rows = 2 * _fractions(13, x.shape[-1]) - 1, np.array([4, 1], np.int64)
    narrow = np.float32(0.125) * _fractions(14, 3, x.shape[-1]) - np.float32(0.0625)
    first, second = _fractions(15, 5), _fractions(16, 5)  # vectors for the factor of a difference of heads
    recurrent = recurrent_check(_fractions)
    nodes = [*(item.node for item in items), *_row_nodes("x", x.shape[-1]), *recurrent.nodes]
    names = [name for item in items for name in item.node.outputs] + ["chosen", *recurrent.expected]
    constants = [
        *(weight for item in items for weight in item.weights),
        *recurrent.constants,
        array_value("gain", gain),
        array_value("narrow", narrow),
        array_value("first", first),
        array_value("second", second),
        array_value("rows", rows),
    ]
    made = {name for node in nodes for name in node.outputs}
    copies = [
        replace(
            node,
            inputs=[f"fused.{name}" if name in made else name for name in node.inputs],
            outputs=[f"fused.{name}" for name in node.outputs],
        )
        for node in nodes
    ]
    inputs = {"x": x, **recurrent.inputs}
    results = _run(kernels, nodes, copies, inputs, constants, [*names, *(f"fused.{name}" for name in names)])
    single, fused = results[: len(names)], results[len(names) :]
    kinds = [item.node.kind for item in items for _ in item.node.outputs]
    for kind, result, right in zip(kinds, single, (array for item in items for array in item.expected), strict=False):
        if result.shape != (1, *right.shape) or result.tobytes() != right.tobytes():
            raise DeviceError(f"the results of {kind} are not those of NumPy")
    chosen = _chosen_rows(x[0], gain, narrow, rows, (first, second))
    by_name = dict(zip(names, single, strict=True))
    if not _near(by_name["chosen"], chosen[None]):
        raise DeviceError(
            "the results of RmsNorm, GatedActivation, Hadamard, Columns, LayerNorm, HeadDifference, Add, FloatMatMul and "
            "SelectRows are not those of NumPy"
        )
    for name, right in recurrent.expected.items():
        if not _near(by_name[name], right):
            raise DeviceError(f"the results of the node {name!r} with recurrent states are not those of the reference")
    if any(one.tobytes() != other.tobytes() for one, other in zip(single, fused, strict=True)):
        raise DeviceError("the results of a fused node are not those of its operations")


def _near(result: F32, right: F32) -> bool:
    return result.shape == right.shape and np.allclose(result, right, rtol=1e-5, atol=1e-5)


def _run(
    kernels: Kernels,
    nodes: Sequence[Node],
    together: Sequence[Node],
    inputs: Mapping[str, NDArray[Any]],
    constants: Sequence[TensorValue],
    outputs: Sequence[str],
) -> list[F32]:
    """Return the outputs of a model of ``nodes``, and of ``together``, which are fused. It runs on two threads."""
    # Nodes of another domain are what makes values outputs of the fused node.
    ends = [Node(kind="Identity", inputs=[name], outputs=[f"out.{name}"], name=f"out.{name}") for name in outputs]
    model = encode_model(
        "self_test",
        nodes=[*nodes, *fuse([*together, *ends], DOMAIN, 2)],
        inputs=[
            ValueInfo(name=name, dtype=_TYPES[value.dtype.name], shape=value.shape) for name, value in inputs.items()
        ],
        outputs=[ValueInfo(name=f"out.{name}", dtype=DataType.FLOAT, shape=None) for name in outputs],
        constants=constants,
        opsets={"": 21, DOMAIN: 1},
    )
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 2
    register(options, kernels)
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    results: list[F32] = session.run([f"out.{name}" for name in outputs], dict(inputs))
    return results
