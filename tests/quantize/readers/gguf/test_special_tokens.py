"""Test what a vocabulary leaves open or gets wrong; ids and ends are those of llama.cpp (xllamacpp 2026.10)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, pre_tokenizers

from edgedec.errors import BundleError, UnsupportedError
from edgedec.quantize.readers import open_checkpoint
from edgedec.quantize.readers.gguf.header import GgufHeader, read_header
from edgedec.quantize.readers.gguf.tokenizer import KNOWN_VOCABULARIES, gguf_tokenizer, special_ids
from tests.quantize.readers.support import make_gguf as builder

LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())
JOINED = ["he", "ll", "llo", "hello", "\u0120k", "12", "123", "\u0120!", "!!", "'M"]
MERGES = ["h e", "l l", "ll o", "he llo", "\u0120 k", "1 2", "12 3", "\u0120 !", "! !", "' M"]
SPECIAL = ["<|im_start|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<think>", "", "<|fim_pad|>"]
TEXTS = ("hello k!! 1234'M !", "<|im_start|>hello<|im_end|> !!", "a<think><|end|>")
BY_DEFAULT = [
    [259, 260, 264, 220, 262, 19, 6, 44, 220, 0],
    [27, 91, 72, 76, 62, 82, 83, 64, 81, 83, 91, 29, 259, 267, 220, 264],
    [64, 27, 83, 71, 72, 77, 74, 29, 268],
]
LIKE_GPT2 = [
    [259, 260, 264, 220, 262, 19, 6, 44, 263],
    [27, 91, 72, 76, 62, 82, 83, 64, 81, 83, 91, 29, 259, 267, 263, 0],
    [64, 27, 83, 71, 72, 77, 74, 29, 268],
]


def header(folder: Path, *, special: list[str] = SPECIAL, **changes: Any) -> GgufHeader:
    tokens = [*LETTERS, *JOINED, *special]
    keys: dict[str, Any] = {"model": "gpt2", "tokens": tokens, "token_type": [1] * len(tokens), "merges": MERGES}
    keys |= {"scores": None, "bos_token_id": None, "eos_token_id": None} | changes
    path = folder / "v.gguf"
    entries = builder.metadata(**{f"tokenizer__ggml__{key}": value for key, value in keys.items()})
    path.write_bytes(builder.file_bytes(entries, []))
    return read_header(path)


@pytest.mark.parametrize(
    ("changes", "ends", "ids", "note"),
    [
        ({}, [11, 267, 269, 270, 273], BY_DEFAULT, "pre is missing; texts are split by llama.cpp's default"),
        ({"pre": "default"}, [11, 267, 269, 270, 273], BY_DEFAULT, "pre is 'default'; texts are split by llama.cpp's"),
        ({"pre": "gpt-2", "eos_token_id": 5}, [5, 267, 269, 270, 273], LIKE_GPT2, "for '<|im_end|>', '<|return|>', "),
        ({"pre": "gpt-2"}, [11, 267, 269, 270, 273], LIKE_GPT2, "eos_token_id is missing; ',' is taken"),
        (
            {"pre": "llama-bpe", "bos_token_id": 0, "eos_token_id": 1},
            [1, 267, 269, 270, 273],
            [
                [0, 259, 260, 264, 220, 262, 19, 265, 263],
                [0, 27, 91, 72, 76, 62, 82, 83, 64, 81, 83, 91, 29, 259, 267, 263, 0],
                [0, 64, 27, 83, 71, 72, 77, 74, 29, 268],
            ],
            "tokens has 1 empty ones, the first at 272",
        ),
        (
            {"pre": "gpt-2", "token_type": [1] * 266 + [3, 0, 9, 1, 4, 4, 5, 1], "eos_token_id": (1 << 32) - 1,
             "eot_token_id": 3},
            [3, 11, 267, 269, 270, 273],
            [LIKE_GPT2[0], [266, 259, 267, 263, 0], [64, 271, 268]],
            "token_type has 2 types that do not exist",
        ),
        (
            {"pre": "qwen2", "token_type": None, "eos_token_id": 2, "add_bos_token": True, "add_eos_token": True},
            [2, 267, 269, 270, 273],
            [
                [11, 259, 260, 264, 220, 16, 17, 18, 19, 265, 263, 2],
                [11, 27, 91, 72, 76, 62, 82, 83, 64, 81, 83, 91, 29, 259, 267, 263, 0, 2],
                [11, 64, 27, 83, 71, 72, 77, 74, 29, 268, 2],
            ],
            "token_type is missing",
        ),
        (
            {"pre": "gpt-2", "eos_token_id": 0, "special": [one for one in SPECIAL if one != "<|call|>"]},
            [0, 267, 268, 269, 272],  # without "<|call|>" the token "<|end|>" does end a text
            LIKE_GPT2,
            "",
        ),
        (
            {"pre": "gpt-2", "eos_token_id": 5, "merges": ["zzq qqz", *MERGES, "\u0120 !"]},
            [5, 267, 269, 270, 273],
            LIKE_GPT2,
            "merges has 1 merges of tokens that do not exist",
        ),
    ],
)  # fmt: skip
def test_a_vocabulary_is_completed_as_by_llama_cpp(
    changes: dict[str, Any], ends: list[int], ids: list[list[int]], note: str, tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    read = header(tmp_path, **changes)
    tokenizer = Tokenizer.from_str(gguf_tokenizer(read))
    assert [tokenizer.encode(text).ids for text in TEXTS] == ids
    assert sorted(special_ids(read, 300)[1]) == ends
    assert note in caplog.text


def test_the_first_end_is_that_of_the_key(tmp_path: Path) -> None:
    read = header(tmp_path, pre="gpt-2", eos_token_id=270, eot_token_id=3)
    assert special_ids(read, 300) == (None, (270, 3, 267, 269, 273))
    assert special_ids(read, 269) == (None, (3, 267))


def test_a_merge_that_makes_a_missing_token_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"merges joins 'he' and 'x', and 'hex' is no token"):
        gguf_tokenizer(header(tmp_path, pre="gpt-2", merges=[*MERGES, "he x"]))


def test_a_bos_that_no_key_names_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"texts have a BOS, but there is no tokenizer.ggml.bos_token_id"):
        gguf_tokenizer(header(tmp_path, pre="glm4", add_bos_token=True))


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "expected"), [("Llama 3", ["123", "4"]), ("Qwen 2", [*"1234"]), ("GPT-2", ["1234"])])
def test_a_known_vocabulary_is_split_as_its_own(
    name: str, expected: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    known = KNOWN_VOCABULARIES[name][1]
    special = [known.get(at, f"<{at}>") for at in range(len(LETTERS) + len(JOINED), max(known) + 1)]
    tokenizer = Tokenizer.from_str(gguf_tokenizer(header(tmp_path, special=special, merges=["1 2"])))
    assert f"pre is missing; the vocabulary is that of {name}" in caplog.text
    assert tokenizer.pre_tokenizer is not None
    assert [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str("1234")] == expected


def test_tokens_of_the_template_that_are_normal_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = builder.write_model(
        tmp_path,
        tokenizer__ggml__tokens=["<unk>", "<s>", "</s>", *builder.LETTERS[:-2], "<start_of_turn>", "<other>"],
        tokenizer__chat_template="<start_of_turn>user",
    )
    open_checkpoint(path)
    assert "token_type calls '<start_of_turn>' of the chat template normal" in caplog.text


def test_pieces_with_equal_scores_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    scores = [0.0, 0.0, 0.0, *(-float(at) for at in range(len(builder.LETTERS)))]
    scores[8] = scores[9]  # "th" and "the"
    open_checkpoint(builder.write_model(tmp_path, tokenizer__ggml__scores=scores))
    assert "scores has 2 pieces whose scores other pieces have, too" in caplog.text


def test_control_tokens_of_phi_3_take_the_spaces_behind_them(tmp_path: Path) -> None:
    tokens = ["<unk>", "<s>", "</s>", *builder.LETTERS[:-1], "<|end|>"]
    path = builder.write_model(tmp_path, general__name="My Phi-3", tokenizer__ggml__tokens=tokens)
    tokenizer = Tokenizer.from_str(gguf_tokenizer(read_header(path)))
    the = tokens.index("\u2581the")
    ids = tokenizer.encode("<|end|> \n the<s> the").ids
    assert ids == [1, len(tokens) - 1, the, 1, tokens.index("\u2581"), the]


def test_named_templates_become_one_program(tmp_path: Path) -> None:
    path = builder.write_model(tmp_path, tokenizer__chat_template="D", **{"tokenizer__chat_template__tool_use": "T"})
    template = open_checkpoint(path).chat_template
    assert template is not None
    assert "tools is not none" in template
    assert "T" in template
