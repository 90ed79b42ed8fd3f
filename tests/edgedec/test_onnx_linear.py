"""Compare int8 linears in ONNX Runtime with the reference in every form: equal bit for bit, at the ends of the int8
range.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from edgedec.bundle.manifest import WEIGHTS, Tensor
from edgedec.graph.graph import Graph, Value, WeightSpec
from edgedec.graph.ops import Embed, Linear, QuantizeActivation
from edgedec.host.ort import onnxruntime as ort
from edgedec.onnx.emitter import packed_names
from edgedec.onnx.lowering import emit
from edgedec.onnx.ops.linear import NARROW
from edgedec.reference.float_profile.model import ReferenceModel
from edgedec.runtime.kernels.sessions.operator import usable
from edgedec.runtime.kernels.sessions.registration import register
from edgedec.runtime.targets._int8_products import signed_int8_is_exact
from edgedec.schemes import (
    FloatScheme,
    FloatWeight,
    Int8Scheme,
    Int8Weight,
    Scheme,
    TernaryScheme,
    TernaryWeight,
    Weight,
)

# columns: sums pass 2**24, where float32 stops being exact; no multiple of a kernel's group
IN, OUT = 1101, 53
INT8 = Int8Scheme()
needs_kernels = pytest.mark.skipif(usable() is None, reason="the kernels' library was not built (no C++ compiler)")


def linear_graph(schemes: dict[str, Scheme], linears: list[tuple[str, tuple[str, ...]]], biased: str = "") -> Graph:
    """Build x -> int8 -> matrices [OUT, IN] that share the input; ``biased`` names the one that adds "bias"."""
    values = [Value(name="x", shape=("n", IN)), Value(name="codes", shape=("n", IN), dtype="int8")]
    values += [Value(name="scale", shape=("n", 1))]
    values += [Value(name=f"{name}{i}", shape=("n", OUT)) for name, weights in linears for i in range(len(weights))]
    return Graph(
        inputs=(Value(name="ids", shape=("n",), dtype="int32"),),
        outputs=("a0",),
        operations=(
            Embed(name="embed", inputs=("ids",), outputs=("x",), weight="embed"),
            QuantizeActivation(name="quantize", inputs=("x",), outputs=("codes", "scale")),
            *(
                Linear(
                    name=name,
                    inputs=("codes", "scale"),
                    outputs=tuple(f"{name}{i}" for i in range(len(weights))),
                    weights=weights,
                    biases=tuple("bias" if weight == biased else None for weight in weights),
                    schemes=tuple(schemes[weight] for weight in weights),
                )
                for name, weights in linears
            ),
        ),
        values={value.name: value for value in values},
        weights={"embed": WeightSpec(shape=(1, IN))}
        | {name: WeightSpec(shape=(OUT, IN)) for name in schemes}
        | ({"bias": WeightSpec(shape=(OUT,))} if biased else {}),
    )


def int8_graph() -> Graph:
    """Build two matrices, one of which is used twice."""
    return linear_graph({"wide": INT8, "other": INT8}, [("a", ("wide",)), ("b", ("wide", "other"))])


def stored_parts(weight: Weight, scheme: Scheme) -> dict[str, NDArray[Any]]:
    if isinstance(weight, Int8Weight):
        assert isinstance(scheme, Int8Scheme)
        return {"codes": weight.codes if scheme.rows else weight.codes.T, "scale": weight.scale}
    if isinstance(weight, TernaryWeight):
        assert isinstance(scheme, TernaryScheme)
        return {"codes": scheme.pack(weight.trits), "scale": weight.scale}
    assert isinstance(weight, FloatWeight)
    return {"values": weight.values}


def write_weights(
    folder: Path, weights: Mapping[str, Weight], schemes: Mapping[str, Scheme] | None = None
) -> dict[str, Tensor]:
    tensors, data = {}, b""
    for name, weight in weights.items():
        scheme = (schemes or {}).get(name, INT8)
        offsets = {}
        for part, array in stored_parts(weight, scheme).items():
            data += bytes(-len(data) % 64)
            offsets[part] = len(data)
            data += array.tobytes()
        shape = weight.values.shape if isinstance(weight, FloatWeight) else (OUT, IN)
        tensors[name] = Tensor(shape=shape, scheme=scheme, offsets=offsets)
    (folder / WEIGHTS).write_bytes(data)
    return tensors


def run(
    folder: Path,
    model: bytes,
    x: NDArray[np.float32],
    names: tuple[str, ...],
    options: ort.SessionOptions | None = None,
) -> list[NDArray[np.float32]]:
    options = options or ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    zeros: dict[str, Any] = {
        "positions": np.zeros((1, len(x)), np.int64),
        "rows": np.zeros(1, np.int64),
        "attention_bias": np.zeros((1, 1, len(x), len(x)), np.float32),
        "seqlens_k": np.zeros(1, np.int32),
        "total_length": np.zeros(1, np.int32),
        "visible": np.zeros((len(x), 1), np.int64),
        "sequences": np.array([[len(x), 0]], np.int64),
        "blocks": np.zeros((1, -(-len(x) // 16)), np.int32),
        "cache": np.zeros(0, np.uint8),
    }
    input_names = {item.name for item in session.get_inputs()}
    inputs = {name: array for name, array in zeros.items() if name in input_names}
    outputs = session.run([f"out.{name}" for name in names], {"embed": x[None], **inputs})
    return [output[0] for output in outputs]


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("unsigned", [False, True])
def test_int8_products_equal_the_reference(tmp_path: Path, unsigned: bool, rows: bool) -> None:
    if not unsigned and not signed_int8_is_exact():
        pytest.skip("uint8 x int8 saturates on this CPU: edgedec never uses it here")
    rng = np.random.default_rng(0)
    graph, names = int8_graph(), ("a0", "b0", "b1")
    scale = rng.uniform(0.01, 0.02, OUT).astype(np.float32)
    extreme = rng.choice(np.array([-127, 127], np.int8), (OUT, IN))
    extreme[:3] = 127  # sums of 17 million, one side only
    weights = {
        "wide": Int8Weight(codes=extreme, scale=scale),
        "other": Int8Weight(codes=rng.integers(-127, 128, (OUT, IN), np.int8), scale=scale),
    }
    tensors = write_weights(tmp_path, weights, dict.fromkeys(weights, Int8Scheme(rows=rows)))
    model = emit(graph, tensors, positions=1, taps=names[1:], unsigned_int8=unsigned).model()
    for n in (1, 2, 5, 8, 16):
        x = rng.choice(np.array([-1, 1], np.float32), (n, IN))
        x[0] = 1
        x[n // 2 :] = rng.standard_normal((n - n // 2, IN))
        reference = ReferenceModel(graph, (weights | {"embed": FloatWeight(values=x[:1])}).__getitem__)
        ids = -np.arange(1, n + 1, dtype=np.int32)
        _, expected = reference.forward(ids, reference.new_cache(), embeds=x, taps=names)
        for name, actual in zip(names, run(tmp_path, model, x, names), strict=True):
            np.testing.assert_array_equal(actual, expected[name], err_msg=f"{name}, {n} rows")
    # The pass has nothing left to convert, and a matrix that two operations share was converted once.
    optimized = onnx.load(str(tmp_path / "optimized.onnx"))
    assert not {"BitwiseXor", "Transpose"} & {node.op_type for node in optimized.graph.node}
    stored = [tensor for tensor in optimized.graph.initializer if list(tensor.dims) == [IN, OUT]]
    assert [tensor.data_type for tensor in stored] == [
        onnx.TensorProto.UINT8 if unsigned else onnx.TensorProto.INT8
    ] * 2


@needs_kernels
@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("bias", ["", "float32", "float16"])
def test_our_operator_takes_the_matrices_as_stored(tmp_path: Path, rows: bool, bias: str) -> None:
    """Run one node per operation for all its int8 matrices, with ternary ones and with a bias that has to be widened."""
    rng = np.random.default_rng(1)
    schemes: dict[str, Scheme] = {
        **{"wide": Int8Scheme(rows=rows), "other": Int8Scheme(rows=not rows)},
        "trits": TernaryScheme(group_size=32),
    }
    linears: list[tuple[str, tuple[str, ...]]] = [
        ("a", ("wide",)),
        ("b", ("wide", "trits", "other")),
        ("c", ("trits",)),
    ]
    names = ("a0", "b0", "b1", "b2", "c0")
    graph = linear_graph(schemes, linears, biased="wide" if bias else "")
    trits = rng.integers(-1, 2, (1, OUT, IN)).astype(np.int8)
    scale = rng.uniform(0.01, 0.02, (3, OUT)).astype(np.float32)
    grouped = rng.uniform(0.5, 1, (1, OUT, -(-IN // 32))).astype(np.float32)
    weights: dict[str, Weight] = {
        "wide": Int8Weight(codes=rng.choice(np.array([-127, 127], np.int8), (OUT, IN)), scale=scale[0]),
        "other": Int8Weight(codes=rng.integers(-127, 128, (OUT, IN), np.int8), scale=scale[1]),
        "trits": TernaryWeight(trits=trits, scale=grouped, group_size=32),
    }
    if bias:
        weights["bias"] = FloatWeight(values=rng.standard_normal(OUT).astype(bias))
        schemes["bias"] = FloatScheme(dtype=bias)
    kernels = usable()
    assert kernels is not None
    shape, scheme = (OUT, IN), TernaryScheme(group_size=32)
    packed = kernels.pack(scheme.pack(trits), grouped, shape, scheme)
    model = emit(
        graph,
        write_weights(tmp_path, weights, schemes),
        positions=1,
        taps=names[1:],
        packed={"trits": (packed.size, 0)},
        kernels=True,
    ).model()
    kinds = Counter(node.op_type for node in onnx.load_from_string(model).graph.node)
    assert (kinds["Int8MatMul"], kinds["TernaryMatMul"], kinds["MatMulInteger"]) == (2, 2, 0)
    value = ort.OrtValue.ortvalue_from_numpy(packed)
    for n in (1, 2, 5, 8, 16):
        x = rng.standard_normal((n, IN)).astype(np.float32)
        reference = ReferenceModel(graph, (weights | {"embed": FloatWeight(values=x[:1])}).__getitem__)
        _, expected = reference.forward(
            -np.arange(1, n + 1, dtype=np.int32), reference.new_cache(), embeds=x, taps=names
        )
        options = ort.SessionOptions()
        register(options, kernels)
        options.add_initializer(packed_names("trits")[0], value)
        for name, actual in zip(names, run(tmp_path, model, x, names, options), strict=True):
            np.testing.assert_array_equal(actual, expected[name], err_msg=f"{name}, {n} rows")


def test_float_weights_are_widened_once() -> None:
    """Share a matrix of a narrow float between two operations, which takes one Cast."""
    values = [Value(name="x", shape=("n", IN))] + [Value(name=name, shape=("n", OUT)) for name in "ab"]
    half = FloatScheme(dtype="float16")
    graph = Graph(
        inputs=(Value(name="ids", shape=("n",), dtype="int32"),),
        outputs=("a",),
        operations=(
            Embed(name="embed", inputs=("ids",), outputs=("x",), weight="embed"),
            *(
                Linear(name=name, inputs=("x",), outputs=(name,), weights=("w",), biases=(None,), schemes=(half,))
                for name in "ab"
            ),
        ),
        values={value.name: value for value in values},
        weights={"embed": WeightSpec(shape=(1, IN)), "w": WeightSpec(shape=(OUT, IN))},
    )
    tensors = {"w": Tensor(shape=(OUT, IN), scheme=half, offsets={"values": 0})}
    model = onnx.load_from_string(emit(graph, tensors, positions=1, taps=("b",)).model())
    assert [node.op_type for node in model.graph.node].count("Cast") == 1


@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_narrow_float_matrices_use_our_operator(tmp_path: Path, dtype: Any, kernels: bool) -> None:
    """Check the limit, because a target is batch-invariant if no float matrix has more rows."""
    sizes = {"narrow": NARROW, "wide": NARROW + 1}
    values = [Value(name="x", shape=("n", 8)), *(Value(name=f"y.{name}", shape=("n", sizes[name])) for name in sizes)]
    linears = (
        Linear(name=f"y.{name}", inputs=("x",), outputs=(f"y.{name}",), weights=(name,), biases=(None,))
        for name in sizes
    )
    graph = Graph(
        inputs=(Value(name="ids", shape=("n",), dtype="int32"),),
        outputs=("y.narrow",),
        operations=(Embed(name="embed", inputs=("ids",), outputs=("x",), weight="embed"), *linears),
        values={value.name: value for value in values},
        weights={"embed": WeightSpec(shape=(1, 8))}
        | {name: WeightSpec(shape=(rows, 8)) for name, rows in sizes.items()},
    )
    weights: dict[str, Weight] = {name: FloatWeight(values=np.ones((rows, 8), dtype)) for name, rows in sizes.items()}
    tensors = write_weights(tmp_path, weights, dict.fromkeys(weights, FloatScheme(dtype=np.dtype(dtype).name)))
    model = onnx.load_from_string(emit(graph, tensors, positions=1, taps=("y.wide",), kernels=kernels).model())
    kinds = [node.op_type for node in model.graph.node if "MatMul" in node.op_type]
    assert kinds == (["FloatMatMul", "FusedMatMul"] if kernels else ["FusedMatMul", "FusedMatMul"])
