"""Read checkpoints that spell a family in another way, from their files to logits."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec.bundle.bundle import Bundle
from edgedec.errors import BundleError, UnsupportedError
from edgedec.families import build_graph
from edgedec.quantize.pipeline import QuantizeOptions, quantize
from edgedec.quantize.readers import Checkpoint, open_checkpoint
from edgedec.reference.float_profile.model import ReferenceModel
from edgedec.runtime.kernels.sessions.operator import usable
from edgedec.runtime.protocols import Limits
from edgedec.runtime.targets import open_target
from edgedec.runtime.targets._cpu import CpuTarget
from tests.edgedec.families.support import make_golden_models, reference_golden
from tests.edgedec.families.support.reference_golden import TOLERANCE, Golden
from tests.edgedec.families.test_golden_families import NAMES
from tests.quantize.readers.support.make_checkpoints import write_hf

_VISION = {"vision_tower.encoder.weight": (3, 2), "multi_modal_projector.mm_input_projection_weight": (2, 2)}


def opened(folder: Path, model: Golden, **config: Any) -> Checkpoint:
    """Open a folder as transformers saves the model, in which a tied head is not written."""
    return open_checkpoint(write_hf(folder, dict(model.weights), **{**model.config, **config}))


def through_a_bundle(checkpoint: Checkpoint, model: Golden, folder: Path) -> Any:
    quantize(checkpoint, folder / "bundle", QuantizeOptions(method="float"), vocab_limit=13)
    bundle = Bundle.open(folder / "bundle")
    graph = build_graph(bundle.config)
    bundle.check(graph)
    reference = ReferenceModel(graph, bundle.weight)
    return reference.forward(model.ids, reference.new_cache(), positions=model.positions)[0]


@pytest.mark.thorough(sample=7)
@pytest.mark.parametrize("name", NAMES)
def test_a_checkpoint_folder_gives_the_golden_logits(name: str, tmp_path: Path) -> None:
    model = reference_golden.read(name)
    actual = through_a_bundle(opened(tmp_path / "m", model), model, tmp_path)
    assert np.abs(actual - model.logits).max() < TOLERANCE


@pytest.mark.parametrize("name", ["gemma/plain", "gemma2/plain", "gemma3_text/plain", "smollm3/plain"])
def test_a_class_with_tied_embeddings_need_not_set_the_flag(name: str, tmp_path: Path) -> None:
    model = reference_golden.read(name)
    config = {key: value for key, value in model.config.items() if key != "tie_word_embeddings"}
    checkpoint = open_checkpoint(write_hf(tmp_path / "m", dict(model.weights), **config))
    assert checkpoint.config["tie_word_embeddings"] is True
    assert np.abs(through_a_bundle(checkpoint, model, tmp_path) - model.logits).max() < TOLERANCE
    stored = dict(model.weights) | {"lm_head.weight": model.weights["model.embed_tokens.weight"]}
    assert open_checkpoint(write_hf(tmp_path / "u", stored, **config)).config["tie_word_embeddings"] is True


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("method", ["int8", "ternary"])
@pytest.mark.parametrize("name", ["kimi_linear/plain", "phi4flash/plain", "step3_text/plain"])
def test_quantized_checkpoints_run_on_the_kernels(name: str, method: str, tmp_path: Path) -> None:
    """Fit two planes of trits with calibration, which runs the float model and the rounded one."""
    kernels = usable()
    if kernels is None:
        pytest.skip("the kernels' library was not built (no C++ compiler)")
    checkpoint = opened(tmp_path / "m", reference_golden.read(name))
    options = QuantizeOptions(method=method, planes=2 if method == "ternary" else 0)
    text = np.random.default_rng(0).integers(0, 13, (2, 12)).astype(np.int32)
    quantize(checkpoint, tmp_path / "b", options, vocab_limit=13, calibration=text)
    bundle, limits = Bundle.open(tmp_path / "b"), Limits(nodes=8, depth=8, positions=32)
    floats = {name for name, tensor in bundle.tensors.items() if tensor.scheme.kind == "float"}
    assert not {name for name in floats if "proj" in name and name.endswith("weight")} - {
        *build_graph(bundle.config).steering_weights()
    }
    seed = make_golden_models.clear_seed(bundle, limits)
    reference = open_target(bundle, device="float_reference", limits=limits, kv_bits=32)
    target = CpuTarget(bundle, kernels, limits=limits, threads=1, taps=(), kv_bits=32)
    assert target.info.batch_invariant
    expected, actual = (make_golden_models.passes(one, limits, 24, seed)[0] for one in (reference, target))
    assert np.abs(expected).max() > 1
    assert np.abs(actual - expected).max() < TOLERANCE


def test_a_decay_that_is_no_number_is_refused(tmp_path: Path) -> None:
    model, name = reference_golden.read("kimi_linear/plain"), "model.layers.0.self_attn.A_log"
    damaged = {**model.weights, name: np.full_like(model.weights[name], np.nan)}
    checkpoint = open_checkpoint(write_hf(tmp_path / "m", damaged, **model.config))
    with pytest.raises(BundleError, match=rf"tensor {name} holds NaN or infinity; the checkpoint is damaged"):
        quantize(checkpoint, tmp_path / "b", QuantizeOptions(method="int8"), vocab_limit=13)


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize(
    ("name", "tensor", "shape"),
    [
        ("kimi_linear/plain", "model.layers.0.self_attn.dt_bias", (2,)),
        ("kimi_linear/plain", "model.layers.0.self_attn.A_log", (2,)),
        ("phi4flash/plain", "model.layers.0.attn.A_log", (16,)),
        ("phi4flash/plain", "model.layers.7.attn.Wqkv.weight", (16, 8)),  # it has queries alone
        ("step3_text/plain", "model.layers.1.self_attn.wq.weight", (16, 6)),
    ],
)
def test_shapes_that_do_not_match_the_configuration_are_refused(
    name: str, tensor: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    model = reference_golden.read(name)
    weights = {**model.weights, tensor: np.zeros(shape, np.float32)}
    checkpoint = open_checkpoint(write_hf(tmp_path / "m", weights, **model.config))
    with pytest.raises(BundleError, match=rf"tensor {tensor} is {re.escape(str(shape))}, the configuration says"):
        quantize(checkpoint, tmp_path / "b", QuantizeOptions(method="int8"), vocab_limit=13)


def test_transformers_names_of_a_dense_layer_of_kimi_linear_are_read(tmp_path: Path) -> None:
    """It saves every MLP of the family under the name of its mixtures."""
    model = reference_golden.read("kimi_linear/ranks")
    saved = {name.replace(".mlp.", ".block_sparse_moe."): values for name, values in model.weights.items()}
    assert saved.keys() != model.weights.keys()
    checkpoint = open_checkpoint(write_hf(tmp_path / "m", saved, **model.config))
    assert np.abs(through_a_bundle(checkpoint, model, tmp_path) - model.logits).max() < TOLERANCE


def test_packed_matrices_and_biases_of_sambay_are_read_by_parts(tmp_path: Path) -> None:
    model = reference_golden.read("phi4flash/biases")
    checkpoint = opened(tmp_path / "m", model)
    packed = model.weights["model.layers.5.attn.Wqkv.bias"]
    assert np.array_equal(checkpoint.load("model.layers.5.attn.k_proj.bias"), packed[8:16])
    gate = model.weights["model.layers.5.mlp.fc1.weight"][:4]
    assert np.array_equal(checkpoint.load("model.layers.5.mlp.gate_proj.weight"), gate)
    cross = "model.layers.7.attn.Wqkv.weight"
    assert np.array_equal(checkpoint.load(cross), model.weights[cross])


# --- several matrices in one ------------------------------------------------------------------------------------------


def test_a_packed_matrix_is_read_by_parts(tmp_path: Path) -> None:
    """Check that rows are read from their place, so that nothing else of the packed matrix is loaded."""
    model = reference_golden.read("phi3/plain")
    checkpoint = opened(tmp_path / "m", model)
    expected = make_golden_models.weights(model, build_graph(model.config))
    assert set(checkpoint.tensors) == set(expected)
    for name, values in expected.items():
        assert checkpoint.tensors[name].shape == values.shape
        assert np.array_equal(checkpoint.load(name), values)


def test_packed_matrices_in_shards_are_read(tmp_path: Path) -> None:
    model = reference_golden.read("phi3/window")
    checkpoint = open_checkpoint(write_hf(tmp_path / "m", dict(model.weights), shards=3, **model.config))
    assert np.abs(through_a_bundle(checkpoint, model, tmp_path) - model.logits).max() < TOLERANCE


_QKV = "model.layers.1.self_attn.qkv_proj.weight"


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        (
            np.zeros((31, 16), np.float32),
            BundleError,
            rf"tensor '{_QKV}' is \(31, 16\), the configuration says \(32, 16\)",
        ),
        (np.zeros((32, 8), np.float32), BundleError, r"is \(32, 8\), the configuration says \(32, 16\)"),
        (np.zeros(32, np.float32), BundleError, r"is \(32,\), the configuration says \(32, 16\)"),
        (np.zeros((32, 16), np.int8), UnsupportedError, "holds several matrices as I8; save the model as F32"),
    ],
)
def test_packed_matrices_of_a_wrong_shape_are_refused(
    values: Any, error: type[Exception], message: str, tmp_path: Path
) -> None:
    model = reference_golden.read("phi3/plain")
    folder = write_hf(tmp_path / "m", {**model.weights, _QKV: values}, **model.config)
    with pytest.raises(error, match=message):
        open_checkpoint(folder)


def test_a_part_that_is_stored_twice_is_refused(tmp_path: Path) -> None:
    model = reference_golden.read("phi3/plain")
    twice = {**model.weights, "model.layers.1.self_attn.k_proj.weight": np.zeros((8, 16), np.float32)}
    with pytest.raises(BundleError, match=r"two tensors have the name 'model\.layers\.1\.self_attn\.k_proj\.weight'"):
        open_checkpoint(write_hf(tmp_path / "m", twice, **model.config))


def test_a_packed_matrix_beyond_the_last_layer_is_refused(tmp_path: Path) -> None:
    """Add a matrix for which the configuration has no place; the caller that needs the graph reports it."""
    model = reference_golden.read("phi3/plain")
    weights = {**model.weights, "model.layers.7.mlp.gate_up_proj.weight": np.zeros((24, 16), np.float32)}
    with pytest.raises((BundleError, UnsupportedError), match=r"model\.layers\.7\.mlp"):
        through_a_bundle(open_checkpoint(write_hf(tmp_path / "m", weights, **model.config)), model, tmp_path)


# --- BitNet's reproduction --------------------------------------------------------------------------------------------


def reproduction(model: Golden) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return tensors and configuration as 1bitLLM/bitnet_b1_58-large has them."""
    names = {"attn_sub_norm": "inner_attn_ln", "ffn_sub_norm": "ffn_layernorm"}
    tensors = {}
    for name, values in model.weights.items():
        for ours, theirs in names.items():
            name = name.replace(ours, theirs)
        tensors[name] = values
    config = {key: value for key, value in model.config.items() if key not in ("hidden_act", "rope_parameters")}
    config |= {
        "bos_token_id": 1,
        "eos_token_id": 2,
        "model_type": "llama",
        "architectures": ["BitnetForCausalLM"],
        "weight_bits": 1,
        "input_bits": 8,
    }
    return tensors, config


def absmean(weight: Any) -> Any:
    """Round by the formula of the class, spelled out."""
    scale = 1 / max(float(np.abs(weight.astype(np.float64)).mean()), 1e-5)
    return np.clip(np.rint(weight * scale), -1, 1) / scale


def test_the_reproduction_of_bitnet(tmp_path: Path) -> None:
    model = reference_golden.read("bitnet/silu")
    tensors, config = reproduction(model)
    checkpoint = open_checkpoint(write_hf(tmp_path / "m", tensors, **config))
    assert set(checkpoint.tensors) == set(model.weights)
    assert {key: checkpoint.config[key] for key in ("model_type", "hidden_act", "rope_theta")} == {
        "model_type": "bitnet",
        "hidden_act": "silu",
        "rope_theta": 10000.0,
    }
    assert "quantization_config" not in checkpoint.config
    for name, values in model.weights.items():
        expected = absmean(values) if "_proj." in name else values
        np.testing.assert_allclose(checkpoint.load(name), expected, rtol=1e-5, atol=1e-7)
    # fails if it is not lossless
    quantize(checkpoint, tmp_path / "b", QuantizeOptions(method="ternary"), vocab_limit=13)
    ternary = {name for name, tensor in Bundle.open(tmp_path / "b").tensors.items() if tensor.scheme.kind == "ternary"}
    assert ternary == {name for name in model.weights if "_proj." in name}


def test_other_bits_are_refused(tmp_path: Path) -> None:
    tensors, config = reproduction(reference_golden.read("bitnet/silu"))
    with pytest.raises(UnsupportedError, match="BitnetForCausalLM with weight_bits 2 and input_bits 8 is not read"):
        open_checkpoint(write_hf(tmp_path / "m", tensors, **{**config, "weight_bits": 2}))


def test_a_norm_stored_under_both_names_is_refused(tmp_path: Path) -> None:
    model = reference_golden.read("bitnet/silu")
    tensors, config = reproduction(model)
    name = "model.layers.0.mlp.ffn_sub_norm.weight"
    with pytest.raises(BundleError, match=f"two tensors have the name {name!r}".replace(".", r"\.")):
        open_checkpoint(write_hf(tmp_path / "m", {**tensors, name: model.weights[name]}, **config))


# --- vision models ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spelling", ["older", "newer"])
def test_the_language_model_of_a_vision_model_is_read(
    spelling: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = reference_golden.read("gemma3_text/plain")
    before = "language_model.model." if spelling == "older" else "model.language_model."
    sight = "" if spelling == "older" else "model."
    tensors = {before + name.removeprefix("model."): values for name, values in model.weights.items()}
    tensors |= {sight + name: np.zeros(shape, np.float32) for name, shape in _VISION.items()}
    text = {key: value for key, value in model.config.items() if key != "tie_word_embeddings"}
    folder = write_hf(
        tmp_path / "m", tensors, model_type="gemma3", text_config=text, vision_config={}, eos_token_id=[1, 2]
    )
    with caplog.at_level(logging.WARNING):
        checkpoint = open_checkpoint(folder)
    assert "2 tensors of its vision model are left out" in caplog.text
    assert set(checkpoint.tensors) == set(model.weights)
    assert np.abs(through_a_bundle(checkpoint, model, tmp_path) - model.logits).max() < TOLERANCE


def test_a_vision_model_without_a_language_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="text_config must be an object, not None"):
        open_checkpoint(write_hf(tmp_path / "m", model_type="gemma3"))
