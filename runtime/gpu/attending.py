"""Lower an attention with the rotation of its queries and keys."""

from __future__ import annotations

from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle.bundle import Bundle
from edgedec.errors import UnsupportedError
from edgedec.graph.graph import KvState
from edgedec.graph.ops import Attention, Rope
from edgedec.onnx.kv_cache import BLOCK_ROWS, blocks_of
from edgedec.reference.float_profile.ops.rope import tables
from edgedec.runtime.gpu.fusion import FusedNode
from edgedec.runtime.gpu.kernels.attention import attention, rope_append
from edgedec.runtime.gpu.kernels.cache import CacheShape
from edgedec.runtime.gpu.kernels.kernel import Kernel
from edgedec.runtime.gpu.kernels.source import ShaderOptions
from edgedec.runtime.gpu.layout import BufferPlan, Sizes

if TYPE_CHECKING:
    from edgedec.runtime.gpu.lowering import GraphLowering

__all__ = ["cache_shape", "lower_attention", "state_plan"]


def cache_shape(state: KvState, sizes: Sizes) -> CacheShape:
    """Return the shape of a state's cache."""
    return CacheShape(kv_heads=state.kv_heads, head_dim=state.head_dim, bits=state.bits, blocks=sizes.cache_blocks)


def state_plan(state: KvState) -> BufferPlan:
    """Return the buffer of a state's cache."""
    return BufferPlan(words=lambda sizes: cache_shape(state, sizes).words, kind="cache", item="kv")


def lower_attention(lowering: GraphLowering, node: FusedNode) -> None:
    """Add the dispatches of an attention."""
    operation = node.operations[-1]
    assert isinstance(operation, Attention)
    state = lowering.graph.states[operation.state]
    rotation = node.operations[0] if isinstance(node.operations[0], Rope) else None
    q, k, v = (lowering.place(name) for name in node.inputs)
    if q.results or k.results or v.results:
        raise UnsupportedError(f"{operation.name}: attention over selected rows; use --device cpu")
    turned = lowering.new(f"{operation.name}.turned", q.width, results=False)
    tables_of = () if rotation is None else _tables(lowering, rotation)
    pairs = 0 if rotation is None else len(rotation.inverse_frequencies)
    layout = "half" if rotation is None else rotation.layout

    heads = max(op.heads for op in lowering.graph.operations if isinstance(op, Attention))

    def words(sizes: Sizes) -> int:
        return sizes.rows * heads * BLOCK_ROWS * blocks_of(sizes.positions)

    def append(options: ShaderOptions, sizes: Sizes) -> Kernel:
        return rope_append(
            options,
            heads=operation.heads,
            cache=cache_shape(state, sizes),
            pairs=pairs,
            layout=layout,
            q=q.columns,
            k=k.columns,
            v=v.columns,
        )

    def attend(part: int, options: ShaderOptions, sizes: Sizes) -> Kernel:
        kernels = attention(
            options,
            heads=operation.heads,
            cache=cache_shape(state, sizes),
            positions=sizes.positions,
            scale=operation.scale,
            window=state.window or 0,
            sinks=state.sinks,
            soft_cap=operation.soft_cap,
        )
        assert kernels.scratch <= words(sizes)
        return kernels.scores if part == 0 else kernels.values

    buffers = (q.buffer, k.buffer, v.buffer, *tables_of, turned.buffer, state.name)
    lowering.dispatch(f"{node.name}.append", append, buffers)
    scores = lowering.scratch("scores", words)
    lowering.dispatch(f"{node.name}.scores", partial(attend, 0), (turned.buffer, state.name, scores))
    lowering.release(f"{operation.name}.turned")
    out = lowering.new(node.outputs[0], q.width, results=False)
    lowering.dispatch(f"{node.name}.values", partial(attend, 1), (scores, state.name, out.buffer))


def _tables(lowering: GraphLowering, rotation: Rope) -> tuple[str, str]:
    """Return the names of the cosines and sines, float32 [positions, pairs]; layers with equal rotations share them."""
    key = sha256(repr((rotation.inverse_frequencies, rotation.magnitude)).encode()).hexdigest()[:8]
    pairs = len(rotation.inverse_frequencies)

    def make(part: int, bundle: Bundle, sizes: Sizes) -> NDArray[np.float32]:
        return tables(rotation, np.arange(sizes.positions, dtype=np.int32))[part]

    cos, sin = (
        lowering.constant(
            f"rope.{key}.{name}", lambda sizes: pairs * sizes.positions, partial(make, part), item="rotary_tables"
        )
        for part, name in enumerate(("cos", "sin"))
    )
    return cos, sin
