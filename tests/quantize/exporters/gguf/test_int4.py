"""Test int4 as GGUF's Q4_0 and Q4_K: what a file says is what a bundle says, in both directions."""

from __future__ import annotations

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import quants
from hypothesis import given
from hypothesis import strategies as st

from edgedec.bundle.bundle import Bundle
from edgedec.errors import BundleError
from edgedec.quantize.exporters.gguf.export import export_gguf
from edgedec.quantize.exporters.gguf.file import q4_0, q4_k
from edgedec.quantize.pipeline import QuantizeOptions, quantize, uses_calibration
from edgedec.quantize.readers import open_checkpoint
from edgedec.quantize.readers.gguf.blocks import INT4, KINDS, decode, int4_parts
from edgedec.quantize.synthetic.random_bundle import write_random_bundle
from edgedec.schemes import FloatScheme, Int4Scheme, Int8Scheme
from tests.quantize.exporters.gguf.test_export import CONFIG, tokenizer

KIND = {kind.name: kind for kind in KINDS.values()}
TYPES = ("Q4_0", "Q4_K", "Q6_K")


def random_blocks(name: str, rows: int, blocks: int, seed: int) -> np.ndarray:
    """Return random bytes of blocks whose float16 numbers are finite."""
    data = np.random.default_rng(seed).integers(0, 256, (rows, blocks, KIND[name].block_bytes), np.uint8)
    for at in {"Q4_0": (1,), "Q4_K": (1, 3), "Q6_K": (209,)}[name]:
        data[..., at] &= 0xBF  # the exponent is below the largest
    return data.reshape(rows, -1)


@pytest.mark.parametrize("name", TYPES)
@given(rows=st.integers(1, 5), blocks=st.integers(1, 3), seed=st.integers(0, 2**32))
def test_blocks_are_decoded_as_by_the_package(
    name: str, rows: int, blocks: int, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    data, kind = random_blocks(name, rows, blocks, seed), KIND[name]
    file = tmp_path_factory.mktemp("blocks") / "data"
    file.write_bytes(b"head" + data.tobytes())
    shape = (rows, blocks * kind.block)
    values = decode(file, "tensor", kind, 4, shape)
    assert np.array_equal(values, quants.dequantize(data, gguf.GGMLQuantizationType[name]))
    if name in INT4:
        parts = int4_parts(file, "tensor", kind, 4, shape)
        assert np.array_equal(INT4[name].open("tensor", shape, parts).dense(), values)


@given(rows=st.integers(1, 4), blocks=st.integers(1, 3), seed=st.integers(0, 2**32))
def test_codes_and_scales_are_written_as_they_were_read(
    rows: int, blocks: int, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    for name in INT4:
        data, kind = random_blocks(name, rows, blocks, seed), KIND[name]
        file = tmp_path_factory.mktemp("blocks") / "data"
        file.write_bytes(data.tobytes())
        parts = int4_parts(file, "tensor", kind, 0, (rows, blocks * kind.block))
        codes = INT4[name].unpack(parts["codes"])
        if name == "Q4_0":
            assert np.array_equal(q4_0(codes, parts["scale"]), data)
        else:
            assert np.array_equal(q4_k(codes, parts["factors"], parts["steps"]), data)


@pytest.mark.parametrize("offset", [False, True])
@pytest.mark.parametrize("model_type", ["llama", "qwen2"])  # llama.cpp has rows of q and k of a Llama in another order
def test_a_bundle_survives_the_round_trip(offset: bool, model_type: str, tmp_path: Path) -> None:
    config = {**CONFIG, "model_type": model_type}
    write_random_bundle(tmp_path / "first", config, "int4", offset=offset, tokenizer_json=tokenizer())
    first = Bundle.open(tmp_path / "first")
    kinds = export_gguf(first, tmp_path / "model.gguf")
    assert kinds["Q4_K" if offset else "Q4_0"] == 14
    checkpoint = open_checkpoint(tmp_path / "model.gguf")
    options = QuantizeOptions(method="int4")
    assert not uses_calibration(checkpoint, options)
    quantize(checkpoint, tmp_path / "second", options, vocab_limit=40)
    second = Bundle.open(tmp_path / "second")
    for name, tensor in first.tensors.items():
        scheme = second.tensors[name].scheme
        if tensor.scheme != Int4Scheme(offset=offset):
            assert scheme == (
                FloatScheme() if any(word in name for word in ("embed", "norm", "bias")) else Int8Scheme(rows=True)
            ), name
            continue
        assert scheme == tensor.scheme
        for part in scheme.parts(tensor.shape):
            assert np.array_equal(second.array(name, part), first.array(name, part)), (name, part)


def test_damaged_scales_are_refused(tmp_path: Path) -> None:
    write_random_bundle(tmp_path / "first", CONFIG, "int4", tokenizer_json=tokenizer())
    export_gguf(Bundle.open(tmp_path / "first"), tmp_path / "model.gguf")
    data = bytearray((tmp_path / "model.gguf").read_bytes())
    tensor = next(item for item in gguf.GGUFReader(tmp_path / "model.gguf").tensors if "ffn_down" in item.name)
    data[tensor.data_offset : tensor.data_offset + 2] = b"\xff\x7f"
    (tmp_path / "model.gguf").write_bytes(data)
    with pytest.raises(BundleError, match=r"down_proj\.weight holds NaN or infinity; the checkpoint is damaged"):
        quantize(
            open_checkpoint(tmp_path / "model.gguf"),
            tmp_path / "second",
            QuantizeOptions(method="int4"),
            vocab_limit=40,
        )
    assert not (tmp_path / "second").exists()


def int4_file(folder: Path, offset: bool) -> tuple[Path, int, int]:
    """Write a file with int4 matrices, and return its path, and place and size of one of them."""
    write_random_bundle(folder / "first", CONFIG, "int4", offset=offset, tokenizer_json=tokenizer())
    path = folder / "model.gguf"
    export_gguf(Bundle.open(folder / "first"), path)
    tensor = next(item for item in gguf.GGUFReader(path).tensors if "ffn_down" in item.name)
    return path, int(tensor.data_offset), int(tensor.n_bytes)


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("at", [1, 3])  # the highest bytes of the two factors of Q4_K
@pytest.mark.parametrize("value", [b"\x7c", b"\xfc", b"\x7f"])  # infinity, minus infinity, NaN
def test_damaged_factors_of_q4_k_are_refused(at: int, value: bytes, tmp_path: Path) -> None:
    path, place, _ = int4_file(tmp_path, offset=True)
    data = bytearray(path.read_bytes())
    data[place + at : place + at + 1] = value
    path.write_bytes(data)
    with pytest.raises(BundleError, match=r"down_proj\.weight holds NaN or infinity; the checkpoint is damaged"):
        quantize(open_checkpoint(path), tmp_path / "second", QuantizeOptions(method="int4"), vocab_limit=40)
    assert not (tmp_path / "second").exists()


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("offset", [False, True])
def test_a_cut_file_is_refused_when_it_is_opened(offset: bool, tmp_path: Path) -> None:
    path, place, size = int4_file(tmp_path, offset)
    data = path.read_bytes()
    for end in (place - 1, place + 1, place + size - 1):
        path.write_bytes(data[:end])
        with pytest.raises(BundleError, match=r"model\.gguf"):
            open_checkpoint(path)


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("offset", [False, True])
def test_a_file_that_shrinks_after_it_was_opened_is_refused(offset: bool, tmp_path: Path) -> None:
    path, place, size = int4_file(tmp_path, offset)
    checkpoint = open_checkpoint(path)
    with path.open("r+b") as file:
        file.truncate(place + size - 1)
    with pytest.raises(BundleError, match=r"model\.gguf"):
        quantize(checkpoint, tmp_path / "second", QuantizeOptions(method="int4"), vocab_limit=40)
    assert not (tmp_path / "second").exists()


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("offset", [False, True])
@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("type", 8, "overlaps the tensor before it"),  # Q8_0, whose blocks are larger
        ("columns", 500, "ffn_down.*500"),  # no multiple of a block
        ("columns", 1024, "overlaps the tensor before it"),
        ("rows", 255, "leaves a hole before it"),
    ],
)
def test_a_matrix_of_other_sizes_than_its_bytes_is_refused(
    field: str, value: int, message: str, offset: bool, tmp_path: Path
) -> None:
    path, _, _ = int4_file(tmp_path, offset)
    data, name = bytearray(path.read_bytes()), b"blk.0.ffn_down.weight"
    start = data.index(name) + len(name) + 4  # after the number of dimensions
    assert data[start : start + 20] == struct.pack("<QQI", 512, 256, 12 if offset else 2)
    form, at = {"columns": ("<Q", 0), "rows": ("<Q", 8), "type": ("<I", 16)}[field]
    struct.pack_into(form, data, start + at, value)
    path.write_bytes(data)
    with pytest.raises(BundleError, match=message):
        quantize(open_checkpoint(path), tmp_path / "second", QuantizeOptions(method="int4"), vocab_limit=40)
    assert not (tmp_path / "second").exists()
