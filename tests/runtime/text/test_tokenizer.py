from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as HfTokenizer

from edgedec.errors import BundleError, UsageError
from edgedec.runtime.text.tokenizer import Tokenizer


def build() -> str:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = HfTokenizer(models.BPE({char: i for i, char in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<s>"), AddedToken("</s>")])
    tokenizer.add_tokens([AddedToken("<think>")])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 256)])
    return tokenizer.to_str()


CONTENT = build()
TOKENIZER = Tokenizer(CONTENT)


@given(st.text())
def test_decode_undoes_encode(text: str) -> None:
    plain = text.replace("<s>", "").replace("</s>", "")
    ids = TOKENIZER.encode(plain)
    assert ids.dtype == np.int32
    assert ids[0] == 256
    assert TOKENIZER.decode(ids) == plain


def test_special_tokens_in_the_text_are_parsed_and_a_rendered_bos_is_not_doubled() -> None:
    rendered = TOKENIZER.encode_rendered("<s>a</s>")
    assert rendered.tolist() == [256, TOKENIZER.id_of("a"), 257]
    assert TOKENIZER.encode("a</s>").tolist() == [256, TOKENIZER.id_of("a"), 257]
    assert TOKENIZER.encode("a", add_special=False).tolist() == [TOKENIZER.id_of("a")]


def test_size_ids_and_special_tokens_are_read() -> None:
    assert TOKENIZER.size == 259
    assert TOKENIZER.id_of("</s>") == 257
    assert TOKENIZER.id_of("nothing") is None
    assert TOKENIZER.token_of(258) == "<think>"
    assert TOKENIZER.token_of(10_000) is None
    assert [TOKENIZER.is_special(i) for i in (0, 256, 258, 10_000)] == [False, True, False, False]
    assert TOKENIZER.decode([256, 258, 10_000]) == "<think>"


@pytest.mark.parametrize("largest", [2, 7, 3_000_000])
def test_size_counts_from_the_largest_id_when_ids_have_holes(largest: int) -> None:
    holes = HfTokenizer(models.WordLevel({"a": 0, "b": largest}, unk_token="a"))
    assert Tokenizer(holes.to_str()).size == largest + 1


def test_reading_a_vocabulary_takes_little_memory_besides_the_library_s() -> None:
    """A dictionary or the parsed file of so many tokens would take ten times as much."""
    words = {f"word {number}": number for number in range(20_000)}
    content = HfTokenizer(models.WordLevel(words, unk_token="word 0")).to_str()
    tracemalloc.start()
    try:
        assert Tokenizer(content).size == len(words)
        assert tracemalloc.get_traced_memory()[1] < len(content) // 4
    finally:
        tracemalloc.stop()


def test_truncation_and_padding_of_the_file_are_off() -> None:
    tokenizer = HfTokenizer.from_str(CONTENT)
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=50)
    assert len(Tokenizer(tokenizer.to_str()).encode("abcdefgh")) == 9


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"model": {"type": "BPE", "vocab": {}, "merges": []}}',
        CONTENT.encode()[:-9],
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(BundleError) as caught:
        Tokenizer.load(path)
    assert str(path) in str(caught.value)


@given(st.integers(0, len(CONTENT) - 1), st.characters(codec="utf-8"))
def test_a_changed_character_gives_an_error_or_a_tokenizer(at: int, char: str) -> None:
    try:
        damaged = Tokenizer(CONTENT[:at] + char + CONTENT[at + 1 :])
    except BundleError:
        return
    assert damaged.size > 0


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"nowhere\.json: cannot be read \(No such file"):
        Tokenizer.load(tmp_path / "nowhere.json")


def test_load_reads_the_file(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(CONTENT, encoding="utf-8")
    assert Tokenizer.load(path).size == TOKENIZER.size


def test_text_that_is_not_unicode_or_has_no_tokens_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="not valid Unicode at character 1"):
        TOKENIZER.encode("a\udc80")
    with pytest.raises(UsageError, match="cannot encode"):
        Tokenizer(HfTokenizer(models.WordLevel({"a": 0}, unk_token="x")).to_str()).encode("zzz")


@pytest.mark.thorough
def test_a_real_tokenizer_is_loaded(shared_data: Path) -> None:
    path = shared_data / "tokenizers" / "phi-2" / "tokenizer.json"
    if not path.exists():
        pytest.skip("phi-2's tokenizer is not among the shared data")
    phi = Tokenizer.load(path)
    assert phi.size == 50295
    assert phi.decode(phi.encode("Once upon a time, 😀 été")) == "Once upon a time, 😀 été"
    assert phi.encode_rendered("<|endoftext|>").tolist() == [50256]
