"""Test files of Qwen 3.5 (``qwen35``): they give the logits of the checkpoint that was converted, or are refused."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgedec.bundle.bundle import Bundle
from edgedec.errors import BundleError, EdgedecError, UnsupportedError
from edgedec.families import build_graph
from edgedec.quantize.exporters.gguf.export import export_gguf
from edgedec.quantize.exporters.safetensors import export_safetensors
from edgedec.quantize.pipeline import QuantizeOptions, quantize
from edgedec.quantize.readers import open_checkpoint
from edgedec.reference.float_profile.model import ReferenceModel
from edgedec.runtime.model_graph import bundle_graph
from edgedec.schemes import FloatScheme, FloatWeight, Int4Scheme, Int8Scheme, TernaryScheme
from tests.edgedec.families.support import reference_golden
from tests.quantize.readers.support import make_gguf, make_gguf_checkpoint
from tests.quantize.readers.support import make_qwen35_gguf as qwen
from tests.quantize.readers.support import make_rotated_gguf as rotated
from tests.quantize.readers.support import make_ternary_gguf as maker
from tests.quantize.readers.support.make_ternary_gguf import Matrix

F32 = NDArray[np.float32]
IDS = np.array([3, 5, 0, 12, 7, 7, 1, 9, 4, 2], np.int32)
TOLERANCE = 2e-5  # absolute error of logits up to about 5: sums in another order, and the logarithm of the decay
OUT = "blk.0.ssm_out.weight"


def bundle_of(source: Path, folder: Path, method: str = "float", **options: Any) -> Bundle:
    quantize(open_checkpoint(source), folder, QuantizeOptions(method=method, **options), vocab_limit=qwen.VOCAB)
    return Bundle.open(folder)


def logits(bundle: Bundle) -> F32:
    model = ReferenceModel(bundle_graph(bundle, 32), bundle.weight)
    return model.forward(IDS, model.new_cache())[0]


def expected_logits(settings: Mapping[str, Any], weights: Mapping[str, F32]) -> F32:
    model = ReferenceModel(build_graph(settings), lambda name: FloatWeight(values=weights[name]))
    return model.forward(IDS, model.new_cache())[0]


# --- what the converter did is undone ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["F32", "F16"])
def test_the_golden_model_is_read_back(tmp_path: Path, kind: str) -> None:
    """Its weights have 16 bits, so that matrices of F16 are exact; norms and decays have 32 in every file."""
    model = reference_golden.read("qwen3_5_text/plain")
    tensors = make_gguf_checkpoint.tensors("qwen35", model.config, model.weights)
    raw = [
        make_gguf.RawTensor(name.encode(), values.shape[::-1], 1, values.astype(np.float16).tobytes())
        if kind == "F16" and values.ndim == 2 and "conv1d" not in name
        else make_gguf.tensor(name, np.ascontiguousarray(values))
        for name, values in tensors.items()
    ]
    path = tmp_path / "m.gguf"
    path.write_bytes(make_gguf.file_bytes(qwen.metadata(model.config), raw))
    checkpoint = open_checkpoint(path)
    for name, values in model.weights.items():
        read = checkpoint.load(name)
        assert read.shape == checkpoint.tensors[name].shape == values.shape
        if name.endswith("A_log"):
            assert np.abs(read - values).max() < 2e-7 * max(1, np.abs(values).max())
        elif name.endswith("norm.weight") and "linear_attn" not in name:
            np.testing.assert_array_equal(read, values + np.float32(1))
        else:
            np.testing.assert_array_equal(read, values)
    quantize(checkpoint, tmp_path / "b", QuantizeOptions(method="float"), vocab_limit=13)
    bundle = Bundle.open(tmp_path / "b")
    reference = ReferenceModel(build_graph(bundle.config), bundle.weight)
    actual = reference.forward(model.ids, reference.new_cache(), positions=model.positions)[0]
    assert np.abs(actual - model.logits).max() < reference_golden.TOLERANCE


@pytest.mark.thorough(sample=2)
@pytest.mark.parametrize(
    ("kind", "value_dim"),
    [("Q2_0", 64), ("Q2_0", 128), ("Q2_0 of 128", 128), ("PQ2_0", 64), ("PQ2_0", 128), ("PTQ1_0", 128)],
)
def test_ternary_matrices_are_taken_without_loss(tmp_path: Path, kind: str, value_dim: int) -> None:
    """A block of 128 columns of ``ssm_out`` may span heads that are apart in the checkpoint, which narrows its groups."""
    settings = qwen.config(value_dim)
    model = qwen.random_ternary(settings)
    weights = qwen.checkpoint_weights(settings, model)
    source = qwen.write(tmp_path / "m.gguf", settings, model, kind)
    bundle = bundle_of(source, tmp_path / "b", "ternary")
    for name, theirs in qwen.names(settings).items():
        if isinstance(model[theirs], Matrix):
            group = min(128, value_dim) if theirs == OUT else 128
            assert bundle.tensors[name].scheme == TernaryScheme(group_size=group, half_scales=True), name
            np.testing.assert_array_equal(bundle.weight(name).dense(), weights[name])
        elif any(part in theirs for part in qwen.RATES):
            assert bundle.tensors[name].scheme == FloatScheme(), name
            np.testing.assert_array_equal(bundle.weight(name).dense(), weights[name])
    expected = expected_logits(settings, weights)
    assert np.abs(expected).max() > 2
    np.testing.assert_allclose(
        logits(bundle_of(source, tmp_path / "float")), expected, atol=TOLERANCE * np.abs(expected).max()
    )
    assert np.corrcoef(logits(bundle).ravel(), expected.ravel())[0, 1] > 0.99  # activations of 8 bits


def test_the_code_of_plus_2_takes_two_planes(tmp_path: Path) -> None:
    settings = qwen.config()
    model = qwen.random_ternary(settings)
    out = model[OUT]
    assert isinstance(out, Matrix)
    out.codes[3, 130:150] = 2
    source = qwen.write(tmp_path / "m.gguf", settings, model, "PQ2_0")
    with pytest.raises(UnsupportedError, match=r"'blk\.0\.ssm_out\.weight' .PQ2_0. is not ternary: 20 of its"):
        bundle_of(source, tmp_path / "a", "ternary")
    bundle = bundle_of(source, tmp_path / "b", "ternary", planes=2)
    name = "model.layers.0.linear_attn.out_proj.weight"
    np.testing.assert_array_equal(bundle.weight(name).dense(), qwen.checkpoint_weights(settings, model)[name])


@pytest.mark.parametrize(("value_dim", "scheme"), [(32, Int4Scheme()), (16, Int8Scheme(rows=True))])
def test_blocks_of_4_bits_are_kept_if_they_lie_in_one_head(tmp_path: Path, value_dim: int, scheme: Any) -> None:
    """Otherwise the matrix is decoded, which is exact, and stored like other types."""
    settings = qwen.config(value_dim)
    weights = qwen.random_weights(settings)
    floats = make_gguf_checkpoint.tensors("qwen35", settings, weights)
    rng = np.random.default_rng(0)
    stored, raw = {}, []
    for name, values in floats.items():
        if name not in (OUT, "blk.0.attn_qkv.weight"):
            raw.append(make_gguf.tensor(name, np.ascontiguousarray(values)))
            continue
        codes = rng.integers(0, 16, values.shape).astype(np.int8)
        scales = maker.random_scales(rng, len(codes), codes.shape[1] // 32)
        halves = codes.reshape(len(codes), -1, 2, 16).astype(np.uint8)
        packed = np.concatenate(
            [scales.astype("<f2")[..., None].view(np.uint8), halves[..., 0, :] | halves[..., 1, :] << 4], 2
        )
        raw.append(make_gguf.RawTensor(name.encode(), values.shape[::-1], make_gguf.Q4_0, packed.tobytes()))
        stored[name] = np.repeat(scales, 32, axis=1) * (codes - np.int8(8))
    (tmp_path / "m.gguf").write_bytes(make_gguf.file_bytes(qwen.metadata(settings), raw))
    expected = qwen.checkpoint_weights(settings, floats | stored)
    plain = bundle_of(tmp_path / "m.gguf", tmp_path / "f")
    bundle = bundle_of(tmp_path / "m.gguf", tmp_path / "b", "int4")
    for part, own in (("out_proj", scheme), ("in_proj_qkv", Int4Scheme())):
        name = f"model.layers.0.linear_attn.{part}.weight"
        np.testing.assert_array_equal(plain.weight(name).dense(), expected[name])
        assert bundle.tensors[name].scheme == own
        if isinstance(own, Int4Scheme):
            np.testing.assert_array_equal(bundle.weight(name).dense(), expected[name])


def test_heads_that_divide_blocks_too_finely_have_no_ternary_form(tmp_path: Path) -> None:
    settings = qwen.config(48, linear_num_value_heads=8)  # 384 columns
    model = qwen.random_ternary(settings)
    source = qwen.write(tmp_path / "m.gguf", settings, model, "PQ2_0")
    expected = qwen.checkpoint_weights(settings, model)["model.layers.0.linear_attn.out_proj.weight"]
    actual = open_checkpoint(source).load("model.layers.0.linear_attn.out_proj.weight")
    np.testing.assert_array_equal(actual, expected)
    with pytest.raises(
        UnsupportedError, match=r"ssm_out.*blocks of 128 columns, which heads of 48 columns divide into 16"
    ):
        bundle_of(source, tmp_path / "b", "ternary")


def test_layers_that_guess_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = qwen.config(32)
    weights = qwen.random_weights(settings)
    model = make_gguf_checkpoint.tensors("qwen35", settings, weights)
    more = {name.replace("blk.1.", "blk.2."): values for name, values in model.items() if name.startswith("blk.1.")}
    more["blk.2.nextn.eh_proj.weight"] = np.ones((qwen.HIDDEN, 2 * qwen.HIDDEN), np.float32)
    more["blk.2.nextn.enorm.weight"] = np.ones(qwen.HIDDEN, np.float32)
    keys: dict[str, Any] = {"qwen35__block_count": 3, "qwen35__nextn_predict_layers": 1}
    signs = rotated.random_signs([qwen.HIDDEN, 2 * qwen.HIDDEN])  # only the layer that guesses has 256 columns
    keys |= rotated.rotation_keys(32, signs, ["blk.2.nextn.eh_proj.weight", "blk.1.attn_k.weight"])
    model["blk.1.attn_k.weight"] = rotated.folded(model["blk.1.attn_k.weight"], 32, signs[qwen.HIDDEN])
    path = qwen.write(tmp_path / "m.gguf", settings, {**model, **more}, **keys)
    with caplog.at_level(logging.WARNING):
        bundle = bundle_of(path, tmp_path / "b")
    assert f"{len(more)} tensors of its layers that guess are left out" in caplog.text
    np.testing.assert_allclose(logits(bundle), expected_logits(settings, weights), atol=TOLERANCE)
    path = qwen.write(tmp_path / "n.gguf", settings, {**model, **more}, qwen35__block_count=2)
    with pytest.raises(UnsupportedError, match=r"'blk\.2\.nextn\.eh_proj\.weight' has no place in a qwen3_5_text"):
        open_checkpoint(path)


def test_one_value_head_for_each_key_head_has_one_order(tmp_path: Path) -> None:
    settings = qwen.config(32, linear_num_value_heads=2)
    weights = qwen.random_weights(settings)
    model = make_gguf_checkpoint.tensors("qwen35", settings, weights)
    names = [name for name, values in model.items() if values.ndim == 2 and values.shape[1] == 64]
    assert names == [OUT]
    signs = rotated.random_signs([64])
    model[OUT] = rotated.folded(model[OUT], 64, signs[64])
    path = qwen.write(tmp_path / "m.gguf", settings, model, **rotated.rotation_keys(64, signs, names))
    np.testing.assert_allclose(
        logits(bundle_of(path, tmp_path / "b")), expected_logits(settings, weights), atol=TOLERANCE
    )


# --- rotated weights --------------------------------------------------------------------------------------------------


def folded_model(
    settings: Mapping[str, Any], weights: Mapping[str, F32], block: int
) -> tuple[dict[str, F32], dict[str, Any]]:
    """Return a file whose matrices are all folded, but those of the rates, and its metadata.

    ``ssm_out`` is folded in the order of the checkpoint, and stored so.
    """
    model = make_gguf_checkpoint.tensors("qwen35", settings, weights)
    model[OUT] = weights["model.layers.0.linear_attn.out_proj.weight"]
    folded = [
        name
        for name, values in model.items()
        if values.ndim == 2 and "conv1d" not in name and not any(part in name for part in qwen.RATES)
    ]
    signs = rotated.random_signs({model[name].shape[1] for name in folded})
    for name in folded:
        model[name] = rotated.folded(model[name], block, signs[model[name].shape[1]])
    products = [name for name in folded if name != rotated.EMBEDDING]
    return model, rotated.rotation_keys(block, signs, products, [rotated.EMBEDDING], gdn_v_grouped=True)


def test_a_rotated_file_gives_the_logits_of_the_checkpoint(tmp_path: Path) -> None:
    """The block spans two heads, so that the order of heads before the rotation matters."""
    settings = qwen.config(32)
    weights = qwen.random_weights(settings)
    expected = expected_logits(settings, weights)
    assert np.abs(expected).max() > 2
    model, keys = folded_model(settings, weights, 64)
    path = qwen.write(tmp_path / "m.gguf", settings, model, **keys)
    np.testing.assert_allclose(logits(bundle_of(path, tmp_path / "b")), expected, atol=TOLERANCE)


@pytest.mark.thorough
def test_rotated_ternary_weights_are_taken_without_loss(tmp_path: Path) -> None:
    settings = qwen.config()
    model = qwen.random_ternary(settings)
    matrices = {name: values for name, values in model.items() if isinstance(values, Matrix)}
    signs = rotated.random_signs({values.codes.shape[1] for values in matrices.values()})
    products = [name for name in matrices if name != rotated.EMBEDDING]
    keys = rotated.rotation_keys(128, signs, products, [rotated.EMBEDDING], gdn_v_grouped=True)
    source = qwen.write(tmp_path / "m.gguf", settings, model, "PQ2_0", **keys)
    bundle = bundle_of(source, tmp_path / "b", "ternary")
    out = "model.layers.0.linear_attn.out_proj.weight"
    np.testing.assert_array_equal(bundle.weight(out).dense(), matrices[OUT].dense())  # the order of the file
    plain: dict[str, Any] = {
        name: rotated.unfolded(values.dense(), 128, signs[values.codes.shape[1]])
        if isinstance(values, Matrix)
        else values
        for name, values in model.items()
    }
    weights = qwen.checkpoint_weights(settings, plain) | {out: plain[OUT]}
    expected = expected_logits(settings, weights)
    np.testing.assert_allclose(
        logits(bundle_of(source, tmp_path / "f")), expected, atol=TOLERANCE * np.abs(expected).max()
    )
    assert np.corrcoef(logits(bundle).ravel(), expected.ravel())[0, 1] > 0.99


def test_an_output_that_is_folded_in_another_order_is_refused(tmp_path: Path) -> None:
    settings = qwen.config(32)
    model, keys = folded_model(settings, qwen.random_weights(settings), 64)
    path = qwen.write(tmp_path / "m.gguf", settings, model, **(keys | {"prism__hadamard__gdn_v_grouped": False}))
    with pytest.raises(
        UnsupportedError, match=r"'blk\.0\.ssm_out\.weight' is folded in llama.cpp's order.*gdn_v_grouped"
    ):
        open_checkpoint(path)


def test_an_output_that_is_not_folded_is_in_the_usual_order(tmp_path: Path) -> None:
    settings = qwen.config(32)
    weights = qwen.random_weights(settings)
    model, keys = folded_model(settings, weights, 64)
    model[OUT] = make_gguf_checkpoint.tensors("qwen35", settings, weights)[OUT]
    keys["prism__hadamard__weight_names"].remove(OUT)
    path = qwen.write(tmp_path / "m.gguf", settings, model, **keys)
    np.testing.assert_allclose(
        logits(bundle_of(path, tmp_path / "b")), expected_logits(settings, weights), atol=TOLERANCE
    )


# --- exporters --------------------------------------------------------------------------------------------------------


def test_it_is_exported_as_a_folder_and_not_as_gguf(tmp_path: Path) -> None:
    settings = qwen.config(32)
    weights = qwen.random_weights(settings)
    model = make_gguf_checkpoint.tensors("qwen35", settings, weights)
    bundle = bundle_of(qwen.write(tmp_path / "m.gguf", settings, model), tmp_path / "b")
    with pytest.raises(UnsupportedError, match="qwen3_5_text is not written as GGUF"):
        export_gguf(bundle, tmp_path / "n.gguf")
    export_safetensors(bundle, tmp_path / "hf")
    checkpoint = open_checkpoint(tmp_path / "hf")
    assert "rms_norm_offset" not in checkpoint.config
    for name, values in weights.items():
        np.testing.assert_allclose(checkpoint.load(name), values, atol=5e-7, err_msg=name)


# --- attacks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        *(
            ({f"ssm__{key}": None}, BundleError, rf"qwen35\.ssm\.{key} must be a positive integer up to \d+, not None")
            for key in ("conv_kernel", "state_size", "group_count", "time_step_rank", "inner_size")
        ),
        (
            {"ssm__inner_size": 130},
            BundleError,
            r"ssm\.inner_size 130 is not a multiple of qwen35\.ssm\.time_step_rank 4",
        ),
        ({"ssm__group_count": 3}, BundleError, r"time_step_rank 4 is not a multiple of qwen35\.ssm\.group_count 3"),
        ({"ssm__state_size": 0}, BundleError, r"ssm\.state_size must be a positive integer"),
        (
            {"ssm__state_size": 16},
            BundleError,
            r"'blk\.0\.attn_qkv\.weight' has the shape \(256, 128\), and .* \(192, 128\)",
        ),
        ({"ssm__conv_kernel": 5}, BundleError, r"'blk\.0\.ssm_conv1d\.weight' has the shape \(256, 4\), .* \(256, 5\)"),
        ({"full_attention_interval": 0}, BundleError, r"full_attention_interval must be a positive integer"),
        (
            {"full_attention_interval": 1},
            BundleError,
            r"'blk\.0\.\w+.*' belongs to a gated delta net, .* none in layer 0",
        ),
        ({"full_attention_interval": None}, BundleError, r"layers\.1\.linear_attn\.\S+ is missing"),
        ({"attention__recurrent_layers": [1]}, BundleError, r"recurrent_layers must be 2 truth values"),
        ({"attention__recurrent_layers": "x"}, BundleError, r"recurrent_layers must be 2 truth values, not 'x'"),
        ({"nextn_predict_layers": 2}, BundleError, r"nextn_predict_layers 2 leaves none of qwen35\.block_count 2"),
        ({"expert_count": 8}, UnsupportedError, r"qwen35\.expert_count: models with experts are not read"),
        ({"rope__scaling__type": "yarn", "rope__scaling__factor": 2.0}, EdgedecError, r"rope\.scaling\.|yarn"),
    ],
)
def test_metadata_that_do_not_fit_are_refused(
    tmp_path: Path, changes: dict[str, Any], error: type[EdgedecError], message: str
) -> None:
    settings = qwen.config(32)
    model = make_gguf_checkpoint.tensors("qwen35", settings, qwen.random_weights(settings))
    path = qwen.write(
        tmp_path / "m.gguf", settings, model, **{f"qwen35__{key}": value for key, value in changes.items()}
    )
    with pytest.raises(error, match=message):
        bundle_of(path, tmp_path / "b")


def _with(value: float) -> Callable[[F32], F32]:
    return lambda values: np.array([value, *values[1:]], np.float32)


@pytest.mark.parametrize(
    ("part", "change", "message"),
    [
        ("ssm_a", _with(np.nan), r"'blk\.0\.ssm_a': value 0 is nan, and a decay must be finite and negative"),
        ("ssm_a", _with(0.5), r"value 0 is 0\.5, and a decay must be finite and negative"),
        ("ssm_a", _with(0.0), r"value 0 is 0, and a decay must be"),
        ("ssm_a", _with(-np.inf), r"value 0 is -inf, and a decay must be"),
        ("ssm_a", lambda values: values[:3], r"'blk\.0\.ssm_a' has the shape \(3,\), and the metadata make it \(4,\)"),
        ("ssm_dt.bias", lambda values: values[:3], r"'blk\.0\.ssm_dt\.bias' has the shape \(3,\)"),
        ("ssm_dt.bias", _with(np.nan), r"dt_bias holds NaN or infinity"),
        ("ssm_norm.weight", lambda values: values[:8], r"'blk\.0\.ssm_norm\.weight' has the shape \(8,\)"),
        ("ssm_alpha.weight", lambda values: values[:2], r"'blk\.0\.ssm_alpha\.weight' has the shape \(2, 128\)"),
        ("ssm_beta.weight", lambda values: values[:, :64], r"'blk\.0\.ssm_beta\.weight' has the shape \(4, 64\)"),
        ("attn_gate.weight", lambda values: values[:32], r"'blk\.0\.attn_gate\.weight' has the shape \(32, 128\)"),
        ("ssm_out.weight", lambda values: values[:, :32], r"'blk\.0\.ssm_out\.weight' has the shape \(128, 32\)"),
        (
            "ssm_conv1d.weight",
            lambda values: values[:, None],
            r"'blk\.0\.ssm_conv1d\.weight' has the shape \(256, 1, 4\)",
        ),
    ],
)
def test_damaged_tensors_are_refused(tmp_path: Path, part: str, change: Callable[[F32], F32], message: str) -> None:
    settings = qwen.config(32)
    model = make_gguf_checkpoint.tensors("qwen35", settings, qwen.random_weights(settings))
    model[f"blk.0.{part}"] = np.ascontiguousarray(change(model[f"blk.0.{part}"]))
    path = qwen.write(tmp_path / "m.gguf", settings, model)
    with pytest.raises(BundleError, match=message):
        bundle_of(path, tmp_path / "b")


def test_a_quantized_decay_is_refused(tmp_path: Path) -> None:
    settings = qwen.config(32, linear_num_value_heads=32, linear_num_key_heads=2)
    model = make_gguf_checkpoint.tensors("qwen35", settings, qwen.random_weights(settings))
    raw = [
        make_gguf.tensor(name, np.ascontiguousarray(values))
        for name, values in model.items()
        if not name.endswith("ssm_a")
    ]
    raw.append(make_gguf.RawTensor(b"blk.0.ssm_a", (32,), make_gguf.Q8_0, bytes(34)))
    (tmp_path / "m.gguf").write_bytes(make_gguf.file_bytes(qwen.metadata(settings), raw))
    with pytest.raises(UnsupportedError, match=r"'blk\.0\.ssm_a' is Q8_0; its logarithm is taken, .* save it as F32"):
        open_checkpoint(tmp_path / "m.gguf")


def test_other_names_in_a_layer_are_refused(tmp_path: Path) -> None:
    settings = qwen.config(32)
    model = make_gguf_checkpoint.tensors("qwen35", settings, qwen.random_weights(settings))
    for name in ("blk.0.ssm_in.weight", "blk.00.ssm_out.weight", "blk.0.ssm_a.weight", "blk.0.ssm_dt.weight"):
        path = qwen.write(tmp_path / "m.gguf", settings, {**model, name: np.ones((4, 128), np.float32)})
        with pytest.raises(UnsupportedError, match=rf"'{name}' has no place in a qwen3_5_text"):
            open_checkpoint(path)


def test_experts_stay_refused(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(make_gguf.file_bytes(make_gguf.metadata("qwen35moe"), []))
    with pytest.raises(UnsupportedError, match="'qwen35moe' is not read: its layers are mixtures of experts"):
        open_checkpoint(tmp_path / "m.gguf")
