"""Compare edgedec::TernaryMatMul inside ONNX Runtime with the reference's own product, to the bit."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from edgedec.errors import DeviceError
from edgedec.host.ort import onnxruntime as ort
from edgedec.reference.float_profile.ops.linear import _ternary as reference_product
from edgedec.reference.float_profile.ops.quantize_activation import quantize_rows
from edgedec.runtime.kernels import Kernels
from edgedec.runtime.kernels.sessions import operator
from edgedec.runtime.kernels.sessions.operator import OPERATOR, usable
from edgedec.runtime.kernels.sessions.recurrent_check import RecurrentCheck, recurrent_check
from edgedec.runtime.kernels.sessions.registration import DOMAIN, register
from edgedec.schemes import TernaryScheme, TernaryWeight

F32 = NDArray[np.float32]
pytestmark = pytest.mark.skipif(usable() is None, reason="the kernels' library was not built (no C++ compiler)")


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    kernels_ = usable()
    assert kernels_ is not None
    return kernels_


@dataclass(frozen=True, kw_only=True)
class Matrix:
    scheme: TernaryScheme
    weight: TernaryWeight
    bias: F32 | None

    @property
    def shape(self) -> tuple[int, int]:
        return self.weight.trits.shape[1], self.weight.trits.shape[2]

    def product(self, x: F32) -> F32:
        out = reference_product(*quantize_rows(x), self.weight)
        return out if self.bias is None else out + self.bias


def matrix(
    seed: int,
    outputs: int,
    inputs: int,
    planes: int = 1,
    group_size: int = 0,
    *,
    half_scales: bool = False,
    bias: bool = False,
) -> Matrix:
    rng = np.random.default_rng(seed)
    scheme = TernaryScheme(planes=planes, group_size=group_size, half_scales=half_scales)
    trits = rng.integers(-1, 2, (planes, outputs, inputs)).astype(np.int8)
    scale = rng.normal(size=scheme.parts((outputs, inputs))["scale"].shape).astype(scheme.scale_dtype)
    return Matrix(
        scheme=scheme,
        weight=TernaryWeight(trits=trits, scale=scale.astype(np.float32), group_size=group_size),
        bias=rng.normal(size=outputs).astype(np.float32) if bias else None,
    )


def session(kernels: Kernels, matrices: Sequence[Matrix], *, threads: int = 1, **changes: Any) -> ort.InferenceSession:
    """Return one node with all the matrices; ``changes`` forges attributes, and ``loose`` makes weights inputs of the
    session.
    """
    names, values = ["x"], []
    for number, item in enumerate(matrices):
        scale = item.weight.scale.astype(item.scheme.scale_dtype)
        parts: list[NDArray[Any]] = [
            kernels.pack(item.scheme.pack(item.weight.trits), scale, item.shape, item.scheme),
            *([] if item.scheme.group_size else [scale]),
            *([] if item.bias is None else [item.bias]),
        ]
        for part, value in enumerate(parts):
            names.append(f"w{number}.{part}")
            values.append(numpy_helper.from_array(value, names[-1]))
    loose = changes.pop("loose", False)
    attributes = {
        "columns": matrices[0].shape[1],
        "rows": [item.shape[0] for item in matrices],
        "planes": [item.scheme.planes for item in matrices],
        "group_sizes": [item.scheme.group_size for item in matrices],
        "half_scales": [int(item.scheme.half_scales) for item in matrices],
        "biases": [int(item.bias is not None) for item in matrices],
        **changes,
    }
    outputs = [f"y{number}" for number in range(len(matrices))]
    node = helper.make_node(OPERATOR, names, outputs, name="node", domain=DOMAIN, **attributes)
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, None)]
        + ([helper.make_tensor_value_info(v.name, v.data_type, list(v.dims)) for v in values] if loose else []),
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [] if loose else values,
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, threads
    register(options, kernels)
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def activations(seed: int, tokens: int, width: int) -> F32:
    x = np.random.default_rng(seed).normal(size=(1, tokens, width)).astype(np.float32)
    if tokens > 2:
        x[0, 1] = 0
        x[0, 2] = -3
    return x


def check(outputs: Sequence[F32], matrices: Sequence[Matrix], x: F32) -> None:
    assert len(outputs) == len(matrices)
    for output, item in zip(outputs, matrices, strict=True):
        assert output.shape == (1, x.shape[1], item.shape[0])
        assert output[0].tobytes() == item.product(x[0]).tobytes()


QKV = (
    matrix(1, 400, 515, bias=True),
    matrix(2, 130, 515, 2, 64),
    matrix(3, 77, 515, 3, 32, half_scales=True, bias=True),
)


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("threads", [1, 2])
def test_fused_matrices_are_exact_for_every_number_of_tokens(kernels: Kernels, threads: int) -> None:
    run = session(kernels, QKV, threads=threads)
    x = activations(0, 32, 515)
    whole = run.run(None, {"x": x})
    check(whole, QKV, x)
    for tokens in range(1, 32):
        outputs = run.run(None, {"x": x[:, :tokens]})
        # A token has the same bits as in the widest pass, which are right.
        assert all(output.tobytes() == wide[:, :tokens].tobytes() for output, wide in zip(outputs, whole, strict=True))


@pytest.mark.thorough
@given(
    seed=st.integers(0, 2**32),
    rows=st.lists(st.integers(1, 300), min_size=1, max_size=4),
    columns=st.integers(1, 400),
    tokens=st.integers(1, 12),
    planes=st.integers(1, 3),
    group_size=st.sampled_from((0, 32, 64, 128)),
)
def test_any_matrices_are_exact(
    kernels: Kernels, seed: int, rows: list[int], columns: int, tokens: int, planes: int, group_size: int
) -> None:
    matrices = [
        matrix(seed + i, n, columns, planes, group_size, half_scales=group_size > 0 and i % 3 == 1, bias=i % 2 == 0)
        for i, n in enumerate(rows)
    ]
    x = activations(seed, tokens, columns)
    check(session(kernels, matrices, threads=1 + seed % 2).run(None, {"x": x}), matrices, x)


@pytest.mark.thorough
def test_threads_may_share_a_session(kernels: Kernels) -> None:
    run = session(kernels, QKV, threads=2)
    inputs = [activations(seed, 1 + seed % 9, 515) for seed in range(40)]
    with ThreadPoolExecutor(4) as pool:
        for x, outputs in zip(inputs, pool.map(lambda x: run.run(None, {"x": x}), inputs), strict=True):
            check(outputs, QKV, x)


def test_no_tokens_and_any_rank_are_computed(kernels: Kernels) -> None:
    run = session(kernels, QKV)
    assert [output.shape for output in run.run(None, {"x": np.zeros((1, 0, 515), np.float32)})] == [
        (1, 0, 400),
        (1, 0, 130),
        (1, 0, 77),
    ]
    x = activations(5, 6, 515)
    for shape, outs in (((6, 515), (6, 130)), ((2, 3, 515), (2, 3, 130))):
        outputs = run.run(None, {"x": x.reshape(shape)})
        assert outputs[1].shape == outs
        assert outputs[1].tobytes() == QKV[1].product(x[0]).tobytes()
    assert run.run(None, {"x": x[0, 0]})[1].tobytes() == QKV[1].product(x[0, :1]).tobytes()


def test_infinite_and_denormal_activations_follow_numpy(kernels: Kernels) -> None:
    x = activations(6, 5, 515)
    x[0, 0, 7], x[0, 3, 514] = np.inf, np.nan
    x[0, 4] *= np.float32(2.0**-140)
    outputs = session(kernels, QKV).run(None, {"x": x})
    for output, item in zip(outputs, QKV, strict=True):
        assert np.isnan(output[0, [0, 3]]).all()
        finite = [1, 2, 4]
        assert output[0, finite].tobytes() == item.product(x[0, finite]).tobytes()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"columns": 514}, None),  # the same number of lines: detected when it runs
        ({"columns": 600}, "node: its input 1 must hold 60800 uint8, not 52800"),
        ({"rows": [16, 130, 77]}, "its input 1 must hold 2112 uint8"),
        ({"rows": [400, 130]}, "need one entry per output"),
        ({"planes": [4, 2, 3]}, "planes must be 1, 2 or 3"),
        ({"planes": [2**32 + 1, 2, 3]}, "planes must be 1, 2 or 3"),
        ({"group_sizes": [48, 64, 32]}, "group_size must be 0, 32, 64 or 128"),
        ({"group_sizes": [0, 32, 32]}, "its input 4 must hold 57600 uint8, not 48384"),
        ({"half_scales": [1, 0, 1]}, "the scale of a whole tensor is float32"),
        ({"half_scales": [0, 1, 1]}, "its input 4 must hold 43776 uint8, not 48384"),
        ({"half_scales": [0, 0]}, "need one entry per output"),
        ({"biases": [0, 0, 1]}, "its input 3 must hold 48384 uint8, not 400 of type 1"),
        ({"biases": [1, 0, 0]}, "has more inputs than its attributes say"),
        ({"biases": [1, 1, 1]}, "node: its input 5 must hold 130 float32"),
        ({"loose": True}, "its input 1 must be an initializer"),
        ({"columns": 0}, "inputs must be 1 to"),
        ({"rows": [-1, 130, 77]}, "outputs must be 1 to"),
    ],
)
def test_invalid_nodes_are_refused(kernels: Kernels, changes: dict[str, Any], message: str | None) -> None:
    if message is None:
        run = session(kernels, QKV, **changes)
        with pytest.raises(Exception, match="TernaryMatMul node: its activations must be float32 with 514 columns"):
            run.run(None, {"x": activations(0, 1, 515)})
    else:
        with pytest.raises(Exception, match=message):
            session(kernels, QKV, **changes)


def test_wrong_results_leave_the_portable_graph_and_a_line_in_the_log(
    kernels: Kernels, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pack = kernels.pack
    monkeypatch.setattr(kernels, "pack", lambda *arguments: pack(*arguments) ^ np.uint8(1))
    monkeypatch.setattr(operator, "load", lambda: kernels)
    assert usable.__wrapped__() is None
    (record,) = caplog.records
    assert record.getMessage() == (
        "CPU kernels: the operators fail their self-test (the results of TernaryMatMul are not those of NumPy); "
        "models run with the portable graph, which is slower"
    )


@pytest.mark.parametrize("number", range(5))
def test_operators_that_read_other_states_fail_the_self_test(
    kernels: Kernels, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    def wrong(values: Callable[[int, int], F32]) -> RecurrentCheck:
        check = recurrent_check(values)
        node = check.nodes[number]
        offset = node.attributes["offset"]
        assert isinstance(offset, int)
        check.nodes[number] = replace(node, attributes={**node.attributes, "offset": offset + 16})
        return check

    monkeypatch.setattr(operator, "recurrent_check", wrong)
    monkeypatch.setattr(operator, "load", lambda: kernels)
    assert usable.__wrapped__() is None
    name = ("conv", "scan", "channels", "delta", "keys")[number]
    assert f"the results of the node '{name}' with recurrent states are not those of the reference" in caplog.text


def test_a_file_that_is_not_a_library_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "libedgedec_kernels.so"
    path.write_bytes(b"\x7fELF, but not really")
    with pytest.raises(DeviceError, match="is not edgedec's kernel library"):
        Kernels(path)


def test_a_library_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It may lack functions, so its version is asked before they are looked up."""

    class Older:
        def edgedec_abi(self) -> int:
            return 2

    monkeypatch.setattr(ctypes, "CDLL", lambda path: Older())
    with pytest.raises(DeviceError, match=r"has interface 2, this edgedec needs \d+; run: "):
        Kernels(tmp_path / "libedgedec_kernels.so")


def test_an_older_onnx_runtime_gets_a_message_with_the_required_version(kernels: Kernels) -> None:
    """Use a stand-in for ONNX Runtime 1.16, which has version 16 of the interface, not 17; CreateStatus comes first."""
    messages: list[bytes] = []
    create_type = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)
    create = create_type(lambda code, message: messages.append(message) or 1)  # type: ignore[func-returns-value]
    api = (ctypes.c_void_p * 300)(ctypes.cast(create, ctypes.c_void_p))
    get = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)(lambda v: ctypes.addressof(api) if v <= 16 else None)
    text = ctypes.c_char_p(b"1.16.3")
    version = ctypes.CFUNCTYPE(ctypes.c_void_p)(lambda: ctypes.cast(text, ctypes.c_void_p).value)
    base = (ctypes.c_void_p * 2)(ctypes.cast(get, ctypes.c_void_p), ctypes.cast(version, ctypes.c_void_p))
    register_library = ctypes.CDLL(str(kernels.path)).RegisterCustomOps
    register_library.restype = ctypes.c_void_p
    assert register_library(None, ctypes.byref(base)) == 1
    assert messages == [b"edgedec's kernels need ONNX Runtime 1.17 or later, this is 1.16.3"]
