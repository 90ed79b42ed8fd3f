"""Refuse misleading tokenizers, whose compiled maps lead the library, which trusts them, past their end."""

from __future__ import annotations

import base64
import json
import struct
import time
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from edgedec.errors import BundleError
from edgedec.quantize.readers.tokenizers.tokenizer_file import read_tokenizer
from tests.attacks.fuzz.mutators.protobuf import field
from tests.quantize.readers.support.make_checkpoints import hf_tokenizer, write_json

_LEAF, _VALUE = 1 << 8, 1 << 31


def charsmap(changes: dict[int, int] | None = None, *, size: int | None = None, texts: bytes = b"xy\0") -> bytes:
    """Encode a map of "t" to "xy", with changed units, or another claimed size."""
    units = dict.fromkeys(range(256), 0) | {116: 116 | _LEAF | 2 << 10, 118: _VALUE} | (changes or {})
    trie = struct.pack(f"<{len(units)}I", *units.values())
    return struct.pack("<I", len(trie) if size is None else size) + trie + texts


def in_json(folder: Path, data: bytes) -> Path:
    normalizer = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(data).decode()}
    return write_json(folder / "tokenizer.json", hf_tokenizer(normalizer=normalizer))


def in_a_sequence_with_a_spelled_key(folder: Path, data: bytes) -> Path:
    inner = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(data).decode()}
    path = write_json(folder / "tokenizer.json", hf_tokenizer(normalizer={"type": "Sequence", "normalizers": [inner]}))
    path.write_text(path.read_text().replace("precompiled_", "\\u0070recompiled\\u005f"))
    return path


def in_sentencepiece(folder: Path, data: bytes) -> Path:
    pieces = [("<unk>", 2), ("<s>", 3), ("</s>", 3), ("a", 1), ("x", 1), ("y", 1)]
    model = b"".join(
        field(1, field(1, text.encode()) + field(2, struct.pack("<f", -at), 5) + field(3, kind))
        for at, (text, kind) in enumerate(pieces)
    )
    path = folder / "tokenizer.model"
    path.write_bytes(model + field(2, field(3, 2)) + field(3, field(2, data)))
    return path


CASES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", r"a trie of 0 bytes in a map of 0 bytes"),
    "trie of four billion bytes": (charsmap(size=0xFFFFFFFC), r"a trie of 4294967292 bytes in a map of 1031 bytes"),
    "trie of half a unit": (charsmap(size=1022), r"a trie of 1022 bytes"),
    "trie without a unit": (charsmap(size=0), r"a trie of 0 bytes"),
    "a trie of one unit": (struct.pack("<II", 4, 0) + b"\0", r"a unit of the trie points outside the trie"),
    "the root leads out": (charsmap({0: 1 << 18}), r"a unit of the trie points outside the trie"),
    "a leaf leads far out": (
        charsmap({104: 104 | 1 << 9 | 0x1FFFFF << 10}),
        r"a unit of the trie points outside the trie",
    ),
    "a value behind the texts": (charsmap({118: _VALUE | 4}), r"a value of the trie is not the start of a text"),
    "a value inside a character": (charsmap({118: _VALUE | 1}, texts="é\0".encode()), r"is not the start of a text"),
    "texts that are not UTF-8": (charsmap(texts=b"\xff\0"), r"can't decode byte 0xff"),
}


@pytest.mark.parametrize("write", [in_json, in_a_sequence_with_a_spelled_key, in_sentencepiece])
@pytest.mark.parametrize("case", CASES)
def test_a_damaged_compiled_map_is_refused(
    tmp_path: Path, case: str, write: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    data, message = CASES[case]
    if write is in_sentencepiece and not data:
        pytest.skip("a model without a map has no rules")
    path = write(tmp_path, data)
    with pytest.raises(BundleError, match=message) as caught:
        read_tokenizer(path, 13)
    assert str(path) in str(caught.value)
    assert "panicked" not in capfd.readouterr().err, "the library does not see it"


@pytest.mark.parametrize("write", [in_json, in_a_sequence_with_a_spelled_key, in_sentencepiece])
def test_a_sound_map_is_read(tmp_path: Path, write: Any) -> None:
    """Check that trees which return to themselves are accepted, because a match is at most as long as the text."""
    for units in ({}, {0: 0, 116: 116 | _LEAF | 118 << 10, 2: _VALUE}):
        checked = read_tokenizer(write(tmp_path, charsmap(units)), 13)
        normalized = Tokenizer.from_str(checked.json).normalizer.normalize_str("t")
        assert "xy" in normalized
        assert json.loads(checked.json)["normalizer"]


_UNKNOWN_MISSING = {"type": "BPE", "vocab": {"<s>": 0, "a": 1}, "merges": [], "unk_token": "<unk>"}
_WORDS = {"type": "WordLevel", "vocab": {"<s>": 0, "a": 1}, "unk_token": "<unk>"}
_SAME_IDS = {"type": "BPE", "vocab": {"<s>": 1, "a": 4, "b": 4, "ab": 5}, "merges": [["a", "b"]]}
_CUT = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": _UNKNOWN_MISSING, "added_tokens": []}, r"Unk token `<unk>` not found in the vocabulary"),
        ({"model": _WORDS, "added_tokens": [], "post_processor": None}, r"Missing \[UNK\] token"),
        ({"model": _SAME_IDS, "truncation": _CUT, "added_tokens": []}, r"Token `.*` out of vocabulary"),
    ],
    ids=["characters without a token", "words without a token", "what is written cannot be read"],
)
def test_errors_that_the_library_raises_later_are_found_when_reading(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    """Check errors of the first prompt with such a character, or of opening a bundle."""
    path = write_json(tmp_path / "tokenizer.json", hf_tokenizer(**changes))
    with pytest.raises(BundleError, match=rf"tokenizer.json is not a usable tokenizer: .*{message}"):
        read_tokenizer(path, 13)


def test_the_last_id_is_checked_before_the_library_counts_up_to_it(tmp_path: Path) -> None:
    """Check this because it takes half a minute to write a tokenizer with this id, which padding or truncation would
    do.
    """
    model = {"type": "BPE", "vocab": {"<s>": 1, "a": 3, "ab": (1 << 31) - 1}, "merges": []}
    path = write_json(tmp_path / "tokenizer.json", hf_tokenizer(model=model, truncation=_CUT, added_tokens=[]))
    start = time.process_time()
    with pytest.raises(BundleError, match=r"tokenizer.json: has token id 2147483647 \('ab'\)"):
        read_tokenizer(path, 13)
    assert time.process_time() - start < 2
