"""Results of the CPU kernels, which define those of the GPU kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.onnx.model_bytes import DataType, Node, ValueInfo, encode_model
from edgedec.ort import onnxruntime as ort
from edgedec.runtime.kernels import Kernels, load
from edgedec.runtime.kernels.operator import DOMAIN, register
from edgedec.runtime.protocols import F32

__all__ = ["cpu_gate", "cpu_kernels", "cpu_norm"]


def cpu_kernels() -> Kernels:
    """Return the CPU kernels."""
    kernels = load()
    assert kernels is not None, "the CPU kernels' library was not built (no C++ compiler)"
    return kernels


def _run(kind: str, inputs: dict[str, F32], attributes: dict[str, Any]) -> F32:
    node = Node(kind=kind, inputs=list(inputs), outputs=["out"], name="node", domain=DOMAIN, attributes=attributes)
    model = encode_model(
        "one",
        nodes=[node],
        inputs=[ValueInfo(name=name, dtype=DataType.FLOAT, shape=array.shape) for name, array in inputs.items()],
        outputs=[ValueInfo(name="out", dtype=DataType.FLOAT, shape=None)],
        constants=[],
        opsets={"": 21, DOMAIN: 1},
    )
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    register(options, cpu_kernels())
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    result: list[NDArray[np.float32]] = session.run(["out"], inputs)
    return result[0]


def cpu_norm(x: F32, gain: F32, eps: float) -> F32:
    """Return the norm of each ``len(gain)`` columns of x [n, width]."""
    return _run("RmsNorm", {"x": x[None], "gain": gain}, {"eps": eps})[0]


def cpu_gate(activation: str, gate: F32, up: F32) -> F32:
    """Return activation(gate) * up of rows [n, width]."""
    number = {"silu": 0, "relu2": 1, "gelu_tanh": 2}[activation]
    return _run("GatedActivation", {"gate": gate[None], "up": up[None]}, {"activation": number})[0]
