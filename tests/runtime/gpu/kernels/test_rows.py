"""Compare the kernels on rows of activations with the CPU kernels, to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgedec.graph.ops import Activation
from edgedec.reference.float_profile.ops.hadamard import transformed
from edgedec.runtime.gpu.kernels import rows
from edgedec.runtime.gpu.kernels.codes import code_stride, code_words
from edgedec.runtime.gpu.kernels.head import HeadLayout
from edgedec.runtime.gpu.kernels.rows import Columns
from edgedec.runtime.gpu.kernels.source import ShaderOptions
from edgedec.runtime.protocols import F32
from tests.runtime.gpu.kernels.support.bench import Bench
from tests.runtime.gpu.kernels.support.cpu import cpu_gate, cpu_kernels, cpu_norm

LAYOUT = HeadLayout(rows=16, results=4, blocks=1)
OPTIONS = ShaderOptions(head=LAYOUT)
COMPACT = ShaderOptions(head=LAYOUT, compact=True)
EPS = 1e-5


def values(seed: int, *shape: int) -> F32:
    """Return rows of usual, tiny and huge magnitudes, one of zeros, one of equal values."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=shape).astype(np.float32)
    x *= np.float32(10) ** rng.integers(-6, 7, (*shape[:-1], 1)).astype(np.float32)
    if shape[0] > 4:
        x[1], x[2], x[3, 0] = 0, -3, 100
    return x


def head(n: int, results: tuple[int, ...] = ()) -> NDArray[np.uint32]:
    made = LAYOUT.new()
    made[1:3] = n, len(results)
    made[LAYOUT.result_rows : LAYOUT.result_rows + len(results)] = results
    return made


def codes_of(made: dict[str, Any], n: int, width: int) -> tuple[NDArray[np.int8], NDArray[np.int32], F32]:
    """Return the codes, their sums of 32 columns and the scales; check that padding is 0."""
    words = made["codes"][: n * code_stride(width)].reshape(n, -1)
    codes = np.ascontiguousarray(words[:, : code_words(width)]).view(np.int8)
    assert not codes[:, width:].any()
    sums = words[:, code_words(width) :].view(np.int32)[:, : code_words(width) // 8]
    assert np.array_equal(sums, codes.reshape(n, -1, 32).sum(axis=2, dtype=np.int32))
    return codes[:, :width], sums, made["scales"][:n].view(np.float32)


def check_codes(made: dict[str, Any], right: F32) -> None:
    codes, scales = cpu_kernels().quantize(right)
    made_codes, _, made_scales = codes_of(made, *right.shape)
    assert np.array_equal(made_codes, codes)
    assert made_scales.tobytes() == scales[:, 0].tobytes()


def room(n: int, width: int) -> dict[str, NDArray[Any]]:
    return {"codes": np.full(n * code_stride(width), 7, np.uint32), "scales": np.zeros(n, np.float32)}


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize(
    ("options", "n", "width"),
    [(COMPACT, 9, 83), (OPTIONS, 3, 70), (OPTIONS, 1, 8), (COMPACT, 1, 8), (OPTIONS, 3, 2560)],
)
def test_quantize(gpu_device: Bench, options: ShaderOptions, n: int, width: int) -> None:
    x = values(width, n, width)
    kernel = rows.quantize(options, width=width)
    check_codes(gpu_device.run(kernel, {"head": head(n), "x": x, **room(n, width)}, rows=n), x)


@pytest.mark.thorough
def test_a_row_that_is_not_finite_has_no_codes_and_no_other_row_changes(gpu_device: Bench) -> None:
    x = values(0, 5, 70)
    x[1, 3], x[3, 69] = np.nan, -np.inf
    made = gpu_device.run(rows.quantize(OPTIONS, width=70), {"head": head(5), "x": x, **room(5, 70)}, rows=5)
    codes, _, scales = codes_of(made, 5, 70)
    right, right_scales = cpu_kernels().quantize(x)
    assert np.array_equal(codes, right)
    assert np.array_equal(scales, right_scales[:, 0], equal_nan=True)
    assert np.isnan(scales[[1, 3]]).all()
    assert not codes[[1, 3]].any()


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize(
    ("options", "heads", "width"),
    [(COMPACT, 3, 83), (OPTIONS, 3, 83), (OPTIONS, 1, 2560), (OPTIONS, 2, 8), (COMPACT, 1, 2560), (COMPACT, 2, 8)],
)
def test_norm(gpu_device: Bench, options: ShaderOptions, heads: int, width: int) -> None:
    n = 5
    x, gain = values(width, n, width * heads), values(1, 1, width)[0]
    kernel = rows.norm(options, width=width, eps=EPS, heads=heads)
    made = gpu_device.run(kernel, {"head": head(n), "x": x, "gain": gain, "out": np.zeros_like(x)}, rows=n)
    assert made["out"][: x.size].tobytes() == cpu_norm(x, gain, EPS).tobytes()


@pytest.mark.thorough
@pytest.mark.parametrize(("options", "n", "width"), [(COMPACT, 9, 288), (OPTIONS, 1, 4100)])
def test_norm_quantize(gpu_device: Bench, options: ShaderOptions, n: int, width: int) -> None:
    x, gain = values(width, n, width), values(2, 1, width)[0]
    kernel = rows.quantize(options, width=width, eps=EPS)
    made = gpu_device.run(kernel, {"head": head(n), "x": x, "gain": gain, **room(n, width)}, rows=n)
    check_codes(made, cpu_norm(x, gain, EPS))


def gates(seed: int, n: int, width: int) -> tuple[F32, F32]:
    rng = np.random.default_rng(seed)
    gate = (rng.normal(size=(n, width)) * 10.0 ** rng.integers(-3, 2, (n, 1))).astype(np.float32)
    # No result is subnormal, which SwiftShader turns to 0.
    gate[0, :8] = 0.0, -0.0, 88.0, -88.0, 1e30, -1e30, 1e-30, -1e-30
    return gate, rng.normal(size=(n, width)).astype(np.float32)


@pytest.mark.thorough
@pytest.mark.parametrize("activation", ["silu", "relu2", "gelu_tanh"])
def test_gate(gpu_device: Bench, activation: Activation) -> None:
    n, width = 5, 3000
    gate, up = gates(3, n, width)
    kernel = rows.gate(OPTIONS, width=width, activation=activation)
    made = gpu_device.run(kernel, {"head": head(n), "x": gate, "up": up, "out": np.zeros_like(up)}, rows=n)
    with np.errstate(all="ignore"):
        right = cpu_gate(activation, gate, up)
    assert np.array_equal(np.isnan(right), np.isnan(made["out"].view(np.float32)[: up.size].reshape(right.shape)))
    known = ~np.isnan(right)
    assert np.array_equal(made["out"][: up.size].reshape(right.shape)[known], right.view(np.uint32)[known])


@pytest.mark.thorough
@pytest.mark.parametrize(("options", "activation", "width"), [(OPTIONS, "relu2", 83), (COMPACT, "silu", 70)])
def test_gate_quantize_and_gate_norm_quantize(
    gpu_device: Bench, options: ShaderOptions, activation: Activation, width: int
) -> None:
    n = 3
    gate, up = gates(4, n, width)
    gate[0, 4:6] = 3  # so that nothing overflows
    gain = values(5, 1, width)[0]
    both = np.concatenate([gate, up], axis=1)  # columns of one matrix, as fused linears leave them
    at: dict[str, Any] = {"x": Columns(offset=0, stride=2 * width), "up": Columns(offset=width, stride=2 * width)}
    right = cpu_gate(activation, gate, up)
    kernel = rows.quantize(options, width=width, activation=activation, **at)
    check_codes(gpu_device.run(kernel, {"head": head(n), "x": both, "up": both, **room(n, width)}, rows=n), right)
    normed = rows.quantize(options, width=width, activation=activation, eps=EPS, **at)
    buffers = {"head": head(n), "x": both, "up": both, "gain": gain, **room(n, width)}
    check_codes(gpu_device.run(normed, buffers, rows=n), cpu_norm(right, gain, EPS))


@pytest.mark.thorough(sample=1)
def test_add_and_select(gpu_device: Bench) -> None:
    n, width = 6, 700
    a, b = values(6, n, width), values(7, n, width)
    made = gpu_device.run(
        rows.add(OPTIONS, width=width), {"head": head(n), "x": a, "up": b, "out": np.zeros_like(a)}, rows=n
    )
    assert made["out"][: a.size].tobytes() == (a + b).tobytes()
    chosen = (4, 0, 4)
    buffers = {"head": head(n, chosen), "x": a, "out": np.zeros((3, width), np.float32)}
    made = gpu_device.run(rows.select(OPTIONS, width=width), buffers, rows=n, results=3)
    assert made["out"][: 3 * width].tobytes() == a[list(chosen)].tobytes()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("options", "n", "block", "blocks", "inverse"),
    [(COMPACT, 5, 64, 3, False), (OPTIONS, 2, 1024, 2, False), (COMPACT, 3, 16, 2, True), (OPTIONS, 1, 2, 4, True)],
)
def test_hadamard(gpu_device: Bench, options: ShaderOptions, n: int, block: int, blocks: int, inverse: bool) -> None:
    """The rows are columns of a wider matrix."""
    width = block * blocks
    wide = values(width, n, width + 7)
    x, signs = wide[:, 3 : 3 + width], np.random.default_rng(n).choice(np.array([-1, 1], np.float32), width)
    kernel = rows.hadamard(options, width=width, block=block, inverse=inverse, x=Columns(offset=3, stride=width + 7))
    out = np.full((n, width), 7, np.float32)
    made = gpu_device.run(kernel, {"head": head(n), "x": wide, "signs": signs, "out": out}, rows=n)
    expected = transformed(x, block) * signs if inverse else transformed(x * signs, block)
    assert made["out"].tobytes() == expected.tobytes()
