"""A numeric test of the project's operators before they are used."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.environment import KERNEL
from edgedec.errors import DeviceError
from edgedec.host.install_hint import install_again
from edgedec.onnx.fusion import whole_program
from edgedec.onnx.grid_layout import grid_layout
from edgedec.onnx.model_bytes import Node
from edgedec.reference.float_profile.ops.linear import grouped_product
from edgedec.reference.float_profile.ops.quantize_activation import quantize_rows
from edgedec.runtime.kernels import PORTABLE, Kernels, load, without_kernels
from edgedec.runtime.kernels.products.grid import pack_grid
from edgedec.runtime.kernels.sessions.recurrent_check import recurrent_check
from edgedec.runtime.kernels.sessions.registration import DOMAIN
from edgedec.runtime.kernels.sessions.session import KernelSession, Memory
from edgedec.schemes import Int4Scheme, TernaryScheme

__all__ = ["GRID", "INT8", "OPERATOR", "usable", "why_unusable"]

OPERATOR, INT8, GRID = "TernaryMatMul", "Int8MatMul", "GridMatMul"
_PAIRS = 60  # pairs of a head that are rotated
_LOG = logging.getLogger(__name__)

F32 = NDArray[np.float32]
I8 = NDArray[np.int8]


@functools.cache
def usable() -> Kernels | None:
    """Return the kernels if their operators have the right results; else None, with a line in the log.

    Raises:
        UsageError, DeviceError: ``load`` raised it.
    """
    kernels = load()
    if kernels is None:
        return None
    try:
        _self_test(kernels)
    except Exception as error:  # after any failure, models run with the portable graph
        _LOG.warning("CPU kernels: the operators fail their self-test (%s); %s", error, without_kernels())
        return None
    return kernels


def why_unusable() -> tuple[str, str]:
    """Return why ``usable`` is None, and what to do about it, each as a part of a sentence."""
    if KERNEL.value() == PORTABLE:
        return f"{KERNEL.name} is {PORTABLE}", f"unset {KERNEL.name}"
    reason = "their library was not built or does not load" if load() is None else "they fail their self-test"
    return reason, f"with a C++ compiler on the PATH, {install_again()}"


@dataclass(frozen=True, kw_only=True)
class _TestNode:
    """A node, its weights, and the expected outputs."""

    node: Node
    weights: dict[str, NDArray[Any]]
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
    weights, expected = dict[str, NDArray[Any]](), []
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
        weights[f"t{number}"] = kernels.pack(scheme.pack(trits), stored, (outputs, inputs), scheme)
        if not scheme.group_size:
            weights["scale"] = stored
    node = Node(
        kind=OPERATOR,
        inputs=["x", "t0", "scale", "t1"],
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
    weights, expected = dict[str, NDArray[Any]](), []
    for number, outputs in enumerate(sizes):
        matrix = _integers(5 + number, -127, 128, outputs, inputs)
        scales = _scales(7 + number, outputs)
        expected.append(_exact_product(codes, matrix) * scale * scales)
        stored = matrix if number else np.ascontiguousarray(matrix.T)
        weights |= {f"c{number}": stored, f"s{number}": scales}
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
    weights, expected, layouts = dict[str, NDArray[Any]](), [], []
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
        weights[f"g{number}"] = pack_grid("self test", scheme, parts, shape)
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
        Node(kind="Multiply", inputs=["sum", "gain"], outputs=["scaled"], name="scale", domain=DOMAIN),
        Node(
            kind="SoftCap",
            inputs=["scaled", "scaled"],
            outputs=["capped"],
            name="cap",
            domain=DOMAIN,
            attributes={"cap": 2.0},
        ),
        Node(
            kind="Rotary",
            inputs=["capped", "places", "cosines", "sines"],
            outputs=["rotated"],
            name="rotate",
            domain=DOMAIN,
            attributes={"heads": 2, "interleaved": 0},
        ),
        Node(kind="FloatMatMul", inputs=["rotated", "narrow"], outputs=["product"], name="product", domain=DOMAIN),
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
    capped = 2 * np.tanh((widened + wide) * gain / 2)
    heads = capped.reshape(len(x), 2, -1)
    turns, count = np.arange(len(x)) % 2, _PAIRS
    cosines, sines = (np.array([part, 1 - part])[turns, None, None] for part in (0.75, 0.5))
    ends, others = heads[..., :count], heads[..., count : 2 * count]
    turned_ends = [ends * cosines - others * sines, others * cosines + ends * sines]
    rotated = np.concatenate([*turned_ends, heads[..., 2 * count :]], axis=2).reshape(x.shape)
    result: F32 = (rotated[rows] @ narrow.T).astype(np.float32)
    return result


def _self_test(kernels: Kernels) -> None:
    """Run a node of each kind, fused and on two threads, and compare the results.

    Products are compared with those of integers in NumPy, the other operations within a tolerance, and those with states
    with the reference.

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
    products = {
        output: (item.node.kind, expected[None])
        for item in items
        for output, expected in zip(item.node.outputs, item.expected, strict=True)
    }
    chosen = _chosen_rows(x[0], gain, narrow, rows, (first, second))[None]
    shapes = {
        **{name: expected.shape for name, (_, expected) in products.items()},
        "chosen": chosen.shape,
        **{name: expected.shape for name, expected in recurrent.expected.items()},
    }
    constants = {name: array for item in items for name, array in item.weights.items()} | dict(recurrent.constants)
    constants |= {"gain": gain, "narrow": narrow, "first": first, "second": second, "rows": rows}
    constants |= {"places": np.arange(x.shape[1])[None] % 2}
    constants |= {
        name: np.repeat(np.array([[part], [1 - part]], np.float32), _PAIRS, axis=1)
        for name, part in (("cosines", 0.75), ("sines", 0.5))
    }
    nodes = [*(item.node for item in items), *_row_nodes("x", x.shape[-1]), *recurrent.nodes]
    results = _run(kernels, nodes, {"x": x, **recurrent.inputs}, constants, shapes)
    for name, (kind, expected) in products.items():
        if results[name].tobytes() != expected.tobytes():
            raise DeviceError(f"the results of {kind} are not those of NumPy")
    if not _near(results["chosen"], chosen):
        raise DeviceError(
            "the results of RmsNorm, GatedActivation, Hadamard, Columns, LayerNorm, HeadDifference, Add, Multiply, SoftCap, "
            "Rotary, FloatMatMul and SelectRows are not those of NumPy"
        )
    for name, right in recurrent.expected.items():
        if not _near(results[name], right):
            raise DeviceError(f"the results of the node {name!r} with recurrent states are not those of the reference")


def _near(result: F32, right: F32) -> bool:
    return np.allclose(result, right, rtol=1e-5, atol=1e-5)


def _run(
    kernels: Kernels,
    nodes: Sequence[Node],
    inputs: Mapping[str, NDArray[Any]],
    constants: Mapping[str, NDArray[Any]],
    shapes: Mapping[str, tuple[int, ...]],
) -> dict[str, F32]:
    """Return outputs, of which ``shapes`` has the shapes, of nodes that are fused and run on two threads."""
    ends = [Node(kind="Identity", inputs=[name], outputs=[name], name=name) for name in shapes]
    program = whole_program([*nodes, *ends], inputs, DOMAIN, 2, constants)
    if program is None:
        raise DeviceError("the nodes of the self-test are no whole program")
    session = KernelSession(kernels, program, threads=2, folder=kernels.path.parent, initializers=constants)
    outputs = {name: np.empty(shape, np.float32) for name, shape in shapes.items()}
    memory = [
        {name: Memory(np.ascontiguousarray(array), array.shape) for name, array in arrays.items()}
        for arrays in (inputs, outputs)
    ]
    session.bind(*memory)
    session.run(len(inputs["x"][0]), 0)
    return outputs
