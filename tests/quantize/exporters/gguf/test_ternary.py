"""Test the types of ternary matrices in exported GGUF files: TQ2_0 and Q2_0 where they are exact, refused where not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from edgedec.bundle.bundle import Bundle
from edgedec.errors import UnsupportedError, UsageError
from edgedec.quantize.exporters.gguf.export import export_gguf
from edgedec.quantize.exporters.gguf.file import q2_0
from edgedec.quantize.exporters.onnx import export_onnx
from edgedec.quantize.exporters.safetensors import export_safetensors
from edgedec.quantize.pipeline import QuantizeOptions, quantize
from edgedec.quantize.readers import open_checkpoint
from edgedec.schemes import TernaryScheme
from tests.quantize.exporters.gguf.test_export import write_letters
from tests.quantize.readers.support import make_ternary_gguf as maker
from tests.quantize.readers.support.make_ternary_gguf import PACKINGS, Matrix

UP = "model.layers.0.mlp.up_proj.weight"


def bundle_of(source: Path, folder: Path, planes: int = 0) -> Bundle:
    letters = write_letters(folder.parent / "tokenizer.json", maker.VOCAB)
    options = QuantizeOptions(method="ternary", planes=planes)
    quantize(open_checkpoint(source, letters), folder, options, vocab_limit=maker.VOCAB)
    return Bundle.open(folder)


def joined(scales: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return scales that are equal in pairs, for blocks of 256 columns."""
    return np.repeat(scales[:, ::2], 2, axis=1)[:, : scales.shape[1]]


@pytest.mark.thorough
@pytest.mark.parametrize("tied", [True, False])
def test_groups_are_exported_as_q2_0_and_read_again(tmp_path: Path, tied: bool) -> None:
    model = maker.random_model(tied=tied)
    model["blk.0.attn_q.weight"] = Matrix(
        model["blk.0.attn_q.weight"].codes, joined(model["blk.0.attn_q.weight"].scales)
    )
    bundle = bundle_of(maker.write_gguf(tmp_path / "m.gguf", model, "F16"), tmp_path / "b")
    matrices = sum(isinstance(values, Matrix) for values in model.values())
    counts = export_gguf(bundle, tmp_path / "e.gguf")
    assert counts == {"TQ2_0": 1, "Q2_0": matrices - 1, "F32": len(model) - matrices}
    again = bundle_of(tmp_path / "e.gguf", tmp_path / "b2")
    assert (bundle.path / "weights.bin").read_bytes() == (again.path / "weights.bin").read_bytes()
    assert export_gguf(bundle, tmp_path / "f.gguf", trit_type="Q2_0")["Q2_0"] == matrices
    assert export_gguf(bundle, tmp_path / "g.gguf", trit_type="F16")["F16"] == matrices
    for name in ("f", "g"):
        other = bundle_of(tmp_path / f"{name}.gguf", tmp_path / f"b {name}")
        assert (bundle.path / "weights.bin").read_bytes() == (other.path / "weights.bin").read_bytes()


def test_blocks_equal_those_of_another_writer() -> None:
    matrix = maker.random_model(4)["blk.0.ffn_down.weight"]
    ours = q2_0("a", matrix.codes, np.repeat(matrix.scales, 2, axis=1))
    assert ours.tobytes() == PACKINGS["Q2_0"].data(matrix)


@pytest.mark.parametrize(
    ("trit_type", "planes", "message"),
    [
        ("TQ2_0", 0, "has scales that differ inside a block of 256 columns, so TQ2_0 cannot hold it"),
        ("Q2_0", 2, "has 2 planes, so Q2_0 cannot hold it"),
    ],
)
def test_types_that_lose_something_are_refused(tmp_path: Path, trit_type: str, planes: int, message: str) -> None:
    codes = (-1, 0, 1, 2) if planes else (-1, 0, 1)
    source = maker.write_gguf(tmp_path / "m.gguf", maker.random_model(codes=codes), "PQ2_0")
    bundle = bundle_of(source, tmp_path / "b", planes=planes)
    with pytest.raises(UnsupportedError, match=rf"b: tensor model\.embed_tokens\.weight {message}"):
        export_gguf(bundle, tmp_path / "e.gguf", trit_type=trit_type)
    assert not (tmp_path / "e.gguf").exists()


def test_trits_with_scale_0_stay_without_effect(tmp_path: Path) -> None:
    """Another scale of the block stands for a scale of 0, so the trits themselves must become 0."""
    model = maker.random_model()
    model["blk.0.ffn_up.weight"].scales[:, 1] = 0
    source = bundle_of(maker.write_gguf(tmp_path / "m.gguf", model, "F16"), tmp_path / "b")
    tensor = source.tensors[UP]
    scheme = tensor.scheme
    assert isinstance(scheme, TernaryScheme)
    with (source.path / "weights.bin").open("r+b") as file:
        file.seek(tensor.offsets["codes"])
        file.write(scheme.pack(np.ones((1, *tensor.shape), np.int8)).tobytes())
    bundle = Bundle(path=source.path, manifest=source.manifest)  # without the check of hashes
    assert export_gguf(bundle, tmp_path / "e.gguf")["TQ2_0"] == 1
    again = bundle_of(tmp_path / "e.gguf", tmp_path / "b2")
    np.testing.assert_array_equal(again.weight(UP).dense(), bundle.weight(UP).dense())


def test_rows_of_another_width_are_refused(tmp_path: Path) -> None:
    bundle = bundle_of(maker.write_gguf(tmp_path / "m.gguf", one_scale(), "F16"), tmp_path / "b")
    assert bundle.tensors[UP].scheme == TernaryScheme()
    with pytest.raises(UnsupportedError, match=r"down_proj\.weight has rows of 384, no multiple of 256, so TQ2_0"):
        export_gguf(bundle, tmp_path / "e.gguf", trit_type="TQ2_0")
    assert export_gguf(bundle, tmp_path / "e.gguf") == {"TQ2_0": 7, "Q2_0": 1, "F32": 5}


def one_scale() -> dict[str, Matrix | NDArray[np.float32]]:
    return {
        name: Matrix(values.codes, np.full_like(values.scales, 0.25)) if isinstance(values, Matrix) else values
        for name, values in maker.random_model().items()
    }


def test_an_unknown_type_is_refused(tmp_path: Path) -> None:
    bundle = bundle_of(maker.write_gguf(tmp_path / "m.gguf", one_scale(), "F16"), tmp_path / "b")
    with pytest.raises(UsageError, match="--trits must be one of auto, TQ2_0, Q2_0, F16, not 'TQ1_0'"):
        export_gguf(bundle, tmp_path / "e.gguf", trit_type="TQ1_0")


def test_onnx_has_no_ternary_embedding(tmp_path: Path) -> None:
    bundle = bundle_of(maker.write_gguf(tmp_path / "m.gguf", maker.random_model(), "F16"), tmp_path / "b")
    message = r"b: embed embed looks up rows of model\.embed_tokens\.weight, which is ternary; .* export it as gguf"
    with pytest.raises(UnsupportedError, match=message):
        export_onnx(bundle, tmp_path / "onnx")
    assert not (tmp_path / "onnx").exists()


@pytest.mark.parametrize("tied", [True, False])
def test_safetensors_are_read_again(tmp_path: Path, tied: bool) -> None:
    bundle = bundle_of(maker.write_gguf(tmp_path / "m.gguf", maker.random_model(tied=tied), "F16"), tmp_path / "b")
    export_safetensors(bundle, tmp_path / "folder")
    again = bundle_of(tmp_path / "folder", tmp_path / "b2")
    for name, tensor in bundle.tensors.items():
        assert again.tensors[name].scheme == tensor.scheme
        np.testing.assert_array_equal(again.weight(name).dense(), bundle.weight(name).dense())
