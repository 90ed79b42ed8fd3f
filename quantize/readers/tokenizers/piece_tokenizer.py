"""Convert SentencePiece vocabularies of any source to the JSON of the ``tokenizers`` library.

SentencePiece's BPE repeatedly joins the neighbours whose joined piece has the best score, leftmost first. ``tokenizers``
does the same with an ordered list of pairs: every way to split a piece into two, by descending score of the whole.
Characters that are no piece become their bytes. The unigram model takes the likeliest split, as ``tokenizers`` does.

Source: ``bpe_model.cc`` and ``normalizer.cc`` of SentencePiece; ``llama-vocab.cpp`` of llama.cpp.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

from edgedec.errors import BundleError
from edgedec.quantize.readers.untrusted import shown

__all__ = [
    "PieceKind",
    "PieceVocabulary",
    "VocabularyPiece",
    "added_token",
    "check_pieces",
    "decoder",
    "metaspace",
    "post_processor",
    "to_json",
]

_UNDERLINE = "\u2581"
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
# Limits, because splitting is quadratic in the length of a piece. Trained pieces have up to 16 characters, pieces that users
# define a few dozen.
_MAX_PIECE, _MAX_CHARACTERS = 1024, 16 << 20


class PieceKind(IntEnum):
    """Kinds of pieces, numbered as in SentencePiece and GGUF."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class VocabularyPiece:
    """A token of a vocabulary. Its id is its index in the list; a space is written as SentencePiece's underline."""

    text: str
    score: float
    kind: PieceKind


@dataclass(frozen=True, kw_only=True)
class PieceVocabulary:
    """Pieces of a SentencePiece vocabulary and its settings.

    Members:
        prefix: a space is added at the start of a text, and of each part of it between added tokens.
        first_only: the space is added at the start of a text only, and not if it begins with one, as in transformers.
        charsmap: SentencePiece's compiled normalization; empty: characters stay as they are.
        squeeze: runs of spaces become one space, and spaces around a text are removed.
        whole: pieces that users define are found in the normalized text, as in SentencePiece; False: in the text itself, as
            added tokens, which is what llama.cpp does.
        unknown: id of the token for unknown characters if no piece is of kind UNKNOWN.
        begin: id of the token that is added before a text; None: no token.
        end: id of the token that is added after a text; None: no token.
        takes_spaces: ids of control tokens and of tokens that users define that take the spaces behind them.
    """

    pieces: Sequence[VocabularyPiece]
    unigram: bool = False
    prefix: bool = True
    first_only: bool = False
    charsmap: bytes = b""
    squeeze: bool = False
    whole: bool = False
    unknown: int | None = None
    begin: int | None = None
    end: int | None = None
    takes_spaces: Collection[int] = ()


def added_token(index: int, text: str, special: bool, *, rstrip: bool = False) -> dict[str, Any]:
    """Return an entry of ``added_tokens``; with ``rstrip`` the token takes the spaces behind it."""
    flags = {"single_word": False, "lstrip": False, "rstrip": rstrip, "normalized": False}
    return {"id": index, "content": text, **flags, "special": special}


def post_processor(begin: tuple[int, str] | None, end: tuple[int, str] | None) -> dict[str, Any] | None:
    """Return a post-processor that adds tokens before and after a text, or None if there are no tokens."""
    if begin is None and end is None:
        return None

    def special(token: tuple[int, str] | None) -> list[dict[str, Any]]:
        return [{"SpecialToken": {"id": token[1], "type_id": 0}}] if token else []

    def text(name: str) -> list[dict[str, Any]]:
        return [*special(begin), {"Sequence": {"id": name, "type_id": 0}}, *special(end)]

    tokens = [token for token in (begin, end) if token]
    return {
        "type": "TemplateProcessing",
        "single": text("A"),
        "pair": [*text("A"), *text("B")],
        "special_tokens": {name: {"id": name, "ids": [index], "tokens": [name]} for index, name in tokens},
    }


def to_json(path: Path, vocabulary: PieceVocabulary) -> str:
    """Return the ``tokenizer.json`` of a vocabulary.

    Raises:
        BundleError: a piece appears twice, a score is not finite, only some of the 256 byte pieces exist, or a required
            unknown token is missing.
    """
    pieces = vocabulary.pieces
    check_pieces(path, pieces)
    unknown = next((at for at, piece in enumerate(pieces) if piece.kind is PieceKind.UNKNOWN), vocabulary.unknown)
    has_bytes = any(piece.kind is PieceKind.BYTE for piece in pieces)
    whole = [piece.text for piece in pieces if vocabulary.whole and piece.kind is PieceKind.USER_DEFINED]
    if unknown is None and (vocabulary.unigram or not has_bytes):
        raise BundleError(f"{path}: the vocabulary has no unknown token, and not all characters are in it")
    if vocabulary.unigram:
        model: dict[str, Any] = {
            "type": "Unigram",
            "unk_id": unknown,
            "vocab": [[piece.text, _unigram_score(piece)] for piece in pieces],
            "byte_fallback": has_bytes,
        }
    else:
        model = {
            "type": "BPE",
            "dropout": None,
            "unk_token": None if unknown is None else pieces[unknown].text,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": has_bytes,
            "ignore_merges": bool(whole),
            "vocab": {piece.text: index for index, piece in enumerate(pieces)},
            "merges": _merges(pieces),
        }
    special = {PieceKind.UNKNOWN: True, PieceKind.CONTROL: True}
    if not vocabulary.whole:
        special[PieceKind.USER_DEFINED] = False
    return json.dumps(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [
                added_token(index, piece.text, special[piece.kind], rstrip=index in vocabulary.takes_spaces)
                for index, piece in enumerate(pieces)
                if piece.kind in special and piece.text
            ],
            "normalizer": _normalizer(vocabulary),
            "pre_tokenizer": _pre_tokenizer(vocabulary, whole),
            "post_processor": post_processor(*(_named(path, pieces, at) for at in (vocabulary.begin, vocabulary.end))),
            "decoder": decoder(vocabulary.prefix),
            "model": model,
        },
        ensure_ascii=False,
    )


def check_pieces(path: Path, pieces: Sequence[VocabularyPiece]) -> None:
    """Check that pieces can be a vocabulary.

    Raises:
        BundleError: as ``to_json``.
    """
    if not pieces:
        raise BundleError(f"{path}: the vocabulary is empty")
    text, count = Counter(piece.text for piece in pieces).most_common(1)[0]
    if count > 1:
        raise BundleError(f"{path}: the piece {shown(text)} appears {count} times")
    if sum(len(piece.text) for piece in pieces) > _MAX_CHARACTERS:
        raise BundleError(f"{path}: the pieces have more than {_MAX_CHARACTERS} characters; this is not a vocabulary")
    for index, piece in enumerate(pieces):
        if not math.isfinite(piece.score):
            raise BundleError(f"{path}: piece {index} ({shown(piece.text)}) has the score {piece.score}")
        if len(piece.text) > _MAX_PIECE:
            raise BundleError(f"{path}: piece {index} has {len(piece.text)} characters; at most {_MAX_PIECE} are read")
        if piece.kind is PieceKind.BYTE and not _BYTE.fullmatch(piece.text):
            raise BundleError(f"{path}: piece {index} ({shown(piece.text)}) has the type of a byte, but is not one")
    byte_pieces = sum(piece.kind is PieceKind.BYTE for piece in pieces)
    if byte_pieces not in (0, 256):
        raise BundleError(f"{path}: has {byte_pieces} of the 256 byte pieces <0x00> to <0xFF>; all or none are needed")


def _named(path: Path, pieces: Sequence[VocabularyPiece], index: int | None) -> tuple[int, str] | None:
    if index is None:
        return None
    if not 0 <= index < len(pieces):
        raise BundleError(f"{path}: the token {index}, which is added to texts, is not among the {len(pieces)} pieces")
    return index, pieces[index].text


def _unigram_score(piece: VocabularyPiece) -> float:
    """Return the score of a piece, which is so low for all but normal pieces that they are never chosen.

    A piece that users define is chosen where it is isolated, because scores are logarithms.
    """
    return {PieceKind.NORMAL: piece.score, PieceKind.USER_DEFINED: 0.0}.get(piece.kind, -1e6)


def _merges(pieces: Sequence[VocabularyPiece]) -> list[tuple[str, str]]:
    """Return every way to join two pieces to a third, the best-scored result first."""
    joinable = {piece.text: index for index, piece in enumerate(pieces) if piece.kind is PieceKind.NORMAL}
    splits = []
    for text, index in joinable.items():
        for cut in range(1, len(text)):
            left = joinable.get(text[:cut])
            if left is not None and (right := joinable.get(text[cut:])) is not None:
                splits.append((-pieces[index].score, left, right))
    return [(pieces[left].text, pieces[right].text) for _, left, right in sorted(splits)]


def _normalizer(vocabulary: PieceVocabulary) -> dict[str, Any]:
    steps: list[dict[str, Any]] = []
    if vocabulary.charsmap:
        charsmap = base64.b64encode(vocabulary.charsmap).decode()
        steps.append({"type": "Precompiled", "precompiled_charsmap": charsmap})
    if vocabulary.squeeze:
        steps.append(
            {"type": "Replace", "pattern": {"Regex": "\\A +| +\\z"}, "content": ""}
        )  # Strip would remove tabs, too
        steps.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
    if vocabulary.prefix and not vocabulary.first_only:
        steps.append({"type": "Prepend", "prepend": _UNDERLINE})
    steps.append({"type": "Replace", "pattern": {"String": " "}, "content": _UNDERLINE})
    return {"type": "Sequence", "normalizers": steps}


def _pre_tokenizer(vocabulary: PieceVocabulary, whole: Sequence[str]) -> dict[str, Any] | None:
    steps: list[dict[str, Any]] = []
    if vocabulary.prefix and vocabulary.first_only:
        steps.append(metaspace("first"))
    if whole:
        longest_first = sorted(whole, key=len, reverse=True)
        pattern = {"Regex": "|".join(map(re.escape, longest_first))}
        steps.append({"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False})
    return {"type": "Sequence", "pretokenizers": steps} if len(steps) > 1 else steps[0] if steps else None


def metaspace(scheme: str) -> dict[str, Any]:
    """Return the step that writes spaces as underlines, and adds one to the "first", "always" each or "never" a part."""
    return {"type": "Metaspace", "replacement": _UNDERLINE, "prepend_scheme": scheme, "split": False}


def decoder(prefix: bool) -> dict[str, Any]:
    """Return the decoder of pieces, which removes the space at the start of a text if ``prefix`` adds one."""
    steps: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": _UNDERLINE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if prefix:
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {"type": "Sequence", "decoders": steps}
