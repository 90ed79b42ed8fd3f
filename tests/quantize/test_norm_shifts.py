"""Test int4 on weights whose scales float16 does not hold: the same model, or int8 with a note, and never another one."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgedec.errors import UnsupportedError
from edgedec.quantize.exporters.gguf.export import export_gguf
from edgedec.quantize.exporters.onnx import export_onnx
from edgedec.quantize.exporters.safetensors import export_safetensors
from edgedec.quantize.jobs import fit
from edgedec.quantize.methods.int8 import quantize_int8
from edgedec.quantize.readers import open_checkpoint
from edgedec.runtime.protocols import Limits, Pass
from edgedec.runtime.targets import open_target
from edgedec.schemes import Int4Scheme, Int8Scheme, TernaryScheme
from tests.quantize.exporters.gguf.test_export import write_letters
from tests.quantize.test_pipeline import logits, run, tensors, write

ATTENTION = tuple(f"model.layers.0.self_attn.{part}_proj.weight" for part in "qkv")
MLP = tuple(f"model.layers.1.mlp.{part}_proj.weight" for part in ("gate", "up"))
INPUT, AFTER = "model.layers.0.input_layernorm.weight", "model.layers.1.post_attention_layernorm.weight"
OUTPUT, DOWN = "model.layers.0.self_attn.o_proj.weight", "model.layers.0.mlp.down_proj.weight"


def scaled(powers: dict[str, int], **changes: Any) -> dict[str, NDArray[Any]]:
    contents = tensors(3, **changes)
    for name, power in powers.items():
        contents[name] = np.ldexp(contents[name], power)
    return contents


@pytest.mark.thorough(sample=2)
@pytest.mark.parametrize("power", [-60, -24, -12, -1, 10, 30, 60])
def test_matrices_and_norms_scaled_against_each_other_are_the_same_model(tmp_path: Path, power: int) -> None:
    base = run(write(tmp_path / "m", scaled({})), tmp_path / "b", "int4")
    powers = dict.fromkeys(ATTENTION, power) | {INPUT: -power} | dict.fromkeys(MLP, -power) | {AFTER: power}
    other = run(write(tmp_path / "m2", scaled(powers)), tmp_path / "b2", "int4")
    assert other.schemes == base.schemes
    for name in (*ATTENTION, *MLP):
        assert np.array_equal(other.array(name, "codes"), base.array(name, "codes"))
    np.testing.assert_array_equal(logits(other), logits(base))


def test_a_norm_of_one_weight_is_a_factor_that_moves_back(tmp_path: Path) -> None:
    contents = tensors(3)
    contents[AFTER][:] = 1
    base = run(write(tmp_path / "m", contents), tmp_path / "b", "int4")
    other = contents | {name: contents[name] * np.float32(1e-7) for name in MLP}
    other[AFTER] = contents[AFTER] * np.float32(1e7)
    bundle = run(write(tmp_path / "m2", other), tmp_path / "b2", "int4")
    assert np.array_equal(bundle.weight(AFTER).dense(), contents[AFTER])
    for name in MLP:  # the products are rounded, so that a few scales may be neighbours
        assert (bundle.array(name, "codes") == base.array(name, "codes")).mean() > 0.99
        np.testing.assert_allclose(bundle.array(name, "scale"), base.array(name, "scale"), rtol=2**-10)
        assert (bundle.array(name, "scale") == base.array(name, "scale")).mean() > 0.95


def test_a_norm_of_another_type_than_float32_keeps_its_value(tmp_path: Path) -> None:
    contents = scaled(dict.fromkeys(ATTENTION, -30))
    contents[INPUT] = contents[INPUT].astype(np.float16)
    bundle = run(write(tmp_path / "m", contents), tmp_path / "b", "int4")
    shift = np.log2(bundle.weight(INPUT).dense() / contents[INPUT].astype(np.float32))
    assert len(set(shift.tolist())) == 1
    assert shift[0] < -20


def test_usual_weights_are_not_moved(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    contents = tensors(3)
    bundle = run(write(tmp_path / "m", contents), tmp_path / "b", "int4")
    assert np.array_equal(bundle.weight(INPUT).dense(), contents[INPUT])
    assert not caplog.records


@pytest.mark.parametrize("power", [-40, -13, 20])
def test_a_matrix_without_a_norm_before_it_becomes_int8_with_a_note(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, power: int
) -> None:
    contents = scaled({OUTPUT: power})
    with caplog.at_level(logging.WARNING):
        bundle = run(write(tmp_path / "m", contents), tmp_path / "b", "int4")
    assert f"tensor {OUTPUT} is int8, not int4: " in caplog.text
    codes, scale = quantize_int8(contents[OUTPUT])
    assert bundle.tensors[OUTPUT].scheme == Int8Scheme(rows=True)
    assert np.array_equal(bundle.array(OUTPUT, "codes"), codes)
    assert np.array_equal(bundle.array(OUTPUT, "scale"), scale)
    assert bundle.tensors[MLP[0]].scheme == Int4Scheme()


def test_one_matrix_of_a_norm_that_no_shift_suits_becomes_int8(tmp_path: Path) -> None:
    bundle = run(write(tmp_path / "m", scaled({ATTENTION[0]: 40})), tmp_path / "b", "int4")
    assert [bundle.tensors[name].scheme.kind for name in ATTENTION] == ["int8", "int4", "int4"]
    limits, rows = Limits(nodes=8, depth=0, positions=8), np.arange(8, dtype=np.int32)
    target = open_target(bundle, device="cpu", limits=limits)  # the three are one operation of its kernels
    (result,) = target.submit([(target.open(limits), Pass(ids=rows, positions=rows, logits=rows))]).result()
    np.testing.assert_allclose(result.logits, logits(bundle), atol=1e-2)  # keys and values are float16


def test_a_bundle_of_int4_and_int8_is_exported(tmp_path: Path) -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "head_dim": 16}
    contents = scaled({}, **sizes)
    contents[DOWN][0, :32] *= np.float32(2**-20)  # one group, so that the row has a usual scale as int8
    source = write(tmp_path / "m", contents, **sizes)
    write_letters(source / "tokenizer.json", 13)
    bundle = run(source, tmp_path / "b", "int4")
    int8 = {name for name, tensor in bundle.tensors.items() if tensor.scheme.kind == "int8"}
    assert int8 == {"model.embed_tokens.weight", DOWN}
    assert export_gguf(bundle, tmp_path / "m.gguf") == {"Q8_0": 2, "Q4_0": 13, "F32": 5}
    export_safetensors(bundle, tmp_path / "folder")
    assert export_onnx(bundle, tmp_path / "onnx") == {"int8": 2, "int4": 13, "float": 5}
    for read in (open_checkpoint(tmp_path / "m.gguf"), open_checkpoint(tmp_path / "folder")):
        np.testing.assert_allclose(read.load(DOWN), bundle.weight(DOWN).dense(), rtol=2**-10)


def test_a_norm_with_an_offset_stays_as_it_is(tmp_path: Path) -> None:
    gemma = {"model_type": "gemma", "hidden_activation": "gelu_pytorch_tanh"}
    contents = scaled(dict.fromkeys(ATTENTION, -30))
    bundle = run(write(tmp_path / "m", contents, **gemma), tmp_path / "b", "int4")
    assert np.array_equal(bundle.weight(INPUT).dense(), contents[INPUT])
    assert {bundle.tensors[name].scheme.kind for name in ATTENTION} == {"int8"}


@pytest.mark.parametrize("power", range(-60, 61, 20))
def test_a_fit_is_scaled_exactly_or_is_int8_or_is_refused_by_name(power: int) -> None:
    rng = np.random.default_rng(4)
    matrix = rng.standard_normal((5, 70)).astype(np.float32)
    moved = np.ldexp(matrix, power)
    for scheme in (
        Int4Scheme(),
        TernaryScheme(planes=2, group_size=32),
        TernaryScheme(planes=3, group_size=64, tied=True),
    ):
        usual, other = (fit(values, scheme, "tensor w") for values in (matrix, moved))
        same = np.ldexp(usual.scheme.open("w", matrix.shape, usual.parts).dense().astype(np.float64), power)
        found = other.scheme.open("w", matrix.shape, other.parts).dense()
        if other.scheme == scheme:
            assert np.array_equal(found, same.astype(np.float32))
        else:
            assert other.scheme == Int8Scheme(rows=True)
            assert other.note.startswith("tensor w is int8, not int4: ")
            assert np.abs(found - moved).max() <= 0.51 * np.abs(moved).max() / 127
    with pytest.raises(UnsupportedError, match=r"tensor w cannot be ternary: .*float32 keeps all bits.*--method int8"):
        fit(np.ldexp(matrix, -130), TernaryScheme(planes=2, group_size=32), "tensor w")
