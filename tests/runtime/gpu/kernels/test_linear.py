"""Compare the matrix products with the CPU kernels, to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgedec.runtime.gpu.kernels.codes import code_stride, code_words
from edgedec.runtime.gpu.kernels.head import HeadLayout
from edgedec.runtime.gpu.kernels.kernel import Kernel
from edgedec.runtime.gpu.kernels.linear import Ending, Packed
from edgedec.runtime.gpu.kernels.linear_int8 import linear_int8, pack_int8
from edgedec.runtime.gpu.kernels.linear_ternary import linear_ternary, pack_ternary
from edgedec.runtime.gpu.kernels.source import ShaderOptions
from edgedec.runtime.kernels.int8 import int8_matmul
from edgedec.runtime.protocols import F32
from edgedec.schemes import Int8Scheme, TernaryScheme
from tests.runtime.gpu.kernels.support.bench import Bench
from tests.runtime.gpu.kernels.support.cpu import cpu_kernels

LAYOUT = HeadLayout(rows=32, results=16, blocks=1)
OPTIONS = ShaderOptions(head=LAYOUT, row_steps=(8,))  # one step, because software drivers compile slowly
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
    packed = kernels.pack(codes, shape, scheme)
    packed_scales = kernels.pack_scales(scales, shape, scheme)
    return kernels.matmul(x, scale, packed, packed_scales, shape[0], scheme, bias=bias)


@pytest.mark.parametrize("group_size", [0, 32, 64, 128])
@pytest.mark.parametrize("planes", [1, 2, 3])
@pytest.mark.parametrize(("outputs", "inputs"), [(5, 7), (33, 64), (96, 96), (40, 288), (70, 2560)])
def test_ternary(gpu_device: Bench, group_size: int, planes: int, outputs: int, inputs: int) -> None:
    scheme = TernaryScheme(planes=planes, group_size=group_size)
    codes, scales = ternary(planes, outputs, inputs, scheme)
    kernel = linear_ternary(OPTIONS, outputs=outputs, inputs=inputs, planes=planes, group_size=group_size)
    packed = pack_ternary(scheme, inputs, [(codes, scales)])
    for rows in (1, 3, 9):
        x, scale = activations(rows, rows, inputs)
        made = run(gpu_device, kernel, x, scale, packed, outputs)
        assert made.tobytes() == cpu_ternary(x, scale, codes, scales, scheme).tobytes()


@pytest.mark.parametrize("by_rows", [True, False])
@pytest.mark.parametrize(("outputs", "inputs"), [(5, 7), (33, 64), (96, 96), (40, 288), (70, 2560), (3, 20_000)])
def test_int8(gpu_device: Bench, by_rows: bool, outputs: int, inputs: int) -> None:
    rng = np.random.default_rng(inputs)
    codes = rng.integers(-127, 128, (outputs, inputs)).astype(np.int8)
    codes[0] = 127  # sums beyond 2^24
    scales = rng.normal(size=outputs).astype(np.float32)
    turned = codes if by_rows else np.ascontiguousarray(codes.T)
    kernel = linear_int8(OPTIONS, outputs=outputs, inputs=inputs)
    packed = pack_int8(Int8Scheme(rows=by_rows), [(turned, scales)])
    for rows in (1, 2, 8, 17):
        x, scale = activations(rows, rows, inputs)
        right = int8_matmul(cpu_kernels(), x, scale, codes, scales, by_rows=True)
        assert run(gpu_device, kernel, x, scale, packed, outputs).tobytes() == right.tobytes()


@pytest.mark.parametrize("group_size", [0, 64])
def test_stacked_matrices_with_bias_and_residual(gpu_device: Bench, group_size: int) -> None:
    scheme, inputs, sizes = TernaryScheme(planes=2, group_size=group_size), 320, (48, 7, 33)
    matrices = [ternary(seed, outputs, inputs, scheme) for seed, outputs in enumerate(sizes)]
    rng = np.random.default_rng(1)
    outputs = sum(sizes)
    ending = Ending(bias=True, residual=True, results=True)
    kernel = linear_ternary(
        OPTIONS, outputs=outputs, inputs=inputs, planes=2, group_size=group_size, ending=ending
    )
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
