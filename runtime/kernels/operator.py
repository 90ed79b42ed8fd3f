"""The ONNX Runtime operator edgedec::TernaryMatMul: its registration, and the numeric test before anything relies on it."""

from __future__ import annotations

import functools
import logging

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from edgedec.errors import DeviceError
from edgedec.reference.float_profile.ops.quantize_activation import quantize_rows
from edgedec.runtime.kernels import Kernels, load
from edgedec.schemes import TernaryScheme

__all__ = ["DOMAIN", "OPERATOR", "register", "usable"]

DOMAIN, OPERATOR = "edgedec", "TernaryMatMul"
_LOG = logging.getLogger(__name__)


def register(options: ort.SessionOptions, kernels: Kernels) -> None:
    """Let sessions made with ``options`` run nodes of the domain ``edgedec``.

    Raises:
        DeviceError: this ONNX Runtime does not take the library.
    """
    try:
        options.register_custom_ops_library(str(kernels.path))
    except Exception as error:  # ONNX Runtime raises classes of its own that share no base
        raise DeviceError(f"ONNX Runtime {ort.__version__} does not take {kernels.path}: {error}") from error


@functools.cache
def usable() -> Kernels | None:
    """The kernels, if ONNX Runtime runs the operator with the right result; else None, with one line in the log.

    Raises:
        DeviceError: EDGEDEC_KERNEL asks for a code path that cannot run.
    """
    kernels = load()
    if kernels is None:
        return None
    try:
        _self_test(kernels)
    except Exception as error:  # whatever went wrong, the portable graph serves
        _LOG.warning("CPU kernels: the operator fails its self-test: %s: the portable graph serves, slower", error)
        return None
    return kernels


def _self_test(kernels: Kernels) -> None:
    """One node with two matrices, on two threads and with enough rows to use them, against integers in NumPy."""
    rng = np.random.default_rng(0)
    inputs, sizes = 528, (320, 1040)
    schemes = (TernaryScheme(), TernaryScheme(planes=2, group_size=64))
    x = rng.normal(size=(1, 5, inputs)).astype(np.float32)
    codes, scale = quantize_rows(x[0])
    initializers, expected = [], []
    for number, (outputs, scheme) in enumerate(zip(sizes, schemes, strict=True)):
        trits = rng.integers(-1, 2, (scheme.planes, outputs, inputs)).astype(np.int8)
        scales = rng.uniform(0.5, 1, scheme.parts((outputs, inputs))["scale"].shape).astype(np.float32)
        total = np.zeros((5, outputs), np.float32)
        size = scheme.group_size or inputs
        for plane in range(scheme.planes):
            for group, start in enumerate(range(0, inputs, size)):
                part = slice(start, start + size)
                exact = codes[:, part].astype(np.int32) @ trits[plane, :, part].T.astype(np.int32)
                total += exact.astype(np.float32) * (scales[plane, :, group] if scheme.group_size else scales)
        expected.append(total * scale)
        packed = kernels.pack(scheme.pack(trits), (outputs, inputs), scheme)
        packed_scales = kernels.pack_scales(scales, (outputs, inputs), scheme)
        initializers += [numpy_helper.from_array(packed, f"c{number}")]
        initializers += [numpy_helper.from_array(packed_scales, f"s{number}")]
    names = ["y0", "y1"]
    node = helper.make_node(
        OPERATOR,
        ["x", "c0", "s0", "c1", "s1"],
        names,
        domain=DOMAIN,
        columns=inputs,
        rows=list(sizes),
        planes=[scheme.planes for scheme in schemes],
        group_sizes=[scheme.group_size for scheme in schemes],
        biases=[0, 0],
    )
    graph = helper.make_graph(
        [node],
        "self_test",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names],
        initializers,
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 2
    register(options, kernels)
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    found = session.run(names, {"x": x})
    for made, right in zip(found, expected, strict=True):
        if made.shape != (1, *right.shape) or made.tobytes() != right.tobytes():
            raise DeviceError("its results are not those of NumPy")
