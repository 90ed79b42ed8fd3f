"""Compare the converted tokenizer with llama2.c's algorithm, written here in a slow and plain way."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from edgedec.errors import BundleError, UnsupportedError
from edgedec.quantize.readers.tokenizers.llama2c_tokenizer import (
    ScoredPiece,
    read_tokenizer_bin,
    read_vocab_listing,
    to_tokenizers_json,
)
from tests.quantize.readers.support.make_checkpoints import small_pieces, tokenizer_bin

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
_SMALL = [ScoredPiece(text, score) for text, score in small_pieces(with_bytes=True)]


def llama2c_encode(vocabulary: list[tuple[bytes, float]], text: str) -> list[int]:
    """Encode like ``encode`` of llama2.c's run.c with bos, without eos; ``vocabulary`` is (piece, score) by id."""
    ids = {piece: index for index, (piece, _) in enumerate(vocabulary)}
    tokens = [1]
    if text:
        tokens.append(ids[b" "])
    for character in text:
        piece = character.encode()
        tokens += [ids[piece]] if piece in ids else [byte + 3 for byte in piece]
    while True:
        best_score, best_at, best_id = -1e10, -1, -1
        for at in range(len(tokens) - 1):
            joined = ids.get(vocabulary[tokens[at]][0] + vocabulary[tokens[at + 1]][0])
            if joined is not None and vocabulary[joined][1] > best_score:
                best_score, best_at, best_id = vocabulary[joined][1], at, joined
        if best_at < 0:
            return tokens
        tokens[best_at : best_at + 2] = [best_id]


def converted(pieces: list[ScoredPiece]) -> Tokenizer:
    """Convert without special texts, because llama2.c reads "<s>" in a prompt as three characters."""
    tokenizer = Tokenizer.from_str(to_tokenizers_json(Path("tokenizer.bin"), pieces))
    tokenizer.encode_special_tokens = True
    return tokenizer


def as_c(pieces: list[ScoredPiece]) -> list[tuple[bytes, float]]:
    """Return the strings that llama2.c compares."""
    special = {1: b"\n<s>\n", 2: b"\n</s>\n"}
    return [(special.get(index, piece.text.encode()), piece.score) for index, piece in enumerate(pieces)]


@pytest.fixture(scope="module")
def tok512(shared_data: Path) -> tuple[Tokenizer, list[tuple[bytes, float]]]:
    """Return the trained tokenizer, converted, and its vocabulary, which is read here independently."""
    path = shared_data / "tokenizers" / "tok512.bin"
    data, at, vocabulary = path.read_bytes(), 4, []
    while at < len(data):
        score, length = struct.unpack_from("<fi", data, at)
        vocabulary.append((data[at + 8 : at + 8 + length], score))
        at += 8 + length
    return converted(read_tokenizer_bin(path)), vocabulary


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["GrimmsFairyTales.txt", "tinyshakespeare.txt", "wikitext-2/valid.txt"])
def test_real_text_is_encoded_alike(
    tok512: tuple[Tokenizer, list[tuple[bytes, float]]], shared_data: Path, name: str
) -> None:
    tokenizer, vocabulary = tok512
    text = (shared_data / "text" / name).read_text(encoding="utf-8")
    for start in range(0, 60000, 150):
        part = text[start : start + 150]
        ids = tokenizer.encode(part).ids
        assert ids == llama2c_encode(vocabulary, part)
        assert tokenizer.decode(ids) == part


@given(text=_TEXT)
@example(text="")
@example(text=" two  spaces ")
@example(text="<s></s><0x41>\n\t\0")
@example(text="\u2581 the underline itself, \U0001f600")
def test_any_text_is_encoded_alike_by_the_trained_tokenizer(
    tok512: tuple[Tokenizer, list[tuple[bytes, float]]], text: str
) -> None:
    tokenizer, vocabulary = tok512
    ids = tokenizer.encode(text).ids
    assert ids == llama2c_encode(vocabulary, text)
    assert tokenizer.decode(ids) == text


@given(text=st.one_of(_TEXT, st.text("the a", max_size=40)))
def test_any_text_is_encoded_alike_by_a_small_tokenizer(text: str) -> None:
    tokenizer = converted(_SMALL)
    ids = tokenizer.encode(text).ids
    assert ids == llama2c_encode(as_c(_SMALL), text)
    assert tokenizer.decode(ids) == text


@pytest.mark.thorough
@given(data=st.data())
def test_any_vocabulary_made_by_joining_encodes_alike(data: st.DataObject) -> None:
    texts = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), " ", "a", "b"]
    for _ in range(data.draw(st.integers(0, 20))):
        joined = data.draw(st.sampled_from(texts[259:])) + data.draw(st.sampled_from(texts[259:]))
        if joined not in texts:
            texts.append(joined)
    pieces = [ScoredPiece(text, -float(index)) for index, text in enumerate(texts)]
    text = data.draw(st.text("ab c", max_size=60))
    assert converted(pieces).encode(text).ids == llama2c_encode(as_c(pieces), text)


def test_a_written_vocabulary_is_read(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.bin"
    path.write_bytes(tokenizer_bin(small_pieces(with_bytes=True)))
    assert read_tokenizer_bin(path) == _SMALL


def test_special_tokens_of_a_template_are_one_id() -> None:
    tokenizer = Tokenizer.from_str(to_tokenizers_json(Path("tokenizer.bin"), _SMALL))
    ids = tokenizer.encode("<s>the</s>", add_special_tokens=False).ids
    assert [ids[0], ids[-1]] == [1, 2]
    assert tokenizer.decode(ids) == "the"


def test_characters_without_byte_pieces_become_unk(shared_data: Path) -> None:
    pieces = read_vocab_listing(shared_data / "tokenizers" / "tok105.vocab")
    assert len(pieces) == 105
    assert [piece.text for piece in pieces[3:6]] == [" ", "e", "a"]
    assert pieces[91].text == "\xa0"
    tokenizer = converted(pieces)
    encoding = tokenizer.encode("Tom \u4e16\u754c ate.")
    assert encoding.tokens == ["<s>", " ", *"Tom", " ", "<unk>", " ", *"ate."]
    assert tokenizer.decode(encoding.ids) == "Tom  ate."
    assert (
        tokenizer.decode(tokenizer.encode("A \u201ccaf\xe9\u201d, 50% ~ [x]").ids) == "A \u201ccaf\xe9\u201d, 50% ~ [x]"
    )


def test_a_vocabulary_listing_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.vocab"
    path.write_text("<unk>\t0\n<s>\t0\n</s>\t0\n\u2581\t-0\n\t\t-1\n\u2028\t-2\n\u2581x\t-3\n", encoding="utf-8")
    assert [piece.text for piece in read_vocab_listing(path)] == ["<unk>", "<s>", "</s>", " ", "\t", "\u2028", " x"]
    assert json.loads(to_tokenizers_json(path, read_vocab_listing(path)))["model"]["byte_fallback"] is False


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("<unk>\t0\nword\n", BundleError, "line 2 must be a piece, a tab and a score, not 'word'"),
        ("<unk>\t0\n\t0\n", BundleError, "line 2 must be a piece"),
        ("<unk>\tnan\n", BundleError, "line 1 must be a piece"),
        ("<unk>\t0\nx\t-1e999\n", BundleError, "line 2 must be a piece"),
        ("<unk>\t0\n" + "x" * 2000 + "\t-1\n", BundleError, "line 2 has a piece of more than 1024 bytes"),
        ("<unk>\t0\nx\t-3.125\n", UnsupportedError, "unigram models are not read"),
    ],
)
def test_a_damaged_vocabulary_listing_is_refused(
    tmp_path: Path, text: str, error: type[Exception], message: str
) -> None:
    path = tmp_path / "a.vocab"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(error, match=message):
        read_vocab_listing(path)
