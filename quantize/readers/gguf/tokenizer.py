"""Convert the vocabulary in a GGUF file to the JSON of the ``tokenizers`` library, and find the ids that end a text.

Source: docs/gguf.md of ggml; ``llama-vocab.cpp`` of llama.cpp for the defaults.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import BundleError, UnsupportedError
from edgedec.quantize.readers.gguf.header import GgufHeader
from edgedec.quantize.readers.tokenizers import byte_tokenizer
from edgedec.quantize.readers.tokenizers.piece_tokenizer import (
    PieceKind,
    PieceVocabulary,
    VocabularyPiece,
    added_token,
    post_processor,
)
from edgedec.quantize.readers.tokenizers.piece_tokenizer import to_json as pieces_to_json
from edgedec.quantize.readers.untrusted import shown

__all__ = ["gguf_tokenizer", "special_ids"]

_AT = "tokenizer.ggml."
_INSTEAD = "pass the model's tokenizer.json with --tokenizer"
# Tokens that end a turn even if the metadata do not name them.
_ENDS = ("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>")
_ADDED = {PieceKind.UNKNOWN: True, PieceKind.CONTROL: True, PieceKind.USER_DEFINED: False}


class _Vocabulary:
    """Reads and checks the metadata of a vocabulary."""

    def __init__(self, header: GgufHeader) -> None:
        self.path, self._metadata = header.path, header.metadata
        tokens = self._metadata.get(f"{_AT}tokens")
        if not isinstance(tokens, list) or not tokens:
            raise BundleError(f"{self.path}: {_AT}tokens must be a list of strings; {_INSTEAD}")
        kinds = self._numbers("token_type", len(tokens))
        self.kinds = (
            [PieceKind.NORMAL] * len(tokens) if kinds is None else [self._kind(kind) for kind in kinds.tolist()]
        )
        count = len(tokens)
        while count > 1 and self.kinds[count - 1] is PieceKind.UNUSED:  # padding, which must never be sampled
            count -= 1
        self.tokens, self.kinds = tokens[:count], self.kinds[:count]

    def _kind(self, value: float) -> PieceKind:
        if value not in set(PieceKind):
            raise BundleError(f"{self.path}: {_AT}token_type holds {shown(value)}, which is not a token type")
        return PieceKind(int(value))

    def _numbers(self, key: str, count: int) -> NDArray[Any] | None:
        value = self._metadata.get(f"{_AT}{key}")
        if value is None:
            return None
        if not isinstance(value, np.ndarray) or len(value) != count:
            raise BundleError(f"{self.path}: {_AT}{key} must be {count} numbers, one for each token")
        return value

    def text(self, key: str) -> str | None:
        value = self._metadata.get(f"{_AT}{key}")
        if value is not None and not isinstance(value, str):
            raise BundleError(f"{self.path}: {_AT}{key} must be text, not {shown(value)}")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self._metadata.get(f"{_AT}{key}", default)
        if not isinstance(value, bool):
            raise BundleError(f"{self.path}: {_AT}{key} must be true or false, not {shown(value)}")
        return value

    def token(self, key: str, default: int | None = None) -> int | None:
        """Return an id, or None if there is none; old writers mark that by an id outside the vocabulary."""
        value = self._metadata.get(f"{_AT}{key}", default)
        if value is not None and type(value) is not int:
            raise BundleError(f"{self.path}: {_AT}{key} must be a token id, not {shown(value)}")
        return value if isinstance(value, int) and 0 <= value < len(self.tokens) else None

    def scores(self) -> list[float]:
        """Return the scores; the file has one for each token, including padding."""
        count = len(self._metadata[f"{_AT}tokens"])  # type: ignore[arg-type]
        scores = self._numbers("scores", count)
        if scores is None:
            raise BundleError(f"{self.path}: {_AT}scores is missing; {_INSTEAD}")
        return [float(score) for score in scores.tolist()]

    def merges(self) -> list[tuple[str, str]]:
        value = self._metadata.get(f"{_AT}merges")
        if not isinstance(value, list):
            raise BundleError(f"{self.path}: {_AT}merges must be a list of strings; {_INSTEAD}")
        merges = []
        for at, text in enumerate(value):
            cut = text.find(" ", 1)
            if cut < 0 or cut + 1 == len(text):
                raise BundleError(f"{self.path}: {_AT}merges[{at}] must be two tokens, not {shown(text)}")
            merges.append((text[:cut], text[cut + 1 :]))
        return merges


def gguf_tokenizer(header: GgufHeader) -> str:
    """Return the ``tokenizer.json`` of the vocabulary in the file.

    Raises:
        BundleError: there is no vocabulary, or it contradicts itself.
        UnsupportedError: its kind is not supported.
    """
    words = _Vocabulary(header)
    model = words.text("model")
    if model == "llama":
        return _by_pieces(words)
    if model == "gpt2":
        return _by_bytes(words)
    raise UnsupportedError(f"{header.path}: {_AT}model {shown(model)} is not read; known: llama, gpt2; {_INSTEAD}")


def _by_pieces(words: _Vocabulary) -> str:
    scores = words.scores()
    vocabulary = PieceVocabulary(
        pieces=[
            VocabularyPiece(text, scores[at], kind)
            for at, (text, kind) in enumerate(zip(words.tokens, words.kinds, strict=True))
        ],
        prefix=words.flag("add_space_prefix", True),
        unknown=words.token("unknown_token_id", 0),
        begin=words.token("bos_token_id", 1) if words.flag("add_bos_token", True) else None,
        end=words.token("eos_token_id", 2) if words.flag("add_eos_token", False) else None,
    )
    return pieces_to_json(words.path, vocabulary)


def _by_bytes(words: _Vocabulary) -> str:
    cut = words.text("pre")
    if cut is None or cut not in byte_tokenizer.CUTS:
        raise UnsupportedError(
            f"{words.path}: {_AT}pre {shown(cut)}, a way to split texts into words, is not read; "
            f"known: {', '.join(byte_tokenizer.CUTS)}; {_INSTEAD}"
        )
    vocab = {text: at for at, text in enumerate(words.tokens)}
    if len(vocab) != len(words.tokens):
        text, count = Counter(words.tokens).most_common(1)[0]
        raise BundleError(f"{words.path}: the token {shown(text)} appears {count} times")
    adds_bos = words.flag("add_bos_token", cut in byte_tokenizer.IGNORES_MERGES)

    def named(index: int | None) -> tuple[int, str] | None:
        return None if index is None else (index, words.tokens[index])

    return byte_tokenizer.to_json(
        vocab=vocab,
        merges=words.merges(),
        added=[
            added_token(at, text, _ADDED[kind])
            for at, (text, kind) in enumerate(zip(words.tokens, words.kinds, strict=True))
            if kind in _ADDED and text
        ],
        cut=cut,
        post=post_processor(
            named(words.token("bos_token_id")) if adds_bos else None,
            named(words.token("eos_token_id")) if words.flag("add_eos_token", False) else None,
        ),
    )


def special_ids(header: GgufHeader, vocab_size: int) -> tuple[int | None, tuple[int, ...]]:
    """Return the id of BOS, or None, and the ids that end a text, all below ``vocab_size``."""
    if f"{_AT}tokens" not in header.metadata:  # the tokenizer is in another file
        return None, ()
    words = _Vocabulary(header)
    by_pieces = words.text("model") == "llama"
    bos = words.token("bos_token_id", 1 if by_pieces else None)
    ends = [words.token("eos_token_id", 2 if by_pieces else None), words.token("eot_token_id")]
    ends += [words.token("eom_token_id")]
    ends += [at for at, (text, kind) in enumerate(zip(words.tokens, words.kinds, strict=True))
             if kind in _ADDED and text in _ENDS]  # fmt: skip
    unique = dict.fromkeys(end for end in ends if end is not None and end < vocab_size)
    return (None if bos is None or bos >= vocab_size else bos), tuple(unique)
