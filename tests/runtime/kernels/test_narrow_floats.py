"""Test products with narrow float matrices: their sums have one order in a pass of any number of rows, to the bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from edgedec.host.ort import onnxruntime as ort
from edgedec.onnx.ops.linear import NARROW
from edgedec.runtime.kernels.sessions.operator import usable
from edgedec.runtime.kernels.sessions.registration import DOMAIN, register
from edgedec.runtime.protocols import Limits
from edgedec.runtime.targets import open_target
from tests.edgedec.families.support import make_golden_models, reference_golden

F32 = NDArray[np.float32]
pytestmark = pytest.mark.skipif(usable() is None, reason="the kernels' library was not built (no C++ compiler)")


def product_session(weight: F32, threads: int) -> ort.InferenceSession:
    kernels = usable()
    assert kernels is not None
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "xy")
    node = helper.make_node("FloatMatMul", ["x", "w"], ["y"], domain=DOMAIN)
    graph = helper.make_graph([node], "product", [x], [y], [numpy_helper.from_array(weight, "w")])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, threads
    register(options, kernels)
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def ordered_product(x: F32, weight: F32) -> F32:
    """Add every sixteenth term, and then the sums in halves."""
    terms = x[:, None] * weight
    terms = np.pad(terms, ((0, 0), (0, 0), (0, -terms.shape[2] % 16))).reshape(*terms.shape[:2], -1, 16)
    parts = np.zeros_like(terms[:, :, 0])
    for at in range(terms.shape[2]):
        parts += terms[:, :, at]
    for half in (8, 4, 2, 1):
        parts = parts[..., :half] + parts[..., half : 2 * half]
    return parts[..., 0]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("width", [1, 15, 16, 100, 256, 1000])
def test_sums_have_one_order_in_passes_of_any_number_of_rows(width: int, threads: int) -> None:
    rng = np.random.default_rng(width)
    x, weight = rng.standard_normal((65, width), np.float32), rng.standard_normal((7, width), np.float32)
    session = product_session(weight, threads)
    expected = ordered_product(x, weight)
    assert np.allclose(expected, x.astype(np.float64) @ weight.T.astype(np.float64), atol=1e-4)
    for count in (1, 2, 3, 16, 65):
        for first in (0, 65 - count):
            (actual,) = session.run(None, {"x": x[None, first : first + count]})
            assert actual[0].tobytes() == expected[first : first + count].tobytes()
    assert session.run(None, {"x": x[None, :0]})[0].shape == (1, 0, 7)


def test_a_matrix_of_other_columns_is_refused() -> None:
    session = product_session(np.ones((3, 5), np.float32), 1)
    with pytest.raises(Exception, match=r"FloatMatMul.*its matrix must have the columns of its rows"):
        session.run(None, {"x": np.ones((1, 2, 4), np.float32)})


@pytest.mark.parametrize(("name", "exact"), [("qwen3/plain", True), ("mamba2/plain", False)])
def test_only_a_model_without_wide_float_matrices_is_batch_invariant(tmp_path: Path, name: str, exact: bool) -> None:
    bundle = make_golden_models.write_bundle(tmp_path / "bundle", reference_golden.read(name), "float")
    widest = max(tensor.shape[0] for tensor in bundle.tensors.values() if len(tensor.shape) == 2)
    assert (widest <= NARROW) == exact
    target = open_target(bundle, limits=Limits(nodes=8, depth=0, positions=16), threads=1)
    assert target.info.batch_invariant == exact
