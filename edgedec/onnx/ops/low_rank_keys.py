"""Keys that TreeAttention stores as products with a few directions: the operator rebuilds those that it reads."""

from __future__ import annotations

from edgedec.errors import UnsupportedError
from edgedec.graph.ops import Attention, LowRankKeys, Rope
from edgedec.onnx.emitter import Emitter
from edgedec.onnx.ops._kernels_only import check_kernels

__all__ = ["lower"]


def lower(op: LowRankKeys, emitter: Emitter) -> None:
    check_kernels(op, emitter)
    (output,) = op.outputs
    readers = [reader for reader in emitter.graph.operations if output in reader.inputs]
    if output in emitter.taps or not all(isinstance(reader, Rope | Attention) for reader in readers):
        raise UnsupportedError(
            f"{op.name}: the CPU kernels rebuild keys within attention only; the reference target can run it (--device "
            "float_reference), and --kv-policy full runs the model without its policy"
        )
    emitter.bound[output] = emitter.bound[op.inputs[0]]
