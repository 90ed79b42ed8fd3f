"""BitNet folders as others write them: packed, unpacked or quantized on load, in both conventions of the scale."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from edgedec.quantize.methods.native import native_ternary
from edgedec.quantize.pipeline import checkpoint_graph
from edgedec.quantize.readers import TensorInfo, open_checkpoint
from tests.quantize.readers.support.make_checkpoints import write_hf
from tests.quantize.support.make_bitnet_models import Model, model, tensors, write

OFFLINE: dict[str, Any] = {"linear_class": "autobitlinear", "quantization_mode": "offline"}
ONLINE: dict[str, Any] = {"linear_class": "autobitlinear", "quantization_mode": "online"}
GATE = "model.layers.0.mlp.gate_proj.weight"


def same_weights(folder: Path, made: Model) -> None:
    """Every tensor is what the model says, bit for bit, and none is left over."""
    checkpoint = open_checkpoint(folder)
    assert set(checkpoint.tensors) == {*made.ternary, *made.dense}
    for name in made.ternary:
        loaded = checkpoint.load(name)
        assert loaded.dtype == np.float32
        assert loaded.flags.c_contiguous
        np.testing.assert_array_equal(loaded, made.value(name))
        info = TensorInfo(shape=loaded.shape, dtype="float32", group_size=made.group_size)
        assert checkpoint.tensors[name] == info
    for name, values in made.dense.items():
        loaded = checkpoint.load(name)
        assert loaded.dtype == values.dtype
        np.testing.assert_array_equal(loaded, values)
    checkpoint_graph(checkpoint)  # the family wants exactly these


# --- packed -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [64, 65, 66, 67, 1, 2, 3])
@pytest.mark.parametrize("family", ["llama", "bitnet"])
def test_packed_weights_times_their_scale(tmp_path: Path, family: str, width: int) -> None:
    """Of every number of rows modulo 4: those that transformers pads, too."""
    made = model(family, intermediate_size=width)
    same_weights(write(tmp_path, made, **OFFLINE), made)


@pytest.mark.parametrize("quantization", [{}, {"linear_class": "bitlinear"}, {"quantization_mode": "online"}])
def test_bitlinear_divides(tmp_path: Path, quantization: dict[str, Any]) -> None:
    """It is the default class, and pays no heed to the mode."""
    made = model()
    write(tmp_path, made, tensors(made, divides=True), **quantization)
    checkpoint = open_checkpoint(tmp_path)
    for name, weight in made.ternary.items():
        scale = np.float32(1) / (np.float32(1) / np.float32(weight.scales))
        np.testing.assert_array_equal(checkpoint.load(name), weight.trits * scale)
        assert native_ternary(checkpoint.load(name))[1] == scale


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("shape", [(), (1,)])
def test_scales_of_other_types(tmp_path: Path, dtype: type, shape: tuple[int, ...]) -> None:
    made = model()
    contents = tensors(made) | {GATE + "_scale": np.full(shape, 1.2345, dtype)}
    checkpoint = open_checkpoint(write(tmp_path, made, contents, **OFFLINE))
    scale = np.float32(np.array(1.2345).astype(dtype))
    np.testing.assert_array_equal(checkpoint.load(GATE), made.ternary[GATE].trits * scale)


@pytest.mark.parametrize("group_size", [32, 64, 128])
def test_scales_per_group(tmp_path: Path, group_size: int) -> None:
    made = model(group_size=group_size, hidden_size=80, intermediate_size=150)
    same_weights(write(tmp_path, made, group_size=group_size, **OFFLINE), made)


def test_one_tensor_may_have_one_scale_among_groups(tmp_path: Path) -> None:
    made = model(group_size=32)
    contents = tensors(made) | {GATE + "_scale": np.array([0.5], np.float32)}
    checkpoint = open_checkpoint(write(tmp_path, made, contents, group_size=32, **OFFLINE))
    np.testing.assert_array_equal(checkpoint.load(GATE), made.ternary[GATE].trits * np.float32(0.5))
    assert checkpoint.tensors[GATE].group_size == 0


def test_weights_that_are_stored_unpacked(tmp_path: Path) -> None:
    """What ``save_pretrained`` of a loaded model writes."""
    made = model()
    same_weights(write(tmp_path, made, tensors(made, packed=False), **OFFLINE), made)


@pytest.mark.parametrize("divides", [False, True])
def test_biases(tmp_path: Path, divides: bool) -> None:
    """autobitlinear scales them with all else, bitlinear does not."""
    made = model(mlp_bias=True)
    name, linear_class = GATE.replace("weight", "bias"), "bitlinear" if divides else "autobitlinear"
    write(tmp_path, made, tensors(made, divides=divides), linear_class=linear_class)
    scale = np.float32(1) if divides else np.float32(made.ternary[GATE].scales)
    np.testing.assert_array_equal(open_checkpoint(tmp_path).load(name), made.dense[name] * scale)


def test_shards(tmp_path: Path) -> None:
    """A weight and its scale may lie in two files."""
    made = model()
    quantization = {"quant_method": "bitnet", **OFFLINE}
    same_weights(write_hf(tmp_path, tensors(made), shards=3, **made.config, quantization_config=quantization), made)


def test_a_tensor_of_zeros(tmp_path: Path) -> None:
    made = model()
    contents = tensors(made) | {GATE: np.full((18, 40), 0b01010101, np.uint8)}
    contents[GATE][-2:] &= 0b00111111  # 70 rows: the last two are padding
    loaded = open_checkpoint(write(tmp_path, made, contents, **OFFLINE)).load(GATE)
    assert loaded.shape == (70, 40)
    assert not loaded.any()


def test_peak_memory_is_one_tensor(tmp_path: Path) -> None:
    made = model(intermediate_size=20000, num_hidden_layers=1)
    checkpoint = open_checkpoint(write(tmp_path, made, **OFFLINE))
    tracemalloc.start()
    checkpoint.load(GATE)  # 3.2 MB
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 20000 * 40 * 4 <= peak < 1.6 * 20000 * 40 * 4


def test_the_configuration_says_nothing_of_it_any_more(tmp_path: Path) -> None:
    """What is loaded is plain, so whoever reads the configuration must not unpack it again."""
    checkpoint = open_checkpoint(write(tmp_path, model(), **OFFLINE))
    assert "quantization_config" not in checkpoint.config


# --- quantized on load ------------------------------------------------------------------------------------------------


def float_model(dtype: type, **config: Any) -> tuple[Model, dict[str, NDArray[Any]]]:
    made = model(**config)
    rng = np.random.default_rng(1)
    return made, made.dense | {
        name: (rng.standard_normal(weight.trits.shape) / 7).astype(dtype) for name, weight in made.ternary.items()
    }


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_online_takes_the_mean_magnitude(tmp_path: Path, dtype: type) -> None:
    made, contents = float_model(dtype)
    checkpoint = open_checkpoint(write(tmp_path, made, contents, **ONLINE))
    for name in made.ternary:
        weight = contents[name].astype(np.float32)
        scale = np.float32(1) / np.abs(weight).mean(dtype=np.float64).astype(np.float32)
        expected = (np.rint(weight * scale).clip(-1, 1) / scale).astype(dtype).astype(np.float32)
        np.testing.assert_array_equal(checkpoint.load(name), expected)
        assert np.unique(np.abs(expected)).size == 2
    np.testing.assert_array_equal(checkpoint.load("model.embed_tokens.weight"), contents["model.embed_tokens.weight"])


def test_online_rounds_half_to_even_and_has_a_least_mean(tmp_path: Path) -> None:
    made, contents = float_model(np.float32)
    row = np.tile(np.array([0.5, 1.5, -0.5, -1.5], np.float32), 10)
    contents[GATE] = np.tile(row, (70, 1))
    up = GATE.replace("gate", "up")
    contents[up] = np.full((70, 40), 4e-6, np.float32)
    contents[up][:, :4] = 8e-6
    checkpoint = open_checkpoint(write(tmp_path, made, contents, **ONLINE))
    np.testing.assert_array_equal(checkpoint.load(GATE)[3, :4], [0, 1, 0, -1])
    np.testing.assert_allclose(checkpoint.load(up)[5, :5], [1e-5] * 4 + [0], rtol=1e-6)


@pytest.mark.parametrize(
    ("kept", "left"),
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
def test_modules_that_stay_float(tmp_path: Path, kept: list[str] | None, left: list[str]) -> None:
    made, contents = float_model(np.float32, tie_word_embeddings=False)
    checkpoint = open_checkpoint(write(tmp_path, made, contents, modules_to_not_convert=kept, **ONLINE))
    for name in (GATE, "lm_head.weight"):
        is_float = np.array_equal(checkpoint.load(name), contents[name])
        assert is_float == (name in [*left, "lm_head.weight"])


def test_an_untied_head_may_be_ternary_too(tmp_path: Path) -> None:
    made, contents = float_model(np.float32, tie_word_embeddings=False)
    checkpoint = open_checkpoint(write(tmp_path, made, contents, modules_to_not_convert=[], **ONLINE))
    assert np.unique(np.abs(checkpoint.load("lm_head.weight"))).size == 2
