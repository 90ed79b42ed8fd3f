"""Compare GGUF files with the ``gguf`` package (types of tensors) and with Hugging Face (names and rows), and read
whole models.
"""

from __future__ import annotations

import json
import re
import tracemalloc
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import quants
from tokenizers import Tokenizer

from edgedec.bundle.bundle import Bundle
from edgedec.errors import BundleError, UnsupportedError
from edgedec.host.install_hint import install_extra
from edgedec.quantize.pipeline import QuantizeOptions, checkpoint_graph, quantize
from edgedec.quantize.readers import open_checkpoint
from edgedec.quantize.readers.gguf import blocks as blocks_module
from edgedec.quantize.readers.gguf.blocks import KINDS, decode
from edgedec.quantize.readers.gguf.header import read_header
from edgedec.schemes import TernaryScheme
from tests.quantize.readers.support import make_gguf as builder

OURS = ("Q8_0", "Q4_0", "TQ1_0", "TQ2_0")
PACKAGES = ("Q4_1", "Q5_0", "Q5_1", "MXFP4")


def test_sizes_of_types_equal_those_of_the_package() -> None:
    for number, kind in KINDS.items():
        if kind.name in ("I2_S", "Q2_0", "PQ2_0", "PTQ1_0"):  # types that the package does not know
            continue
        name = gguf.GGMLQuantizationType(number)
        assert (name.name, gguf.GGML_QUANT_SIZES[name]) == (kind.name, (kind.block, kind.block_bytes))


@pytest.mark.parametrize("name", [*OURS, *PACKAGES])
def test_decoding_equals_that_of_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(blocks_module, "_CHUNK_BYTES", 700)  # several pieces
    kind = gguf.GGMLQuantizationType[name]
    dense = np.random.default_rng(0).standard_normal((7, 512)).astype(np.float32)
    packed = quants.quantize(dense, kind)
    path = tmp_path / "x"
    path.write_bytes(b"front" + packed.tobytes())
    actual = decode(path, "tensor 'a'", KINDS[int(kind)], 5, (7, 512))
    assert actual.dtype == np.float32
    np.testing.assert_array_equal(actual, quants.dequantize(packed, kind))


@pytest.mark.parametrize("name", ["Q5_K", "Q3_K", "IQ4_XS"])
def test_types_that_only_the_package_decodes_are_read_with_it(tmp_path: Path, name: str) -> None:
    kind = gguf.GGMLQuantizationType[name]
    _, nbytes = gguf.GGML_QUANT_SIZES[kind]
    packed = np.random.default_rng(0).integers(0, 120, (3, 2 * nbytes), np.uint8)
    (tmp_path / "x").write_bytes(packed.tobytes())
    actual = decode(tmp_path / "x", "tensor 'a'", KINDS[int(kind)], 0, (3, 512))
    np.testing.assert_array_equal(actual, quants.dequantize(packed, kind))


def test_without_the_package_its_types_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr("importlib.import_module", missing)
    (tmp_path / "x").write_bytes(bytes(176))
    message = f"x: tensor 'a' is Q5_K; reading it needs the package gguf; run: {install_extra('gguf')}, or"
    with pytest.raises(UnsupportedError, match=re.escape(message)):
        decode(tmp_path / "x", "tensor 'a'", KINDS[13], 0, (1, 256))


def test_the_header_of_the_package_is_read(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_uint64("a.long", 1 << 40)
    writer.add_array("a.list", [1, -2, 3])
    writer.add_array("a.words", ["one", "zwei"])
    writer.add_bool("a.flag", True)
    array = np.arange(12, dtype=np.float16).reshape(3, 4)
    writer.add_tensor("some.weight", array)
    writer.add_tensor("other.weight", np.ones(5, np.float32))
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()
    header = read_header(tmp_path / "m.gguf")
    assert header.metadata["a.long"] == 1 << 40
    assert header.metadata["a.flag"] is True
    assert header.metadata["a.words"] == ["one", "zwei"]
    assert list(header.metadata["a.list"]) == [1, -2, 3]  # type: ignore[arg-type]
    assert {name: tensor.shape for name, tensor in header.tensors.items()} == {
        "some.weight": (3, 4),
        "other.weight": (5,),
    }
    entry = header.tensors["some.weight"]
    np.testing.assert_array_equal(decode(entry.path, "a", entry.kind, entry.offset, entry.shape), array)


def test_a_llama_file_is_read(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(builder.write_model(tmp_path))
    arrays = builder.values()
    config = checkpoint.config
    assert (config["model_type"], config["vocab_size"], config["tie_word_embeddings"]) == ("llama", 13, True)
    assert (config["rms_norm_eps"], config["rope_theta"]) == (1e-5, 10000.0)
    checkpoint_graph(checkpoint)  # every tensor has a place and its shape
    np.testing.assert_array_equal(checkpoint.load("model.embed_tokens.weight"), arrays["token_embd.weight"])
    for name, heads in (("q", 2), ("k", 1)):
        stored = arrays[f"blk.0.attn_{name}.weight"]
        loaded = checkpoint.load(f"model.layers.0.self_attn.{name}_proj.weight")
        # llama.cpp's converter turns the halves of a head into neighbours.
        again = loaded.reshape(heads, 2, 2, 8).swapaxes(1, 2).reshape(stored.shape)
        np.testing.assert_array_equal(again, stored)
        assert not np.array_equal(loaded, stored)
    assert (checkpoint.bos_token, checkpoint.eos_token, checkpoint.eos_token_ids) == ("<s>", "</s>", (2,))
    assert Tokenizer.from_str(checkpoint.tokenizer_json).encode("the a").tokens == ["<s>", "\u2581the", "\u2581a"]


@pytest.mark.parametrize("architecture", ["qwen2", "gemma"])
def test_rows_keep_their_order_if_llama_cpp_rotates_halves(tmp_path: Path, architecture: str) -> None:
    checkpoint = open_checkpoint(builder.write_model(tmp_path, architecture))
    loaded = checkpoint.load("model.layers.0.self_attn.q_proj.weight")
    np.testing.assert_array_equal(loaded, builder.values()["blk.0.attn_q.weight"])
    assert checkpoint.config.get("rms_norm_offset") == (0 if architecture == "gemma" else None)


def test_the_chat_template_and_the_end_tokens_are_read(tmp_path: Path) -> None:
    tokens = ["<unk>", "<s>", "</s>", *builder.LETTERS[:-1], "<|im_end|>"]
    kinds = [2, 3, 3, *[1] * 9, 3]
    changes: dict[str, Any] = {"tokenizer__ggml__tokens": tokens, "tokenizer__ggml__token_type": kinds}
    checkpoint = open_checkpoint(builder.write_model(tmp_path, tokenizer__chat_template="{{ x }}", **changes))
    assert checkpoint.chat_template == "{{ x }}"
    assert checkpoint.eos_token_ids == (2, 12)


def test_padding_after_the_vocabulary_is_no_token(tmp_path: Path) -> None:
    kinds = [2, 3, 3, *[1] * 8, 5, 5]
    checkpoint = open_checkpoint(builder.write_model(tmp_path, tokenizer__ggml__token_type=kinds))
    assert Tokenizer.from_str(checkpoint.tokenizer_json).get_vocab_size() == 11


def test_llama3_rotation_is_recognized_and_other_factors_are_kept(tmp_path: Path) -> None:
    plain = 10000.0 ** (-np.arange(2) / 2)
    keep = np.clip((8192 * plain / (2 * np.pi) - 1) / 3, 0, 1)
    llama3 = (1 / (keep + (1 - keep) / 8)).astype(np.float32)
    for factors in (np.array([1, 8], np.float32), np.array([1.5, 3], np.float32)):
        tensors = [builder.tensor(*item) for item in builder.values().items()]
        path = tmp_path / "m.gguf"
        path.write_bytes(
            builder.file_bytes(builder.metadata(), [*tensors, builder.tensor("rope_freqs.weight", factors)])
        )
        scaling = open_checkpoint(path).config["rope_scaling"]
        if np.allclose(factors, llama3):
            assert (scaling["rope_type"], scaling["factor"]) == ("llama3", 8.0)
        else:
            assert scaling["short_factor"] == factors.tolist()


def _ternary_file(path: Path, kind: gguf.GGMLQuantizationType, scales: tuple[float, ...]) -> dict[str, Any]:
    """Write a llama of 256 columns whose layers are trits; block b of each matrix has ``scales[b % len]``."""
    rng = np.random.default_rng(3)
    sizes = {
        name: tuple(256 if size in (8, 12) else size for size in shape) for name, shape in builder.shapes().items()
    }
    sizes |= {f"blk.0.attn_{name}.weight": (128, 256) for name in "kv"}
    trits, tensors = {}, []
    for name, shape in sizes.items():
        if "blk" in name and len(shape) == 2:
            trits[name] = rng.integers(-1, 2, shape).astype(np.float32)
            dense = trits[name] * np.resize(np.array(scales, np.float32), shape[0])[:, None]
            data = quants.quantize(dense, kind).tobytes()
            tensors.append(builder.RawTensor(name.encode(), shape[::-1], int(kind), data))
        else:
            tensors.append(builder.tensor(name, rng.standard_normal(shape, dtype=np.float32)))
    changes: dict[str, Any] = {"llama__embedding_length": 256, "llama__feed_forward_length": 256}
    path.write_bytes(builder.file_bytes(builder.metadata(**changes), tensors))
    return trits


@pytest.mark.parametrize("kind", ["TQ1_0", "TQ2_0"])
@pytest.mark.parametrize("scales", [(0.5,), (0.5, 0.25)])
def test_ternary_types_are_read_without_loss(tmp_path: Path, kind: str, scales: tuple[float, ...]) -> None:
    trits = _ternary_file(tmp_path / "m.gguf", gguf.GGMLQuantizationType[kind], scales)
    checkpoint = open_checkpoint(tmp_path / "m.gguf")
    name = "model.layers.0.mlp.up_proj.weight"
    quantize(checkpoint, tmp_path / "b", QuantizeOptions(method="ternary"), vocab_limit=13)
    bundle = Bundle.open(tmp_path / "b")
    grouped = TernaryScheme(group_size=128, half_scales=True)
    assert bundle.tensors[name].scheme == (grouped if len(scales) > 1 else TernaryScheme())
    weight = bundle.weight(name)
    expected = trits["blk.0.ffn_up.weight"] * np.resize(np.array(scales, np.float32), 256)[:, None]
    np.testing.assert_array_equal(weight.dense(), expected)


def test_peak_memory_is_one_tensor(tmp_path: Path) -> None:
    dense = np.random.default_rng(0).standard_normal((4096, 1024)).astype(np.float32)
    packed = quants.quantize(dense, gguf.GGMLQuantizationType.Q8_0)
    (tmp_path / "x").write_bytes(packed.tobytes())
    del packed
    tracemalloc.start()
    actual = decode(tmp_path / "x", "a", KINDS[8], 0, dense.shape)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert actual.nbytes == dense.nbytes
    assert peak < 1.7 * dense.nbytes


def test_a_vocabulary_alone_is_refused(shared_data: Path) -> None:
    with pytest.raises(BundleError, match=r"has no matrix token_embd.weight; it holds only a vocabulary"):
        open_checkpoint(shared_data / "tokenizers" / "gguf" / "ggml-vocab-llama-spm.gguf")


@pytest.mark.parametrize(("swap", "noted"), [(False, False), (True, True)])
def test_a_tokenizer_with_other_tokens_than_the_file_s_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, swap: bool, noted: bool
) -> None:
    path = builder.write_model(tmp_path)
    words = json.loads(open_checkpoint(path).tokenizer_json)
    vocab = words["model"]["vocab"]
    first, second = sorted(vocab, key=vocab.__getitem__)[-2:]
    if swap:
        vocab[first], vocab[second] = vocab[second], vocab[first]
    (tmp_path / "tokenizer.json").write_text(json.dumps(words))
    caplog.clear()
    open_checkpoint(path, tmp_path / "tokenizer.json")
    assert ("2 of the 13 tokens of" in caplog.text) is noted


def test_the_folder_of_a_tokenizer_brings_its_ends_and_its_template(tmp_path: Path) -> None:
    path = builder.write_model(tmp_path)
    words = open_checkpoint(path).tokenizer_json
    (tmp_path / "a folder").mkdir()
    (tmp_path / "a folder" / "tokenizer.json").write_text(words)
    settings = {"eos_token": "the", "bos_token": "<s>", "chat_template": "{{ eos_token }}"}
    (tmp_path / "a folder" / "tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / "a folder" / "generation_config.json").write_text('{"eos_token_id": [4, 2]}')
    read = open_checkpoint(path, tmp_path / "a folder")
    the = Tokenizer.from_str(words).token_to_id("the")
    assert (read.bos_token_id, read.eos_token_ids, read.chat_template) == (1, (the, 4, 2), "{{ eos_token }}")
