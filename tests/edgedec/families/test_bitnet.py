"""Test the BitNet family: logits of transformers in every executor that runs floats, its defaults, and its refusals."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec.bundle.bundle import Bundle
from edgedec.errors import BundleError, UnsupportedError
from edgedec.families import build_graph
from edgedec.graph.ops import GatedActivation, Linear, RmsNorm, Rope
from edgedec.quantize.batch_interpreter import BatchCache, BatchInterpreter
from edgedec.quantize.pipeline import QuantizeOptions, quantize
from edgedec.quantize.readers import open_checkpoint
from edgedec.reference.float_profile.model import ReferenceModel
from edgedec.runtime.protocols import Limits, Pass
from edgedec.runtime.targets import open_target
from edgedec.schemes import FloatWeight
from tests.edgedec.families.support import reference_golden
from tests.edgedec.families.support.reference_golden import TOLERANCE, Golden
from tests.quantize.support.make_bitnet_models import export
from tests.quantize.support.make_bitnet_models import model as random_model

NAMES = sorted(f"bitnet/{path.stem}" for path in (reference_golden.FOLDER / "bitnet").glob("*.npz"))

BASE: Mapping[str, Any] = {
    "model_type": "bitnet",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 96,
}


def logits(model: Golden, config: Mapping[str, Any] | None = None, *, step: int | None = None) -> Any:
    """Return the logits of one pass, or of passes of ``step`` rows."""
    reference = ReferenceModel(
        build_graph(config or model.config), lambda name: FloatWeight(values=model.weights[name])
    )
    cache, parts = reference.new_cache(), []
    step = step or len(model.ids)
    for start in range(0, len(model.ids), step):
        rows = slice(start, start + step)
        parts.append(reference.forward(model.ids[rows], cache, positions=model.positions[rows])[0])
        cache.commit(np.arange(len(model.ids[rows]), dtype=np.int32))
    return np.concatenate(parts)


def test_the_golden_files_cover_what_they_should() -> None:
    models = [reference_golden.read(name) for name in NAMES]
    configs = [model.config for model in models]
    assert {c["hidden_act"] for c in configs} == {"relu2", "silu"}
    assert {c["tie_word_embeddings"] for c in configs} == {False, True}
    assert {c["attention_bias"] for c in configs} == {False, True}
    assert {c["num_key_value_heads"] for c in configs} == {1, 2, 4}
    assert all(np.abs(model.logits).max() > 5 for model in models)


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_transformers(name: str) -> None:
    model = reference_golden.read(name)
    assert set(build_graph(model.config).weights) == set(model.weights)
    actual = logits(model)
    assert np.abs(actual - model.logits).max() < TOLERANCE
    assert np.array_equal(logits(model, step=5), actual)


@pytest.mark.parametrize("name", NAMES)
def test_the_batch_interpreter_agrees_with_transformers(name: str) -> None:
    """Run two sequences at once in two passes: calibration and sampling run the same graph so."""
    model = reference_golden.read(name)
    reference = ReferenceModel(build_graph(model.config), lambda key: FloatWeight(values=model.weights[key]))
    expected = reference.forward(model.ids, reference.new_cache())[0]
    interpreter = BatchInterpreter(build_graph(model.config), model.weights.__getitem__)
    cache = BatchCache(sequences=2, positions=18)
    ids = np.stack([model.ids, model.ids[::-1]])
    parts = [
        interpreter.logits(ids[:, columns], cache).reshape(2, -1, expected.shape[1])[0]
        for columns in (slice(11), slice(11, 18))
    ]
    assert np.abs(np.concatenate(parts) - expected).max() < TOLERANCE


@pytest.mark.parametrize("activation", ["relu2", "silu"])
def test_onnx_runtime_agrees_with_the_reference(tmp_path: Path, activation: str) -> None:
    """Run a float bundle: the lowering of both activations and of the sub-norms. The conformance suite has the
    schemes.
    """
    random_bitnet = random_model("bitnet", hidden_act=activation)
    source = export(tmp_path / "m", random_bitnet)
    quantize(open_checkpoint(source), tmp_path / "b", QuantizeOptions(method="float"), vocab_limit=13)
    limits = Limits(nodes=16, depth=8, positions=32)
    ids, rows = np.arange(16, dtype=np.int32) % 13, np.arange(16, dtype=np.int32)
    parts = []
    for device in ("cpu", "float_reference"):
        target = open_target(Bundle.open(tmp_path / "b"), device=device, limits=limits, threads=1, kv_bits=32)
        (result,) = target.submit([(target.open(limits), Pass(ids=ids, positions=rows, logits=rows))]).result()
        parts.append(result.logits)
    assert parts[1].std() > 2
    assert np.abs(parts[0] - parts[1]).max() < TOLERANCE


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("plain", {"hidden_act": "silu"}),
        ("silu", {"hidden_act": "relu2"}),
        ("silu", {"rms_norm_eps": 1.1e-2}),
        ("plain", {"rope_parameters": {"rope_type": "default", "rope_theta": 400000.0}}),
        ("plain", {"model_type": "llama", "hidden_act": "silu"}),
    ],
)
def test_other_settings_move_the_logits_beyond_the_tolerance(name: str, changes: dict[str, Any]) -> None:
    model = reference_golden.read(f"bitnet/{name}")
    assert np.abs(logits(model, model.config | changes) - model.logits).max() > 100 * TOLERANCE


def test_sub_norms_stand_before_the_output_projections() -> None:
    graph = build_graph(BASE)
    made_by = {output: op for op in graph.operations for output in op.outputs}
    shapes = {"attn_sub_norm": (32,), "ffn_sub_norm": (48,)}
    for layer in (0, 1):
        for linear, norm, part in (("o", "attn_sub_norm", "self_attn"), ("down", "ffn_sub_norm", "mlp")):
            (source,) = made_by[f"layers.{layer}.{linear}"].inputs
            norm_op = made_by[source]
            assert isinstance(norm_op, RmsNorm)
            assert norm_op.name == f"layers.{layer}.{norm}"
            assert norm_op.weight == f"model.layers.{layer}.{part}.{norm}.weight"
            assert graph.weights[norm_op.weight].shape == shapes[norm]


def test_the_graph_differs_from_llama_in_norms_and_activation() -> None:
    theirs = build_graph({**BASE, "model_type": "llama", "rope_theta": 500000.0, "rms_norm_eps": 1e-5})
    ours = build_graph({**BASE, "hidden_act": "silu"})
    others = [op for op in ours.operations if "sub_norm" not in op.name]
    assert [(op.kind, op.name, op.weight_names) for op in others] == [
        (op.kind, op.name, op.weight_names) for op in theirs.operations
    ]
    assert len(ours.operations) == len(others) + 4


def test_defaults_are_those_of_transformers() -> None:
    """Compare with transformers' BitNetConfig."""
    graph = build_graph(BASE)
    expected = {**BASE, "hidden_act": "relu2", "rope_theta": 500000.0, "rms_norm_eps": 1e-5, "attention_bias": False}
    assert build_graph(expected | {"tie_word_embeddings": False}) == graph
    assert {op.activation for op in graph.operations if isinstance(op, GatedActivation)} == {"relu2"}
    assert {op.eps for op in graph.operations if isinstance(op, RmsNorm)} == {1e-5}
    (frequencies,) = {op.inverse_frequencies for op in graph.operations if isinstance(op, Rope)}
    assert frequencies == pytest.approx([500000.0 ** (-i / 4) for i in range(4)])


def test_attention_alone_has_biases() -> None:
    graph = build_graph({**BASE, "attention_bias": True, "mlp_bias": True})
    biases = {bias for op in graph.operations if isinstance(op, Linear) for bias in op.biases if bias}
    assert {name.split(".")[3] for name in biases} == {"self_attn"}
    assert len(biases) == 8


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"hidden_act": "gelu"}, UnsupportedError, r"hidden_act 'gelu' is not supported; known: None, 'relu2', 'silu'"),
        ({"hidden_act": ["relu2"]}, UnsupportedError, r"hidden_act \['relu2'\] is not supported"),
        ({"head_dim": 16}, BundleError, r"4 heads of 16 are not hidden_size 32, as the sub-norm needs"),
        ({"hidden_size": 34}, BundleError, r"hidden_size 34 is not a multiple of num_attention_heads 4"),
        ({"sliding_window": 8}, UnsupportedError, r"sliding_window 8 is not supported"),
        ({"rms_norm_eps": 0}, BundleError, r"rms_norm_eps must be a number above 0"),
        ({"intermediate_size": None}, BundleError, r"intermediate_size must be an integer in 1"),
    ],
)
def test_unsupported_settings_are_refused(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        build_graph({**BASE, **changes})


def test_llama_has_no_squared_relu() -> None:
    with pytest.raises(UnsupportedError, match=r"hidden_act 'relu2' is not supported; known: None, 'silu'"):
        build_graph({**BASE, "model_type": "llama", "hidden_act": "relu2"})
