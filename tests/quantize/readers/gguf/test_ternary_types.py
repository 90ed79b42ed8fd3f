"""Test models that are ternary in groups, in every type and container: all become the same bundle, or are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from edgedec.bundle.bundle import Bundle
from edgedec.errors import BundleError, EdgedecError, UnsupportedError
from edgedec.quantize.pipeline import QuantizeOptions, quantize, uses_calibration
from edgedec.quantize.readers import open_checkpoint
from edgedec.quantize.readers.gguf.blocks import KINDS, Q2_0_LAYOUTS, decode, read_codes
from edgedec.quantize.readers.gguf.header import read_header
from edgedec.schemes import FloatScheme, Int8Scheme, TernaryScheme
from tests.quantize.readers.support import make_gguf
from tests.quantize.readers.support import make_ternary_gguf as maker
from tests.quantize.readers.support.make_ternary_gguf import FLOATS, PACKINGS, Matrix

GROUPED = ("Q2_0", "Q2_0 of 128", "PQ2_0", "PTQ1_0")
UP, EMBEDDING, HEAD = "model.layers.0.mlp.up_proj.weight", "model.embed_tokens.weight", "lm_head.weight"


def bundle_of(source: Path, folder: Path, **options: Any) -> Bundle:
    quantize(open_checkpoint(source), folder, QuantizeOptions(method="ternary", **options), vocab_limit=maker.VOCAB)
    return Bundle.open(folder)


def check_matrices(bundle: Bundle, model: maker.Model, groups: int = 128) -> None:
    for name, matrix in model.items():
        if isinstance(matrix, Matrix):
            ours = maker.hf_name(name)
            assert bundle.tensors[ours].scheme == TernaryScheme(group_size=groups, half_scales=True), ours
            np.testing.assert_array_equal(bundle.weight(ours).dense(), matrix.dense())


@pytest.mark.thorough(sample=2)
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", [*GROUPED, *FLOATS, *(f"folder of {kind}" for kind in FLOATS)])
def test_a_model_in_groups_is_taken_without_loss(tmp_path: Path, kind: str, tied: bool) -> None:
    """Embedding and head are ternary, too, and a tied head is stored once."""
    model = maker.random_model(tied=tied)
    if kind.startswith("folder of "):
        source = maker.write_folder(tmp_path / "m", model, kind.removeprefix("folder of "))
    else:
        source = maker.write_gguf(tmp_path / "m.gguf", model, kind)
    bundle = bundle_of(source, tmp_path / "b")
    check_matrices(bundle, model)
    assert bundle.config["tie_word_embeddings"] is tied
    assert (HEAD in bundle.tensors) is not tied
    assert bundle.manifest.quantization["group_size"] == 128
    assert json.loads((tmp_path / "b/manifest.json").read_text())["requires"] == ["half_scales", "ternary_embedding"]


@pytest.mark.parametrize("kind", ["TQ1_0", "TQ2_0", "Q2_0", "F16"])
def test_wider_groups_and_one_scale_are_found(tmp_path: Path, kind: str) -> None:
    model = maker.random_model()
    for name, matrix in model.items():
        if isinstance(matrix, Matrix):
            wide = np.repeat(matrix.scales[:, ::2], 2, axis=1)[:, : matrix.scales.shape[1]]
            model[name] = replace(matrix, scales=np.full_like(wide, 0.25) if name == "blk.0.attn_q.weight" else wide)
    del model["blk.0.ffn_down.weight"]  # 384 columns: no blocks of 256
    model["blk.0.ffn_down.weight"] = replace(maker.random_model()["blk.0.ffn_down.weight"])
    tensors = [maker.tensor(name, values, "F16" if "down" in name else kind) for name, values in model.items()]
    (tmp_path / "m.gguf").write_bytes(make_gguf.file_bytes(maker.metadata(), tensors))
    bundle = bundle_of(tmp_path / "m.gguf", tmp_path / "b")
    one = model.pop("blk.0.attn_q.weight")
    check_matrices(bundle, model)
    q = bundle.tensors["model.layers.0.self_attn.q_proj.weight"]
    assert q.scheme == TernaryScheme()
    np.testing.assert_array_equal(bundle.weight("model.layers.0.self_attn.q_proj.weight").dense(), one.dense())


def test_groups_of_64_columns_keep_their_scales(tmp_path: Path) -> None:
    matrix = maker.random_model()["blk.0.ffn_up.weight"]
    rows, columns = matrix.codes.shape
    scales = maker.random_scales(np.random.default_rng(5), rows, columns // 64)
    blocks = [
        PACKINGS["Q2_0"].block(codes[64 * at : 64 * at + 64], scale)
        for codes, row in zip(matrix.codes.tolist(), scales.tolist(), strict=True)
        for at, scale in enumerate(row)
    ]
    tensors = [
        replace(tensor, data=b"".join(blocks)) if tensor.name == b"blk.0.ffn_up.weight" else tensor
        for tensor in (maker.tensor(name, values, "Q2_0") for name, values in maker.random_model().items())
    ]
    (tmp_path / "m.gguf").write_bytes(make_gguf.file_bytes(maker.metadata(), tensors))
    bundle = bundle_of(tmp_path / "m.gguf", tmp_path / "b")
    assert bundle.tensors[UP].scheme == TernaryScheme(group_size=64, half_scales=True)
    np.testing.assert_array_equal(bundle.weight(UP).dense(), matrix.codes * np.repeat(scales, 64, axis=1))


def test_scales_beyond_float16_are_kept(tmp_path: Path) -> None:
    """Give one matrix a scale that float16 rounds, and another one a scale that it cannot hold."""
    model = maker.random_model()
    for name, factor in (("blk.0.ffn_up.weight", 1 + 2.0**-12), ("blk.0.ffn_down.weight", 2.0**20)):
        scales = model[name].scales.astype(np.float32)
        scales[1, 0] *= np.float32(factor)
        model[name] = Matrix(model[name].codes, scales)
    bundle = bundle_of(maker.write_gguf(tmp_path / "m.gguf", model, "F32"), tmp_path / "b")
    for name, matrix in model.items():
        if isinstance(matrix, Matrix):
            ours, exact = maker.hf_name(name), name not in ("blk.0.ffn_up.weight", "blk.0.ffn_down.weight")
            assert bundle.tensors[ours].scheme == TernaryScheme(group_size=128, half_scales=exact), ours
            np.testing.assert_array_equal(bundle.weight(ours).dense(), matrix.dense())


def test_a_float_embedding_and_head_are_kept_and_rounded(tmp_path: Path) -> None:
    model = maker.random_model()
    model["token_embd.weight"] = np.random.default_rng(0).standard_normal((maker.VOCAB, maker.HIDDEN), np.float32)
    bundle = bundle_of(maker.write_gguf(tmp_path / "m.gguf", model, "PQ2_0"), tmp_path / "b")
    assert bundle.tensors[EMBEDDING].scheme == FloatScheme()
    assert bundle.tensors[HEAD].scheme == Int8Scheme(rows=True)
    assert bundle.config["tie_word_embeddings"] is False


@pytest.mark.parametrize("tied", [None, True])
@pytest.mark.parametrize("kind", ["Q2_0", "PQ2_0"])
def test_the_fourth_code_needs_two_planes(tmp_path: Path, kind: str, tied: bool | None) -> None:
    model = maker.random_model(codes=(-1, 0, 1))
    for name in ("blk.0.ffn_up.weight", "token_embd.weight"):
        model[name].codes[3, 5:9] = 2
    source = maker.write_gguf(tmp_path / "m.gguf", model, kind)
    message = (
        rf"m\.gguf: tensor 'token_embd\.weight' \({kind}\) is not ternary: 4 of its 3328 codes are 3, which means \+2 .*"
        "--planes 2"
    )
    with pytest.raises(UnsupportedError, match=message):
        bundle_of(source, tmp_path / "b")
    assert not (tmp_path / "b").exists()
    options = QuantizeOptions(method="ternary", planes=2, tied=tied)
    assert not uses_calibration(open_checkpoint(source), options)
    bundle = bundle_of(source, tmp_path / "b", planes=2, tied=tied)
    for name, matrix in model.items():
        if isinstance(matrix, Matrix):
            ours = maker.hf_name(name)
            one = TernaryScheme(group_size=128, half_scales=True)
            two = TernaryScheme(planes=2, group_size=128, tied=bool(tied), half_scales=not tied)
            assert bundle.tensors[ours].scheme == (two if 2 in matrix.codes else one)
            np.testing.assert_array_equal(bundle.weight(ours).dense(), matrix.dense())
    ids = np.array([3, 0, 12], np.int32)
    np.testing.assert_array_equal(bundle.row_reader(EMBEDDING).rows(ids), model["token_embd.weight"].dense()[ids])
    int8 = QuantizeOptions(method="int8")
    quantize(open_checkpoint(source), tmp_path / "int8", int8, vocab_limit=maker.VOCAB)
    error = Bundle.open(tmp_path / "int8").weight(UP).dense() - model["blk.0.ffn_up.weight"].dense()
    assert np.abs(error).max() < 0.002


@pytest.mark.thorough
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), kind=st.sampled_from(list(PACKINGS)))
def test_any_block_is_read(tmp_path: Path, data: st.DataObject, kind: str) -> None:
    packing = PACKINGS[kind]
    most = 2 if "Q2_0" in kind and kind != "TQ2_0" else 1
    codes = data.draw(arrays.arrays(np.int8, (2, 256), elements=st.integers(-1, most), fill=st.nothing()))
    scale = st.floats(width=16, allow_nan=False, allow_infinity=False)
    scales = data.draw(arrays.arrays(np.float32, (2, 256 // packing.columns), elements=scale))
    rows = zip(codes.tolist(), scales.tolist(), strict=True)
    packed = b"".join(
        packing.block(row[at * packing.columns : (at + 1) * packing.columns], factor)
        for row, factors in rows
        for at, factor in enumerate(factors)
    )
    (tmp_path / "x").write_bytes(b"front" + packed)
    known = Q2_0_LAYOUTS[1] if kind == "Q2_0 of 128" else KINDS[packing.number]
    read = read_codes(tmp_path / "x", "tensor 'a'", known, 5, (2, 256))
    np.testing.assert_array_equal(read.codes, codes)
    np.testing.assert_array_equal(read.scales, scales)
    expected = codes * np.repeat(scales, packing.columns, axis=1)
    np.testing.assert_array_equal(decode(tmp_path / "x", "tensor 'a'", known, 5, (2, 256)), expected)


# --- attacks


def changed(tmp_path: Path, kind: str, name: str, change: Any) -> Path:
    tensors = [maker.tensor(key, values, kind) for key, values in maker.random_model().items()]
    tensors = [change(tensor) if tensor.name == name.encode() else tensor for tensor in tensors]
    path = tmp_path / "m.gguf"
    path.write_bytes(make_gguf.file_bytes(maker.metadata(), tensors))
    return path


@pytest.mark.parametrize("kind", ["Q2_0", "PQ2_0", "PTQ1_0", "TQ2_0"])
@pytest.mark.parametrize("bits", [b"\x00\x7e", b"\x00\x7c", b"\x00\xfc"])
def test_scales_that_are_not_finite_are_refused(tmp_path: Path, kind: str, bits: bytes) -> None:
    place = {"PTQ1_0": 26, "TQ2_0": 64}.get(kind, 0)
    path = changed(
        tmp_path,
        "F16",
        "blk.0.ffn_up.weight",
        lambda _: replace(
            (tensor := maker.tensor("blk.0.ffn_up.weight", maker.random_model()["blk.0.ffn_up.weight"], kind)),
            data=tensor.data[:place] + bits + tensor.data[place + 2 :],
        ),
    )
    with pytest.raises(
        BundleError, match=r"'blk\.0\.ffn_up\.weight': the scale of a block in row 0 is NaN or infinity"
    ):
        bundle_of(path, tmp_path / "b")


def test_negative_scales_turn_the_trits(tmp_path: Path) -> None:
    model = maker.random_model()
    sound = bundle_of(maker.write_gguf(tmp_path / "m.gguf", model, "PQ2_0"), tmp_path / "b")
    for name, matrix in model.items():
        if isinstance(matrix, Matrix):
            model[name] = Matrix(-matrix.codes, -matrix.scales)
    turned = bundle_of(maker.write_gguf(tmp_path / "n.gguf", model, "PTQ1_0"), tmp_path / "c")
    assert (sound.path / "weights.bin").read_bytes() == (turned.path / "weights.bin").read_bytes()


@pytest.mark.parametrize("tied", [False, True])
def test_the_fourth_code_of_negative_scales_alone_needs_two_planes(tmp_path: Path, tied: bool) -> None:
    model = maker.random_model()
    up = model["blk.0.ffn_up.weight"]
    up.codes[3, 5:9] = 2
    model["blk.0.ffn_up.weight"] = Matrix(up.codes, -np.abs(up.scales))
    source = maker.write_gguf(tmp_path / "m.gguf", model, "PQ2_0")
    bundle = bundle_of(source, tmp_path / "b", planes=2, tied=tied)
    assert bundle.tensors[UP].scheme == TernaryScheme(planes=2, group_size=128, tied=tied, half_scales=not tied)
    np.testing.assert_array_equal(bundle.weight(UP).dense(), model["blk.0.ffn_up.weight"].dense())


def small_file(shapes: list[tuple[int, int]], kind: str, tail: int = 0) -> bytes:
    """Return a file of matrices of the number 42 alone, and bytes after them."""
    tensors = [
        maker.tensor(
            f"t{at}.weight", Matrix(np.zeros(shape, np.int8), np.ones((shape[0], shape[1] // 128), np.float32)), kind
        )
        for at, shape in enumerate(shapes)
    ]
    return make_gguf.file_bytes({}, tensors) + bytes(tail)


def test_the_blocks_of_the_number_42_follow_from_the_bytes_of_the_tensors(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    for kind, block in (("Q2_0", 64), ("Q2_0 of 128", 128)):
        # the first matrix has as many bytes, filled up to 32, in both forms
        path.write_bytes(small_file([(1, 128), (16, 256), (1, 128)], kind))
        assert {tensor.kind.block for tensor in read_header(path).tensors.values()} == {block}
    for content, message in {
        small_file([(1, 128), (8, 128)], "Q2_0"): "so small that they may have blocks of 64 or of 128 values",
        small_file([(16, 256)], "Q2_0", tail=64): r"t0\.weight' of shape \(16, 256\) has GGML's type 42 and 1216 bytes",
        small_file([(16, 256)], "Q2_0")[:-32]: r"and 1120 bytes, which are neither",
    }.items():
        path.write_bytes(content)
        with pytest.raises(UnsupportedError, match=message):
            read_header(path)
    other = make_gguf.RawTensor(b"t0.weight", (256, 16), 42, bytes(16 * 42))  # 42 bytes for 256 values
    path.write_bytes(make_gguf.file_bytes({}, [other]))
    with pytest.raises(UnsupportedError, match="another program uses this number"):
        read_header(path)
    both = [make_gguf.RawTensor(b"a.weight", (256, 16), 42, bytes(32 * 34)),
            make_gguf.RawTensor(b"b.weight", (256, 16), 42, bytes(64 * 18))]  # fmt: skip
    path.write_bytes(make_gguf.file_bytes({}, both))
    with pytest.raises(UnsupportedError, match=r"b\.weight' .* like the tensors before it"):
        read_header(path)


@pytest.mark.parametrize("kind", GROUPED)
def test_truncated_files_are_refused(tmp_path: Path, kind: str) -> None:
    path = maker.write_gguf(tmp_path / "m.gguf", maker.random_model(), kind)
    content = path.read_bytes()
    for length in (len(content) - 40, len(content) * 2 // 3, len(content) // 2):
        path.write_bytes(content[:length])
        with pytest.raises(EdgedecError, match=r"m\.gguf"):
            bundle_of(path, tmp_path / "b")


@pytest.mark.parametrize("kind", ["PQ2_0", "PTQ1_0"])
def test_rows_that_do_not_divide_into_blocks_are_refused(tmp_path: Path, kind: str) -> None:
    path = changed(tmp_path, kind, "blk.0.ffn_up.weight", lambda tensor: replace(tensor, sizes=(64, 1536)))
    with pytest.raises(BundleError, match=rf"has rows of 64, not a multiple of {kind}'s block of 128"):
        open_checkpoint(path)


# --- what is refused by name


@pytest.mark.parametrize(
    ("family", "reason"),
    [("qwen3_5_moe", "mixtures of experts"), ("prism_hadamard_qwen35", "edgedec reads from GGUF alone")],
)
def test_folders_of_such_families_are_refused(tmp_path: Path, family: str, reason: str) -> None:
    maker.write_folder(tmp_path, maker.random_model(), "F16")
    (tmp_path / "config.json").write_text(f'{{"model_type": "{family}", "text_config": {{}}}}')
    with pytest.raises(UnsupportedError, match=rf"config\.json: model_type '{family}' is not supported: .*{reason}"):
        open_checkpoint(tmp_path)


def test_a_folder_of_rotated_weights_is_refused(tmp_path: Path) -> None:
    maker.write_folder(tmp_path, maker.random_model(), "F16")
    (tmp_path / "hadamard.json").write_text("{}")
    with pytest.raises(
        UnsupportedError, match=r"hadamard\.json says that .* stored rotated, which .* from GGUF files alone"
    ):
        open_checkpoint(tmp_path)
