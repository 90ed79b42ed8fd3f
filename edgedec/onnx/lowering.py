"""Lower a graph to an ONNX model for one session.

Inputs: ``embed`` float32 [1, n, hidden] (the host looks embeddings up, so that rows of a mapped table and other embeddings
are handled alike), ``positions`` int64 [1, n], ``rows`` int64 [r], ``features`` float32 [1, n, width] if the graph has this
input, ``attention_bias`` float32 [1, 1, n, total], ``seqlens_k`` and ``total_length`` int32 [1], and per state
``past.NAME.{key,value}`` float32 [1, kv_heads, positions, head_dim].
Outputs: the graph's logits [1, r, vocab], taps [1, rows, width], and per state ``present.NAME.{key,value}``, which must be
bound to the same memory as the past.
With edgedec's own operators, the inputs after ``features`` are ``visible`` int64 [n, words], the masks of the sequences as
packed bits, ``sequences`` int64 [s, 2], the rows of each sequence in the pass and its committed rows, ``blocks`` int32
[kinds, b], for each kind of states the tables of the sequences one after another, and ``cache`` uint8 [bytes], the one
buffer of ``cache_layout``, which is written in place. A graph with recurrent states also has ``slots`` int64 [s], the slot
of each sequence, and ``states`` float32, the slots of ``recurrent_layout``, in which a pass keeps its inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from edgedec.bundle.manifest import Tensor
from edgedec.errors import UnsupportedError
from edgedec.graph.graph import FEATURES_INPUT, Graph
from edgedec.graph.ops import Attention
from edgedec.onnx.emitter import Emitter
from edgedec.onnx.kv_cache import CacheLayout, cache_layout
from edgedec.onnx.model_bytes import DataType
from edgedec.onnx.recurrent_layout import RecurrentLayout
from edgedec.plugins import load, names

__all__ = ["check_lowered", "emit"]

_OPS = "edgedec.onnx.ops"


def check_lowered(graph: Graph, *, kernels: bool) -> None:
    """Check that all operations of a graph have an ONNX lowering, before a plan is made for them.

    Args:
        kernels: True if the session has edgedec's own operators, without which no operation can have a recurrent state.

    Raises:
        UnsupportedError: an operation has none; the message names it, and a target that runs it.
    """
    known = names(_OPS)
    for operation in graph.operations:
        if not kernels and getattr(operation, "state", None) in graph.recurrent:
            raise UnsupportedError(
                f"ONNX Runtime's own operators cannot run {operation.kind!r} ({operation.name}), a recurrent state; "
                "the CPU kernels (edgedec doctor) or the reference target can run it (--device float_reference)"
            )
        if not kernels and isinstance(operation, Attention) and graph.states[operation.state].selection is not None:
            raise UnsupportedError(
                f"ONNX Runtime's own operators cannot choose keys ({operation.name}), which the model's policy of keys and "
                "values does; the CPU kernels (edgedec doctor) or the reference target can run it (--device "
                "float_reference), and --kv-policy full runs it without the policy"
            )
        if operation.kind not in known:
            raise UnsupportedError(
                f"ONNX Runtime cannot run {operation.kind!r} ({operation.name}): it has no lowering in edgedec/onnx/ops; "
                "the reference target can run it (--device float_reference)"
            )


def emit(
    graph: Graph,
    tensors: Mapping[str, Tensor],
    *,
    positions: int,
    cache: CacheLayout | None = None,
    recurrent: RecurrentLayout | None = None,
    taps: Sequence[str] = (),
    packed: Mapping[str, tuple[int, int]] | None = None,
    kernels: bool = False,
    unsigned_int8: bool = False,
    fused_threads: int = 0,
    pass_rows: int = 0,
    arrays: dict[str, NDArray[Any]] | None = None,
) -> Emitter:
    """Return the nodes of ``graph`` (with schemes and quantize points in place) for sequences of up to ``positions`` rows.

    Args:
        cache: the one buffer of edgedec's own operators; None: that of one sequence, with all of its rows.
        recurrent: the slots of the recurrent states, with ``kernels``; None: the graph has none.
        packed: (bytes of codes, number of scales) of each ternary matrix for edgedec's own operator in the kernels' layout;
            the session must receive these arrays. Other matrices use operators of ONNX Runtime.
        kernels: True if the session has edgedec's own operators, which then compute attention.
        unsigned_int8: True for int8 matrices as uint8 with zero point 128, which is exact on CPUs where uint8 x int8
            saturates, and slower.
        arrays: receives the large constants, by name, which the session must receive, too; None: they are in the model.
        fused_threads: threads of the session, to let one node do the work of all neighbouring nodes of edgedec's own
            operators, with the same results; 0: every operation has its own nodes.
        pass_rows: the most rows of a pass, for which that node makes room at once; 0: it makes room as passes need it.

    Raises:
        UnsupportedError: an operation has no ONNX lowering, or a tap names no value.
    """
    emitter = Emitter(
        graph=graph,
        tensors=tensors,
        positions=positions,
        cache=cache or cache_layout(graph.states, positions),
        recurrent=recurrent,
        packed=packed or {},
        kernels=kernels,
        unsigned_int8=unsigned_int8,
        fused_threads=fused_threads,
        pass_rows=pass_rows,
        arrays=arrays,
        taps=taps,
    )
    emitter.bound["positions"] = emitter.input("positions", (1, "n"), DataType.INT64)
    emitter.bound["rows"] = emitter.input("rows", ("r",), DataType.INT64)
    if graph.features:
        emitter.bound[FEATURES_INPUT] = emitter.input(FEATURES_INPUT, (1, "n", graph.features))
    if kernels:
        emitter.input("visible", ("n", "words"), DataType.INT64)
        emitter.input("sequences", ("s", 2), DataType.INT64)
        emitter.input("blocks", (len(emitter.cache.kinds), "b"), DataType.INT32)
        emitter.input("cache", (emitter.cache.nbytes,), DataType.UINT8)
        if recurrent is not None:
            emitter.input("slots", ("s",), DataType.INT64)
            emitter.input("states", ("floats",))
    else:
        emitter.input("attention_bias", (1, 1, "n", "total"))
        emitter.input("seqlens_k", (1,), DataType.INT32)
        emitter.input("total_length", (1,), DataType.INT32)
    check_lowered(graph, kernels=kernels)
    for operation in graph.operations:
        load(_OPS, operation.kind).lower(operation, emitter)
    for name in (*graph.outputs, *taps):
        if name not in emitter.bound or name not in graph.values:
            raise UnsupportedError(f"the graph has no value {name!r} to return")
        # An Identity gives the output the name in the graph. ONNX Runtime removes it.
        rows, width = graph.values[name].shape
        emitter.output(emitter.node("Identity", [emitter.bound[name]], f"out.{name}"), (1, rows, width))
    return emitter
