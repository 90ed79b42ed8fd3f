"""Compare the matrix products with the CPU kernels, to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgedec.errors import UnsupportedError
from edgedec.onnx.grid_layout import grid_layout
from edgedec.runtime.gpu.kernels.codes import code_stride, code_words
from edgedec.runtime.gpu.kernels.head import HeadLayout
from edgedec.runtime.gpu.kernels.kernel import Kernel
from edgedec.runtime.gpu.kernels.linear import Ending, Packed
from edgedec.runtime.gpu.kernels.linear_float import linear_float, pack_float
from edgedec.runtime.gpu.kernels.linear_grid import linear_grid, pack_grid
from edgedec.runtime.gpu.kernels.linear_int8 import linear_int8, pack_int8
from edgedec.runtime.gpu.kernels.linear_ternary import linear_ternary, pack_ternary
from edgedec.runtime.gpu.kernels.source import ShaderOptions
from edgedec.runtime.kernels.products.grid import grid_matmul
from edgedec.runtime.kernels.products.grid import pack_grid as cpu_pack_grid
from edgedec.runtime.kernels.products.int8 import int8_matmul
from edgedec.runtime.protocols import F32
from edgedec.schemes import FloatScheme, Int4Scheme, Int8Scheme, TernaryScheme
from tests.runtime.gpu.kernels.support.bench import Bench
from tests.runtime.gpu.kernels.support.cpu import cpu_kernels, cpu_soft_cap

LAYOUT = HeadLayout(rows=32, results=16, blocks=1)
OPTIONS = ShaderOptions(head=LAYOUT, compact=True)
I8 = NDArray[np.int8]


def activations(seed: int, rows: int, inputs: int) -> tuple[I8, F32]:
    rng = np.random.default_rng(seed)
    codes = rng.integers(-127, 128, (rows, inputs)).astype(np.int8)
    codes[-1] = 127
    return codes, rng.uniform(0.001, 4, rows).astype(np.float32)


def stored(codes: I8) -> NDArray[np.uint32]:
    """Return codes as ``quantize`` leaves them."""
    rows, inputs = codes.shape
    words = np.zeros((rows, code_stride(inputs)), np.uint32)
    wide = np.zeros((rows, 4 * code_words(inputs)), np.int8)
    wide[:, :inputs] = codes
    words[:, : code_words(inputs)] = wide.view(np.uint32)
    sums = wide.reshape(rows, -1, 32).sum(axis=2, dtype=np.int32)
    words[:, code_words(inputs) : code_words(inputs) + sums.shape[1]] = sums.view(np.uint32)
    return words


def run(bench: Bench, kernel: Kernel, x: I8, scale: F32, packed: Packed, outputs: int, **more: Any) -> F32:
    head = LAYOUT.new()
    head[1:3] = len(x), len(x)
    buffers = {"codes": stored(x), "scales": scale, "weights": packed.weights, "weight_scales": packed.scales}
    y = np.full((len(x), outputs), 7, np.float32)
    made = bench.run(kernel, {"head": head, **buffers, "y": y, **more}, rows=len(x), results=len(x))
    return made["y"].view(np.float32)[: y.size].reshape(y.shape)


def ternary(seed: int, outputs: int, inputs: int, scheme: TernaryScheme) -> tuple[NDArray[np.uint8], F32]:
    rng = np.random.default_rng(seed)
    trits = rng.integers(-1, 2, (scheme.planes, outputs, inputs)).astype(np.int8)
    trits[:, 0] = 1
    scale = rng.normal(size=scheme.parts((outputs, inputs))["scale"].shape).astype(np.float32)
    return scheme.pack(trits), scale


def cpu_ternary(
    x: I8, scale: F32, codes: NDArray[np.uint8], scales: F32, scheme: TernaryScheme, bias: F32 | None = None
) -> F32:
    kernels, shape = cpu_kernels(), (codes.shape[1], x.shape[1])
    return kernels.matmul(x, scale, kernels.pack(codes, scales, shape, scheme), scales, shape[0], scheme, bias=bias)


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize(
    ("planes", "group_size", "outputs", "inputs", "compact"),
    [
        (1, 0, 5, 7, True),
        (1, 0, 70, 2560, False),
        (3, 0, 33, 288, True),
        (2, 32, 40, 96, False),
        (1, 64, 70, 2560, True),
        (3, 64, 5, 7, True),
        (2, 128, 33, 320, False),
    ],
)
def test_ternary(gpu_device: Bench, planes: int, group_size: int, outputs: int, inputs: int, compact: bool) -> None:
    scheme = TernaryScheme(planes=planes, group_size=group_size)
    codes, scales = ternary(planes, outputs, inputs, scheme)
    options = ShaderOptions(head=LAYOUT, compact=compact, packed_dot=not compact)
    kernel = linear_ternary(options, outputs=outputs, inputs=inputs, planes=planes, group_size=group_size)
    packed = pack_ternary(scheme, inputs, [(codes, scales)])
    for rows in (1, 3, 9):
        x, scale = activations(rows, rows, inputs)
        made = run(gpu_device, kernel, x, scale, packed, outputs)
        assert made.tobytes() == cpu_ternary(x, scale, codes, scales, scheme).tobytes()


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize(
    ("by_rows", "outputs", "inputs", "compact"),
    [(True, 5, 7, True), (False, 40, 288, False), (True, 3, 20_000, True)],
)
def test_int8(gpu_device: Bench, by_rows: bool, outputs: int, inputs: int, compact: bool) -> None:
    rng = np.random.default_rng(inputs)
    codes = rng.integers(-127, 128, (outputs, inputs)).astype(np.int8)
    codes[0] = 127  # sums beyond 2^24
    scales = rng.normal(size=outputs).astype(np.float32)
    turned = codes if by_rows else np.ascontiguousarray(codes.T)
    kernel = linear_int8(ShaderOptions(head=LAYOUT, compact=compact), outputs=outputs, inputs=inputs)
    packed = pack_int8(Int8Scheme(rows=by_rows), [(turned, scales)])
    for rows in (1, 2, 8, 17):
        x, scale = activations(rows, rows, inputs)
        right = int8_matmul(cpu_kernels(), x, scale, codes, scales, by_rows=True)
        assert run(gpu_device, kernel, x, scale, packed, outputs).tobytes() == right.tobytes()


@pytest.mark.thorough
@pytest.mark.parametrize("group_size", [0, 64])
def test_stacked_matrices_with_bias_and_residual(gpu_device: Bench, group_size: int) -> None:
    scheme, inputs, sizes = TernaryScheme(planes=2, group_size=group_size), 320, (48, 7, 33)
    matrices = [ternary(seed, outputs, inputs, scheme) for seed, outputs in enumerate(sizes)]
    rng = np.random.default_rng(1)
    outputs = sum(sizes)
    ending = Ending(bias=True, residual=True, results=True)
    kernel = linear_ternary(OPTIONS, outputs=outputs, inputs=inputs, planes=2, group_size=group_size, ending=ending)
    x, scale = activations(3, 5, inputs)
    bias = rng.normal(size=outputs).astype(np.float32)
    residual = rng.normal(size=(5, outputs)).astype(np.float32)
    packed = pack_ternary(scheme, inputs, matrices)
    made = run(gpu_device, kernel, x, scale, packed, outputs, bias=bias, residual=residual)
    parts, first = [], 0
    for codes, scales in matrices:
        part = bias[first : first + codes.shape[1]].copy()
        parts.append(cpu_ternary(x, scale, codes, scales, scheme, part))
        first += codes.shape[1]
    assert made.tobytes() == (np.concatenate(parts, axis=1) + residual).tobytes()


GRIDS: list[Int4Scheme | TernaryScheme] = [
    Int4Scheme(),
    Int4Scheme(offset=True),
    TernaryScheme(planes=2, group_size=64, tied=True),
    TernaryScheme(planes=3, group_size=32, tied=True),
    TernaryScheme(planes=3, group_size=128, tied=True),
]


def grid(seed: int, outputs: int, inputs: int, scheme: Int4Scheme | TernaryScheme) -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(seed)
    parts: dict[str, NDArray[Any]] = {
        name: rng.integers(0, 64, part.shape).astype(part.dtype)
        if name == "steps"
        else rng.normal(size=part.shape).astype(part.dtype)
        for name, part in scheme.parts((outputs, inputs)).items()
    }
    if isinstance(scheme, Int4Scheme):
        parts["codes"] = scheme.pack(rng.integers(0, 16, (outputs, inputs)).astype(np.uint8))
    else:
        parts["codes"] = scheme.pack(rng.integers(-1, 2, (scheme.planes, outputs, inputs)).astype(np.int8))
    return parts


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize(
    ("scheme", "outputs", "inputs", "compact"),
    [
        (GRIDS[0], 70, 2560, False),
        (GRIDS[1], 5, 7, True),
        (GRIDS[1], 40, 300, True),
        (GRIDS[2], 40, 288, True),
        (GRIDS[3], 40, 288, False),
        (GRIDS[4], 5, 200, True),
    ],
)
def test_grid(gpu_device: Bench, scheme: Int4Scheme | TernaryScheme, outputs: int, inputs: int, compact: bool) -> None:
    parts = grid(1, outputs, inputs, scheme)
    kernel = linear_grid(ShaderOptions(head=LAYOUT, compact=compact), outputs=outputs, inputs=inputs, scheme=scheme)
    packed = pack_grid(scheme, inputs, [parts])
    layout = grid_layout(scheme)
    assert layout is not None
    cpu_packed = cpu_pack_grid("matrix", scheme, parts, (outputs, inputs))
    for rows in (1, 3, 9):
        x, scale = activations(rows, rows, inputs)
        right = grid_matmul(cpu_kernels(), x, scale, cpu_packed, outputs, layout)
        assert run(gpu_device, kernel, x, scale, packed, outputs).tobytes() == right.tobytes()


def test_planes_with_free_scales_are_no_grid() -> None:
    with pytest.raises(UnsupportedError, match="linear_ternary computes them"):
        linear_grid(OPTIONS, outputs=8, inputs=8, scheme=TernaryScheme())


@pytest.mark.thorough
@pytest.mark.parametrize(("dtype", "compact"), [("float32", True), ("float16", False), ("bfloat16", True)])
def test_float(gpu_device: Bench, dtype: str, compact: bool) -> None:
    """Compare with the sums of linear_float.wgsl in NumPy: 8 interleaved chains of rounded products, added in order."""
    outputs, inputs = 37, 301
    rng = np.random.default_rng(0)
    scheme = FloatScheme(dtype=dtype)
    matrix = rng.normal(size=(outputs, inputs)).astype(scheme.parts((outputs, inputs))["values"].dtype)
    options = ShaderOptions(head=LAYOUT, compact=compact)
    kernel = linear_float(options, outputs=outputs, inputs=inputs, scheme=scheme)
    x = rng.normal(size=(9, inputs)).astype(np.float32)
    columns = 16 // matrix.dtype.itemsize
    sums = np.zeros((8, 9, outputs), np.float32)
    for column in range(inputs):
        sums[column // columns % 8] += x[:, column, None] * matrix[:, column].astype(np.float32)
    right = np.zeros((9, outputs), np.float32)
    for part in sums:
        right += part
    head = LAYOUT.new()
    head[1] = 9
    buffers = {"head": head, "x": x, "weights": pack_float([matrix]), "y": np.zeros_like(right)}
    made = gpu_device.run(kernel, buffers, rows=9)["y"][: right.size]
    assert made.tobytes() == right.tobytes()


@pytest.mark.thorough
def test_a_soft_cap_is_that_of_the_cpu_target(gpu_device: Bench) -> None:
    inputs, outputs, cap = 64, 1000, 30.0
    codes = np.random.default_rng(2).integers(-127, 128, (outputs, inputs)).astype(np.int8)
    scales = np.logspace(-9, 0, outputs, dtype=np.float32)
    x, scale = activations(1, 3, inputs)
    kernel = linear_int8(OPTIONS, outputs=outputs, inputs=inputs, ending=Ending(soft_cap=cap))
    made = run(gpu_device, kernel, x, scale, pack_int8(Int8Scheme(rows=True), [(codes, scales)]), outputs)
    plain = int8_matmul(cpu_kernels(), x, scale, codes, scales, by_rows=True)
    assert made.tobytes() == cpu_soft_cap(plain, cap).tobytes()
