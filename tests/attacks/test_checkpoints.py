"""Refuse misleading checkpoints: one named case per abuse, each with a message that says what is wrong.

Every refusal must also be cheap: it takes at most a few MB, for any sizes that the file claims.
"""

from __future__ import annotations

import json
import os
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgedec.errors import BundleError, EdgedecError, UnsupportedError
from edgedec.quantize.pipeline import checkpoint_graph
from edgedec.quantize.readers import open_checkpoint
from tests.quantize.readers.support.make_checkpoints import (
    hf_tokenizer,
    llama2c_file,
    llama2c_header,
    llama2c_tensors,
    safetensors_bytes,
    small_pieces,
    tokenizer_bin,
    write_hf,
    write_json,
    write_llama2c,
)

Attack = Callable[[Path], Any]  # makes the checkpoint in an empty folder; a returned path is opened instead of it
_HUGE = (1 << 63) - 1


def _tensor(dtype: str = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def weights(header: dict[str, Any] | bytes, body: bytes = bytes(8), *, length: int | None = None) -> Attack:
    """Return a folder that is sound except for its model.safetensors."""

    def make(folder: Path) -> None:
        write_hf(folder)
        (folder / "model.safetensors").write_bytes(safetensors_bytes(header, body, length=length))

    return make


def index(weight_map: Any) -> Attack:
    """Return a folder of two shards that is sound except for the map of its index."""

    def make(folder: Path) -> None:
        write_hf(folder, shards=2)
        write_json(folder / "model.safetensors.index.json", {"weight_map": weight_map})

    return make


def text(name: str, content: bytes | dict[str, Any]) -> Attack:
    """Return a folder that is sound except for one of its text files."""

    def make(folder: Path) -> None:
        write_hf(folder)
        (folder / name).write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())

    return make


def llama2c(content: bytes | None = None, *, version: int = 0, **fields: Any) -> Attack:
    """Return a llama2.c file of ``content``, or a sound one with another header."""

    def make(folder: Path) -> Path:
        path = write_llama2c(folder, version)
        header = llama2c_header(version, **fields)
        path.write_bytes(content if content is not None else header + path.read_bytes()[len(header) :])
        return path

    return make


def pieces(content: bytes) -> Attack:
    """Return a sound llama2.c file with a tokenizer.bin of ``content``."""

    def make(folder: Path) -> Path:
        path = write_llama2c(folder)
        (folder / "tokenizer.bin").write_bytes(content)
        return path

    return make


def _same_tensor_in_two_shards(folder: Path) -> None:
    write_hf(folder, shards=2)
    index_path = folder / "model.safetensors.index.json"
    first, second = sorted(folder.glob("*.safetensors"))
    a, b = (name for name, shard in json.loads(index_path.read_text())["weight_map"].items() if shard == second.name)
    first.write_bytes(second.read_bytes())
    write_json(index_path, {"weight_map": {a: first.name, b: second.name}})


def _link_out_of_the_folder(folder: Path) -> Path:
    model = write_hf(folder / "model")
    (model / "model.safetensors").rename(folder / "elsewhere.safetensors")
    (model / "model.safetensors").symlink_to(folder / "elsewhere.safetensors")
    return model


def _shard_link_out_of_the_folder(folder: Path) -> Path:
    model = write_hf(folder / "model", shards=2)
    shard = sorted(model.glob("*.safetensors"))[0]
    shard.rename(folder / shard.name)
    shard.symlink_to(Path("..") / shard.name)
    return model


def _link_to_itself(folder: Path) -> None:
    write_hf(folder)
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to("config.json")


def _link_to_nothing(folder: Path) -> None:
    write_hf(folder)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to("gone.safetensors")


def _pipe_as_weights(folder: Path) -> None:
    write_hf(folder)
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")


def _folder_as_config(folder: Path) -> None:
    write_hf(folder)
    (folder / "config.json").unlink()
    (folder / "config.json").mkdir()


def _sparse_header(folder: Path) -> None:
    """Return a file of the length that it claims, without the space on the disk."""
    write_hf(folder)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", 1 << 40))
        file.truncate((1 << 40) + 8)


def _sparse_config(folder: Path) -> None:
    write_hf(folder)
    os.truncate(folder / "config.json", 1 << 40)


def _sparse_vocabulary(folder: Path) -> Path:
    path = write_llama2c(folder)
    os.truncate(folder / "tokenizer.bin", 1 << 40)
    return path


def _post_processor(ids: list[int], token: str = "<s>") -> dict[str, Any]:
    tokenizer = hf_tokenizer()
    tokenizer["post_processor"]["special_tokens"] = {token: {"id": token, "ids": ids, "tokens": [token] * len(ids)}}
    return tokenizer


def _float_bytes(value: float) -> bytes:
    return struct.pack("<f", value)


_DEEP = b'{"a":' * 100_000
_SPECIAL = [("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0)]
_ENTRY = json.dumps(_tensor()).encode()

CASES: dict[str, tuple[Attack, type[EdgedecError], str]] = {
    # --- safetensors: the header
    "empty weights": (text("model.safetensors", b""), BundleError, r"0 bytes are too few for a safetensors file"),
    "header length 2^63": (weights({}, length=1 << 63), BundleError, r"claims 9223372036854775808 bytes, but the file"),
    "header length 2^64 - 1": (weights({}, length=(1 << 64) - 1), BundleError, r"claims 18446744073709551615 bytes"),
    "header longer than the file": (
        weights({"a": _tensor()}, length=200),
        BundleError,
        r"claims 200 bytes, but the file",
    ),
    "header of a terabyte, sparse": (_sparse_header, BundleError, r"claims 1099511627776 bytes, but the file"),
    "header not JSON": (weights(b"\x00" * 16), BundleError, r"the header: not valid JSON"),
    "header not UTF-8": (weights(b'{"\xff":1}'), BundleError, r"the header is not UTF-8 at byte 2"),
    "header nested deeply": (weights(_DEEP), BundleError, r"the header: the JSON is nested too deeply"),
    "header a list": (weights(b"[1, 2]"), BundleError, r"the header: must hold a JSON object, not \[1, 2\]"),
    "number of 5,000 digits": (weights(b'{"a":' + b"9" * 5000 + b"}"), BundleError, r"the header: not valid JSON"),
    # --- safetensors: a tensor
    "the same tensor twice": (
        weights(b'{"a":' + _ENTRY + b',"a":' + _ENTRY + b"}"),
        BundleError,
        r"the key 'a' appears twice",
    ),
    "tensor name with a path": (weights({"../../etc/passwd": _tensor()}), BundleError, r"'../../etc/passwd': a name"),
    "tensor name with two dots": (weights({"a..b": _tensor()}), BundleError, r"tensor 'a..b': a name must be letters"),
    "tensor name absolute": (weights({"/tmp/x": _tensor()}), BundleError, r"tensor '/tmp/x': a name must be"),
    "tensor name with a NUL": (weights({"a\0b": _tensor()}), BundleError, r"tensor 'a\\x00b': a name must be"),
    "tensor name with half a surrogate": (weights(b'{"\\ud800":1}'), BundleError, r"half a surrogate pair"),
    "tensor name of a megabyte": (
        weights({"a" * (1 << 20): _tensor()}),
        BundleError,
        r"tensor 'a{30,}\.\.\.a+': a name",
    ),
    "tensor name empty": (weights({"": _tensor()}), BundleError, r"tensor '': a name must be"),
    "entry not an object": (weights({"a": 5}), BundleError, r"tensor 'a': must have exactly dtype, shape and"),
    "entry with a key more": (weights({"a": _tensor() | {"x": 1}}), BundleError, r"tensor 'a': must have exactly"),
    "dtype unknown": (weights({"a": _tensor("F7")}), UnsupportedError, r"tensor 'a': dtype 'F7' is unknown"),
    "dtype a number": (weights({"a": _tensor(3)}), BundleError, r"tensor 'a': dtype must be a string, not 3"),  # type: ignore[arg-type]
    "dimension 2^63": (weights({"a": _tensor(shape=[1 << 63])}), BundleError, r"'a': shape must be at most 8 positive"),
    "dimensions whose product overflows": (
        weights({"a": _tensor(shape=[_HUGE, _HUGE, 4])}),
        BundleError,
        r"'a': shape .* of F32 does not take the 8 bytes",
    ),
    "dimensions whose product is 2 modulo 2^64": (
        weights({"a": _tensor(shape=[_HUGE, 1 << 62, 8])}),
        BundleError,
        r"'a': shape .* does not take the 8 bytes",
    ),
    "dimension negative": (weights({"a": _tensor(shape=[-1, -2])}), BundleError, r"integers, not \[-1, -2\]"),
    "dimension zero": (weights({"a": _tensor(shape=[0, 2], offsets=[0, 0])}, b""), BundleError, r"not \[0, 2\]"),
    "dimension a fraction": (weights({"a": _tensor(shape=[2.0])}), BundleError, r"positive integers, not \[2.0\]"),
    "dimension true": (weights({"a": _tensor(shape=[True, 2])}), BundleError, r"integers, not \[True, 2\]"),
    "shape of 100 dimensions": (weights({"a": _tensor(shape=[1] * 99 + [2])}), BundleError, r"'a': shape must be at"),
    "shape not a list": (weights({"a": _tensor(shape="22")}), BundleError, r"positive integers, not '22'"),
    "offsets past the end": (
        weights({"a": _tensor(shape=[4], offsets=[0, 16])}),
        BundleError,
        r"tensor 'a' ends at byte \d+, but the file ends at \d+; it is truncated",
    ),
    "offsets of 2^63": (
        weights({"a": _tensor(shape=[2], offsets=[_HUGE - 8, _HUGE])}),
        BundleError,
        r"tensor 'a' ends at byte \d+, but the file ends at \d+",
    ),
    "offsets backwards": (weights({"a": _tensor(offsets=[8, 0])}), BundleError, r"\[begin, end\], not \[8, 0\]"),
    "offsets negative": (weights({"a": _tensor(offsets=[-8, 0])}), BundleError, r"\[begin, end\], not \[-8, 0\]"),
    "offsets three": (weights({"a": _tensor(offsets=[0, 4, 8])}), BundleError, r"not \[0, 4, 8\]"),
    "tensors overlap": (
        weights({"a": _tensor(), "b": _tensor(offsets=[4, 12])}, bytes(12)),
        BundleError,
        r"tensor 'b' overlaps the tensor before it",
    ),
    "two names for the same bytes": (
        weights({"a": _tensor(), "b": _tensor()}),
        BundleError,
        r"tensor 'b' overlaps the tensor before it",
    ),
    "hole before the first tensor": (
        weights({"a": _tensor(offsets=[4, 12])}, bytes(12)),
        BundleError,
        r"'a' leaves a hole",
    ),
    "bytes behind the last tensor": (
        weights({"a": _tensor()}, bytes(9)),
        BundleError,
        r"1 bytes after the last tensor",
    ),
    # --- shards
    "shard path climbs": (index({"a": "../model.safetensors"}), BundleError, r"'a' must be in a .safetensors file of"),
    "shard path absolute": (index({"a": "/tmp/m.safetensors"}), BundleError, r"not '/tmp/m.safetensors'"),
    "shard path with a NUL": (index({"a": "m\0.safetensors"}), BundleError, r"tensor 'a' must be in a .safetensors"),
    "shard path of Windows": (index({"a": "C:\\m.safetensors"}), BundleError, r"tensor 'a' must be in a .safetensors"),
    "shard not a string": (index({"a": ["m.safetensors"]}), BundleError, r"tensor 'a' must be in a .safetensors"),
    "shard missing": (
        index({"a": "gone.safetensors"}),
        BundleError,
        r"should be in gone.safetensors, which is missing",
    ),
    "index without a map": (index(None), BundleError, r"weight_map must be an object"),
    "index with an empty map": (index({}), BundleError, r"weight_map must be an object"),
    "the same tensor in two shards": (_same_tensor_in_two_shards, BundleError, r"is in both model-00001-of-00002"),
    # --- links and special files
    "weights are a link out of the folder": (_link_out_of_the_folder, BundleError, r"outside the checkpoint"),
    "shard is a link out of the folder": (_shard_link_out_of_the_folder, BundleError, r"outside the checkpoint"),
    "config is a link to itself": (_link_to_itself, BundleError, r"config.json cannot be read"),
    "weights are a link to nothing": (_link_to_nothing, BundleError, r"model.safetensors is missing"),
    "weights are a pipe": (_pipe_as_weights, BundleError, r"model.safetensors is not a regular file"),
    "config is a folder": (_folder_as_config, BundleError, r"config.json is not a regular file"),
    # --- config and tokenizer of a Hugging Face folder
    "config nested deeply": (text("config.json", _DEEP), BundleError, r"config.json: the JSON is nested too deeply"),
    "config not UTF-8": (text("config.json", b'{"a": "\xe9"}'), BundleError, r"config.json is not UTF-8 at byte 7"),
    "config says a thing twice": (text("config.json", b'{"a":1,"a":2}'), BundleError, r"the key 'a' appears twice"),
    "config of a terabyte, sparse": (_sparse_config, BundleError, r"config.json has 1099511627776 bytes; the limit"),
    "config without a vocabulary size": (
        text("config.json", {}),
        BundleError,
        r"vocab_size must be a positive integer",
    ),
    "vocabulary size a string": (text("config.json", {"vocab_size": "9"}), BundleError, r"integer, not '9'"),
    "vocabulary size negative": (text("config.json", {"vocab_size": -1}), BundleError, r"integer, not -1"),
    "vocabulary smaller than the tokenizer": (
        text("config.json", {"vocab_size": 12}),
        BundleError,
        r"has token id 12 \('he'\), but the model's vocabulary ends at 11",
    ),
    "end token outside the vocabulary": (
        text("config.json", {"vocab_size": 13, "eos_token_id": [2, 13]}),
        BundleError,
        r"eos_token_id must be ids below vocab_size \(13\), not \[2, 13\]",
    ),
    "begin token true": (
        text("config.json", {"vocab_size": 13, "bos_token_id": True}),
        BundleError,
        r"bos_token_id must be ids",
    ),
    "generation config a list": (text("generation_config.json", b"[]"), BundleError, r"must hold a JSON object"),
    "special token that is not there": (
        text("tokenizer_config.json", {"eos_token": "<end>"}),
        BundleError,
        r"eos_token is '<end>', which the tokenizer does not have",
    ),
    "special token a number": (
        text("tokenizer_config.json", {"bos_token": 1}),
        BundleError,
        r"bos_token must be a str",
    ),
    "chat template a number": (
        text("tokenizer_config.json", {"chat_template": 1}),
        BundleError,
        r"must be text, or texts with names, not 1",
    ),
    "chat templates without names": (
        text("tokenizer_config.json", {"chat_template": [{"name": ["default"]}, 3, {}]}),
        BundleError,
        r"must be text, or texts with names, not \[",
    ),
    "chat templates without a default": (
        text("tokenizer_config.json", {"chat_template": [{"name": "rag", "template": "x"}]}),
        UnsupportedError,
        r'no chat template is named "default", only \'rag\'; rename the one to use',
    ),
    "added token that is none": (
        text("tokenizer_config.json", {"added_tokens_decoder": {"3": "<x>"}}),
        BundleError,
        r"added_tokens_decoder\[3\] must be an object whose content is a text, not '<x>'",
    ),
    "added tokens that are none": (
        text("tokenizer_config.json", {"added_tokens_decoder": [1]}),
        BundleError,
        r"added_tokens_decoder must map ids to tokens, not \[1\]",
    ),
    "added token with a flag of text": (
        text("tokenizer_config.json", {"added_tokens_decoder": {"3": {"content": "x", "special": "yes"}}}),
        BundleError,
        r"added_tokens_decoder\[3\] has a flag that is neither true nor false",
    ),
    "added token without a row": (
        text("tokenizer_config.json", {"added_tokens_decoder": {"13": {"content": "<x>"}}}),
        BundleError,
        r"has token id 13 \('<x>'\), but the model's vocabulary ends at 12",
    ),
    "added_tokens.json without ids": (
        text("added_tokens.json", {"<x>": "12"}),
        BundleError,
        r"added_tokens.json: '<x>' must have a token id, not '12'",
    ),
    "special tokens that are numbers": (
        text("special_tokens_map.json", {"additional_special_tokens": [1]}),
        BundleError,
        r"additional_special_tokens must be a string, not 1",
    ),
    "a named token with a name that a terminal obeys": (
        text("special_tokens_map.json", {"\x1b[2J_token": {"special": True}}),
        BundleError,
        r"json: \\x1b\[2J_token must be an object whose content is a text",
    ),
    "a flag that is a text": (
        text("tokenizer_config.json", {"add_bos_token": "yes"}),
        BundleError,
        r"tokenizer_config.json: add_bos_token must be true or false, not 'yes'",
    ),
    "a setting that splits special tokens": (
        text("tokenizer_config.json", {"split_special_tokens": True}),
        UnsupportedError,
        r"split_special_tokens True changes how texts become tokens, and is not read",
    ),
    "chat template not UTF-8": (text("chat_template.jinja", b"\xff"), BundleError, r"is not UTF-8 at byte 0"),
    "tokenizer not JSON": (text("tokenizer.json", b"{"), BundleError, r"tokenizer.json is not a usable tokenizer"),
    "tokenizer nested deeply": (text("tokenizer.json", _DEEP), BundleError, r"is not a usable tokenizer"),
    "tokenizer without a model": (
        text("tokenizer.json", {"version": "1.0"}),
        BundleError,
        r"is not a usable tokenizer",
    ),
    "tokenizer with an id of 2^32 - 1": (
        text("tokenizer.json", hf_tokenizer(model={"type": "BPE", "vocab": {"a": (1 << 32) - 1}, "merges": []})),
        BundleError,
        r"has token id 4294967295",
    ),
    "tokenizer without tokens": (
        text("tokenizer.json", hf_tokenizer(model={"type": "BPE", "vocab": {}, "merges": []}, added_tokens=[])),
        BundleError,
        r"the vocabulary is empty",
    ),
    "tokenizer joins what is not there": (
        text("tokenizer.json", hf_tokenizer(model={"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "b"]]})),
        BundleError,
        r"is not a usable tokenizer",
    ),
    "post-processor names a missing token": (
        text("tokenizer.json", _post_processor([1], token="<x>")),
        BundleError,
        r"is not a usable tokenizer",
    ),
    "post-processor puts an id out of reach": (
        text("tokenizer.json", _post_processor([99])),
        BundleError,
        r"has token id 99",
    ),
    # --- llama2.c: the header
    "empty llama2.c file": (llama2c(b""), BundleError, r"is an empty file"),
    "header of llama2.c cut off": (llama2c(llama2c_header(0)[:27]), BundleError, r"27 bytes are too few"),
    "long header of llama2.c cut off": (llama2c(llama2c_header(2)[:255]), BundleError, r"255 bytes are too few for a"),
    "version unknown": (
        llama2c(struct.pack("<Ii", 0x616B3432, 3).ljust(256, b"\0")),
        UnsupportedError,
        r"version 3 of llama2.c's format is unknown; 0, 1 and 2 are read",
    ),
    "llama2.c file of zeros": (
        llama2c(bytes(1000)),
        BundleError,
        r"dim must be 1 to \d+, not 0; this is not a llama2.c",
    ),
    "llama2.c file of ones": (llama2c(b"\xff" * 1000), BundleError, r"dim must be 1 to \d+, not -1"),
    "dim 2^31 - 1": (llama2c(dim=(1 << 31) - 1), BundleError, r"dim 2147483647 does not divide into 2 heads"),
    "dim near 2^31": (llama2c(dim=(1 << 31) - 4), BundleError, r"describes \d{20,} bytes, but the file has"),
    "hidden negative": (llama2c(hidden_dim=-12), BundleError, r"hidden_dim must be 1 to 2147483647, not -12"),
    "layers 2^31 - 1": (llama2c(layers=(1 << 31) - 1), BundleError, r"layers must be 1 to 1024, not 2147483647"),
    "layers zero": (llama2c(version=2, layers=0), BundleError, r"layers must be 1 to 1024, not 0"),
    "heads zero": (llama2c(heads=0), BundleError, r"heads must be 1 to"),
    "heads do not divide dim": (llama2c(heads=3), BundleError, r"dim 8 does not divide into 3 heads of an even width"),
    "heads of odd width": (llama2c(heads=8), BundleError, r"dim 8 does not divide into 8 heads of an even width"),
    "kv heads do not divide heads": (llama2c(heads=4, kv_heads=3), BundleError, r"4 heads do not divide among 3 kv"),
    "more kv heads than heads": (llama2c(kv_heads=4), BundleError, r"2 heads do not divide among 4 kv heads"),
    "huge vocabulary, tiny file": (
        llama2c(vocab_size=(1 << 31) - 1),
        BundleError,
        r"vocabulary 2147483647\) describes",
    ),
    "vocabulary -2^31": (
        llama2c(vocab_size=-(1 << 31)),
        BundleError,
        r"vocab_size must be 1 to 2147483647, not 2147483648",
    ),
    "positions 2^31 - 1": (
        llama2c(version=1, positions=(1 << 31) - 1),
        BundleError,
        r"positions must be 1 to 16777216",
    ),
    "head said to be untied": (llama2c(vocab_size=-13), BundleError, r"describes \d+ bytes, but the file has"),
    "tied neither 0 nor 1": (llama2c(version=1, tied=7), BundleError, r"is tied must be 0 or 1, not 7"),
    "bytes behind the last tensor of llama2.c": (
        llama2c(llama2c_file(0, llama2c_tensors()) + bytes(4)),
        BundleError,
        r"describes \d+ bytes, but the file has \d+; it is truncated, damaged",
    ),
    "group size zero": (llama2c(version=2, group_size=0), BundleError, r"the group size must be positive, not 0"),
    "group size negative": (llama2c(version=2, group_size=-4), BundleError, r"the group size must be positive, not -4"),
    "group size that does not divide": (
        llama2c(version=2, group_size=5),
        BundleError,
        r"'model.embed_tokens.weight' of shape \(13, 8\) does not divide into groups of 5",
    ),
    "group size 2^31 - 1": (llama2c(version=2, group_size=(1 << 31) - 1), BundleError, r"does not divide into groups"),
    "tokenizer smaller than llama2.c's vocabulary": (
        pieces(tokenizer_bin(small_pieces()[:-1])),
        BundleError,
        r"has 12 pieces for a vocabulary of 13; it is truncated, or belongs to another model",
    ),
    "tokenizer of another model": (
        pieces(tokenizer_bin(small_pieces(with_bytes=True))),
        BundleError,
        r"has token id 268 \('he'\), but the model's vocabulary ends at 12; this tokenizer belongs to another",
    ),
    # --- tokenizer.bin
    "tokenizer.bin empty": (pieces(b""), BundleError, r"0 bytes cannot be a tokenizer.bin"),
    "tokenizer.bin without pieces": (pieces(struct.pack("<i", 7)), BundleError, r"tokens 0, 1, 2 must be <unk>"),
    "tokenizer.bin of a terabyte, sparse": (_sparse_vocabulary, BundleError, r"1099511627776 bytes cannot be"),
    "longest piece 2^31 - 1": (
        pieces(tokenizer_bin(_SPECIAL, longest=(1 << 31) - 1)),
        BundleError,
        r"the longest piece must have 1 to 1024 bytes, not 2147483647",
    ),
    "piece longer than the longest": (
        pieces(tokenizer_bin(_SPECIAL, longest=5)),
        BundleError,
        r"piece 2 must have 1 to 5 bytes, the size of the longest piece, not 6",
    ),
    "piece past the end": (
        pieces(tokenizer_bin(_SPECIAL, longest=500) + struct.pack("<fi", 0, 500) + b"abc"),
        BundleError,
        r"piece 3 has 500 bytes, but the file ends after 3; it is truncated",
    ),
    "piece of negative length": (
        pieces(tokenizer_bin(_SPECIAL) + struct.pack("<fi", 0, -1)),
        BundleError,
        r"piece 3 must have 1 to 6 bytes, the size of the longest piece, not -1",
    ),
    "piece empty": (pieces(tokenizer_bin([*_SPECIAL, ("", -1.0)])), BundleError, r"piece 3 must have 1 to 6 bytes"),
    "piece cut off": (pieces(tokenizer_bin(_SPECIAL) + b"\0\0\0"), BundleError, r"piece 3 is cut off at byte"),
    "piece not UTF-8": (
        pieces(tokenizer_bin(_SPECIAL) + struct.pack("<fi", 0, 2) + b"\xc3("),
        BundleError,
        r"piece 3 is not UTF-8: b'\\xc3\('",
    ),
    "piece twice": (
        pieces(tokenizer_bin([*_SPECIAL, ("a", -1.0), ("b", -2.0), ("a", -3.0)])),
        BundleError,
        r"the piece 'a' appears 2 times",
    ),
    "score not a number": (
        pieces(tokenizer_bin([*_SPECIAL, ("a", float("nan"))])),
        BundleError,
        r"piece 3 \('a'\) has the score nan",
    ),
    "special tokens in other places": (
        pieces(tokenizer_bin(_SPECIAL[::-1])),
        BundleError,
        r"tokens 0, 1, 2 must be <unk>, <s>, </s>, not \['</s>', '<s>', '<unk>'\]",
    ),
    "only some byte pieces": (
        pieces(tokenizer_bin([*_SPECIAL, ("<0x41>", -1.0)])),
        BundleError,
        r"has 1 of the 256 byte pieces",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_misleading_checkpoint_is_refused(tmp_path: Path, case: str) -> None:
    attack, error, message = CASES[case]
    path = attack(tmp_path) or tmp_path
    tracemalloc.start()
    try:
        with pytest.raises(error, match=message) as caught:
            open_checkpoint(path)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert type(caught.value) is error
    assert str(tmp_path) in str(caught.value), "the message names the file"
    assert len(str(caught.value)) < 600
    assert peak < 8 << 20


_YARN = {"type": "yarn", "factor": 2.0}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": "8"}, r"configuration: hidden_size must be an integer in 1\.\.\d+, not '8'"),
        ({"model_type": "m" * 9999}, r"model_type 'm+\.\.\.m+' is not supported; known: bitnet"),
        (
            {"rope_scaling": ["linear"] * 999},
            r"configuration: rope_scaling must be an object, not \['linear', .*\.\.\.\]",
        ),
        ({"max_position_embeddings": [64]}, r"configuration: max_position_embeddings must be an integer"),
        (
            {"rope_scaling": {**_YARN, "beta_fast": 1e-320}},
            r"configuration: beta_fast must be a number of at least 1e-30",
        ),
        (
            {"rope_scaling": {**_YARN, "beta_slow": 1e-320}},
            r"configuration: beta_slow must be a number of at least 1e-30",
        ),
        (
            {"rope_scaling": {"type": "longrope", "factor": 2.0, "short_factor": [1e-320, 1.0]}},
            r"configuration: short_factor must be a number of at least 1e-30, not 1e-320",
        ),
        ({"max_position_embeddings": 1 << 40}, r"configuration: max_position_embeddings must be an integer in 1"),
    ],
)
def test_a_refusal_of_the_family_names_the_checkpoint(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    """Check the positions too, which are read only to run the model."""
    sizes = {"intermediate_size": 3, "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 64}
    checkpoint = open_checkpoint(write_hf(tmp_path, **(sizes | changes)))
    with pytest.raises(EdgedecError, match=f"^{tmp_path}: {message}") as caught:
        checkpoint_graph(checkpoint)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("version", ["\x1b[2J", "a\nb", "x" * 9999])
def test_messages_of_a_library_are_made_harmless(tmp_path: Path, version: str) -> None:
    write_hf(tmp_path)
    write_json(tmp_path / "tokenizer.json", hf_tokenizer(version=version))
    with pytest.raises(BundleError, match=r"tokenizer.json is not a usable tokenizer: Unknown tok") as caught:
        open_checkpoint(tmp_path)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_scale_that_is_not_finite_is_refused(tmp_path: Path, value: float) -> None:
    path = write_llama2c(tmp_path, 2)
    data = path.read_bytes()
    first_scale = 256 + 5 * 8 * 4 + 13 * 8  # header, norms, the embedding's codes
    path.write_bytes(data[:first_scale] + _float_bytes(value) + data[first_scale + 4 :])
    checkpoint = open_checkpoint(path)
    with pytest.raises(BundleError, match=r"tensor 'model.embed_tokens.weight' has the scale \S+ in group 0"):
        checkpoint.load("model.embed_tokens.weight")
    checkpoint.load("model.norm.weight")


def test_weights_deleted_after_opening_are_an_error(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_hf(tmp_path))
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(BundleError, match=r"tensor 'model.norm.weight' cannot be read: No such file"):
        checkpoint.load("model.norm.weight")
