"""Attention kernels: rotation and storage of new rows, then scores, then weights and values."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from edgedec.errors import EdgedecError
from edgedec.onnx.kv_cache import BLOCK_ROWS, blocks_of
from edgedec.runtime.gpu.kernels.cache import CacheShape
from edgedec.runtime.gpu.kernels.kernel import Count, Groups, Kernel
from edgedec.runtime.gpu.kernels.rows import Columns
from edgedec.runtime.gpu.kernels.source import ShaderBuffer, ShaderOptions, assemble, each_row, shader

__all__ = ["AttentionKernels", "attention", "rope_append"]

_SLOTS, _SLOT_GROUPS = 64, 32  # slots of a workgroup at a time, and workgroups that share those of a head, on a GPU
_VALUE_LANES = (8, 16, 32, 64, 128, 256)  # sizes of a workgroup that adds values, one dimension for an invocation
_EACH = Count(rows=1)
_HALF = """
    let i = d % PAIRS;
    let c = cos_table[table_start + i];
    let s = sin_table[table_start + i];
    if (d < PAIRS) { return sub(mul(source(d), c), mul(source(d + PAIRS), s)); }
    return add(mul(source(d), c), mul(source(i), s));"""
_INTERLEAVED = """
    let c = cos_table[table_start + d / 2u];
    let s = sin_table[table_start + d / 2u];
    if (d % 2u == 0u) { return sub(mul(source(d), c), mul(source(d + 1u), s)); }
    return add(mul(source(d), c), mul(source(d - 1u), s));"""
_UNSCALED = "fn scale_of(lane: u32) -> f32 { return 1.0; }\n"
_SCALED = """
fn scale_of(lane: u32) -> f32 {
    var most = 0u;
    for (var d = lane; d < HEAD_DIM; d += LANES) { most = max(most, magnitude(turned(d))); }
    return scale_of_row(largest_of_all(lane, most));
}
fn stored(x: f32, scale: f32) -> u32 {
    if (!has_codes(scale)) { return 0u; }
    return code_of(x, scale);
}
"""
_STORED = {
    32: ("fn stored(x: f32, scale: f32) -> u32 { return bitcast<u32>(x); }\n", _UNSCALED),
    16: ("fn stored(x: f32, scale: f32) -> u32 { return to_half(x); }\n", _UNSCALED),
    8: ("codes", _SCALED),
}


def rope_append(
    options: ShaderOptions,
    *,
    heads: int,
    cache: CacheShape,
    pairs: int,
    layout: Literal["half", "interleaved"] = "half",
    q: Columns | None = None,
    k: Columns | None = None,
    v: Columns | None = None,
) -> Kernel:
    """Return (q, k, v, cos_table?, sin_table?) -> rotated q, out [n, heads * head_dim], and new rows in the cache.

    The first ``2 * pairs`` columns of a head are rotated; the tables are float32 [positions, pairs], and without pairs there
    are none.
    """
    width, kv_width = heads * cache.head_dim, cache.kv_heads * cache.head_dim
    places = {
        "Q": q or Columns(offset=0, stride=width),
        "K": k or Columns(offset=0, stride=kv_width),
        "V": v or Columns(offset=0, stride=kv_width),
    }
    if not 0 <= 2 * pairs <= cache.head_dim:
        raise EdgedecError(f"{pairs} pairs do not fit heads of {cache.head_dim}")
    strides = {
        f"{name}_{part}": getattr(at, part.lower()) for name, at in places.items() for part in ("OFFSET", "STRIDE")
    }
    rotation = (_HALF if layout == "half" else _INTERLEAVED) if pairs else "\n    return source(d);"
    return assemble(
        "rope_append",
        options,
        buffers=(
            *(ShaderBuffer(name=name) for name in ("q", "k", "v", *(("cos_table", "sin_table") if pairs else ()))),
            ShaderBuffer(name="out", access="read_write"),
            ShaderBuffer(name="cache", element="u32", access="read_write"),
        ),
        parts=(
            "half",
            "cache",
            shader("rope_append").replace("\n    ROTATION", rotation),
            *_STORED[cache.bits],
        ),
        constants={**cache.constants(), **strides, "HEADS": heads, "PAIRS": pairs, "LANES": options.lanes(64)},
        groups=Groups(x=Count(constant=heads + 2 * cache.kv_heads), z=_EACH),
    )


class AttentionKernels(NamedTuple):
    """The kernels of an attention, in the order of their dispatches, and the floats between them.

    Members:
        scores: (q, cache) -> scores.
        values: (scores, cache) -> out [n, heads * head_dim].
        scratch: floats of ``scores``.
    """

    scores: Kernel
    values: Kernel
    scratch: int


def attention(
    options: ShaderOptions,
    *,
    heads: int,
    cache: CacheShape,
    positions: int,
    scale: float,
    window: int = 0,
    sinks: int = 0,
    soft_cap: float | None = None,
) -> AttentionKernels:
    """Return the attention over the rows that ``rope_append`` has stored.

    ``positions`` is the maximum number of rows of a sequence, with those of a pass. The memory between the kernels has
    ``head.rows * heads`` times as many floats.
    """
    group = heads // cache.kv_heads
    if heads % cache.kv_heads:
        raise EdgedecError(f"{heads} heads are no multiple of {cache.kv_heads} key/value heads")
    # Without an operation that rounds once, `fused` is long, so it occurs once in either kernel.
    at_once = next(count for count in (4, 3, 2, 1) if group % count == 0) if options.fused else 1
    lanes = next((lanes for lanes in _VALUE_LANES if lanes >= max(cache.head_dim, options.lanes(64))), _VALUE_LANES[-1])
    dim_groups = -(-cache.head_dim // lanes)
    stride = blocks_of(positions) * BLOCK_ROWS
    slot_groups = 1 if options.compact else min(_SLOT_GROUPS, -(-stride // _SLOTS))
    constants: dict[str, float | int] = {
        **cache.constants(),
        "HEADS": heads,
        "WINDOW": window,
        "SINKS": sinks,
        "SLOT_STRIDE": stride,
        "SLOT_GROUPS": slot_groups,
        "SLOTS": _SLOTS,
        "TILE": 32 if options.compact else 128,
        "SCALE": float(scale),
        "PER_WORD": 32 // cache.bits,
        "LANES": lanes,
        "DIM_GROUPS": dim_groups,
    }
    score_of = "fn score_of(x: f32) -> f32 { return x; }\n"
    if soft_cap is not None:
        constants |= {"SOFT_CAP": float(soft_cap), "TWICE": float(np.float32(2) / np.float32(soft_cap))}
        score_of = "fn score_of(x: f32) -> f32 { return cap_of(x, SOFT_CAP, TWICE); }\n"
    cache_buffer = ShaderBuffer(name="cache", element="u32")
    scores = assemble(
        "attention_scores",
        options,
        buffers=(ShaderBuffer(name="q"), cache_buffer, ShaderBuffer(name="scores", access="read_write")),
        parts=(
            "fma",
            "half",
            *(("exp",) if soft_cap is not None else ()),
            "cache",
            "attention_common",
            score_of,
            each_row(shader("queries_direct" if options.compact else "queries_staged"), at_once),
            each_row(shader("attention_scores"), at_once),
        ),
        constants=constants,
        groups=Groups(x=Count(constant=heads // at_once), y=Count(constant=slot_groups), z=_EACH),
    )
    values = assemble(
        "attention_values",
        options,
        buffers=(ShaderBuffer(name="scores"), cache_buffer, ShaderBuffer(name="out", access="read_write")),
        parts=(
            "fma",
            "half",
            "exp",
            "cache",
            "attention_common",
            each_row(shader("attention_values"), 8 if options.fused else 1),
        ),
        constants=constants,
        groups=Groups(x=Count(constant=heads * dim_groups), z=_EACH),
    )
    return AttentionKernels(scores=scores, values=values, scratch=options.head.rows * heads * stride)
