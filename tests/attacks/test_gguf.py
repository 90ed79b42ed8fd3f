"""Refuse misleading GGUF files: one named case per abuse, and any number of random ones.

Every refusal names the file and is cheap: it takes at most a few MB, for any sizes that the file claims.
"""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgedec.errors import BundleError, EdgedecError, UnsupportedError
from edgedec.quantize.pipeline import checkpoint_graph
from edgedec.quantize.readers import open_checkpoint
from tests.quantize.readers.support import make_gguf as builder
from tests.quantize.readers.support.make_gguf import Raw, RawTensor, file_bytes, metadata, string, tensor, values

_MAX_BYTES = 8 << 20
_HUGE = (1 << 64) - 1


def tensors() -> list[RawTensor]:
    return [tensor(*item) for item in values().items()]


def model(**changes: Any) -> bytes:
    return file_bytes(metadata(**changes), tensors())


def with_tensor(**changes: Any) -> bytes:
    """Return a file that is sound except for its first tensor, a matrix of 13 rows of 8."""
    first, *further = tensors()
    fields: dict[str, Any] = {
        "name": first.name,
        "sizes": first.sizes,
        "kind": first.kind,
        "data": first.data,
    } | changes
    return file_bytes(metadata(), [RawTensor(**fields), *further])


def entry(key: str | bytes, value: Any) -> bytes:
    return file_bytes([*metadata().items(), (key, value)], tensors())


def array(kind: int, count: int, data: bytes = b"") -> Raw:
    return Raw(builder.ARRAY, struct.pack("<IQ", kind, count) + data)


def nested(depth: int) -> Raw:
    return Raw(builder.ARRAY, struct.pack("<IQ", builder.ARRAY, 1) * depth)


def sparse(folder: Path) -> bytes:
    """Return a sparse file of a terabyte, which is made here and not from bytes."""
    with (folder / "model.gguf").open("wb") as file:
        file.write(file_bytes([("a", array(builder.STRING, 1 << 36))], []))
        file.truncate(1 << 40)
    return b""


_TOKENS = "tokenizer__ggml__tokens"
CASES: dict[str, tuple[bytes | Callable[[Path], bytes], type[EdgedecError], str]] = {
    # --- header
    "only the magic": (
        b"GGUF",
        BundleError,
        r"the version: 4 bytes are needed from byte 4 on, but the file ends at 4",
    ),
    "version 1": (file_bytes([], [], version=1), UnsupportedError, r"version 1 of GGUF is not read; known: 2 and 3"),
    "version 0": (file_bytes([], [], version=0), UnsupportedError, r"version 0 of GGUF is not read"),
    "big-endian": (file_bytes([], [], version=3 << 24), UnsupportedError, r"is big-endian"),
    "2^64 - 1 tensors": (file_bytes([], [], tensor_count=_HUGE), BundleError, r"claims 18446744073709551615 tensors"),
    "2^63 entries": (
        file_bytes([], [], entry_count=1 << 63),
        BundleError,
        r"claims 9223372036854775808 metadata entries",
    ),
    "more entries than there are": (file_bytes([], [], entry_count=9), BundleError, r"metadata entry 0|the key of"),
    "more tensors than there are": (
        file_bytes(metadata(), [], tensor_count=100),
        BundleError,
        r"tensor '': a name must be",
    ),
    # --- metadata
    "key of 2^64 - 1 bytes": (
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, _HUGE),
        BundleError,
        r"the key of metadata entry 0 claims 18446744073709551615 bytes; at most 512",
    ),
    "key with a NUL": (entry(b"a\0b", 1), BundleError, r"has an impossible key, 'a\\x00b'"),
    "key not UTF-8": (entry(b"\xff", 1), BundleError, r"is not UTF-8 at byte 0"),
    "key empty": (entry("", 1), BundleError, r"has an impossible key, ''"),
    "key twice": (entry("llama.block_count", 1), BundleError, r"the metadata key 'llama.block_count' appears twice"),
    "type unknown": (entry("x", Raw(13, b"")), BundleError, r"metadata 'x' has the type 13, which GGUF does not have"),
    "string of 2^63 bytes": (
        entry("x", Raw(builder.STRING, struct.pack("<Q", 1 << 63))),
        BundleError,
        r"metadata 'x' claims 9223372036854775808 bytes; at most",
    ),
    "string past the end": (
        entry("x", Raw(builder.STRING, struct.pack("<Q", 1 << 24))),
        BundleError,
        r"metadata 'x': 16777216 bytes are needed from byte \d+ on, but the file ends",
    ),
    "truth value of 2": (entry("x", Raw(builder.BOOL, b"\2")), BundleError, r"metadata 'x' must be 0 or 1, not 2"),
    "truth values of 2": (entry("x", array(builder.BOOL, 1, b"\2")), BundleError, r"'x' holds a truth value that is"),
    "array of 2^64 - 1 numbers": (
        entry("x", array(builder.UINT64, _HUGE)),
        BundleError,
        r"metadata .x.: \d{20,} bytes are needed",
    ),
    "array of 2^40 strings": (entry("x", array(builder.STRING, 1 << 40)), BundleError, r"claims 1099511627776 strings"),
    "array of a million strings in a small file": (
        entry("x", array(builder.STRING, 1 << 20)),
        BundleError,
        r"claims 1048576 strings, more than the file has room for",
    ),
    "array of strings in a sparse terabyte": (sparse, BundleError, r"claims 68719476736 strings; at most"),
    "arrays in arrays": (entry("x", nested(1)), UnsupportedError, r"metadata 'x' is an array of arrays"),
    "arrays nested 100,000 deep": (
        entry("x", nested(100_000)),
        UnsupportedError,
        r"metadata 'x' is an array of arrays",
    ),
    "array of an unknown type": (entry("x", array(77, 1)), BundleError, r"'x' is an array of the type 77"),
    # --- tensors
    "name with a path": (with_tensor(name=b"../../etc/passwd"), BundleError, r"'../../etc/passwd': a name must be"),
    "name with a NUL": (with_tensor(name=b"a\0b"), BundleError, r"tensor 'a\\x00b': a name must be"),
    "name empty": (with_tensor(name=b""), BundleError, r"tensor '': a name must be"),
    "name not UTF-8": (with_tensor(name=b"\xe9"), BundleError, r"the name of tensor 0 is not UTF-8"),
    "name of a kilobyte": (
        with_tensor(name=b"a" * 1024),
        BundleError,
        r"the name of tensor 0 claims 1024 bytes; at most 256",
    ),
    "name twice": (
        file_bytes(metadata(), [*tensors(), tensors()[0]]),
        BundleError,
        r"tensor 'token_embd.weight' appears twice",
    ),
    "no dimension": (with_tensor(sizes=()), BundleError, r"has 0 dimensions; it must have 1 to 4"),
    "2^32 - 1 dimensions": (
        file_bytes(metadata(), [], tensor_count=1)[: -(-len(file_bytes(metadata(), [])) // 32) * 32]
        + string("a")
        + struct.pack("<I", (1 << 32) - 1),
        BundleError,
        r"tensor|the name of tensor 0",
    ),
    "dimension zero": (with_tensor(sizes=(8, 0)), BundleError, r"has the impossible shape \[0, 8\]"),
    "dimension -1": (with_tensor(sizes=(8, _HUGE)), BundleError, r"has the impossible shape"),
    "dimensions whose product overflows": (
        with_tensor(sizes=(1 << 39, 1 << 39, 1 << 39)),
        BundleError,
        r"tensor 'output_norm.weight' (overlaps|leaves a hole)|ends at byte \d{20,}, but the file ends at",
    ),
    "type unknown to GGML": (with_tensor(kind=999), UnsupportedError, r"has GGML's type 999, which is not known"),
    "I2_S of rows that are no blocks": (
        with_tensor(kind=36),
        BundleError,
        r"rows of 8, not a multiple of I2_S's block of 64",
    ),
    "I2_S of three dimensions": (
        with_tensor(kind=36, sizes=(64, 1, 1), data=bytes(48)),
        UnsupportedError,
        r"is I2_S and has the shape \(1, 1, 64\); it must be a matrix of at most 1048576 rows and columns",
    ),
    "I2_S that nothing tells apart": (
        with_tensor(kind=36, sizes=(128, 4), data=bytes(160)),
        UnsupportedError,
        r"is I2_S, .*no layer has gate, up and down in I2_S",
    ),
    "rows that are no blocks": (
        with_tensor(kind=builder.Q8_0),
        BundleError,
        r"rows of 8, not a multiple of Q8_0's block of 32",
    ),
    "offset -32": (with_tensor(offset=_HUGE - 31), BundleError, r"leaves a hole before it"),
    "offset past the end": (with_tensor(offset=1 << 40), BundleError, r"leaves a hole before it"),
    "offset not aligned": (with_tensor(offset=1), BundleError, r"leaves a hole before it"),
    "tensors overlap": (
        file_bytes(metadata(), [tensors()[0], RawTensor(b"output_norm.weight", (8,), 0, bytes(32), offset=0)]),
        BundleError,
        r"overlaps the tensor before it",
    ),
    "cut off in the last tensor": (
        model()[:-40],
        BundleError,
        r"ends at byte \d+, but the file ends at \d+; it is truncated",
    ),
    "alignment zero": (model(general__alignment=0), BundleError, r"must be a power of two from 8, not 0"),
    "alignment 33": (model(general__alignment=33), BundleError, r"must be a power of two from 8, not 33"),
    "alignment 2^31": (model(general__alignment=1 << 31), BundleError, r"must be a power of two from 8"),
    "part without its number": (model(split__count=3), BundleError, r"split.no must be an integer in 0..2, not None"),
    "part under another name": (
        model(split__count=3, split__no=1, split__tensors__count=9),
        BundleError,
        r"is part 2 of 3, so its name must end with -00002-of-00003.gguf",
    ),
    "part behind the last": (model(split__count=3, split__no=3), BundleError, r"split.no must be an integer in 0..2"),
    "4,294,967,295 parts": (model(split__count=_HUGE >> 32), BundleError, r"split.count must be an integer in 0..9999"),
    "parts that are text": (
        model(split__count="3"),
        BundleError,
        r"split.count must be an integer in 0..9999, not '3'",
    ),
    # --- the model
    "architecture missing": (
        model(general__architecture=None),
        UnsupportedError,
        r"architecture None is not read; known",
    ),
    "architecture unknown": (
        file_bytes(metadata("clip"), tensors()),
        UnsupportedError,
        r"'clip' is not read; known: llama",
    ),
    "no layers": (
        model(llama__block_count=0),
        BundleError,
        r"block_count must be a positive integer up to 4096, not 0",
    ),
    "layers 2^32 - 1": (
        model(llama__block_count=(1 << 32) - 1),
        BundleError,
        r"block_count must be a positive integer",
    ),
    "16,777,217 layers, each of which the configuration names": (
        file_bytes(metadata("gemma3", gemma3__block_count=(1 << 24) + 1), tensors()),
        BundleError,
        r"gemma3.block_count must be a positive integer up to 4096, not 16777217",
    ),
    "layers a string": (
        model(llama__block_count="1"),
        BundleError,
        r"block_count must be a positive integer up to 4096, not '1'",
    ),
    "heads differ between layers": (
        model(llama__attention__head_count=[2, 1]),
        UnsupportedError,
        r"head_count differs between layers",
    ),
    "epsilon NaN": (
        model(llama__attention__layer_norm_rms_epsilon=float("nan")),
        BundleError,
        r"rms_epsilon must be a positive number, not nan",
    ),
    "heads of odd width": (model(llama__attention__key_length=3), BundleError, r"heads of 3 columns cannot be rotated"),
    "experts that differ": (model(llama__expert_count=[0, 8]), UnsupportedError, r"expert_count differs between"),
    "epsilons, one for each column": (
        model(llama__attention__layer_norm_rms_epsilon=[-float(at) for at in range(13)]),
        BundleError,
        r"rms_epsilon must be a positive number, not array\(\[[^\n]*\)$",
    ),
    "experts": (model(llama__expert_count=8), UnsupportedError, r"models with experts are not read"),
    "heads that rotate in part": (
        model(llama__rope__dimension_count=2),
        UnsupportedError,
        r"dimension_count other than",
    ),
    "rotations, one for each layer": (
        model(llama__rope__scaling__type=[1, 2]),
        BundleError,
        r"rope.scaling.type must be text, not array\(\[1, 2\]",
    ),
    "rotation unknown": (model(llama__rope__scaling__type="spiral"), UnsupportedError, r"type 'spiral' is not read"),
    "tensor without a place": (
        file_bytes(metadata(), [*tensors(), tensor("blk.0.secret.weight", values()["output_norm.weight"])]),
        UnsupportedError,
        r"tensor 'blk.0.secret.weight' has no place in a llama",
    ),
    "layer spelled in two ways": (
        file_bytes(metadata(), [*tensors(), tensor("blk.00.attn_norm.weight", values()["output_norm.weight"])]),
        UnsupportedError,
        r"tensor 'blk.00.attn_norm.weight' has no place",
    ),
    "factors of another width": (
        file_bytes(metadata(), [*tensors(), tensor("rope_freqs.weight", values()["output_norm.weight"])]),
        BundleError,
        r"tensor 'rope_freqs.weight' must be 2 positive numbers",
    ),
    "scale without its weight": (
        file_bytes(metadata(), [*tensors(), tensor("blk.0.x.scale", values()["output_norm.weight"][:1])]),
        BundleError,
        r"is the scale of a weight that is missing",
    ),
    # --- the vocabulary
    "no tokens": (
        model(**{_TOKENS: None}),
        BundleError,
        r"tokens must be a list of strings; pass the model's tokenizer",
    ),
    "tokens are numbers": (model(**{_TOKENS: [1, 2]}), BundleError, r"tokens must be a list of strings"),
    "more tokens than rows": (
        model(
            **{_TOKENS: [f"t{at}" for at in range(14)]},
            tokenizer__ggml__scores=[0.0] * 14,
            tokenizer__ggml__token_type=[1] * 14,
        ),
        BundleError,
        r"has token id 13 \('t13'\), but the model's vocabulary ends at 12",
    ),
    "a token twice": (
        model(**{_TOKENS: ["<unk>", "<s>", "</s>", *["a"] * 10]}),
        BundleError,
        r"the piece 'a' appears 10 times",
    ),
    "scores of other tokens": (model(tokenizer__ggml__scores=[0.0]), BundleError, r"scores must be 13 numbers"),
    "score NaN": (model(tokenizer__ggml__scores=[float("nan")] * 13), BundleError, r"piece 0 .* has the score nan"),
    "types of other tokens": (model(tokenizer__ggml__token_type=[1]), BundleError, r"token_type must be 13 numbers"),
    "a byte that is none": (model(tokenizer__ggml__token_type=[6] * 13), BundleError, r"has the type of a byte"),
    "begin token a string": (model(tokenizer__ggml__bos_token_id="1"), BundleError, r"must be a token id, not '1'"),
    "merges of no two": (
        model(tokenizer__ggml__model="gpt2", tokenizer__ggml__pre="gpt-2", tokenizer__ggml__merges=["a b", "ab"]),
        BundleError,
        r"merges\[1\] must be two tokens, not 'ab'",
    ),
    "merges of what is not there": (
        model(tokenizer__ggml__model="gpt2", tokenizer__ggml__pre="gpt-2", tokenizer__ggml__merges=["a zz", "a z"]),
        UnsupportedError,
        r"merges joins 'a' and 'z', and 'z' is no token; pass the model's tokenizer.json",
    ),
    "template a number": (model(tokenizer__chat_template=1), BundleError, r"chat_template must be text, not 1"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_misleading_file_is_refused(tmp_path: Path, case: str) -> None:
    content, error, message = CASES[case]
    path = tmp_path / "model.gguf"
    if callable(content):
        content(tmp_path)
    else:
        path.write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises(error, match=message) as caught:
            open_checkpoint(path)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert type(caught.value) is error
    assert str(path) in str(caught.value), "the message names the file"
    assert len(str(caught.value)) < 600
    assert peak < _MAX_BYTES


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"split__tensors__count": 99}, r"its 2 parts have 11 tensors, but split.tensors.count is 99"),
        ({"split__tensors__count": 1}, r"its 2 parts have 11 tensors, but split.tensors.count is 1"),
        ({"split__tensors__count": None}, r"split.tensors.count must be an integer"),
        ({"general__architecture": "qwen2"}, r"00002-of-00002.gguf: its general.architecture is not that of"),
    ],
)
def test_misleading_parts_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    """Put the tensors into the first part, and more of the metadata than allowed into the second."""
    counts: dict[str, Any] = {"split__count": 2, "split__tensors__count": 11}
    lies = {key: value for key, value in changes.items() if key.startswith("split")}
    first = metadata(split__no=0, **(counts | lies))
    second = metadata(split__no=1, **(counts | changes))
    path = tmp_path / "m-00001-of-00002.gguf"
    path.write_bytes(file_bytes(first, tensors()))
    (tmp_path / "m-00002-of-00002.gguf").write_bytes(file_bytes(second, []))
    with pytest.raises(BundleError, match=message):
        open_checkpoint(path)


def test_a_damaged_part_is_named(tmp_path: Path) -> None:
    counts: dict[str, Any] = {"split__count": 2, "split__tensors__count": 11}
    path = tmp_path / "m-00001-of-00002.gguf"
    path.write_bytes(file_bytes(metadata(split__no=0, **counts), tensors()))
    (tmp_path / "m-00002-of-00002.gguf").write_bytes(b"GGUF")
    with pytest.raises(BundleError, match=r"m-00002-of-00002.gguf: the version"):
        open_checkpoint(path)


def test_codes_without_a_trit_are_refused(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"llama__embedding_length": 256}
    block = RawTensor(b"token_embd.weight", (256, 13), builder.TQ2_0, b"\xff" * 66 * 13)
    (tmp_path / "m.gguf").write_bytes(file_bytes(metadata(**changes), [block]))
    checkpoint = open_checkpoint(tmp_path / "m.gguf")
    with pytest.raises(BundleError, match=r"m.gguf: tensor 'token_embd.weight': a code is 3, which no trit has"):
        checkpoint.load("model.embed_tokens.weight")


def test_a_file_cut_after_opening_is_an_error(tmp_path: Path) -> None:
    path = builder.write_model(tmp_path)
    checkpoint = open_checkpoint(path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(BundleError, match=r"model.gguf: tensor 'blk.0.ffn_down.weight' ends after \d+ of \d+ bytes"):
        checkpoint.load("model.layers.0.mlp.down_proj.weight")


def read_all(path: Path, content: bytes) -> bool:
    """Return whether ``content`` was read; any error but an EdgedecError that names the file passes through."""
    path.write_bytes(content)
    refusal = None
    tracemalloc.start()
    try:
        checkpoint = open_checkpoint(path)
        for name, info in checkpoint.tensors.items():
            array = checkpoint.load(name)
            assert (array.shape, array.dtype.name) == (info.shape, info.dtype)
        checkpoint_graph(checkpoint)
    except EdgedecError as error:
        refusal = str(error)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < _MAX_BYTES
    assert refusal is None or str(path) in refusal, refusal
    return refusal is None


_PATIENT = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def sound_file() -> bytes:
    first = RawTensor(b"blk.1.attn_q.weight", (256, 4), builder.TQ2_0, bytes(66 * 4))
    return file_bytes(metadata(), [*tensors(), first])


@pytest.mark.thorough
@_PATIENT
@given(data=st.data())
def test_changed_bytes_are_read_or_refused(tmp_path: Path, sound_file: bytes, data: st.DataObject) -> None:
    content = bytearray(sound_file)
    header = len(file_bytes(metadata(), []))
    place = st.one_of(st.integers(0, header), st.integers(0, len(content) - 1))
    for at in data.draw(st.lists(place, min_size=1, max_size=4)):
        content[at] = data.draw(st.integers(0, 255))
    read_all(tmp_path / "m.gguf", bytes(content))


@pytest.mark.thorough
@_PATIENT
@given(data=st.data())
def test_replaced_numbers_are_read_or_refused(tmp_path: Path, sound_file: bytes, data: st.DataObject) -> None:
    content = bytearray(sound_file)
    width = data.draw(st.sampled_from([4, 8]))
    at = data.draw(st.integers(4, len(content) - width))
    value = data.draw(st.sampled_from([0, 1, 2, 7, 8, 9, 31, 33, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1]))
    wide = data.draw(st.sampled_from([value, value << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]))
    content[at : at + width] = (wide if width == 8 else value).to_bytes(width, "little")
    read_all(tmp_path / "m.gguf", bytes(content))


@_PATIENT
@given(data=st.data())
def test_spliced_and_cut_files_are_read_or_refused(tmp_path: Path, sound_file: bytes, data: st.DataObject) -> None:
    place = st.integers(0, len(sound_file))
    first, second = sorted((data.draw(place), data.draw(place)))
    middle = data.draw(st.one_of(st.just(b""), st.just(sound_file[first:second] * 2), st.binary(max_size=40)))
    end = data.draw(st.sampled_from([sound_file[second:], b""]))
    read_all(tmp_path / "m.gguf", sound_file[:first] + middle + end)


@pytest.mark.thorough
@_PATIENT
@given(
    entries=st.lists(
        st.tuples(
            st.sampled_from([*metadata(), "general.alignment", "split.count", "llama.rope.freq_base", "x"]),
            st.one_of(
                st.integers(0, (1 << 32) - 1),
                st.floats(width=32),
                st.booleans(),
                st.text(max_size=20),
                st.lists(st.text(max_size=5), min_size=1, max_size=20),
                st.lists(st.integers(-(1 << 31), (1 << 31) - 1), min_size=1, max_size=20),
                st.lists(st.floats(width=32), min_size=1, max_size=20),
            ),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_well_formed_nonsense_in_the_metadata_is_read_or_refused(
    tmp_path: Path, entries: list[tuple[str, Any]]
) -> None:
    read_all(tmp_path / "m.gguf", file_bytes(metadata() | dict(entries), tensors()))


def test_the_sound_file_is_read(tmp_path: Path) -> None:
    assert read_all(tmp_path / "m.gguf", model())
