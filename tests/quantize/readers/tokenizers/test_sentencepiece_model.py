"""Compare SentencePiece models with the ``sentencepiece`` package, and read Llama 3's list of ranks."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from tokenizers import Tokenizer

from edgedec.errors import BundleError, EdgedecError, UnsupportedError
from edgedec.quantize.readers.tokenizers.sentencepiece_model import read_model_file

TEXTS = ["", " ", "  two  spaces ", "\t", "a\nb", "Once upon a time", "é ½ 🦙", " lead", "the\n\n  end \n", "12 + 34"]


def trained(path: Path, **options: Any) -> sentencepiece.SentencePieceProcessor:
    sentences = iter(["once upon a time there was a dog", "the cat and the dog ran home", "a time for cats"] * 20)
    buffer = io.BytesIO()
    settings = {"vocab_size": 60, "hard_vocab_limit": False, "num_threads": 1, "minloglevel": 2} | options
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=sentences, model_writer=buffer, **settings)
    path.write_bytes(buffer.getvalue())
    return sentencepiece.SentencePieceProcessor(str(path))


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("rule", ["identity", "nmt_nfkc"])
def test_texts_are_encoded_like_by_sentencepiece(tmp_path: Path, kind: str, rule: str) -> None:
    theirs = trained(tmp_path / "t.model", model_type=kind, normalization_rule_name=rule)
    ours = Tokenizer.from_str(read_model_file(tmp_path / "t.model"))
    for text in ["the dog and the cat", "a time  once", " upon home", "xyz the", "the\tcat", ""]:
        assert ours.encode(text, add_special_tokens=False).ids == theirs.encode(text), text
    assert ours.encode("a").tokens[0] == "<s>"


def test_bytes_and_user_defined_pieces_are_encoded(tmp_path: Path) -> None:
    theirs = trained(
        tmp_path / "t.model",
        model_type="bpe",
        byte_fallback=True,
        vocab_size=330,
        user_defined_symbols=["<sep>"],
        remove_extra_whitespaces=False,
        normalization_rule_name="identity",
    )
    ours = Tokenizer.from_str(read_model_file(tmp_path / "t.model"))
    for text in TEXTS:
        assert ours.encode(text, add_special_tokens=False).ids == theirs.encode(text), text
        assert ours.decode(theirs.encode(text)) == theirs.decode(theirs.encode(text))
    assert ours.token_to_id("<sep>") in ours.encode("a<sep>b").ids


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("name", ["tok105", "tokenizer_4096", "llama2-32k.tokenizer"])
def test_published_models_encode_like_sentencepiece(shared_data: Path, name: str) -> None:
    file = shared_data / "tokenizers" / f"{name}.model"
    theirs = sentencepiece.SentencePieceProcessor(str(file))
    ours = Tokenizer.from_str(read_model_file(file))
    lines = (shared_data / "text" / "tinyshakespeare.txt").read_text("utf-8").split("\n")[:400]
    for text in [*lines, *TEXTS]:
        assert ours.encode(text, add_special_tokens=False).ids == theirs.encode(text), text


@pytest.mark.nightly
def test_llama_3_s_ranks_are_read(shared_data: Path) -> None:
    file = shared_data / "tokenizers" / "bitnet2B4T-llama3.tokenizer.model"
    tokenizer = Tokenizer.from_str(read_model_file(file))
    assert tokenizer.get_vocab_size() == 128256
    assert tokenizer.encode("Hello world").ids == [128000, 9906, 1917]  # from the model card
    assert tokenizer.token_to_id("<|eot_id|>") == 128009
    text = "The 1234 naïve cats' toes — 東京 🦙!\n\n  x"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def _field(number: int, data: bytes) -> bytes:
    return bytes([number << 3 | 2, len(data)]) + data


_PIECES = b"".join(_field(1, _field(1, text)) for text in (b"<unk>", b"<s>", b"a"))


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (b"", BundleError, r"0 bytes cannot be a tokenizer's model"),
        (b"\0" * 40, BundleError, r"the vocabulary is empty"),
        (b"\xff" * 40, BundleError, r"an integer has more than 64 bits|wire type"),
        (b"\x0a\xff\xff\xff\xff\x7f", BundleError, r"a field of 34359738367 bytes ends after it"),
        (b"\x0a", BundleError, r"is truncated"),
        (_field(1, b""), BundleError, r"piece 0 is empty"),
        (_field(1, _field(1, b"\xff")), BundleError, r"piece 0 is not UTF-8"),
        (_field(1, _field(1, b"a") + b"\x18\x09"), BundleError, r"piece 0 has the type 9"),
        (_field(1, _field(1, b"a") + b"\x15\x00\x00\xc0\x7f"), BundleError, r"piece 0 \('a'\) has the score nan"),
        (_PIECES + _field(1, _field(1, b"a")), BundleError, r"the piece 'a' appears 2 times"),
        (_PIECES + _field(2, b"\x18\x03"), UnsupportedError, r"a model of words or characters"),
        (b"IQ== 0\nIg== 2\n", BundleError, r"line 2 has the rank 2; ranks must be"),
        (b"IQ== 0\nIg==\n", BundleError, r"line 2 must be base64 and a rank"),
        (b"IQ== 0\nIg== 1\n", BundleError, r"254 of the 256 bytes are not tokens"),
    ],
)
def test_damaged_models_are_refused(tmp_path: Path, content: bytes, error: type[EdgedecError], message: str) -> None:
    (tmp_path / "t.model").write_bytes(content)
    with pytest.raises(error, match=message) as caught:
        read_model_file(tmp_path / "t.model")
    assert str(tmp_path) in str(caught.value)


def test_ranks_of_another_model_are_refused(tmp_path: Path) -> None:
    lines = [base64.b64encode(bytes([at])) + f" {at}".encode() for at in range(256)]
    (tmp_path / "t.model").write_bytes(b"\n".join(lines))
    with pytest.raises(UnsupportedError, match=r"a list of 256 ranks does not name its special tokens"):
        read_model_file(tmp_path / "t.model")
