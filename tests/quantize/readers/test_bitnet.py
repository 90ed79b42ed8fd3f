"""Read BitNet folders of other writers: packed, unpacked or quantized on load, in both conventions of the scale."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from edgedec.quantize.methods.native import find_ternary
from edgedec.quantize.pipeline import checkpoint_graph
from edgedec.quantize.readers import TensorInfo, open_checkpoint
from edgedec.quantize.readers.checkpoint import Makers, TernaryMaker
from tests.quantize.readers.support.make_checkpoints import write_hf
from tests.quantize.support.make_bitnet_models import Model, model, tensors, write

OFFLINE: dict[str, Any] = {"linear_class": "autobitlinear", "quantization_mode": "offline"}
ONLINE: dict[str, Any] = {"linear_class": "autobitlinear", "quantization_mode": "online"}
GATE = "model.layers.0.mlp.gate_proj.weight"


def same_weights(folder: Path, original: Model) -> None:
    """Check that every tensor equals the model's, bit for bit, and that none is left over."""
    checkpoint = open_checkpoint(folder)
    assert set(checkpoint.tensors) == {*original.ternary, *original.dense}
    for name in original.ternary:
        loaded = checkpoint.load(name)
        assert loaded.dtype == np.float32
        assert loaded.flags.c_contiguous
        np.testing.assert_array_equal(loaded, original.value(name))
        info = TensorInfo(shape=loaded.shape, dtype="float32")
        assert checkpoint.tensors[name] == info
    for name, values in original.dense.items():
        loaded = checkpoint.load(name)
        assert loaded.dtype == values.dtype
        np.testing.assert_array_equal(loaded, values)
    checkpoint_graph(checkpoint)  # the family requires exactly these


# --- packed -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [64, 65, 66, 67, 1, 2, 3])
@pytest.mark.parametrize("family", ["llama", "bitnet"])
def test_packed_weights_are_multiplied_by_their_scale(tmp_path: Path, family: str, width: int) -> None:
    """Check every number of rows modulo 4, some of which transformers pads."""
    original = model(family, intermediate_size=width)
    same_weights(write(tmp_path, original, **OFFLINE), original)


@pytest.mark.parametrize("quantization", [{}, {"linear_class": "bitlinear"}, {"quantization_mode": "online"}])
def test_bitlinear_divides_by_its_scale(tmp_path: Path, quantization: dict[str, Any]) -> None:
    """Check the default class, which ignores the mode."""
    original = model()
    write(tmp_path, original, tensors(original, divides=True), **quantization)
    checkpoint = open_checkpoint(tmp_path)
    for name, weight in original.ternary.items():
        scale = np.float32(1) / (np.float32(1) / np.float32(weight.scales))
        np.testing.assert_array_equal(checkpoint.load(name), weight.trits * scale)
        assert find_ternary(checkpoint.load(name))[1] == scale


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("shape", [(), (1,)])
def test_scales_of_other_types_are_read(tmp_path: Path, dtype: type, shape: tuple[int, ...]) -> None:
    original = model()
    contents = tensors(original) | {GATE + "_scale": np.full(shape, 1.2345, dtype)}
    checkpoint = open_checkpoint(write(tmp_path, original, contents, **OFFLINE))
    scale = np.float32(np.array(1.2345).astype(dtype))
    np.testing.assert_array_equal(checkpoint.load(GATE), original.ternary[GATE].trits * scale)


@pytest.mark.parametrize("group_size", [32, 64, 128])
def test_scales_per_group_are_read(tmp_path: Path, group_size: int) -> None:
    original = model(group_size=group_size, hidden_size=80, intermediate_size=150)
    same_weights(write(tmp_path, original, group_size=group_size, **OFFLINE), original)


def test_one_tensor_may_have_one_scale_among_groups(tmp_path: Path) -> None:
    original = model(group_size=32)
    contents = tensors(original) | {GATE + "_scale": np.array([0.5], np.float32)}
    checkpoint = open_checkpoint(write(tmp_path, original, contents, group_size=32, **OFFLINE))
    np.testing.assert_array_equal(checkpoint.load(GATE), original.ternary[GATE].trits * np.float32(0.5))
    assert isinstance(checkpoint.read_tensor, Makers)
    matrix = checkpoint.read_tensor.by_name[GATE]
    assert isinstance(matrix, TernaryMaker)
    assert matrix.trits().group_size == 0


def test_unpacked_weights_are_read(tmp_path: Path) -> None:
    """Read what ``save_pretrained`` of a loaded model writes."""
    original = model()
    same_weights(write(tmp_path, original, tensors(original, packed=False), **OFFLINE), original)


@pytest.mark.parametrize("divides", [False, True])
def test_biases_are_scaled_by_autobitlinear_only(tmp_path: Path, divides: bool) -> None:
    original = model(mlp_bias=True)
    name, linear_class = GATE.replace("weight", "bias"), "bitlinear" if divides else "autobitlinear"
    write(tmp_path, original, tensors(original, divides=divides), linear_class=linear_class)
    scale = np.float32(1) if divides else np.float32(original.ternary[GATE].scales)
    np.testing.assert_array_equal(open_checkpoint(tmp_path).load(name), original.dense[name] * scale)


def test_a_tied_embedding_of_any_name_stays_a_float(tmp_path: Path) -> None:
    sizes = {"num_heads": 10, "head_dim": 8, "state_size": 5, "n_groups": 1, "expand": 2, "hidden_size": 40}
    original = model("mamba2", tie_word_embeddings=True, **sizes)
    assert "backbone.embeddings.weight" in original.dense
    assert "backbone.layers.0.mixer.in_proj.weight" in original.ternary
    same_weights(write(tmp_path, original, **OFFLINE), original)


def test_a_weight_and_its_scale_may_be_in_two_shards(tmp_path: Path) -> None:
    original = model()
    quantization = {"quant_method": "bitnet", **OFFLINE}
    same_weights(
        write_hf(tmp_path, tensors(original), shards=3, **original.config, quantization_config=quantization), original
    )


def test_a_tensor_of_zeros_is_read(tmp_path: Path) -> None:
    original = model()
    contents = tensors(original) | {GATE: np.full((18, 40), 0b01010101, np.uint8)}
    contents[GATE][-2:] &= 0b00111111  # 70 rows: the last two are padding
    loaded = open_checkpoint(write(tmp_path, original, contents, **OFFLINE)).load(GATE)
    assert loaded.shape == (70, 40)
    assert not loaded.any()


@pytest.mark.thorough
def test_peak_memory_is_one_tensor(tmp_path: Path) -> None:
    original = model(intermediate_size=20000, num_hidden_layers=1)
    checkpoint = open_checkpoint(write(tmp_path, original, **OFFLINE))
    tracemalloc.start()
    checkpoint.load(GATE)  # 3.2 MB
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 20000 * 40 * 4 <= peak < 1.6 * 20000 * 40 * 4


def test_the_configuration_has_no_quantization_any_more(tmp_path: Path) -> None:
    """Check this because the loaded tensors are plain, so that nothing must unpack them again."""
    checkpoint = open_checkpoint(write(tmp_path, model(), **OFFLINE))
    assert "quantization_config" not in checkpoint.config


# --- quantized on load ------------------------------------------------------------------------------------------------


def float_model(dtype: type, **config: Any) -> tuple[Model, dict[str, NDArray[Any]]]:
    original = model(**config)
    rng = np.random.default_rng(1)
    return original, original.dense | {
        name: (rng.standard_normal(weight.trits.shape) / 7).astype(dtype) for name, weight in original.ternary.items()
    }


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_online_uses_the_mean_magnitude(tmp_path: Path, dtype: type) -> None:
    original, contents = float_model(dtype)
    checkpoint = open_checkpoint(write(tmp_path, original, contents, **ONLINE))
    for name in original.ternary:
        weight = contents[name].astype(np.float32)
        scale = np.float32(1) / np.abs(weight).mean(dtype=np.float64).astype(np.float32)
        expected = (np.rint(weight * scale).clip(-1, 1) / scale).astype(dtype).astype(np.float32)
        np.testing.assert_array_equal(checkpoint.load(name), expected)
        assert np.unique(np.abs(expected)).size == 2
    np.testing.assert_array_equal(checkpoint.load("model.embed_tokens.weight"), contents["model.embed_tokens.weight"])


def test_online_rounds_half_to_even_with_a_least_mean(tmp_path: Path) -> None:
    original, contents = float_model(np.float32)
    row = np.tile(np.array([0.5, 1.5, -0.5, -1.5], np.float32), 10)
    contents[GATE] = np.tile(row, (70, 1))
    up = GATE.replace("gate", "up")
    contents[up] = np.full((70, 40), 4e-6, np.float32)
    contents[up][:, :4] = 8e-6
    checkpoint = open_checkpoint(write(tmp_path, original, contents, **ONLINE))
    np.testing.assert_array_equal(checkpoint.load(GATE)[3, :4], [0, 1, 0, -1])
    np.testing.assert_allclose(checkpoint.load(up)[5, :5], [1e-5] * 4 + [0], rtol=1e-6)


@pytest.mark.parametrize(
    ("modules", "expected"),
    [
        (None, []),
        (["lm_head"], []),
        (["lm_head", "gate_proj"], [GATE]),  # the end of a name
        (["lm_head", "model.layers.0"], [GATE]),  # the beginning, up to a dot
        (["lm_head", "model.layers.0."], [GATE]),
        (["lm_head", "model.layers"], [GATE]),
        (["lm_head", "model.lay"], []),
        (["lm_head", "mlp"], []),
    ],
)
def test_listed_modules_stay_float(tmp_path: Path, modules: list[str] | None, expected: list[str]) -> None:
    original, contents = float_model(np.float32, tie_word_embeddings=False)
    checkpoint = open_checkpoint(write(tmp_path, original, contents, modules_to_not_convert=modules, **ONLINE))
    for name in (GATE, "lm_head.weight"):
        is_float = np.array_equal(checkpoint.load(name), contents[name])
        assert is_float == (name in [*expected, "lm_head.weight"])


def test_an_untied_head_may_be_ternary_too(tmp_path: Path) -> None:
    original, contents = float_model(np.float32, tie_word_embeddings=False)
    checkpoint = open_checkpoint(write(tmp_path, original, contents, modules_to_not_convert=[], **ONLINE))
    assert np.unique(np.abs(checkpoint.load("lm_head.weight"))).size == 2
