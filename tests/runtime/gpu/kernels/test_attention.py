"""Compare attention with the CPU kernels, to the bit: rotation, cache, several sequences, trees, windows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from edgedec.graph.graph import KvState
from edgedec.onnx.kv_cache import cache_layout
from edgedec.runtime import visibility
from edgedec.runtime.gpu.kernels import source
from edgedec.runtime.gpu.kernels.attention import attention, rope_append
from edgedec.runtime.gpu.kernels.cache import CacheShape
from edgedec.runtime.gpu.kernels.head import HeadLayout
from edgedec.runtime.gpu.kernels.rows import Columns
from edgedec.runtime.gpu.kernels.source import ShaderOptions
from edgedec.runtime.kernels.attention.attention import KvBuffer, attend
from edgedec.runtime.protocols import F32, I32
from tests.runtime.gpu.kernels.support.bench import Bench
from tests.runtime.gpu.kernels.support.cpu import cpu_kernels

POSITIONS, BLOCKS = 200, 20
LAYOUT = HeadLayout(rows=48, results=4, blocks=64)


@dataclass
class Both:
    """Hold one state's cache on the CPU and on the GPU, and run the same passes on both."""

    bench: Bench
    heads: int
    state: KvState
    layout: Literal["half", "interleaved"] | None = "half"
    soft_cap: float | None = None
    options: ShaderOptions = field(default_factory=lambda: ShaderOptions(head=LAYOUT))
    buffer: KvBuffer = field(init=False)
    cache: NDArray[np.uint32] = field(init=False)
    shape: CacheShape = field(init=False)

    def __post_init__(self) -> None:
        self.buffer = KvBuffer(cpu_kernels(), cache_layout({"kv": self.state}, BLOCKS * 16))
        self.shape = CacheShape(
            kv_heads=self.state.kv_heads, head_dim=self.state.head_dim, bits=self.state.bits, blocks=BLOCKS
        )
        self.cache = np.zeros(self.shape.words, np.uint32)
        angles = np.outer(np.arange(POSITIONS), 0.7 ** np.arange(self.state.head_dim // 2))
        self.tables = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        pairs = self.state.head_dim // 2 if self.layout else 0
        width = (self.heads + 2 * self.state.kv_heads) * self.state.head_dim
        starts = np.cumsum([0, self.heads, self.state.kv_heads]) * self.state.head_dim
        q, k, v = (Columns(offset=int(start), stride=width) for start in starts)
        self.append = rope_append(
            self.options, heads=self.heads, cache=self.shape, pairs=pairs, layout=self.layout or "half", q=q, k=k, v=v
        )
        self.kernels = attention(
            self.options,
            heads=self.heads,
            cache=self.shape,
            positions=POSITIONS,
            scale=self.scale,
            window=self.state.window or 0,
            sinks=self.state.sinks,
            soft_cap=self.soft_cap,
        )

    @property
    def scale(self) -> float:
        return float(np.float32(2 / np.sqrt(self.state.head_dim)))

    def run(
        self,
        qkv: F32,
        sequences: list[tuple[int, int]],
        tables: list[list[int]],
        positions: I32,
        visible: NDArray[np.bool_],
    ) -> None:
        """Run a pass on both and compare the results and the whole caches."""
        d, n = self.state.head_dim, len(qkv)
        q, k, v = np.split(qkv, [self.heads * d, (self.heads + self.state.kv_heads) * d], axis=1)
        packed = visibility.pack(visible)
        right = attend(
            cpu_kernels(),
            self.buffer.cache,
            self.state,
            BLOCKS * 16,
            queries=q,
            keys=k,
            values=v,
            sequences=sequences,
            blocks=[block for table in tables for block in table],
            context=POSITIONS,
            positions=positions,
            visible=packed,
            scale=self.scale,
            cap=self.soft_cap or 0.0,
            rotary={"half": 1, "interleaved": 2, None: 0}[self.layout],
            tables=self.tables if self.layout else None,
        )
        head = LAYOUT.new()
        LAYOUT.write(
            head,
            ids=np.zeros(n, np.int32),
            positions=positions,
            sequences=sequences,
            result_rows=np.zeros(1, np.int32),
            visible=packed,
            tables=[np.array(table, np.int32) for table in tables],
        )
        turning = dict(zip(("cos_table", "sin_table"), self.tables, strict=True)) if self.layout else {}
        out = np.zeros((n, self.heads * d), np.float32)
        made = self.bench.run(
            self.append,
            {"head": head, "q": qkv, "k": qkv, "v": qkv, **turning, "out": out, "cache": self.cache},
            rows=n,
        )
        self.cache = made["cache"][: self.cache.size]
        scratch = np.full(self.kernels.scratch, np.nan, np.float32)
        buffers: dict[str, Any] = {"head": head, "cache": self.cache}
        scores = self.bench.run(
            self.kernels.scores, {**buffers, "q": made["out"][: out.size], "scores": scratch}, rows=n
        )["scores"]
        made = self.bench.run(self.kernels.values, {**buffers, "scores": scores, "out": out}, rows=n)
        self.check_cache()
        assert np.array_equal(made["out"][: out.size].reshape(out.shape), right.view(np.uint32))

    def check_cache(self) -> None:
        """Compare every word of the caches."""
        kind: np.dtype[Any] = np.dtype({32: np.float32, 16: np.float16, 8: np.int8}[self.state.bits])
        d, words, slots = self.state.head_dim, self.shape.dim_words, BLOCKS * 16
        for views, part in zip(self.buffer.heads(), self.cache.reshape(self.state.kv_heads, -1), strict=True):
            keys = part[: slots * words].reshape(BLOCKS, words, 16).transpose(0, 2, 1)
            values = part[slots * words : 2 * slots * words].reshape(BLOCKS, 16, words)
            made_keys, made_values = (np.ascontiguousarray(x).view(kind)[..., :d] for x in (keys, values))
            assert views[0].view(kind).reshape(BLOCKS, d, 16).transpose(0, 2, 1).tobytes() == made_keys.tobytes()
            assert views[1].tobytes() == made_values.tobytes()
            if self.state.bits == 8:
                assert np.concatenate([views[2].reshape(-1), views[3].reshape(-1)]).tobytes() == (
                    part[2 * slots * words :].tobytes()
                )


def rows(both: Both, seed: int, n: int) -> F32:
    width = (both.heads + 2 * both.state.kv_heads) * both.state.head_dim
    x = np.random.default_rng(seed).normal(size=(n, width)).astype(np.float32)
    if both.state.bits == 16 and n > 2:
        x[1, -1], x[2, -2] = 7e4, 1e-6  # beyond float16, and subnormal in it
    return x


def kv(heads: int, head_dim: int, bits: int, **more: Any) -> KvState:
    return KvState(name="kv", kv_heads=heads, head_dim=head_dim, bits=bits, **more)


CASES = [
    (4, kv(2, 8, 16), "half", None),
    (3, kv(3, 12, 8), "interleaved", None),
    (4, kv(1, 64, 32), "half", 20.0),
    (2, kv(2, 96, 16, window=9, sinks=3), "half", None),
    (2, kv(1, 260, 8, window=16), None, None),  # more dimensions than invocations of a workgroup
]


@pytest.mark.thorough
@pytest.mark.parametrize("compact", [False, True], ids=["usual", "compact"])
@pytest.mark.parametrize(
    ("heads", "state", "layout", "cap"), CASES, ids=lambda value: str(getattr(value, "bits", value))
)
def test_passes_of_two_sequences(
    gpu_device: Bench,
    heads: int,
    state: KvState,
    layout: Literal["half", "interleaved"] | None,
    cap: float | None,
    compact: bool,
) -> None:
    check_passes(Both(gpu_device, heads, state, layout, cap, ShaderOptions(head=LAYOUT, compact=compact)))


@pytest.mark.thorough
def test_query_heads_that_share_a_key_are_scored_together(gpu_device: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give an adapter's fma one rounding: then scores of several heads are computed at once."""
    exact, read = source.shader("fma_exact"), source.shader
    monkeypatch.setattr(source, "shader", lambda name: exact if name == "fma_native" else read(name))
    both = Both(gpu_device, 8, kv(2, 12, 16), options=ShaderOptions(head=LAYOUT, fused=True))
    assert both.kernels.scores.groups.x.constant == 2
    check_passes(both)


def check_passes(both: Both) -> None:
    """Run a text, then a tree beside the text of a second sequence that shares a block with the first, then single rows."""
    first, second = [5, 2, 7, 0], [5, 9, 1]
    n = 37
    both.run(rows(both, 0, n), [(n, 0)], [first[:3]], np.arange(n, dtype=np.int32), np.tri(n, dtype=np.bool_))
    # A tree of 6 nodes after 37 rows, and 3 rows of text after the 16 shared ones.
    tree = np.zeros((9, 9), np.bool_)
    for i, seen in enumerate([[0], [0, 1], [0, 2], [0, 1, 3], [0, 2, 4], [0, 2, 4, 5]]):
        tree[i, seen] = True
    tree[6:, :3] = np.tri(3, dtype=np.bool_)
    positions = np.array([37, 38, 38, 39, 39, 40, 16, 17, 18], np.int32)
    both.run(rows(both, 1, 9), [(6, 37), (3, 16)], [first[:3], second[:2]], positions, tree)
    one = np.ones((2, 1), np.bool_)
    both.run(rows(both, 2, 2), [(1, 38), (1, 19)], [first[:3], second[:2]], np.array([38, 19], np.int32), one)
