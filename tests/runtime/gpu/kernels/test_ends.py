"""Test the kernels at the ends of a pass: embeddings, the likeliest tokens, and moves of cache rows."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from edgedec.errors import EdgedecError, UnsupportedError
from edgedec.runtime.gpu.kernels.cache import CacheShape
from edgedec.runtime.gpu.kernels.embedding import embed, pack_embedding
from edgedec.runtime.gpu.kernels.head import HeadLayout
from edgedec.runtime.gpu.kernels.linear_int8 import pack_int8
from edgedec.runtime.gpu.kernels.results import exp_sums, log_of_parts, move_rows, sum_parts, top_k
from edgedec.runtime.gpu.kernels.source import ShaderOptions
from edgedec.runtime.protocols import F32, I32
from edgedec.runtime.sampling.log_sum import log_sum
from edgedec.schemes import FloatScheme, Int8Scheme, Scheme, TernaryScheme
from tests.runtime.gpu.kernels.support.bench import Bench

LAYOUT = HeadLayout(rows=16, results=4, blocks=1)
OPTIONS = ShaderOptions(head=LAYOUT)
COMPACT = ShaderOptions(head=LAYOUT, compact=True)

TABLES: list[tuple[Scheme, bool]] = [
    (FloatScheme(dtype="float32"), False),
    (FloatScheme(dtype="float16"), False),
    (FloatScheme(dtype="bfloat16"), False),
    (Int8Scheme(rows=True), False),
    (Int8Scheme(rows=True), True),
]


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize(("scheme", "tiled"), TABLES, ids=str)
def test_embed(gpu_device: Bench, scheme: Scheme, tiled: bool) -> None:
    vocab, width, scale = 75, 301, 1.0 if tiled else 7.25
    rng = np.random.default_rng(0)
    values: NDArray[Any] = rng.normal(size=(vocab, width)).astype(np.float32)
    buffers: dict[str, NDArray[Any]] = {}
    if isinstance(scheme, FloatScheme):
        values = values.astype(ml_dtypes.bfloat16 if scheme.dtype == "bfloat16" else scheme.dtype)
        dense, words = values.astype(np.float32), pack_embedding(values)
    else:
        assert isinstance(scheme, Int8Scheme)
        values = rng.integers(-127, 128, (vocab, width)).astype(np.int8)
        row_scales = rng.uniform(0.1, 1, vocab).astype(np.float32)
        dense = values.astype(np.float32) * row_scales[:, None]
        words = pack_int8(scheme, [(values, row_scales)]).weights if tiled else pack_embedding(values)
        buffers["row_scales"] = row_scales
    embeds = rng.normal(size=(2, width)).astype(np.float32)
    ids = np.array([0, 74, -2, 33, -1], np.int32)
    head = LAYOUT.new()
    head[1] = len(ids)
    head[LAYOUT.table("id") : LAYOUT.table("id") + len(ids)] = ids.view(np.uint32)
    buffers |= {"head": head, "table": words, "embeds": embeds, "out": np.zeros((len(ids), width), np.float32)}
    kernel = embed(OPTIONS, width=width, scheme=scheme, scale=scale, tiled=tiled)
    made = gpu_device.run(kernel, buffers, rows=len(ids))["out"][: len(ids) * width]
    right = np.stack([dense[i] if i >= 0 else embeds[-i - 1] for i in ids]) * np.float32(scale)
    assert made.tobytes() == right.tobytes()


def test_a_ternary_embedding_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="an embedding is stored as floats or as int8 by rows"):
        embed(OPTIONS, width=8, scheme=TernaryScheme())


def likeliest(logits: F32, k: int, size: int) -> tuple[I32, F32]:
    """Return ids and logits in descending order; of equal ones, the smaller id comes first."""
    order = np.stack([np.lexsort((np.arange(size), -row[:size])) for row in logits])[:, :k]
    return order.astype(np.int32), np.take_along_axis(logits, order, 1)


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize(
    ("options", "vocab", "size", "k"),
    [
        (COMPACT, 10, 7, 7),
        (OPTIONS, 10, 7, 7),
        (OPTIONS, 5000, 4999, 1),
        (OPTIONS, 9000, 8200, 40),
        (COMPACT, 9000, 8200, 40),
    ],
)
def test_top_k(gpu_device: Bench, options: ShaderOptions, vocab: int, size: int, k: int) -> None:
    rng = np.random.default_rng(k)
    logits = rng.normal(size=(3, vocab)).astype(np.float32)
    logits[1] = rng.integers(-2, 3, vocab)  # many equal logits
    logits[1, ::3] *= -0.0
    logits[2, : vocab // 2] = -np.inf
    logits[2, 5] = np.inf
    logits[:, size:] = 1e9
    kernels = top_k(options, vocab=vocab, k=k, size=size)
    head = LAYOUT.new()
    head[1:3] = 3, 3
    found = gpu_device.run(
        kernels.parts,
        {"head": head, "logits": logits, "found": np.zeros(kernels.scratch, np.uint32)},
        results=3,
    )["found"]
    room = {"top_ids": np.zeros((3, k), np.int32), "top_logits": np.zeros((3, k), np.float32)}
    made = gpu_device.run(kernels.merged, {"head": head, "found": found, **room}, results=3)
    ids, best = likeliest(logits, k, size)
    assert np.array_equal(made["top_ids"][: 3 * k].view(np.int32).reshape(3, k), ids)
    assert made["top_logits"][: 3 * k].tobytes() == best.tobytes()


@pytest.mark.thorough
def test_a_row_with_nan_begins_with_it(gpu_device: Bench) -> None:
    logits = np.array([[1, np.nan, 3, -np.nan, 2]], np.float32)
    kernels = top_k(OPTIONS, vocab=5, k=4, size=5)
    head = LAYOUT.new()
    head[1:3] = 1, 1
    found = gpu_device.run(kernels.parts, {"head": head, "logits": logits, "found": np.zeros(99, np.uint32)})["found"]
    room = {"top_ids": np.zeros(4, np.int32), "top_logits": np.zeros(4, np.float32)}
    made = gpu_device.run(kernels.merged, {"head": head, "found": found, **room})
    assert made["top_ids"].tolist() == [1, 3, 2, 4]


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize(
    ("options", "vocab", "size", "scale"),
    [(COMPACT, 20, 17, 1.0), (OPTIONS, 20, 17, 9.0), (OPTIONS, 9000, 8200, 3.0), (COMPACT, 9000, 8200, 1e-3)],
)
def test_exp_sums(gpu_device: Bench, options: ShaderOptions, vocab: int, size: int, scale: float) -> None:
    """Check the sums of all bits with those of NumPy: far and near logits, differences that float32 does not hold."""
    rng = np.random.default_rng(size)
    logits = (rng.normal(size=(7, vocab)) * scale).astype(np.float32)
    logits[1] += np.float32(1000)
    logits[2] = 7.25
    logits[3, ::2] = -np.inf
    logits[3, 1] = 3e38
    logits[4] = rng.uniform(-34, 0, vocab)
    logits[5] = rng.uniform(0, 1, vocab) * 1e-40  # subnormal numbers
    logits[6] = np.linspace(-33, 0.1, vocab)[::-1] * (1 + 1e-7)
    logits[:, size:] = 1e9
    made = run_exp_sums(gpu_device, options, logits, size)
    assert made == [log_sum(row[:size]) for row in logits]


def run_exp_sums(bench: Bench, options: ShaderOptions, logits: F32, size: int) -> list[float]:
    r, largest = len(logits), logits[:, :size].max(axis=1)
    top = np.full((r, 3), -9, np.float32)
    top[:, 0] = largest
    head = LAYOUT.new()
    head[1:3] = r, r
    buffers = {
        "head": head,
        "logits": logits,
        "top_logits": top,
        "top_sums": np.zeros(2 * r * sum_parts(size), np.uint32),
    }
    kernel = exp_sums(options, vocab=logits.shape[1], k=3, size=size)
    words = bench.run(kernel, buffers, results=r)["top_sums"][: 2 * r * sum_parts(size)].reshape(r, -1)
    return [log_of_parts(top[row, 0], words[row]) for row in range(r)]


@pytest.mark.thorough
def test_wrong_logits_have_no_sum(gpu_device: Bench) -> None:
    logits = np.zeros((4, 5000), np.float32)
    logits[1, 4500] = np.nan
    logits[2, 3] = np.inf
    logits[3] = -np.inf
    made = run_exp_sums(gpu_device, OPTIONS, logits, 5000)
    assert made[0] == log_sum(logits[0])
    assert np.isnan(made[1:]).all()


def test_too_few_logits_are_refused() -> None:
    with pytest.raises(EdgedecError, match="cannot select 9 of 8 of 8 logits"):
        top_k(OPTIONS, vocab=8, k=9, size=8)


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("bits", [32, 8])
def test_move_rows(gpu_device: Bench, bits: int) -> None:
    shape = CacheShape(kv_heads=2, head_dim=12, bits=bits, blocks=4)
    cache = np.random.default_rng(bits).integers(0, 2**32, shape.words, dtype=np.uint64).astype(np.uint32)
    moves = [(17, 16), (18, 17), (63, 18), (0, 40)]  # a row is read before another one is copied to it
    words = np.array([len(moves), *(slot for move in moves for slot in move)], np.uint32)
    made = gpu_device.run(move_rows(OPTIONS, cache=shape), {"head": LAYOUT.new(), "moves": words, "cache": cache})
    right = cache.copy()
    slots, dims = 64, shape.dim_words
    for part in right.reshape(2, -1):
        keys = part[: slots * dims].reshape(4, dims, 16)
        values = part[slots * dims : 2 * slots * dims].reshape(slots, dims)
        scales = part[2 * slots * dims :].reshape(-1, slots)
        for source, to in moves:
            keys[to // 16, :, to % 16] = keys[source // 16, :, source % 16]
            values[to] = values[source]
            scales[:, to] = scales[:, source]
    assert np.array_equal(made["cache"][: right.size], right)
    assert not np.array_equal(cache, right)
