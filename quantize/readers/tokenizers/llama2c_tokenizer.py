"""llama2.c's ``tokenizer.bin`` and SentencePiece ``.vocab`` listings, converted to the JSON of ``tokenizers``.

tokenizer.bin: int32 longest piece in bytes, then per token float32 score, int32 length, the piece in UTF-8, with a
space for SentencePiece's underline and line feeds around ``<s>`` and ``</s>``.

llama2.c encodes " " + text: characters first (one that is no piece becomes its bytes, ids byte + 3), then it joins the
neighbours whose joined piece scores best, leftmost first, until no two can be joined. ``tokenizers`` does the same with
an ordered list of pairs: every way to split a piece in two pieces, by descending score of the whole. The one
difference: among joins of *equal* score llama2.c takes the leftmost and ``tokenizers`` the first in the list. Trained
vocabularies have no equal scores among pieces that can be joined.

Source: ``tokenizer.py`` and ``run.c`` of llama2.c.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgedec.errors import BundleError, UnsupportedError
from edgedec.quantize.readers.untrusted import file_bytes, read_bytes, read_text, shown

__all__ = ["Piece", "read_tokenizer_bin", "read_vocab_listing", "to_tokenizers_json"]

_SPECIAL = ("<unk>", "<s>", "</s>")
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
_MAX_FILE_BYTES = 64 << 20
_MAX_PIECE_BYTES = 1024  # SentencePiece trains pieces of at most 16 characters; splitting is quadratic in this
_UNDERLINE = "\u2581"


@dataclass(frozen=True)
class Piece:
    """A token; its id is its place in the list. Spaces are spaces."""

    text: str
    score: float


def read_tokenizer_bin(path: Path) -> list[Piece]:
    """The pieces of a llama2.c ``tokenizer.bin``.

    Raises:
        BundleError: truncated, or a length, a score or the text of a piece is impossible.
    """
    size = file_bytes(path)
    if not 4 <= size <= _MAX_FILE_BYTES:
        raise BundleError(f"{path}: {size} bytes cannot be a tokenizer.bin (4 to {_MAX_FILE_BYTES})")
    data = read_bytes(path, offset=0, count=size, what="the vocabulary")
    (longest,) = struct.unpack_from("<i", data)
    if not 1 <= longest <= _MAX_PIECE_BYTES:
        raise BundleError(f"{path}: the longest piece must have 1 to {_MAX_PIECE_BYTES} bytes, not {longest}")
    pieces: list[Piece] = []
    at = 4
    while at < size:
        where = f"{path}: piece {len(pieces)}"
        if size - at < 8:
            raise BundleError(f"{where} is cut off at byte {at}; the file is truncated")
        score, length = struct.unpack_from("<fi", data, at)
        at += 8
        if not 1 <= length <= longest:
            raise BundleError(f"{where} must have 1 to {longest} bytes, as the file says, not {length}")
        if length > size - at:
            raise BundleError(f"{where} has {length} bytes, but the file ends after {size - at}; it is truncated")
        try:
            text = data[at : at + length].decode("utf-8")
        except UnicodeDecodeError:
            raise BundleError(f"{where} is not UTF-8: {shown(data[at : at + length])}") from None
        pieces.append(Piece(text.strip("\n") if len(pieces) < len(_SPECIAL) else text, score))
        at += length
    return pieces


def read_vocab_listing(path: Path) -> list[Piece]:
    """The pieces of a SentencePiece ``.vocab`` listing: a line per token, the piece, a tab, the score.

    Raises:
        BundleError: a line is not of that form.
        UnsupportedError: the scores are log-probabilities, as unigram models have them.
    """
    pieces = []
    lines = read_text(path, _MAX_FILE_BYTES).split("\n")  # not splitlines: pieces may be other Unicode line ends
    for number, line in enumerate(lines[:-1] if lines[-1] == "" else lines, start=1):
        text, tab, score_text = line.rpartition("\t")
        try:
            score = float(score_text)
        except ValueError:
            score = math.nan
        if not text or not tab or not math.isfinite(score):
            raise BundleError(f"{path}: line {number} must be a piece, a tab and a score, not {shown(line)}")
        if score != round(score):
            raise UnsupportedError(
                f"{path}: line {number} has the score {score}, which a BPE vocabulary cannot have; "
                "unigram models are not read"
            )
        if len(text.encode()) > _MAX_PIECE_BYTES:
            raise BundleError(f"{path}: line {number} has a piece of more than {_MAX_PIECE_BYTES} bytes")
        pieces.append(Piece(text.replace(_UNDERLINE, " "), score))
    return pieces


def to_tokenizers_json(path: Path, pieces: list[Piece]) -> str:
    """The tokenizer of ``pieces``: encodes as llama2.c does, BOS first; decoding drops the space it put in front.

    Ids 0, 1, 2 are ``<unk>``, ``<s>``, ``</s>``. Without byte pieces an unknown character becomes ``<unk>``, and a
    run of them one ``<unk>``, as in SentencePiece.

    Raises:
        BundleError: other ids 0 to 2, a piece twice, a score that is no number, or only some of the 256 byte pieces.
    """
    texts = [piece.text for piece in pieces]
    if tuple(texts[:3]) != _SPECIAL:
        raise BundleError(f"{path}: tokens 0, 1, 2 must be {', '.join(_SPECIAL)}, not {shown(texts[:3])}")
    vocab = {text: index for index, text in enumerate(texts)}
    if len(vocab) != len(texts):
        text, count = Counter(texts).most_common(1)[0]
        raise BundleError(f"{path}: the piece {shown(text)} appears {count} times")
    for index, piece in enumerate(pieces):
        if not math.isfinite(piece.score):
            raise BundleError(f"{path}: piece {index} ({shown(piece.text)}) has the score {piece.score}")
    byte_pieces = sum(_BYTE.fullmatch(text) is not None for text in texts)
    if byte_pieces not in (0, 256):
        raise BundleError(f"{path}: has {byte_pieces} of the 256 byte pieces <0x00> to <0xFF>; all or none are needed")
    return json.dumps(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [_special_token(index) for index in range(len(_SPECIAL))],
            "normalizer": {"type": "Prepend", "prepend": " "},
            "pre_tokenizer": None,
            "post_processor": _begin_with_bos(),
            "decoder": {
                "type": "Sequence",
                "decoders": [
                    {"type": "ByteFallback"},
                    {"type": "Fuse"},
                    {"type": "Strip", "content": " ", "start": 1, "stop": 0},
                ],
            },
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": _SPECIAL[0],
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": True,
                "byte_fallback": byte_pieces == 256,
                "ignore_merges": False,
                "vocab": vocab,
                "merges": _merges(pieces),
            },
        },
        ensure_ascii=False,
    )


def _merges(pieces: list[Piece]) -> list[tuple[str, str]]:
    """Every way to make a piece of two others, the best-scored piece first."""
    joinable = {
        piece.text: index
        for index, piece in enumerate(pieces)
        if index >= len(_SPECIAL) and not _BYTE.fullmatch(piece.text)
    }
    found = []
    for text, index in joinable.items():
        for cut in range(1, len(text)):
            left, right = joinable.get(text[:cut]), joinable.get(text[cut:])
            if left is not None and right is not None:
                found.append((-pieces[index].score, left, right))
    return [(pieces[left].text, pieces[right].text) for _, left, right in sorted(found)]


def _special_token(index: int) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"id": index, "content": _SPECIAL[index], **flags}


def _begin_with_bos() -> dict[str, Any]:
    bos = {"SpecialToken": {"id": _SPECIAL[1], "type_id": 0}}
    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    return {
        "type": "TemplateProcessing",
        "single": [bos, first],
        "pair": [bos, first, bos, second],
        "special_tokens": {_SPECIAL[1]: {"id": _SPECIAL[1], "ids": [1], "tokens": [_SPECIAL[1]]}},
    }
