"""Test vocabularies inside GGUF files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from edgedec.errors import UnsupportedError
from edgedec.quantize.readers.gguf.header import read_header
from edgedec.quantize.readers.gguf.tokenizer import gguf_tokenizer, special_ids
from tests.quantize.readers.support import make_gguf as builder

TEXT = "Once upon a time, Tom's 123 dogs\n\n ran  over été 🦙.cpp <|end|> and didn't stop"


def opened(folder: Path, **changes: Any) -> Tokenizer:
    path = folder / "v.gguf"
    path.write_bytes(builder.file_bytes(builder.metadata(**changes), []))
    return Tokenizer.from_str(gguf_tokenizer(read_header(path)))


@pytest.mark.thorough
def test_the_vectors_of_llama_cpp_are_encoded(shared_data: Path) -> None:
    file = shared_data / "tokenizers" / "gguf" / "ggml-vocab-llama-spm.gguf"
    header = read_header(file)
    tokenizer = Tokenizer.from_str(gguf_tokenizer(header))
    texts = file.with_name(f"{file.name}.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    lines = file.with_name(f"{file.name}.out").read_text().split("\n")
    assert len(texts) == len(lines) == 47
    for text, line in zip(texts, lines, strict=True):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert ids == [int(word) for word in line.split()], text
        assert tokenizer.decode(ids) == text
    assert tokenizer.encode("a").tokens[0] == "<s>"
    assert special_ids(header, 32000) == (1, (2,))


def byte_level(cut: Any) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = cut
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<|end|>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([TEXT, "upon upon time times dogs over stop 12 13"] * 3, trainer)
    return tokenizer


def test_bytes_are_encoded_like_by_the_original_tokenizer(tmp_path: Path) -> None:
    import json

    source = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False))
    tree = json.loads(source.to_str())
    vocab = sorted(tree["model"]["vocab"].items(), key=lambda item: item[1])
    changes = {
        "tokenizer__ggml__model": "gpt2",
        "tokenizer__ggml__pre": "gpt-2",
        "tokenizer__ggml__tokens": [text for text, _ in vocab],
        "tokenizer__ggml__token_type": [3, *[1] * (len(vocab) - 1)],
        "tokenizer__ggml__merges": [" ".join(merge) for merge in tree["model"]["merges"]],
        "tokenizer__ggml__scores": None,
        "tokenizer__ggml__bos_token_id": 0,
    }
    actual = opened(tmp_path, **changes)
    assert actual.encode(TEXT).ids == source.encode(TEXT).ids
    assert actual.decode(actual.encode(TEXT).ids, skip_special_tokens=False) == TEXT
    with_bos = opened(tmp_path, **changes, tokenizer__ggml__add_bos_token=True)
    assert with_bos.encode("a").tokens == ["<|end|>", "a"]


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("gpt-2", ["1234", " a", "'", "M"]),
        ("llama-bpe", ["123", "4", " a", "'M"]),
        ("qwen2", [*"1234", " a", "'M"]),
        ("qwen35", [*"1234", " a", "'M"]),
        ("smollm", [*"1234", " a", "'", "M"]),
    ],
)
def test_each_way_to_cut_text_is_read(pre: str, expected: list[str]) -> None:
    import json

    from edgedec.quantize.readers.tokenizers.byte_tokenizer import to_json

    vocab = {letter: at for at, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tree = json.loads(to_json(vocab=vocab, merges=[], added=[], cut=pre, post=None))
    tokenizer = Tokenizer.from_str(json.dumps(tree))
    assert tokenizer.pre_tokenizer is not None
    cut = tokenizer.pre_tokenizer.pre_tokenize_str("1234 a'M")
    assert [text.replace("\u0120", " ") for text, _ in cut] == expected


@pytest.mark.parametrize(("pre", "words"), [("qwen2", ["\u0928\u092e\u0938", "\u094d\u0924", "\u0947"]),
                                            ("qwen35", ["\u0928\u092e\u0938\u094d\u0924\u0947"])])  # fmt: skip
def test_marks_stay_with_their_letters_in_qwen35_alone(pre: str, words: list[str]) -> None:
    from edgedec.quantize.readers.tokenizers.byte_tokenizer import to_json

    cut = Tokenizer.from_str(to_json(vocab={}, merges=[], added=[], cut=pre, post=None)).pre_tokenizer
    assert cut is not None
    text = "".join(words)
    assert [text[slice(*place)] for _, place in cut.pre_tokenize_str(text)] == words


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"tokenizer__ggml__model": "bert"},
            r"model 'bert' is not read; known: llama, gpt2; pass the model's tokenizer",
        ),
        (
            {"tokenizer__ggml__model": "gpt2", "tokenizer__ggml__pre": "spiral"},
            r"pre 'spiral', a way to split texts into words, is not read; known: gpt-2",
        ),
        (
            {"tokenizer__ggml__model": "gpt2", "tokenizer__ggml__pre": "kimi-k2"},
            r"pre 'kimi-k2', .* is not read \(llama.cpp splits by code of its own\); known: gpt-2",
        ),
    ],
)
def test_unknown_kinds_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        opened(tmp_path, **changes)


def test_no_prefix_and_an_end_token_are_read(tmp_path: Path) -> None:
    tokenizer_read = opened(tmp_path, tokenizer__ggml__add_space_prefix=False, tokenizer__ggml__add_eos_token=True)
    assert tokenizer_read.encode("the").tokens == ["<s>", "the", "</s>"]
