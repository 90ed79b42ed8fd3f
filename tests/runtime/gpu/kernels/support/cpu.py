"""Results of the CPU kernels, which define those of the GPU kernels."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgedec.host.ort import onnxruntime as ort
from edgedec.onnx.model_bytes import DataType, Node, ValueInfo, encode_model
from edgedec.runtime.kernels import Kernels, load
from edgedec.runtime.kernels.sessions.registration import DOMAIN, register
from edgedec.runtime.protocols import F32

__all__ = ["cpu_gate", "cpu_kernels", "cpu_norm", "cpu_soft_cap"]


def cpu_kernels() -> Kernels:
    """Return the CPU kernels."""
    kernels = load()
    assert kernels is not None, "the CPU kernels' library was not built (no C++ compiler)"
    return kernels


def _run(inputs: dict[str, F32], nodes: list[Node]) -> F32:
    """Return the value ``out`` of nodes."""
    model = encode_model(
        "one",
        nodes=nodes,
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
    node = Node(kind="RmsNorm", inputs=["x", "gain"], outputs=["out"], domain=DOMAIN, attributes={"eps": eps})
    norm: F32 = _run({"x": x[None], "gain": gain}, [node])[0]
    return norm


def cpu_gate(activation: str, gate: F32, up: F32) -> F32:
    """Return activation(gate) * up of rows [n, width]."""
    number = {"silu": 0, "relu2": 1, "gelu_tanh": 2}[activation]
    attributes = {"activation": number}
    node = Node(kind="GatedActivation", inputs=["gate", "up"], outputs=["out"], domain=DOMAIN, attributes=attributes)
    gated: F32 = _run({"gate": gate[None], "up": up[None]}, [node])[0]
    return gated


def cpu_soft_cap(x: F32, cap: float) -> F32:
    """Return cap * tanh(x / cap) as the CPU target computes it of logits [n, width]."""
    node = Node(kind="SoftCap", inputs=["x", "x"], outputs=["out"], domain=DOMAIN, attributes={"cap": cap})
    capped: F32 = _run({"x": x[None]}, [node])[0]
    return capped
