"""Test files whose weights are stored rotated: they give the logits and the text of the unrotated model, or are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgedec import SamplingConfig, Session
from edgedec.bundle.bundle import Bundle
from edgedec.errors import BundleError, EdgedecError, UnsupportedError
from edgedec.graph.ops import Hadamard
from edgedec.quantize.pipeline import QuantizeOptions, quantize
from edgedec.quantize.readers import open_checkpoint
from edgedec.reference.float_profile.model import ReferenceModel
from edgedec.runtime.model_graph import bundle_graph
from edgedec.schemes import TernaryScheme
from tests.quantize.readers.support import make_gguf
from tests.quantize.readers.support import make_rotated_gguf as rotated
from tests.quantize.readers.support import make_ternary_gguf as maker
from tests.quantize.readers.support.make_rotated_gguf import EMBEDDING
from tests.quantize.readers.support.make_ternary_gguf import HIDDEN, INTER, Matrix

F32 = NDArray[np.float32]
BLOCK, HEAD = 128, "output.weight"
IDS = np.array([3, 5, 0, 12, 7, 7, 1, 9, 4, 2], np.int32)
TOLERANCE = 2e-5  # absolute error of logits up to about 5, from float32 sums in another basis


def names(model: maker.Model) -> list[str]:
    """Return the names of the matrices of products, the tied head among them."""
    matrices = [name for name, values in model.items() if isinstance(values, Matrix)]
    return [name for name in matrices if name != EMBEDDING or HEAD not in model]


def written(path: Path, model: maker.Model, kind: str, signs: dict[int, list[int]] | None, **changes: Any) -> Path:
    keys = rotated.rotation_keys(BLOCK, signs, names(model), [EMBEDDING], **changes)
    return maker.write_gguf(path, model, kind, **keys)


def bundle_of(source: Path, folder: Path, method: str = "float", **options: Any) -> Bundle:
    quantize(open_checkpoint(source), folder, QuantizeOptions(method=method, **options), vocab_limit=maker.VOCAB)
    return Bundle.open(folder)


def logits(bundle: Bundle) -> F32:
    model = ReferenceModel(bundle_graph(bundle, 32), bundle.weight)
    return model.forward(IDS, model.new_cache())[0]


@pytest.mark.thorough(sample=2)
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", ["PQ2_0", "PTQ1_0", "Q2_0", "F16"])
def test_rotated_ternary_weights_are_taken_without_loss(tmp_path: Path, kind: str, tied: bool) -> None:
    model, signs = maker.random_model(tied=tied), rotated.random_signs([INTER, HIDDEN])
    bundle = bundle_of(written(tmp_path / "m.gguf", model, kind, signs), tmp_path / "b", "ternary")
    for name in (*names(model), EMBEDDING):
        ours, values = maker.hf_name(name), model[name]
        assert bundle.tensors[ours].scheme == TernaryScheme(group_size=128, half_scales=True), ours
        np.testing.assert_array_equal(bundle.weight(ours).dense(), values.dense())
    for width, vector in signs.items():
        np.testing.assert_array_equal(bundle.weight(f"hadamard.signs.{width}").dense(), vector)
    assert json.loads((tmp_path / "b/manifest.json").read_text())["requires"] == [
        "hadamard",
        "half_scales",
        "ternary_embedding",
    ]
    rotations = [op for op in bundle_graph(bundle).operations if isinstance(op, Hadamard)]
    assert [op.inverse for op in rotations] == [True] + [False] * 5  # q|k|v, o, gate|up, down and the head


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("tied", [True, False])
def test_the_logits_are_those_of_the_model_that_is_not_rotated(tmp_path: Path, tied: bool, signed: bool) -> None:
    """Without the rotation, the same weights give unrelated logits."""
    model = maker.random_model(tied=tied)
    signs = rotated.random_signs([HIDDEN, INTER]) if signed else None
    plain: dict[str, Any] = {
        name: rotated.unfolded(values.dense(), BLOCK, signs[values.codes.shape[1]] if signs else None)
        if isinstance(values, Matrix)
        else values
        for name, values in model.items()
    }
    expected = logits(bundle_of(maker.write_gguf(tmp_path / "plain.gguf", plain, "F32"), tmp_path / "plain"))
    source = written(tmp_path / "m.gguf", model, "PQ2_0", signs)
    floats = logits(bundle_of(source, tmp_path / "floats"))
    assert np.abs(expected).max() > 3
    np.testing.assert_allclose(floats, expected, atol=TOLERANCE)
    ternary = logits(bundle_of(source, tmp_path / "ternary", "ternary"))  # activations of 8 bits
    assert np.corrcoef(ternary.ravel(), expected.ravel())[0, 1] > 0.999
    skipped = logits(bundle_of(maker.write_gguf(tmp_path / "n.gguf", model, "PQ2_0"), tmp_path / "skipped"))
    assert abs(np.corrcoef(skipped.ravel(), expected.ravel())[0, 1]) < 0.5


def test_weights_that_are_not_named_are_not_rotated(tmp_path: Path) -> None:
    """Each of q, k and v may be rotated or not; the two that are share the rotation."""
    model, signs = maker.random_model(tied=False), rotated.random_signs([HIDDEN])
    some = ["blk.0.attn_q.weight", "blk.0.attn_v.weight"]
    plain: dict[str, Any] = dict(model)
    for name in some:
        plain[name] = rotated.unfolded(model[name].dense(), BLOCK, signs[HIDDEN])
    expected = logits(bundle_of(maker.write_gguf(tmp_path / "plain.gguf", plain, "F32"), tmp_path / "plain"))
    keys = rotated.rotation_keys(BLOCK, signs, some)
    bundle = bundle_of(maker.write_gguf(tmp_path / "m.gguf", model, "PQ2_0", **keys), tmp_path / "b")
    assert [op.inputs for op in bundle_graph(bundle).operations if isinstance(op, Hadamard)] == [
        ("layers.0.attn_norm",)
    ]
    np.testing.assert_allclose(logits(bundle), expected, atol=TOLERANCE)


@pytest.mark.thorough
def test_the_fourth_code_and_other_methods_keep_the_rotation(tmp_path: Path) -> None:
    model, signs = maker.random_model(), rotated.random_signs([HIDDEN, INTER])
    model["blk.0.ffn_up.weight"].codes[3, 5:9] = 2
    source = written(tmp_path / "m.gguf", model, "PQ2_0", signs)
    expected = logits(bundle_of(source, tmp_path / "float"))
    for method, options in (("ternary", {"planes": 2}), ("int8", {})):
        actual = logits(bundle_of(source, tmp_path / method, method, **options))
        assert np.corrcoef(actual.ravel(), expected.ravel())[0, 1] > 0.995


@pytest.mark.thorough
def test_fitted_planes_are_calibrated_with_the_rotation(tmp_path: Path) -> None:
    model, signs = maker.random_model(), rotated.random_signs([HIDDEN, INTER])
    source = written(tmp_path / "m.gguf", model, "F32", signs)
    expected = logits(bundle_of(source, tmp_path / "float"))
    ids = np.random.default_rng(0).integers(0, maker.VOCAB, (4, 16), np.int32)
    options = QuantizeOptions(method="ternary", planes=2, group_size=64)
    quantize(open_checkpoint(source), tmp_path / "b", options, vocab_limit=maker.VOCAB, calibration=ids)
    actual = logits(Bundle.open(tmp_path / "b"))
    assert np.corrcoef(actual.ravel(), expected.ravel())[0, 1] > 0.99


# --- a trained model --------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize(("block", "with_down"), [(64, False), (4, True)])
def test_a_trained_model_that_is_folded_writes_the_same_text(
    tmp_path: Path, shared_data: Path, block: int, with_down: bool
) -> None:
    """Its matrices are folded here in float, the embedding among them; 172 columns of ``down`` have blocks of 4 alone."""
    tokenizer = shared_data / "tokenizers" / "tok512.bin"
    checkpoint = open_checkpoint(shared_data / "models" / "stories260K" / "stories260K.bin", tokenizer)
    config = checkpoint.config
    widths = [config["hidden_size"], *([config["intermediate_size"]] if with_down else [])]
    rotated.write_folded(tmp_path / "m.gguf", checkpoint, block, widths)
    texts = []
    for name, source in (("plain", checkpoint), ("folded", open_checkpoint(tmp_path / "m.gguf", tokenizer))):
        quantize(source, tmp_path / name, QuantizeOptions(method="float"), vocab_limit=config["vocab_size"])
        with Session.open(tmp_path / name, ctx_size=160) as session:
            texts.append(session.generate("One day", n_predict=100, sampling=SamplingConfig(temperature=0)).text)
    assert len(texts[0]) > 150
    assert texts[0] == texts[1]


# --- attacks ----------------------------------------------------------------------------------------------------------

_WEIGHTS = ["blk.0.ffn_up.weight", "blk.0.ffn_down.weight", EMBEDDING]
_SIGNS = rotated.random_signs([HIDDEN, INTER])


@pytest.mark.thorough(sample=2)
@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"block_size": 100}, BundleError, "block_size must be a power of two from 2 to 65536, not 100"),
        ({"block_size": 1}, BundleError, "block_size must be a power of two"),
        ({"block_size": None}, BundleError, "block_size must be a power of two from 2 to 65536, not None"),
        ({"block_size": 1 << 17}, BundleError, "block_size must be a power of two from 2 to 65536, not 131072"),
        (
            {"block_size": 256},
            BundleError,
            r"names 'blk\.0\.ffn_down\.weight' of shape \(256, 384\), whose rows are no",
        ),
        ({"version": 2}, UnsupportedError, r"version 2 is not known; known: 1"),
        ({"version": None}, UnsupportedError, r"version None is not known; known: 1"),
        ({"version": [1, 1]}, UnsupportedError, r"version .* is not known; known: 1"),
        ({"block_size": [128, 128]}, BundleError, "block_size must be a power of two"),
        ({"sign_mode": [1, 2]}, BundleError, "sign_mode must be one of identity, explicit"),
        (
            {"transform": "walsh"},
            BundleError,
            "transform must be one of normalized-sylvester-walsh-hadamard, not 'walsh'",
        ),
        ({"transform": None}, BundleError, "transform must be one of normalized-sylvester-walsh-hadamard, not None"),
        ({"axis": 3}, BundleError, "axis must be one of input-last-dimension, not 3"),
        ({"axis": "output-first-dimension"}, BundleError, "axis must be one of input-last-dimension"),
        ({"sign_mode": "random"}, BundleError, "sign_mode must be one of identity, explicit, not 'random'"),
        ({"sign_mode": None}, BundleError, "sign_mode must be one of identity, explicit, not None"),
        ({"sign_mode": "identity"}, BundleError, "sign_widths says signs, but .*sign_mode is identity"),
        ({"weight_names": None}, BundleError, "weight_names must be a list of names of tensors, not None"),
        (
            {"weight_names": ["blk.9.ffn_up.weight"]},
            BundleError,
            r"weight_names names 'blk\.9.* the file does not have",
        ),
        ({"weight_names": ["output_norm.weight"]}, BundleError, "of shape .256,., whose rows"),
        ({"weight_names": ["blk.0.ffn_up.weight"] * 2}, BundleError, "weight_names names a tensor twice"),
        ({"sign_widths": [256]}, BundleError, "sign_values has 640 values, but .*sign_widths says 256"),
        ({"sign_widths": [256, 256, 128]}, BundleError, "sign_widths must be different multiples of the block of 128"),
        ({"sign_widths": [512, 128]}, BundleError, "sign_widths has no signs for the 256 columns"),
        ({"sign_widths": None}, BundleError, "sign_widths must be an array of integers, not None"),
        ({"sign_values": [1, 0] * 320}, BundleError, "sign_values must be 1 and -1"),
        ({"sign_values": None}, BundleError, "sign_values must be an array of integers, not None"),
        ({"sign_values": [1.0] * 640}, BundleError, "sign_values must be an array of integers"),
        ({"perm_rep": 3}, UnsupportedError, r"prism\.hadamard\.perm_rep is not known"),
        (
            {"gdn_v_grouped": True},
            UnsupportedError,
            "gdn_v_grouped permutes the heads of gated delta nets, which 'qwen3' does not",
        ),
        ({"gdn_v_grouped": 1}, BundleError, "gdn_v_grouped must be a truth value, not 1"),
        ({"inverse_weight_names": None}, BundleError, r"is the embedding and the head.*inverse_weight_names does not"),
        (
            {"weight_names": ["blk.0.ffn_up.weight"]},
            BundleError,
            r"'token_embd\.weight' is the embedding and the head, and is stored once, but .*\.weight_names does not name",
        ),
        (
            {"inverse_weight_names": [EMBEDDING, "blk.0.ffn_up.weight"]},
            BundleError,
            r"inverse_weight_names names 'blk\.0\.ffn_up\.weight', but only rows of 'token_embd\.weight' are looked up",
        ),
    ],
)
def test_metadata_that_do_not_fit_the_tensors_are_refused(
    tmp_path: Path, changes: dict[str, Any], error: type[EdgedecError], message: str
) -> None:
    keys = rotated.rotation_keys(BLOCK, _SIGNS, _WEIGHTS, [EMBEDDING], **changes)
    path = maker.write_gguf(tmp_path / "m.gguf", maker.random_model(), "PQ2_0", **keys)
    with pytest.raises(error, match=message):
        open_checkpoint(path)


def test_an_embedding_beside_a_head_is_no_weight_of_a_product(tmp_path: Path) -> None:
    keys = rotated.rotation_keys(BLOCK, _SIGNS, _WEIGHTS, [EMBEDDING])
    path = maker.write_gguf(tmp_path / "m.gguf", maker.random_model(tied=False), "PQ2_0", **keys)
    with pytest.raises(BundleError, match=r"names 'token_embd\.weight', which no product reads"):
        open_checkpoint(path)


def test_no_named_weight_is_refused(tmp_path: Path) -> None:
    empty = make_gguf.Raw(make_gguf.ARRAY, (make_gguf.STRING).to_bytes(4, "little") + bytes(8))
    keys = rotated.rotation_keys(BLOCK, _SIGNS, [], weight_names=empty)
    path = maker.write_gguf(tmp_path / "m.gguf", maker.random_model(), "PQ2_0", **keys)
    with pytest.raises(BundleError, match="weight_names is empty, but the other keys describe a rotation"):
        open_checkpoint(path)


def test_signs_of_widths_that_no_weight_has_are_left_out(tmp_path: Path) -> None:
    signs = {128: [1] * 128, **_SIGNS}
    keys = rotated.rotation_keys(BLOCK, signs, _WEIGHTS, [EMBEDDING], gdn_v_grouped=False)
    path = maker.write_gguf(tmp_path / "m.gguf", maker.random_model(), "PQ2_0", **keys)
    bundle = bundle_of(path, tmp_path / "b", "ternary")
    assert [name for name in bundle.tensors if "signs" in name] == ["hadamard.signs.256", "hadamard.signs.384"]
    for width, vector in _SIGNS.items():
        np.testing.assert_array_equal(bundle.weight(f"hadamard.signs.{width}").dense(), vector)


def test_a_layout_that_is_determined_from_weights_is_refused(tmp_path: Path) -> None:
    """Zeros of rotated weights say nothing about the layout of I2_S."""
    tensors = [
        make_gguf.RawTensor(name.encode(), (HIDDEN, INTER), 36, bytes(HIDDEN * INTER // 4 + 32))
        if name == "blk.0.ffn_gate.weight"
        else maker.tensor(name, values, "F16")
        for name, values in maker.random_model().items()
    ]
    keys = rotated.rotation_keys(BLOCK, _SIGNS, _WEIGHTS, [EMBEDDING])
    (tmp_path / "m.gguf").write_bytes(make_gguf.file_bytes(maker.metadata(**keys), tensors))
    with pytest.raises(UnsupportedError, match=r"rotated weights and tensors of the type I2_S.*save them as TQ2_0"):
        open_checkpoint(tmp_path / "m.gguf")
