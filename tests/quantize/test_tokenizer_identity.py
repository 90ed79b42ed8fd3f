"""Compare tokenizers by what their ids mean: what spelling changes, and what it does not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from edgedec.quantize.readers.tokenizers import byte_tokenizer
from edgedec.quantize.readers.tokenizers.piece_tokenizer import (
    PieceKind,
    PieceVocabulary,
    VocabularyPiece,
    added_token,
    to_json,
)
from edgedec.quantize.tokenizer_identity import tokenizer_identity
from tests.quantize.readers.tokenizers.support.folder_styles import CONTROL, byte_level, flagged, pieces, spaced

Tree = dict[str, Any]


def model(**changes: Any) -> Callable[[Tree], Tree]:
    return lambda tree: tree | {"model": tree["model"] | changes}


@pytest.mark.parametrize(
    "change",
    [
        lambda tree: json.loads(Tokenizer.from_str(json.dumps(tree)).to_str()),
        lambda tree: model(merges=[" ".join(merge) for merge in tree["model"]["merges"]])(tree),
        lambda tree: tree | {"post_processor": None},
        model(unk_token=None, continuing_subword_prefix="", end_of_word_suffix=""),
    ],
    ids=["the library's spelling", "merges as strings", "no post-processor", "empty options"],
)  # fmt: skip
def test_another_spelling_is_the_same_tokenizer(change: Callable[[Tree], Tree]) -> None:
    assert tokenizer_identity(json.dumps(change(byte_level()))) == tokenizer_identity(json.dumps(byte_level()))


def test_a_gguf_s_vocabulary_is_that_of_the_folder_it_was_made_from() -> None:
    tree = model(ignore_merges=True)(byte_level())  # a word of the vocabulary needs no merges, as in Llama 3
    own = byte_tokenizer.to_json(
        vocab=tree["model"]["vocab"],
        merges=[(left, right) for left, right in tree["model"]["merges"]],
        added=[added_token(at, text, special=True) for at, text in enumerate(CONTROL)],
        cut="llama-bpe",
        post=None,
    )
    assert tokenizer_identity(own) == tokenizer_identity(json.dumps(tree))
    spelled = [VocabularyPiece(text, score, PieceKind(kind)) for text, score, kind in pieces()]
    by_pieces = to_json(Path("m.gguf"), PieceVocabulary(pieces=spelled, unknown=0))
    folder = model(merges=json.loads(by_pieces)["model"]["merges"])(spaced("first"))
    assert tokenizer_identity(by_pieces) == tokenizer_identity(json.dumps(folder))


def test_an_added_token_in_every_text_hides_no_difference() -> None:
    tree = byte_level()
    tree["added_tokens"].append({"id": 400, **flagged("\n"), "special": False})
    other = model(merges=tree["model"]["merges"][1:])(tree)
    assert tokenizer_identity(json.dumps(other)) != tokenizer_identity(json.dumps(tree))


@pytest.mark.parametrize(
    "change",
    [
        lambda tree: model(merges=tree["model"]["merges"][1:])(tree),
        lambda tree: tree | {"added_tokens": tree["added_tokens"] + [{"id": 400, **flagged("<sep>")}]},
        lambda tree: tree | {"added_tokens": tree["added_tokens"][1:]},
        lambda tree: tree | {"normalizer": {"type": "NFC"}},
        lambda tree: tree | {"pre_tokenizer": tree["pre_tokenizer"]["pretokenizers"][1]},
        lambda tree: model(vocab={text: at ^ 1 for text, at in tree["model"]["vocab"].items()})(tree),
    ],
    ids=["a merge", "a token", "a word instead of a token", "normalization", "the split", "ids"],
)
def test_what_changes_the_meaning_of_ids_is_another_tokenizer(change: Callable[[Tree], Tree]) -> None:
    assert tokenizer_identity(json.dumps(change(byte_level()))) != tokenizer_identity(json.dumps(byte_level()))
