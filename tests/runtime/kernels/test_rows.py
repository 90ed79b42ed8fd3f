"""Test operators on rows of activations at their edges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from edgedec.host.ort import onnxruntime as ort
from edgedec.runtime.kernels.sessions.operator import usable
from edgedec.runtime.kernels.sessions.registration import DOMAIN, register

pytestmark = pytest.mark.skipif(usable() is None, reason="the kernels' library was not built (no C++ compiler)")


def run(kind: str, *inputs: NDArray[Any], **attributes: Any) -> NDArray[np.float32]:
    kernels = usable()
    assert kernels is not None
    types = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64}
    named = {f"in{at}": array for at, array in enumerate(inputs)}
    infos = [helper.make_tensor_value_info(name, types[array.dtype.name], None) for name, array in named.items()]
    node = helper.make_node(kind, list(named), ["out"], domain=DOMAIN, **attributes)
    graph = helper.make_graph([node], kind, infos, [helper.make_tensor_value_info("out", TensorProto.FLOAT, None)])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    register(options, kernels)
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    (out,) = session.run(None, named)
    return np.asarray(out)


def test_rows_without_columns_are_empty_results() -> None:
    """A unit of no columns once divided by zero, which ended the process."""
    rows = np.zeros((1, 2, 0), np.float32)
    for kind in ("Add", "Multiply"):
        assert run(kind, rows, np.zeros(0, np.float32)).shape == (1, 2, 0)
    table = np.zeros((4, 0), np.float32)
    positions = np.zeros((1, 2), np.int64)
    assert run("Rotary", rows, positions, table, table, heads=1, interleaved=0).shape == (1, 2, 0)


@pytest.mark.parametrize("shape", [(5,), (1, 3, 5), (1,)])
def test_the_second_input_may_be_a_row_or_a_number(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((1, 3, 5), np.float32), rng.standard_normal(shape, np.float32)
    assert run("Multiply", a, b).tolist() == (a * b).tolist()
    if shape == (1,):
        with pytest.raises(Exception, match=r"Add.*its inputs must have equal shapes"):
            run("Add", a, b)
    else:
        assert run("Add", a, b).tolist() == (a + b).tolist()
