"""The refusal of operations that edgedec's own operators alone compute."""

from __future__ import annotations

from edgedec.errors import UnsupportedError
from edgedec.graph.ops import Operation
from edgedec.onnx.emitter import Emitter

__all__ = ["check_kernels"]


def check_kernels(op: Operation, emitter: Emitter) -> None:
    """Check that the session has edgedec's own operators.

    Raises:
        UnsupportedError: it does not have them.
    """
    if not emitter.kernels:
        raise UnsupportedError(
            f"the portable ONNX graph cannot run {op.kind!r} ({op.name}); the CPU kernels (edgedec doctor) or the reference "
            "target can run it (--device float_reference)"
        )
