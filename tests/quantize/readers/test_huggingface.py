"""Read sound Hugging Face folders in every supported form."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from tokenizers import Tokenizer

from edgedec.errors import BundleError, UnsupportedError, UsageError
from edgedec.quantize.readers import TensorInfo, open_checkpoint
from tests.quantize.readers.support.make_checkpoints import (
    DTYPES,
    hf_tensors,
    hf_tokenizer,
    write_hf,
    write_json,
    write_llama2c,
)


@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("shards", [0, 1, 2, 3])
def test_tensors_equal_those_of_safetensors(tmp_path: Path, dtype: str, shards: int) -> None:
    tensors = hf_tensors(dtype)
    checkpoint = open_checkpoint(write_hf(tmp_path, tensors, shards=shards))
    assert dict(checkpoint.tensors) == {
        name: TensorInfo(shape=array.shape, dtype=DTYPES[dtype].name) for name, array in tensors.items()
    }
    for name, expected in tensors.items():
        loaded = checkpoint.load(name)
        assert loaded.dtype == DTYPES[dtype]
        assert loaded.flags.c_contiguous
        np.testing.assert_array_equal(loaded, expected)


def test_the_configuration_and_the_tokens_are_read(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_hf(tmp_path, rope_theta=5e5))
    assert checkpoint.source == tmp_path
    assert checkpoint.config["rope_theta"] == 5e5
    assert (checkpoint.bos_token, checkpoint.bos_token_id) == (None, 1)  # no file says how the tokenizer names it
    assert (checkpoint.eos_token, checkpoint.eos_token_ids) == (None, (2,))
    assert checkpoint.chat_template is None
    assert Tokenizer.from_str(checkpoint.tokenizer_json).encode("tha").tokens == ["<s>", "t", "h", "a"]


@pytest.mark.parametrize(
    ("generation", "expected"),
    [({"eos_token_id": [4, 2]}, (9, 4, 2)), ({"eos_token_id": 4}, (9, 4)), ({}, (9, 2, 5)), (None, (9, 2, 5))],
)
def test_end_tokens_of_the_generation_replace_those_of_the_configuration(
    tmp_path: Path, generation: dict[str, Any] | None, expected: tuple[int, ...]
) -> None:
    write_hf(tmp_path, eos_token_id=[2, 5])
    if generation is not None:
        write_json(tmp_path / "generation_config.json", generation)
    write_json(tmp_path / "tokenizer_config.json", {"eos_token": {"content": "the"}, "bos_token": None})
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.eos_token_ids == expected  # the tokenizer's own first
    assert checkpoint.eos_token == "the"
    assert (checkpoint.bos_token, checkpoint.bos_token_id) == (None, 1)  # null in the file, as in Qwen2


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"tokenizer_config.json": {"chat_template": "settings"}}, "settings"),
        ({"tokenizer_config.json": {"chat_template": None}}, None),
        (
            {
                "tokenizer_config.json": {
                    "chat_template": [{"name": "rag", "template": "x"}, {"name": "default", "template": "list"}]
                }
            },
            "list",
        ),
        (
            {"tokenizer_config.json": {"chat_template": "settings"}, "chat_template.json": {"chat_template": "own"}},
            "own",
        ),
        ({"chat_template.json": {"chat_template": "own"}, "chat_template.jinja": "jinja\n"}, "jinja\n"),
    ],
)
def test_chat_template_is_found(tmp_path: Path, files: dict[str, Any], expected: str | None) -> None:
    write_hf(tmp_path)
    for name, content in files.items():
        (tmp_path / name).write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    assert open_checkpoint(tmp_path).chat_template == expected


def test_padding_and_truncation_are_removed_from_the_tokenizer(tmp_path: Path) -> None:
    write_hf(tmp_path)
    padding = {
        "strategy": {"Fixed": 1 << 40},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "<unk>",
    }
    truncation = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    write_json(tmp_path / "tokenizer.json", hf_tokenizer(padding=padding, truncation=truncation))
    tokenizer = Tokenizer.from_str(open_checkpoint(tmp_path).tokenizer_json)
    assert tokenizer.encode("the").tokens == ["<s>", "t", "h", "e"]


def test_another_tokenizer_replaces_that_of_the_folder(tmp_path: Path) -> None:
    model = write_hf(tmp_path / "model")
    (model / "tokenizer.json").unlink()
    folder = write_hf(tmp_path / "other")
    write_json(folder / "tokenizer_config.json", {"chat_template": "other's"})
    for path in (folder, folder / "tokenizer.json"):
        assert open_checkpoint(model, tokenizer=path).chat_template == "other's"
    listing = write_llama2c(tmp_path / "llama2c").parent / "tokenizer.bin"
    tokens = Tokenizer.from_str(open_checkpoint(model, tokenizer=listing).tokenizer_json).encode("the").tokens
    assert tokens == ["<s>", " the"]


def test_the_tokenizer_may_be_smaller_than_the_vocabulary(tmp_path: Path) -> None:
    assert open_checkpoint(write_hf(tmp_path, vocab_size=64)).config["vocab_size"] == 64


def test_one_file_is_preferred_to_an_index(tmp_path: Path) -> None:
    write_hf(tmp_path, hf_tensors(seed=1), shards=2)
    tensors = hf_tensors(seed=2)
    save_file(tensors, tmp_path / "model.safetensors")
    np.testing.assert_array_equal(open_checkpoint(tmp_path).load("model.norm.weight"), tensors["model.norm.weight"])


def test_links_of_the_hugging_face_cache_are_read(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "models--a--b" / "blobs", tmp_path / "models--a--b" / "snapshots" / "0123abcd"
    write_hf(blobs)
    snapshot.mkdir(parents=True)
    for path in blobs.iterdir():
        (snapshot / path.name).symlink_to(Path("..") / ".." / "blobs" / path.name)
    assert open_checkpoint(snapshot).load("model.norm.weight").shape == (8,)


def test_peak_memory_is_one_tensor(tmp_path: Path) -> None:
    tensors = {f"t{i}": np.zeros((256, 1024), np.float32) for i in range(6)}  # 1 MiB each
    checkpoint = open_checkpoint(write_hf(tmp_path, tensors))
    tracemalloc.start()
    for name in checkpoint.tensors:
        checkpoint.load(name)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 1 << 20 <= peak < 1.1 * (1 << 20)


def test_other_types_are_listed_but_refused_when_loaded(tmp_path: Path) -> None:
    tensors = hf_tensors() | {"model.layers.0.mask": np.zeros((2, 2), np.int64)}
    checkpoint = open_checkpoint(write_hf(tmp_path, tensors))
    assert checkpoint.tensors["model.layers.0.mask"] == TensorInfo(shape=(2, 2), dtype="I64")
    with pytest.raises(UnsupportedError, match=r"tensor 'model.layers.0.mask' is I64; save the model as"):
        checkpoint.load("model.layers.0.mask")


def test_an_absent_tensor_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"there is no tensor 'lm_head.weight'"):
        open_checkpoint(write_hf(tmp_path)).load("lm_head.weight")


def test_a_file_that_shrinks_after_opening_is_refused(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_hf(tmp_path))
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-4])
    last = max(checkpoint.tensors)
    with pytest.raises(BundleError, match=rf"tensor '{last}' ends after \d+ of \d+ bytes; the file is truncated"):
        checkpoint.load(last)


@pytest.mark.parametrize(
    ("left_out", "put_in", "error", "message"),
    [
        ("config.json", None, BundleError, "has no config.json; pass the folder of a Hugging Face checkpoint"),
        ("model.safetensors", None, BundleError, "neither model.safetensors nor model.safetensors.index.json"),
        ("model.safetensors", "pytorch_model.bin", UnsupportedError, "save the model as safetensors"),
        ("tokenizer.json", None, UsageError, "has no tokenizer.json; pass the model's tokenizer with --tokenizer"),
        ("tokenizer.json", "tokenizer.model", BundleError, "tokenizer.model: 0 bytes cannot be a tokenizer's model"),
    ],
)
def test_an_incomplete_folder_is_refused(
    tmp_path: Path, left_out: str, put_in: str | None, error: type[Exception], message: str
) -> None:
    write_hf(tmp_path)
    (tmp_path / left_out).unlink()
    if put_in:
        (tmp_path / put_in).touch()
    with pytest.raises(error, match=message):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "error", "message"),
    [
        (
            "m.gguf",
            b"GGUF\3\0\0\0",
            BundleError,
            "m.gguf: the counts: 16 bytes are needed from byte 8 on, but the file ends at 8",
        ),
        ("m.pt", b"PK\3\4", UnsupportedError, "save the model as safetensors"),
        ("m.safetensors", b"\2\0\0\0\0\0\0\0{}", UsageError, "its folder is the checkpoint"),
    ],
)
def test_files_of_other_formats_are_refused(
    tmp_path: Path, name: str, content: bytes, error: type[Exception], message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(error, match=message):
        open_checkpoint(tmp_path / name)


def test_paths_that_do_not_exist_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere: no such checkpoint"):
        open_checkpoint(tmp_path / "nowhere")
    with pytest.raises(UsageError, match=r"nowhere\.json: no such tokenizer"):
        open_checkpoint(write_hf(tmp_path), tokenizer=tmp_path / "nowhere.json")
    with pytest.raises(UsageError, match="is not a path"):
        open_checkpoint(tmp_path / "a\0b")
    with pytest.raises(BundleError, match="cannot be read: File name too long"):
        open_checkpoint(tmp_path / ("a" * 5000))
    with pytest.raises(UsageError, match=r"give a tokenizer\.json, a SentencePiece"):
        open_checkpoint(tmp_path, tokenizer=write_llama2c(tmp_path / "x").rename(tmp_path / "tokenizer.txt"))


def _head(folder: Path, head: str | None, **config: Any) -> Path:
    """Write a model whose head is "its own", "equal" to the embedding in another type, "alone", or None: not stored."""
    tensors = hf_tensors("F32")
    embedding = tensors["model.embed_tokens.weight"].astype(DTYPES["BF16"]).astype(np.float32)
    tensors = {name: array for name, array in tensors.items() if name != "lm_head.weight"}
    tensors["model.embed_tokens.weight"] = embedding
    if head == "its own":
        tensors["lm_head.weight"] = embedding + 1
    elif head == "equal":
        tensors["lm_head.weight"] = embedding.astype(DTYPES["BF16"])
    elif head == "alone":
        tensors["lm_head.weight"] = tensors.pop("model.embed_tokens.weight")
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    sizes = {"intermediate_size": 12, "num_hidden_layers": 1, "max_position_embeddings": 16} | heads
    return write_hf(folder, tensors, **{**sizes, "rms_norm_eps": 1e-5, **config})


@pytest.mark.parametrize(("head", "tied"), [("its own", False), ("equal", True), ("alone", True), (None, True)])
@pytest.mark.parametrize("stated", [True, None])
def test_a_tied_head_is_what_transformers_makes_of_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, head: str | None, tied: bool, stated: bool | None
) -> None:
    family = {} if stated else {"model_type": "smollm3"}  # tied if the configuration does not say
    folder = _head(tmp_path, head, **family, **({"tie_word_embeddings": True} if stated else {}))
    checkpoint = open_checkpoint(folder)
    assert checkpoint.config["tie_word_embeddings"] is tied
    assert checkpoint.load("model.embed_tokens.weight").shape == (13, 8)
    assert ("both are stored and differ" in caplog.text) is not tied


@pytest.mark.parametrize("nested", [False, True])
def test_a_second_rotation_that_differs_is_refused(tmp_path: Path, nested: bool) -> None:
    main = {"rope_theta": 5e5, "rope_type": "default"}
    both = {"full_attention": main, "sliding_attention": {"rope_theta": 1e4}}
    scaling = {"type": "linear", "factor": 2.0}
    write_hf(tmp_path, hf_tensors("F32"), rope_parameters=both if nested else main, rope_scaling=scaling)
    with pytest.raises(
        UnsupportedError, match=r"config.json: rope_scaling \{.*\} is not what rope_parameters says; write"
    ):
        open_checkpoint(tmp_path)


def test_a_second_rotation_may_say_the_same(tmp_path: Path) -> None:
    main = {"rope_theta": 5e5, "rope_type": "linear", "factor": 2.0}
    write_hf(tmp_path, hf_tensors("F32"), rope_parameters=main, rope_scaling={"type": "linear", "factor": 2.0})
    assert open_checkpoint(tmp_path).config["rope_parameters"] == main


def test_a_head_that_is_not_tied_stays_one_of_its_own(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(_head(tmp_path, "equal", tie_word_embeddings=False))
    assert not checkpoint.config["tie_word_embeddings"]


def test_an_index_may_name_buffers_that_no_file_has(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tensors = hf_tensors("F32")
    write_hf(tmp_path, tensors, shards=2)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    index["weight_map"]["model.layers.0.self_attn.rotary_emb.inv_freq"] = "model-00001-of-00002.safetensors"
    write_json(tmp_path / "model.safetensors.index.json", index)
    assert open_checkpoint(tmp_path).tensors.keys() == tensors.keys()
    assert "names 1 tensors that no file has, such as 'model.layers.0.self_attn.rotary_emb.inv_freq'" in caplog.text


@pytest.mark.parametrize(
    ("key", "value", "noted"),
    [
        ("logit_temperature", 0.5, True),
        ("attention_dropout", 0.1, False),
        ("rms_norm_eps", 1e-6, False),
        ("x", None, False),
        ("x", False, False),
        ("x", 0, True),
        ("transformers.js_config", 1, False),
    ],
)
def test_a_key_of_the_configuration_that_nothing_reads_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, key: str, value: float | None, noted: bool
) -> None:
    open_checkpoint(_head(tmp_path, None, tie_word_embeddings=True, **{key: value}))
    assert (f"config.json: nothing reads the keys {key} ({value})" in caplog.text) is noted


def test_a_tokenizer_s_dropout_is_left_out_with_a_note(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_hf(tmp_path)
    words = hf_tokenizer()
    words["model"]["dropout"] = 0.5
    write_json(tmp_path / "tokenizer.json", words)
    assert not json.loads(open_checkpoint(tmp_path).tokenizer_json)["model"]["dropout"]
    assert "tokenizer.json: dropout is left out, which splits texts at random" in caplog.text
