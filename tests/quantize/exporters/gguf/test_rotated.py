"""Export bundles whose weights are stored rotated: GGUF keeps the rotation, and other formats refuse it by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec.bundle.bundle import Bundle
from edgedec.errors import UnsupportedError
from edgedec.quantize.exporters.gguf.export import export_gguf
from edgedec.quantize.exporters.onnx import export_onnx
from edgedec.quantize.exporters.safetensors import export_safetensors
from edgedec.quantize.pipeline import QuantizeOptions, quantize
from edgedec.quantize.readers import open_checkpoint
from edgedec.quantize.readers.gguf.header import read_header
from edgedec.quantize.synthetic.padded_bundle import pad_bundle
from tests.quantize.exporters.gguf.test_export import write_letters
from tests.quantize.readers.support import make_rotated_gguf as rotated
from tests.quantize.readers.support import make_ternary_gguf as maker
from tests.quantize.readers.support.make_ternary_gguf import HIDDEN, INTER, Matrix
from tests.support.make_rotated import rotated_config
from tests.support.make_tiny import write_bundle


def bundle_of(source: Path, folder: Path) -> Bundle:
    letters = write_letters(folder.parent / "tokenizer.json", maker.VOCAB)
    quantize(open_checkpoint(source, letters), folder, QuantizeOptions(method="ternary"), vocab_limit=maker.VOCAB)
    return Bundle.open(folder)


@pytest.mark.thorough(sample=2)
@pytest.mark.parametrize("trit_type", ["Q2_0", "auto", "F16"])
@pytest.mark.parametrize(("tied", "signed"), [(True, True), (False, True), (True, False)])
def test_files_that_are_read_again_give_the_same_bundle(
    tmp_path: Path, tied: bool, signed: bool, trit_type: str
) -> None:
    model = maker.random_model(tied=tied)
    names = [name for name, values in model.items() if isinstance(values, Matrix)]
    keys: dict[str, Any] = rotated.rotation_keys(
        128,
        rotated.random_signs([INTER, HIDDEN]) if signed else None,
        names if tied else names[1:-1],  # without the embedding, and without one matrix
        ["token_embd.weight"],
    )
    bundle = bundle_of(maker.write_gguf(tmp_path / "m.gguf", model, "PQ2_0", **keys), tmp_path / "b")
    export_gguf(bundle, tmp_path / "e.gguf", trit_type=trit_type)
    assert not any("signs" in name for name in read_header(tmp_path / "e.gguf").tensors)
    again = bundle_of(tmp_path / "e.gguf", tmp_path / "b2")
    assert again.config["hadamard"] == bundle.config["hadamard"]
    assert len(again.config["hadamard"]["weights"]) == 8 - (not tied)
    assert (again.path / "weights.bin").read_bytes() == (bundle.path / "weights.bin").read_bytes()


def test_an_architecture_without_rotations_is_refused(tmp_path: Path) -> None:
    changes = rotated_config() | {"model_type": "qwen2", "attention_bias": True}
    write_bundle(tmp_path / "b", "native", changes=changes)
    message = (
        r"stored rotated \(embed\.hadamard\), and PrismML's llama\.cpp has rotations only in llama and qwen3, not in"
    )
    with pytest.raises(UnsupportedError, match=message):
        export_gguf(Bundle.open(tmp_path / "b"), tmp_path / "e.gguf")


def test_other_formats_refuse_rotations_by_name(tmp_path: Path) -> None:
    write_bundle(tmp_path / "b", "int8", changes=rotated_config(inverse_weights=[]))
    bundle = Bundle.open(tmp_path / "b")
    with pytest.raises(UnsupportedError, match=r"rotated \(layers\.0\.attn_norm\.hadamard\).*export it as gguf"):
        export_safetensors(bundle, tmp_path / "folder")
    with pytest.raises(UnsupportedError, match=r"hadamard layers\.0\.attn_norm\.hadamard cannot be exported as ONNX"):
        export_onnx(bundle, tmp_path / "onnx")
    with pytest.raises(UnsupportedError, match=r"cannot be padded: hadamard layers\.0\.attn_norm\.hadamard"):
        pad_bundle(
            bundle,
            tmp_path / "padded",
            hidden_size=128,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=8,
            vocab_size=64,
            seed=0,
        )
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_the_signs_are_exact(tmp_path: Path) -> None:
    signs = rotated.random_signs([HIDDEN])
    keys = rotated.rotation_keys(128, signs, ["blk.0.ffn_up.weight"])
    bundle = bundle_of(maker.write_gguf(tmp_path / "m.gguf", maker.random_model(), "F16", **keys), tmp_path / "b")
    export_gguf(bundle, tmp_path / "e.gguf")
    written = read_header(tmp_path / "e.gguf").metadata
    np.testing.assert_array_equal(written["prism.hadamard.sign_values"], signs[HIDDEN])
    assert written["prism.hadamard.sign_mode"] == "explicit"
